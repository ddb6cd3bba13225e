"""Calls about device memory are Paddle's own on its groups: a tensor is said to lie on a device, and Paddle's calls are
recorded instead of made. On an a2a communicator they go to NCCL, here on the doubles of CUDA and NCCL."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cmake_tools
import numpy as np
import nvidia
import pytest
from device_tensors import EXCHANGE_API, Tensor, working_on
from rank_pool import Pool

paddle = pytest.importorskip("paddle")
import a2a.paddle as dist
from a2a.paddle import _device
from paddle.distributed import stream
from paddle.distributed.utils import moe_utils

import a2a


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    made: list[tuple[Any, ...]] = []
    for module, names in (
        (stream, ("alltoall_single", "alltoall", "all_gather")),
        (moe_utils, ("global_scatter", "global_gather")),
    ):
        for name in names:
            monkeypatch.setattr(module, name, lambda *given, name=name: made.append((name, *given)))
    monkeypatch.setattr(_device, "_on_device", lambda tensor: isinstance(tensor, paddle.Tensor))
    return made


def test_what_lies_on_a_device() -> None:
    tensor = paddle.ones([2])
    assert not _device.is_paddles(tensor, None)
    assert not _device.is_paddles([tensor], None)
    assert not _device.is_paddles("no tensor", None)


def test_paddle_gets_the_arguments_in_its_own_order(calls: list[tuple[Any, ...]]) -> None:
    out, given, counts = paddle.zeros([4]), paddle.ones([4]), paddle.to_tensor([2, 2])
    dist.alltoall_single(out, given, [1, 3], [2, 2], None, True)
    dist.stream.alltoall_single(out, given, [2, 2], [1, 3], None, False, False)
    dist.stream.alltoall([out], [given], None, True, True)
    dist.all_gather([], given)
    dist.utils.global_scatter(given, counts, counts)
    dist.utils.global_gather(given, counts, counts, None, False)
    assert [call[0] for call in calls] == [
        "alltoall_single", "alltoall_single", "alltoall", "all_gather", "global_scatter", "global_gather"
    ]  # fmt: skip
    assert calls[0][1:] == (out, given, [2, 2], [1, 3], None, True, False)
    assert calls[1][1:] == (out, given, [2, 2], [1, 3], None, False, False)
    assert calls[2][3:] == (None, True, True)
    assert calls[5][4:] == (None, False)


# ---- on a communicator -----------------------------------------------------------------------------------------------


class OnDevice(paddle.Tensor):  # type: ignore[misc]
    """One of Paddle's tensors whose memory lies on a GPU. Paddle looks at its shape and dtype."""

    __dlpack_c_exchange_api__ = EXCHANGE_API


def on_device(comm: a2a.Communicator, *values: int) -> Any:
    made = OnDevice(paddle.zeros([len(values)], "uint8"))
    made.array = nvidia.Array(np.array(values, np.uint8), comm.rank)
    made.describe = Tensor(made.array, made.array.shape, (1, 8, 1)).describe
    return made


def exchange(comm: a2a.Communicator) -> None:
    """What is enqueued on Paddle's stream comes before, and after a ``sync_op`` so does what follows."""
    rank = comm.rank
    nvidia.use(rank)
    stream, wanted = nvidia.Stream(), [rank, 10 + rank]
    made, out, copied = on_device(comm, 10 * rank, 10 * rank + 1), on_device(comm, 9, 9), on_device(comm, 9, 9)
    with working_on(nvidia.CUDA, stream.cuda_stream):
        for options in ({}, {"use_calc_stream": True}, {"sync_op": False}):
            given = on_device(comm, 0, 0)
            with nvidia.held_up(rank, stream.cuda_stream):
                nvidia.copy(made.array.address, given.array.address, 2, stream.cuda_stream)
                task = dist.stream.alltoall_single(out, given, group=comm, **options)
                assert task.is_completed() == task.is_sync() == (options.get("sync_op", True))
                if task.is_sync():
                    nvidia.copy(out.array.address, copied.array.address, 2, stream.cuda_stream)
            assert task.wait()
            assert out.array.read().tolist() == copied.array.read().tolist() == wanted
            out.array.write([9, 9])
        task = dist.alltoall([out], [made], group=comm.split(rank), sync_op=False)
        with nvidia.held_up(rank, stream.cuda_stream):
            assert task.wait(20)  # it is not on Paddle's stream
    assert out.array.read().tolist() == made.array.read().tolist()


@pytest.mark.skipif(not (Path(__file__).parents[2] / "CMakeLists.txt").exists(), reason="no source tree")
@pytest.mark.skipif(bool(cmake_tools.MISSING), reason=f"not installed: {cmake_tools.MISSING}")
@pytest.mark.timeout(900)  # builds the doubles
def test_on_a_communicator_they_go_to_nccl(build_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A2A_TEST_DOUBLES", "1")
    monkeypatch.setenv("A2A_NCCL_LIBRARY", str(build_dir / "fakes" / "libnccl.so.2"))
    monkeypatch.setenv("A2A_CUDA_LIBRARY", str(build_dir / "fakes" / "libcuda.so.1"))
    with Pool(2) as pool:
        pool.run(exchange)
