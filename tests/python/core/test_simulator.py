"""The simulator: exact where an exchange can be computed by hand, near the bound where schedules are, and monotone."""

from __future__ import annotations

import itertools
import time
from typing import Any

import numpy as np
import pytest
from sample import with_full

import a2a
from a2a import simulator, traffic
from a2a.simulator import Cluster, simulate

FREE = Cluster(ranks_per_host=1, link=1e9, memory=1e9, latency=0, message=0, start=0)


def single(**changes: Any) -> Cluster:
    return Cluster(**{**vars(FREE), "ports": "single", **changes})


def shared(**changes: Any) -> Cluster:
    return Cluster(**{**vars(FREE), "ports": "shared", **changes})


CLUSTERS = [single(), shared()]


@pytest.mark.parametrize("cluster", CLUSTERS, ids=["single", "shared"])
@pytest.mark.parametrize("schedule", ["rotation", "longest"])
def test_computed_by_hand(cluster: Cluster, schedule: simulator.Schedule) -> None:
    one_pair = np.zeros((3, 3), int)
    one_pair[0, 2] = 5_000_000
    outcome = simulate(one_pair, cluster, schedule)
    assert outcome.seconds == outcome.bound == pytest.approx(5e-3)
    assert outcome.critical_rank == 2 and outcome.ranks.tolist() == pytest.approx([0, 0, 5e-3])
    assert [message[:3] for message in outcome.messages] == [(0, 2, 5_000_000)]
    # Two senders of one port: 3 ms and 1 ms of bytes cannot arrive in less than 4.
    two = np.array([[0, 0, 3_000_000], [0, 0, 1_000_000], [0, 0, 0]])
    outcome = simulate(two, cluster, schedule)
    assert outcome.seconds == pytest.approx(4e-3, rel=1e-3)
    ends = {message.sender: message.end for message in outcome.messages}
    # A port that is shared gives both a half, so the short one ends after 2 ms.
    assert ends == pytest.approx({0: 4e-3, 1: 2e-3} if cluster.ports == "shared" else ends, rel=1e-2)
    # All pairs alike: every port is busy from the beginning to the end.
    equal = traffic.made("uniform", 5, bytes_per_rank=4_000_000)
    assert simulate(equal, cluster, schedule).seconds == pytest.approx(4e-3, rel=1e-3)


def test_max_min_fairness() -> None:
    """Rank 0 sends to 1 and 2, rank 3 to 2: both ports of two messages are halved, and nothing is left over."""
    matrix = np.zeros((4, 4), int)
    matrix[0, 1] = matrix[0, 2] = matrix[3, 2] = 1_000_000
    ends = {message[:2]: message.end for message in simulate(matrix, shared(), "rotation").messages}
    assert ends == pytest.approx({(0, 1): 2e-3, (0, 2): 2e-3, (3, 2): 2e-3}, rel=1e-3)
    # Another receiver for rank 3's: it gets all of both ports.
    matrix[3, 2], matrix[3, 1] = 0, 0
    matrix[3, 0] = 1_000_000
    ends = {message[:2]: message.end for message in simulate(matrix, shared(), "rotation").messages}
    assert ends == pytest.approx({(3, 0): 1e-3, (0, 1): 2e-3, (0, 2): 2e-3}, rel=1e-3)
    # Of three messages into rank 2 one shares its other port: the others use what it leaves.
    matrix = np.zeros((5, 5), int)
    matrix[0, [1, 2, 3, 4]] = 1_000_000
    matrix[1, 2] = 1_000_000
    outcome = simulate(matrix, shared(), "rotation")
    ends = {message[:2]: message.end for message in outcome.messages}
    assert ends[1, 2] == pytest.approx(1e-3 / 0.75, rel=1e-2) and outcome.seconds == pytest.approx(4e-3, rel=1e-2)


@pytest.mark.parametrize("cluster", CLUSTERS, ids=["single", "shared"])
def test_costs(cluster: Cluster) -> None:
    equal = traffic.made("uniform", 4, bytes_per_rank=3_000_000)
    dear = Cluster(**{**vars(cluster), "latency": 1e-4, "message": 2e-4, "start": 5e-4})
    assert simulate(equal, dear).seconds == pytest.approx(3e-3 + 3 * 2e-4 + 1e-4 + 5e-4, rel=1e-3)


def test_ranks_of_a_host_share_its_port_and_its_memory() -> None:
    equal = traffic.made("uniform", 4, bytes_per_rank=3_000_000)
    cluster = shared(ranks_per_host=2, memory=1e8)
    outcome = simulate(equal, cluster)
    # Two ranks send 2 MB each over one port of 1 GB/s; 1 MB within the host at 0.1 GB/s takes longer.
    assert outcome.out_ports.tolist() == outcome.in_ports.tolist() == pytest.approx([4e-3, 4e-3])
    assert outcome.seconds == outcome.bound == pytest.approx(1e-2)
    assert {(message.sender // 2, message.receiver // 2) for message in outcome.messages} == {(0, 1), (1, 0)}
    fast = simulate(equal, shared(ranks_per_host=2, memory=1e12))
    assert fast.seconds == pytest.approx(4e-3, rel=1e-3)
    assert simulate(equal, shared(ranks_per_host=4, memory=1e12)).messages == []


def test_few_bytes_go_by_host() -> None:
    """The reason for the hierarchical way: a message costs more than its bytes."""
    few = traffic.made("uniform", 64, bytes_per_rank=64 * 64)
    cluster = shared(ranks_per_host=8, message=2e-6, memory=1e10)
    times = {schedule: simulate(few, cluster, schedule).seconds for schedule in simulator.SCHEDULES}
    assert times["hierarchical"] < 0.1 * times["longest"]
    many = traffic.made("uniform", 64, bytes_per_rank=64 << 20)
    times = {schedule: simulate(many, cluster, schedule).seconds for schedule in simulator.SCHEDULES}
    assert times["longest"] < times["hierarchical"]


@pytest.mark.parametrize("ports", ["single", "shared"])
@pytest.mark.parametrize("name", traffic.NAMES)
@pytest.mark.parametrize("ranks", [8, 64, 256, *with_full([1024])])
def test_near_the_bound(name: str, ranks: int, ports: str) -> None:
    """With shared ports nothing but the network decides between messages that are under way: some draws are worse."""
    ratios = []
    for seed in range(5 if ranks < 100 else 1):
        matrix = traffic.made(name, ranks, bytes_per_rank=1 << 30, seed=seed)
        ratios.append(simulate(matrix, single() if ports == "single" else shared(), keep=10).ratio)
    assert min(ratios) >= 1 - 1e-3 and np.median(ratios) <= 1.05 and max(ratios) <= 1.1, ratios


def test_a_blocking_rotation_is_far_from_it() -> None:
    matrix = traffic.made("log-normal", 64, bytes_per_rank=1 << 30, seed=1)
    assert simulate(matrix, single(), "rotation").ratio > 1.5


def test_every_message_is_there_once_and_ports_carry_one_at_a_time() -> None:
    matrix = traffic.made("log-normal", 24, seed=5)
    matrix[3], matrix[:, 7] = 0, 0
    for schedule in ("rotation", "longest"):
        outcome = simulate(matrix, single(), schedule)
        sent = np.zeros_like(matrix)
        for message in outcome.messages:
            assert sent[message.sender, message.receiver] == 0
            sent[message.sender, message.receiver] = message.nbytes
        assert (sent == matrix).all()
        for port in ("sender", "receiver"):
            for rank in range(24):
                spans = sorted((m.begin, m.end) for m in outcome.messages if getattr(m, port) == rank)
                for (_, end), (begin, _) in itertools.pairwise(spans):
                    assert begin >= end * (1 - 1e-9)


def test_many_ranks_take_seconds() -> None:
    begin = time.monotonic()
    matrix = traffic.made("uniform", 2048, bytes_per_rank=1 << 30)
    assert simulate(matrix, Cluster(), keep=10).ratio < 1.1
    assert time.monotonic() - begin < 60


def test_refused() -> None:
    square = np.ones((2, 2), int)
    for matrix, changes, words in (
        (np.ones((2, 3), int), {}, "shape"),
        (np.ones(4, int), {}, "shape"),
        (np.zeros((0, 0), int), {}, "shape"),
        (-square, {}, "not negative"),
        (square * 1.5, {}, "integers"),
        (square, {"link": 0}, "link is 0; it is positive"),
        (square, {"link": float("inf")}, "link is inf"),
        (square, {"memory": -1}, "memory is -1; it is positive"),
        (square, {"latency": -1}, "latency is -1; it is not negative"),
        (square, {"message": float("nan")}, "message is nan"),
        (square, {"ranks_per_host": 0}, "at least one rank"),
        (square, {"ports": "some"}, "neither single nor shared"),
    ):
        with pytest.raises(a2a.InvalidArgumentError, match=words):
            simulate(matrix, Cluster(**changes))
    with pytest.raises(a2a.InvalidArgumentError, match="none of rotation"):
        simulate(square, Cluster(), "best")  # type: ignore[arg-type]


def test_one_rank_and_no_bytes() -> None:
    for ranks in (1, 3):
        outcome = simulate(np.zeros((ranks, ranks), int), FREE)
        assert outcome.seconds == outcome.bound == 0 and outcome.ratio == 1 and not outcome.messages
