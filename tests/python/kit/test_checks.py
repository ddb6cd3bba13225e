"""Assertions about what all ranks have, comparisons of backends, and recordings of what has failed."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import a2a
from a2a import testing

pytest.importorskip("a2a_pytest")


@pytest.mark.smoke
@pytest.mark.ranks(3)
def test_the_same_on_all(comm: a2a.Communicator) -> None:
    testing.assert_same_on_all(comm, np.arange(5.0))
    testing.assert_same_on_all(comm, {"a": 1, "b": [np.full(2, np.nan), None, "x"], "c": ()})


def other(comm: a2a.Communicator) -> Any:
    x = np.arange(5.0)
    x[2] += comm.rank == 2
    return x


DIFFERENT = [
    (
        other,
        r"not the same on all ranks: rank 2 from ranks 0-1: rank 2: byte 22 is 0x08 instead of 0x00; 1 of 40 bytes",
    ),
    (
        lambda comm: {"w": np.ones(3 - (comm.rank == 1))},
        r"rank 1 from ranks 0, 2: rank 1 has \['w'\] float64 \[2\], rank 0 \['w'\] float64 \[3\]",
    ),
    (lambda comm: [1, (comm.rank,)], r"ranks 1-2 from rank 0: \[1\]\[0\]: rank 1: byte 0 is 0x01 instead of 0x00"),
    (lambda comm: "x" * (1 + comm.rank // 2), "rank 2 from ranks 0-1"),
    (
        lambda comm: np.ones(2, np.float32 if comm.rank else np.float64),
        r"rank 0 has float64 \[2\], rank 1 float32 \[2\]",
    ),
]


@pytest.mark.ranks(3)
@pytest.mark.parametrize("value, words", DIFFERENT)
def test_not_the_same_on_all(comm: a2a.Communicator, value: Any, words: str) -> None:
    with pytest.raises(AssertionError, match=words):
        testing.assert_same_on_all(comm, value(comm))
    comm.barrier()


def test_bitwise() -> None:
    testing.assert_bitwise({"x": [np.float32(1), np.full(2, np.nan)]}, {"x": [np.float32(1), np.full(2, np.nan)]})
    for left, right, words in (
        (np.ones(2), np.ones(2, np.float32), r"float64 \[2\] instead of float32 \[2\]"),
        (np.ones(2), np.ones((2, 1)), r"float64 \[2\] instead of float64 \[2, 1\]"),
        ([0.0], [-0.0], r"\[0\]: byte 7 is 0x00 instead of 0x80"),
        ({"x": 1}, {"y": 1}, "the parts"),
        ("a", "b", "byte 1"),
    ):
        with pytest.raises(AssertionError, match=words):
            testing.assert_bitwise(left, right)


@pytest.mark.ranks(2)
def test_both_backends(comm: a2a.Communicator) -> None:
    import torch
    import torch.distributed as dist

    def reduced() -> Any:
        x = torch.arange(4.0) + comm.rank
        dist.all_reduce(x)
        return {"x": x, "size": dist.get_world_size()}

    results = testing.run_both(reduced, comm=comm)
    assert results[0]["x"].tolist() == [1, 3, 5, 7]

    def nearly() -> Any:
        return torch.ones(2) * (1 + (dist.get_backend() == "gloo") * 1e-6)

    with pytest.raises(AssertionError, match=f'rank {comm.rank}: result of "a2a" is not that of "gloo": byte 0'):
        testing.run_both(nearly, comm=comm)
    testing.run_both(nearly, "a2a", "gloo", comm=comm, rtol=1e-5)
    with pytest.raises(AssertionError, match=r"element \[0\] is 1.0 instead of 1.00000"):
        testing.run_both(nearly, comm=comm, rtol=1e-8)
    assert not dist.is_initialized()


@pytest.mark.ranks(2, timeout=15)
def test_the_first_rank_to_leave_takes_nothing_from_the_others(comm: a2a.Communicator) -> None:
    pytest.importorskip("torch")
    from torch.distributed.distributed_c10d import _get_default_store

    with testing.process_group(comm, "gloo"):
        time.sleep(0.3 * comm.rank)
        _get_default_store().set(f"rank {comm.rank}", "is here")


@pytest.mark.ranks(2)
def test_a_recording_runs_again(comm: a2a.Communicator, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("ml_dtypes")
    send, recv = torch.arange(4.0).bfloat16() + comm.rank, torch.zeros(4).bfloat16()
    with testing.record(tmp_path, comm, "alltoallv", send=send, send_counts=[2, 2], recv=recv, recv_counts=(2, 2)):
        comm.alltoallv(send, [2, 2], recv, [2, 2])
    assert [*tmp_path.iterdir()] == []
    recv.zero_()
    with pytest.raises(AssertionError, match=f"alltoallv-rank-{comm.rank}-of-2.npz"):
        with testing.record(tmp_path, comm, "alltoallv", send=send, send_counts=[2, 2], recv=recv, recv_counts=[2, 2]):
            comm.alltoallv(send, [2, 2], recv, [2, 2])
            raise AssertionError
    recording = testing.replay(next(tmp_path.iterdir()))
    assert (recording.op, recording.rank, recording.size) == ("alltoallv", comm.rank, 2)
    testing.assert_bitwise(recording.inputs["send"], send)
    assert not recording.inputs["recv"].any(), "not as it was before the operation"
    recording.run(comm)
    testing.assert_bitwise(recording.inputs["recv"], recv)


def test_what_is_no_recording(tmp_path: Path) -> None:
    for content in (b"", b"no file of NumPy", b"PK\x03\x04 nor this"):
        (tmp_path / "x.npz").write_bytes(content)
        with pytest.raises(a2a.InvalidArgumentError, match="is no recording"):
            testing.replay(tmp_path / "x.npz")
    with pytest.raises(FileNotFoundError):
        testing.replay(tmp_path / "y.npz")
