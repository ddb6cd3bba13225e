"""``a2a.torch.moe`` against a loop over tokens and experts: values, gradients, and what keeps ranks together."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from rank_pool import Pool

import a2a

from .worlds import group

torch = pytest.importorskip("torch")

from .torch_moe_ranks import HIDDEN, Step, expert, loop, step  # noqa: E402

pytestmark = pytest.mark.timeout(110)

EACH = 2  # experts of a rank


def parallel(at: Any, experts: int, homes: Any = None, device: bool = False) -> Any:
    """With ``device``: on the path of tensors on a device."""
    from a2a.torch.moe import ExpertParallel

    made = ExpertParallel(at, experts, homes)
    if device:
        made._on_host = lambda x: False
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
    from .test_nn import ends

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


def twice(comm: a2a.Communicator) -> str | None:
    at = group(comm, "communicator", 2)
    if comm.rank >= 2:
        return None
    ep = parallel(at, 2)
    x = torch.ones(2, 3, requires_grad=True)
    routed = ep.dispatch(x, torch.tensor([[0], [1]]))
    (grad,) = torch.autograd.grad((ep.combine(routed.x**2, routed) ** 2).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError) as caught:
        grad.sum().backward()
    return str(caught.value)


def test_second_derivatives_are_refused(ranks: Pool) -> None:
    for text in ranks.run(twice)[:2]:
        assert "once_differentiable" in text


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

    at, alone = group(comm, "functions", 2), group(comm, "communicator", 1)
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
            group(comm, "communicator", 2).allreduce(parameter.grad)
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
