"""ElasticBuffer of ``a2a.torch.deep_ep`` beside dispatch and combine: ``engram_*``, ``pp_*`` and ``agrs_*``, in the way
of DeepEP's own tests."""

from __future__ import annotations

import random
from typing import Any

import pytest
from rank_pool import Pool

import a2a

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.timeout(110)

ENTRIES, HIDDEN = 50, 16


def random_of(rank: int, seed: int, *shape: int) -> Any:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(100 * seed + rank)).bfloat16()


def buffer_of(comm: a2a.Communicator) -> Any:
    from a2a.torch.deep_ep import ElasticBuffer

    return ElasticBuffer(comm, num_bytes=1, explicitly_destroy=True)


def engram(comm: a2a.Communicator, fp8: bool) -> None:
    buffer = buffer_of(comm)
    with pytest.raises(a2a.InvalidArgumentError, match="before engram_write"):
        buffer.engram_fetch(torch.zeros(1, 1, dtype=torch.int32))
    for seed in range(2):
        storages = [random_of(rank, seed, ENTRIES, HIDDEN) for rank in range(comm.size)]
        scales = torch.rand(comm.size * ENTRIES, 3) if fp8 else None
        if fp8:
            storages = [one.to(torch.float8_e4m3fn) for one in storages]
        buffer.engram_write(storages[comm.rank], sf=scales)
        whole = torch.cat([one.view(torch.uint8) for one in storages])
        for tokens in (0, 1, 7):
            indices = torch.randint(0, comm.size * ENTRIES, (tokens, 4), dtype=torch.int32)
            for columns in (False, True):
                data, sf = buffer.engram_fetch(indices, use_tma_aligned_col_major_sf=columns)()
                assert data.dtype == storages[0].dtype and data.shape == (tokens, 4 * HIDDEN)
                assert torch.equal(
                    data.view(torch.uint8), whole[indices.view(-1).long()].view(data.view(torch.uint8).shape)
                )
                if scales is not None:
                    assert torch.equal(sf, scales[indices.view(-1).long()].view(tokens, 12))
                    assert tokens < 2 or not columns or sf.stride(0) == 1
                else:
                    assert sf is None
        comm.barrier()
    with pytest.raises(a2a.InvalidArgumentError, match=f"there are {comm.size * ENTRIES} entries"):
        buffer.engram_fetch(torch.full((1, 1), comm.size * ENTRIES, dtype=torch.int32))
    with pytest.raises(a2a.Error):
        buffer.engram_write(storages[0], None if fp8 else torch.zeros(1, 1))


def ring(comm: a2a.Communicator) -> None:
    """Random sends to neighbours, in the order of one clock."""
    buffer = buffer_of(comm)
    with pytest.raises(a2a.InvalidArgumentError, match="pp_set_config"):
        buffer.pp_send(torch.zeros(1), 0)
    shape = (30, 40)
    buffer.pp_set_config(2 * 30 * 40, 3)
    for seed in range(3):
        clock = random.Random(seed)
        events = []
        for number in range(40 if comm.size > 1 else 0):
            source = clock.randrange(comm.size)
            target = (source + clock.choice((-1, 1))) % comm.size
            sent = clock.random()
            events += [
                (sent, "send", source, target, number),
                (sent + clock.random() / 9, "recv", source, target, number),
            ]
        order: dict[tuple[int, int], list[int]] = {}
        for _, kind, source, target, number in sorted(events):
            if kind == "send":
                order.setdefault((source, target), []).append(number)
                if source == comm.rank:
                    buffer.pp_send(random_of(source, number, *shape), target)
            else:
                first = order[source, target].pop(0)
                if target == comm.rank:
                    got = torch.empty(shape, dtype=torch.bfloat16)
                    buffer.pp_recv(got, source)
                    assert torch.equal(got, random_of(source, first, *shape))
        comm.barrier()
    for wrong, rank in (
        (torch.zeros(2401, dtype=torch.uint8), 1),
        (torch.zeros(2, 2).T, 1),
        (torch.zeros(1), comm.rank),
    ):
        with pytest.raises(a2a.InvalidArgumentError):
            buffer.pp_send(wrong, rank)


def gathered(comm: a2a.Communicator) -> None:
    from a2a.torch.deep_ep import ElasticBuffer

    buffer, shape, most = buffer_of(comm), (5, 12), 6
    nbytes = ElasticBuffer.get_agrs_num_max_session_bytes(comm, [shape] * most, torch.bfloat16)
    assert nbytes == most * (-(-comm.size * 120 // 32) * 32)
    assert ElasticBuffer.get_agrs_buffer_size_hint(comm, nbytes) == 2 << 20
    buffer.agrs_set_config(nbytes, most)
    with pytest.raises(a2a.InvalidArgumentError, match="no session"):
        buffer.all_gather(torch.zeros(1))
    clock = random.Random(3)
    for seed in range(4):
        with buffer.agrs_new_session():
            waiting, number = [], 0
            while number < most:
                count, in_place = clock.randint(1, most - number), clock.random() < 0.5
                own = [random_of(comm.rank, 10 * seed + number + i, *shape) for i in range(count)]
                given = own
                if in_place:
                    given = list(buffer.agrs_get_inplace_tensor((shape,) * count, torch.bfloat16))
                    for to, source in zip(given, own, strict=True):
                        to.copy_(source)
                *out, wait = buffer.all_gather(given) if count > 1 else buffer.all_gather(given[0])
                waiting.append((wait, out, 10 * seed + number))
                if in_place:
                    assert out[0][comm.rank].data_ptr() == given[0].data_ptr()
                number += count
            clock.shuffle(waiting)
            for wait, out, first in waiting:
                wait()
                for i, one in enumerate(out):
                    want = torch.stack([random_of(rank, first + i, *shape) for rank in range(comm.size)])
                    assert torch.equal(one, want)
            with pytest.raises(a2a.InvalidArgumentError, match=f"{most + 1} tensors"):
                buffer.all_gather(torch.zeros(1))
            with pytest.raises(a2a.InvalidArgumentError, match="has not ended"):
                buffer.create_agrs_session()
    with buffer.agrs_new_session(enabled=False), pytest.raises(a2a.InvalidArgumentError):
        buffer.destroy_agrs_session()


@pytest.mark.parametrize("what", [engram, ring, gathered])
@pytest.mark.parametrize("n", [1, 2, 4])
def test_sessions(what: Any, n: int) -> None:
    with Pool(n, threads=True) as pool:
        for arguments in ((False,), (True,)) if what is engram else ((),):
            pool.run(what, *arguments)
