"""Faults of the fixture ``faults``: they strike when they should, and the test goes on without the rank."""

from __future__ import annotations

import os
import signal
import time

import numpy as np
import pytest

import a2a
from a2a import testing

pytest.importorskip("a2a_pytest")


def total(comm: a2a.Communicator) -> float:
    x = np.ones(1)
    comm.allreduce(x)
    return float(x[0])


@pytest.mark.smoke
@pytest.mark.ranks(3)
def test_a_killed_rank_is_gone_before_its_operation(comm: a2a.Communicator, faults: testing.Faults) -> None:
    faults.kill(1, at=3)
    done = 0
    with pytest.raises(a2a.PeerLostError, match="rank 1"):
        for _ in range(5):
            total(comm)
            done += 1
    assert done == 2
    survivors = comm.shrink()
    assert survivors.size == 2 and total(survivors) == 2


@pytest.mark.ranks(3)
def test_the_rank_is_there_again(comm: a2a.Communicator) -> None:
    assert total(comm) == 3


@pytest.mark.ranks(2)
def test_at_a_point_and_by_another_signal(comm: a2a.Communicator, faults: testing.Faults) -> None:
    faults.kill(1, at="saved", signal=signal.SIGTERM)
    total(comm)
    testing.point("loaded")
    testing.point("saved")
    assert comm.rank == 0
    with pytest.raises(a2a.PeerLostError):
        total(comm)


@pytest.mark.ranks(2)
def test_a_stopped_rank_is_late(comm: a2a.Communicator, faults: testing.Faults) -> None:
    faults.stop(1, at=2)
    total(comm)
    with pytest.raises(a2a.TimeoutError):
        comm.allreduce(np.ones(1), timeout=0.2)


@pytest.mark.ranks(2)
def test_a_rank_stops_for_a_time(comm: a2a.Communicator, faults: testing.Faults) -> None:
    faults.stop(1, at=2, seconds=0.2)
    began = time.monotonic()
    assert [total(comm) for _ in range(3)] == [2, 2, 2]
    assert time.monotonic() - began > 0.19


@pytest.mark.ranks(2)
@pytest.mark.parametrize("every, times", [(0, 1), (1, 5), (2, 3)])
def test_delays(comm: a2a.Communicator, faults: testing.Faults, every: int, times: int) -> None:
    faults.delay(1, 20, at=2, every=every)
    began = time.monotonic()
    for _ in range(6):
        total(comm)
    assert time.monotonic() - began >= times * 0.02


@pytest.mark.ranks(2)
def test_a_rank_drops_its_communicator(comm: a2a.Communicator, faults: testing.Faults) -> None:
    faults.drop(0, at=2)
    total(comm)
    with pytest.raises(a2a.AbortedError if comm.rank == 0 else a2a.PeerLostError):
        total(comm)


@pytest.mark.ranks(2)
def test_a_rank_refuses(comm: a2a.Communicator, faults: testing.Faults) -> None:
    faults.refuse(0, at=2)
    faults.refuse(0, at=4)
    expected = a2a.InvalidArgumentError if comm.rank == 0 else a2a.MismatchError
    total(comm)
    with pytest.raises(expected, match="refuse"):
        total(comm)
    assert total(comm) == 2
    with pytest.raises(expected, match="refuse"):  # which is made of two operations
        comm.exchange(np.ones(2), [1, 1])
    assert total(comm) == 2


@pytest.mark.ranks(2)
def test_messages_count_as_operations(comm: a2a.Communicator, faults: testing.Faults) -> None:
    faults.refuse(0, at=2)
    x = np.arange(2.0) if comm.rank == 0 else np.zeros(2)
    if comm.rank == 0:
        comm.send(x, 1)
        with pytest.raises(a2a.InvalidArgumentError):
            comm.send(x, 1)
    else:
        comm.recv(x, 0)
        with pytest.raises(a2a.MismatchError):
            comm.recv(x, 0)
    assert total(comm) == 2


@pytest.mark.ranks(2, torch="a2a")
def test_operations_of_torchs_backend_count(faults: testing.Faults) -> None:
    import torch
    import torch.distributed as dist

    faults.kill(1, at=2)
    x = torch.ones(1)
    dist.all_reduce(x)
    assert x.item() == 2
    with pytest.raises(a2a.PeerLostError):
        dist.all_reduce(x)
    assert dist.get_rank() == 0


@pytest.mark.ranks(3, timeout=20)
@pytest.mark.parametrize("seed", range(6))
def test_faults_at_random_are_the_same_on_all_ranks(comm: a2a.Communicator, faults: testing.Faults, seed: int) -> None:
    text = faults.random(seed, within=6)
    assert text.startswith(f"faults.random({seed}): ")
    try:
        assert len(set(comm.allgather_bytes(text.encode()))) == 1
        for _ in range(6):
            total(comm)
    except a2a.Error:
        assert not any(kind in text for kind in ("delay", "stop")), text


@pytest.mark.ranks(2)
def test_what_makes_no_sense_is_refused(comm: a2a.Communicator, faults: testing.Faults) -> None:
    total(comm)
    for call in (
        lambda: faults.kill(2),
        lambda: faults.kill(True),
        lambda: faults.kill(0, at=1),  # has passed
        lambda: faults.kill(0, at=2.5),  # type: ignore[arg-type]
        lambda: faults.delay(0, float("nan"), at=2),
        lambda: faults.delay(0, 1, at=2, every=-1),
        lambda: faults.drop(0, at="a point"),  # type: ignore[arg-type]
    ):
        with pytest.raises(a2a.InvalidArgumentError, match=r"faults\."):
            call()
    assert os.getpid() > 0 and total(comm) == 2
