"""A signal handler that raises inside a call of ``a2a.paddle`` that has several operations: the peers raise
MismatchError at once, and the ranks stay in step. See interrupts.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import interrupts
import pytest
from rank_pool import Pool
from sample import with_full

import a2a

paddle = pytest.importorskip("paddle")

pytestmark = pytest.mark.timeout(110)


def calls_of(comm: a2a.Communicator) -> dict[str, Callable[[], Any]]:
    from a2a.paddle import _objects
    from a2a.paddle.moe import ExpertParallel

    x, choices = paddle.ones([4, 3]), paddle.to_tensor([[0, 1], [2, 3], [1, 0], [3, 2]])
    weights = paddle.ones([4, 2])
    own, given = paddle.ones([4, 3]), paddle.ones([4, 2])
    own.stop_gradient = given.stop_gradient = False
    experts = ExpertParallel(comm, 4)
    routed = experts.dispatch(own, choices, given)
    home = routed.routing._home
    rows, factors = routed.x.detach(), paddle.ones([routed.x.shape[0]])
    return {
        "objects": lambda: _objects.all_gather(comm, [], comm.rank),
        "objects of a root": lambda: _objects.broadcast(comm, comm, [1, 2], 0),
        "dispatch": lambda: experts.dispatch(x, choices, weights),
        "combine": lambda: experts.combine(rows, routed, weights=factors),
        "back of dispatch": lambda: home([0, 1], [rows, factors]),
    }


def at_every_step(comm: a2a.Communicator, opcodes: bool) -> dict[str, int]:
    calls = calls_of(comm)
    for call in calls.values():
        call()  # the first one imports, and fills caches
    return {name: interrupts.at_every_step(comm, call, opcodes) for name, call in calls.items()}


@pytest.mark.parametrize("opcodes", [False, *with_full([True])])
def test_at_every_step(opcodes: bool) -> None:
    with Pool(2) as pool:
        steps = pool.run(at_every_step, opcodes)
    assert min(steps[1].values()) > 1, steps
