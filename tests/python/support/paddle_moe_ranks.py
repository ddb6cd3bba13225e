"""What ranks do in the tests of mixtures of experts with Paddle, and the dense computations that they are compared
with: one process that has all experts and the tokens of all ranks."""

from __future__ import annotations

import copy
import math
from typing import Any

import a2a.paddle as dist
import numpy as np
import paddle
from paddle import nn
from paddle.incubate.distributed.models.moe import ClipGradForMOEByGlobalNorm, MoELayer

import a2a

FEATURES, EACH = 6, 2  # experts on each rank

_groups: dict[int, Any] = {}


def group_of(n: int) -> Any:
    """A Paddle group of the first ``n`` ranks. Made once, by all ranks."""
    if n not in _groups:
        _groups[n] = dist.new_group(list(range(n)))
    return _groups[n]


def expert() -> Any:
    return nn.Sequential(nn.Linear(FEATURES, 8), nn.GELU(), nn.Linear(8, FEATURES))


def experts(n: int, seed: int = 7) -> list[Any]:
    """All experts of ``n`` ranks, alike on every rank."""
    paddle.seed(seed)
    return [expert() for _ in range(n * EACH)]


def own(layers: list[Any], rank: int) -> list[Any]:
    return copy.deepcopy(layers[rank * EACH : (rank + 1) * EACH])


def leaf(array: Any) -> Any:
    tensor = paddle.to_tensor(array)
    tensor.stop_gradient = False
    return tensor


def close(what: str, found: Any, wanted: Any, rtol: float = 1e-4, atol: float = 1e-5) -> None:
    """Of tensors or lists of them. A gradient of zeros may be None."""
    if isinstance(found, (list, tuple)):
        assert len(found) == len(wanted), what
        for at, pair in enumerate(zip(found, wanted, strict=True)):
            close(f"{what} {at}", *pair, rtol, atol)
        return
    arrays = [tensor if tensor is None else tensor.astype("float64").numpy() for tensor in (found, wanted)]
    shape = next(array.shape for array in arrays if array is not None)
    found, wanted = (np.zeros(shape) if array is None else array for array in arrays)
    np.testing.assert_allclose(found, wanted, rtol, atol, err_msg=what)


def gradients(layer: Any) -> list[Any]:
    return [parameter.grad for parameter in layer.parameters()]


# ---- Paddle's own layer ----------------------------------------------------------------------------------------------


def shapes(n: int) -> list[list[int]]:
    """Of the tokens of each rank."""
    return [[2 + rank % 2, 5 + rank, FEATURES] for rank in range(n)]


def inputs(n: int) -> list[Any]:
    return [np.random.default_rng(rank).standard_normal(shape, np.float32) for rank, shape in enumerate(shapes(n))]


def choose(kind: str, gate: Any, x: Any, seed: int) -> tuple[Any, Any, Any]:
    """What a gate of Paddle computes before it looks at capacities: values, experts, and a number for chance."""
    paddle.seed(seed)
    score = gate(x)
    if kind == "switch":
        score = nn.functional.softmax(score + paddle.rand(score.shape) * 0.2 + 0.9)
        return *paddle.topk(score, 1), None
    value, choice = paddle.topk(score, 2, sorted=False)
    return value, choice, paddle.rand([x.shape[0]]) if kind == "gshard" else None


def prune(kind: str, n: int, values: list[Any], choices: list[Any], chances: list[Any]) -> list[Any]:
    """The experts that the gates leave: each takes tokens up to the capacity of its rank, from rank after rank."""
    pruned = [choice.numpy().copy() for choice in choices]
    room = [math.ceil(1.2 * len(pruned[e // EACH])) if kind != "naive" else 10**9 for e in range(n * EACH)]
    for rank, choice in enumerate(pruned):
        for token, k in np.ndindex(*choice.shape):
            room[choice[token, k]] -= 1
            if room[choice[token, k]] < 0:
                choice[token, k] = -1
        if chances[rank] is not None:
            choice[2 * values[rank].numpy()[:, 1] < chances[rank].numpy(), 1] = -1
    return pruned


def mix(value: Any, choice: Any, x: Any, layers: list[Any]) -> Any:
    """All experts see all tokens, and the choice is a mask."""
    masks = [paddle.to_tensor((choice == e).astype(np.float32)) for e in range(len(layers))]
    parts = [(value * mask).sum(1, keepdim=True) * layer(x) for mask, layer in zip(masks, layers, strict=True)]
    return sum(parts[1:], parts[0])


def dense(kind: str, gates: list[Any], xs: list[Any], layers: list[Any], seed: int = 0) -> list[Any]:
    rows = [x.reshape([-1, FEATURES]) for x in xs]
    chosen = [choose(kind, *pair, seed + rank) for rank, pair in enumerate(zip(gates, rows, strict=True))]
    values, choices, chances = (list(column) for column in zip(*chosen, strict=True))
    pruned = prune(kind, len(xs), values, choices, chances)
    mixed = [mix(*of_rank, layers) for of_rank in zip(values, pruned, rows, strict=True)]
    return [y.reshape(x.shape) for y, x in zip(mixed, xs, strict=True)]


def made(kind: str, n: int, rank: int, **options: Any) -> tuple[Any, list[Any]]:
    """Paddle's layer on this rank, and all experts. Its gate prefers the first experts, so that some overflow."""
    layers = experts(n)
    config = {"type": kind, "top_k": 1 if kind == "switch" else 2}
    group = group_of(n) if n > 1 else None
    layer = MoELayer(FEATURES, nn.LayerList(own(layers, rank)), config, moe_group=group, **options)
    paddle.seed(11)
    linear = layer.gate.gate
    linear.weight.set_value(paddle.randn(linear.weight.shape))
    linear.bias.set_value(paddle.linspace(3, 0, n * EACH))
    return layer, layers


def incubate(comm: a2a.Communicator, kind: str, n: int, recomputes: bool) -> int:
    """Results and gradients of one step. Returns how many choices the gates have dropped."""
    group_of(n)
    if comm.rank >= n:
        return 0
    rank = comm.rank
    options = {"recompute_interval": 1, "recompute_ctx": {"mp_group": None, "offload": False, "partition": False}}
    layer, layers = made(kind, n, rank, **(options if recomputes else {}))
    factors = [np.random.default_rng(50 + at).standard_normal(shape, np.float32) for at, shape in enumerate(shapes(n))]
    gates, xs = [copy.deepcopy(layer.gate.gate) for _ in range(n)], [leaf(array) for array in inputs(n)]
    wanted = dense(kind, gates, xs, layers)
    sum((y * paddle.to_tensor(factor)).sum() for y, factor in zip(wanted, factors, strict=True)).backward()

    x = leaf(inputs(n)[rank])
    paddle.seed(rank)
    y = layer(x * 1.0)  # it reshapes what it gets in place, which Paddle refuses for a leaf
    (y * paddle.to_tensor(factors[rank])).sum().backward()
    close("y", y, wanted[rank])
    close("gradient of x", x.grad, xs[rank].grad)
    close("gradients of the gate", gradients(layer.gate), gradients(gates[rank]))
    close("gradients of the experts", gradients(layer.experts), gradients(nn.LayerList(layers[rank * EACH :][:EACH])))
    chosen = [choose(kind, gates[at], xs[at].reshape([-1, FEATURES]), at) for at in range(n)]
    return sum(int((choice < 0).sum()) for choice in prune(kind, n, *map(list, zip(*chosen, strict=True))))


def incubate_trains(comm: a2a.Communicator, kind: str) -> list[float]:
    """Steps with the loss of the gate's own, clipped over all ranks, against those of one process."""
    n, rank = comm.size, comm.rank
    layer, layers = made(kind, n, rank)
    targets = [np.tanh(array[..., ::-1]) for array in inputs(n)]
    gate, everything = copy.deepcopy(layer.gate.gate), nn.LayerList(copy.deepcopy(layers))
    mine = {parameter.name for parameter in layer.experts.parameters()}
    clip = ClipGradForMOEByGlobalNorm(0.5, lambda parameter: parameter.name in mine, group_of(n))
    ours = paddle.optimizer.SGD(0.2, parameters=layer.parameters(), grad_clip=clip)
    theirs = paddle.optimizer.SGD(
        0.2,
        parameters=[*everything.parameters(), *gate.parameters()],
        grad_clip=nn.ClipGradByGlobalNorm(0.5),
    )
    losses = []
    for step in range(6):
        paddle.seed(100 * step + rank)
        x = paddle.to_tensor(inputs(n)[rank])
        loss = nn.functional.mse_loss(layer(x), paddle.to_tensor(targets[rank]))
        assert (layer.gate.get_loss() is None) is (kind == "naive")
        loss.backward()
        for parameter in layer.gate.parameters():
            paddle.distributed.all_reduce(parameter.grad, group=group_of(n))
        xs = [paddle.to_tensor(array) for array in inputs(n)]
        ys = dense(kind, [gate] * n, xs, list(everything), 100 * step)
        parts = [nn.functional.mse_loss(y, paddle.to_tensor(target)) for y, target in zip(ys, targets, strict=True)]
        sum(parts[1:], parts[0]).backward()
        close(f"loss of step {step}", loss, parts[rank], rtol=1e-3)
        losses.append(float(loss))
        for optimizer in (ours, theirs):
            optimizer.step()
            optimizer.clear_grad()
    return losses


def incubate_without_rows(comm: a2a.Communicator) -> None:
    """No token wants the experts of rank 0, and tokens need no gradient: its part of the backward pass takes place."""
    n, rank = comm.size, comm.rank
    layer, layers = made("naive", n, rank)
    away = np.where(np.arange(n * EACH) < EACH, -1e3, 0).astype(np.float32)
    layer.gate.gate.bias.set_value(paddle.to_tensor(away))
    xs, gates = [paddle.to_tensor(array) for array in inputs(n)], [copy.deepcopy(layer.gate.gate) for _ in range(n)]
    for _ in range(2):
        layer(xs[rank] * 1.0).sum().backward()
        sum(y.sum() for y in dense("naive", gates, xs, layers)).backward()
    close("gradients of the gate", gradients(layer.gate), gradients(gates[rank]))
    close("gradients of the experts", gradients(layer.experts), gradients(nn.LayerList(layers[rank * EACH :][:EACH])))


def incubate_model_parallel(comm: a2a.Communicator) -> None:
    """mp_group: every rank computes its slice of one batch, and has all results and all gradients of x."""
    n = 2
    group_of(n)
    if comm.rank >= n:
        return
    layers = experts(1)
    gate = {"type": "naive", "top_k": 2}
    layer = MoELayer(FEATURES, nn.LayerList(copy.deepcopy(layers)), gate, mp_group=group_of(n))
    linear = layer.gate.gate
    linear.weight.set_value(paddle.linspace(-1, 1, FEATURES * EACH).reshape([FEATURES, EACH]))
    array = np.random.default_rng(5).standard_normal((2, 4, FEATURES), np.float32)
    x, other = leaf(array), leaf(array)
    y = layer(x * 1.0)
    (y**2).sum().backward()
    (wanted,) = dense("naive", [copy.deepcopy(linear)], [other], layers)
    (wanted**2).sum().backward()
    close("y", y, wanted)
    close("gradient of x", x.grad, other.grad)


# ---- a2a.paddle.moe --------------------------------------------------------------------------------------------------


class Recipe:
    """Tokens, choices and weights of all ranks, some ranks without tokens, some choices -1."""

    def __init__(self, n: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.n, self.total, self.k = n, n * EACH, int(rng.integers(1, min(n * EACH, 3) + 1))
        counts = [0 if rng.random() < 0.25 else int(rng.integers(1, 9)) for _ in range(n)]
        self.x = [rng.standard_normal((count, FEATURES), np.float32) for count in counts]
        self.choice = [
            np.array([rng.permutation(self.total)[: self.k] for _ in range(count)], np.int64).reshape(count, self.k)
            for count in counts
        ]
        for choice in self.choice:
            choice[rng.random(choice.shape) < 0.2] = -1
        self.weights = [rng.random((count, self.k), np.float32) for count in counts]
        self.bias = [rng.standard_normal((count, FEATURES), np.float32) for count in counts]
        self.factor = [rng.standard_normal((count, FEATURES), np.float32) for count in counts]

    def dense(self, layers: list[Any]) -> tuple[list[Any], list[Any], list[Any], list[Any]]:
        """x, weights, biases and results of all ranks, after a backward pass."""
        xs, weights, biases = ([leaf(array) for array in arrays] for arrays in (self.x, self.weights, self.bias))
        ys, losses = [], []
        for rank in range(self.n):
            y = mix(weights[rank], self.choice[rank], xs[rank], layers) + biases[rank]
            losses.append((y * paddle.to_tensor(self.factor[rank])).sum())
            ys.append(y)
        sum(losses[1:], losses[0]).backward()
        return xs, weights, biases, ys


def by_expert(routed: Any, layers: list[Any]) -> Any:
    sizes = np.diff(routed.offsets).tolist()
    parts = paddle.split(routed.x, sizes)
    return paddle.concat([layer(part) for layer, part in zip(layers, parts, strict=True)])


def by_rank(routed: Any, layers: list[Any]) -> Any:
    """Rows of this rank are sums over its experts, with the weights that came along."""
    return mix(routed.topk_weights, routed.topk_idx.numpy(), routed.x, layers)


def dispatch_and_combine(comm: a2a.Communicator, seed: int) -> None:
    """Both layouts, with padding, asynchronously, and with weights that are handed to combine() for each row."""
    recipe = Recipe(comm.size, seed)
    layers, rank = experts(comm.size), comm.rank
    xs, weights, biases, ys = recipe.dense(layers)
    wanted = [ys[rank], xs[rank].grad, weights[rank].grad, biases[rank].grad]
    parallel = dist.moe.ExpertParallel(comm, recipe.total)
    for layout, align, async_op, given in (
        ("expert", 1, False, False),
        ("expert", 4, True, False),
        ("expert", 2, False, True),
        ("rank", 1, seed % 2 == 0, False),
    ):
        mine = own(layers, rank)
        x, weight, bias = leaf(recipe.x[rank]), leaf(recipe.weights[rank]), leaf(recipe.bias[rank])
        choice = paddle.to_tensor(recipe.choice[rank])
        routed = parallel.dispatch(x, choice, weight, layout=layout, align=align, async_op=async_op)
        if async_op:
            routed.wait()
            routed = routed.result
        rows = (by_expert if layout == "expert" else by_rank)(routed, mine)
        passed = {"weights": routed.topk_weights * 1.0} if given else {}
        y = parallel.combine(rows, routed, bias=bias, async_op=async_op, **passed)
        if async_op:
            y.wait()
            y = y.result
        (y * paddle.to_tensor(recipe.factor[rank])).sum().backward()
        what = f"seed {seed}, layout {layout}, align {align}"
        close(what, [y, x.grad, weight.grad, bias.grad], wanted)
        close(what, gradients(nn.LayerList(mine)), gradients(nn.LayerList(layers[rank * EACH :][:EACH])))


def planned(comm: a2a.Communicator) -> None:
    """A routing that is used twice, whose weights need no gradient, for tokens that need one; and without weights."""
    recipe = Recipe(comm.size, 3)
    rank, layers = comm.rank, experts(comm.size)
    parallel = dist.moe.ExpertParallel(comm, recipe.total)
    for weighted in (True, False):
        choice, weight = paddle.to_tensor(recipe.choice[rank]), paddle.to_tensor(recipe.weights[rank])
        routing = parallel.plan(choice, weight if weighted else None)
        for factor in (1.0, 2.0):
            x, other = leaf(recipe.x[rank] * factor), leaf(recipe.x[rank] * factor)
            routed = routing.dispatch(x)
            assert routed.scales is None and (routed.topk_weights is None) is not weighted
            y = routing.combine(by_expert(routed, own(layers, rank)))
            wanted = mix(weight if weighted else paddle.ones_like(weight), recipe.choice[rank], other, layers)
            close("y", y, wanted)
            y.sum().backward()
            wanted.sum().backward()
            close("gradient", x.grad, other.grad)
            with paddle.no_grad():
                assert parallel.combine(routing.dispatch(x).x, routing).stop_gradient


def narrow(comm: a2a.Communicator, dtype: str) -> None:
    """Rows of other dtypes: the sum has the dtype, weights stay float32, also their gradient."""
    recipe = Recipe(comm.size, 5)
    rank = comm.rank
    parallel = dist.moe.ExpertParallel(comm, recipe.total)
    x, weight = leaf(paddle.to_tensor(recipe.x[rank]).astype(dtype)), leaf(recipe.weights[rank])
    routed = parallel.dispatch(x, paddle.to_tensor(recipe.choice[rank]), weight)
    y = parallel.combine(routed.x * 2, routed)
    y.astype("float32").sum().backward()
    assert x.grad.dtype == y.dtype == x.dtype and weight.grad.dtype == paddle.float32
    chosen = paddle.to_tensor((recipe.choice[rank] >= 0).astype(np.float32))
    factor = (weight.detach() * chosen).sum(1, keepdim=True)
    tokens = x.detach().astype("float32")
    tolerance = {"bfloat16": 3e-2, "float64": 1e-6}[dtype]
    close("y", y, 2 * factor * tokens, tolerance, tolerance)
    close("gradient of x", x.grad, 2 * factor.expand(tokens.shape), tolerance, tolerance)
    close("gradient of weights", weight.grad, 2 * chosen * tokens.sum(1, keepdim=True), tolerance, tolerance)


def second_order(comm: a2a.Communicator) -> str:
    """Of x and rows derivatives of any order; of weights that came with dispatch() one."""
    x, weight = leaf(np.full((3, 2), comm.rank + 1.0, np.float32)), leaf(np.full((3, 1), 2.0, np.float32))
    choice = paddle.to_tensor([[expert] for expert in range(3)]) % comm.size
    parallel = dist.moe.ExpertParallel(comm, comm.size)
    routed = parallel.dispatch(x, choice)
    y = parallel.combine(routed.x**3, routed)
    (first,) = paddle.grad(y.sum(), x, create_graph=True)
    (second,) = paddle.grad(first.sum(), x)
    close("first", first, 3 * x**2)
    close("second", second, 6 * x)
    routed = parallel.dispatch(x, choice, weight)
    y = parallel.combine(routed.x**3, routed)
    first, _ = paddle.grad(y.sum(), [x, weight], create_graph=True)
    try:
        first.sum().backward()
    except Exception as error:
        return str(error)
    return ""


def lost_weights(comm: a2a.Communicator) -> None:
    """Weights of a plan whose gradient nobody would bring back."""
    parallel = dist.moe.ExpertParallel(comm, comm.size)
    weight = leaf(np.ones((2, 1), np.float32))
    routing = parallel.plan(paddle.zeros([2, 1], "int64"), weight)
    rows = routing.dispatch(paddle.ones([2, 3])).x
    try:
        routing.combine(rows)
    except a2a.InvalidArgumentError as error:
        assert "topk_weights" in str(error)
    else:
        raise AssertionError("nothing was raised")
    comm.barrier()


def refused(comm: a2a.Communicator, what: str) -> str:
    """Rank 0 makes a mistake. Returns the name of the error."""
    parallel = dist.moe.ExpertParallel(comm, comm.size)
    x, choice = leaf(np.ones((2, 3), np.float32)), paddle.zeros([2, 1], "int64")
    wrong = comm.rank == 0
    name = ""
    try:
        if what == "expert":
            parallel.dispatch(x, choice + (99 if wrong else 0))
        elif what == "no tensor":
            parallel.dispatch("x" if wrong else x, choice)
        elif what == "signature":
            parallel.dispatch(x, choice, **({"nothing": 1} if wrong else {}))
        else:
            routed = parallel.dispatch(x, choice)
            rows = routed.x * 2
            parallel.combine(rows[1:] if wrong and what == "rows" else rows, routed, bias=1 if wrong else None)
    except Exception as error:
        name = type(error).__name__
    routed = parallel.dispatch(x, choice)
    assert parallel.combine(routed.x, routed).tolist() == x.tolist()  # the ranks are in step
    return name


class Gate(nn.Layer):  # type: ignore[misc, unused-ignore]
    """Prefers experts by a bias of its own."""

    def __init__(self, total: int, k: int, favours: list[float]) -> None:
        super().__init__()
        self.linear, self.k = nn.Linear(FEATURES, total), k
        self.linear.bias.set_value(paddle.to_tensor(favours))

    def forward(self, x: Any) -> tuple[Any, Any]:
        return paddle.topk(nn.functional.softmax(self.linear(x)), self.k)


def layer(comm: a2a.Communicator, needs: bool, trains_gate: bool) -> None:
    """MoELayer: rank 0 has no tokens, the last rank's experts get none."""
    n, rank = comm.size, comm.rank
    layers = experts(n)
    favours = [0.0] * (n * EACH - EACH) + [-1e3] * EACH if n > 1 else [0.0] * EACH
    gate = Gate(n * EACH, 2, favours)
    for parameter in gate.parameters():
        parameter.stop_gradient = not trains_gate
    gates = [copy.deepcopy(gate) for _ in range(n)]
    found = dist.moe.MoELayer(gate, own(layers, rank), comm)
    counts = [0 if at == 0 and n > 1 else 3 + at for at in range(n)]
    arrays = [
        np.random.default_rng(at).standard_normal((2, rows, FEATURES), np.float32) for at, rows in enumerate(counts)
    ]
    for _ in range(2):
        x = paddle.to_tensor(arrays[rank])
        x.stop_gradient = not needs
        y = found(x)
        assert y.shape == x.shape
        (y**2).sum().backward()
        losses = []
        for at, array in enumerate(arrays):
            other = paddle.to_tensor(array)
            other.stop_gradient = not needs
            if other.shape[1] == 0:  # of which Paddle has no backward pass
                continue
            tokens = other.reshape([-1, FEATURES])
            value, choice = gates[at](tokens)
            wanted = mix(value, choice.numpy(), tokens, layers).reshape(other.shape)
            losses.append((wanted**2).sum())
            if at == rank:
                close("y", y, wanted)
                mine = other
        sum(losses[1:], losses[0]).backward()
        if needs and counts[rank]:
            close("gradient of x", x.grad, mine.grad)
    close("gradients of the experts", gradients(found.experts), gradients(nn.LayerList(layers[rank * EACH :][:EACH])))
    if trains_gate:
        close("gradients of the gate", gradients(found.gate), gradients(gates[rank]))
    with paddle.no_grad():
        assert found(paddle.to_tensor(arrays[rank])).stop_gradient


def moved(comm: a2a.Communicator) -> None:
    """Replicas, a rank that takes no part, and weights that move, with gradients."""
    parallel = dist.moe.ExpertParallel(comm, 2 * comm.size, replicas=min(2, comm.size))
    weights = [paddle.to_tensor(parallel.local_experts, dtype="float32").reshape([-1, 1])]
    homes = [[e % comm.size, (e + 1) % comm.size][: min(2, comm.size)] for e in range(2 * comm.size)]
    weights = parallel.place(homes, weights)
    assert isinstance(weights[0], paddle.Tensor) and weights[0].flatten().tolist() == parallel.local_experts
    active = range(max(1, comm.size - 1))
    parallel.active = active
    x = leaf(np.random.default_rng(comm.rank).standard_normal((6, 3)).astype(np.float32))
    choice = np.array([[t % (2 * comm.size), (t + 1) % (2 * comm.size)] for t in range(6)])
    routed = parallel.dispatch(x, paddle.to_tensor(choice))
    factors = np.repeat(parallel.local_experts, routed.counts).astype(np.float32)
    y = parallel.combine(routed.x * paddle.to_tensor(factors).reshape([-1, 1]), routed)
    y.sum().backward()
    live = [e for e in range(2 * comm.size) if set(homes[e]) & set(active) and comm.rank in active]
    wanted = (choice * np.isin(choice, live)).sum(1, keepdims=True).astype(np.float32)
    close("y", y, paddle.to_tensor(x.numpy() * wanted))
    close("gradient", x.grad, paddle.to_tensor(np.repeat(wanted, 3, 1)))
    assert len(routed.dropped) == (~np.isin(choice, live)).sum()
