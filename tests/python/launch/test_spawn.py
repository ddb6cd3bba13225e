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
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from commands import is_alive
from possessions import children

import a2a
from a2a import _processes, _spawn


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


@pytest.mark.smoke
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
    assert "the timeout passed before ranks 0, 1 of 2 ended" in str(info.value)
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
    with pytest.raises(a2a.InvalidArgumentError, match="n='2' is not a number of ranks"):
        a2a.spawn(exchange, "2", 1)  # type: ignore[arg-type]
    with pytest.raises(a2a.InvalidArgumentError, match=r"fn=2 is not a function; pass spawn\(fn, n, \*args\)"):
        a2a.spawn(2, exchange)  # type: ignore[arg-type]


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


def test_an_interrupt_while_a_rank_is_started_ends_all(
    run_ranks: Callable[..., list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[subprocess.Popen[bytes]] = []

    def interrupted(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen(*arguments, **options))
        os.kill(os.getpid(), signal.SIGINT)
        return started[-1]

    monkeypatch.setattr(_processes, "subprocess", SimpleNamespace(Popen=interrupted, DEVNULL=subprocess.DEVNULL))
    with pytest.raises(KeyboardInterrupt):
        run_ranks(3, time.sleep, 600)
    assert [rank.returncode for rank in started] == [-signal.SIGTERM]


def test_nothing_is_left_where_a_rank_cannot_be_started(
    run_ranks: Callable[..., list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(FileNotFoundError):
        run_ranks(2, raise_on_rank_two)


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


# A program in which SIGCHLD is ignored, or others wait for all of its children.
REAPING = """
import os, signal, sys, threading, time
import a2a
import {module} as ranks

def reap_in_handler(*_):
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass

def reap_in_thread():
    while True:
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            time.sleep(0.001)

if __name__ == "__main__":
    how = sys.argv[1]
    if how == "ignored":
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    elif how == "handler":
        signal.signal(signal.SIGCHLD, reap_in_handler)
    else:
        threading.Thread(target=reap_in_thread, daemon=True).start()
    for _ in range(2):
        assert a2a.spawn(ranks.report, 2, timeout=30) == [0, 1]
    try:
        a2a.spawn(ranks.fail, 2, timeout=30)
    except KeyError as error:
        print("failed", error)
    started = time.monotonic()
    try:
        a2a.spawn(ranks.vanish, 2, timeout=30)
    except a2a.PeerLostError as error:
        print("vanished", error)
    assert time.monotonic() - started < 20
"""
RANKS = """
import os, signal, subprocess

def report(comm):
    comm.barrier()
    assert subprocess.run(["false"]).returncode == 1  # ranks have their children for themselves
    return comm.rank

def fail(comm):
    raise KeyError("own words")

def vanish(comm):
    comm.barrier()
    if comm.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    comm.barrier()
"""


@pytest.mark.parametrize("how", ["ignored", "handler", "thread"])
def test_the_program_need_not_have_its_children_to_itself(tmp_path: Path, how: str) -> None:
    (tmp_path / "reaped_ranks.py").write_text(RANKS)
    (tmp_path / "reaping.py").write_text(REAPING.format(module="reaped_ranks"))
    command = [sys.executable, str(tmp_path / "reaping.py"), how]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    failed, vanished = done.stdout.splitlines()
    assert failed == "failed 'own words'"
    assert vanished.startswith("vanished rank 1 ")


# Some threads start, then there is no room for another one's stack: RLIMIT_NPROC does not bind root.
TOO_MANY_THREADS = """
import os, resource, sys, threading, time
import a2a
pages = int(open("/proc/self/statm").read().split()[0])
room = pages * 4096 + (int(sys.argv[1]) << 20)
resource.setrlimit(resource.RLIMIT_AS, (room, room))
before = threading.active_count()
started = time.monotonic()
try:
    a2a.spawn(lambda comm: comm.barrier(), 24, threads=True, timeout=60)
except a2a.BackendError as error:
    print(error)
assert time.monotonic() - started < 20
assert threading.active_count() == before, threading.enumerate()
"""


@pytest.mark.parametrize("room", [40, 100, 180])
def test_where_a_thread_cannot_start_none_is_left(room: int) -> None:
    command = [sys.executable, "-c", TOO_MANY_THREADS, str(room)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "thread for rank" in done.stdout or "cannot map" in done.stdout  # a rank that has started may lack room, too
    assert "ulimit -v" in done.stdout


EXITING = """
import sys, threading, time
import a2a
from a2a import _core
ranks = _core.thread_bootstraps(3)
def wait(rank):
    comm = _core.connect(rank, 3, bootstrap=ranks[rank], timeout=60)
def wait_for_a_job():
    a2a.init(1, 2, job=f"nobody-{time.time()}", timeout=60)
def wait_over_tcp():
    a2a.TcpBootstrap(1, 2, "127.0.0.1:9", job="nobody", secret="x" * 32, timeout=60)
calls = [lambda: wait(0), lambda: wait(1), wait_for_a_job, wait_over_tcp]
threads = [threading.Thread(target=call, daemon=True) for call in calls]
for thread in threads:
    thread.start()
time.sleep(float(sys.argv[1]))
"""


@pytest.mark.parametrize("seconds", [0.0, 0.05, 0.3])
def test_the_program_may_end_while_threads_wait(seconds: float) -> None:
    for _ in range(3):
        command = [sys.executable, "-c", EXITING, str(seconds)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
        assert done.returncode == 0 and not done.stderr, done.stderr
