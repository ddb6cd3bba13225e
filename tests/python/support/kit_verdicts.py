"""Tests that fail in every way, for tests/python/kit/test_kit_verdicts.py. The last one passes."""

import ctypes
import os
import signal
import sys
import time
import warnings
from collections.abc import Iterator

import numpy as np
import pytest

from a2a import testing


@pytest.fixture(scope="module")
def kept() -> Iterator[int]:
    yield os.getpid()


@pytest.fixture
def of_rank(comm):
    return comm.rank


@pytest.mark.ranks(3)
def test_one_rank_fails(comm):
    print("hello of", comm.rank)
    assert comm.rank != 1, "I am one"
    comm.barrier()


@pytest.mark.ranks(3)
def test_all_fail_alike(comm):
    print("the same")
    assert len("abc") == 4


@pytest.mark.ranks(3)
def test_each_fails_with_its_own_value(comm):
    assert comm.rank == 7


@pytest.mark.ranks(2)
def test_killed(comm):
    print("before the end")
    sys.stdout.flush()
    if comm.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    comm.barrier()


@pytest.mark.ranks(2)
def test_segfault(comm):
    if comm.rank == 1:
        ctypes.string_at(0)
    comm.barrier()


@pytest.mark.ranks(2)
def test_exits_by_os_exit(comm):
    if comm.rank == 1:
        os._exit(3)
    comm.barrier()


@pytest.mark.ranks(2)
def test_exits_by_sys_exit(comm):
    if comm.rank == 1:
        sys.exit(4)


@pytest.mark.ranks(2, timeout=1)
def test_hangs(comm):
    if comm.rank == 1:
        time.sleep(100)
    comm.barrier()


@pytest.mark.ranks(2, timeout=1)
def test_stopped(comm):
    if comm.rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    comm.barrier()


@pytest.mark.ranks(2)
def test_goes_on_after_another_has_failed(comm):
    assert comm.rank == 1
    time.sleep(100)


@pytest.mark.ranks(2)
def test_fails_in_a_fixture(comm, request):
    request.addfinalizer(lambda: 1 / (1 - comm.rank))


@pytest.mark.ranks(2)
def test_skips_on_one_rank(comm):
    if comm.rank:
        pytest.skip("odd")


@pytest.mark.ranks(2)
def test_skips(comm):
    pytest.skip("on all ranks")


@pytest.mark.ranks(2)
@pytest.mark.skip(reason="by its mark")
def test_skipped_by_its_mark(comm):
    pass


@pytest.mark.ranks(2)
@pytest.mark.xfail(strict=True, reason="one rank")
def test_expected_failure(comm):
    assert comm.rank == 1


@pytest.mark.ranks(2)
@pytest.mark.xfail(strict=True, reason="no rank")
def test_unexpected_success(comm):
    pass


@pytest.mark.ranks(2)
def test_forks(comm):
    if comm.rank == 1:
        os.fork()


@pytest.mark.ranks(2)
def test_forks_rightly(comm):
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)


@pytest.mark.ranks(2)
def test_closes_stdout(comm):
    if comm.rank == 1:
        sys.stdout.close()


@pytest.mark.ranks(2)
def test_closes_descriptors(comm):
    if comm.rank == 1:
        os.closerange(3, 1000)


@pytest.mark.ranks(2)
def test_leaves_work_unfinished(comm):
    comm.allreduce(np.ones(1), async_op=True)


@pytest.mark.ranks(2)
def test_calls_differ(comm):
    if comm.rank == 1:
        comm.barrier()


@pytest.mark.ranks(2)
def test_records_what_cannot_be_pickled(comm, record_property):
    record_property("function", lambda: None)


@pytest.mark.ranks
def test_without_a_number():
    pass


@pytest.mark.ranks("two")
def test_with_a_word():
    pass


@pytest.mark.ranks(2, timout=3)
def test_with_an_unknown_argument():
    pass


@pytest.mark.ranks(2, torch="nccl")
def test_with_an_unknown_backend():
    pass


@pytest.mark.ranks(2)
@pytest.mark.hosts(3)
def test_with_more_hosts_than_ranks():
    pass


@pytest.mark.ranks(1_000_000)
def test_with_too_many_ranks():
    pass


def test_comm_without_the_mark(comm):
    pass


@pytest.mark.ranks(4, threads=True)
def test_one_thread_fails(comm):
    assert comm.rank != 2
    comm.barrier()


@pytest.mark.ranks(2, threads=True, timeout=1)
def test_a_thread_hangs(comm):
    if comm.rank:
        time.sleep(100)
    comm.barrier()


@pytest.mark.ranks(2, threads=True)
def test_threads_with_a_fixture_of_one_rank(of_rank):
    pass


@pytest.mark.ranks(2, threads=True)
def test_threads_with_faults(faults):
    pass


@pytest.mark.ranks(2)
def test_a_fault_that_does_not_strike(comm, faults):
    faults.kill(1, at=30)
    comm.barrier()


@pytest.mark.ranks(2)
def test_a_fault_of_no_rank(comm, faults):
    faults.kill(2)


@pytest.mark.ranks(2)
def test_dies_of_something_else_than_planned(comm, faults):
    faults.kill(1, at="nowhere")
    if comm.rank == 1:
        os._exit(5)
    with pytest.raises(ConnectionError):
        comm.barrier()


@pytest.mark.ranks(2)
def test_warns(comm):
    warnings.warn("of all ranks", stacklevel=1)


@pytest.mark.ranks(2)
def test_after_all(comm, kept):
    x = np.ones(1)
    comm.allreduce(x)
    assert x[0] == 2
    testing.point("no faults are active")
