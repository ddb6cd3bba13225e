"""One rank's arguments are bad: it gets an error that is ours and torch's, before anything moves; its peers hear of it
at once; and the group still works. And ranks that disagree, which all of them say."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
from rank_pool import Pool
from torch_worlds import RANKS, WAYS, calls, group, true_backends

import a2a

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.timeout(110)

SIZE = 3
BAD = 1  # the rank that makes the mistake
Mistake = Callable[[Any, Any], Any]  # (module, group) -> the bad call


def x(*shape: int, dtype: Any = torch.float32) -> Any:
    return torch.ones(shape or (6,), dtype=dtype)


def _nested() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.nested.nested_tensor([x(), x()])


def _quantized() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.quantize_per_tensor(x(), 1.0, 0, torch.qint8)


def _single(output: Any, input: Any, *splits: Any) -> Mistake:
    return lambda dist, g: dist.all_to_all_single(output, input, *splits, group=g)


def _list(outputs: Any, inputs: Any) -> Mistake:
    return lambda dist, g: dist.all_to_all(outputs, inputs, group=g)


def _gather(output: Any, input: Any) -> Mistake:
    return lambda dist, g: dist.all_gather_into_tensor(output, input, group=g)


def _gathers(outputs: Any, input: Any) -> Mistake:
    return lambda dist, g: dist.all_gather(outputs, input, group=g)


def _parts(count: int = SIZE, **options: Any) -> list[Any]:
    return [x(2, **options) for _ in range(count)]


def _same() -> Mistake:
    tensor = x()
    return _single(tensor, tensor)


def _overlapping() -> Mistake:
    memory = x(8)
    return _single(memory[:6], memory[2:])


def _overlapping_outputs() -> Mistake:
    memory = x(4)
    return _list([memory[:2], memory[1:3], x(2)], _parts())


# What torch's dispatcher refuses, or makes right, on its way to a true backend.
_OLD = not true_backends()
LAZY = torch.ones(6, dtype=torch.complex64)
# What is wrong -> (how to do it, class that torch raises, words of the message). Made on the rank, so that nothing is
# pickled. The last entry tells whether torch's own functions let the mistake through to a backend.
MISTAKES: dict[str, tuple[Callable[[], Mistake], type[Exception], str, bool]] = {
    "output no tensor": (lambda: _single([1.0], x()), TypeError, "output is list, not torch.Tensor", False),
    "input no tensor": (lambda: _single(x(), None), TypeError, "input is NoneType, not torch.Tensor", False),
    "indivisible input": (lambda: _single(x(), x(7)), RuntimeError, "input (7,) has 7 rows, which 3 ranks", True),
    "indivisible output": (lambda: _single(x(7), x()), RuntimeError, "output (7,) has 7 rows, which 3 ranks", True),
    "too few splits": (
        lambda: _single(x(), x(), [3, 3]), RuntimeError, "output_split_sizes has 2 entries, but the group has 3", True
    ),
    "too many splits": (
        lambda: _single(x(), x(), None, [1, 1, 2, 2]), RuntimeError, "input_split_sizes has 4 entries", True
    ),
    "sum too small": (
        lambda: _single(x(), x(), [1, 2, 2]), RuntimeError, "output_split_sizes [1, 2, 2] sums to 5, but", True
    ),
    "sum too large": (
        lambda: _single(x(), x(), None, [4, 2, 2]), RuntimeError, "input_split_sizes [4, 2, 2] sums to 8, but", True
    ),
    "negative split": (
        lambda: _single(x(), x(), None, [8, -4, 2]), RuntimeError, "input_split_sizes [8, -4, 2] has a negative", True
    ),
    "sum overflows": (
        lambda: _single(x(), x(), [2**62, 2**62, 2**62]), RuntimeError, "sums to 13835058055282163712", True
    ),
    "splits no integers": (lambda: _single(x(), x(), [2.0, 2, 2]), TypeError, "output_split_sizes[0] is 2.0", _OLD),
    "splits no list": (lambda: _single(x(), x(), 3), TypeError, "output_split_sizes is 3", _OLD),
    "dtypes": (lambda: _single(x(), x(dtype=torch.int32)), ValueError, "input is int32, but output is float32", False),
    "the documentation's complex example": (
        lambda: _list(_parts(dtype=torch.int64), _parts(dtype=torch.cfloat)), ValueError, "one dtype", False
    ),
    "device": (lambda: _single(x().to("meta"), x()), ValueError, "output (torch.Tensor) has no plain memory", _OLD),
    "0-d": (lambda: _single(torch.tensor(1.0), x()), RuntimeError, "output is 0-d and cannot be divided", True),
    "own part": (lambda: _single(x(9), x()), RuntimeError, "input has 8 bytes for this rank itself, but output", True),
    "same tensor": (_same, ValueError, "share memory", True),
    "overlap": (_overlapping, ValueError, "share memory", True),
    "expanded output": (lambda: _single(x(1).expand(6), x()), ValueError, "output of shape (6,) has elements", True),
    "conj bit": (lambda: _single(LAZY.clone(), LAZY.conj()), RuntimeError, "input.resolve_conj()", False),
    "neg bit": (lambda: _single(x(), torch._neg_view(x())), RuntimeError, "input.resolve_neg()", _OLD),
    "sparse": (lambda: _single(x(), x().to_sparse()), NotImplementedError, "input (torch.Tensor) has no plain", _OLD),
    "sparse output": (lambda: _single(x().to_sparse(), x()), NotImplementedError, "output (torch.Tensor) has", _OLD),
    "nested": (lambda: _single(x(), _nested()), NotImplementedError, "input (torch.Tensor) has no plain", _OLD),
    "quantized": (lambda: _single(_quantized(), _quantized()), RuntimeError, "output (torch.Tensor) has", _OLD),
    "gradient": (lambda: _single(x().requires_grad_(), x()), RuntimeError, "output requires a gradient", True),
    "outputs a tuple": (
        lambda: _list(tuple(_parts()), _parts()), TypeError, "output_tensor_list is tuple, not a list", False
    ),
    "inputs a tensor": (lambda: _list(_parts(), x(3, 2)), TypeError, "input_tensor_list is torch.Tensor, not", False),
    "no tensor in a list": (
        lambda: _list(_parts(), [*_parts(2), 3]), TypeError, "input_tensor_list[2] is int, not torch.Tensor", False
    ),
    "too few outputs": (lambda: _list(_parts(2), _parts()), RuntimeError, "output_tensor_list has 2 tensors", True),
    "too many inputs": (lambda: _list(_parts(), _parts(4)), RuntimeError, "input_tensor_list has 4 tensors", True),
    "dtypes in a list": (
        lambda: _list(_parts(), [*_parts(2), x(2, dtype=torch.int8)]), ValueError, "input_tensor_list[2] is int8", False
    ),
    "outputs overlap": (_overlapping_outputs, ValueError, "output_tensor_list[1] and output_tensor_list[0]", True),
    "gather too small": (lambda: _gather(x(5), x(2)), ValueError, "output_tensor (5,) has 20 bytes, but 3 ranks", True),
    "gather dtypes": (lambda: _gather(x(6, dtype=torch.int32), x(2)), ValueError, "output_tensor is int32", True),
    "gather no tensor": (lambda: _gather(x(6), 2), TypeError, "input_tensor is int, not torch.Tensor", False),
    "gather a tuple": (lambda: _gathers(tuple(_parts()), x(2)), TypeError, "tensor_list is tuple, not a list", False),
    "gather too few": (lambda: _gathers(_parts(2), x(2)), RuntimeError, "tensor_list has 2 tensors", True),
}  # fmt: skip


def good(dist: Any, at: Any, call: str = "single") -> None:
    """What the other ranks call meanwhile, and everyone afterwards."""
    if call == "list":
        return dist.all_to_all(_parts(), _parts(), group=at)
    if call == "gather":
        return dist.all_gather_into_tensor(x(2 * SIZE), x(2), group=at)
    rank, recv = dist.get_rank(at), torch.empty(2 * SIZE)
    dist.all_to_all_single(recv, torch.arange(2.0 * SIZE) + 100 * rank, group=at)
    assert recv.tolist() == [100 * peer + 2 * rank + i for peer in range(SIZE) for i in (0, 1)]
    return None


def refuse(comm: a2a.Communicator, way: str, name: str) -> str | None:
    """The message of the error, which is checked on the rank."""
    at = group(comm, way, SIZE)
    if comm.rank >= SIZE:
        return None
    dist = calls(way)
    make, kind, words, _ = MISTAKES[name]
    call = "gather" if name.startswith("gather") else "list" if "_list" in words or "document" in name else "single"
    try:
        if comm.rank == BAD:
            make()(dist, at)
        else:
            good(dist, at, call)
    except a2a.Error as error:
        wanted = (a2a.InvalidArgumentError, kind) if comm.rank == BAD else (a2a.MismatchError,)
        assert all(isinstance(error, one) for one in wanted), repr(error)
        text = str(error)
    else:
        text = "nothing was raised"
    good(dist, at)
    return text


@pytest.mark.parametrize("name", MISTAKES)
def test_mistake(ranks: Pool, peer: str, name: str) -> None:
    if peer != "a2a":
        pytest.skip("ends the process on Gloo, or hangs")
    words, reaches_backend = MISTAKES[name][2:]
    for way in WAYS:
        if way == "backend" and not reaches_backend:
            continue
        texts = ranks.run(refuse, way, name)[:SIZE]
        assert f"rank {BAD}: " in texts[BAD] and words in texts[BAD], f"{way}: {texts}"
        for at in range(SIZE):
            assert at == BAD or (f"rank {BAD}" in texts[at] and words in texts[at]), f"{way}: {texts}"


def disagree(comm: a2a.Communicator, way: str, name: str) -> str | None:
    at = group(comm, way, 2)
    if comm.rank >= 2:
        return None
    dist = calls(way)
    first = comm.rank == 0
    different: dict[str, Callable[[], Any]] = {
        "rows": lambda: dist.all_to_all_single(
            x(5 if first else 4), x(4), [2, 3] if first else [2, 2], [2, 2], group=at
        ),
        "dtype": lambda: dist.all_to_all_single(
            x(4, dtype=torch.float32 if first else torch.int32),
            x(4, dtype=torch.float32 if first else torch.int32),
            group=at,
        ),
        "call": lambda: (
            dist.all_gather_into_tensor(x(4), x(2), group=at) if first else dist.all_to_all_single(x(4), x(4), group=at)
        ),
        "list": lambda: dist.all_to_all([x(2), x(3 if first else 2)], [x(2), x(2)], group=at),
    }
    with pytest.raises(a2a.MismatchError) as caught:
        different[name]()
    calls(way).barrier(group=at)
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("rows", "rank 1 sends 2 elements to rank 0, which expects 3"),
        ("dtype", "rank 0 uses dtype float32, rank 1 uses dtype int32"),
        ("call", "rank 0 calls allgather, rank 1 calls alltoallv"),
        ("list", "rank 1 sends 2 elements to rank 0, which expects 3"),
    ],
)
def test_disagreement(ranks: Pool, peer: str, name: str, words: str) -> None:
    if peer != "a2a":
        pytest.skip("ends the process on Gloo, or reads stale data")
    for way in WAYS:
        texts = ranks.run(disagree, way, name)
        assert all(words in text for text in texts[:2]), f"{way}: {texts}"
        assert texts[2:] == [None] * (RANKS - 2)


def gradients_off(comm: a2a.Communicator, size: int) -> float | None:
    at = group(comm, "functions", size)
    if comm.rank >= size:
        return None
    parameter = torch.zeros(size, requires_grad=True)
    saved = torch.ones(size, requires_grad=True) * 1
    square = saved.square()
    with torch.no_grad():
        calls("functions").all_to_all_single(parameter, torch.full((size,), 7.0), group=at)
        calls("functions").all_to_all_single(saved, torch.full((size,), 7.0), group=at)
    # Autograd learns of the write: the value that the backward pass needs is gone.
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        square.sum().backward()
    return float(parameter.sum())


def test_parameters_can_be_written_without_gradients(ranks: Pool) -> None:
    assert ranks.run(gradients_off, 2)[:2] == [14.0, 14.0]
