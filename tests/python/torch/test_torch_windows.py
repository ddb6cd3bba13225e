"""Windows: puts and signals between ranks of one host, whose memory is mapped, and of several."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from rank_pool import Pool, RankFailure

import a2a

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.timeout(110)
RANKS = 3


@pytest.fixture(scope="module", params=["processes", "threads", "hosts"])
def three(request: pytest.FixtureRequest) -> Iterator[Pool]:
    with Pool(RANKS, threads=request.param == "threads", hosts="a,b,a" if request.param == "hosts" else "") as pool:
        yield pool


def window_on(comm: a2a.Communicator, tensor: Any) -> Any:
    import a2a.torch

    return a2a.torch.new_window(tensor, comm)


def ring(comm: a2a.Communicator) -> None:
    """Each rank puts into the next one's tensor, again and again."""
    after, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    for dtype in (torch.float32, torch.int8, torch.bfloat16, torch.complex128, torch.bool):
        own = torch.zeros(4, 8, dtype=dtype)
        window = window_on(comm, own)
        for step in range(3):
            given = (torch.arange(16) + comm.rank + step).to(dtype).view(8, 2).t()  # not contiguous
            window.put(given, after, 3, step % 2 == 1)
            given.zero_()  # the window has taken it
            window.signal(after)
            work = window.wait_signal(before, step % 2 == 1)
            assert work.wait() and work.is_completed()
            due = torch.zeros(32, dtype=dtype)
            due[3:19] = (torch.arange(16) + before + step).to(dtype).view(8, 2).t().reshape(-1)
            assert torch.equal(own.view(-1), due), (dtype, step)
            window.signal(before)  # it may put again
            window.wait_signal(after)
        window.tensor_deregister()


def test_ring(three: Pool) -> None:
    three.run(ring)


def random_puts(comm: a2a.Communicator, seed: int) -> None:
    """All ranks put at once, each into its own part of every tensor; tensors differ in size, and may be empty."""
    chance = random.Random(seed)  # the same on all ranks
    sizes = [chance.choice([0, 7, 3000, 400_000]) for _ in range(comm.size)]
    own = torch.full((sizes[comm.rank],), -1.0)
    window = window_on(comm, own)
    for peer, size in enumerate(sizes):
        part = size // comm.size
        window.put(torch.full((part,), float(comm.rank)), peer, comm.rank * part)
        window.signal(peer)
    for peer in range(comm.size):
        window.wait_signal(peer)
    part = sizes[comm.rank] // comm.size
    due = torch.full_like(own, -1.0)
    for peer in range(comm.size):
        due[peer * part : (peer + 1) * part] = peer
    assert torch.equal(own, due)
    window.tensor_deregister()


@pytest.mark.parametrize("seed", range(4))
def test_random_puts(three: Pool, seed: int) -> None:
    three.run(random_puts, seed)


def many_signals(comm: a2a.Communicator) -> None:
    """A signal is never lost, and ends one wait. Deregistering ends what nobody waits for."""
    own = torch.zeros(2, dtype=torch.int64)
    window = window_on(comm, own)
    if comm.rank == 0:
        for step in range(50):
            window.put(torch.tensor([step]), 1, 0)
            window.signal(1)
        window.put(torch.tensor([99]), 2, 1)
        window.signal(2)
    elif comm.rank == 1:
        for _ in range(50):
            window.wait_signal(0)
        assert own[0] == 49
    window.tensor_deregister()
    assert comm.rank != 2 or own.tolist() == [0, 99]
    window.tensor_register(own)
    if comm.rank == 0:
        window.put(torch.tensor([7]), 2, 0)
        window.signal(2)
    if comm.rank == 2:
        window.wait_signal(0)
        assert own.tolist() == [7, 99]
    window.tensor_deregister()


def test_many_signals(three: Pool) -> None:
    three.run(many_signals)


def maps(comm: a2a.Communicator) -> list[str]:
    base = torch.arange(12.0) + 100 * comm.rank
    own = base[4:10]  # a part of a larger memory
    window = window_on(comm, own)
    seen = []
    for peer in range(comm.size):
        try:
            remote = window.map_remote_tensor(peer)
            assert remote.tolist() == [100.0 * peer + 4 + at for at in range(6)]
            seen.append("UNIFIED")
        except a2a.UnsupportedError as error:
            assert f"rank {peer}" in str(error)
            seen.append("SEPARATE")
        if hasattr(torch._C._distributed_c10d, "WindowAttr"):
            assert window.get_attr(peer).access_type.name == seen[-1]
    comm.barrier()
    if comm.rank == 0:
        window.map_remote_tensor(2)[1] = 5.0
    comm.barrier()
    assert comm.rank != 2 or base[5] == 5.0
    window.tensor_deregister()
    return seen


def test_maps(three: Pool) -> None:
    apart = ["UNIFIED", "SEPARATE", "UNIFIED"]
    due = [apart, ["SEPARATE", "UNIFIED", "SEPARATE"], apart] if three.hosts else [["UNIFIED"] * 3] * 3
    assert three.run(maps) == due


def refusals(comm: a2a.Communicator) -> None:
    own = torch.zeros(4)
    window = window_on(comm, None)
    for call in (lambda: window.put(own, 0, 0), lambda: window.signal(0), window.tensor_deregister):
        with pytest.raises(a2a.InvalidArgumentError, match="no tensor is registered"):
            call()
    wrong = [torch.zeros(4, 4).t(), None, torch.zeros(4, requires_grad=True), torch.zeros(4, device="meta")]
    for given in wrong:
        with pytest.raises(a2a.InvalidArgumentError if comm.rank == 1 else a2a.MismatchError, match=r"rank 1|tensor"):
            window.tensor_register(given if comm.rank == 1 else own)
    with pytest.raises(a2a.MismatchError, match=r"rank 1 has torch\.int64"):
        window.tensor_register(own if comm.rank != 1 else torch.zeros(4, dtype=torch.int64))
    window.tensor_register(own)
    with pytest.raises(a2a.InvalidArgumentError, match="call tensor_deregister"):
        window.tensor_register(own)
    with pytest.raises(a2a.InvalidArgumentError, match="elements 2 to 5 are not in the tensor of rank 1, which has 4"):
        window.put(torch.zeros(3), 1, 2)
    with pytest.raises(a2a.InvalidArgumentError, match="elements -1 to"):
        window.put(torch.zeros(1), 1, -1)
    with pytest.raises(a2a.InvalidArgumentError, match=r"torch\.float64"):
        window.put(torch.zeros(3, dtype=torch.float64), 1, 0)
    for rank in (3, -1, None):
        with pytest.raises(a2a.InvalidArgumentError, match="the group has the ranks 0 to 2"):
            window.signal(rank)
    with pytest.raises(a2a.InvalidArgumentError, match="cannot any more"):
        window.wait_signal(comm.rank)
    window.tensor_deregister()


def test_refusals(three: Pool) -> None:
    three.run(refusals)


class Options:
    """Torch 2.14's WaitSignalOptions, as far as the window looks at it."""

    def __init__(self, seconds: float) -> None:
        self.timeout = timedelta(seconds=seconds)


def late(comm: a2a.Communicator) -> None:
    """A wait that times out loses nothing."""
    own = torch.zeros(1)
    window = window_on(comm, own)
    if comm.rank == 0:
        for _ in range(2):
            with pytest.raises(a2a.TimeoutError, match="timeout"):
                window.wait_signal(1, opts=Options(0.1))
    comm.barrier()
    if comm.rank == 1:
        window.put(torch.ones(1), 0, 0)
        window.signal(0)
    if comm.rank == 0:
        window.wait_signal(1, opts=Options(20))
        assert own == 1
    window.tensor_deregister()


def test_late(three: Pool) -> None:
    three.run(late)


def deaths(comm: a2a.Communicator) -> str:
    window = window_on(comm, torch.zeros(4))
    window.signal(0)  # all have come here
    if comm.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    begun = time.monotonic()
    with pytest.raises(a2a.PeerLostError, match=r"rank 1\b.*Connection closed by peer"):
        window.wait_signal(1) if comm.rank == 2 else (window.wait_signal(1), window.wait_signal(1))
    return "told" if time.monotonic() - begun < 5 else "late"


def test_a_death_ends_the_wait() -> None:
    with Pool(RANKS) as pool, pytest.raises(RankFailure, match="1 of 3 ranks failed"):
        pool.run(deaths)
