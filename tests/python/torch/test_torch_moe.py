"""``a2a.torch.moe`` against a loop over tokens and experts: values, gradients, and what keeps ranks together."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import pytest
from rank_pool import Pool
from sample import with_full
from torch_worlds import group

import a2a

torch = pytest.importorskip("torch")

from torch_moe_ranks import HIDDEN, Step, expert, loop, step  # noqa: E402

pytestmark = pytest.mark.timeout(110)

EACH = 2  # experts of a rank


def parallel(at: Any, experts: int, homes: Any = None, device: bool = False) -> Any:
    """With ``device``: on the path of tensors on a device."""
    from a2a.torch.moe import ExpertParallel

    made = ExpertParallel(at, experts, homes)
    if device:
        made.home.on_host = lambda x: False
    return made


def results(ep: Any, routed: Any, numbers: list[int]) -> Any:
    """The rows of this rank's experts, given by their numbers in the group. Weighted and added in the layout "rank"."""
    if routed.offsets is not None:
        return torch.cat([expert(part, number) for number, part in zip(numbers, routed.split(), strict=True)])
    rows = torch.zeros_like(routed.x)
    for k in range(routed.topk_idx.shape[1]):
        local, weight = routed.topk_idx[:, k], routed.topk_weights[:, k : k + 1]
        for own, number in enumerate(numbers):
            rows = torch.where((local == own).unsqueeze(1), rows + weight * expert(routed.x, number), rows)
    return rows


def forward_and_back(ep: Any, own: Step, numbers: list[int], layout: str, align: int) -> tuple[Any, Any, Any]:
    x, weights = own.x.clone().requires_grad_(), own.topk_weights.clone().requires_grad_()
    routed = ep.dispatch(x, own.topk_idx, weights, layout=layout, align=align)
    y = ep.combine(results(ep, routed, numbers), routed)
    assert y.requires_grad and y.dtype == own.x.dtype
    y.backward(own.grad)
    return y.detach(), x.grad, weights.grad


def like_a_loop(comm: a2a.Communicator, way: str, size: int, k: int, dtype: str, device: bool) -> list[str] | None:
    at = group(comm, way, size)
    if comm.rank >= size:
        return None
    wrong = []
    ep = parallel(at, EACH * size, device=device)
    numbers = [EACH * comm.rank + own for own in range(EACH)]
    for seed in range(3):
        own = step(comm.rank, size, k, EACH * size, getattr(torch, dtype), seed)
        x, weights = own.x.clone().requires_grad_(), own.topk_weights.clone().requires_grad_()
        want = loop(x, own.topk_idx, weights)
        want.backward(own.grad)
        for layout, align in (("expert", 1), ("expert", 4), ("rank", 1)):
            if layout == "rank" and dtype == "bfloat16":
                continue  # rows are sums that were rounded before
            y, x_grad, weights_grad = forward_and_back(ep, own, numbers, layout, align)
            if layout == "expert" and not torch.equal(y, want):
                wrong.append(f"{seed} {layout} {align}: other bits")
            for got, wanted in ((y, want), (x_grad, x.grad), (weights_grad, weights.grad)):
                near = 0.05 if dtype == "bfloat16" else 1e-5
                torch.testing.assert_close(got, wanted, rtol=near, atol=near)
    return wrong


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_like_a_loop(ranks: Pool, k: int, dtype: str) -> None:
    for size in (1, 2, 3, 4):
        if k <= EACH * size:
            assert ranks.run(like_a_loop, "communicator", size, k, dtype, False)[:size] == [[]] * size, size


@pytest.mark.parametrize("way", ["functions", "backend"])
def test_process_groups(ranks: Pool, way: str) -> None:
    assert ranks.run(like_a_loop, way, 2, 2, "float32", False)[:2] == [[], []]


@pytest.mark.parametrize("k", [1, 3])
def test_the_path_of_devices(ranks: Pool, k: int) -> None:
    for size in (1, 2, 3):
        if k <= EACH * size:
            assert ranks.run(like_a_loop, "communicator", size, k, "float32", True)[:size] == [[]] * size, size


HOMES = [0, [1, 2], 2, 0, [2, 0, 1], 1]  # of six experts, two of them with replicas


def placed(comm: a2a.Communicator, device: bool) -> bool | None:
    at = group(comm, "communicator", 3)
    if comm.rank >= 3:
        return None
    ep = parallel(at, len(HOMES), HOMES, device)
    numbers = [e for e, home in enumerate(HOMES) if comm.rank in (home if isinstance(home, list) else [home])]
    assert ep.num_local_experts == len(numbers)
    own = step(comm.rank, 3, 3, len(HOMES), torch.float32, 1)
    x, weights = own.x.clone().requires_grad_(), own.topk_weights.clone().requires_grad_()
    want = loop(x, own.topk_idx, weights)
    want.backward(own.grad)
    y, x_grad, weights_grad = forward_and_back(ep, own, numbers, "expert", 1)
    torch.testing.assert_close(x_grad, x.grad)
    torch.testing.assert_close(weights_grad, weights.grad)
    return bool(torch.equal(y, want))


@pytest.mark.parametrize("device", [False, True])
def test_experts_anywhere(ranks: Pool, device: bool) -> None:
    assert ranks.run(placed, device)[:3] == [True] * 3


def derivatives(comm: a2a.Communicator, layout: str, device: bool) -> bool | None:
    from test_torch_nn import ends

    at = group(comm, "communicator", 2)
    if comm.rank >= 2:
        return None
    replicate, share = ends(at)
    ep = parallel(at, 2 * EACH, device=device)
    idx = torch.tensor([[[0, 3, 1], [2, -1, 0], [3, 2, -1]], [[1, 2, 3], [-1, -1, -1], [0, 1, 2]]])[comm.rank]
    given = torch.tensor([[0.5, 0.25, 1.0]]).expand(3, 3)

    def world(whole: Any, bias: Any) -> Any:
        routed = ep.dispatch(replicate(whole), idx, given, layout=layout)
        rows = results(ep, routed, [EACH * comm.rank, EACH * comm.rank + 1])
        return share(ep.combine(rows * rows, routed, bias=(replicate(bias), replicate(bias))))

    torch.manual_seed(0)
    inputs = [torch.randn(2, 3, 2, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    return bool(torch.autograd.gradcheck(world, inputs))


@pytest.mark.parametrize("device", [False, True])
@pytest.mark.parametrize("layout", ["expert", "rank"])
def test_gradcheck(ranks: Pool, layout: str, device: bool) -> None:
    assert ranks.run(derivatives, layout, device)[:2] == [True, True]


def own_weights(comm: a2a.Communicator, device: bool) -> None:
    """Weights for each row instead of those that were dispatched, none, and a routing that is used again."""
    at = group(comm, "communicator", 2)
    if comm.rank >= 2:
        return
    ep = parallel(at, 2 * EACH, device=device)
    numbers = [EACH * comm.rank, EACH * comm.rank + 1]
    own = step(comm.rank, 2, 2, 2 * EACH, torch.float32, 5)
    x, weights = own.x.clone().requires_grad_(), own.topk_weights.clone().requires_grad_()
    routed = ep.dispatch(x, own.topk_idx, weights, align=2)
    rows = results(ep, routed, numbers)
    doubled = ep.combine(rows, routed, weights=2 * routed.topk_weights)
    want = loop(own.x, own.topk_idx, 2 * own.topk_weights)
    assert torch.equal(doubled, want)
    doubled.backward(own.grad)
    (wanted,) = torch.autograd.grad(
        loop(own.x, own.topk_idx, 2 * (w := own.topk_weights.requires_grad_())), w, own.grad
    )
    torch.testing.assert_close(weights.grad, wanted)

    again = ep.dispatch(own.x, routing=routed)
    assert torch.equal(again.x, routed.x) and not again.topk_weights.requires_grad
    plain = ep.combine(results(ep, again, numbers), again, weights=None)
    assert torch.equal(plain, loop(own.x, own.topk_idx, torch.ones_like(own.topk_weights)))
    plain.backward(own.grad)


@pytest.mark.parametrize("device", [False, True])
def test_other_weights_and_the_same_way_again(ranks: Pool, device: bool) -> None:
    ranks.run(own_weights, device)


def uneven(comm: a2a.Communicator, again: bool) -> tuple[bool, ...] | None:
    """Every rank's part of the graph ends otherwise: rank 0 wants no gradient of its tokens, rank 1 makes its rows of
    nothing, and rank 2 has no tokens and gets none."""
    at = group(comm, "communicator", 3)
    if comm.rank >= 3:
        return None
    ep = parallel(at, 3)
    x = torch.ones(0 if comm.rank == 2 else 3, 4, requires_grad=comm.rank == 1)
    idx = torch.tensor([[0, 1]] * len(x), dtype=torch.int64).reshape(-1, 2)

    def one_layer(x: Any) -> Any:
        routed = ep.dispatch(x, idx, torch.ones(len(x), 2))
        return ep.combine(torch.ones_like(routed.x) if comm.rank == 1 else 2 * routed.x, routed)

    def twice(x: Any) -> Any:
        return one_layer(x) + 2 * one_layer(x)

    y = torch.utils.checkpoint.checkpoint(twice, x, use_reentrant=False) if again else twice(x)
    y.sum().backward()
    with torch.no_grad():
        quiet = one_layer(x)
    # What expert 0 does reaches rank 1's tokens, what expert 1 does ends there.
    reached = x.grad is not None and bool((x.grad == 6).all())
    return reached, y.requires_grad, quiet.requires_grad, bool((y == 9).all())


@pytest.mark.parametrize("again", [False, True])
def test_no_rank_leaves_the_others_in_the_backward_pass(ranks: Pool, again: bool) -> None:
    """``again``: with the forward pass computed again in the backward pass."""
    assert ranks.run(uneven, again)[:3] == [
        (False, True, False, True),
        (True, True, False, True),
        (False, True, False, True),
    ]


def twice(comm: a2a.Communicator) -> bool | None:
    at = group(comm, "communicator", 2)
    if comm.rank >= 2:
        return None
    ep = parallel(at, 2)
    x = torch.ones(2, 3, requires_grad=True)
    routed = ep.dispatch(x, torch.tensor([[0], [1]]), torch.ones(2, 1))
    y = ep.combine(routed.x**2, routed)
    # x.sum() is another way to x, which must not hide that the first one is refused.
    (grad,) = torch.autograd.grad((y * x.sum()).sum(), x, create_graph=True)
    with pytest.raises(a2a.UnsupportedError, match="no second derivatives"):
        torch.autograd.grad(grad.sum(), x, retain_graph=True)
    with pytest.raises(a2a.UnsupportedError, match="no second derivatives"):
        grad.sum().backward()
    return True


def test_second_derivatives_are_refused(ranks: Pool) -> None:
    assert ranks.run(twice)[:2] == [True, True]


def transformed(comm: a2a.Communicator) -> list[str] | None:
    """What torch.func and forward_ad make of each call."""
    from torch.autograd import forward_ad

    at = group(comm, "communicator", 2)
    if comm.rank >= 2:
        return None
    ep, x, choices = parallel(at, 2), torch.ones(2, 1), torch.tensor([[0], [1]])
    routed = ep.dispatch(x, choices, x)
    calls: dict[str, Any] = {
        "dispatch": lambda x: ep.dispatch(x, choices).x,
        "weights": lambda x: ep.dispatch(torch.ones(2, 1), choices, x).topk_weights,
        "combine": lambda x: ep.combine(x, routed),
        "bias": lambda x: ep.combine(routed.x.detach(), routed, bias=x),
    }

    def dual(call: Any) -> Any:
        with forward_ad.dual_level():
            return call(forward_ad.make_dual(x, x))

    transforms = {
        "jvp": lambda call: torch.func.jvp(call, (x,), (x,)),
        "forward_ad": dual,
        "grad": lambda call: torch.func.grad(lambda x: call(x).sum())(x),
        "vmap": lambda call: torch.func.vmap(call)(torch.ones(3, 2, 1)),
    }
    problems = []
    for (what, transform), (name, call) in itertools.product(transforms.items(), calls.items()):
        try:
            problems.append(f"{what} of {name}: {transform(call)}")
        except a2a.InvalidArgumentError as error:
            if "have the derivatives of backward() only" not in str(error):
                problems.append(f"{what} of {name}: {error}")
    at.barrier()
    return problems


def test_transforms_are_refused(ranks: Pool) -> None:
    assert ranks.run(transformed)[:2] == [[], []]


def shapes(comm: a2a.Communicator, device: bool) -> None:
    """Tokens may be numbers or matrices, and rows other than tokens."""
    at = group(comm, "communicator", 2)
    if comm.rank >= 2:
        return
    ep = parallel(at, 2, device=device)
    idx, weights = torch.tensor([[0, 1], [1, -1]]), torch.tensor([[0.5, 1.0], [2.0, 0.0]], requires_grad=True)
    for shape in ((2,), (2, 2, 3), (2, 0)):
        x = torch.ones(shape, requires_grad=True)
        routed = ep.dispatch(x, idx, weights)
        y = ep.combine(torch.stack([routed.x, 3 * routed.x], -1), routed)
        assert y.shape == (*shape, 2)
        weights.grad = None
        y.sum().backward()
        each = x[0].numel() * 4.0
        assert weights.grad.tolist() == [[each, each], [each, 0.0]]
        assert x.grad.flatten(1).sum(1).tolist() == [1.5 * each, 2 * each] if x.ndim > 1 else x.grad.tolist() == [6, 8]


@pytest.mark.parametrize("device", [False, True])
def test_tokens_of_any_shape(ranks: Pool, device: bool) -> None:
    ranks.run(shapes, device)


class Gate(torch.nn.Module):
    def __init__(self, experts: int) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(HIDDEN, experts)

    def forward(self, x: Any) -> tuple[Any, Any]:
        weights, experts = self.linear(x).softmax(-1).topk(2)
        return experts, weights


def layer(comm: a2a.Communicator, compiled: bool) -> tuple[list[float], ...] | None:
    """A few steps of training: all experts on one rank, and spread over two."""
    from a2a.torch.moe import MoE

    at, alone, both = group(comm, "functions", 2), group(comm, "communicator", 1), group(comm, "communicator", 2)
    if comm.rank >= 2:
        return None
    torch.manual_seed(0)
    gate, experts = Gate(4), torch.nn.ModuleList([torch.nn.Linear(HIDDEN, 3) for _ in range(4)])
    whole = MoE(copy.deepcopy(gate), copy.deepcopy(experts), alone) if comm.rank == 0 else None
    spread = MoE(gate, experts[2 * comm.rank : 2 * comm.rank + 2], at)
    run = torch.compile(spread, backend="aot_eager") if compiled else spread
    tokens = torch.randn(2, 3, 5, HIDDEN)
    losses: list[float] = []
    wanted: list[float] = []
    for _ in range(3):
        y = run(tokens[comm.rank])
        assert y.shape == (3, 5, 3)
        y.square().sum().backward()
        losses.append(float(y.detach().square().sum()))
        for parameter in spread.gate.parameters():
            both.allreduce(parameter.grad)
        if whole is not None:
            z = whole(tokens)
            z.square().sum().backward()
            wanted.append(float(z[0].detach().square().sum()))
        for module in (spread, whole):
            for parameter in module.parameters() if module else ():
                parameter.data -= 0.01 * parameter.grad
                parameter.grad = None
    assert copy.deepcopy(spread).parallel is spread.parallel
    return losses, wanted


@pytest.mark.parametrize("compiled", [False, True])
def test_a_layer_learns_as_on_one_rank(ranks: Pool, compiled: bool) -> None:
    losses, wanted = ranks.run(layer, compiled)[0]
    assert losses == pytest.approx(wanted, rel=1e-5)
    assert losses[2] < losses[0]


def broadcast(comm: a2a.Communicator, device: bool) -> None:
    """A bias whose elements share memory, and its gradient."""
    at = group(comm, "communicator", 2)
    if comm.rank >= 2:
        return
    ep = parallel(at, 2, device=device)
    x, bias = torch.ones(2, 3), torch.arange(3.0, requires_grad=True)
    routed = ep.dispatch(x, torch.tensor([[0], [1]]))
    y = ep.combine(routed.x, routed, bias=[bias.expand(2, 3), torch.ones(3, 2).t()])
    y.sum().backward()
    assert y.tolist() == [[2, 3, 4]] * 2 and bias.grad.tolist() == [2, 2, 2]


@pytest.mark.parametrize("device", [False, True])
def test_bias_of_any_strides(ranks: Pool, device: bool) -> None:
    ranks.run(broadcast, device)


def bad_calls(ep: Any, x: Any, idx: Any) -> dict[str, Any]:
    """Name -> the call that rank 0 makes."""
    weights = torch.ones(idx.shape)
    return {
        "x is list": lambda: ep.dispatch([1.0], idx),
        "x is torch.int64": lambda: ep.dispatch(x.long(), idx),
        "x has no values": lambda: ep.dispatch(x.to_sparse(), idx),
        "x has shape (1, 3)": lambda: ep.dispatch(x[:1], idx),
        "topk_idx is NoneType": lambda: ep.dispatch(x),
        "topk_idx is torch.float32": lambda: ep.dispatch(x, idx.float()),
        "topk_idx has shape (2,)": lambda: ep.dispatch(x, idx[:, 0]),
        "topk_weights is torch.int64": lambda: ep.dispatch(x, idx, idx),
        "topk_weights has shape (1, 1)": lambda: ep.dispatch(x, idx, weights[:1]),
        "expert 7": lambda: ep.dispatch(x, torch.tensor([[7], [0]])),
        "layout is 'ranks'": lambda: ep.dispatch(x, idx, layout="ranks"),
        "routed is NoneType": lambda: ep.combine(x, None),
    }


def refused(comm: a2a.Communicator, name: str, device: bool) -> str | None:
    at = group(comm, "communicator", 2)
    if comm.rank >= 2:
        return None
    ep = parallel(at, 2, device=device)
    x, idx = torch.ones(2, 3), torch.tensor([[0], [1]])
    routed, by_rank = ep.dispatch(x, idx), ep.dispatch(x, idx, layout="rank")
    calls = bad_calls(ep, x, idx)
    for text, bad in (
        ("rows has shape", lambda: ep.combine(routed.x[:1], routed)),
        ("rows is torch.int64", lambda: ep.combine(routed.x.long(), routed)),
        ("weights is 'own'", lambda: ep.combine(routed.x, routed, weights="own")),
        ("weights has shape", lambda: ep.combine(routed.x, routed, weights=torch.ones(len(routed.x), 1))),
        ("weights are given", lambda: ep.combine(routed.x, by_rank, weights=torch.ones(len(routed.x)))),
        ("bias is int", lambda: ep.combine(routed.x, routed, bias=5)),
        ("bias has shape", lambda: ep.combine(routed.x, routed, bias=torch.ones(1, 3))),
        ("bias is float64", lambda: ep.combine(routed.x, routed, bias=torch.ones(2, 3, dtype=torch.float64))),
        ("both routing and", lambda: ep.dispatch(x, idx, routing=routed)),
    ):
        calls[text] = bad
    if name == "names":
        return "|".join(calls)
    with pytest.raises(a2a.Error) as caught:
        if comm.rank == 0:
            calls[name]()
        elif name.split(" ")[0] in ("rows", "weights", "bias", "routed"):
            ep.combine(routed.x, routed)
        else:
            ep.dispatch(x, idx)
    assert torch.equal(ep.combine(routed.x, routed), x)  # the ranks still understand each other
    return f"{type(caught.value).__name__}: {caught.value}"


@pytest.mark.parametrize("device", [False, True])
def test_refusals(ranks: Pool, device: bool) -> None:
    names = ranks.run(refused, "names", device)[0].split("|")
    for name in names:
        first, second = ranks.run(refused, name, device)[:2]
        assert "rank 0: " in first and name.split(" ")[0] in first, (name, first)
        assert second.startswith("MismatchError: "), (name, second)


def other_routings(comm: a2a.Communicator, device: bool) -> None:
    """Rank 1 takes the rows of another step, with as many rows, forward or in the backward pass."""
    at = group(comm, "communicator", 2, salt=f"device {device}")  # parallel() changes what belongs to a group
    if comm.rank >= 2:
        return
    ep = parallel(at, 2, device=device)
    x, idx = torch.ones(2, 3, requires_grad=True), torch.tensor([[0], [1]])
    steps = [ep.dispatch(x, idx), ep.dispatch(x, idx.flip(0))]
    sums = [ep.combine(step.x, step) for step in steps]
    own = comm.rank
    for call in (
        lambda: ep.combine(steps[own].x, steps[own]),
        lambda: ep.dispatch(x, routing=steps[own]),
        lambda: torch.autograd.grad(sums[own].sum(), steps[own].x, retain_graph=True),
        lambda: torch.autograd.grad(steps[own].x.sum(), x, retain_graph=True),
    ):
        with pytest.raises(a2a.MismatchError, match="uses routing"):
            call()
    other = parallel(at.split(0), 2, device=device)
    elsewhere = other.dispatch(x, idx)
    for call in (
        lambda: ep.combine(steps[0].x, steps[0] if own else elsewhere),
        lambda: ep.dispatch(x, routing=steps[0] if own else elsewhere),
    ):
        with pytest.raises(a2a.MismatchError if own else a2a.InvalidArgumentError, match="another communicator"):
            call()
    if not device:
        weighted = ep.dispatch(x, idx, torch.ones(2, 1))
        with pytest.raises(a2a.MismatchError, match="multiplies by weights"):
            ep.combine(weighted.x, weighted, weights="routed" if own else None)
    for y in sums:
        assert torch.equal(torch.autograd.grad(y.sum(), x)[0], torch.ones(2, 3))


@pytest.mark.parametrize("device", [False, True])
def test_routings_have_an_identity(ranks: Pool, device: bool) -> None:
    ranks.run(other_routings, device)


# ---- torch.compile ---------------------------------------------------------------------------------------------------


def graph_layer(ep: Any, numbers: list[int], kind: str) -> Any:
    """A function of (x, topk_idx, topk_weights, another x) that uses this ``kind`` of call."""

    def run(x: Any, idx: Any, weights: Any, bias: Any) -> Any:
        layout, align = ("rank", 1) if kind == "rank" else ("expert", 3)
        routed = ep.dispatch(x, idx, None if kind == "unweighted" else weights, layout=layout, align=align)
        if kind == "again":
            second = ep.dispatch(bias, routing=routed)
            total = ep.combine(results(ep, routed, numbers), routed)
            return total + ep.combine(results(ep, second, numbers) + routed.x, second)
        if kind == "unweighted":
            return ep.combine(results(ep, routed, numbers), routed, bias=(bias, bias))
        if kind == "other weights":
            return ep.combine(results(ep, routed, numbers), routed, weights=routed.topk_weights.double() * 2, bias=bias)
        if kind == "ends here":  # rank 0 makes its rows of nothing
            rows = torch.ones_like(routed.x) if 0 in numbers else results(ep, routed, numbers)
            return ep.combine(rows, routed)
        if kind == "about":
            rows = routed.x * (1 + routed.topk_idx.unsqueeze(1)) + routed.source[:, 1:].to(x.dtype)
            return ep.combine(rows * float(len(routed.counts)), routed) + routed.offsets[1:].sum() - routed.counts.max()
        return ep.combine(results(ep, routed, numbers), routed)

    return run


GRAPHS = ["plain", "rank", "again", "unweighted", "other weights", "ends here", "about"]


def in_a_graph(comm: a2a.Communicator, kind: str, device: bool) -> int | None:
    """As without it. Returns how many graphs were made."""
    from torch._dynamo.testing import CompileCounterWithBackend

    at = group(comm, "communicator", 2)
    if comm.rank >= 2:
        return None
    torch._dynamo.reset()
    numbers = [EACH * comm.rank, EACH * comm.rank + 1]
    counter = CompileCounterWithBackend("aot_eager")
    run = graph_layer(parallel(at, 2 * EACH, device=device), numbers, kind)
    compiled = torch.compile(run, fullgraph=True, backend=counter)
    for seed, tokens in enumerate((4, 7, 5, 9, 3)):
        torch.manual_seed(10 * seed + comm.rank)
        given = torch.randn(2, tokens + comm.rank, 6)
        idx = torch.rand(given.shape[1], 2 * EACH).argsort(1)[:, :3]
        idx[::3, 1] = -1
        made = []
        for function in (run, compiled):
            x, bias = (one.clone().requires_grad_(comm.rank == 0 or kind != "plain") for one in given)
            weights = torch.arange(idx.numel()).view(idx.shape).float().requires_grad_()
            y = function(x, idx, weights, bias)
            y.backward(given[0])
            made.append([y.detach(), *(one.grad for one in (x, bias, weights) if one.grad is not None)])
        assert len(made[0]) == len(made[1])
        for eager, graph in zip(*made, strict=True):
            assert torch.equal(eager, graph), (kind, seed)
    return int(counter.frame_count)


@pytest.mark.full
@pytest.mark.parametrize("device", [False, True])
@pytest.mark.parametrize("kind", [*GRAPHS[:2], *with_full(GRAPHS[2:])])
def test_one_graph_for_any_number_of_tokens(ranks: Pool, kind: str, device: bool) -> None:
    # The second is the one whose sizes are symbols.
    assert ranks.run(in_a_graph, kind, device)[:2] == [2, 2]


def between_graphs(comm: a2a.Communicator) -> None:
    """Rows that one graph dispatched and another one, or none, combines. What they hold on to goes with them."""
    from a2a.torch._experts import handles

    at = group(comm, "communicator", 2)
    if comm.rank >= 2:
        return
    ep = parallel(at, 2 * EACH)
    numbers = [EACH * comm.rank, EACH * comm.rank + 1]
    own = step(comm.rank, 2, 2, 2 * EACH, torch.float32, 5)
    want = loop(own.x, own.topk_idx, own.topk_weights)

    def send(x: Any) -> Any:
        return ep.dispatch(x, own.topk_idx, own.topk_weights)

    def back(routed: Any) -> Any:
        return ep.combine(results(ep, routed, numbers), routed)

    graphs = [torch.compile(one, backend="aot_eager", fullgraph=True) for one in (send, back)]
    broken = [torch.compile(one, backend="aot_eager") for one in (send, back)]
    before = len(handles._stubs)
    for sending, bringing in ((graphs[0], back), (send, broken[1]), graphs, broken, (graphs[0], broken[1])):
        x = own.x.clone().requires_grad_()
        routed = sending(x)
        again = ep.dispatch(own.x, routing=routed)
        assert torch.equal(again.x, routed.x) and routed.counts.tolist() == again.counts.tolist()
        y = bringing(routed)
        y.backward(own.grad)
        assert torch.equal(y, want) and x.grad is not None
        del routed, again, y
    assert len(handles._stubs) == before


def test_rows_leave_and_enter_graphs(ranks: Pool) -> None:
    ranks.run(between_graphs)


def layers(comm: a2a.Communicator) -> int | None:
    """Layers that are compiled one by one share their graphs."""
    from a2a.torch.moe import MoE
    from torch._dynamo.testing import CompileCounterWithBackend

    at = group(comm, "communicator", 2)
    if comm.rank >= 2:
        return None
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    torch.manual_seed(0)
    stack = [MoE(Gate(4), torch.nn.ModuleList([torch.nn.Linear(HIDDEN, HIDDEN) for _ in range(2)]), at) for _ in "four"]
    x = y = torch.randn(3, 5, HIDDEN, requires_grad=True)
    for one in stack:
        one.compile(fullgraph=True, backend=counter)
        y = one(y)
    y.sum().backward()
    assert all(parameter.grad is not None for one in stack for parameter in one.gate.parameters())
    assert x.grad is not None
    return int(counter.frame_count)


def test_layers_share_a_graph(ranks: Pool) -> None:
    assert ranks.run(layers)[:2] == [1, 1]


def order(comm: a2a.Communicator) -> None:
    """Exchanges keep their order, and happen where nobody wants what comes of them."""
    at = group(comm, "communicator", 2)
    if comm.rank >= 2:
        return
    ep = parallel(at, 2)
    idx = torch.tensor([[0], [1]])

    @torch.compile(backend="aot_eager", fullgraph=True)
    def run(x: Any, both: bool) -> Any:
        first, second = ep.dispatch(x, idx), ep.dispatch(2 * x, idx)
        other, one = ep.combine(second.x, second), ep.combine(first.x, first)
        return (one, other) if comm.rank == 0 else (other, one) if both else (one, one)

    x = torch.ones(2, 3, requires_grad=comm.rank == 1)
    both = run(x, True)
    assert torch.equal(both[comm.rank], x) and torch.equal(both[1 - comm.rank], 2 * x)
    (both[0] + both[1]).sum().backward()
    assert x.grad is None or bool((x.grad == 3).all())
    with torch.no_grad():
        assert torch.equal(run(x, False)[0], x)


def test_exchanges_keep_their_order_in_a_graph(ranks: Pool) -> None:
    if not hasattr(torch.library.CustomOpDef, "register_effect"):
        pytest.skip(f"torch {torch.__version__} has no effects of operators")
    ranks.run(order)


def refused_in_a_graph(comm: a2a.Communicator) -> str | None:
    at = group(comm, "communicator", 2)
    if comm.rank >= 2:
        return None
    ep = parallel(at, 2)
    run = torch.compile(lambda x, idx: ep.combine((routed := ep.dispatch(x, idx)).x, routed), backend="aot_eager")
    x, idx = torch.ones(2, 3), torch.tensor([[0], [1]])
    texts = []
    for bad in (
        lambda: run(x, 7 * idx),
        lambda: run(x[:1], idx),
        lambda: run(x.long(), idx),
        lambda: run(x, idx[:, 0]),
    ):
        with pytest.raises(a2a.Error) as caught:
            bad() if comm.rank == 0 else run(x, idx)
        texts.append(str(caught.value))
    assert torch.equal(run(x, idx), x)
    return "|".join(texts)


def test_refusals_in_a_graph(ranks: Pool) -> None:
    for text in ranks.run(refused_in_a_graph)[:2]:
        for part, want in zip(text.split("|"), ("] is 7", "x has shape", "x is torch.int64", "topk_idx"), strict=True):
            assert want in part


def round_a_graph(comm: a2a.Communicator, fullgraph: bool) -> None:
    """What computes the forward pass again goes round a compiled function, not into it."""
    at = group(comm, "communicator", 2)
    if comm.rank >= 2:
        return
    ep = parallel(at, 2 * EACH)
    numbers = [EACH * comm.rank, EACH * comm.rank + 1]
    own = step(comm.rank, 2, 2, 2 * EACH, torch.float32, 6)

    def twice(x: Any, weights: Any) -> Any:
        for _ in range(2):
            routed = ep.dispatch(x, own.topk_idx, weights)
            x = ep.combine(results(ep, routed, numbers), routed)
        return x

    made = []
    for run in (twice, torch.compile(twice, backend="aot_eager", fullgraph=fullgraph)):
        x, weights = own.x.clone().requires_grad_(), own.topk_weights.clone().requires_grad_()
        y = torch.utils.checkpoint.checkpoint(run, x, weights, use_reentrant=False)
        y.backward(own.grad)
        made.append((y.detach(), x.grad, weights.grad))
    assert all(torch.equal(one, other) for one, other in zip(*made, strict=True))


@pytest.mark.full
@pytest.mark.parametrize("fullgraph", [False, True])
def test_checkpoint_of_a_graph(ranks: Pool, fullgraph: bool) -> None:
    ranks.run(round_a_graph, fullgraph)


def by_inductor(comm: a2a.Communicator) -> list[float]:
    from a2a.torch.moe import MoE

    torch.set_num_threads(1)
    torch.manual_seed(0)
    spread = MoE(Gate(4), torch.nn.ModuleList([torch.nn.Linear(HIDDEN, 3) for _ in range(2)]), comm)
    compiled = torch.compile(spread, fullgraph=True)
    far = []
    for tokens in (5, 7, 9):
        x = torch.randn(tokens + comm.rank, HIDDEN)
        made = []
        for run in (spread, compiled):
            own = x.clone().requires_grad_()
            y = run(own)
            y.square().sum().backward()
            made.append((y.detach(), own.grad))
        far += [float((one - other).abs().max()) for one, other in zip(*made, strict=True)]
    return far


@pytest.mark.full
@pytest.mark.timeout(300)
def test_inductor() -> None:
    for far in a2a.spawn(by_inductor, 2, timeout=280):
        assert max(far) < 1e-5
