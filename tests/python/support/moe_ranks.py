"""What ranks do in test_moe.py. Every rank derives all ranks' tokens, and so what to expect, from a few numbers."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from exchange_ranks import with_thresholds
from strides_ranks import Tensors, dtype_of, same

import a2a
from a2a import frameworks, moe, testing
from a2a._core import host_of_ranks

Array = np.ndarray[Any, Any]
SUMMED = ("float32", "float16", "bfloat16", "float64")
MOVED = (*SUMMED, "int8", "float8_e4m3fn", "complex64", "int32")


class Case:
    """The tokens of all ranks, and where they want to go."""

    def __init__(self, n: int, seed: int, most: int, dtypes: tuple[str, ...] = SUMMED) -> None:
        rng = self.rng = np.random.default_rng(seed)
        self.n, self.dtype = n, dtype_of(str(rng.choice(dtypes)))
        self.expert_to_rank = self._placement()
        self.experts = len(self.expert_to_rank) if self.expert_to_rank is not None else n * int(rng.integers(1, 4))
        self.top_k = int(rng.integers(1, min(self.experts, 8) + 1))
        self.hidden = int(np.exp(rng.uniform(0, np.log(most))))
        self.tokens = [int(rng.integers(0, 12)) * int(rng.integers(0, 4)) for _ in range(n)]
        self.xs = [self.random(count, self.hidden) for count in self.tokens]
        self.index = np.dtype(rng.choice(["int32", "int64"]))
        self.topks = [self._choose(count, float(rng.choice([0, 0.3, 1], p=[0.5, 0.4, 0.1]))) for count in self.tokens]
        self.weights = [rng.random((count, self.top_k), np.float32) for count in self.tokens]
        self.layout = str(rng.choice(["expert", "expert", "rank"]))
        self.align = int(rng.choice([1, 1, 4, 16])) if self.layout == "expert" else 1

    def random(self, *shape: int) -> Array:
        if self.dtype.name not in SUMMED:
            return testing.random_array(self.rng, shape, self.dtype)
        made: Array = self.rng.standard_normal(shape).astype(self.dtype)
        return made

    def _placement(self) -> list[Any] | None:
        kind = self.rng.choice(["blocks", "any", "replicas"])
        if kind == "blocks":
            return None
        experts = int(self.rng.integers(1, 3 * self.n + 1))
        if kind == "any":
            return [int(rank) for rank in self.rng.integers(0, self.n, experts)]
        most = min(self.n, 3)
        return [
            [int(rank) for rank in self.rng.permutation(self.n)[: self.rng.integers(1, most + 1)]]
            for _ in range(experts)
        ]

    def _choose(self, tokens: int, nobody: float) -> Array:
        chosen = np.empty((tokens, self.top_k), self.index)
        for row in chosen:
            row[:] = self.rng.permutation(self.experts)[: self.top_k]
        chosen[self.rng.random(chosen.shape) < nobody] = -1
        return chosen

    def dispatched(self, comm: a2a.Communicator, active: list[int] | None = None) -> list[testing.Dispatched]:
        return testing.dispatch(
            self.xs, self.topks, self.experts, self.weights, self.expert_to_rank, self.layout, self.align,
            host_of_ranks(comm), active,
        )  # fmt: skip


def check_routed(routed: moe.Routed, expected: testing.Dispatched, what: str) -> None:
    same(routed.x, expected.x, f"{what}: x")
    same(routed.counts, expected.counts, f"{what}: counts")
    same(routed.topk_idx, expected.topk_idx, f"{what}: topk_idx")
    same(routed.topk_weights, expected.topk_weights, f"{what}: topk_weights")
    same(routed.source, expected.source, f"{what}: source")


def cases(comm: a2a.Communicator, seeds: list[int], most: int) -> None:
    """Random cases: dispatch, then combine of other rows, called, left to themselves, and planned."""
    for seed in seeds:
        case, rank = Case(comm.size, seed, most), comm.rank
        tensors = Tensors(comm, np.random.default_rng((seed, rank)))
        ep = moe.ExpertParallel(comm, case.experts, case.expert_to_rank)
        expected = case.dispatched(comm)
        how = str(case.rng.choice(["call", "async", "plan"]))
        what = f"seed {seed}, {case.layout}, align {case.align}, {how}"
        x, topk, weights = tensors.input(case.xs[rank]), tensors.input(case.topks[rank]), case.weights[rank]
        routed = dispatch(ep, how, x, topk, weights, case)
        check_routed(routed, expected[rank], what)

        rows = [case.random(len(there.x), case.hidden) for there in expected]
        biases = [[case.random(count, case.hidden) for count in case.tokens] for _ in range(case.rng.integers(0, 3))]
        weighted = case.layout == "expert" and bool(case.rng.random() < 0.7)
        sums = testing.combine(rows, expected, case.tokens, case.top_k, weighted, biases)[rank]
        options = {
            "weights": "routed" if weighted else None,
            "bias": [bias[rank] for bias in biases] or None,
        }
        if weighted and case.rng.random() < 0.3:
            options["weights"] = np.array(routed.topk_weights)
        y = ep.combine(tensors.input(rows[rank]), routed, async_op=how == "async", **options)
        if how == "async":
            y.wait()
            y = y.result
        same(y, sums, f"{what}: combine")
        tensors.check(what)


def dispatch(ep: moe.ExpertParallel, how: str, x: Any, topk: Any, weights: Any, case: Case) -> moe.Routed:
    options: dict[str, Any] = {"layout": case.layout, "align": case.align}
    if how == "call":
        routed: moe.Routed = ep.dispatch(x, topk, weights, **options)
        return routed
    if how == "async":
        work = ep.dispatch(x, topk, weights, async_op=True, **options)
        routed = work.result
        routed.wait()
        assert all(routed.ready(rank) for rank in range(case.n))
        return routed
    routing = ep.plan(topk, weights, **options)
    routing.dispatch(x)
    return routing.dispatch(x)


def scales(comm: a2a.Communicator) -> None:
    """Quantised tokens: any dtype of one, with scales of another."""
    for seed in range(12):
        case, rank = Case(comm.size, seed, 300, MOVED), comm.rank
        width = int(case.rng.integers(0, 5))
        dtype = dtype_of(str(case.rng.choice(["float32", "uint8"])))
        given = [testing.random_array(case.rng, (count, width), dtype) for count in case.tokens]
        ep = moe.ExpertParallel(comm, case.experts, case.expert_to_rank)
        routed = ep.dispatch(
            case.xs[rank],
            case.topks[rank],
            case.weights[rank],
            scales=given[rank],
            layout=case.layout,
            align=case.align,
        )
        check_routed(routed, case.dispatched(comm)[rank], f"seed {seed}")
        of_scales = testing.dispatch(
            given, case.topks, case.experts, case.weights, case.expert_to_rank, case.layout, case.align,
            host_of_ranks(comm),
        )  # fmt: skip
        same(routed.scales, of_scales[rank].x, f"seed {seed}: scales")


def large(comm: a2a.Communicator, path: str, tokens: int, hidden: int) -> None:
    """Rows of many bytes, from private and from shared memory."""
    with with_thresholds(comm, path) as group:
        n, rank = group.size, group.rank
        rng = np.random.default_rng(5)
        topks = [np.array([rng.permutation(4 * n)[:3] for _ in range(tokens)]) for _ in range(n)]
        weights = [rng.random((tokens, 3), np.float32) for _ in range(n)]
        xs = [rng.standard_normal((tokens, hidden)).astype(ml_dtypes.bfloat16) for _ in range(n)]
        x = np.asarray(group.empty((tokens, hidden), "bfloat16", like="numpy")) if path == "direct" else xs[rank].copy()
        x[...] = xs[rank]
        ep = moe.ExpertParallel(group, 4 * n)
        expected = testing.dispatch(xs, topks, 4 * n, weights)
        routed = ep.dispatch(x, topks[rank], weights[rank])
        check_routed(routed, expected[rank], path)
        rows = [there.x for there in expected]
        sums = testing.combine(rows, expected, [tokens] * n, 3)
        same(ep.combine(routed.x, routed), sums[rank], path)


def cycle(comm: a2a.Communicator, path: str, tokens: int, hidden: int) -> None:
    """Each rank wants its rows back from the next rank first, and then from the one after that: so many that no chunks
    hold them. Whoever waits for one peer must not keep another waiting."""
    with with_thresholds(comm, path) as group:
        n, rank = group.size, group.rank
        topk = np.repeat([(rank + 1) % n, (rank + 2) % n], [tokens, tokens])[:, None]
        x = np.arange(2 * tokens * hidden, dtype=np.float32).reshape(2 * tokens, hidden) + rank
        gaps = np.zeros((2 * tokens, hidden, 2), np.float32)
        gaps[:, :, 0] = x
        routing = moe.ExpertParallel(group, n).plan(topk)
        for given in (x, gaps[:, :, 0]):
            routed = routing.dispatch(given)
            same(routing.combine(routed.x, weights=None), x, path)
            work = routing.combine(routed.x, weights=None, async_op=True)
            work.wait()
            same(work.result, x, path)


def edges(comm: a2a.Communicator) -> None:
    """No tokens anywhere, no choices, rows of no bytes, read-only inputs, dtypes that have no sum."""
    n, rank = comm.size, comm.rank
    ep = moe.ExpertParallel(comm, 2 * n)
    for tokens, top_k, hidden, dtype in (
        (0, 2, 8, "f4"),
        (5, 0, 8, "f4"),
        (5, 2, 0, "f4"),
        (7, 2, 3, "?"),
        (7, 2, 3, "c16"),
    ):
        x = np.ones((tokens if rank % 3 else 0, hidden), dtype)
        x.flags.writeable = False
        topk = (np.arange(len(x))[:, None] + 3 * np.arange(top_k) + rank) % (2 * n)
        routed = ep.dispatch(x, topk, np.ones(topk.shape, np.float32))
        assert routed.x.dtype == x.dtype and (routed.x == 1).all()
        if dtype == "f4":
            same(ep.combine(routed.x, routed), top_k * x, f"{tokens}, {top_k}, {hidden}")
            continue
        try:
            ep.combine(routed.x, routed)
        except a2a.InvalidArgumentError as error:
            assert "not defined" in str(error), error
        else:
            raise AssertionError(f"{dtype} was summed")


def as_they_come(comm: a2a.Communicator) -> list[int]:
    """Experts, each once, whose rows are there."""
    case = next(case for case in (Case(comm.size, seed, 2000) for seed in range(99)) if case.layout == "expert")
    ep, rank = moe.ExpertParallel(comm, case.experts, case.expert_to_rank), comm.rank
    routed = ep.dispatch(case.xs[rank], case.topks[rank], case.weights[rank], align=case.align, async_op=True).result
    expected = case.dispatched(comm)[rank]
    seen = []
    for expert in routed.as_ready():
        begin, count = routed.offsets[expert], routed.counts[expert]
        same(routed.x[begin : begin + count], expected.x[begin : begin + count], f"expert {expert}")
        seen.append(expert)
    assert sorted(seen) == list(range(ep.num_local_experts))
    return seen


def mixed(comm: a2a.Communicator, names: list[str]) -> None:
    """Each rank's tensors are those of a framework of its own."""
    framework, rank = frameworks.load(names[comm.rank % len(names)]), comm.rank
    for seed in range(4):
        case = Case(comm.size, seed, 60, ("float32",))
        case.topks = [topk.astype(np.int32) for topk in case.topks]
        ep = moe.ExpertParallel(comm, case.experts, case.expert_to_rank)

        def given(array: Array) -> Any:
            return framework.tensor(
                framework.make(np.ascontiguousarray(array).reshape(-1).view(np.uint8)), 0, array.dtype.name, array.shape
            )

        def taken(tensor: Any, like: Array) -> Array:
            return np.asarray(framework.read(tensor)).reshape(-1).view(like.dtype).reshape(like.shape)

        expected = case.dispatched(comm)
        routed = ep.dispatch(
            given(case.xs[rank]), given(case.topks[rank]), given(case.weights[rank]), layout=case.layout,
            align=case.align,
        )  # fmt: skip
        for name in ("x", "topk_idx", "topk_weights", "source"):
            tensor, wanted = getattr(routed, name), getattr(expected[rank], name)
            assert type(tensor) is type(given(case.xs[rank])), f"{name} is {type(tensor)}"
            if wanted.size:
                same(taken(tensor, wanted), wanted, f"seed {seed}: {name}")
        weighted = case.layout == "expert"
        rows = [there.x for there in expected]
        sums = testing.combine(rows, expected, case.tokens, case.top_k, weighted)[rank]
        y = ep.combine(routed.x, routed)
        if sums.size:
            same(taken(y, sums), sums, f"seed {seed}: combine")


BAD: dict[str, Any] = {
    "an expert that does not exist": lambda x, topk, weights: ((x, np.full_like(topk, 99), weights), {}),
    "a negative expert": lambda x, topk, weights: ((x, np.full_like(topk, -2), weights), {}),
    "an expert twice": lambda x, topk, weights: ((x, np.zeros_like(topk), weights), {}),
    "topk_idx of one dimension": lambda x, topk, weights: ((x, topk[0], weights), {}),
    "topk_idx of floats": lambda x, topk, weights: ((x, topk.astype("f4"), weights), {}),
    "weights of another shape": lambda x, topk, weights: ((x, topk, weights[:, :1]), {}),
    "weights of float64": lambda x, topk, weights: ((x, topk, weights.astype("f8")), {}),
    "fewer tokens than choices": lambda x, topk, weights: ((x[1:], topk, weights), {}),
    "another layout": lambda x, topk, weights: ((x, topk, weights), {"layout": "token"}),
    "align 0": lambda x, topk, weights: ((x, topk, weights), {"align": 0}),
    "an argument too many": lambda x, topk, weights: ((x, topk, weights), {"surprise": 1}),
    "no tensor": lambda x, topk, weights: (("tokens", topk, weights), {}),
}
UNLIKE: dict[str, Any] = {
    "hidden": lambda x, topk, weights: ((x[:, :3], topk, weights), {}),
    "dtype": lambda x, topk, weights: ((x.astype("f8"), topk, weights), {}),
    "top-k": lambda x, topk, weights: ((x, topk[:, :1], weights[:, :1]), {}),
    "weights": lambda x, topk, weights: ((x, topk, None), {}),
    "layout": lambda x, topk, weights: ((x, topk, weights), {"layout": "rank"}),
    "scales": lambda x, topk, weights: ((x, topk, weights), {"scales": x[:, :1]}),
}


def refusals(comm: a2a.Communicator) -> list[tuple[str, str, str]]:
    """What rank 0 does wrong, it says at once; its peers hear of it. All go on then."""
    x, topk = np.ones((4, 8), np.float32), np.tile(np.arange(2), (4, 1))
    weights = np.ones((4, 2), np.float32)
    ep = moe.ExpertParallel(comm, 2 * comm.size)
    ended = []

    def end(text: str, call: Any) -> None:
        try:
            call()
        except (a2a.Error, TypeError) as error:
            ended.append((text, type(error).__name__, str(error)))
        else:
            ended.append((text, "nothing", ""))
        routed = ep.dispatch(x, topk, weights)
        same(ep.combine(routed.x, routed, weights=None), 2 * x, f"after: {text}")

    for text, wrong in (BAD | UNLIKE).items():
        args, options = wrong(x, topk, weights) if comm.rank == 0 else ((x, topk, weights), {})
        end(text, lambda args=args, options=options: ep.dispatch(*args, **options))
    routed = ep.dispatch(x, topk, weights)
    rows = routed.x if comm.rank else routed.x[:-1]
    end("rows too few", lambda: ep.combine(rows, routed))
    end("combine of integers", lambda: ep.combine(routed.x.view("i4") if comm.rank == 0 else routed.x, routed))
    wide = np.ones((len(routed.x), 2), np.float32) if comm.rank == 0 else None
    end("weights of two dimensions", lambda: ep.combine(routed.x, routed, weights=wide))
    bias = np.ones((3, 8), np.float32) if comm.rank == 0 else None
    end("bias of another shape", lambda: ep.combine(routed.x, routed, bias=bias))
    return ended


def routings(comm: a2a.Communicator) -> None:
    """Rank 1 takes the routing of another step, with as many rows: every rank raises, and nothing is mixed up."""
    me, size = comm.rank, comm.size
    if size == 1:
        return
    experts = moe.ExpertParallel(comm, 2 * size)
    tokens = np.arange(2 * size, dtype=np.float32).reshape(-1, 1) + 100 * me
    choices = np.arange(2 * size).reshape(-1, 1)
    first, second = experts.plan(choices), experts.plan(choices[::-1].copy())
    routed, other = experts.dispatch(tokens, routing=first), experts.dispatch(tokens, routing=second)
    ours = second if me == 1 else first
    ones = np.ones(len(routed.x), np.float32)
    for call in (
        lambda: experts.dispatch(tokens, routing=ours),
        lambda: ours.dispatch(tokens, async_op=True).wait(),
        lambda: experts.combine(routed.x, ours),
        lambda: experts.combine(routed.x, other if me == 1 else routed, async_op=True).wait(),
        lambda: experts.combine(routed.x, ours, weights=ones),
        lambda: ours.core.give_back(ones),
    ):
        with pytest.raises(a2a.MismatchError, match="uses routing") as caught:
            call()
        assert str(first.number) in str(caught.value) and str(second.number) in str(caught.value)
    assert len({first.number, second.number, experts.plan(choices).number}) == 3
    same(experts.combine(routed.x, routed), tokens, "combine")
    same(experts.combine(other.x, other), tokens, "combine of the other")


def what_each_rank_has_alike(comm: a2a.Communicator) -> None:
    """Bytes agree, and the meaning differs on rank 1: every rank raises."""
    me, size = comm.rank, comm.size
    if size == 1:
        return
    experts = moe.ExpertParallel(comm, size)
    choices = np.arange(size).reshape(-1, 1)  # one token for each rank
    tokens, factors = np.ones((size, 2), np.float32), np.full((size, 1), 2, np.float32)
    routed = experts.dispatch(tokens, choices, factors)
    scales = np.ones((size, 1), np.int32 if me == 1 else np.float32)
    for call, said in (
        (lambda: experts.dispatch(tokens, routing=routed.routing, scales=scales), "dtype of scales"),
        (lambda: experts.combine(routed.x, routed, weights=None if me == 1 else "routed"), "multiplies by weights"),
    ):
        with pytest.raises(a2a.MismatchError, match=said) as caught:
            call()
        assert "rank 1" in str(caught.value) or me > 1
    assert experts.dispatch(tokens, routing=routed.routing, scales=scales.view("i4")).scales.dtype == "i4"
    same(experts.combine(routed.x, routed), 2 * tokens, "weighted")
    same(experts.combine(routed.x, routed, weights=None), tokens, "not weighted")
    some = experts.dispatch(tokens[: me > 0], choices[: me > 0], factors[: me > 0])  # rank 0 has no token, and a weight
    same(experts.combine(some.x, some), 2 * tokens[: me > 0], "of a rank without tokens")


def of_another_communicator(comm: a2a.Communicator) -> None:
    """Rank 0 passes a routing whose exchanges would run elsewhere."""
    me, other = comm.rank, comm.split(0)
    assert other is not None
    experts, elsewhere = moe.ExpertParallel(comm, comm.size), moe.ExpertParallel(other, comm.size)
    tokens, choices = np.ones((1, 1), np.float32), np.full((1, 1), me)
    ours, theirs = experts.plan(choices), elsewhere.plan(choices)
    mine = theirs if me == 0 else ours
    for call in (
        lambda: experts.dispatch(tokens, routing=mine),
        lambda: experts.combine(tokens, mine),
        lambda: experts.combine(tokens, None if me == 0 else ours),  # type: ignore[arg-type]
    ):
        with pytest.raises(a2a.InvalidArgumentError if me == 0 else a2a.MismatchError):
            call()
    same(experts.combine(experts.dispatch(tokens, routing=ours).x, ours), tokens, "afterwards")


def placements(comm: a2a.Communicator) -> None:
    """Experts that one rank cannot place: its peers hear of it in their next call."""
    size = comm.size
    tokens, choices = np.ones((1, 1), np.float32), np.zeros((1, 1), np.int64)
    for wrong in (2 * size + 1, "two", -size)[size == 1 :]:  # a single rank may have any number
        if comm.rank == 0:
            with pytest.raises(a2a.InvalidArgumentError):
                moe.ExpertParallel(comm, wrong)  # type: ignore[arg-type]
        else:
            with pytest.raises(a2a.MismatchError, match="num_experts"):
                moe.ExpertParallel(comm, 2 * size).dispatch(tokens, choices)
    routed = moe.ExpertParallel(comm, 2 * size).dispatch(tokens, choices)
    assert len(routed.x) == (size if comm.rank == 0 else 0)
