"""Mixture-of-experts traffic of models: their shapes, and the choices of their routers.

All values are drawn from (workload, seed, step) alone, so every rank can compute every rank's part. Expert e is on rank
``e // (experts // ranks)``.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = [
    "ROUTINGS",
    "WORKLOADS",
    "Workload",
    "dispatch_order",
    "expert_counts",
    "route",
    "router_logits",
    "top_k_experts",
    "workload",
]

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Workload:
    """One layer of a model on one rank."""

    id: str
    hidden: int
    experts: int
    top_k: int
    tokens: int
    """Per rank."""
    dtype: str = "bfloat16"
    groups: int = 1
    """Experts are chosen from the best ``group_limit`` of so many groups; 1: no such limit."""
    group_limit: int = 1

    @property
    def bytes_per_rank(self) -> int:
        """The bytes that one rank sends when every token goes to ``top_k`` experts."""
        return self.tokens * self.top_k * self.hidden * _ITEM_BYTES[self.dtype]

    def scaled(self, divisor: int) -> Workload:
        """Return the same layer with fewer tokens. Row size, experts and skew decide the code path, so they stay."""
        return replace(self, id=f"{self.id}/{divisor}", tokens=max(1, self.tokens // divisor))


_ITEM_BYTES = {"float8_e4m3fn": 1, "bfloat16": 2, "float16": 2, "float32": 4}

WORKLOADS = {
    entry.id: entry
    for entry in (
        Workload("mixtral-train", 4096, 8, 2, 4096),
        Workload("dsv3-train", 7168, 256, 8, 4096, groups=8, group_limit=4),
        Workload("dsv3-decode", 7168, 256, 8, 128, groups=8, group_limit=4),
        Workload("kimi-k2", 7168, 384, 8, 4096),
        Workload("kimi-k2-decode", 7168, 384, 8, 128),
        Workload("qwen3-235b", 4096, 128, 8, 4096),
        Workload("qwen3-235b-decode", 4096, 128, 8, 64),
        Workload("qwen3-30b", 2048, 128, 8, 4096),
        Workload("gptoss-120b", 2880, 128, 4, 4096),
        Workload("ernie45-300b", 8192, 64, 8, 4096),
        Workload("ernie45-300b-decode", 8192, 64, 8, 128),
        Workload("ernie45-21b", 2560, 64, 6, 4096),
    )
}


def workload(name: str) -> Workload:
    """Return a workload by its id; ``dsv3-train/16`` has a sixteenth of the tokens. Raises ValueError with the known
    ids."""
    base, slash, divisor = name.partition("/")
    if base not in WORKLOADS or (slash and not (divisor.isdecimal() and int(divisor) > 0)):
        raise ValueError(f"unknown workload {name!r}; there are {', '.join(WORKLOADS)}, each also with /2, /4, ...")
    return WORKLOADS[base].scaled(int(divisor)) if slash else WORKLOADS[base]


ROUTINGS = ("uniform", "zipf", "log-normal", "k_hot", "hot_rank", "loads")


def router_logits(
    routing: str,
    experts: int,
    rng: np.random.Generator,
    *,
    alpha: float = 1.2,
    sigma: float = 1.0,
    ratio: float = 4.0,
    ranks: int = 1,
    shuffle: bool = True,
    loads: Sequence[float] = (),
) -> FloatArray:
    """Return a router's logit for each expert: experts are drawn with probabilities proportional to exp(logit).

    ``uniform``: all are equal. ``zipf``: popularity falls with the power ``alpha`` of the place in the order of
    popularity. That order is shuffled over the experts, so that rank 0 does not hold all popular ones. ``log-normal``:
    normal logits of deviation ``sigma``. ``hot_rank``: the first of ``ranks`` ranks gets about ``ratio`` times the rows
    of another. ``loads``: explicit weights, one for each expert. ``k_hot`` is a mixture of two such distributions, see
    route()."""
    if routing in ("uniform", "k_hot"):
        return np.zeros(experts)
    if routing == "zipf":
        popularity = rng.permutation(experts) if shuffle else np.arange(experts)
        return np.asarray(-alpha * np.log(popularity + 1.0))
    if routing == "log-normal":
        return sigma * rng.standard_normal(experts)
    if routing == "hot_rank":
        return np.where(np.arange(experts) < experts // ranks, np.log(ratio), 0.0)
    if routing == "loads":
        if len(loads) != experts:
            raise ValueError(f"loads has {len(loads)} weights for {experts} experts")
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(np.asarray(loads, dtype=np.float64)))
    raise ValueError(f"unknown routing {routing!r}; there are {', '.join(ROUTINGS)}")


def top_k_experts(logits: FloatArray, tokens: int, top_k: int, rng: np.random.Generator) -> IntArray:
    """Return [tokens, top_k]: distinct experts of each token, best first. ``logits`` is [experts] or [tokens,
    experts]."""
    return _best(_scores(logits, tokens, rng), top_k)


def _scores(logits: FloatArray, tokens: int, rng: np.random.Generator) -> FloatArray:
    # The Gumbel trick: the k largest of logit + noise are a draw without replacement.
    scores: FloatArray = logits + rng.gumbel(size=(tokens, logits.shape[-1]))
    return scores


def _best(scores: FloatArray, top_k: int) -> IntArray:
    return np.argsort(-scores, axis=1, kind="stable")[:, :top_k].astype(np.int64)


def route(
    shape: Workload,
    ranks: int,
    *,
    routing: str = "uniform",
    seed: int = 0,
    step: int = 0,
    masked: float = 0.0,
    hot: int = 4,
    hot_fraction: float = 0.9,
    group_limited: bool = False,
    **parameters: Any,
) -> IntArray:
    """Return [ranks, tokens, top_k]: the experts of every token of every rank.

    ``masked``: each choice is -1 with this probability. ``k_hot``: with probability ``hot_fraction`` a token prefers
    ``hot`` experts, which are the same in all steps. ``group_limited`` keeps only the best groups of the workload for
    each token. ``parameters`` go to router_logits(). Which experts are popular depends on the seed, not on the step."""
    name = zlib.crc32(shape.id.encode())
    layer, rng = np.random.default_rng([name, seed]), np.random.default_rng([name, seed, step + 1])
    tokens = ranks * shape.tokens
    logits = router_logits(routing, shape.experts, layer, ranks=ranks, **parameters)
    if routing == "k_hot":
        popular = np.isin(np.arange(shape.experts), layer.permutation(shape.experts)[:hot])
        # The offset is so large that noise never puts another expert above a popular one; others are chosen when hot <
        # top_k.
        logits = np.where((rng.random((tokens, 1)) < hot_fraction) & ~popular, -1e3, 0.0)
    scores = _scores(logits, tokens, rng)
    if group_limited:
        scores = _keep_best_groups(scores, shape)
    choice = _best(scores, shape.top_k)
    if masked:
        choice[rng.random(choice.shape) < masked] = -1
    return choice.reshape(ranks, shape.tokens, shape.top_k)


def _keep_best_groups(scores: FloatArray, shape: Workload) -> FloatArray:
    # The score of a group is the sum of its two best experts.
    grouped = scores.reshape(len(scores), shape.groups, -1)
    best = np.sort(grouped, axis=2)[:, :, -2:].sum(axis=2)
    place = np.argsort(np.argsort(-best, axis=1), axis=1)
    return np.where((place < shape.group_limit)[:, :, None], grouped, -np.inf).reshape(scores.shape)


def expert_counts(choice: IntArray, experts: int) -> IntArray:
    """Return the rows for each expert from the choice [tokens, top_k] of one rank: the ``local_count`` of
    global_scatter, because expert ids ascend by (rank, expert of the rank). Masked choices do not count."""
    return np.bincount(choice[choice >= 0], minlength=experts).astype(np.int64)


def dispatch_order(choice: IntArray) -> IntArray:
    """Return the order in which one rank packs its token copies for global_scatter: positions in
    ``choice.reshape(-1)``, by expert and then by token; position // top_k is the token. Masked choices are left out."""
    flat = choice.reshape(-1)
    order = np.argsort(flat, kind="stable")
    return order[flat[order] >= 0]
