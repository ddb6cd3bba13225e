"""What a traceback shows of this library, and what the log says of a call that waits."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from commands import environment

import a2a
from a2a import _log

CALLS = {
    "a method": "comm.alltoall(np.zeros(4), np.zeros(3, np.int32))",
    "no such argument": "comm.alltoall(np.zeros(4), np.zeros(4), speed=3)",
    "too few arguments": "comm.alltoall(np.zeros(4))",
    "a property of a closed one": "comm.close(); comm.barrier()",
    "a function": "a2a._core.connect(3, 2)",
    "a plan": "comm.plan_alltoall(np.zeros(4), np.zeros(4)).run(1, 2)",
    "not a tensor": "comm.allreduce([1, 2])",
    "in a generator": "list(comm.alltoall(x, x) for x in [3])",
}


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("call", CALLS)
def test_a_call_and_its_error_are_next_to_each_other(call: str, full: bool) -> None:
    code = f"import numpy as np, a2a\ncomm = a2a.init(0, 1)\n{CALLS[call]}\n"
    env = environment(A2A_TRACEBACK="full" if full else "")
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1 and "Traceback" in done.stderr and '"<string>", line 3' in done.stderr, done.stderr
    assert bool(re.search(r"\.p(yx|xi)\b", done.stderr)) == full, done.stderr
    assert done.stderr.count('File "<a2a>"') == (0 if full else 1), done.stderr


def test_errors_that_the_core_handles_itself() -> None:
    """Handlers of the core see errors without a traceback."""

    class Odd:
        @property
        def __dlpack__(self) -> Any:
            raise RuntimeError("mine")

    with a2a.init(0, 1) as comm:
        for _ in range(100):
            for argument in (Odd(), [1], None, "x", object(), np.array(["x"])):
                with pytest.raises((TypeError, ValueError, RuntimeError)) as caught:
                    comm.allreduce(argument)  # type: ignore[arg-type]
                assert caught.value.__traceback__ is not None


def wait_for_a_late_rank(comm: a2a.Communicator) -> list[str]:
    import logging

    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    _log.LOGGER.addHandler(handler)
    if comm.rank == 2:
        time.sleep(6)
    comm.allreduce(np.ones(10))
    return said


def test_the_log_names_the_ranks_that_a_call_waits_for(run_ranks: Callable[..., list[Any]]) -> None:
    said = run_ranks(3, wait_for_a_late_rank)
    assert said[2] == []
    for rank in (0, 1):
        assert len(said[rank]) == 1 and re.fullmatch(
            rf"rank {rank} of 3 has waited 5 s for ranks? .*2.*", said[rank][0]
        )
