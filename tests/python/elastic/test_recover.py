"""Elastic jobs: ``a2a.init(elastic=True)``, ``Communicator.recover()`` and ``a2a run --restarts``."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from commands import command, environment
from tcp_peer import free_address

import a2a

pytestmark = pytest.mark.timeout(90)

PROGRAM = """
import os, sys, numpy as np, a2a

STEPS = 60
victims = {victims}      # {{step: rank}}
comm = a2a.init(elastic=True, timeout=30)
state, step, times = np.zeros(4), 0, int(os.environ.get("A2A_RESTART", 0))
while step < STEPS:
    try:
        if comm.joined:
            root = min(set(range(comm.size)) - set(comm.joined))
            at = np.array([step])
            comm.broadcast(at, root=root)
            comm.broadcast(state, root=root)
            step = int(at[0])
        while step < STEPS:
            if victims.get(step) == comm.rank and times == 0:
                {end}
            gradient = np.full(4, comm.rank + step, float)
            comm.allreduce(gradient)
            state += gradient
            step += 1
    except (a2a.PeerLostError, a2a.AbortedError):
        comm = comm.recover()
        os.write(1, f"rank {{comm.rank}} generation {{comm.generation}} joined {{comm.joined}}\\n".encode())
os.write(1, f"state {{' '.join(map(str, state.astype(int)))}}\\n".encode())
comm.close()
"""


def run(tmp_path: Path, n: int, restarts: int, victims: dict[int, int], end: str, **env: str) -> tuple[int, str, str]:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(victims=victims, end=end))
    line = command("run", "-n", str(n), "--restarts", str(restarts), "--no-prefix", str(program))
    done = subprocess.run(line, capture_output=True, text=True, timeout=80, check=False, env=environment(**env))
    return done.returncode, done.stdout, done.stderr


def state_after(n: int) -> str:
    return "state " + " ".join([str(sum(sum(range(n)) + n * step for step in range(60)))] * 4)


KILL = "os.kill(os.getpid(), 9)"


@pytest.mark.parametrize("end", [KILL, "raise ValueError('enough')", "os._exit(3)"])
def test_a_replacement_joins(tmp_path: Path, end: str) -> None:
    status, out, err = run(tmp_path, 3, 1, {20: 1}, end)
    assert status == 0, (out, err)
    assert out.splitlines().count(state_after(3)) == 3, out
    for rank in (0, 2):
        assert f"rank {rank} generation 1 joined [1]" in out
    assert "starting it again (1 of 1 restarts)" in err


def test_rank_0_and_several_one_after_the_other(tmp_path: Path) -> None:
    status, out, err = run(tmp_path, 3, 3, {10: 0, 25: 2, 40: 1}, KILL)
    assert status == 0, (out, err)
    assert out.splitlines().count(state_after(3)) == 3, out
    assert "generation 3 joined [1]" in out


def test_between_hosts(tmp_path: Path) -> None:
    place = {
        "A2A_BOOTSTRAP": f"tcp://{free_address()}",
        "A2A_SECRET": "a secret of sixteen bytes",
        "A2A_HOSTS": "a,b,a",
    }
    status, out, err = run(tmp_path, 3, 2, {10: 0, 30: 2}, KILL, **place)
    assert status == 0, (out, err)
    assert out.splitlines().count(state_after(3)) == 3, out


def test_without_restarts_left_the_job_ends(tmp_path: Path) -> None:
    status, out, err = run(tmp_path, 3, 1, {10: 1, 20: 2}, KILL)
    assert status != 0 and "generation 1" in out and "generation 2" not in out
    assert "rank 2 was killed by SIGKILL" in err


def test_alone(tmp_path: Path) -> None:
    status, out, err = run(tmp_path, 1, 1, {10: 0}, KILL)
    assert status == 0, (out, err)
    assert out.splitlines()[-1] == state_after(1)


def test_what_is_no_elastic_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("A2A_JOB", raising=False)
    with a2a.init(0, 1) as comm, pytest.raises(a2a.UnsupportedError, match="elastic=True"):
        comm.recover()
    with pytest.raises(a2a.InvalidArgumentError, match="outlives the ranks"):
        a2a.init(0, 1, bootstrap=Bootstrap(), elastic=True)


class Bootstrap:
    def allgather(self, mine: bytes, /) -> list[bytes]:
        return [mine]


def test_a_generation_that_is_over_cannot_be_recovered() -> None:
    comm = a2a.init(0, 1, job=f"over-{os.getpid()}", elastic=True)
    later = comm.recover()
    assert later.generation == 1 and later.timeout == comm.timeout
    with pytest.raises(a2a.AbortedError, match="is over"):
        comm.recover()
    later.close()


def test_the_example(tmp_path: Path) -> None:
    example = Path(__file__).parents[3] / "examples" / "elastic_training.py"
    if not example.exists():
        pytest.skip("no examples beside the tests")
    pytest.importorskip("torch")
    lines = []
    for options, env in (((), {"UNDISTURBED": "1"}), (("--restarts", "4"), {})):
        line = command("run", "-n", "3", *options, str(example))
        done = subprocess.run(line, capture_output=True, text=True, timeout=80, check=False, env=environment(**env))
        assert done.returncode == 0, done.stderr
        lines.append([text.partition("] ")[2] for text in done.stdout.splitlines() if "weights" in text])
    assert len(set(lines[0] + lines[1])) == 1 and len(lines[1]) == 3, lines
