"""Memory that a peer cannot copy from: its page faults last, the system refuses, or it is not there.

Deadlines and Ctrl-C hold on the other ranks, bytes go another way, and whoever is at fault is named.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import platform
import signal
import struct
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from forked import apart, assert_usable, connect, job_name, raised, run, values

import a2a
from a2a import _core

MIB = 1 << 20
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
SYSCALLS = {"x86_64": (323, 310), "aarch64": (282, 270)}
USERFAULTFD, PROCESS_VM_READV = SYSCALLS.get(platform.machine(), (-1, -1))


def by_kernel() -> None:
    """Everything but the smallest goes with one copy by the kernel, in ranks that are forked now."""
    os.environ["A2A_SHM_CMA_MIN"] = "1"


def pages(count: int, protection: int = mmap.PROT_READ | mmap.PROT_WRITE) -> int:
    """The address of private memory that nobody has touched."""
    address = libc.mmap(None, ctypes.c_size_t(count), protection, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    assert address not in (None, ctypes.c_void_p(-1).value)
    return int(address)


def tensor_at(address: int, count: int) -> Any:
    return _core.from_pointer(address, (count,), "uint8")


# ---- page faults that nobody answers ---------------------------------------------------------------------------------


def open_userfaultfd() -> int:
    fd = int(libc.syscall(USERFAULTFD, os.O_CLOEXEC))
    if fd >= 0:
        fcntl.ioctl(fd, 0xC018AA3F, bytearray(struct.pack("QQQ", 0xAA, 0, 0)))
    return fd


def stalled(count: int) -> tuple[int, Any]:
    """A tensor whose first touch never ends, as of a file on a file system that does not answer."""
    fd, address = open_userfaultfd(), pages(count)
    fcntl.ioctl(fd, 0xC020AA00, bytearray(struct.pack("QQQQ", address, count, 1, 0)))
    return fd, tensor_at(address, count)


def send_stalled(rank: int, n: int, job: str, words: memoryview, interrupt: bool) -> tuple[str, float]:
    comm = connect(rank, n, job)
    recv = np.zeros(n * MIB, np.uint8)
    comm.alltoall(np.ones(n * MIB, np.uint8), recv)  # and measures what it measures once
    fd, send = stalled(n * MIB) if rank == 1 else (-1, np.ones(n * MIB, np.uint8))
    comm.barrier()
    if rank == 1:
        words[1] = 1
    if interrupt and rank == 0:
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    begin = time.monotonic()
    try:
        comm.alltoall(send, recv, timeout=20 if interrupt else 1)
    except (a2a.TimeoutError, a2a.PeerLostError, KeyboardInterrupt) as error:
        words[0] += 1
        return f"{type(error).__name__}: {error}", time.monotonic() - begin
    raise AssertionError(fd)


@pytest.mark.full
@pytest.mark.timeout(60)
@pytest.mark.parametrize("interrupt", [False, True])
@apart
def test_peers_of_a_rank_whose_memory_stalls_keep_their_deadline_and_ctrl_c(interrupt: bool) -> None:
    if (fd := open_userfaultfd()) < 0:
        pytest.skip("no userfaultfd here")
    os.close(fd)
    by_kernel()
    words = memoryview(mmap.mmap(-1, mmap.PAGESIZE)).cast("Q")
    n = 2 if interrupt else 3

    def during(pids: list[int]) -> None:
        deadline = time.monotonic() + 25
        while words[0] < n - 1 and time.monotonic() < deadline:
            time.sleep(0.01)
        os.kill(pids[1], signal.SIGKILL)  # not before the others have raised

    ends = run(n, send_stalled, n, job_name(), words, interrupt, during=during, timeout=30)
    for end in ends:
        if end.rank == 1:
            continue
        assert end.error is None, end.trace
        text, seconds = end.value
        assert text.startswith("KeyboardInterrupt" if interrupt else "TimeoutError"), text
        assert interrupt or "rank 1 (pid" in text, text
        assert seconds < 5, seconds


def send_untouched(rank: int, n: int, job: str) -> list[set[int]]:
    """First memory that nobody has touched, then the same when it was written."""
    comm = connect(rank, n, job)
    address = pages(n * MIB)
    recv = np.full(n * MIB, 255, np.uint8)
    received = []
    for _ in range(2):
        comm.alltoall(tensor_at(address, n * MIB), recv)
        received.append({int(byte) for byte in np.unique(recv)})
        ctypes.memset(address, rank + 1, n * MIB)
    return received


@pytest.mark.timeout(60)
@apart
def test_memory_that_was_never_touched_arrives_as_zeros() -> None:
    by_kernel()
    assert values(run(2, send_untouched, 2, job_name())) == [[{0}, {1, 2}]] * 2


# ---- reading that is refused later -----------------------------------------------------------------------------------


def refuse_by_seccomp() -> None:
    """From now on this process may not call process_vm_readv."""

    def instruction(code: int, true: int, false: int, value: int) -> bytes:
        return struct.pack("HBBI", code, true, false, value)

    filters = b"".join(
        [
            instruction(0x20, 0, 0, 0),  # load the number of the call
            instruction(0x15, 0, 1, PROCESS_VM_READV),
            instruction(0x06, 0, 0, 0x00050001),  # EPERM
            instruction(0x06, 0, 0, 0x7FFF0000),  # allowed
        ]
    )
    buffer = ctypes.create_string_buffer(filters)
    program = struct.pack("HxxxxxxP", 4, ctypes.addressof(buffer))
    assert libc.prctl(38, 1, 0, 0, 0) == 0  # PR_SET_NO_NEW_PRIVS
    assert libc.prctl(22, 2, program, 0, 0) == 0, os.strerror(ctypes.get_errno())  # PR_SET_SECCOMP


def become_nobody() -> None:
    os.setresuid(65534, 65534, 65534)


REFUSALS: dict[str, Callable[[], None]] = {"seccomp": refuse_by_seccomp, "setuid": become_nobody}


def change_then_exchange(rank: int, n: int, job: str, how: str, changed: list[int], ahead: int) -> bool:
    comm = connect(rank, n, job)
    assert _core.host_facts(comm)["cma"]
    count = 200_000
    sends = [np.repeat(np.arange(n) + 100 * rank + 1000 * i, count) for i in range(4)]
    recvs = [np.full(n * count, -1) for _ in sends]
    comm.alltoall(sends[0], recvs[0])
    comm.barrier()
    if rank in changed:
        REFUSALS[how]()
    comm.barrier()
    for first in range(0, len(sends), ahead):
        works = [
            comm.alltoall(send, recv, async_op=True)
            for send, recv in zip(sends[first : first + ahead], recvs[first : first + ahead], strict=True)
        ]
        for work in works:
            work.wait()
    for i, recv in enumerate(recvs):
        expected = np.repeat(100 * np.arange(n) + rank + 1000 * i, count)
        assert (recv == expected).all(), (rank, i)
    assert_usable(comm)
    return bool(_core.host_facts(comm)["cma"])


@pytest.mark.timeout(60)
@pytest.mark.parametrize("ahead", [1, 2, 4])
@pytest.mark.parametrize(("how", "changed"), [("seccomp", [0]), ("seccomp", [0, 1, 2]), ("setuid", [1])])
@apart
def test_a_rank_that_may_no_longer_read_its_peers_gets_the_bytes_in_chunks(
    how: str, changed: list[int], ahead: int
) -> None:
    if how == "setuid" and os.geteuid() != 0:
        pytest.skip("wants root")
    if PROCESS_VM_READV < 0:
        pytest.skip("the number of process_vm_readv is not known here")
    by_kernel()
    n = 3
    may_read = values(run(n, change_then_exchange, n, job_name(), how, changed, ahead))
    assert may_read == [False] * n, may_read


# ---- who is at fault -------------------------------------------------------------------------------------------------


def break_own_memory(rank: int, n: int, job: str, which: str) -> str:
    comm = connect(rank, n, job)
    size = n * MIB
    send, recv = np.ones(size, np.uint8), np.ones(size, np.uint8)
    comm.alltoall(send, recv)
    if rank == 1:
        address = pages(size)
        ctypes.memset(address, 1, size)
        protection = mmap.PROT_READ if which == "output" else 0
        assert libc.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(size), protection) == 0
        if which == "output":
            recv = tensor_at(address, size)
        else:
            send = tensor_at(address, size)
    counts = [0 if peer == rank else MIB for peer in range(n)]  # a rank's copy to itself would be its own crash
    return raised(a2a.BackendError, comm.alltoallv, send, counts, recv, counts, timeout=10)


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("which", "words"), [("input", "rank 1 cannot read its own input"), ("output", "rank 1 cannot write into its own")]
)
@apart
def test_a_rank_whose_own_memory_cannot_be_used_is_named(which: str, words: str) -> None:
    by_kernel()
    for text in values(run(3, break_own_memory, 3, job_name(), which)):
        assert words in text, text
