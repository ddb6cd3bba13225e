"""Memory that ranks share, and descriptors, in programs that close, fork, lock or limit them."""

from __future__ import annotations

import ctypes
import json
import os
import resource
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from commands import environment

from a2a import dump

HEADER = """
import ctypes, gc, json, os, resource, sys, time, traceback
import numpy as np
import a2a

def say(value):
    with open(sys.argv[1], "w") as file:
        json.dump(value, file)

sys.excepthook = lambda *error: say("".join(traceback.format_exception(*error)))  # there may be no standard error

def exchange(comm, count=1000):
    send = np.repeat(np.arange(comm.size) + 10 * comm.rank, count)
    recv = np.full_like(send, -1)
    comm.alltoall(send, recv)
    assert (recv.reshape(comm.size, count).T == 10 * np.arange(comm.size) + comm.rank).all()

"""
PLACES = ["shm", "tcp"]


def close_standard() -> None:
    for stream in range(3):
        os.close(stream)


def run(
    folder: Path,
    body: str,
    size: int = 2,
    place: str = "shm",
    before: Callable[[], Any] | None = None,
    **changes: str,
) -> list[Any]:
    """What each rank of a program says. All of them have to end well."""
    program = folder / "program.py"
    program.write_text(HEADER + body)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    settings = {"A2A_SIZE": str(size), "A2A_JOB": str(folder)}
    if place == "tcp":
        settings |= {"A2A_BOOTSTRAP": f"tcp://127.0.0.1:{port}", "A2A_SECRET": "a secret of the tests"}
        settings["A2A_HOSTS"] = ",".join("ab"[rank % 2] for rank in range(size))
    said = [folder / f"said{rank}" for rank in range(size)]
    ranks = [
        subprocess.Popen(
            [sys.executable, program, said[rank]],
            env=environment(**settings, A2A_RANK=str(rank)) | changes,
            stderr=subprocess.PIPE,
            preexec_fn=before,
        )
        for rank in range(size)
    ]
    try:
        texts = [rank.communicate(timeout=100)[1].decode() for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    told = [json.loads(file.read_text()) if file.exists() else None for file in said]
    assert [rank.returncode for rank in ranks] == [0] * size, (texts, told)
    return told


# ---- descriptors -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", PLACES)
def test_none_is_a_standard_stream(tmp_path: Path, place: str) -> None:
    body = """
comm = a2a.init(timeout=40)
exchange(comm)
exchange(comm, 200_000)
array = comm.empty(1000)
part = comm.split(0)
exchange(part)
comm.barrier()
say([fd for fd in range(3) if os.path.lexists(f"/proc/self/fd/{fd}")])
comm.barrier()
comm.close()
"""
    settings = {"A2A_DUMP": str(tmp_path / "dumps")}
    assert run(tmp_path, body, place=place, before=close_standard, **settings) == [[], []]


def test_spawn_without_standard_streams(tmp_path: Path) -> None:
    body = """
import a2a._processes

def look(comm):
    exchange(comm)
    return [fd for fd in (1, 2) if os.path.lexists(f"/proc/self/fd/{fd}")]

if __name__ == "__main__":
    opened = [a2a._processes.above_standard(fd) for fd in os.pipe()]
    assert min(opened) > 2, opened
    say(a2a.spawn(look, 2))
"""
    assert run(tmp_path, body, size=1, before=close_standard) == [[[], []]]


def test_run_without_standard_streams(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(f"{HEADER}comm = a2a.init(timeout=40)\nexchange(comm)\nprint('hello')\ncomm.close()\n")
    command = [sys.executable, "-m", "a2a", "run", "-n", "2", str(program), "unused"]
    done = subprocess.run(command, env=environment(), preexec_fn=close_standard, timeout=100, check=False)
    assert done.returncode == 0


@pytest.mark.parametrize("place", PLACES)
def test_a_program_that_closes_all_descriptors(tmp_path: Path, place: str) -> None:
    """Daemons do. The numbers are its next files, which are left alone."""
    body = """
path = sys.argv[1] + ".data"
with open(path, "wb") as file:
    file.write(b"x" * (4 << 20))
comm = a2a.init(timeout=5)
exchange(comm)
exchange(comm, 200_000)
old = comm.empty(3 << 20, "uint8")
comm.barrier()
time.sleep(0.2)
os.closerange(3, 100)
files = [os.open(path, os.O_RDWR) for _ in range(80)]
new = comm.empty(10 << 20, "uint8")
assert not new.any()
new[:] = 1
del old, new
gc.collect()
try:
    for _ in range(3):
        exchange(comm)
        exchange(comm, 200_000)
except a2a.Error as error:
    pass
try:
    comm.close()
except a2a.Error:
    pass
del comm
gc.collect()
pid = os.fork()
if pid == 0:
    os._exit(sum(not os.path.exists(f"/proc/self/fd/{file}") for file in files))
left = os.waitpid(pid, 0)[1]
for file in files:
    os.fstat(file)
with open(path, "rb") as file:
    say([left, file.read() == b"x" * (4 << 20)])
"""
    assert run(tmp_path, body, place=place, A2A_DUMP=str(tmp_path / "dumps")) == [[0, True]] * 2


def test_a_group_needs_the_descriptors_of_shared_memory(tmp_path: Path) -> None:
    body = """
a2a.init(timeout=5).close()
os.closerange(3, 100)
os.environ["A2A_JOB"] += "-again"
try:
    a2a.init(timeout=1)
except a2a.BackendError as error:
    say(str(error))
except a2a.Error as error:
    say(str(error))
"""
    for text in run(tmp_path, body):
        assert "the program has closed file descriptor" in text or "rank" in text


# ---- fork() ----------------------------------------------------------------------------------------------------------


def test_a_child_writes_to_memory_of_its_own(tmp_path: Path) -> None:
    body = """
comm = a2a.init(timeout=40)
small, large = comm.empty(8, "int64"), comm.empty(1 << 18, "int64")
small[:] = large[:] = 1
pid = os.fork()
if pid == 0:
    seen = small[0] == large[-1] == 1
    small[:] = large[:] = 99
    again = os.fork()
    if again == 0:
        small[:] = 100
        os._exit(0)
    os.waitpid(again, 0)
    del comm
    gc.collect()
    os._exit(0 if seen and small[0] == 99 and large[0] == 99 else 1)
status = os.waitpid(pid, 0)[1]
got = np.empty(2 * comm.size, "int64")
comm.allgather(small[:2], got)
whole = np.empty(len(large) * comm.size, "int64")
comm.allgather(large, whole)
say([status, int(small.max()), int(large.max()), int(got.max()), int(whole.max())])
comm.close()
"""
    assert run(tmp_path, body) == [[0, 1, 1, 1, 1]] * 2


# ---- mlockall() ------------------------------------------------------------------------------------------------------


LOCKS = """
def lock(flags):
    if ctypes.CDLL(None).mlockall(flags) != 0:
        say(None)
        sys.exit()

def shared_mib():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) >> 10 for line in file if line.startswith("RssShmem"))

"""


@pytest.mark.parametrize("when", ["before", "after", "both"])
def test_a_program_that_locks_its_memory(tmp_path: Path, when: str) -> None:
    """What is reserved for shared memory, which may be as much as the machine has, is not committed by that."""
    body = f"""
{LOCKS}
if "{when}" != "after":
    lock(2)
comm = a2a.init(timeout=40)
exchange(comm)
if "{when}" != "before":
    lock(1)
exchange(comm)
exchange(comm, 100_000)
send, recv = comm.empty(1 << 20), comm.empty(1 << 20)
for step in range(3):
    send[:] = comm.rank + step
    comm.alltoall(send, recv)
    assert (recv.reshape(2, -1) == np.arange(2)[:, None] + step).all()
del send, recv
gc.collect()
assert not comm.empty(1 << 20).any()
say(shared_mib())
comm.close()
"""
    said = run(tmp_path, body, A2A_SHM_SEGMENT=str(256 << 20))
    if None in said:
        pytest.skip("memory cannot be locked here")
    assert max(said) < 100, said


# ---- limits ----------------------------------------------------------------------------------------------------------


def test_a_segment_of_no_possible_size(tmp_path: Path) -> None:
    values = ["-1", "+20000000", "1e9", "16777215", "99999999999999999999"]
    body = f"""
told = []
for value in {values}:
    os.environ["A2A_SHM_SEGMENT"] = value
    try:
        a2a.init(timeout=40)
    except a2a.InvalidArgumentError as error:
        told.append(str(error))
say(told)
"""
    (told,) = run(tmp_path, body, size=1)
    for value, text in zip(values, told, strict=True):
        assert f"A2A_SHM_SEGMENT={value} in the environment is not a number of bytes" in text


def limit_files(mib: int) -> Callable[[], None]:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (mib << 20, mib << 20))
        ctypes.CDLL(None).signal(25, None)  # SIGXFSZ, which Python ignores, ends other programs

    return limit


@pytest.mark.parametrize(
    ("mib", "segment", "words"),
    [
        (64, str(1 << 30), ["A2A_SHM_SEGMENT = 1073741824", "ulimit -f"]),
        (8, str(1 << 30), ["ulimit -f"]),
        (64, None, []),
    ],
)
def test_a_limit_on_file_sizes(tmp_path: Path, mib: int, segment: str | None, words: Sequence[str]) -> None:
    body = """
ctypes.CDLL(None).signal(25, None)
try:
    comm = a2a.init(timeout=40)
    exchange(comm)
    comm.empty(100_000)
    comm.close()
    say("")
except a2a.Error as error:
    say(str(error))
"""
    settings = {} if segment is None else {"A2A_SHM_SEGMENT": segment}
    (text,) = run(tmp_path, body, size=1, before=limit_files(mib), **settings)
    assert all(word in text for word in words) and bool(text) == bool(words)


# ---- records of A2A_DUMP ---------------------------------------------------------------------------------------------


def test_a_record_that_is_truncated(tmp_path: Path) -> None:
    """Rotated, or emptied by hand: the program goes on, and so does the record."""
    body = """
import glob
comm = a2a.init(timeout=40)
for _ in range(5):
    exchange(comm, 8)
comm.barrier()
if comm.rank == 0:
    for file in glob.glob(os.environ["A2A_DUMP"] + "/*"):
        os.truncate(file, 0)
comm.allgather_bytes(b"truncated")
for _ in range(5):
    exchange(comm, 8)
say(comm.rank)
comm.close()
"""
    folder = tmp_path / "dumps"
    assert run(tmp_path, body, A2A_DUMP=str(folder)) == [0, 1]
    records = [dump.read(path) for path in dump.find([folder])]
    assert [record.fate for record in records] == ["closed"] * 2
    for record in records:
        assert sorted(record.entries) == list(range(1, record.last + 1)) and record.last >= 11
        assert {entry.state for entry in record.entries.values()} == {"finished"}


def test_a_child_writes_to_no_record(tmp_path: Path) -> None:
    body = """
comm = a2a.init(timeout=40)
work = comm.alltoall(np.zeros(2), np.zeros(2), async_op=True)
if os.fork() == 0:
    try:
        work.wait()
    except a2a.AbortedError:
        pass
    comm.abort("in a child")
    os._exit(0)
os.wait()
work.wait()
comm.close()
"""
    folder = tmp_path / "dumps"
    run(tmp_path, body, A2A_DUMP=str(folder))
    for record in map(dump.read, dump.find([folder])):
        assert record.fate == "closed" and record.entries[1].state == "finished"
