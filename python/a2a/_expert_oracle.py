"""The oracle of a2a.moe: part of a2a.testing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Placement = Sequence[int | Sequence[int]]


@dataclass
class Dispatched:
    """The result of dispatch() on one rank; see a2a.moe.Routed."""

    x: Array
    counts: Array
    topk_idx: Array
    topk_weights: Array
    source: Array
    place: Array
    """[rows]: the column of top-k for which a row came; -1 for padding, and in the layout "rank"."""
    dropped: Array = field(default_factory=lambda: np.empty((0, 2), np.int64))


@dataclass
class _Row:
    source: int
    token: int
    k: int
    expert: int  # local


def dispatch(
    xs: Sequence[Array],
    topks: Sequence[Array],
    num_experts: int,
    topk_weights: Sequence[Array] | None = None,
    expert_to_rank: Placement | None = None,
    layout: str = "expert",
    align: int = 1,
    hosts: Sequence[int] | None = None,
    active: Sequence[int] | None = None,
) -> list[Dispatched]:
    """Return the result of every rank when ``xs[r][t]`` of every rank r goes to the experts ``topks[r][t]``. ``hosts``:
    of each rank the number of its host; None: all on one. ``active``: the ranks that take part; None: all. Lists of
    expert_to_rank may be empty."""
    ranks = len(xs)
    weights = [np.zeros(topk.shape, np.float32) for topk in topks] if topk_weights is None else topk_weights
    chosen: list[list[_Row]] = [[] for _ in range(ranks)]
    lost: list[list[tuple[int, int]]] = [[] for _ in range(ranks)]
    live = range(ranks) if active is None else active
    for source, topk in enumerate(topks):
        for rank, row in _rows_of(source, topk, _homes(ranks, num_experts, expert_to_rank), hosts or [0] * ranks, live):
            if rank is None:
                lost[source].append((row.token, row.k))
            else:
                chosen[rank].append(row)
    local = [len([home for homes in _homes(ranks, num_experts, expert_to_rank) for home in homes if home[0] == rank])
             for rank in range(ranks)]  # fmt: skip
    made = _by_expert if layout == "expert" else _by_rank
    results = [made(xs, topks, weights, chosen[rank], local[rank], align) for rank in range(ranks)]
    for result, its in zip(results, lost, strict=True):
        result.dropped = np.array(its, np.int64).reshape(-1, 2)
    return results


def combine(rows: Sequence[Array], routed: Sequence[Dispatched], tokens: Sequence[int], top_k: int,
            weighted: bool = True, biases: Sequence[Sequence[Array]] = ()) -> list[Array]:  # fmt: skip
    """Return the sums of each rank's tokens. ``rows[r]`` has one row for each routed row of rank r."""
    results = []
    for source, count in enumerate(tokens):
        terms: list[list[tuple[int, int, Array]]] = [[] for _ in range(count)]  # by (place in top-k, rank)
        for rank, there in enumerate(routed):
            for i, (of, token) in enumerate(there.source):
                if of == source:
                    row = _wide(rows[rank][i])
                    if weighted and there.place[i] >= 0:
                        row = row.dtype.type(there.topk_weights[i]) * row
                    terms[token].append((int(there.place[i]), rank, row))
        like = rows[source]
        result = np.zeros((count, *like.shape[1:]), like.dtype)
        for token, added in enumerate(terms):
            total: Array | None = None
            for _, _, row in sorted(added, key=lambda term: term[:2]):
                total = row if total is None else total + row
            if total is None:
                total = np.zeros_like(_wide(result[token]))
            for bias in biases:
                total = total + _wide(bias[source][token])
            result[token] = total.astype(like.dtype)
        results.append(result)
    return results


def _wide(row: Array) -> Array:
    return row if row.dtype == np.float64 else row.astype(np.float32)


def _homes(ranks: int, num_experts: int, expert_to_rank: Placement | None) -> list[list[tuple[int, int]]]:
    """Return for each expert the ranks that have it, and its number there."""
    if expert_to_rank is None:
        expert_to_rank = [expert // (num_experts // ranks) for expert in range(num_experts)]
    used = [0] * ranks
    homes: list[list[tuple[int, int]]] = []
    for entry in expert_to_rank:
        homes.append([])
        for rank in [entry] if isinstance(entry, int) else entry:
            homes[-1].append((rank, used[rank]))
            used[rank] += 1
    return homes


def _rows_of(source: int, topk: Array, homes: list[list[tuple[int, int]]], hosts: Sequence[int],
             active: Sequence[int]) -> Iterator[tuple[int | None, _Row]]:  # fmt: skip
    """Yield each choice of a rank, with the rank to which it goes, None where it is dropped."""
    turns: dict[int, int] = {}
    before = [rank for rank in range(source) if hosts[rank] == hosts[source]]
    for token, experts in enumerate(topk):
        for k, expert in enumerate(experts):
            if expert < 0:
                continue
            live = [home for home in homes[expert] if home[0] in active and source in active]
            near = [home for home in live if hosts[home[0]] == hosts[source]]
            if not live:
                yield None, _Row(source, token, k, -1)
                continue
            turn = turns.setdefault(expert, len(before) if near else source)
            turns[expert] += 1
            rank, local = (near or live)[turn % len(near or live)]
            yield rank, _Row(source, token, k, local)


def _by_expert(xs: Sequence[Array], topks: Sequence[Array], weights: Sequence[Array], rows: list[_Row], experts: int,
               align: int) -> Dispatched:  # fmt: skip
    order: list[_Row | None] = []
    counts = np.zeros(experts, np.int64)
    for expert in range(experts):
        group = [row for row in rows if row.expert == expert]
        counts[expert] = len(group)
        order += [*group, *[None] * (-len(group) % align)]
    made = Dispatched(
        np.zeros((len(order), *xs[0].shape[1:]), xs[0].dtype),
        counts,
        np.full(len(order), -1, topks[0].dtype),
        np.zeros(len(order), np.float32),
        np.full((len(order), 2), -1, topks[0].dtype),
        np.full(len(order), -1),
    )
    for i, row in enumerate(order):
        if row is not None:
            made.x[i] = xs[row.source][row.token]
            made.topk_idx[i], made.place[i] = row.expert, row.k
            made.topk_weights[i] = weights[row.source][row.token, row.k]
            made.source[i] = row.source, row.token
    return made


def _by_rank(xs: Sequence[Array], topks: Sequence[Array], weights: Sequence[Array], rows: list[_Row], experts: int,
             align: int) -> Dispatched:  # fmt: skip
    order = sorted({(row.source, row.token) for row in rows})
    top_k = topks[0].shape[1]
    made = Dispatched(
        np.zeros((len(order), *xs[0].shape[1:]), xs[0].dtype),
        np.array([sum(row.expert == expert for row in rows) for expert in range(experts)], np.int64),
        np.full((len(order), top_k), -1, topks[0].dtype),
        np.zeros((len(order), top_k), np.float32),
        np.array(order, topks[0].dtype).reshape(len(order), 2),
        np.full(len(order), -1),
    )
    for i, (source, token) in enumerate(order):
        made.x[i] = xs[source][token]
    for row in rows:
        i = order.index((row.source, row.token))
        made.topk_idx[i, row.k] = row.expert
        made.topk_weights[i, row.k] = weights[row.source][row.token, row.k]
    return made
