"""``a2a.torch.deep_ep``: DeepEP's calls, and Megatron-Core on them, against a step in one process."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rank_pool import Pool
from torch_worlds import group

import a2a

torch = pytest.importorskip("torch")

from torch_moe_ranks import Step, expert, loop, step  # noqa: E402

pytestmark = pytest.mark.timeout(110)

EACH = 2  # experts of a rank
K = 3


def on_device(comm: a2a.Communicator, device: bool, function: Any, *arguments: Any) -> Any:
    """With ``device``: on the path of tensors on a device."""
    from a2a.torch._experts.placement import Placement

    before = Placement.on_host
    if device:
        Placement.on_host = staticmethod(lambda x: False)
    try:
        return function(comm, *arguments)
    finally:
        Placement.on_host = staticmethod(before)


def world(size: int, seed: int, hidden: int = 8) -> list[Step]:
    return [step(rank, size, K, EACH * size, torch.bfloat16, seed, hidden) for rank in range(size)]


def arriving(steps: list[Step], rank: int) -> list[tuple[int, int]]:
    """(source rank, token) of all tokens with an expert on the rank."""
    here = range(EACH * rank, EACH * (rank + 1))
    return [
        (source, token)
        for source, its in enumerate(steps)
        for token, experts in enumerate(its.topk_idx.tolist())
        if any(e in here for e in experts)
    ]


def stacked(rows: list[Any], like: Any) -> Any:
    return torch.stack(rows) if rows else like.new_zeros(0, *like.shape[1:])


def quantized(x: Any) -> tuple[Any, Any]:
    return x.to(torch.float8_e4m3fn), x.float().abs().amax(1, keepdim=True) + 1


def alike(one: Any, other: Any) -> bool:
    return one.dtype == other.dtype and one.shape == other.shape and torch.equal(one.float(), other.float())


def layouts(comm: a2a.Communicator) -> None:
    from a2a.torch.deep_ep import Buffer

    at = group(comm, "communicator", 2)
    if comm.rank >= 2:
        return
    topk_idx = torch.tensor([[0, 1, -1], [3, 1, 2], [-1, -1, -1]])
    per_rank, per_node, per_expert, in_rank, event = Buffer(at).get_dispatch_layout(topk_idx, 4, async_finish=True)
    event.current_stream_wait()
    assert per_node is None
    assert per_rank.tolist() == [2, 1] and per_rank.dtype == torch.int32
    assert per_expert.tolist() == [1, 2, 1, 1] and per_expert.dtype == torch.int32
    assert in_rank.tolist() == [[True, False], [True, True], [False, False]]


def test_layout(ranks: Pool) -> None:
    ranks.run(layouts)


def there_and_back(comm: a2a.Communicator, way: str, size: int, later: bool) -> None:
    from a2a.torch.deep_ep import Buffer

    at = group(comm, way, size)
    if comm.rank >= size:
        return
    buffer = Buffer(at, 1 << 20, explicitly_destroy=True)
    assert (buffer.rank, buffer.group_size) == (comm.rank, size)
    steps = world(size, seed=1)
    own, rows = steps[comm.rank], arriving(steps, comm.rank)
    layout = buffer.get_dispatch_layout(own.topk_idx, EACH * size)
    given = {"num_tokens_per_rank": layout[0], "num_tokens_per_expert": layout[2], "is_token_in_rank": layout[3]}
    more = {"previous_event": buffer.capture(), "async_finish": later}

    x, idx, weights, counts, handle, event = buffer.dispatch(
        own.x, topk_idx=own.topk_idx, topk_weights=own.topk_weights, expert_alignment=4, **given, **more
    )
    with event:
        pass
    assert (event.event is not None) == later
    assert alike(x, stacked([steps[p].x[t] for p, t in rows], own.x))
    local = stacked([steps[p].topk_idx[t] for p, t in rows], own.topk_idx) - EACH * comm.rank
    mine = (local >= 0) & (local < EACH)
    assert torch.equal(idx, local.masked_fill(~mine, -1))
    assert torch.equal(weights, stacked([steps[p].topk_weights[t] for p, t in rows], weights).masked_fill(~mine, 0))
    assert counts == [-(-int((idx == e).sum()) // 4) * 4 for e in range(EACH)]

    again, *nothing, event = buffer.internode_dispatch(own.x * 2, handle=handle, **more)
    with event:
        pass
    assert alike(again, x * 2) and nothing == [None] * 4
    worst, worst_idx, worst_weights, none, worst_handle, _ = buffer.dispatch(
        own.x, topk_idx=own.topk_idx, topk_weights=own.topk_weights, num_worst_tokens=40, **given
    )
    assert worst.shape == (40, 8) and alike(worst[: len(x)], x) and none == []
    assert worst_idx[len(x) :].eq(-1).all() and worst_weights[len(x) :].eq(0).all()

    pair, idx8, weights8, counts8, handle8, _ = buffer.dispatch(quantized(own.x), **given)
    assert (idx8, weights8, counts8) == (None, None, [int((idx == e).sum()) for e in range(EACH)])
    assert all(alike(got, want) for got, want in zip(pair, quantized(x), strict=True))

    for bias in (None, own.grad, (own.grad, own.x)):
        total = sum((x.float() for x in ((bias,) if bias is own.grad else bias or ())), torch.zeros(own.x.shape))
        want = (own.x.float() * layout[3].sum(1, keepdim=True) + total).bfloat16()
        for back, by in ((x, handle), (worst, worst_handle), (x, handle8)):
            y, _, event = buffer.combine(back, by, bias=bias, **more)
            with event:
                pass
            assert alike(y, want)
    y, sums, _ = buffer.internode_combine(x, handle, topk_weights=weights)
    assert torch.equal(sums, own.topk_weights.masked_fill(own.topk_idx < 0, 0))
    buffer.destroy()


@pytest.mark.parametrize("device", [False, True])
@pytest.mark.parametrize("later", [False, True])
def test_dispatch_and_combine(ranks: Pool, later: bool, device: bool) -> None:
    for size in (1, 2, 3):
        ranks.run(on_device, device, there_and_back, "communicator", size, later)


@pytest.mark.parametrize("way", ["functions", "backend"])
def test_process_groups(ranks: Pool, way: str) -> None:
    ranks.run(there_and_back, way, 2, False)


def low_latency(comm: a2a.Communicator, size: int, how: str, fp8: bool, rounded: bool, packed: bool) -> None:
    from a2a.torch.deep_ep import Buffer

    at = group(comm, "communicator", size)
    if comm.rank >= size:
        return
    buffer = Buffer(at, low_latency_mode=True)
    steps, most, hidden = world(size, seed=2, hidden=512), 12, 512
    own = steps[comm.rank]
    stats = torch.ones(EACH, dtype=torch.int32)
    more = {"async_finish": how == "event", "return_recv_hook": how == "hook"}
    x, counts, handle, event, hook = buffer.low_latency_dispatch(
        own.x, own.topk_idx, most, EACH * size, stats, use_fp8=fp8, round_scale=rounded, use_ue8m0=packed, **more
    )
    if hook is not None:
        hook()
    elif how == "event":
        event.current_stream_wait()
    values = x
    if fp8:
        values, scales = x
        if packed:
            assert scales.dtype == torch.int32 and scales.stride(-2) == 1
            exponents = scales.reshape(-1).view(torch.uint8).view(EACH, size * most, -1)
            scales = (exponents.int() << 23).view(torch.float32)
        if rounded:
            assert (torch.frexp(scales)[0][scales != 0] == 0.5).all()
        values = (values.float() * scales.repeat_interleave(128, 2)).bfloat16()
    assert values.shape == (EACH, size * most, hidden)
    assert torch.equal(stats - 1, counts) and counts.dtype == torch.int32
    for e in range(EACH):
        number = EACH * comm.rank + e
        rows = [(p, t) for p, its in enumerate(steps) for t in (its.topk_idx == number).any(1).nonzero().flatten()]
        assert int(counts[e]) == len(rows)
        assert handle[0][e, : len(rows)].tolist() == [int(t) for _, t in rows]
        begins, each = handle[1][e] >> 32, handle[1][e] & 0xFFFFFFFF
        assert each.tolist() == [sum(p == rank for p, _ in rows) for rank in range(size)]
        assert begins.tolist() == [sum(each[:rank].tolist()) for rank in range(size)]
        want = stacked([steps[p].x[t] for p, t in rows], own.x)
        near = {"rtol": 0.07, "atol": 0.02} if fp8 else {"rtol": 0, "atol": 0}
        torch.testing.assert_close(values[e, : len(rows)], want, **near)
        assert values[e, len(rows) :].eq(0).all()

    made = torch.stack([expert(values[e], EACH * comm.rank + e) for e in range(EACH)])
    out = torch.empty_like(own.x) if how == "hook" else None
    if how == "event":
        buffer.get_next_low_latency_combine_buffer(handle)[:] = made
    y, event, hook = buffer.low_latency_combine(
        made, own.topk_idx, own.topk_weights, handle, zero_copy=how == "event", out=out, **more
    )
    if hook is not None:
        hook()
        assert y is out
    elif how == "event":
        event.current_stream_wait()
    want = loop(own.x, own.topk_idx, own.topk_weights)
    assert alike(y, want) if not fp8 else torch.allclose(y.float(), want.float(), rtol=0.1, atol=0.2)


@pytest.mark.parametrize("device", [False, True])
@pytest.mark.parametrize("how", ["now", "event", "hook"])
@pytest.mark.parametrize("fp8,rounded,packed", [(False,) * 3, (True, False, False), (True, True, False), (True,) * 3])
def test_low_latency(ranks: Pool, how: str, fp8: bool, rounded: bool, packed: bool, device: bool) -> None:
    for size in (1, 2, 3):
        ranks.run(on_device, device, low_latency, size, how, fp8, rounded, packed)


def masks(comm: a2a.Communicator) -> None:
    from a2a.torch.deep_ep import Buffer

    buffer, status = Buffer(comm), torch.ones(comm.size, dtype=torch.int32)
    buffer.low_latency_query_mask_buffer(status)
    buffer.low_latency_clean_mask_buffer()
    assert status.tolist() == [0] * comm.size
    with pytest.raises(a2a.InvalidArgumentError, match="enable_shrink=True"):
        buffer.low_latency_update_mask_buffer(1, True)
    with pytest.raises(a2a.InvalidArgumentError, match="mask_status has shape"):
        buffer.low_latency_query_mask_buffer(status[1:].clone() if comm.size > 1 else torch.zeros(2))


def test_no_rank_is_masked(ranks: Pool) -> None:
    ranks.run(masks)


def elastic(comm: a2a.Communicator, size: int, expand: bool, sync: bool, later: bool) -> None:
    from a2a.torch.deep_ep import ElasticBuffer

    at = group(comm, "communicator", size)
    if comm.rank >= size:
        return
    steps, most, align = world(size, seed=3), 12, 4
    own, tokens = steps[comm.rank], arriving(steps, comm.rank)
    buffer = ElasticBuffer(at, num_max_tokens_per_rank=most)
    stats = torch.zeros(EACH, dtype=torch.int32)
    given = quantized(own.x) if later else own.x
    x, idx, weights, handle, event = buffer.dispatch(
        given, own.topk_idx, own.topk_weights, stats, EACH * size, expert_alignment=align, do_cpu_sync=sync,
        do_expand=expand, async_with_compute_stream=later, previous_event=buffer.capture(),
        use_tma_aligned_col_major_sf=later,
    )  # fmt: skip
    if later:
        event.current_stream_wait()
        assert x[1].stride() == (1, -(-len(x[1]) // 4) * 4)
    numbers = [p * most + t for p, t in tokens]
    assert handle.num_recv_tokens == len(tokens)
    assert handle.recv_src_metadata[:, 0].tolist() == numbers
    assert torch.equal(stats, handle.num_unaligned_recv_tokens_per_expert)
    assert handle.num_recv_tokens_per_expert_list == [-(-int(count) // align) * align for count in stats]
    sources = handle.psum_num_recv_tokens_per_scaleup_rank.tolist()
    assert sources == [sum(p <= rank for p, _ in tokens) for rank in range(size)]

    # Where each token's row is, and with do_expand the one for each of its experts.
    rows = x[0] if later else x
    places = handle.recv_src_metadata[:, 2:] if expand else torch.arange(len(tokens)).unsqueeze(1)
    for (p, t), own_rows in zip(tokens, places.tolist(), strict=True):
        for k, at_row in enumerate(own_rows):
            if at_row < 0:
                continue
            assert alike(rows[at_row], quantized(steps[p].x[t : t + 1])[0][0] if later else steps[p].x[t])
            if expand:
                number = int(steps[p].topk_idx[t, k])
                assert EACH * comm.rank <= number < EACH * (comm.rank + 1)
                assert float(weights[at_row]) == float(steps[p].topk_weights[t, k])
    if expand:
        ends = handle.psum_num_recv_tokens_per_expert.tolist()
        assert idx is None and int((places >= 0).sum()) == int(stats.sum())
        assert ends[-1] <= handle.num_expanded_tokens == sum(handle.num_recv_tokens_per_expert_list)
        for end in ends:
            assert rows[end : -(-end // align) * align].float().eq(0).all()
    else:
        assert idx[len(tokens) :].eq(-1).all() and idx.shape == weights.shape == (len(rows), own.topk_idx.shape[1])
    if not sync:
        assert len(rows) == handle.worst_rows()

    again, again_idx, other, _, _ = buffer.dispatch(
        own.x * 2, topk_weights=own.topk_weights * 2, handle=handle, do_expand=expand
    )
    assert torch.equal(other, weights * 2) and (idx is None or torch.equal(again_idx, idx))
    plain = again.float() / 2
    copies = (own.topk_idx >= 0).sum(1) if expand else buffer_counts(own.topk_idx)
    y, sums, event = buffer.combine(
        plain.bfloat16(), handle, topk_weights=weights, bias=own.grad, async_with_compute_stream=later
    )
    if later:
        event.current_stream_wait()
    assert alike(y, (own.x.float() * copies.unsqueeze(1) + own.grad.float()).bfloat16())
    assert torch.equal(sums, own.topk_weights.masked_fill(own.topk_idx < 0, 0))


def buffer_counts(topk_idx: Any) -> Any:
    """How many ranks each token goes to."""
    homes = [{e // EACH for e in experts if e >= 0} for experts in topk_idx.tolist()]
    return torch.tensor([len(ranks) for ranks in homes])


@pytest.mark.parametrize("device", [False, True])
@pytest.mark.parametrize("expand", [False, True])
@pytest.mark.parametrize("sync,later", [(True, False), (True, True), (False, False), (False, True)])
def test_elastic(ranks: Pool, expand: bool, sync: bool, later: bool, device: bool) -> None:
    for size in (1, 2, 3):
        ranks.run(on_device, device, elastic, size, expand, sync, later)


def events(comm: a2a.Communicator) -> None:
    from a2a.torch.deep_ep import Buffer, EventHandle, EventOverlap

    event, order = Buffer.capture(), []
    event.register_hook_after_wait(lambda: order.append("hook"))
    with pytest.raises(a2a.InvalidArgumentError, match="a hook already"):
        event.register_hook_after_wait(print)
    with event(release_handle=True):
        order.append("body")
    assert order == ["body", "hook"] and event.event is None
    with EventOverlap():
        pass
    with pytest.raises(a2a.InvalidArgumentError, match="without async_finish"):
        EventOverlap(None).current_stream_wait()
    EventHandle().current_stream_wait()


def tuning(comm: a2a.Communicator) -> None:
    from a2a.torch.deep_ep import Buffer, Config

    before = Buffer.num_sms
    Buffer.set_num_sms(24)
    for config in (Buffer.get_dispatch_config(7), Buffer.get_combine_config(2), Config(24, 8, 256)):
        assert (config.get_nvl_buffer_size_hint(14336, 8), config.get_rdma_buffer_size_hint(14336, 8)) == (0, 0)
        assert config.num_sms == 24
    with pytest.raises(a2a.InvalidArgumentError, match="must be even"):
        Buffer.set_num_sms(3)
    Buffer.set_num_sms(before)
    assert Buffer.get_low_latency_rdma_size_hint(128, 7168, 8, 256) == 0
    with pytest.raises(ValueError, match="must be provided"):
        Buffer(None)


def test_events_and_what_tunes(ranks: Pool) -> None:
    ranks.run(events)
    ranks.run(tuning)


REFUSALS = {
    "x is list": ("dispatch", {"x": [1]}),
    "x has shape (2,)": ("dispatch", {"x": torch.ones(2)}),
    "num_tokens_per_rank is None": ("dispatch", {"num_tokens_per_rank": None}),
    "is_token_in_rank has shape (3, 2)": ("dispatch", {"is_token_in_rank": torch.ones(3, 2, dtype=torch.bool)}),
    "num_experts is 3": ("dispatch", {"num_tokens_per_expert": torch.ones(3, dtype=torch.int32)}),
    "num_worst_tokens is 1": ("dispatch", {"num_worst_tokens": 1}),
    "topk_weights has shape (1, 1)": ("dispatch", {"topk_weights": torch.ones(1, 1)}),
    "expert_alignment is 0": ("dispatch", {"expert_alignment": 0}),
    "num_worst_tokens is 'a'": ("dispatch", {"num_worst_tokens": "a"}),
    "is_token_in_rank is torch.int32": ("dispatch", {"is_token_in_rank": torch.ones(2, 2, dtype=torch.int32)}),
    "topk_idx is list": ("dispatch", {"topk_idx": [[0], [1]]}),
    "topk_weights is torch.float64": ("dispatch", {"topk_weights": torch.ones(2, 1, dtype=torch.float64)}),
    "handle is int": ("dispatch", {"handle": 1, "topk_idx": None}),
    "both handle and topk_idx": ("dispatch", {"handle": 1}),
    "x has shape (1, 4)": ("combine", {"x": torch.ones(1, 4)}),
    "handle is str": ("combine", {"handle": "h"}),
    "topk_weights has shape (1,)": ("combine", {"topk_weights": torch.ones(1)}),
    "bias has shape (1, 4)": ("combine", {"bias": torch.ones(1, 4)}),
    "x has 2 tokens, but num_max": ("low_latency_dispatch", {"num_max_dispatch_tokens_per_rank": 1}),
    "num_max_dispatch_tokens_per_rank is '2'": ("low_latency_dispatch", {"num_max_dispatch_tokens_per_rank": "2"}),
    "cumulative_local_expert_recv_stats is (5,)": (
        "low_latency_dispatch",
        {"cumulative_local_expert_recv_stats": torch.ones(5, dtype=torch.int32)},
    ),
    "x has 4 channels": ("low_latency_dispatch", {"use_fp8": True}),
    "use_ue8m0 needs round_scale": ("low_latency_dispatch", {"use_ue8m0": True}),
    "handle is tuple": ("low_latency_combine", {"handle": ()}),
    "x has shape (2, 4)": ("low_latency_combine", {"x": torch.ones(2, 4)}),
    "topk_idx is not the one": ("low_latency_combine", {"topk_idx": torch.tensor([[1], [1]])}),
    "neither topk_idx nor handle": ("elastic", {"topk_idx": None}),
    "x has 2 tokens, but num_max_tokens": ("elastic", {"num_max_tokens_per_rank": 1}),
    "expert_alignment is '4'": ("elastic", {"expert_alignment": "4"}),
    "num_experts is None": ("elastic", {"num_experts": None}),
}


def refused(comm: a2a.Communicator, name: str) -> str | None:
    from a2a.torch.deep_ep import Buffer, ElasticBuffer

    at = group(comm, "communicator", 2)
    if comm.rank >= 2:
        return None
    buffer, x, idx = Buffer(at), torch.ones(2, 4), torch.tensor([[0], [1]])
    layout = buffer.get_dispatch_layout(idx, 2)
    dispatch = {
        "x": x, "topk_idx": idx, "topk_weights": torch.ones(2, 1), "num_tokens_per_rank": layout[0],
        "num_tokens_per_expert": layout[2], "is_token_in_rank": layout[3],
    }  # fmt: skip
    low = {"x": x, "topk_idx": idx, "num_max_dispatch_tokens_per_rank": 2, "num_experts": 2, "use_fp8": False}
    rows, _, _, _, handle, _ = buffer.dispatch(**dispatch)
    room, _, low_handle, _, _ = buffer.low_latency_dispatch(**low)
    calls: dict[str, tuple[Any, dict[str, Any]]] = {
        "dispatch": (buffer.dispatch, dispatch),
        "combine": (buffer.combine, {"x": rows, "handle": handle}),
        "low_latency_dispatch": (buffer.low_latency_dispatch, low),
        "low_latency_combine": (
            buffer.low_latency_combine,
            {"x": room, "topk_idx": idx, "topk_weights": torch.ones(2, 1), "handle": low_handle},
        ),
        "elastic": (ElasticBuffer(at, num_max_tokens_per_rank=2).dispatch, {"x": x, "topk_idx": idx, "num_experts": 2}),
    }
    which, bad = REFUSALS[name]
    call, good = calls[which]
    with pytest.raises(a2a.Error) as caught:
        call(**(good | bad if comm.rank == 0 else good))
    y, _, _ = buffer.combine(rows, handle)  # the ranks still understand each other
    assert torch.equal(y, x)
    return f"{type(caught.value).__name__}: {caught.value}"


@pytest.mark.parametrize("device", [False, True])
def test_refusals(ranks: Pool, device: bool) -> None:
    for name in REFUSALS:
        first, second = ranks.run(on_device, device, refused, name)[:2]
        assert "rank 0: " in first and name.split(" ")[0] in first, (name, first)
        assert second.startswith(("MismatchError: ", "InvalidArgumentError: ")), (name, second)


# What rank 0 passes, where the ranks have to pass the same.
DIFFERENCES: dict[str, tuple[str, dict[str, Any]]] = {
    "num_max_dispatch_tokens_per_rank": ("low_latency_dispatch", {"num_max_dispatch_tokens_per_rank": 3}),
    "use_fp8": ("low_latency_dispatch", {"use_fp8": True}),
    "round_scale": ("low_latency_dispatch", {"round_scale": True}),
    "use_ue8m0": ("low_latency_dispatch", {"round_scale": True, "use_ue8m0": True}),
    "hidden": ("low_latency_dispatch", {"x": torch.ones(2, 1024)}),
    "placement of experts": ("low_latency_dispatch", {"num_experts": 4}),
    "hidden of dispatch": ("dispatch", {"x": torch.ones(2, 4)}),
    "columns of the scales of x": ("dispatch", {"x": (torch.ones(2, 512), torch.ones(2, 4))}),
    "columns of topk_idx": ("dispatch", {"topk_idx": torch.tensor([[0, 1], [1, 0]]), "topk_weights": None}),
    "topk_weights": ("dispatch", {"topk_weights": None}),
    "num_max_tokens_per_rank": ("elastic", {"num_max_tokens_per_rank": 3}),
    "layout": ("elastic", {"do_expand": True}),
    "hidden of elastic": ("elastic", {"x": torch.ones(2, 4)}),
    "placement of experts of elastic": ("elastic", {"num_experts": 4}),
}


def different(comm: a2a.Communicator, name: str) -> str | None:
    from a2a.torch.deep_ep import Buffer, ElasticBuffer

    at = group(comm, "communicator", 2)
    if comm.rank >= 2:
        return None
    buffer, x, idx = Buffer(at), torch.ones(2, 512), torch.tensor([[0], [1]])
    layout = buffer.get_dispatch_layout(idx, 2)
    own: dict[str, dict[str, Any]] = {
        "dispatch": {
            "x": x, "topk_idx": idx, "topk_weights": torch.ones(2, 1), "num_tokens_per_rank": layout[0],
            "num_tokens_per_expert": layout[2], "is_token_in_rank": layout[3],
        },
        "low_latency_dispatch": {
            "x": x, "topk_idx": idx, "num_max_dispatch_tokens_per_rank": 2, "num_experts": 2, "use_fp8": False
        },
        "elastic": {"x": x, "topk_idx": idx, "num_experts": 2},
    }  # fmt: skip
    which, others = DIFFERENCES[name]
    calls: dict[str, Any] = {
        "dispatch": buffer.dispatch,
        "low_latency_dispatch": buffer.low_latency_dispatch,
        "elastic": ElasticBuffer(at, num_max_tokens_per_rank=2).dispatch,
    }
    with pytest.raises(a2a.MismatchError) as caught:
        calls[which](**(own[which] | others if comm.rank == 0 else own[which]))
    rows, _, _, _, handle, _ = buffer.dispatch(**own["dispatch"])
    assert torch.equal(buffer.combine(rows, handle)[0], x)  # the ranks are in step
    return str(caught.value)


@pytest.mark.parametrize("device", [False, True])
def test_arguments_that_all_ranks_have_alike(ranks: Pool, device: bool) -> None:
    for name in DIFFERENCES:
        for said in ranks.run(on_device, device, different, name)[:2]:
            assert f"dispatch: {name.partition(' of dispatch')[0].partition(' of elastic')[0]}: rank" in said, said


def handles(comm: a2a.Communicator) -> None:
    """Rank 1 takes the handle of another step, with as many rows."""
    from a2a.torch.deep_ep import Buffer, ElasticBuffer

    at = group(comm, "communicator", 2)
    if comm.rank >= 2:
        return
    buffer, elastic = Buffer(at), ElasticBuffer(at, num_max_tokens_per_rank=2)
    x, idx, weights = torch.arange(8.0).view(2, 4).bfloat16(), torch.tensor([[0], [1]]), torch.ones(2, 1)
    layout = buffer.get_dispatch_layout(idx, 2)
    steps, low, expanded = [], [], []
    for choices in (idx, idx.flip(0)):
        steps.append(
            buffer.dispatch(
                x, num_tokens_per_rank=layout[0], is_token_in_rank=layout[3], num_tokens_per_expert=layout[2],
                topk_idx=choices,
            )
        )  # fmt: skip
        low.append(buffer.low_latency_dispatch(x, choices, 2, 2, use_fp8=False))
        expanded.append(elastic.dispatch(x, choices, num_experts=2, do_expand=True))
    own, elsewhere = comm.rank, at.split(0)
    for call in (
        lambda: buffer.dispatch(x, handle=steps[own][4]),
        lambda: buffer.combine(steps[own][0], steps[own][4]),
        lambda: elastic.dispatch(x, handle=expanded[own][3], do_expand=True),
        lambda: elastic.combine(expanded[own][0], expanded[own][3]),
        lambda: buffer.low_latency_combine(low[own][0], (idx, idx.flip(0))[own], weights, low[own][2]),
    ):
        with pytest.raises(a2a.MismatchError, match="uses routing"):
            call()
    foreign = Buffer(elsewhere).low_latency_dispatch(x, idx, 2, 2, use_fp8=False)
    other = ElasticBuffer(elsewhere, num_max_tokens_per_rank=2).dispatch(x, idx, num_experts=2, do_expand=True)
    for call in (
        lambda: buffer.low_latency_combine(low[0][0], idx, weights, low[0][2] if own else foreign[2]),
        lambda: elastic.dispatch(x, handle=expanded[0][3] if own else other[3], do_expand=True),
        lambda: elastic.combine(expanded[0][0], expanded[0][3] if own else other[3]),
    ):
        with pytest.raises(a2a.MismatchError if own else a2a.InvalidArgumentError, match="another communicator"):
            call()
    assert torch.equal(buffer.combine(steps[0][0], steps[0][4])[0], x)
    assert torch.equal(buffer.low_latency_combine(low[1][0], idx.flip(0), weights, low[1][2])[0], x)


def test_handles_have_an_identity(ranks: Pool) -> None:
    ranks.run(handles)


def strange(comm: a2a.Communicator) -> None:
    """Dtypes that torch has few operations for, and arguments that the signature does not know."""
    from a2a.torch.deep_ep import Buffer

    at = group(comm, "communicator", 2)
    if comm.rank >= 2:
        return
    buffer, idx = Buffer(at), torch.tensor([[0], [1]])
    layout = buffer.get_dispatch_layout(idx, 2)
    given = {"num_tokens_per_rank": layout[0], "num_tokens_per_expert": layout[2], "is_token_in_rank": layout[3]}
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2, torch.float64, torch.float16):
        x = torch.tensor([[0.5, -2.0], [4.0, 1.5]]).to(dtype)
        rows, *_, handle, _ = buffer.dispatch(x, topk_idx=idx, **given)
        assert alike(rows[:1], x[comm.rank : comm.rank + 1])
        y, _, _ = buffer.combine(rows, handle, bias=x[:, :1].float().to(dtype).expand(2, 2))
        assert alike(y, (x.float() + x[:, :1].float()).to(dtype))
    for dtype in (torch.int8, torch.bool, torch.complex64):
        rows, *_, handle, _ = buffer.dispatch(torch.ones(2, 3, dtype=dtype), topk_idx=idx, **given)
        assert rows.dtype == dtype
        with pytest.raises(a2a.InvalidArgumentError, match="a weighted sum is not defined for"):
            buffer.combine(rows, handle)
    with pytest.raises(TypeError if comm.rank == 0 else a2a.MismatchError, match="nothing"):
        buffer.dispatch(x, topk_idx=idx, **given, **({"nothing": 1} if comm.rank == 0 else {}))


@pytest.mark.parametrize("device", [False, True])
def test_dtypes_and_keywords(ranks: Pool, device: bool) -> None:
    ranks.run(on_device, device, strange)


INSTALL = """
import sys
import a2a.torch.deep_ep
found = a2a.torch.deep_ep.install()
import deep_ep
from deep_ep import Buffer
from deep_ep.utils import EventHandle, EventOverlap
print(deep_ep is a2a.torch.deep_ep, found is deep_ep, getattr(Buffer, "theirs", False))
"""


@pytest.mark.full
def test_install_where_deep_ep_is_absent(tmp_path: Path) -> None:
    def installed() -> str:
        command = [sys.executable, "-c", INSTALL]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True).stdout

    assert installed().split() == ["True", "True", "False"]
    there = tmp_path / "deep_ep"
    there.mkdir()
    (there / "__init__.py").write_text("class Buffer:\n    theirs = True\n")
    (there / "utils.py").write_text("EventHandle = EventOverlap = None\n")
    assert installed().split() == ["False", "False", "True"]


def megatron(comm: a2a.Communicator, later: bool) -> None:
    """What _DeepepManager of megatron.core.transformer.moe.token_dispatcher does with them."""
    import a2a.torch.deep_ep

    at = group(comm, "functions", 2)
    if comm.rank >= 2:
        return
    a2a.torch.deep_ep.install()
    from megatron.core.transformer.moe import fused_a2a

    fused_a2a.set_deepep_num_sms(20)
    own = step(comm.rank, 2, K, 2 * EACH, torch.float32, 4)
    x, weights = own.x.clone().requires_grad_(), own.topk_weights.clone().requires_grad_()
    arrived, idx, probs, counts, handle = fused_a2a.fused_dispatch(x, own.topk_idx, weights, 2 * EACH, at, later, later)
    assert counts.tolist() == [int((idx == e).sum()) for e in range(EACH)]
    rows = torch.zeros_like(arrived)
    for k in range(K):
        for e in range(EACH):
            made = expert(arrived, EACH * comm.rank + e)
            rows = torch.where((idx[:, k] == e).unsqueeze(1), rows + probs[:, k : k + 1] * made, rows)
    y, _ = fused_a2a.fused_combine(rows, at, handle, later, later)
    y.backward(own.grad)
    x_again, weights_again = own.x.clone().requires_grad_(), own.topk_weights.clone().requires_grad_()
    want = loop(x_again, own.topk_idx, weights_again)
    want.backward(own.grad)
    for got, wanted in ((y, want), (x.grad, x_again.grad), (weights.grad, weights_again.grad)):
        torch.testing.assert_close(got, wanted)


def flex_dispatcher(comm: a2a.Communicator, later: bool) -> None:
    """Megatron-Core's own steps round them: permute by expert, multiply by the probabilities, and back."""
    from types import SimpleNamespace

    import a2a.torch.deep_ep

    at = group(comm, "backend", 2)
    if comm.rank >= 2:
        return
    a2a.torch.deep_ep.install()
    from megatron.core.transformer.moe.token_dispatcher import _DeepepManager

    config = SimpleNamespace(
        moe_router_dtype="fp32", moe_expert_capacity_factor=None, moe_permute_fusion=False, moe_deepep_num_sms=20,
        moe_router_padding_for_quantization=False,
    )  # fmt: skip
    manager = _DeepepManager(at, EACH, K, 2 * EACH, config)
    torch.manual_seed(comm.rank)
    tokens = 5 - 2 * comm.rank
    x, scores = torch.randn(tokens, 8, requires_grad=True), torch.rand(tokens, 2 * EACH, requires_grad=True)
    probs, idx = scores.topk(K)
    routed = torch.zeros_like(scores).scatter(1, idx, probs)
    manager.setup_metadata(routed > 0, routed)
    arrived = manager.dispatch(x, later, later)
    rows, weights = manager.get_permuted_hidden_states_by_experts(arrived)
    parts = rows.split(manager.get_number_of_tokens_per_expert().tolist())
    made = torch.cat([expert(part, EACH * comm.rank + e) for e, part in enumerate(parts)]) * weights.unsqueeze(1)
    y = manager.combine(manager.get_restored_hidden_states_by_experts(made), later, later)
    grad = torch.randn(y.shape)
    got = torch.autograd.grad(y, (x, scores), grad, retain_graph=True)
    want = loop(x, idx, probs)
    torch.testing.assert_close(y, want)
    for one, other in zip(got, torch.autograd.grad(want, (x, scores), grad), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.skipif(importlib.util.find_spec("megatron") is None, reason="Megatron-Core is not installed")
@pytest.mark.parametrize("later", [False, True])
def test_megatron_core(ranks: Pool, later: bool) -> None:
    ranks.run(megatron, later)
    ranks.run(flex_dispatcher, later)
