"""all_to_all_axis: its values against the oracle, its derivatives, eager and compiled, its refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from rank_pool import Pool
from sample import with_full
from test_torch_nn import ends
from test_torch_strides import Strided
from torch_worlds import WAYS, group

import a2a
from a2a import testing

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.timeout(110)


def part_sizes(rng: np.random.Generator, size: int, most: int) -> list[int]:
    return [int(entries) for entries in rng.integers(0, most + 1, size)]


def case(seed: int, size: int, dims: int, equal: bool) -> Any:
    """(inputs of all ranks, split axis, concat axis, split sizes of each rank, concat sizes of each rank)."""
    rng = np.random.default_rng(seed)
    split, concat = (int(axis) for axis in rng.integers(0, dims, 2))
    shape = [int(entries) for entries in rng.integers(1, 4, dims)]
    if split != concat:
        to, from_ = ([2] * size, [3] * size) if equal else (part_sizes(rng, size, 3), part_sizes(rng, size, 3))
        shape[split] = sum(to)
        splits, concats = [to] * size, [from_] * size
        extents = from_
    else:
        matrix = np.full((size, size), 2) if equal else rng.integers(0, 4, (size, size))
        splits, concats = matrix.tolist(), matrix.T.tolist()
        extents = matrix.sum(1).tolist()
    inputs = []
    for rank in range(size):
        shape[concat] = extents[rank]
        inputs.append(rng.standard_normal(shape))
    return inputs, split, concat, splits, concats


def expected(inputs: Any, split: int, concat: int, splits: Any, concats: Any) -> list[Any]:
    results = []
    for rank in range(len(inputs)):
        ends = [np.cumsum(one)[:-1] for one in splits]
        results.append(
            np.concatenate([np.split(one, at, split)[rank] for one, at in zip(inputs, ends, strict=True)], concat)
        )
    return results


def values(comm: a2a.Communicator, way: str, size: int, dtype: str) -> None:
    from a2a.torch import nn

    at = group(comm, way, size)
    if comm.rank >= size:
        return
    for seed in range(24):
        equal = seed % 3 == 0
        inputs, split, concat, splits, concats = case(seed, size, 1 + seed % 4, equal)
        wanted = torch.as_tensor(expected(inputs, split, concat, splits, concats)[comm.rank]).to(getattr(torch, dtype))
        strided = Strided(8 * seed + comm.rank)
        x = strided.of(torch.as_tensor(inputs[comm.rank]).to(getattr(torch, dtype)))
        sizes = [splits[comm.rank], concats[comm.rank]] if not equal else [None, None]
        axes = (split - x.ndim, concat) if seed % 2 else (split, concat - x.ndim)
        y = nn.all_to_all_axis(x, *axes, at, *sizes)
        assert y.is_contiguous() and torch.equal(y, wanted), (seed, x.shape, split, concat, sizes)
        if equal:
            assert torch.equal(nn.shard_dim_alltoall(x, concat, split, at), wanted)
        strided.check()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("size", [3, *with_full([1, 2, 4])])
def test_values(ranks: Pool, way: str, size: int) -> None:
    for dtype in ("float32", "bfloat16", "complex128"):
        ranks.run(values, way, size, dtype)


def without_concat_sizes(comm: a2a.Communicator) -> list[tuple[int, ...]] | None:
    from a2a.torch import nn

    at = group(comm, "functions", 3)
    if comm.rank >= 3:
        return None
    to = [1, 3, 0]
    x = torch.arange(4 * 5.0).reshape(4, 5)
    other = nn.all_to_all_axis(x, 0, 1, at, to)
    assert torch.equal(other, torch.cat([x.split(to)[comm.rank]] * 3, 1))
    same = nn.all_to_all_axis(x, 0, 0, at, to)
    assert torch.equal(same, torch.cat([x.split(to)[comm.rank]] * 3))
    empty = nn.all_to_all_axis(x[:0], -2, 1, at)
    return [tuple(one.shape) for one in (other, same, empty)]


@pytest.mark.smoke
def test_without_concat_sizes_as_much_comes_from_everybody(ranks: Pool) -> None:
    assert ranks.run(without_concat_sizes)[:3] == [
        [(1, 15), (3, 5), (0, 15)], [(3, 15), (9, 5), (0, 15)], [(0, 15), (0, 5), (0, 15)]
    ]  # fmt: skip


def sent_as_it_is(comm: a2a.Communicator) -> None:
    """No packed copy of a strided input is made, nor of a strided gradient."""
    from a2a.torch import nn
    from torch.utils._python_dispatch import TorchDispatchMode

    class Seen(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.names: list[str] = []

        def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.names.append(str(op))
            return op(*args, **(kwargs or {}))

    at = group(comm, "functions", 2)
    if comm.rank >= 2:
        return
    x = torch.randn(4, 6, 8, requires_grad=True)
    with Seen() as seen:
        y = nn.all_to_all_axis(x.permute(2, 0, 1)[::2], 2, 0, at)
        y.permute(1, 2, 0).backward(torch.ones(()).expand(4, 3, 8))
    assert sum("a2a.all_to_all_axis" in name for name in seen.names) == 2
    # One copy: of what the slice [::2] leaves out of the gradient, which is autograd's.
    copies = [name for name in seen.names if "clone" in name or "contiguous" in name]
    assert copies == [], seen.names


def test_a_strided_input_is_sent_as_it_is(ranks: Pool) -> None:
    ranks.run(sent_as_it_is)


# ---- derivatives -----------------------------------------------------------------------------------------------------


def derivatives(comm: a2a.Communicator, way: str, kind: str, dtype: str, seed: int) -> bool | None:
    """As in test_nn: every rank holds the whole world's input."""
    from a2a.torch import nn

    size = 2
    at, ours = group(comm, way, size), group(comm, "communicator", size)
    if comm.rank >= size:
        return None
    replicate, share = ends(ours)
    inputs, split, concat, splits, concats = case(seed, size, 3, seed % 2 == 0)
    shape = inputs[comm.rank].shape
    most = max(one.size for one in inputs)
    room = max(one.size for one in expected(inputs, split, concat, splits, concats))
    sizes = [None, None] if seed % 2 == 0 else [splits[comm.rank], concats[comm.rank]]

    def world(whole: Any) -> Any:
        mine = replicate(whole)[: int(np.prod(shape))].reshape(shape)
        received = nn.all_to_all_axis((mine * mine).transpose(0, 2).transpose(0, 2), split, concat, at, *sizes)
        flat = (received * received).transpose(0, 1).reshape(-1)
        return share(torch.cat([flat, flat.new_zeros(room - len(flat))]))

    torch.manual_seed(0)
    whole = torch.randn(size, most, dtype=getattr(torch, dtype), requires_grad=True)
    return bool(getattr(torch.autograd, kind)(world, (whole,)))


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("kind", ["gradcheck", "gradgradcheck"])
def test_derivatives(ranks: Pool, kind: str, seed: int) -> None:
    ways = [("functions", "float64"), ("communicator", "float64"), ("backend", "complex128")]
    for way, dtype in ways if kind == "gradcheck" else ways[:1]:
        assert ranks.run(derivatives, way, kind, dtype, seed)[:2] == [True, True], (way, dtype)


def lazily_conjugated(comm: a2a.Communicator) -> None:
    from a2a.torch import nn

    at = group(comm, "functions", 2)
    if comm.rank >= 2:
        return
    z = torch.full((2, 2), 1 + 2j, requires_grad=True)
    y = nn.all_to_all_axis(z.conj(), 0, 1, at)
    assert (y == 1 - 2j).all()
    (y * 1j).imag.sum().backward()
    assert (z.grad == 1).all()


def test_what_is_lazily_conjugated_travels_as_it_reads(ranks: Pool) -> None:
    ranks.run(lazily_conjugated)


# ---- torch.compile ---------------------------------------------------------------------------------------------------


def compiled(comm: a2a.Communicator, way: str, dynamic: bool) -> list[float] | None:
    from a2a.torch import nn

    at = group(comm, way, 2)
    if comm.rank >= 2:
        return None

    def layer(x: Any, heads: list[int], rows: list[int]) -> Any:
        whole = nn.all_to_all_axis(x.transpose(0, 1), 0, 1, at, heads, rows)
        back = nn.all_to_all_axis(whole.softmax(1), 1, 0, at, rows, heads).transpose(0, 1)
        even = nn.all_to_all_axis(x, 2, 0, at, concat_sizes=rows)
        return (back * x).sum() + even.square().sum()

    torch._dynamo.reset()
    results = []
    for function in (layer, torch.compile(layer, fullgraph=True, backend="aot_eager", dynamic=dynamic)):
        for k in (2, 3):
            torch.manual_seed(10 * k + comm.rank)
            rows = [k, k] if k == 2 else [k, k + 1]
            x = torch.randn(rows[comm.rank], 5, 4, dtype=torch.float64, requires_grad=True)
            loss = function(x, [2, 3], rows)
            loss.backward()
            results += [float(loss), float(x.grad.abs().sum())]
    return results


@pytest.mark.parametrize(("way", "dynamic"), [("functions", True), ("communicator", False), ("backend", False)])
def test_compiled_without_a_break(ranks: Pool, way: str, dynamic: bool) -> None:
    for results in ranks.run(compiled, way, dynamic)[:2]:
        assert results[:4] == pytest.approx(results[4:], rel=1e-12)


def check_operator(comm: a2a.Communicator) -> None:
    from a2a.torch import nn  # noqa: F401, registers it

    at = group(comm, "functions", 2)
    if comm.rank >= 2:
        return
    x = torch.randn(4, 3, 5).transpose(0, 2).requires_grad_()
    for arguments in ((x, 2, 0, [], []), (x, -1, 1, [3, 1], [3, 3])):
        torch.library.opcheck(torch.ops.a2a.all_to_all_axis.default, (*arguments, at.group_name))


def test_the_operator_is_what_it_says(ranks: Pool) -> None:
    ranks.run(check_operator)


# ---- refusals --------------------------------------------------------------------------------------------------------

REFUSED = {
    "no tensor": (dict(input=[1.0]), "ArgumentTypeError", "input is list, not torch.Tensor; pass torch.as_tensor(x)"),
    "no integer": (dict(split_axis="heads"), "ArgumentTypeError", "split_axis is 'heads'"),
    "no dimension": (dict(split_axis=3), "AxisError", "split_axis is 3, but input (4, 6) has 2 dimensions"),
    "no dimension below": (dict(concat_axis=-3), "AxisError", "concat_axis is -3"),
    "indivisible": (dict(input=torch.ones(3, 6)), "SplitError", "has 3 entries along axis 0, which 2 ranks cannot"),
    "sum": (dict(split_sizes=[1, 2]), "SplitError", "split_sizes [1, 2] sums to 3, but input (4, 6) has 4 entries"),
    "length": (dict(split_sizes=[1, 1, 2]), "SplitError", "split_sizes is [1, 1, 2]; pass a size"),
    "negative": (dict(concat_sizes=[6, -6]), "SplitError", "concat_sizes is [6, -6]; pass a size"),
    "own part": (dict(concat_sizes=[5, 6]), "SplitError", "concat_sizes[0] is 5, but of input (4, 6) this rank"),
    "words": (dict(split_sizes="ab"), "ArgumentTypeError", "split_sizes is str"),
    "meta": (dict(input=torch.ones(4, 6, device="meta")), "TensorError", "input is a meta tensor"),
}


def refused(comm: a2a.Communicator, name: str) -> tuple[list[str], str] | None:
    from a2a.torch import nn

    at = group(comm, "functions", 2)
    if comm.rank >= 2:
        return None
    given: dict[str, Any] = dict(input=torch.ones(4, 6), split_axis=0, concat_axis=1, group=at)
    with pytest.raises(a2a.Error) as caught:
        nn.all_to_all_axis(**(given | REFUSED[name][0] if comm.rank == 0 else given))
    assert nn.all_to_all_axis(**given).shape == (2, 12)
    return [kind.__name__ for kind in type(caught.value).__mro__], str(caught.value)


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(ranks: Pool, name: str) -> None:
    _, kind, words = REFUSED[name]
    (kinds, text), (peer, told) = ranks.run(refused, name)[:2]
    assert kinds[0] == kind and words in text
    assert {"AxisError": "IndexError", "SplitError": "RuntimeError"}.get(kind, "ValueError") in kinds
    assert peer[0] == "MismatchError" and words[:20] in told


def disagree(comm: a2a.Communicator) -> str | None:
    from a2a.torch import nn

    at = group(comm, "functions", 2)
    if comm.rank >= 2:
        return None
    with pytest.raises(a2a.MismatchError) as caught:
        nn.all_to_all_axis(torch.ones(4, 6 + 2 * comm.rank), 0, 1, at)
    return str(caught.value)


def test_ranks_that_disagree_are_told(ranks: Pool) -> None:
    for text in ranks.run(disagree)[:2]:
        assert "rank 0" in text and "rank 1" in text


# ---- what Torch itself makes of it -----------------------------------------------------------------------------------


def through_dtensor(comm: a2a.Communicator) -> None:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor, Shard, distribute_tensor

    at = group(comm, "backend", 4)
    if comm.rank >= 4:
        return
    mesh = DeviceMesh.from_group(at, "cpu")
    for shape in ((8, 4, 12), (7, 5, 9)):
        full = torch.arange(float(np.prod(shape))).reshape(shape)
        for first in range(3):
            for second in range(3):
                x = distribute_tensor(full, mesh, [Shard(first)])
                x = DTensor.from_local(
                    x.to_local().mT.contiguous().mT, mesh, [Shard(first)], shape=full.shape, stride=full.stride()
                )
                x.requires_grad_()
                y = x.redistribute(mesh, [Shard(second)])
                assert torch.equal(y.full_tensor(), full)
                (y * y).sum().full_tensor().backward()
                assert torch.equal(x.grad.full_tensor(), 2 * full)


def test_dtensor_changes_dimensions(ranks: Pool) -> None:
    ranks.run(through_dtensor)


def by_torchs_operator(comm: a2a.Communicator) -> None:
    from a2a.torch import nn

    at = group(comm, "backend", 2)
    if comm.rank >= 2:
        return
    x = torch.arange(4 * 6.0).reshape(6, 4).t() + 100 * comm.rank
    for gather in range(2):
        for shard in range(2):
            theirs = torch.ops._dtensor.shard_dim_alltoall(x, gather, shard, at.group_name)
            assert torch.equal(theirs, nn.shard_dim_alltoall(x, gather, shard, at))


def test_torchs_operator_is_the_same(ranks: Pool) -> None:
    ranks.run(by_torchs_operator)


def packed(comm: a2a.Communicator, size: int) -> None:
    """What devices and Gloo between hosts get is the same."""
    from a2a.torch import nn
    from a2a.torch._calls import axes

    at = group(comm, "functions", size)
    if comm.rank >= size:
        return
    for seed in range(12):
        inputs, split, concat, splits, concats = case(seed, size, 3, False)
        x, sizes = torch.as_tensor(inputs[comm.rank]), (splits[comm.rank], concats[comm.rank])
        division = axes._checked(x.shape, (split, concat), sizes, (comm.rank, size))
        wanted = nn.all_to_all_axis(x, split, concat, at, *sizes)
        assert torch.equal(axes._packed(x.mT.contiguous().mT, division, at), wanted)


def test_by_way_of_packed_copies(ranks: Pool) -> None:
    ranks.run(packed, 3)


def profiled(comm: a2a.Communicator) -> list[str] | None:
    from a2a.torch import nn

    at = group(comm, "functions", 2)
    if comm.rank >= 2:
        return None
    with torch.profiler.profile() as profile:
        nn.all_to_all_axis(torch.ones(4, 6), 0, 1, at)
    return [event.name for event in profile.events() if event.name.startswith("a2a:a")]


def test_the_profiler_sees_it(ranks: Pool) -> None:
    assert ranks.run(profiled)[:2] == [["a2a:all_to_all_axis"]] * 2


def test_the_oracle_of_equal_parts() -> None:
    inputs, split, concat, splits, concats = case(0, 3, 1, True)
    for ours, theirs in zip(
        expected(inputs, split, concat, splits, concats), testing.alltoall(inputs, split, concat), strict=True
    ):
        assert (ours == theirs).all()
