"""A dialect of the core's calls, here one for NumPy: its names and classes in the errors, its meaning of counts, and
refusals that reach the peers. Ranks are threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided

import a2a
from a2a._core import Dialect

Run = Callable[..., list[Any]]


class WrongType(a2a.InvalidArgumentError, TypeError):
    pass


class WrongCounts(a2a.InvalidArgumentError, RuntimeError):
    pass


class WrongTensor(a2a.InvalidArgumentError, NotImplementedError):
    pass


DIALECT = Dialect(
    np.ndarray, "gift", "box", "given", "wanted", type_error=WrongType, counts_error=WrongCounts,
    tensor_error=WrongTensor, complex_as_real=True,
)  # fmt: skip
OTHER = Dialect(
    np.ndarray, "x", "box", "given", "wanted", type_error=WrongType, counts_error=WrongCounts,
    tensor_error=WrongTensor, sequence=(list, tuple), order="box, x, given, wanted", fills=True, equal=True,
)  # fmt: skip


def f4(*shape: int) -> Any:
    return np.arange(np.prod(shape, dtype=int), dtype=np.float32).reshape(shape)


def right_calls(comm: a2a.Communicator) -> list[Any]:
    rank, results = comm.rank, []
    gift = f4(4, 2) + 100 * rank
    DIALECT.alltoall(comm, box := np.zeros((2, 4), np.float32), gift)  # rows of another size
    results.append(box.tolist())
    to, wanted = [[1, 3], [2, 2]][rank], [[1, 2], [3, 2]][rank]
    DIALECT.alltoall(comm, box := np.zeros((sum(wanted), 2), np.float32), gift, wanted, np.array(to))
    results.append(box[:, 0].tolist())
    DIALECT.alltoall(comm, box := np.zeros(8, np.complex64), np.ones((8, 2), np.float32) + rank, [], None)
    results.append(box.tolist())
    boxes = [np.zeros(1 + peer + rank, np.int16) for peer in range(2)]
    work = DIALECT.alltoall_list(comm, boxes, [np.full(1 + peer + rank, rank, np.int16) for peer in range(2)], True)
    assert work is not None
    work.wait()
    results.append([box.tolist() for box in boxes])
    box = np.zeros(4)
    box[2 * rank : 2 * rank + 2] = rank + 1
    DIALECT.allgather(comm, box, box[2 * rank : 2 * rank + 2])  # in place
    comm.allgather(box[2 * rank : 2 * rank + 2], box)
    DIALECT.allgather_list(comm, boxes := [np.zeros(1), np.zeros(2)], np.full(1 + rank, 7.0 + rank))
    results.append([box.tolist(), [one.tolist() for one in boxes]])
    DIALECT.alltoall(comm, np.zeros((6, 0)), np.zeros((4, 0)))
    assert DIALECT.barrier(comm) is None
    # Either word for equal parts meets the other.
    box = np.zeros(2)
    comm.alltoall(np.arange(2.0), box) if rank else DIALECT.alltoall(comm, box, np.arange(2.0))
    results.append(box.tolist())
    return results


def test_right_calls(run_ranks: Run) -> None:
    first, second = run_ranks(2, right_calls, threads=True)
    assert first == [
        [[0, 1, 2, 3], [100, 101, 102, 103]], [0, 100, 102], [1 + 1j] * 4 + [2 + 2j] * 4, [[0], [1, 1]],
        [[1, 1, 2, 2], [[7], [8, 8]]], [0, 0],
    ]  # fmt: skip
    assert second == [
        [[4, 5, 6, 7], [104, 105, 106, 107]], [2, 4, 6, 104, 106], [1 + 1j] * 4 + [2 + 2j] * 4, [[0, 0], [1, 1, 1]],
        [[1, 1, 2, 2], [[7], [8, 8]]], [1, 1],
    ]  # fmt: skip


def other_right_calls(comm: a2a.Communicator) -> list[Any]:
    rank, results = comm.rank, []
    boxes: list[Any] = []
    gifts = np.full((1, 2), rank, np.int16), np.array(rank + 4, np.int16)  # of other shapes for each rank
    work = OTHER.alltoall_list(comm, boxes, gifts, True)
    assert work is not None
    work.wait()
    results.append([(box.tolist(), box.dtype.name) for box in boxes])
    OTHER.allgather_list(comm, boxes := [], np.full((1, 2), rank))
    results.append([box.tolist() for box in boxes])
    boxes = [np.zeros(2), np.zeros(2)]
    boxes[rank] += 1 + rank
    OTHER.allgather_list(comm, tuple(boxes), boxes[rank])  # in place
    results.append([box.tolist() for box in boxes])
    x, counts = f4(2, 2) + 10 * rank, np.array([1, 1])
    scattered = OTHER.global_scatter(comm, x, counts, counts)
    assert OTHER.global_gather(comm, scattered, counts, counts).tolist() == x.tolist()
    return [*results, scattered.tolist()]


def test_other_right_calls(run_ranks: Run) -> None:
    first, second = run_ranks(2, other_right_calls, threads=True)
    gathered = [[[[0, 0]], [[1, 1]]], [[1, 1], [2, 2]]]
    assert first == [[([[0, 0]], "int16"), ([[1, 1]], "int16")], *gathered, [[0, 1], [10, 11]]]
    assert second == [[(4, "int16"), (5, "int16")], *gathered, [[2, 3], [12, 13]]]


MISTAKES: dict[str, tuple[Callable[[a2a.Communicator], object], type[Exception], str]] = {
    "type": (lambda c: DIALECT.alltoall(c, f4(4), [1.0] * 4), WrongType, "gift is list, not numpy.ndarray"),
    "list": (lambda c: DIALECT.alltoall_list(c, (f4(1),) * 2, []), WrongType, "box is tuple, not a list of"),  # type: ignore[arg-type]
    "entry": (lambda c: DIALECT.allgather_list(c, [f4(1), 3], f4(1)), WrongType, "box[1] is int, not numpy.ndarray"),
    "entries": (lambda c: DIALECT.alltoall_list(c, [f4(1)], []), WrongCounts, "box has 1 tensors, but the group has 2"),
    "indivisible": (lambda c: DIALECT.alltoall(c, f4(3), f4(4)), WrongCounts, "box (3,) has 3 rows, which 2 ranks"),
    "sum": (lambda c: DIALECT.alltoall(c, f4(4), f4(4), None, [1, 2]), WrongCounts, "given [1, 2] sums to 3, but gift"),
    "negative": (lambda c: DIALECT.alltoall(c, f4(4), f4(4), [5, -1]), WrongCounts, "wanted [5, -1] has a negative"),
    "length": (lambda c: DIALECT.alltoall(c, f4(4), f4(4), [4]), WrongCounts, "wanted has 1 entries, but the group"),
    "integers": (lambda c: DIALECT.alltoall(c, f4(4), f4(4), [2.0, 2]), WrongType, "wanted[0] is 2.0"),
    "own part": (lambda c: DIALECT.alltoall(c, f4(6), f4(4)), WrongCounts, "gift has 8 bytes for this rank itself"),
    "0-d": (lambda c: DIALECT.alltoall(c, f4(4), np.array(1, "f4")), WrongCounts, "gift is 0-d"),
    "dtype": (lambda c: DIALECT.alltoall(c, f4(4), np.zeros(4)), ValueError, "gift is float64, but box is float32"),
    "memory": (lambda c: DIALECT.alltoall(c, np.zeros(2, object), f4(2)), WrongTensor, "box has the NumPy dtype"),
    "shared": (lambda c: DIALECT.alltoall(c, as_strided(f4(4), (4,), (0,)), f4(4)), ValueError, "elements that may"),
    "overlap": (lambda c: (lambda m: DIALECT.alltoall(c, m[:4], m[2:]))(f4(6)), ValueError, "share memory"),
    "not its part": (lambda c: (lambda m: DIALECT.allgather(c, m, m[:2]))(f4(4)), ValueError, "share memory"),
    "order": (lambda c: OTHER.alltoall(c, f4(4), f4(5)), WrongCounts, "(the order of this call is box, x, given,"),
    "complex": (lambda c: OTHER.alltoall(c, f4(4), f4(2).astype("c8")), ValueError, "x is complex64, but box is float"),
    "set": (lambda c: OTHER.alltoall_list(c, {1: 2}, []), WrongType, "box is dict, not a list of"),  # type: ignore[arg-type]
    "unequal": (lambda c: OTHER.allgather_list(c, [f4(2), f4(1)], f4(1)), WrongCounts, "box[0] (2,) has 8 bytes, but"),
    "its neighbour": (lambda c: (lambda m: OTHER.allgather_list(c, [m, f4(1)], m))(f4(1)), ValueError, "share memory"),
    "shapes": (lambda c: OTHER.alltoall_list(c, [], [f4(1), 5]), WrongType, "x[1] is int"),
    "one dtype": (lambda c: OTHER.alltoall_list(c, [], [f4(1), np.ones(1)]), ValueError, "x[1] is float64"),
    "rows left": (lambda c: OTHER.global_scatter(c, f4(3, 1), [1, 1], [1, 1]), WrongCounts, "local_count [1, 1] sums"),
    "bad counts": (lambda c: OTHER.global_gather(c, f4(3, 1), [1, 1], "11"), WrongType, "global_count[0] is '1'"),
    "gather": (lambda c: DIALECT.allgather(c, f4(5), f4(2)), ValueError, "box (5,) has 20 bytes, but 2 ranks send"),
}  # fmt: skip


def wrong_call(comm: a2a.Communicator, name: str) -> str:
    call, kind, _ = MISTAKES[name]
    with pytest.raises(a2a.Error) as caught:
        if comm.rank == 1:
            call(comm)
        elif name in ("list", "entries", "set"):
            comm.alltoall_list([f4(1)] * 2, [f4(1), f4(1)])
        elif name in ("shapes", "one dtype"):
            OTHER.alltoall_list(comm, [], [f4(1)] * 2)
        elif name in ("rows left", "bad counts"):
            OTHER.global_scatter(comm, f4(2, 1), [1, 1], [1, 1])
        elif name in ("entry", "gather", "not its part", "unequal", "its neighbour"):
            comm.allgather(f4(1), f4(2))
        else:
            comm.alltoall(f4(4), f4(4))
    assert isinstance(caught.value, (a2a.InvalidArgumentError, kind) if comm.rank == 1 else a2a.MismatchError)
    if comm.rank == 1:
        assert isinstance(caught.value, kind)
    DIALECT.alltoall(comm, box := np.zeros(2), np.full(2, 1.0 + comm.rank))
    assert box.tolist() == [1, 2]
    return str(caught.value)


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes(name: str, run_ranks: Run) -> None:
    texts = run_ranks(2, wrong_call, name, threads=True)
    assert MISTAKES[name][2] in texts[0] and MISTAKES[name][2] in texts[1], texts
    assert texts[1].startswith("rank 1: ") and "rank 1: " in texts[0], texts


def fill_on_one(comm: a2a.Communicator) -> str:
    boxes = [f4(1), f4(1)] if comm.rank == 0 else []
    with pytest.raises(a2a.MismatchError) as caught:
        OTHER.alltoall_list(comm, boxes, [f4(1)] * 2)
    comm.barrier()
    return str(caught.value)


def test_an_empty_list_on_one_rank(run_ranks: Run) -> None:
    texts = run_ranks(2, fill_on_one, threads=True)
    assert "rank 0 calls alltoall_list, rank 1 calls exchange" in texts[0]
    assert "box is empty on rank 1; it must be so on all or on none" in texts[1]
