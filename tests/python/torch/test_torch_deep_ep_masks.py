"""The masks of ``a2a.torch.deep_ep``: ranks that do not come, die, are masked by a call, and come back."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
from forked import apart
from members import Answer, Me, Members

torch = pytest.importorskip("torch")

from torch_moe_ranks import loop, step  # noqa: E402

pytestmark = pytest.mark.timeout(90)

SIZE, EACH, K, MOST, HIDDEN = 6, 2, 3, 12, 128


def expert_of_rows(rows: Any, number: int) -> Any:
    return torch.tanh(rows * (1 + number / 4))


def connected(me: Me, handles: list[str], generation: int, timeout: float) -> None:
    from a2a.torch.deep_ep import Buffer

    torch.set_num_threads(1)
    comm = me.endpoint.connect(handles, generation, timeout=15)
    comm.timeout = 15
    Buffer.low_latency_timeout = timeout
    me.kept["buffer"] = Buffer(comm, low_latency_mode=True, enable_shrink=True)


def status_of(buffer: Any) -> list[int]:
    status = torch.full((SIZE,), -1, dtype=torch.int32)
    buffer.low_latency_query_mask_buffer(status)
    masked: list[int] = status.nonzero().flatten().tolist()
    return masked


def dispatched(me: Me, seed: int, fp8: bool = False) -> list[int]:
    """A low-latency dispatch, checked against the tokens of the ranks that are not masked. Returns who is masked."""
    buffer = me.kept["buffer"]
    own = step(buffer.rank, SIZE, K, EACH * SIZE, torch.bfloat16, seed, HIDDEN)
    stats = torch.zeros(EACH, dtype=torch.int32)
    hooked = seed % 2 == 1
    x, counts, handle, event, hook = buffer.low_latency_dispatch(
        own.x, own.topk_idx, MOST, EACH * SIZE, stats, use_fp8=fp8, return_recv_hook=hooked, async_finish=not hooked
    )
    hook() if hook is not None else event.current_stream_wait()
    masked = status_of(buffer)
    values = (x[0].float() * x[1].repeat_interleave(128, 2)).bfloat16() if fp8 else x
    assert values.shape == (EACH, SIZE * MOST, HIDDEN) and torch.equal(stats, counts)
    for e in range(EACH):
        at = 0
        for source in range(SIZE):
            its = step(source, SIZE, K, EACH * SIZE, torch.bfloat16, seed, HIDDEN)
            tokens = (its.topk_idx == EACH * buffer.rank + e).any(1).nonzero().flatten()
            tokens = tokens[:0] if source in masked else tokens
            begin, count = int(handle[1][e, source]) >> 32, int(handle[1][e, source]) & 0xFFFFFFFF
            assert (begin, count) == (at, len(tokens))
            assert handle[0][e, begin : begin + count].tolist() == tokens.tolist()
            torch.testing.assert_close(
                values[e, begin : begin + count], its.x[tokens], rtol=0.07 * fp8, atol=0.05 * fp8
            )
            at += count
        assert int(counts[e]) == at
    me.kept["step"] = own, handle, values
    return masked


def combined(me: Me, zero_copy: bool = False) -> list[int]:
    """The combine of the last dispatch, against a loop without the experts of masked ranks."""
    buffer = me.kept["buffer"]
    own, handle, values = me.kept["step"]
    made = torch.stack([expert_of_rows(values[e], EACH * buffer.rank + e) for e in range(EACH)])
    if zero_copy:
        buffer.get_next_low_latency_combine_buffer(handle)[:] = made
    out = torch.empty_like(own.x)
    buffer.low_latency_combine(made, own.topk_idx, own.topk_weights, handle, zero_copy=zero_copy, out=out)
    masked = status_of(buffer)
    choices = torch.where(torch.isin(own.topk_idx // EACH, torch.tensor(masked)), -1, own.topk_idx)
    want = loop(own.x, choices, own.topk_weights)
    torch.testing.assert_close(out, want, rtol=0.02, atol=0.02)
    own.topk_idx[choices < 0] = -1  # as DeepEP's own test does
    return masked


def cleaned(me: Me) -> list[int]:
    me.kept["buffer"].clean_low_latency_buffer(MOST, HIDDEN, EACH * SIZE)
    return status_of(me.kept["buffer"])


def mask(me: Me, rank: int, masked: bool) -> None:
    me.kept["buffer"].low_latency_update_mask_buffer(rank, masked)


def unmask_all(me: Me) -> list[int]:
    me.kept["buffer"].low_latency_clean_mask_buffer()
    return status_of(me.kept["buffer"])


def die_later(me: Me, seed: int) -> None:
    import threading

    threading.Timer(0.03, os.kill, (os.getpid(), signal.SIGKILL)).start()
    for more in range(1 << 20):
        dispatched(me, seed + more)


def many_steps(me: Me, seed: int, victim: int) -> list[int]:
    """Steps until the victim is masked, and two more."""
    masked: list[int] = []
    for more in range(1 << 20):
        masked = dispatched(me, seed + more)
        if victim in masked:
            break
    return combined(me)


def values(answers: list[Answer]) -> list[Any]:
    assert not any(answer.error for answer in answers), answers
    return [answer.value for answer in answers]


def by_call(members: Members) -> None:
    assert values(members.run(range(SIZE), dispatched, 0)) == [[]] * SIZE
    here = [0, 1, 3, 4]
    for rank in (2, 5):
        values(members.run(here, mask, rank, True))
    assert values(members.run(here, combined)) == [[2, 5]] * 4
    assert values(members.run(here, dispatched, 1)) == [[2, 5]] * 4
    values(members.run(here, mask, 2, False))
    values(members.run([2], mask, 5, True))  # rank 2 has seen none of it
    here = [0, 1, 2, 3, 4]
    assert values(members.run(here, dispatched, 2)) == [[5]] * 5
    assert values(members.run(here, combined)) == [[5]] * 5
    assert values(members.run(here, unmask_all)) == [[]] * 5
    assert values(members.run(here, dispatched, 3)) == [[5]] * 5  # did not come back
    for wrong in (0, SIZE):
        (answer,) = members.run([0], mask, wrong, True)
        assert answer.error == "InvalidArgumentError"


def shrinking(members: Members) -> None:
    """DeepEP's own test: ranks 1, 3 and 5 are gone when they would first dispatch, combine and clean."""
    here = list(range(SIZE))
    gone: list[int] = []
    for seed, fp8 in enumerate((False, True)):
        for rank, function, arguments in ((1, dispatched, (seed, fp8)), (3, combined, ()), (5, cleaned, ())):
            if rank in here:
                here.remove(rank)
                gone.append(rank)
            assert values(members.run(here, function, *arguments)) == [gone] * len(here)


def dying(members: Members) -> None:
    for member in range(SIZE):
        if member == 4:
            members.start(member, die_later, 0)
        else:
            members.start(member, many_steps, 0, 4)
    here = [member for member in range(SIZE) if member != 4]
    assert values([members.answer(member) for member in here]) == [[4]] * 5
    assert values(members.run(here, dispatched, 7)) == [[4]] * 5
    assert values(members.run(here, combined, True)) == [[4]] * 5


@apart
def test_masks() -> None:
    """By calls, of ranks that do not come, and of one that dies within a call."""
    with Members(SIZE) as members:
        for generation, (timeout, check) in enumerate(((1.5, by_call), (0.6, shrinking), (15.0, dying))):
            values(members.run(range(SIZE), connected, members.handles, generation, timeout))
            check(members)
