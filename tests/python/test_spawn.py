"""spawn(): results, and every way in which a rank can fail, with nothing left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import is_alive
from possessions import children

import a2a
from a2a import _spawn


def exchange(comm: a2a.Communicator, offset: int) -> tuple[int, list[int]]:
    received = np.zeros(comm.size, np.int64)
    comm.alltoall(np.arange(comm.size) + offset * comm.rank, received)
    return os.getpid(), received.tolist()


@pytest.mark.parametrize("threads", [False, True])
@pytest.mark.parametrize("n", [1, 2, 5])
def test_spawn_returns_results_in_rank_order(run_ranks: Callable[..., list[Any]], n: int, threads: bool) -> None:
    results = run_ranks(n, exchange, 10, threads=threads)
    assert [values for _, values in results] == [[10 * peer + rank for peer in range(n)] for rank in range(n)]
    assert len({pid for pid, _ in results}) == (1 if threads else n)
    assert (os.getpid() in {pid for pid, _ in results}) == threads


def init_inside(comm: a2a.Communicator) -> list[tuple[int, int]]:
    seen = []
    for _ in range(2):
        with a2a.init() as other:
            seen.append((other.rank, other.size))
            other.barrier()
    comm.barrier()
    return seen


def test_init_works_in_spawned_ranks(run_ranks: Callable[..., list[Any]]) -> None:
    assert run_ranks(3, init_inside) == [[(rank, 3)] * 2 for rank in range(3)]


def raise_on_rank_two(comm: a2a.Communicator) -> None:
    if comm.rank == 2:
        raise KeyError("the reason")
    comm.barrier()


@pytest.mark.parametrize("threads", [False, True])
def test_the_failing_ranks_own_exception_is_raised(run_ranks: Callable[..., list[Any]], threads: bool) -> None:
    started = time.monotonic()
    with pytest.raises(KeyError, match="the reason") as info:
        run_ranks(4, raise_on_rank_two, threads=threads)
    cause = info.value.__cause__
    assert isinstance(cause, _spawn.RankTraceback)
    assert cause.rank == 2
    assert str(cause).startswith("rank 2:\nTraceback") and "in raise_on_rank_two" in str(cause)
    assert time.monotonic() - started < 20


def bad_count_on_rank_one(comm: a2a.Communicator) -> None:
    counts = [1, -1] if comm.rank == 1 else [1, 1]
    comm.alltoallv(np.zeros(2), counts, np.zeros(2), [1, 1])


def test_a_mismatch_does_not_hide_the_rank_that_caused_it(run_ranks: Callable[..., list[Any]]) -> None:
    with pytest.raises(a2a.InvalidArgumentError) as info:
        run_ranks(2, bad_count_on_rank_one)
    assert isinstance(info.value.__cause__, _spawn.RankTraceback) and info.value.__cause__.rank == 1


def die(comm: a2a.Communicator, how: str) -> None:
    comm.barrier()  # all have met
    if comm.rank == 1:
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "exit":
            os._exit(3)
        if how == "sys.exit":
            sys.exit(4)
    comm.barrier()


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("kill", "rank 1 was killed by SIGKILL"),
        ("exit", "rank 1 exited with code 3 before it returned"),
        ("sys.exit", "SystemExit: 4"),
    ],
)
def test_a_rank_that_ends_is_reported(run_ranks: Callable[..., list[Any]], how: str, message: str) -> None:
    with pytest.raises(a2a.Error) as info:
        run_ranks(3, die, how)
    assert str(info.value) == message


def test_outcomes_of_survivors(rank_outcomes: Callable[..., list[_spawn.Outcome]]) -> None:
    outcomes = rank_outcomes(3, die, "kill")
    assert [outcome.rank for outcome in outcomes] == [0, 1, 2]
    assert all(isinstance(outcome.error, a2a.PeerLostError) for outcome in outcomes)
    assert outcomes[1].traceback == "" and "barrier" in outcomes[0].traceback


def sleep_on_rank_one(comm: a2a.Communicator) -> None:
    if comm.rank == 1:
        time.sleep(600)
    comm.barrier()


def test_timeout_ends_all_ranks_and_says_where_they_were(run_ranks: Callable[..., list[Any]]) -> None:
    started = time.monotonic()
    with pytest.raises(a2a.TimeoutError) as info:
        run_ranks(2, sleep_on_rank_one, timeout=8)
    assert 8 <= time.monotonic() - started < 30
    assert "timeout passed before rank 0, 1 of 2 ended" in str(info.value)
    assert "rank 1 was at:" in str(info.value) and "in sleep_on_rank_one" in str(info.value)


def stubborn_with_a_child(comm: a2a.Communicator, file: str) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = subprocess.Popen(["sleep", "600"])
    Path(file, str(comm.rank)).write_text(str(child.pid))
    comm.barrier()
    if comm.rank == 0:
        raise RuntimeError("now")
    time.sleep(600)


def test_what_ranks_started_is_ended_too(run_ranks: Callable[..., list[Any]], tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="now"):
        run_ranks(2, stubborn_with_a_child, str(tmp_path))
    for rank in range(2):
        assert not is_alive(int((tmp_path / str(rank)).read_text()))


class Unpicklable(Exception):
    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


def raise_unpicklable(comm: a2a.Communicator) -> None:
    raise Unpicklable(1, 2)


def return_unpicklable(comm: a2a.Communicator) -> object:
    return threading.Lock()


def test_what_cannot_be_pickled(run_ranks: Callable[..., list[Any]]) -> None:
    with pytest.raises(a2a.InvalidArgumentError, match="use a function of a module, or threads=True"):
        run_ranks(2, lambda comm: None)
    with pytest.raises(RuntimeError, match="Unpicklable: 1 and 2"):
        run_ranks(1, raise_unpicklable)
    with pytest.raises(TypeError, match="pickle"):
        run_ranks(1, return_unpicklable)
    assert run_ranks(2, lambda comm: comm.rank, threads=True) == [0, 1]
    with pytest.raises(a2a.InvalidArgumentError, match="n=0 is not a number of ranks"):
        run_ranks(0, exchange, 1)


def large_result(comm: a2a.Communicator, data: bytes) -> bytes:
    return data * (comm.rank + 1)


def test_large_arguments_and_results(run_ranks: Callable[..., list[Any]]) -> None:
    data = os.urandom(5_000_000)
    assert run_ranks(2, large_result, data) == [data, data * 2]


SPAWNING_PROGRAM = """
import os, signal, sys, time
import a2a

signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in what shells run in the background

def fn(comm, seconds):
    os.write(1, f"rank {{comm.rank}} is {{__name__}}\\n".encode())
    time.sleep(seconds)
    return comm.rank

{guard}print(a2a.spawn(fn, 2, float(sys.argv[1])), flush=True)
"""


def program(tmp_path: Path, guard: str) -> Path:
    file = tmp_path / "program.py"
    file.write_text(SPAWNING_PROGRAM.format(guard=guard))
    return file


def test_spawn_from_a_program(tmp_path: Path) -> None:
    command = [sys.executable, str(program(tmp_path, "if __name__ == '__main__': ")), "0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines()[-1] == "[0, 1]"


def test_spawn_without_a_guard_fails_clearly_and_once(tmp_path: Path) -> None:
    command = [sys.executable, str(program(tmp_path, "")), "0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "put the call under `if __name__ == '__main__':`" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_ranks_do_not_outlive_their_parent(tmp_path: Path, number: signal.Signals) -> None:
    command = [sys.executable, str(program(tmp_path, "if __name__ == '__main__': ")), "600"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as parent:
        try:
            assert parent.stdout is not None
            lines = {parent.stdout.readline() for _ in range(2)}
            assert lines == {"rank 0 is __mp_main__\n", "rank 1 is __mp_main__\n"}
            ranks = [int(pid) for pid in Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()]
            assert len(ranks) == 2
            parent.send_signal(number)
            parent.wait(30)
        finally:
            parent.kill()
    assert not any(is_alive(pid) for pid in ranks)
    assert not children() & set(ranks)
