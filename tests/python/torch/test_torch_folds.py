"""torch's ReduceOp: PREMUL_SUM is a sum of what the ranks have scaled, of floating and complex numbers only, and does
not meet a plain sum."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from rank_pool import Pool
from torch_worlds import WAYS, calls, group

import a2a

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.timeout(110)

SIZE = 2


def reductions(way: str, at: Any, dtype: Any) -> dict[str, Callable[[Any], Any]]:
    """Name -> the call with an op, which returns the output."""
    dist = calls(way)

    def x(elems: int = 2) -> Any:
        return torch.arange(1, elems + 1).to(dtype)

    def run(call: Callable[..., Any], out: Any, *arguments: Any, **options: Any) -> Any:
        call(out, *arguments, group=at, **options)
        return out

    return {
        "all_reduce": lambda op: run(dist.all_reduce, x(), op),
        "reduce": lambda op: run(dist.reduce, x(), op=op, group_dst=0),
        "reduce_scatter": lambda op: run(dist.reduce_scatter, x(), [x(), x()], op),
        "reduce_scatter_tensor": lambda op: run(dist.reduce_scatter_tensor, x(), x(4), op),
    }


def refused(comm: a2a.Communicator, way: str) -> list[str] | None:
    at = group(comm, way, SIZE)
    if comm.rank >= SIZE:
        return None
    half, plain = torch.distributed._make_nccl_premul_sum(0.5), torch.distributed.ReduceOp.SUM
    problems = []

    def expect(kind: type[a2a.Error], words: str, name: str, call: Callable[[Any], Any], op: Any) -> None:
        try:
            problems.append(f"{name}: {call(op)}")
        except kind as error:
            if words not in str(error) or "rank" not in str(error):
                problems.append(f"{name}: {error}")

    for dtype in (torch.int64, torch.uint8, torch.bool):
        words = f'op "premul_sum" is not defined for {str(dtype).removeprefix("torch.")}'
        for name, call in reductions(way, at, dtype).items():
            expect(a2a.InvalidArgumentError, words, f"{name} of {dtype}", call, half)
    for name, call in reductions(way, at, torch.float32).items():
        op = half if comm.rank == 0 else plain
        expect(a2a.MismatchError, "reduces with premul_sum", f"{name} with two operations", call, op)
    calls(way).barrier(group=at)
    return problems


def factors(comm: a2a.Communicator, way: str) -> dict[str, list[float]] | None:
    at = group(comm, way, SIZE)
    if comm.rank >= SIZE:
        return None
    op = torch.distributed._make_nccl_premul_sum([2.0, 0.5][comm.rank])
    return {name: call(op).tolist() for name, call in reductions(way, at, torch.float32).items()}


@pytest.mark.parametrize("way", WAYS)
def test_premul_sum_is_refused(ranks: Pool, way: str) -> None:
    assert ranks.run(refused, way)[:SIZE] == [[], []]


@pytest.mark.parametrize("way", WAYS)
def test_factors_may_differ(ranks: Pool, way: str) -> None:
    whole, rest = [2.5, 5.0], [7.5, 10.0]
    first, second = ranks.run(factors, way)[:SIZE]
    assert first == {"all_reduce": whole, "reduce": whole, "reduce_scatter": whole, "reduce_scatter_tensor": whole}
    assert second == {
        "all_reduce": whole, "reduce": [1.0, 2.0], "reduce_scatter": whole, "reduce_scatter_tensor": rest
    }  # fmt: skip
