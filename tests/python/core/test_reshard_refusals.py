"""Reshardings that are refused: InvalidArgumentError on the rank, MismatchError on its peers, and all stay in step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from reshard_ranks import COLUMNS, ROWS, bystanders, call, differ

import a2a
from a2a.sharding import Partial, Shard, Sharding

pytestmark = pytest.mark.timeout(100)

BAD: dict[str, tuple[Callable[[a2a.Communicator], Any], str]] = {}


def bad(words: str) -> Callable[[Any], Any]:
    def note(call: Any) -> Any:
        BAD[call.__name__] = call, words
        return call

    return note


@bad("names rank 1 twice")
def rank_twice(comm: a2a.Communicator) -> None:
    call(comm, src=Sharding([0, 1, 1], Shard(0)))


@bad("src: the mesh names rank -1")
def negative_rank(comm: a2a.Communicator) -> None:
    call(comm, src=Sharding([0, 1, -1], Shard(0)))


@bad("dst: there are 2 placements for 1 axes")
def too_many_placements(comm: a2a.Communicator) -> None:
    call(comm, dst=Sharding([0, 1, 2], [Shard(0), Shard(1)]))


@bad("src: it names rank 5, but the group has 3 ranks")
def rank_out_of_range(comm: a2a.Communicator) -> None:
    call(comm, src=Sharding([0, 1, 5], Shard(0)))


@bad("send is of shape (3, 3), but rank 1 has a part of shape (2, 3)")
def wrong_part(comm: a2a.Communicator) -> None:
    call(comm, send=np.zeros((3, 3), np.float32))


@bad("recv is None, but rank 1 has a part of shape (6, 1)")
def no_output(comm: a2a.Communicator) -> None:
    call(comm, recv=None)


@bad("send is float64, but recv is float32")
def two_dtypes(comm: a2a.Communicator) -> None:
    call(comm, send=np.zeros((2, 3)))


@bad("src: it has 12 of the 18 elements")
def source_lacks_elements(comm: a2a.Communicator) -> None:
    call(comm, src={0: (slice(0, 2), slice(None)), 1: (slice(2, 4), slice(None))})


@bad("cannot be partial")
def partial_destination(comm: a2a.Communicator) -> None:
    call(comm, dst=Sharding([0, 1, 2], Partial()))


@bad("dimension 2 of a tensor of 2 dimensions")
def no_such_dimension(comm: a2a.Communicator) -> None:
    call(comm, src=Sharding([0, 1, 2], Shard(2)))


@bad("the box of rank 0")
def box_outside(comm: a2a.Communicator) -> None:
    call(comm, dst=[(slice(0, 7), slice(None)), None, None])


@bad("dst[0] is")
def no_slices(comm: a2a.Communicator) -> None:
    call(comm, dst=[(slice(None),), None, None])


@bad("slices without a step")
def steps(comm: a2a.Communicator) -> None:
    call(comm, dst=[(slice(0, 6, 2), slice(None)), None, None])


@bad("dst has 2 boxes")
def too_few_boxes(comm: a2a.Communicator) -> None:
    call(comm, dst=[None, None])


@bad("dst names rank 3")
def box_of_nobody(comm: a2a.Communicator) -> None:
    call(comm, dst={3: None})


@bad("src is 'rows'")
def no_sharding(comm: a2a.Communicator) -> None:
    call(comm, src="rows")


@bad("shape")
def no_shape(comm: a2a.Communicator) -> None:
    call(comm, shape=6)


@bad("a dimension of -6 entries")
def negative_shape(comm: a2a.Communicator) -> None:
    call(comm, shape=(-6, 3))


@bad("share memory")
def shared_memory(comm: a2a.Communicator) -> None:
    memory = np.zeros(12, np.float32)
    call(comm, send=memory[:6].reshape(2, 3), recv=memory[4:10].reshape(6, 1))


@bad("read-only")
def read_only(comm: a2a.Communicator) -> None:
    recv = np.zeros((6, 1), np.float32)
    recv.flags.writeable = False
    call(comm, recv=recv)


@bad("takes")
def too_few_arguments(comm: a2a.Communicator) -> None:
    comm.reshard(1)  # type: ignore[call-overload]


def refused(comm: a2a.Communicator, name: str) -> None:
    function, words = BAD[name]
    comm.timeout = 5
    if comm.rank == 1:
        wrong = TypeError if name == "too_few_arguments" else a2a.InvalidArgumentError
        with pytest.raises(wrong) as caught:
            function(comm)
        assert words in str(caught.value), caught.value
    else:
        with pytest.raises(a2a.MismatchError, match="rank 1"):
            call(comm)
    call(comm)  # the numbers are in step
    comm.barrier()


def all_refused(comm: a2a.Communicator) -> None:
    for name in BAD:
        refused(comm, name)


def test_bad_arguments_are_refused_here_and_a_mismatch_there(run_ranks: Callable[..., Any]) -> None:
    run_ranks(3, all_refused)


def bad_plans(comm: a2a.Communicator) -> None:
    for wrong, words in (
        (5, "tensors is 5"),
        ([((2,), ROWS, ROWS)], "tensors[0]"),
        ([((2,), ROWS, ROWS, "int8"), ((2,), ROWS, COLUMNS, "int8")], "tensors[1]: dst"),
        ([((2,), ROWS, ROWS, "int3")], "tensors[0]: dtype"),
    ):
        with pytest.raises(a2a.InvalidArgumentError) as caught:
            comm.plan_reshard_all(wrong)  # type: ignore[arg-type]
        assert words in str(caught.value), caught.value
    plan = comm.plan_reshard_all([((6, 3), ROWS, COLUMNS, "float32"), ((3,), ROWS, ROWS, "int8")])
    sends = [np.zeros((2, 3), np.float32), np.zeros(1, np.int8)]
    recvs = [np.zeros((6, 1), np.float32), np.zeros(1, np.int8)]
    for sent, received, words in (
        (sends[:1], recvs, "send has 1 tensors, but the plan has 2"),
        (sends[0], recvs, "send"),
        (None, recvs, "send is NoneType"),
        (sends[::-1], recvs, "send[0] is int8, but the plan is of float32"),
        (sends, [recvs[0], recvs[1].view(np.uint8)], "recv[1] is uint8"),
        ([sends[0], None], recvs, "send[1] is None"),
        (sends, [recvs[0], sends[1]], "share memory"),
    ):
        if comm.rank == 1:
            with pytest.raises(a2a.InvalidArgumentError) as caught:
                plan.run(sent, received)
            assert words in str(caught.value), caught.value
        else:
            with pytest.raises(a2a.MismatchError, match="rank 1"):
                plan.run(sends, recvs)
        plan.run(sends, recvs)
    if comm.rank == 2:
        with pytest.raises(TypeError):
            plan.run()  # type: ignore[call-arg]
    else:
        with pytest.raises(a2a.MismatchError, match=r"reshard.*rank 2"):
            plan.run(sends, recvs)
    plan.run(sends, recvs)


def test_bad_arguments_of_plans(run_ranks: Callable[..., Any]) -> None:
    run_ranks(3, bad_plans)


def test_ranks_that_differ(run_ranks: Callable[..., Any]) -> None:
    run_ranks(3, differ)


def test_a_rank_without_a_part_does_not_know_the_dtype(run_ranks: Callable[..., Any]) -> None:
    run_ranks(4, bystanders)
