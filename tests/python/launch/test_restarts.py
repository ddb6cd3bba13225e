"""``a2a run --restarts``: which ranks are started again, when, with what, and how the job ends."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from unittest import mock

import pytest
from commands import call, call_here, environment, is_alive

from a2a.cli import _restarts
from a2a.cli._restarts import Restarts
from a2a.cli._verdict import End

BEGIN = """
import atexit, os, signal, subprocess, sys, time
rank, life = int(os.environ["A2A_RANK"]), int(os.environ.get("A2A_RESTART", 0))
def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())
"""
AGAIN = "a2a run: rank {} {}; starting it again ({} of {} restarts)"


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], str]:
    def write(text: str) -> str:
        (tmp_path / "script.py").write_text(BEGIN + text)
        return str(tmp_path / "script.py")

    return write


def launcher_that_waits(*arguments: str) -> list[str]:
    """The a2a command with a launcher that waits for half a minute before it starts a rank again."""
    code = (
        "import sys; from a2a.cli import _restarts, main; _restarts._FIRST_SECONDS = 30; sys.exit(main(sys.argv[1:]))"
    )
    return [sys.executable, "-c", code, *arguments]


def own_lines(done: subprocess.CompletedProcess[str]) -> list[str]:
    """Return what the launcher itself said."""
    return [line for line in done.stderr.splitlines() if line.startswith("a2a run:")]


SHOW = """
ours = {name: value for name, value in os.environ.items() if name not in ("A2A_RANK", "A2A_RESTART")}
say(rank, os.environ.get("A2A_RESTART"), os.environ["A2A_RESTARTS"], sys.argv[1:], hash(frozenset(ours.items())))
if rank == 1 and life == 0:
    os.kill(os.getpid(), signal.SIGKILL)
import a2a
with a2a.init(timeout=30) as comm:
    comm.barrier()
"""


@pytest.mark.parametrize("prefix", [True, False])
def test_a_rank_that_is_killed_is_started_again(script: Callable[[str], str], prefix: bool) -> None:
    """With the same command, rank and environment; the others, which wait in init(), meet it."""
    flags = [] if prefix else ["--no-prefix"]
    shared = {name: "1" for name in ("RANK", "LOCAL_RANK", "A2A_LOCAL_RANK")}
    done = call("run", "-n", "3", "--restarts", "4", *flags, script(SHOW), "x", PYTHONHASHSEED="1", **shared)
    assert done.returncode == 0, done.stderr
    assert own_lines(done) == [AGAIN.format(1, "was killed by SIGKILL", 1, 4)]
    lines = sorted(line.removeprefix(f"[{line[1]}] " if prefix else "") for line in done.stdout.splitlines())
    assert [line.split(" [")[0] for line in lines] == ["0 None 4", "1 1 4", "1 None 4", "2 None 4"]
    assert lines[1].split()[3:] == lines[2].split()[3:]
    if prefix:
        assert all(line.startswith(f"[{line[4]}] ") for line in done.stdout.splitlines())


def test_the_job_ends_when_no_restart_is_left(script: Callable[[str], str]) -> None:
    text = "say('life', life)\nif rank == 1: sys.exit(7)\ntime.sleep(600)"
    done = call("run", "-n", "3", "--restarts", "2", script(text))
    assert done.returncode == 7
    assert [line for line in done.stdout.splitlines() if line[:3] == "[1]"] == [f"[1] life {i}" for i in range(3)]
    assert len(done.stdout.splitlines()) == 5
    again = [AGAIN.format(1, "exited with code 7", i, 2) for i in (1, 2)]
    assert own_lines(done) == [*again, "a2a run: rank 1 exited with code 7; ended ranks 0, 2"]


def test_a_rank_that_ends_with_0_is_finished(script: Callable[[str], str]) -> None:
    done = call("run", "-n", "2", "--restarts", "9", script("say(life)\nsys.exit(rank == 1 and life == 0)"))
    assert done.returncode == 0
    assert sorted(done.stdout.splitlines()) == ["[0] 0", "[1] 0", "[1] 1"]
    assert own_lines(done) == [AGAIN.format(1, "exited with code 1", 1, 9)]


REASON = """
atexit.register(time.sleep, 0.4)  # after what init() registers: the reason is there, and the process, too
import a2a
if rank == 1:
    a2a.init(0, 1).close()
    {end}
with a2a.init(timeout=30) as comm:
    comm.barrier()
"""


def test_a_reason_that_a_rank_gave_does_not_count_once_it_is_started_again(script: Callable[[str], str]) -> None:
    """Neither before the launcher says that it is started again, nor later."""
    end = "if life < 2: raise ValueError(f'in life {life}')\n    say(open(os.environ['A2A_ENDED']).read())"
    done = call("run", "-n", "3", "--restarts", "2", script(REASON.format(end=end)))
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"\[1\] 3 run-\S+\n\[1\] launcher: \d+\n\[1\] \n", done.stdout), done.stdout
    assert own_lines(done) == [AGAIN.format(1, f"raised ValueError: in life {i}", i + 1, 2) for i in (0, 1)]


@pytest.mark.parametrize(
    ("end", "last", "code"),
    [
        ("raise ValueError(f'in life {life}')", "raised ValueError: in life 1", 1),
        ("if life == 0: raise ValueError('early')\n    os.kill(os.getpid(), 9)", "was killed by SIGKILL", 137),
    ],
)
def test_the_last_reason_is_that_of_the_last_process(
    script: Callable[[str], str], end: str, last: str, code: int
) -> None:
    done = call("run", "-n", "2", "--restarts", "1", script(REASON.format(end=end)))
    assert done.returncode == code
    assert own_lines(done)[1:] == [f"a2a run: rank 1 {last}; ended rank 0"]


def test_ranks_that_wait_hear_of_a_rank_that_is_not_started_again(script: Callable[[str], str]) -> None:
    """Those that did not end with 0: in its own words."""
    text = """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
import a2a
if rank == 1:
    a2a.init(0, 1).close()
    raise ValueError(f"in life {life}")
try:
    a2a.init(timeout=30)
except a2a.PeerLostError as error:
    say(str(error).partition("': ")[2])
"""
    done = call("run", "-n", "2", "--restarts", "1", script(text))
    assert done.stdout == "[0] rank 1 raised ValueError: in life 1 before all ranks had joined\n", done.stderr


def test_ranks_that_fail_with_it_are_started_again_too(script: Callable[[str], str]) -> None:
    text = """
import a2a
with a2a.init(timeout=30) as comm:
    comm.barrier()
    if rank == 1 and life == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    comm.barrier()
    say(life)
"""
    done = call("run", "-n", "3", "--restarts", "3", script(text))
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"[{rank}] 1" for rank in range(3)]
    lines = own_lines(done)
    assert len(lines) == 3 and AGAIN.format(1, "was killed by SIGKILL", "N", 3) in [
        re.sub(r"\(\d", "(N", line) for line in lines
    ]
    for rank in (0, 2):
        assert any(line.startswith(f"a2a run: rank {rank} gave up: a2a.PeerLostError: barrier #2") for line in lines)
    assert [line[-15:] for line in lines] == [f"{i} of 3 restarts)"[-15:] for i in (1, 2, 3)]


def test_ranks_that_wait_when_no_restart_is_left_belong_to_the_diagnosis(script: Callable[[str], str]) -> None:
    text = """
import a2a
with a2a.init(timeout=30) as comm:
    comm.barrier()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    comm.barrier()
"""
    arguments = launcher_that_waits("run", "-n", "3", "--restarts", "2", script(text))
    done = subprocess.run(arguments, env=environment(), capture_output=True, text=True, timeout=25, check=False)
    assert done.returncode == 137
    assert own_lines(done)[2:] == ["a2a run: rank 1 was killed by SIGKILL; ranks 0, 2 failed because of it"]


def test_each_wait_is_twice_the_last(script: Callable[[str], str]) -> None:
    text = "say(time.monotonic())\nsys.exit(life < 3)"
    done = call("run", "-n", "1", "--restarts", "3", "--no-prefix", script(text))
    assert done.returncode == 0
    starts = list(map(float, done.stdout.split()))
    waits = [later - earlier for earlier, later in pairwise(starts)]
    assert [wait > 0.1 * 2**i for i, wait in enumerate(waits)] == [True] * 3 and sum(waits) < 10


def test_waits_are_bounded_and_begin_anew_after_a_minute() -> None:
    now = 1000.0
    with mock.patch.object(_restarts.time, "monotonic", lambda: now):
        restarts = Restarts(20)

        def wait(rank: int, ran: float) -> float:
            nonlocal now
            restarts.started(rank)
            now += ran
            assert restarts.plan(End(rank, 1, "exited with code 1", ""))
            begin, now = now, restarts.next_at
            assert restarts.due() == [rank] and restarts.next_at == float("inf")
            return round(now - begin, 6)

        assert [wait(0, 1) for _ in range(9)] == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10, 10]
        assert [wait(1, 1), wait(1, 59.9), wait(1, 60), wait(1, 1), wait(0, 1)] == [0.1, 0.2, 0.1, 0.2, 10]
        assert [restarts.of(rank) for rank in range(3)] == [10, 4, 0]


def test_ranks_that_wait_when_no_restart_is_left_have_failed() -> None:
    restarts, ends = Restarts(2), [End(rank, rank, "exited", "") for rank in (3, 1, 2)]
    assert [restarts.plan(end) for end in ends] == ["1 of 2 restarts", "2 of 2 restarts", ""]
    assert restarts.due() == []  # not yet
    assert restarts.cancel() == ends[:2] and restarts.cancel() == []
    assert restarts.next_at == float("inf")
    assert Restarts(0).plan(ends[0]) == ""


@contextmanager
def waiting(file: str, ranks: int) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """The launcher while the last rank waits to be started again, and the processes of LEAVE, those of the last rank
    first."""
    arguments = launcher_that_waits("run", "-n", str(ranks), "--restarts", "5", file)
    pipe = subprocess.PIPE
    with subprocess.Popen(arguments, env=environment(), stdout=pipe, stderr=pipe, text=True) as launcher:
        assert launcher.stdout is not None and launcher.stderr is not None
        lines = [launcher.stdout.readline().split() for _ in range(ranks)]
        pids = [int(word) for line in sorted(lines, reverse=True) for word in line[1:]]
        try:
            assert launcher.stderr.readline().startswith(f"a2a run: rank {ranks - 1} exited with code 3; starting")
            yield launcher, pids
        finally:
            launcher.kill()
            for pid in pids:
                if is_alive(pid, patience=0):
                    os.kill(pid, signal.SIGKILL)


LEAVE = """
child = subprocess.Popen(["sleep", "600"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
say(os.getpid(), child.pid)
if rank == int(os.environ["A2A_SIZE"]) - 1:
    sys.exit(3)
time.sleep(600)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_signal_ends_a_job_whose_rank_waits(script: Callable[[str], str], number: signal.Signals, ranks: int) -> None:
    with waiting(script(LEAVE), ranks) as (launcher, pids):
        started = time.monotonic()
        launcher.send_signal(number)
        assert launcher.wait(20) == 128 + number
        assert time.monotonic() - started < 4
        assert len(pids) == 2 * ranks and not any(is_alive(pid) for pid in pids)
        assert launcher.stderr is not None and "starting it again" not in launcher.stderr.read()


def test_a_launcher_that_is_killed_leaves_no_rank(script: Callable[[str], str]) -> None:
    with waiting(script(LEAVE), 2) as (launcher, pids):
        launcher.kill()
        launcher.wait(20)
        assert not any(is_alive(pid) for pid in pids[:3])


@pytest.mark.parametrize("deaf", [False, True])
def test_what_a_rank_left_behind_is_ended(script: Callable[[str], str], deaf: bool) -> None:
    """By SIGTERM at once, by SIGKILL when the rank is started again."""
    deafen = "signal.signal(signal.SIGTERM, signal.SIG_IGN)" if deaf else "pass"
    text = f"""
if life == 0:
    code = "import os, signal, time; {deafen}; os.write(1, b'up'); time.sleep(60)"
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    child.stdout.read(2)
    say(child.pid)
    os._exit(3)
"""
    done = call("run", "-n", "1", "--restarts", "1", script(text))
    assert done.returncode == 0, done.stderr
    assert not is_alive(int(done.stdout.split()[1]))


def test_output_of_two_processes_of_a_rank(script: Callable[[str], str]) -> None:
    """A line without an end is ended. What has left the rank's group keeps its pipe, and may go on writing."""
    text = """
if life == 0:
    child = "import os, time; time.sleep(1); os.write(1, b'from a child')"
    subprocess.Popen([sys.executable, "-c", child], start_new_session=True, stderr=subprocess.DEVNULL)
    os.write(2, b"half a line")
    os._exit(3)
os.write(2, b"a line\\n")
time.sleep(2)
"""
    done = call("run", "-n", "1", "--restarts", "1", script(text))
    assert done.returncode == 0
    own = AGAIN.format(0, "exited with code 3", 1, 1)
    assert sorted(done.stderr.splitlines()[:2]) == ["[0] half a line", own]
    assert done.stderr.splitlines()[2:] == ["[0] a line"] and done.stdout == "[0] from a child\n"


def test_a_program_that_is_gone_cannot_be_started_again(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text('#!/bin/sh\n[ "$A2A_RANK" = 0 ] && sleep 600\nrm "$0"; exit 3\n')
    program.chmod(0o755)
    done = call("run", "-n", "2", "--restarts", "2", "--no-python", str(program))
    assert done.returncode == 127
    gone = "could not be started again: No such file or directory"
    again = [AGAIN.format(1, "exited with code 3", 1, 2), AGAIN.format(1, gone, 2, 2)]
    assert own_lines(done) == [*again, f"a2a run: rank 1 {gone}; ended rank 0"]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("two", "'two' is no whole number"),
        ("1.5", "'1.5' is no whole number"),
        ("", "'' is no whole number"),
        ("-1", "-1: at least 0"),
        ("2147483648", "2147483648: at most 2147483647"),
    ],
)
def test_numbers_that_are_refused(value: str, message: str) -> None:
    done = call_here("run", "-n", "2", "--restarts", value, "x.py")
    assert done.returncode == 2
    assert done.stderr == f"a2a run: --restarts: {message}\na2a run -h shows how to call it\n"


@pytest.mark.parametrize("flags", [[], ["--restarts", "0"]])
def test_without_restarts_the_first_failure_ends_the_job(script: Callable[[str], str], flags: list[str]) -> None:
    text = "say(life, os.environ.get('A2A_RESTARTS'))\nif rank == 1: sys.exit(7)\ntime.sleep(600)"
    done = call("run", "-n", "2", *flags, script(text))
    assert done.returncode == 7 and own_lines(done) == ["a2a run: rank 1 exited with code 7; ended rank 0"]
    assert set(done.stdout.splitlines()) <= {"[0] 0 0", "[1] 0 0"}


INNER = """
import a2a
def restarts(comm):
    return os.environ.get("A2A_RESTART"), os.environ.get("A2A_RESTARTS")
if __name__ == "__main__":
    if rank == 0 and life == 0 and len(sys.argv) == 1:
        sys.exit(1)
    say(restarts(None))
    if len(sys.argv) == 1:
        say(a2a.spawn(restarts, 1))
        subprocess.run([sys.executable, "-m", "a2a", "run", "-n", "1", "--no-prefix", __file__, "inner"], check=True)
"""


def test_a_job_inside_a_rank_that_was_started_again_has_restarts_of_its_own(script: Callable[[str], str]) -> None:
    done = call("run", "-n", "1", "--restarts", "2", "--no-prefix", script(INNER))
    assert done.stdout.splitlines() == ["('1', '2')", "[(None, '0')]", "(None, '0')"], done.stderr


def test_help_names_the_option() -> None:
    done = call_here("run", "-h")
    assert "[--restarts K]" in done.stdout and "A2A_RESTART" in done.stdout
