"""Rank 0 cannot accept the others' connections: what it and they are told."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import resource
import struct
import time
from typing import Any

import pytest
from forked import apart, connect, job_name, run, values

import a2a

pytestmark = [
    pytest.mark.timeout(60),
    pytest.mark.skipif(platform.machine() not in ("x86_64", "aarch64"), reason="system calls have other numbers"),
]
ACCEPT, ACCEPT4 = (43, 288) if platform.machine() == "x86_64" else (202, 242)


def refuse(calls: list[int], error: int) -> None:
    """From now on these system calls fail with this error, as in a sandbox."""
    code = [(0x20, 0, 0, 0)]  # load the number
    for number in calls:
        code += [(0x15, 0, 1, number), (0x06, 0, 0, 0x00050000 | error)]
    code += [(0x06, 0, 0, 0x7FFF0000)]
    filter_ = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in code))
    program = ctypes.create_string_buffer(struct.pack("H6xP", len(code), ctypes.addressof(filter_)))
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    assert prctl(38, 1, 0, 0, 0) == 0  # PR_SET_NO_NEW_PRIVS
    if prctl(22, 2, ctypes.c_void_p(ctypes.addressof(program)), 0, 0) != 0:  # PR_SET_SECCOMP
        raise OSError(ctypes.get_errno(), "seccomp")


def meet(rank: int, job: str, calls: list[int], error: int, free: int) -> Any:
    if rank == 0:
        if calls:
            refuse(calls, error)
        if free:
            lowest = os.dup(0)
            os.close(lowest)
            resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + free, lowest + free))
    began = time.monotonic()
    try:
        connect(rank, 3, job, timeout=5).barrier()
    except a2a.Error as failure:
        return type(failure).__name__, str(failure), time.monotonic() - began
    return "met", "", time.monotonic() - began


@apart
@pytest.mark.parametrize("error", [errno.ENOSYS, errno.EPERM])
def test_accept_does_where_accept4_is_refused(error: int) -> None:
    assert [name for name, _, _ in values(run(3, meet, job_name(), [ACCEPT4], error, 0))] == ["met"] * 3


@apart
def test_rank_0_says_at_once_that_it_cannot_accept() -> None:
    ends = values(run(3, meet, job_name(), [ACCEPT, ACCEPT4], errno.EPERM, 0))
    name, text, seconds = ends[0]
    assert name == "BackendError" and "rank 0 cannot accept rank 1, 2: Operation not permitted" in text, ends
    assert seconds < 2


@pytest.mark.smoke
@apart
def test_all_are_told_that_rank_0_has_no_descriptors() -> None:
    for name, text, seconds in values(run(3, meet, job_name(), [], 0, 4)):
        assert name == "BackendError" and "rank 0 cannot accept rank" in text and "Too many open files" in text
        assert seconds < 2
