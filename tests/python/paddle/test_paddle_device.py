"""Calls about device memory are Paddle's own on its groups: a tensor is said to lie on a device, and Paddle's calls are
recorded instead of made. On an a2a communicator they go to NCCL, here on the doubles of CUDA and NCCL."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cmake_tools
import cudart
import numpy as np
import pytest
from device_tensors import EXCHANGE_API, Tensor, working_on
from rank_pool import Pool

paddle = pytest.importorskip("paddle")
import a2a.paddle as dist
from a2a.paddle import _device
from paddle.distributed import stream
from paddle.distributed.utils import moe_utils

import a2a

PLAIN = (
    *("all_gather", "all_reduce", "alltoall", "alltoall_single", "broadcast", "gather", "irecv", "isend", "recv"),
    *("reduce", "reduce_scatter", "scatter", "send", "wait"),
)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    made: list[tuple[Any, ...]] = []
    for module, names in (
        (stream, dist.stream.__all__),
        (paddle.distributed, PLAIN),
        (moe_utils, ("global_scatter", "global_gather")),
    ):
        for name in names:
            full = f"stream.{name}" if module is stream else name
            monkeypatch.setattr(
                module, name, lambda *given, full=full, **named: made.append((full, *given, *named.items()))
            )
    monkeypatch.setattr(_device, "_on_device", lambda tensor: isinstance(tensor, paddle.Tensor))
    return made


def test_what_lies_on_a_device() -> None:
    tensor = paddle.ones([2])
    assert not _device.is_paddles([tensor, None])
    assert not _device.is_paddles([[tensor], None])
    assert not _device.is_paddles(["no tensor", None])


def test_paddle_gets_the_arguments_in_its_own_order(calls: list[tuple[Any, ...]]) -> None:
    out, given, counts = paddle.zeros([4]), paddle.ones([4]), paddle.to_tensor([2, 2])
    dist.alltoall_single(out, given, [1, 3], [2, 2], None, True)
    dist.stream.alltoall_single(out, given, [2, 2], [1, 3], None, False, False)
    dist.stream.alltoall([out], [given], None, True, True)
    dist.all_gather([], given)
    dist.utils.global_scatter(given, counts, counts)
    dist.utils.global_gather(given, counts, counts, None, False)
    assert calls == [
        ("alltoall_single", out, given, [1, 3], [2, 2], None, True),
        ("stream.alltoall_single", out, given, [2, 2], [1, 3], None, False, False),
        ("stream.alltoall", [out], [given], None, True, True),
        ("all_gather", [], given),
        ("global_scatter", given, counts, counts, None, True),
        ("global_gather", given, counts, counts, None, False),
    ]


def call_each() -> list[str]:
    """Every call of a tensor on a device, the tensor in another place of each. Returns their names."""
    x = paddle.ones([4])
    named: dict[str, dict[str, Any]] = {
        "all_gather": {"tensor": x, "tensor_list": []},
        "alltoall": {"in_tensor_list": [x], "out_tensor_list": []},
        "alltoall_single": {"out_tensor": None, "in_tensor": x},
        "broadcast": {"tensor": x, "src": 0},
        "gather": {"tensor": x},
        "irecv": {"tensor": x, "src": 0},
        "isend": {"tensor": x, "dst": 0},
        "reduce": {"tensor": x, "dst": 0},
        "reduce_scatter": {"tensor": None, "tensor_list": [x]},
        "scatter": {"tensor": x},
        "wait": {"tensor": x},
    }
    for name in PLAIN:
        getattr(dist, name)(**named.get(name, {"tensor": x}))
    for name in dist.stream.__all__:
        getattr(dist.stream, name)(x, x)
    return [*PLAIN, *(f"stream.{name}" for name in dist.stream.__all__)]


def test_all_of_them_are_paddles(calls: list[tuple[Any, ...]]) -> None:
    assert call_each() == [call[0] for call in calls]


def test_enable_leaves_them_to_paddle(calls: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Also calls without a tensor, where the program works on a device, and the gradients of a model there."""
    for owner, name in (
        (paddle.distributed, "barrier"),
        (paddle.distributed, "new_group"),
        (paddle.distributed, "batch_isend_irecv"),
        (paddle.DataParallel, "init_reducer"),
    ):
        monkeypatch.setattr(owner, name, lambda *given, name=name: calls.append((name, *given)))
    monkeypatch.setattr(paddle, "get_device", lambda: "gpu:0")
    message = dist.P2POp(dist.isend, paddle.ones([2]), 1)
    parameter = SimpleNamespace(trainable=True, place=SimpleNamespace(is_cpu_place=lambda: False))
    model = SimpleNamespace(parameters=lambda: [parameter], group=None)
    x = paddle.ones([4])
    dist.enable()
    try:
        for name in stream.__all__:
            getattr(stream, name)(x, x)
        paddle.distributed.all_reduce(x)
        paddle.distributed.reduce_scatter(x, [x])
        paddle.distributed.wait(x)
        moe_utils.global_scatter(x, None, None)
        paddle.distributed.batch_isend_irecv([message])
        paddle.distributed.barrier()
        paddle.distributed.new_group([0, 1])
        paddle.DataParallel.init_reducer(model)
    finally:
        dist.disable()
    assert [call[0] for call in calls] == [
        *(f"stream.{name}" for name in stream.__all__),
        *("all_reduce", "reduce_scatter", "wait", "global_scatter"),
        *("batch_isend_irecv", "barrier", "new_group", "init_reducer"),
    ]


# ---- on a communicator -----------------------------------------------------------------------------------------------


class OnDevice(paddle.Tensor):  # type: ignore[misc]
    """One of Paddle's tensors whose memory lies on a GPU. Paddle looks at its shape and dtype."""

    __dlpack_c_exchange_api__ = EXCHANGE_API


def on_device(comm: a2a.Communicator, *values: int) -> Any:
    made = OnDevice(paddle.zeros([len(values)], "uint8"))
    made.array = cudart.Array(np.array(values, np.uint8), comm.rank)
    made.describe = Tensor(made.array, made.array.shape, (1, 8, 1)).describe
    return made


def exchange(comm: a2a.Communicator) -> None:
    """What is enqueued on Paddle's stream comes before, and after a ``sync_op`` so does what follows."""
    rank = comm.rank
    cudart.use(rank)
    stream, wanted = cudart.Stream(), [rank, 10 + rank]
    made, out, copied = on_device(comm, 10 * rank, 10 * rank + 1), on_device(comm, 9, 9), on_device(comm, 9, 9)
    with working_on(cudart.CUDA, stream.cuda_stream):
        for options in ({}, {"use_calc_stream": True}, {"sync_op": False}):
            given = on_device(comm, 0, 0)
            with cudart.held_up(rank, stream.cuda_stream):
                cudart.copy(made.array.address, given.array.address, 2, stream.cuda_stream)
                task = dist.stream.alltoall_single(out, given, group=comm, **options)
                assert task.is_completed() == task.is_sync() == (options.get("sync_op", True))
                if task.is_sync():
                    cudart.copy(out.array.address, copied.array.address, 2, stream.cuda_stream)
            assert task.wait()
            assert out.array.read().tolist() == copied.array.read().tolist() == wanted
            out.array.write([9, 9])
        task = dist.alltoall([out], [made], group=comm.split(rank), sync_op=False)
        with cudart.held_up(rank, stream.cuda_stream):
            assert task.wait(20)  # it is not on Paddle's stream
    assert out.array.read().tolist() == made.array.read().tolist()


@pytest.mark.full
@pytest.mark.skipif(not (Path(__file__).parents[3] / "CMakeLists.txt").exists(), reason="no source tree")
@pytest.mark.skipif(bool(cmake_tools.MISSING), reason=f"not installed: {cmake_tools.MISSING}")
@pytest.mark.timeout(900)  # builds the doubles
def test_on_a_communicator_they_go_to_nccl(build_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A2A_TEST_DOUBLES", "1")
    monkeypatch.setenv("A2A_NCCL_LIBRARY", str(build_dir / "fakes" / "libnccl.so.2"))
    monkeypatch.setenv("A2A_CUDA_LIBRARY", str(build_dir / "fakes" / "libcuda.so.1"))
    with Pool(2) as pool:
        pool.run(exchange)
