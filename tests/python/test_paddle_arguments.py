"""Bad arguments of a2a.paddle: the rank that makes the call gets a class of a2a that is also Paddle's, its peers learn
of it, nobody waits, and the communicator goes on."""

from __future__ import annotations

from typing import Any

import pytest
from rank_pool import Pool

paddle = pytest.importorskip("paddle")
import a2a.paddle as dist
import paddle_refusals
from paddle_ranks import part
from paddle_refusals import CASES, CULPRIT, RANKS, counts, rows

import a2a

pytestmark = pytest.mark.timeout(110)


@pytest.mark.parametrize("name", CASES)
def test_refused(paddle_pool: Pool, name: str) -> None:
    raised = paddle_pool.run(paddle_refusals.refuse, name)[:RANKS]
    for rank, (classes, message) in enumerate(raised):
        if rank == CULPRIT:
            assert "InvalidArgumentError" in classes and CASES[name].kind.__name__ in classes
            assert message.startswith(f"rank {CULPRIT}: ") and CASES[name].words in message
        else:
            assert "MismatchError" in classes
            assert f"rank {CULPRIT} does not take part" in message and CASES[name].words[:20] in message


def disagree(world: a2a.Communicator, case: str) -> tuple[str, str]:
    """Ranks 0 and 1 contradict each other."""
    comm = part(world, 2)
    if comm is None:
        return "", ""
    first = comm.rank == 0
    try:
        if case == "counts":
            dist.utils.global_scatter(rows(4), counts(2, 2), counts(2, 2) if first else counts(1, 2), group=comm)
        elif case == "experts":
            local = counts(1, 1, 1, 1) if first else counts(2, 0, 1, 1)  # as many rows, for other experts
            dist.utils.global_scatter(rows(4), local, counts(1, 1, 1, 1), group=comm)
        elif case == "gather":
            x = rows(4) if first else rows(3)
            dist.utils.global_gather(x, counts(2, 2), counts(2, 2) if first else counts(1, 2), group=comm)
        elif case == "sizes":
            out = rows(4) if first else rows(3)
            dist.alltoall_single(out, rows(4), [2, 2], [2, 2] if first else [1, 2], group=comm)
        elif case == "dtype":
            dtype = "float32" if first else "int32"
            dist.alltoall_single(rows(4, dtype=dtype), rows(4, dtype=dtype), group=comm)
        elif case == "lists":
            dist.alltoall([rows(), rows()] if first else [], [rows(), rows()], group=comm)
        elif case == "async":
            out = rows(4) if first else rows(3)
            dist.alltoall_single(out, rows(4), [2, 2], [2, 2] if first else [1, 2], group=comm, sync_op=False).wait()
        else:
            dist.all_gather([], rows(1 if first else 2), group=comm)
    except a2a.Error as error:
        raised = type(error).__name__, str(error)
    else:
        return "nothing raised", ""
    comm.barrier()
    return raised


@pytest.mark.parametrize("case", ["counts", "experts", "gather", "sizes", "dtype", "lists", "async", "all_gather"])
def test_ranks_disagree(paddle_pool: Pool, case: str) -> None:
    for kind, message in paddle_pool.run(disagree, case)[:2]:
        assert kind == "MismatchError"
        assert "rank 0" in message and "rank 1" in message


def outside_of_dygraph(world: a2a.Communicator) -> str:
    comm = part(world, 1)
    if comm is None:
        return ""
    given, out = rows(), rows()
    paddle.enable_static()
    try:
        dist.alltoall_single(out, given, group=comm)
    except RuntimeError as error:
        return str(error)
    finally:
        paddle.disable_static()
    return "nothing raised"


def test_static_mode(paddle_pool: Pool) -> None:
    assert "only supported in dygraph mode" in paddle_pool.run(outside_of_dygraph)[0]


@pytest.mark.parametrize("group", [5, "world", True])
def test_what_is_no_group(group: Any) -> None:
    with pytest.raises(TypeError, match="group must be a Group of Paddle") as raised:
        dist.alltoall_single(rows(), rows(), group=group)
    assert isinstance(raised.value, a2a.InvalidArgumentError)


def test_before_init_parallel_env() -> None:
    with pytest.raises(RuntimeError, match="The global group is not initialized") as raised:
        dist.alltoall_single(rows(), rows())
    assert isinstance(raised.value, a2a.Error)
