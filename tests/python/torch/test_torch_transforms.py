"""torch.func and forward-mode derivatives through a2a.torch.nn, against one process that holds the tensors of all ranks
and permutes them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from rank_pool import Pool
from torch_worlds import group

import a2a
from a2a import testing

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.timeout(110)

SIZE = 2
COUNTS = np.array([[1, 2], [0, 3]])  # rows from rank to rank
LOCAL = np.array([[1, 0, 2, 0], [0, 1, 1, 1]])  # rows for (rank, expert)
Tensors = list[Any]


def exchanges(rank: int, at: Any) -> dict[str, tuple[Callable[[Any], Any], Callable[[Tensors], Tensors]]]:
    """Name -> (the call on three rows of two columns, what all ranks get for the tensors of all)."""
    from a2a.torch import nn

    to, from_ = COUNTS[rank].tolist(), COUNTS[:, rank].tolist()
    arriving = testing.global_counts(LOCAL)
    rows = int(arriving[rank].sum())

    def exchanged(xs: Tensors) -> Tensors:
        parts = [x.split(counts) for x, counts in zip(xs, COUNTS.tolist(), strict=True)]
        return [torch.cat([parts[p][r] for p in range(SIZE)]) for r in range(SIZE)]

    def scattered(xs: Tensors) -> Tensors:
        parts = [x.split(counts) for x, counts in zip(xs, LOCAL.tolist(), strict=True)]
        order = list(itertools.product(range(2), range(SIZE)))
        return [torch.cat([parts[p][2 * r + e] for e, p in order]) for r in range(SIZE)]

    def single(x: Any) -> Any:
        return nn.all_to_all_single(x.new_empty(sum(from_), 2), x, from_, to, at)

    def several(x: Any) -> Any:
        return torch.cat(nn.all_to_all([x.new_empty(rows, 2) for rows in from_], list(x.split(to)), at))

    def gathered(x: Any) -> Any:
        return nn.all_gather_into_tensor(x.new_empty(6, 2), x, at)

    def axis(x: Any) -> Any:
        return nn.all_to_all_axis(x, -1, 0, at)

    def there_and_back(x: Any) -> Any:
        out = nn.global_scatter(x, LOCAL[rank], arriving[rank], at)
        assert out.shape[0] == rows
        return nn.global_gather(out * out, LOCAL[rank], arriving[rank], at)

    return {
        "all_to_all_single": (single, exchanged),
        "all_to_all": (several, exchanged),
        "all_to_all_axis": (axis, lambda xs: [torch.cat([x[:, r : r + 1] for x in xs]) for r in range(SIZE)]),
        "all_gather": (
            lambda x: nn.all_gather_into_tensor(x.new_empty(6, 2), x, at),
            lambda xs: [torch.cat(xs)] * SIZE,
        ),
        "global_scatter": (lambda x: nn.global_scatter(x, LOCAL[rank], arriving[rank], at), scattered),
        "global_gather": (there_and_back, lambda xs: [x * x for x in xs]),
    }


def cubes(outputs: Any) -> Any:
    return (outputs**3).sum()


def dual(call: Callable[[Any], Any], x: Any, tangent: Any) -> Any:
    from torch.autograd import forward_ad

    with forward_ad.dual_level():
        return forward_ad.unpack_dual(call(forward_ad.make_dual(x, tangent))).tangent


def graph_of_dual(call: Callable[[Any], Any], x: Any, tangent: Any) -> Any:
    """The gradient of a tangent."""
    x = x.clone().requires_grad_()
    return torch.autograd.grad(cubes(dual(call, x, tangent)), x)[0]


def second(call: Callable[[Any], Any], x: Any) -> Any:
    x = x.clone().requires_grad_()
    (first,) = torch.autograd.grad(cubes(call(x)), x, create_graph=True)
    return torch.autograd.grad(cubes(first), x)[0]


def pulled(call: Callable[[Any], Any], x: Any) -> Any:
    out, pull = torch.func.vjp(call, x)
    return pull(out**2)[0]


# What a rank computes, by its call, input and tangent.
TRANSFORMS: dict[str, Callable[[Callable[[Any], Any], Any, Any], Any]] = {
    "jvp": lambda call, x, t: torch.func.jvp(call, (x,), (t,))[1],
    "forward_ad": dual,
    "linearize": lambda call, x, t: torch.func.linearize(call, x)[1](t),
    "grad": lambda call, x, t: torch.func.grad(lambda x: cubes(call(x)))(x),
    "vjp": lambda call, x, t: pulled(call, x),
    "forward over reverse": lambda call, x, t: torch.func.jvp(torch.func.grad(lambda x: cubes(call(x))), (x,), (t,))[1],
    "reverse over forward": lambda call, x, t: torch.func.grad(lambda x: cubes(torch.func.jvp(call, (x,), (t,))[1]))(x),
    "graph of a tangent": graph_of_dual,
    "second": lambda call, x, t: second(call, x),
    "vmap": lambda call, x, t: torch.func.vmap(call)(torch.stack([x, t])),
    "vmap of a later dimension": lambda call, x, t: torch.func.vmap(call, 1, 1)(torch.stack([x, t], 1)),
    "vmap of grad": lambda call, x, t: torch.func.vmap(torch.func.grad(lambda x: cubes(call(x))))(torch.stack([x, t])),
    "vmap of jvp": lambda call, x, t: torch.func.vmap(lambda t: torch.func.jvp(call, (x,), (t,))[1])(
        torch.stack([t, x])
    ),
    "jacfwd": lambda call, x, t: torch.func.jacfwd(call)(x),
    "jacrev": lambda call, x, t: torch.func.jacrev(call)(x),
    "hessian": lambda call, x, t: torch.func.hessian(lambda x: cubes(call(x)))(x),
}


def expected(what: str, world: Callable[[Any], list[Any]], xs: Any, ts: Any) -> list[Any]:
    """The same for all ranks in one process. ``world``: the stacked inputs of all -> the outputs of all. Losses of all
    ranks are added up, as peers do with gradients."""

    def losses(xs: Any) -> Any:
        return sum(cubes(out) for out in world(xs))

    def tangents(xs: Any, ts: Any) -> list[Any]:
        return list(torch.func.jvp(lambda xs: tuple(world(xs)), (xs,), (ts,))[1])

    if what in ("jvp", "forward_ad", "linearize"):
        return tangents(xs, ts)
    if what == "grad":
        return list(torch.func.grad(losses)(xs))
    if what == "vjp":
        outs, pull = torch.func.vjp(lambda xs: tuple(world(xs)), xs)
        return list(pull(tuple(out**2 for out in outs))[0])
    if what == "forward over reverse":
        return list(torch.func.jvp(torch.func.grad(losses), (xs,), (ts,))[1])
    if what in ("reverse over forward", "graph of a tangent"):
        return list(torch.func.grad(lambda xs: sum(cubes(out) for out in tangents(xs, ts)))(xs))
    if what == "second":
        return list(torch.func.grad(lambda xs: cubes(torch.func.grad(losses)(xs)))(xs))
    if what == "vmap":
        return [torch.stack(pair) for pair in zip(world(xs), world(ts), strict=True)]
    if what == "vmap of a later dimension":
        return [torch.stack(pair, 1) for pair in zip(world(xs), world(ts), strict=True)]
    if what == "vmap of grad":
        grads = [torch.func.grad(losses)(one) for one in (xs, ts)]
        return [torch.stack([grads[0][rank], grads[1][rank]]) for rank in range(SIZE)]
    if what == "vmap of jvp":
        both = [tangents(xs, one) for one in (ts, xs)]
        return [torch.stack(pair) for pair in zip(*both, strict=True)]
    # All ranks take the same entry of the basis at a time.
    entries = list(np.ndindex(*xs.shape[1:]))
    basis = [
        torch.zeros_like(xs).index_put((torch.arange(SIZE), *map(torch.tensor, at)), torch.tensor(1.0).to(xs))
        for at in entries
    ]
    if what == "jacfwd":
        columns = [tangents(xs, one) for one in basis]
    elif what == "hessian":
        columns = [list(torch.func.jvp(torch.func.grad(losses), (xs,), (one,))[1]) for one in basis]
    else:
        outs, pull = torch.func.vjp(lambda xs: tuple(world(xs)), xs)
        rows = []
        for at in np.ndindex(*outs[0].shape):
            ones = [torch.zeros_like(out) for out in outs]
            for one in ones:
                one[at] = 1.0
            rows.append(pull(tuple(ones))[0])
        return [
            torch.stack([row[rank] for row in rows]).reshape(*outs[rank].shape, *xs.shape[1:]) for rank in range(SIZE)
        ]
    return [
        torch.stack([column[rank] for column in columns], -1).reshape(*columns[0][rank].shape, *xs.shape[1:])
        for rank in range(SIZE)
    ]


def check(comm: a2a.Communicator, way: str) -> list[str] | None:
    at = group(comm, way, SIZE)
    if comm.rank >= SIZE:
        return None
    problems = []
    torch.manual_seed(3)
    xs, ts = torch.randn(2, SIZE, 3, 2, dtype=torch.float64)
    for (name, (call, world)), what in itertools.product(exchanges(comm.rank, at).items(), TRANSFORMS):
        if what == "jacrev" and len({out.shape for out in world(list(xs))}) > 1:
            continue  # ranks have bases of different sizes
        wanted = expected(what, lambda xs: world([x**2 for x in xs]), xs, ts)  # noqa: B023
        try:
            got = TRANSFORMS[what](lambda x: call(x**2), xs[comm.rank], ts[comm.rank])  # noqa: B023
            if not torch.allclose(got, wanted[comm.rank]):
                problems.append(f"{what} of {name}: {got}, but {wanted[comm.rank]} is right")
        except Exception as error:
            problems.append(f"{what} of {name}: {error!r}")
            break
    return problems


@pytest.mark.parametrize("way", ["functions", "communicator", "backend"])
def test_every_derivative(ranks: Pool, way: str) -> None:
    for problems in ranks.run(check, way)[:SIZE]:
        assert problems == []


def refusals(comm: a2a.Communicator) -> list[str] | None:
    from a2a.torch import nn

    at = group(comm, "backend", SIZE)
    if comm.rank >= SIZE:
        return None
    x, said = torch.ones(4), []
    for call in (
        lambda: torch.func.vmap(lambda x: nn.all_to_all_single(torch.empty(4), x, group=at))(torch.ones(3, 4)),
        lambda: torch.func.vmap(lambda x: nn.all_to_all_axis(x, 0, 1, at))(torch.ones(3, 4)),
        lambda: torch.func.grad(lambda x: torch.ops.a2a.all_to_all_single(x, [4], [], [], at.group_name).sum())(x),
    ):
        try:
            said.append(str(call()))  # type: ignore[no-untyped-call]
        except Exception as error:
            said.append(f"{type(error).__name__}: {error}")
        torch.distributed.barrier(group=at)
    return said


def test_what_is_refused(ranks: Pool) -> None:
    for output, axis, operator in ranks.run(refusals)[:SIZE]:
        assert output.startswith("TensorError: ") and "make it with new_empty() of an input" in output
        assert axis.startswith("AxisError: ") and "concat_axis is 1, but input (4,) has 1 dimensions" in axis
        assert operator.startswith("NotImplementedError: torch.func does not reach into the operator")
