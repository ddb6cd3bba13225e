"""`a2a status` and a2a.status() on ranks that run: who is behind, and why, without the ranks' help."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import call, command, environment
from forked import apart

import a2a
from a2a import Communicator
from a2a._status import JobStatus

# A program of a few ranks, each a process, which do what `body` says after some operations of all.
PROGRAM = """
import os, signal, sys, threading, time
import numpy as np
import a2a

comm = a2a.init(timeout=60)
r, n = comm.rank, comm.size
x, y = np.ones(4 * n), np.empty(4 * n)
for _ in range(3):
    comm.alltoall(x, y)

def spin():
    while True:
        pass

{body}
"""


@contextlib.contextmanager
def running(folder: Path, body: str, ranks: int = 3, **settings: str) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Start ranks, whose job has the name of the folder. They are killed at the end."""
    program = folder / "program.py"
    program.write_text(PROGRAM.format(body=textwrap.dedent(body)))
    env = [environment(A2A_JOB=str(folder), A2A_RANK=str(r), A2A_SIZE=str(ranks), **settings) for r in range(ranks)]
    started = [subprocess.Popen([sys.executable, program], env=one) for one in env]
    try:
        yield started
    finally:
        for one in started:
            one.kill()
            one.wait()


def until(job: Path | str, good: Callable[[JobStatus], bool], seconds: float = 30) -> JobStatus:
    """Return the first status of a job of which this is true. Each status itself has to be quick."""
    deadline = time.monotonic() + seconds
    latest: list[JobStatus] = []
    while time.monotonic() < deadline:
        began = time.monotonic()
        latest = [one for one in a2a.status(interval=0) if one.name == str(job)]
        assert time.monotonic() - began < 3, "status itself has been waiting"
        if latest and good(latest[0]):
            return latest[0]
        time.sleep(0.05)
    raise AssertionError(f"it did not come to be: {latest}")


def line_of(folder: Path, text: str) -> str:
    lines = (folder / "program.py").read_text().splitlines()
    return f"{folder}/program.py:{1 + next(i for i, line in enumerate(lines) if text in line)} in <module>"


def waiting(job: JobStatus) -> list[int]:
    return [rank.rank for rank in job.ranks if rank.communicators[0].phase == "waits"]


def test_a_rank_that_is_stopped(tmp_path: Path) -> None:
    body = """
    if r == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    comm.allgather(x, np.empty(4 * n * n))
    """
    with running(tmp_path, body) as ranks:
        job = until(tmp_path, lambda job: bool(job.behind) and len(job.behind[0].waiting) == 2)
        (one,) = job.behind
        assert (one.ranks, one.label, one.waiting) == ([1], "world", [0, 2])
        assert one.why.startswith(f"is stopped (pid {ranks[1].pid}); its last call was alltoall #3")
        assert job.ranks[1].state == "is stopped" and (job.size, job.hosts, job.missing) == (3, 1, [])


def test_a_stopped_rank_is_named_within_a_second(tmp_path: Path) -> None:
    """Stopped in the middle of its operations. Half of the second is for the machine."""
    with running(tmp_path, "while True:\n    comm.alltoall(x, y)") as ranks:
        until(tmp_path, lambda job: len(job.ranks) == 3)
        ranks[2].send_signal(signal.SIGSTOP)
        began = time.monotonic()
        until(tmp_path, lambda job: any(one.ranks == [2] and one.seconds > 0 for one in job.behind))
        assert time.monotonic() - began < 1.5


def test_a_rank_in_a_loop_of_its_own(tmp_path: Path) -> None:
    body = """
    if r == 2:
        spin()
    comm.alltoall(x, y)  # here
    """
    with running(tmp_path, body) as ranks:
        job = until(tmp_path, lambda job: waiting(job) == [0, 1] and bool(job.behind) and job.ranks[0].cpu >= 0)
        (one,) = job.behind
        assert (one.ranks, one.waiting) == ([2], [0, 1])
        assert one.why.startswith("has not come to alltoall #4: it ") and f"(pid {ranks[2].pid})" in one.why
        assert " outside of a2a for " in one.why and "its last call was alltoall #3" in one.why
        late = until(tmp_path, lambda job: job.ranks[0].communicators[0].site == line_of(tmp_path, "# here"))
        own = late.ranks[0].communicators[0]
        assert (own.operation, own.waits_in, own.waits_for) == ("alltoall #4", "alltoall #4", [2])
        assert (own.dtype, own.memory, own.operations) == ("float64", "host", 4)
        assert own.sent == own.received == 4 * 3 * 32
        assert late.ranks[2].communicators[0].phase == "after"


def test_ranks_in_different_operations(tmp_path: Path) -> None:
    body = """
    other = comm.split(0)
    if r == 0:
        comm.allreduce(x, y)  # first
    other.barrier()  # second
    """
    with running(tmp_path, body):
        job = until(tmp_path, lambda job: len(waiting(job)) == 3 and bool(job.behind))
        (one,) = job.behind
        assert one.ranks == [0, 1, 2] and one.why.startswith("wait for each other: ")
        assert "rank 0 waits for ranks 1, 2 in allreduce #8 of world" in one.why
        assert "rank 1 waits for rank 0 in barrier #1 of split #5 of world" in one.why


def test_a_message_that_nobody_sends(tmp_path: Path) -> None:
    body = """
    if r == 0:
        comm.recv(x, 1)
    comm.alltoall(x, y)
    """
    with running(tmp_path, body):
        job = until(tmp_path, lambda job: bool(job.behind) and len(job.behind[0].ranks) == 2)
        why = job.behind[0].why
        assert "rank 0 waits in recv from rank 1 of world" in why and "rank 1 waits for rank 0 in alltoall #4" in why


def test_a_message_that_has_come_is_no_wait(tmp_path: Path) -> None:
    body = """
    if r == 1:
        time.sleep(0.5)  # rank 0 shows that it waits
    if r < 2:
        comm.send(x, 1) if r == 0 else comm.recv(x, 0)
        comm.recv(x, 1) if r == 0 else comm.send(x, 0)
    if r == 0:
        spin()
    comm.alltoall(x, y)
    """
    with running(tmp_path, body):
        job = until(tmp_path, lambda job: bool(job.behind) and job.behind[0].waiting == [1, 2])
        assert job.behind[0].ranks == [0] and " outside of a2a " in job.behind[0].why
        assert job.ranks[0].communicators[0].messages == 2


def test_a_rank_that_has_died(tmp_path: Path) -> None:
    """The others do not know it yet: they compute."""
    body = """
    if r == 1:
        os._exit(1)
    time.sleep(60)
    """
    with running(tmp_path, body):
        job = until(tmp_path, lambda job: job.missing == [1] and len(job.ranks) == 2)
        (one,) = job.behind
        assert (one.ranks, one.why) == ([1], "has ended, or has left the communicator")


def test_a_rank_that_has_left_one_communicator_is_not_behind(tmp_path: Path) -> None:
    body = """
    other = comm.split(0)
    other.barrier()
    if r == 1:
        del other
    time.sleep(60)
    """
    with running(tmp_path, body):
        job = until(
            tmp_path, lambda job: sorted(len(one.communicators) for one in job.ranks) == [1, 2, 2] and not job.missing
        )
        assert job.behind == [] and [len(one.communicators) for one in job.ranks] == [2, 1, 2]


def test_ranks_that_have_not_met(tmp_path: Path) -> None:
    """Ranks 0 and 1 of three wait in init(), and then rank 2 comes."""
    program = tmp_path / "program.py"
    program.write_text("import sys, a2a\nwith a2a.init(timeout=60):\n    sys.stdin.read()")
    named = str(tmp_path)

    def start(rank: int) -> subprocess.Popen[bytes]:
        env = environment(A2A_JOB=named, A2A_RANK=str(rank), A2A_SIZE="3")
        return subprocess.Popen([sys.executable, program], env=env, stdin=subprocess.PIPE)

    ranks = [start(0), start(1)]
    try:
        job = until(named, lambda job: len(job.ranks) == 2 and bool(job.behind))
        assert [(rank.rank, rank.pid) for rank in job.ranks] == [(at, one.pid) for at, one in enumerate(ranks)]
        assert all(one.communicators[0].phase == "meets" for one in job.ranks)
        assert job.size == 3 and job.hosts == 1 and job.missing == [2]
        assert [(one.ranks, one.label, one.waiting) for one in job.behind] == [([2], "a2a.init()", [0, 1])]
        assert 0.2 <= job.behind[0].seconds < 60
        shown = call("status", named)
        assert shown.returncode == 1
        assert "rank 2 of a2a.init() has not come, or has ended; ranks 0, 1 wait for" in shown.stdout
        assert shown.stdout.count(" waits in a2a.init() ") == 2
        ranks.append(start(2))
        met = [["world"]] * 3
        until(named, lambda job: [[one.label for one in rank.communicators] for rank in job.ranks] == met)
    finally:
        for one in ranks:
            one.kill()
            one.communicate()


def test_a_second_meeting_is_no_second_rank(tmp_path: Path) -> None:
    with running(tmp_path, "a2a.init(timeout=60) if r else time.sleep(60)"):
        time.sleep(0.5)
        job = until(tmp_path, lambda job: len(job.ranks) == 3)
        time.sleep(0.5)
        job = until(tmp_path, lambda job: len(job.ranks) == 3)
        assert all(one.label == "world" for rank in job.ranks for one in rank.communicators)


def test_the_error_of_a_lost_rank_stays_to_be_seen(tmp_path: Path) -> None:
    body = """
    if r == 1:
        os._exit(1)
    try:
        comm.alltoall(x, y)
    except a2a.PeerLostError:
        time.sleep(60)
    """
    with running(tmp_path, body):
        job = until(tmp_path, lambda job: [one.communicators[0].phase for one in job.ranks] == ["failed"] * 2)
        assert "lost rank 1" in job.ranks[0].communicators[0].error


def test_a_rank_that_started_its_part_and_went_on(tmp_path: Path) -> None:
    """Without CMA bytes go through chunks, so the others need it again."""
    body = """
    big, out = np.ones(1 << 22), np.empty(1 << 22)
    if r == 0:
        work = comm.alltoall(big[: big.size // n * n], out[: out.size // n * n], async_op=True)
        spin()
    comm.alltoall(big[: big.size // n * n], out[: out.size // n * n])
    """
    with running(tmp_path, body, ranks=2, A2A_SHM_CMA="0"):
        job = until(tmp_path, lambda job: bool(job.behind) and job.behind[0].waiting == [1])
        assert job.behind[0].ranks == [0] and job.behind[0].why.startswith("has started alltoall #4 ")


# Ranks as forked processes, which start quickly.
MANY = """
import os, signal, sys, time
import numpy as np
from a2a._core import connect, describe_process

size = int(sys.argv[1])
for rank in range(size):
    if os.fork() == 0:
        describe_process(sys.argv[2])
        comm = connect(rank, size, job=sys.argv[2])
        if rank == size // 3:
            os.kill(os.getpid(), signal.SIGSTOP)
        comm.alltoall(np.ones(size), np.empty(size))
        os._exit(0)
signal.pause()
"""


def test_sixty_four_ranks(tmp_path: Path) -> None:
    program = subprocess.Popen(
        [sys.executable, "-c", MANY, "64", str(tmp_path)], env=environment(), start_new_session=True
    )
    try:
        job = until(tmp_path, lambda job: bool(job.behind) and len(job.behind[0].waiting) == 63, seconds=60)
        assert job.behind[0].ranks == [21] and "is stopped" in job.behind[0].why
        began = time.process_time()  # other programs may have the CPUs
        a2a.status(str(tmp_path), interval=0)
        assert time.process_time() - began < 0.3
    finally:
        os.killpg(program.pid, signal.SIGKILL)
        program.wait()


@apart
def test_ranks_that_are_threads() -> None:
    """All have one process. Here the program itself looks."""
    found: list[JobStatus] = []
    go_on = threading.Event()

    def rank(comm: Communicator) -> None:
        x = np.ones(comm.size)
        comm.alltoall(x, np.empty_like(x))
        if comm.rank == 1:
            deadline = time.monotonic() + 20
            while time.monotonic() < deadline:
                found[:] = [one for one in a2a.status(os.getpid(), interval=0) if one.size == 3]
                if found and found[0].behind and len(found[0].behind[0].waiting) == 2:
                    break
                time.sleep(0.05)
            go_on.set()
        comm.alltoall(x, np.empty_like(x))

    a2a.spawn(rank, 3, threads=True)
    (one,) = found[0].behind
    assert (one.ranks, one.waiting) == ([1], [0, 2]) and "has not come to alltoall #2" in one.why
    assert [(rank.rank, rank.pid) for rank in found[0].ranks] == [(r, os.getpid()) for r in range(3)]


def test_rates_and_what_a_rank_shares(tmp_path: Path) -> None:
    body = """
    shared = comm.empty(1 << 20, "uint8")
    shared[:] = 1
    while True:
        comm.alltoall(x, y)  # here
        time.sleep(0.001)
    """
    with running(tmp_path, body, ranks=2):
        until(tmp_path, lambda job: len(job.ranks) == 2 and job.ranks[0].shared_bytes > 1 << 20)
        (job,) = a2a.status(str(tmp_path), interval=0.5)
        first = job.ranks[0]
        assert 1 < first.operations_per_second < 1100
        assert first.bytes_per_second == pytest.approx(first.operations_per_second * 128, rel=0.01)
        assert first.communicators[0].site == line_of(tmp_path, "# here")


def test_a_forked_child_is_no_rank(tmp_path: Path) -> None:
    body = """
    if os.fork() == 0:
        time.sleep(60)
        os._exit(0)
    time.sleep(60)
    """
    with running(tmp_path, body, ranks=2) as ranks:
        job = until(tmp_path, lambda job: len(job.ranks) == 2)
        time.sleep(0.3)
        job = until(tmp_path, lambda job: True)
        assert {rank.pid for rank in job.ranks} == {one.pid for one in ranks}
        children = [Path(f"/proc/{one.pid}/task/{one.pid}/children").read_text().split() for one in ranks]
        for pid in (int(child) for each in children for child in each):
            os.kill(pid, signal.SIGKILL)


@apart
def test_the_page_ends_with_the_last_communicator() -> None:
    from a2a._core import connect

    comm = connect(0, 1)
    assert any(str(os.getpid()) in job.name or any(r.pid == os.getpid() for r in job.ranks) for job in a2a.status())
    comm.close()
    assert not any(rank.pid == os.getpid() for job in a2a.status(interval=0) for rank in job.ranks)


@pytest.mark.parametrize("content", [b"", b"a2astat1", b"a2astat1" + b"\xff" * 9000, b"\0" * 270336])
@apart
def test_a_page_that_makes_no_sense(content: bytes) -> None:
    file = os.memfd_create("a2a-status")
    os.write(file, content)
    try:
        assert not any(rank.pid == os.getpid() for job in a2a.status(interval=0) for rank in job.ranks)
    finally:
        os.close(file)


@apart
def test_more_communicators_than_a_page_has_room_for() -> None:
    from a2a._core import connect

    comms = [connect(0, 1) for _ in range(140)]
    comms[-1].barrier()
    shown = [rank for job in a2a.status(interval=0) for rank in job.ranks if rank.pid == os.getpid()]
    assert sum(len(rank.communicators) for rank in shown) == 128
    for comm in comms:
        comm.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")
def test_another_user_sees_nothing(tmp_path: Path) -> None:
    look = (
        "import glob, os, a2a; pages = glob.glob('/proc/{0}/fd/*'); os.setgroups([]); os.setgid(65534); "
        "os.setuid(65534); print(a2a.status(interval=0), len(pages) > 3, glob.glob('/proc/{0}/fd/*'))\n"
        "try: os.open(pages[-1], os.O_RDONLY)\nexcept PermissionError: print('refused')"
    )
    with running(tmp_path, "time.sleep(60)", ranks=2) as ranks:
        until(tmp_path, lambda job: len(job.ranks) == 2)
        done = subprocess.run(
            [sys.executable, "-c", look.format(ranks[0].pid)],
            env=environment(), capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.stdout == "[] True []\nrefused\n", done.stderr


# The command -------------------------------------------------------------------------------------------------------


def test_the_command(tmp_path: Path) -> None:
    body = """
    if r == 1:
        spin()
    comm.alltoall(x, y)
    """
    with running(tmp_path, body) as ranks:
        until(tmp_path, lambda job: bool(job.behind) and len(job.behind[0].waiting) == 2)
        done = call("status", str(ranks[0].pid))
        assert done.returncode == 1, done.stderr
        assert done.stdout.startswith(f"{tmp_path} on ") and ": 3 of 3 ranks here\n" in done.stdout
        assert "  behind: rank 1 of world has not come to alltoall #4: it " in done.stdout
        assert "; ranks 0, 2 wait for " in done.stdout
        (job,) = json.loads(call("status", str(tmp_path)[:-1], "--json").stdout)
        assert job["behind"][0]["ranks"] == [1] and job["ranks"][0]["communicators"][0]["waits_for"] == [1]


def test_the_command_without_a_job() -> None:
    done = call("status", "no-such-job")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "a2a status: this user has no job no-such-job on this host\n"


@pytest.mark.parametrize("seconds", ["0", "nan", "x", "1e9"])
def test_the_command_refuses_other_intervals(seconds: str) -> None:
    done = call("status", "--watch", seconds)
    assert done.returncode == 2 and "is no number of seconds from 0.1 to 3600" in done.stderr


@pytest.mark.parametrize("form", ["json", "text"])
def test_the_command_watches(tmp_path: Path, form: str) -> None:
    with running(tmp_path, "while True:\n    comm.alltoall(x, y)", ranks=2):
        until(tmp_path, lambda job: len(job.ranks) == 2)
        arguments = command("status", str(tmp_path), "--watch", "0.2") + (["--json"] if form == "json" else [])
        with subprocess.Popen(arguments, env=environment(), stdout=subprocess.PIPE, text=True) as watcher:
            assert watcher.stdout is not None
            lines = [watcher.stdout.readline() for _ in range(3 if form == "json" else 12)]
            watcher.send_signal(signal.SIGINT)
            assert watcher.wait(timeout=20) == 130
    if form == "json":
        rates: list[Any] = [json.loads(line)[0]["ranks"][0]["operations_per_second"] for line in lines]
        assert rates[0] == 0 < rates[-1]
    else:
        assert sum(line.startswith(f"{tmp_path} on ") for line in lines) >= 2
