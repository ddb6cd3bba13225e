"""Bad arguments of a2a.paddle: the rank that makes the call gets a class of a2a that is also Paddle's, its peers learn
of it, nobody waits, and the communicator goes on."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from rank_pool import Pool

paddle = pytest.importorskip("paddle")
import a2a.paddle as dist
import paddle_refusals
from paddle_ranks import part
from paddle_refusals import CASES, CULPRIT, RANKS, counts, rows, sparse

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
        elif case == "op":
            dist.all_reduce(rows(4), dist.ReduceOp.SUM if first else dist.ReduceOp.MAX, group=comm)
        elif case == "root":
            dist.broadcast(rows(4), 0 if first else 1, group=comm)
        elif case == "gathered sizes":
            dist.gather(rows(4 if first else 3), [] if first else None, 0, group=comm)
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


@pytest.mark.parametrize(
    "case",
    ["counts", "experts", "gather", "sizes", "dtype", "lists", "async", "all_gather", "op", "root", "gathered sizes"],
)
def test_ranks_disagree(paddle_pool: Pool, case: str) -> None:
    for kind, message in paddle_pool.run(disagree, case)[:2]:
        assert kind == "MismatchError"
        assert "rank 0" in message and "rank 1" in message


def refuse_message(world: a2a.Communicator, sends: bool) -> str:
    """A message that one of two ranks may not send, or receive; the next one arrives. Returns what the other one is
    told."""
    comm = part(world, 2)
    if comm is None:
        return ""
    told = ""
    if (comm.rank == 0) == sends:
        call = dist.isend if sends else dist.irecv
        for tensor, kind, words in (
            (sparse(), ValueError, "tensor is not a dense tensor"),
            (np.ones(3), TypeError, "tensor is numpy.ndarray, not paddle.Tensor"),
        ):
            with pytest.raises(kind, match=f"^rank {comm.rank}: {re.escape(words)}"):
                call(tensor, 1 - comm.rank, group=comm)
        with pytest.raises(ValueError, match=r"is 2, but the ranks of the group are \[0, 1\]"):
            call(rows(), 2, group=comm)  # nobody waits for it
    else:
        for _ in range(2):
            with pytest.raises(a2a.MismatchError) as error:
                # Of so many rows no copy is kept, so the sender learns of it in this call.
                (dist.recv if sends else dist.send)(rows(200_000), 1 - comm.rank, group=comm)
            told += str(error.value)
    out = paddle.zeros([2])
    dist.send(paddle.ones([2]), 1, group=comm) if comm.rank == 0 else dist.recv(out, 0, group=comm)
    assert comm.rank == 0 or out.tolist() == [1.0, 1.0]
    return told


@pytest.mark.parametrize("sends", [True, False], ids=["send", "recv"])
def test_refused_messages(paddle_pool: Pool, sends: bool) -> None:
    told = "".join(paddle_pool.run(refuse_message, sends)[:2])
    assert "not a dense tensor" in told and "numpy.ndarray, not paddle.Tensor" in told


def test_what_is_no_message() -> None:
    with pytest.raises(RuntimeError, match="Invalid ``op`` function"):
        dist.P2POp(dist.all_reduce, rows(), 0)
    for wrong in ([], [5], dist.P2POp(dist.isend, rows(), 0)):
        with pytest.raises(RuntimeError, match="Invalid ``p2p_op_list``"):
            dist.batch_isend_irecv(wrong)


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
