"""Calls about device memory are Paddle's own. There is no device here: a tensor is said to lie on one, and Paddle's
calls are recorded instead of made."""

from __future__ import annotations

from typing import Any

import pytest

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


def test_a_communicator_has_no_transport_for_it(calls: list[tuple[Any, ...]]) -> None:
    with a2a.init(0, 1) as comm:
        out = paddle.zeros([4])
        dist.alltoall_single(out, paddle.ones([4]), group=comm)  # host memory after all
        assert out.tolist() == [1.0] * 4 and calls == []
