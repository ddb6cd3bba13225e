"""An argument's own Python code may free the memory of a tensor beside it. No call takes memory before all such code
has run: what was freed is refused, and what is held is not freed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hostile_arguments import ROWS, Number

import a2a

pytestmark = pytest.mark.timeout(120)


@pytest.mark.full
def test_no_call_crashes() -> None:
    program = Path(__file__).parents[1] / "support" / "hostile_arguments.py"
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout.splitlines()[-1]) == {}


def test_what_was_freed_is_refused() -> None:
    with a2a.init(rank=0, size=1) as comm:
        send, recv = np.ones(ROWS), np.zeros(ROWS)
        with pytest.raises(a2a.InvalidArgumentError, match="send"):
            comm.alltoallv(send, [Number(lambda: send.resize(0, refcheck=False))], recv, [ROWS])
        comm.alltoall(recv, np.ones(ROWS))


def test_what_is_held_cannot_be_freed() -> None:
    with a2a.init(rank=0, size=1) as comm:
        send, recv = bytearray(b"x" * 4096), np.zeros(4096, np.uint8)
        comm.alltoallv(send, [4096], recv, [4096])
        assert (recv == ord("x")).all()
        send.clear()  # held no longer
