"""The arithmetic of quantised all-reduces on devices gives the bits that C++ gives on the host. Here the device is the
CPU: what runs is Torch's code, as on any device."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from rank_pool import Pool

import a2a
from a2a import quantized

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.timeout(110)


@pytest.fixture(scope="module", params=[1, 3])
def pool(request: pytest.FixtureRequest) -> Iterator[Pool]:
    with Pool(request.param) as pool:
        yield pool


def both(comm: a2a.Communicator, make: Any, arguments: dict[str, Any]) -> tuple[Any, Any]:
    """The result on the host, and that of Torch's arithmetic, as bits."""
    import torch
    from a2a.torch._plugins.quantized import DeviceArithmetic

    call, x = make(comm.rank)
    of_host = quantized._arithmetic_for
    results = []
    for arithmetic_for in (of_host, lambda x: DeviceArithmetic(x.device)):
        quantized._arithmetic_for = arithmetic_for
        try:
            results.append(getattr(a2a, call)(comm, x, **arguments))
        finally:
            quantized._arithmetic_for = of_host
    assert results[0].shape == results[1].shape == x.shape and results[0].dtype == results[1].dtype
    return tuple(result.reshape(-1).view(torch.uint8).tolist() for result in results)


class Static:
    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape

    def __call__(self, rank: int) -> tuple[str, Any]:
        import torch

        numbers = np.random.default_rng(rank).integers(-128, 128, self.shape).astype(np.int8)
        return "quantized_all_reduce", torch.from_numpy(numbers)


class Floats:
    def __init__(self, shape: tuple[int, ...], dtype: str, special: bool = False) -> None:
        self.shape, self.dtype, self.special = shape, dtype, special

    def __call__(self, rank: int) -> tuple[str, Any]:
        import torch

        rng = np.random.default_rng(rank)
        numbers = np.asarray(rng.standard_normal(self.shape) * 10.0 ** rng.integers(-6, 6, self.shape), np.float32)
        if self.special and numbers.size > 8:
            flat = numbers.reshape(-1)
            flat[:4] = [0, 1e-42, 3e38, -3e38]
            flat[-1] = np.inf if rank == 0 else 1
        return "block_quantized_all_reduce", torch.from_numpy(numbers).to(getattr(torch, self.dtype))


@pytest.mark.parametrize("shape", [(), (0,), (1,), (5, 7), (3, 4, 100)])
@pytest.mark.parametrize("gather", ["float16", "int8"])
def test_common_scale(pool: Pool, shape: tuple[int, ...], gather: str) -> None:
    channels = shape[-1] if shape else 1
    for scale, offset in ((0.37, -1.5), ([0.01 * (c + 1) for c in range(channels)] or 1.0, 0.25)):
        arguments = {"scale": scale, "offset": offset, "gather": gather, "block": 16}
        for host, device in pool.run(both, Static(shape), arguments):
            assert host == device


@pytest.mark.parametrize("shape", [(), (0,), (1,), (5, 7), (3, 4, 100)])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("gather", ["int8", "same"])
def test_blocks(pool: Pool, shape: tuple[int, ...], dtype: str, gather: str) -> None:
    for host, device in pool.run(both, Floats(shape, dtype), {"gather": gather, "block": 32}):
        assert host == device


def test_what_is_no_number_stays_in_its_block(pool: Pool) -> None:
    for host, device in pool.run(both, Floats((300,), "float32", special=True), {"gather": "same", "block": 50}):
        host_numbers, device_numbers = (np.array(bits, np.uint8).view(np.float32) for bits in (host, device))
        assert np.array_equal(host_numbers, device_numbers, equal_nan=True) and np.isnan(host_numbers[250:]).all()
