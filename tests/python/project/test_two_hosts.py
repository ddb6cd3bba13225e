"""benchmarks/two_hosts.sh, which people with two machines run, between two hosts that this one is taken for."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from commands import environment
from tcp_peer import free_address

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "two_hosts.sh"

pytestmark = [
    pytest.mark.skipif(not SCRIPT.exists(), reason="no source tree beside the tests"),
    pytest.mark.timeout(100),
]


def test_both_ends(tmp_path: Path) -> None:
    host, port = free_address().split(":")
    env = environment(PYTHON=sys.executable, PORT=port, NAMES="a2a", A2A_HOSTS="a,b", A2A_SECRET="s" * 20)
    env |= {"OPTIONS": f"--seconds 1 --rounds 2 --sizes 64 100000 --output {tmp_path / 'run'} --wait 40"}
    ends = [
        subprocess.Popen(
            ["sh", str(SCRIPT), end, host], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        for end in ("lead", "join")
    ]
    said = [end.communicate(timeout=80)[0] for end in ends]
    assert [end.returncode for end in ends] == [0, 0], said
    told = json.loads((tmp_path / "run.json").read_text())
    assert [(point["op"], point["bytes"]) for point in told["points"]] == [
        (op, size) for op in ("allreduce", "alltoall") for size in (64, 100_000)
    ]
    assert all(point["wrong"] == {"a2a": 0} and len(point["seconds"]["a2a"]) == 2 for point in told["points"]), told
    assert "allreduce    100000" in (tmp_path / "run.txt").read_text() and "# a2a: TCP; " in said[0], said


def test_what_it_says_without_an_address() -> None:
    done = subprocess.run(["sh", str(SCRIPT)], capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode == 2 and "two_hosts.sh lead ADDRESS" in done.stderr, done
