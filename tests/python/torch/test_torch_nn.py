"""Derivatives of the exchanges, eager and compiled.

gradcheck varies an input and looks at an output of one process. So every rank holds the whole world's input and output:
``replicate`` and ``share`` are the two ends, each the other's derivative."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from rank_pool import Pool
from sample import with_full
from torch_worlds import group

import a2a
from a2a import testing

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.timeout(110)

SIZE = 2
ROWS = 5  # at most, on each rank
COUNTS = np.array([[1, 2], [0, 1]])  # rows from rank to rank
LOCAL = np.array([[1, 1, 1, 0], [2, 1, 0, 1]])  # rows for (rank, expert)


def ends(comm: a2a.Communicator) -> tuple[Any, Any]:
    """(replicate, share): the first turns the world's tensor, the same on every rank, into this rank's part; the second
    puts the parts of all ranks together. All parts have the same size."""

    def gathered(part: Any) -> Any:
        whole = torch.empty(comm.size, *part.shape, dtype=part.dtype)
        comm.allgather(part.detach().contiguous(), whole)
        return whole

    class Replicate(torch.autograd.Function):
        @staticmethod
        def forward(_: Any, whole: Any) -> Any:
            return whole[comm.rank].clone()

        @staticmethod
        def backward(_: Any, grad: Any) -> Any:
            return Share.apply(grad)

    class Share(torch.autograd.Function):
        @staticmethod
        def forward(_: Any, part: Any) -> Any:
            return gathered(part)

        @staticmethod
        def backward(_: Any, grad: Any) -> Any:
            return Replicate.apply(grad)

    return Replicate.apply, Share.apply


def padded(tensor: Any, rows: int) -> Any:
    return torch.cat([tensor, tensor.new_zeros(rows - len(tensor), *tensor.shape[1:])])


def exchanges(rank: int, at: Any) -> dict[str, tuple[int, Callable[[Any], Any]]]:
    """Name -> (rows of the input on this rank, the call). Rows are single numbers."""
    from a2a.torch import nn

    to, from_ = COUNTS[rank].tolist(), COUNTS[:, rank].tolist()
    local, arriving = LOCAL.tolist()[rank], testing.global_counts(LOCAL).tolist()[rank]

    def single(x: Any) -> Any:
        return nn.all_to_all_single(x.new_empty(sum(from_), 1), x, from_, to, at)

    def several(x: Any) -> Any:
        return torch.cat(nn.all_to_all([x.new_empty(rows, 1) for rows in from_], list(x.split(to)), at))

    def gather(x: Any) -> Any:
        return nn.all_gather_into_tensor(x.new_empty(SIZE, 2, 1), x, at).reshape(-1, 1)

    return {
        "all_to_all_single": (sum(to), single),
        "all_to_all": (sum(to), several),
        "all_gather_into_tensor": (2, gather),
        "global_scatter": (sum(local), lambda x: nn.global_scatter(x, local, arriving, at)),
        "global_gather": (
            sum(arriving),
            lambda x: nn.global_gather(x, torch.tensor(local), torch.tensor(arriving), at),
        ),
    }


def check(comm: a2a.Communicator, way: str, name: str, kind: str, dtype: str) -> bool | None:
    at, ours = group(comm, way, SIZE), group(comm, "communicator", SIZE)
    if comm.rank >= SIZE:
        return None
    replicate, share = ends(ours)
    rows, call = exchanges(comm.rank, at)[name]

    def world(whole: Any) -> Any:
        received = call(replicate(whole)[:rows])
        return share(padded(received * received, ROWS))

    torch.manual_seed(0)
    whole = torch.randn(SIZE, ROWS, 1, dtype=getattr(torch, dtype), requires_grad=True)
    return bool(getattr(torch.autograd, kind)(world, (whole,)))


NAMES = ("all_to_all_single", "all_to_all", "all_gather_into_tensor", "global_scatter", "global_gather")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", ["gradcheck", "gradgradcheck"])
def test_derivatives(ranks: Pool, name: str, kind: str) -> None:
    for way, dtype in (("functions", "float64"), ("communicator", "float64"), ("backend", "complex128")):
        if way != "functions" and kind == "gradgradcheck":
            continue
        assert ranks.run(check, way, name, kind, dtype)[:SIZE] == [True] * SIZE, (way, dtype)


def paddles_example(comm: a2a.Communicator) -> tuple[Any, Any] | None:
    from a2a.torch import nn

    at = group(comm, "functions", 2)
    if comm.rank >= 2:
        return None
    x = torch.arange(1.0, 11).reshape(5, 2).requires_grad_()
    counts = [[2, 1, 1, 1], [1, 1, 2, 1]][comm.rank]
    a = nn.global_scatter(x, counts, counts, at)
    (a * a).sum().backward()
    return a.tolist(), x.grad.tolist()


def test_paddles_documented_example(ranks: Pool) -> None:
    grads = [[2, 4], [6, 8], [10, 12], [14, 16], [18, 20]]
    assert ranks.run(paddles_example)[:2] == [
        ([[1, 2], [3, 4], [1, 2], [5, 6], [3, 4]], grads),
        ([[7, 8], [5, 6], [7, 8], [9, 10], [9, 10]], grads),
    ]


def outputs_too(comm: a2a.Communicator) -> bool | None:
    from a2a.torch import nn

    at = group(comm, "functions", 2)
    if comm.rank >= 2:
        return None
    x, output = torch.arange(4.0, requires_grad=True), torch.empty(4)
    strided = nn.all_to_all_single(output, (torch.stack([x, x], 1) * 1.0)[:, 0], group=at)
    assert strided.requires_grad and not output.requires_grad
    lists = [torch.empty(2), torch.empty(2)]
    several = nn.all_to_all(lists, list(x.chunk(2)), at)
    gathered = torch.empty(2, 4)
    whole = nn.functional.all_gather_single(gathered, x, at)
    # Gradients are often expanded or lazily conjugated.
    (strided.sum() + several[0].sum() + whole.sum()).backward()
    z = torch.ones(2, dtype=torch.complex64, requires_grad=True)
    received = nn.all_to_all_single(torch.empty(2, dtype=torch.complex64), z.conj(), group=at)
    (received * 1j).imag.sum().backward()
    return all(torch.equal(a, b) for a, b in [(strided, output), (several[0], lists[0]), (whole, gathered)])


def test_outputs_get_the_values_too(ranks: Pool) -> None:
    assert ranks.run(outputs_too)[:2] == [True, True]


def compile_all(comm: a2a.Communicator, way: str, dynamic: bool) -> list[float] | None:
    import a2a.torch as dist
    from a2a.torch import nn

    at = group(comm, way, 2)
    if comm.rank >= 2:
        return None

    def layer(x: Any, to: list[int], from_: list[int], local: Any, arriving: Any) -> Any:
        a = nn.all_to_all_single(x.new_empty(sum(from_), 3), x, from_, to, at)
        b = nn.all_gather_into_tensor(x.new_empty(2, 2, 3), x[:2], at)
        c = torch.cat(nn.all_to_all([x.new_empty(rows, 3) for rows in from_], list(x.split(to)), at))
        d = nn.global_gather(nn.global_scatter(x, local, arriving, at) * 2, local, arriving, at)
        return (a * c).sum() + (b * b).sum() + (d * x).sum()

    def plain(x: Any) -> Any:  # the drop-in calls, which write what they are given
        out, whole, parts = torch.empty_like(x), x.new_empty(2, *x.shape), [x.new_empty(2, 3) for _ in range(2)]
        dist.all_to_all_single(out, x, group=at)
        dist.all_gather_into_tensor(whole, out, group=at)
        dist.all_to_all(parts, list((out + 1).chunk(2)), group=at)
        return whole.sum() + sum(part.sum() for part in parts) + out[0].sum()

    torch._dynamo.reset()
    results = []
    for function in (layer, torch.compile(layer, fullgraph=True, backend="aot_eager", dynamic=dynamic)):
        for k in (1, 2, 3):
            torch.manual_seed(10 * k + comm.rank)
            to, from_ = ([k, k + 1], [k, k]) if comm.rank == 0 else ([k, k], [k + 1, k])
            x = torch.randn(sum(to), 3, dtype=torch.float64, requires_grad=True)
            loss = function(x, to, from_, torch.tensor(to), torch.tensor(from_))
            loss.backward()
            results += [float(loss), float(x.grad.abs().sum())]
    with torch.no_grad():
        for function in (plain, torch.compile(plain, fullgraph=True, backend="aot_eager")):
            results.append(float(function(torch.arange(12.0).reshape(4, 3))))
    return results


@pytest.mark.full
@pytest.mark.parametrize("dynamic", [True, *with_full([False])])
def test_compiled_without_a_break(ranks: Pool, dynamic: bool) -> None:
    for way in ("functions", "communicator", "backend"):
        for results in ranks.run(compile_all, way, dynamic)[:2]:
            assert results[:6] == results[6:12]
            assert results[12] == results[13]


def check_operators(comm: a2a.Communicator) -> None:
    from a2a.torch import nn  # noqa: F401, registers them

    at = group(comm, "functions", 2)
    if comm.rank >= 2:
        return
    x, name, counts = torch.randn(4, 3, requires_grad=True), at.group_name, torch.tensor([1, 1, 1, 1])
    operators = torch.ops.a2a
    # The checks that trace do so on every rank alike, and exchange whenever they run the real operator.
    for operator, arguments in (
        (operators.all_to_all_single, (x, [4, 3], [2, 2], [2, 2], name)),
        (operators.all_to_all, (list(x.chunk(2)), [torch.empty(2, 3), torch.empty(2, 3)], name)),
        (operators.all_gather, (x, [2, 4, 3], 2, name)),
        (operators.global_scatter, (x, counts, counts, -1, name)),
        (operators.global_gather, (x, counts, counts, -1, name)),
        (operators.all_to_all_single_, (torch.empty(4, 3), x.detach(), [], [], name)),
        (operators.all_gather_, (torch.empty(8, 3), x.detach(), name)),
    ):
        torch.library.opcheck(operator.default, arguments)


def test_operators_are_what_they_say(ranks: Pool) -> None:
    ranks.run(check_operators)


def errors(comm: a2a.Communicator) -> str | None:
    from a2a.torch import nn

    at = group(comm, "functions", 2)
    if comm.rank >= 2:
        return None
    splits = [1, 2] if comm.rank == 0 else None
    with pytest.raises(a2a.Error) as caught:
        nn.all_to_all_single(torch.empty(4), torch.ones(4), splits, group=at)
    return f"{type(caught.value).__name__}: {caught.value}"


def test_errors_are_those_of_the_calls(ranks: Pool) -> None:
    texts = ranks.run(errors)[:2]
    assert texts[0].startswith("SplitError: rank 0: output_split_sizes [1, 2] sums to 3")
    assert texts[1].startswith("MismatchError: ") and "rank 0: output_split_sizes" in texts[1]
