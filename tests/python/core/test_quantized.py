"""Quantised all-reduce: bit for bit against NumPy, errors within the bounds of docs/guide/quantized.md, and bytes on
the wire."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

import frameworks
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rank_pool import Pool
from sample import examples

import a2a
from a2a import testing
from a2a.quantized import wire_bytes

pytestmark = pytest.mark.timeout(110)
HALF = 2.0**-11
SHAPES = st.lists(st.integers(1, 40), min_size=1, max_size=3).map(tuple)


@pytest.fixture(scope="module", params=[1, 3, 4])
def pool(request: pytest.FixtureRequest) -> Iterator[Pool]:
    with Pool(request.param) as pool:
        yield pool


@pytest.fixture(scope="module")
def four() -> Iterator[Pool]:
    with Pool(4) as pool:
        yield pool


def int8(seed: int, rank: int, shape: tuple[int, ...]) -> Any:
    return np.random.default_rng((seed, rank)).integers(-128, 128, shape).astype(np.int8)


def floats(seed: int, rank: int, shape: tuple[int, ...], dtype: str = "float32") -> Any:
    rng = np.random.default_rng((seed, rank))
    x = rng.standard_normal(shape) * 10.0 ** rng.integers(-3, 3, shape)
    return x.astype(frameworks.dtype_of(dtype))


def quantize(x: Any, block: int) -> tuple[Any, Any]:
    """(q, s of each element) by the formulas, in float32."""
    flat = x.reshape(-1).astype(np.float32)
    blocks = -(-flat.size // block)
    padded = np.zeros((blocks, block), np.float32)
    padded.reshape(-1)[: flat.size] = flat
    most = np.abs(padded).max(axis=1)
    scales = np.where(most == 0, np.float32(1), most / np.float32(127))
    s = np.repeat(scales, block)[: flat.size].astype(np.float32)
    q = np.clip(np.rint(flat / s), -127, 127).astype(np.int8)  # an int8 knows no negative zero
    return q.astype(np.float32).reshape(x.shape), s.reshape(x.shape)


def run_static(comm: a2a.Communicator, seed: int, shape: tuple[int, ...], scale: Any, offset: Any, how: Any) -> Any:
    framework = how.pop("framework", "numpy")
    x = frameworks.tensor(framework, int8(seed, comm.rank, shape))
    y = a2a.quantized_all_reduce(comm, x, scale, offset, **how)
    assert testing.first_difference(x, int8(seed, comm.rank, shape)) is None
    return frameworks.name_of(y), str(y.dtype).rpartition(".")[2], tuple(y.shape), testing.as_bytes(y).tobytes()


def static_result(seed: int, shape: tuple[int, ...], ranks: int, scale: Any, offset: Any) -> Any:
    total = sum(int8(seed, rank, shape).astype(np.int32) for rank in range(ranks))
    shifted = total.astype(np.float32) + np.float32(ranks) * np.asarray(offset, np.float32)
    return shifted * np.asarray(scale, np.float32)


@settings(deadline=None, max_examples=examples(25))
@given(
    seed=st.integers(0, 2**32),
    shape=SHAPES,
    per_channel=st.tuples(st.booleans(), st.booleans()),
    block=st.integers(1, 200),
)
def test_int8_is_exact(pool: Pool, seed: int, shape: tuple[int, ...], per_channel: Any, block: int) -> None:
    rng = np.random.default_rng(seed)
    scale = rng.uniform(1e-3, 1, shape[-1] if per_channel[0] else 1).astype(np.float32)
    offset = rng.uniform(-9, 9, shape[-1] if per_channel[1] else 1).astype(np.float32)
    right = static_result(seed, shape, pool.n, scale, offset).astype(np.float16)
    for name, dtype, got_shape, got in pool.run(run_static, seed, shape, scale, offset, {"block": block}):
        assert (name, dtype, got_shape) == ("numpy", "float16", shape)
        assert testing.first_difference(got, right.tobytes()) is None


def test_int8_bound(four: Pool) -> None:
    """What was quantised without clipping comes back within ranks * scale / 2 and the rounding to float16."""
    shape, scale, offset = (64, 48), 0.03, 5.0
    xs = [np.random.default_rng(r).uniform(-3.5, 3.5, shape) for r in range(4)]
    qs = [np.rint(x / scale - offset) for x in xs]
    assert max(np.abs(q).max() for q in qs) <= 127
    results = four.run(run_given, [q.astype(np.int8) for q in qs], scale, offset, "float16")
    exact = sum(xs)
    error = np.abs(results[0].astype(np.float64) - exact)
    bound = 4 * scale / 2 + np.abs(exact) * HALF + 4 * scale / 2 * HALF + 1e-5
    assert (error <= bound).all() and (error / bound).max() > 0.5
    quantized = four.run(run_given, [q.astype(np.int8) for q in qs], scale, offset, "int8")
    error = np.abs(quantized[0].astype(np.float64) - exact)
    step = np.abs(exact).max() + 4 * scale / 2
    assert (error <= bound + step / 254 * (1 + HALF)).all()
    for other in quantized[1:]:
        assert testing.first_difference(other, quantized[0]) is None


def static_inputs(seed: int, ranks: int, shape: tuple[int, ...]) -> tuple[Any, Any, np.float32, np.float32]:
    """(what each rank means, in float64, its quantised form, scale, offset): nothing clipped, errors up to half a scale
    and of the same sign on all ranks."""
    rng = np.random.default_rng(seed)
    scale = np.float32(10.0 ** rng.uniform(-6, 0))
    offset = np.float32(rng.choice([-1, 1]) * 10.0 ** rng.uniform(-2, 6))
    qs = rng.integers(-128, 128, (ranks, *shape))
    error = rng.choice([-1, 1], shape) * rng.choice([0.5, 0.499, 0.1], shape)
    return (qs + np.float64(offset) + error) * np.float64(scale), qs.astype(np.int8), scale, offset


@settings(deadline=None, max_examples=examples(25))
@given(seed=st.integers(0, 2**32), shape=SHAPES)
def test_int8_is_within_the_documented_bound(pool: Pool, seed: int, shape: tuple[int, ...]) -> None:
    xs, qs, scale, offset = static_inputs(seed, pool.n, shape)
    (y, *_) = pool.run(run_given, qs, scale, offset, "float16")
    exact = xs.sum(axis=0)
    finite, s = np.isfinite(y), np.float64(scale)
    assert (np.abs(exact[~finite]) > 65000).all()
    y, exact = y[finite].astype(np.float64), exact[finite]
    rounding = np.maximum(np.abs(y) * HALF, 2.0**-25) + 2.0**-23 * (pool.n * abs(np.float64(offset)) * s + np.abs(y))
    assert (np.abs(y - exact) <= pool.n * s / 2 + rounding).all()


def run_given(comm: a2a.Communicator, xs: Any, scale: Any, offset: Any, gather: Any) -> Any:
    return a2a.quantized_all_reduce(comm, xs[comm.rank], scale, offset, gather=gather)


@pytest.mark.parametrize("gather", ["float16", "int8"])
@pytest.mark.parametrize("framework", frameworks.INSTALLED)
def test_int8_in_every_framework(four: Pool, framework: str, gather: str) -> None:
    scale, shape = np.linspace(0.01, 0.02, 7), (5, 7)
    right = static_result(3, shape, 4, scale, -1.5).astype(np.float16)
    for name, dtype, got_shape, got in four.run(
        run_static, 3, shape, scale, -1.5, {"framework": framework, "gather": gather}
    ):
        assert (name, dtype, got_shape) == (framework, "float16", shape)
        values = np.frombuffer(got, np.float16).reshape(shape).astype(np.float64)
        assert np.abs(values - right).max() <= (0 if gather == "float16" else np.abs(right).max() / 254 * 1.01)


def run_buffer(comm: a2a.Communicator, seed: int, shape: tuple[int, int], scale: Any) -> bytes:
    x = int8(seed, comm.rank, shape)
    buffer = ((ctypes.c_int8 * shape[1]) * shape[0]).from_buffer(x)
    return testing.as_bytes(a2a.quantized_all_reduce(comm, buffer, scale, 0)).tobytes()


def test_the_channels_of_a_buffer_are_its_last_dimension(pool: Pool) -> None:
    shape, scale = (40, 13), [0.5 + channel for channel in range(13)]
    expected = static_result(5, shape, pool.n, scale, 0).astype(np.float16).tobytes()
    assert pool.run(run_buffer, 5, shape, scale) == [expected] * pool.n


def test_float16_overflows_to_infinity(four: Pool) -> None:
    xs = [np.full(3, 127, np.int8)] * 4
    (y, *_) = four.run(run_given, xs, [65519 / 508, 65520 / 508, 1.0], 0.0, "float16")
    assert y.tolist() == [65504.0, np.inf, 508.0]
    xs = [np.full(3, -127, np.int8)] * 4
    (y, *_) = four.run(run_given, xs, [65519 / 508, 65520 / 508, 3e38], 0.0, "float16")
    assert y.tolist() == [-65504.0, -np.inf, -np.inf]
    for gather, wanted in (("float16", [np.inf] * 3), ("int8", [np.nan] * 3)):  # float32 overflows, too
        (y, *_) = four.run(run_given, xs, 1.0, 3e38, gather)
        np.testing.assert_array_equal(y, wanted)


# ---- blocks ---------------------------------------------------------------------------------------------------------


def run_blocks(comm: a2a.Communicator, seed: int, shape: tuple[int, ...], dtype: str, how: Any) -> Any:
    framework = how.pop("framework", "numpy")
    x = frameworks.tensor(framework, floats(seed, comm.rank, shape, dtype))
    y = a2a.block_quantized_all_reduce(comm, x, **how)
    assert testing.first_difference(x, floats(seed, comm.rank, shape, dtype)) is None
    assert frameworks.name_of(y) == framework and y.dtype == x.dtype and tuple(y.shape) == shape
    return testing.as_bytes(y).tobytes()


def blocks_result(seed: int, shape: tuple[int, ...], ranks: int, dtype: str, block: int) -> tuple[Any, Any]:
    """(sum in float32 and rank order, sum of the scales)."""
    total, scales = np.zeros(shape, np.float32), np.zeros(shape, np.float64)
    for rank in range(ranks):
        q, s = quantize(floats(seed, rank, shape, dtype), block)
        total = q * s if rank == 0 else total + q * s
        scales += s
    return total, scales


@settings(deadline=None, max_examples=examples(25))
@given(
    seed=st.integers(0, 2**32),
    shape=SHAPES,
    dtype=st.sampled_from(["float32", "float16", "bfloat16"]),
    block=st.integers(1, 200),
)
def test_blocks_are_the_formula(pool: Pool, seed: int, shape: tuple[int, ...], dtype: str, block: int) -> None:
    total, _ = blocks_result(seed, shape, pool.n, dtype, block)
    same = total.astype(frameworks.dtype_of(dtype)).tobytes()
    for got in pool.run(run_blocks, seed, shape, dtype, {"block": block, "gather": "same"}):
        assert testing.first_difference(got, same) is None
    q, s = quantize(total, block)  # parts are made of whole blocks, so the sum has the blocks of the whole tensor
    both = (q * s).astype(frameworks.dtype_of(dtype)).tobytes()
    for got in pool.run(run_blocks, seed, shape, dtype, {"block": block}):
        assert testing.first_difference(got, both) is None


def test_blocks_bound(four: Pool) -> None:
    shape, block = (100, 37), 128
    exact = sum(floats(9, rank, shape).astype(np.float64) for rank in range(4))
    total, scales = blocks_result(9, shape, 4, "float32", block)
    _, step = quantize(total, block)
    rounding = 4 * 2.0**-23 * 127 * scales
    for gather, bound in (("same", scales / 2 + rounding), ("int8", scales / 2 + step / 2 + rounding)):
        gathered = four.run(run_blocks, 9, shape, "float32", {"gather": gather})
        results = [np.frombuffer(got, np.float32) for got in gathered]
        assert all((result == results[0]).all() for result in results)
        error = np.abs(results[0].reshape(shape) - exact)
        assert (error <= bound).all() and (error / bound).max() > 0.5


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("framework", frameworks.INSTALLED)
def test_blocks_in_every_framework(four: Pool, framework: str, dtype: str) -> None:
    total, _ = blocks_result(5, (3, 50), 4, dtype, 16)
    q, s = quantize(total, 16)
    right = (q * s).astype(frameworks.dtype_of(dtype)).tobytes()
    for got in four.run(run_blocks, 5, (3, 50), dtype, {"framework": framework, "block": 16}):
        assert testing.first_difference(got, right) is None


def run_special(comm: a2a.Communicator) -> Any:
    x = np.ones(12, np.float32)
    x[0] = np.inf if comm.rank == 1 else 1
    x[5] = np.nan if comm.rank == 2 else 1
    x[8:] = 0
    y = a2a.block_quantized_all_reduce(comm, x, block=4)
    empty = a2a.block_quantized_all_reduce(comm, np.empty((0, 3), np.float16))
    scalar = a2a.block_quantized_all_reduce(comm, np.array(2.0, np.float32))
    return y, empty.shape, float(scalar), scalar.shape


def test_infinities_nans_zeros_and_nothing(four: Pool) -> None:
    for y, shape, scalar, scalar_shape in four.run(run_special):
        assert np.isnan(y[:8]).all() and (y[8:] == 0).all()
        assert (shape, scalar, scalar_shape) == ((0, 3), 8.0, ())


def run_tiny_and_huge(comm: a2a.Communicator) -> list[Any]:
    tiny, huge = np.float32([1e-37, -3e-39, 1e-45]), np.float32([3.4028235e38, -1e38, 1]) * (comm.rank == 1)
    return [a2a.block_quantized_all_reduce(comm, x, gather=gather) for x in (tiny, huge) for gather in ("same", "int8")]


def test_the_ends_of_float32(four: Pool) -> None:
    """Scales stay normal numbers: below 2^-126 * 127 the error is that of the smallest one."""
    least = 2.0**-126
    for tiny, tiny_twice, huge, huge_twice in four.run(run_tiny_and_huge):
        exact = 4 * np.float64(np.float32([1e-37, -3e-39, 1e-45]))
        assert (np.abs(tiny - exact) <= 4 * least / 2 * 1.0001).all()
        assert (np.abs(tiny_twice - exact) <= 5 * least / 2 * 1.0001).all()
        exact = np.float64(np.float32([3.4028235e38, -1e38, 1]))
        assert np.isfinite(huge).all() and (np.abs(huge - exact) <= exact[0] / 254 * 1.0001).all()
        assert np.isfinite(huge_twice).all() and (np.abs(huge_twice - exact) <= 2 * exact[0] / 254 * 1.0001).all()


def run_nothing(comm: a2a.Communicator) -> list[Any]:
    shapes = [((0, 3), np.ones(3)), ((4, 0), 1.0), ((4, 0), np.ones(0)), ((), 1.0), ((1,), [1.0])]
    return [a2a.quantized_all_reduce(comm, np.ones(shape, np.int8), scale) for shape, scale in shapes]


def test_int8_of_no_and_of_one_element(pool: Pool) -> None:
    for results in pool.run(run_nothing):
        assert [y.shape for y in results] == [(0, 3), (4, 0), (4, 0), (), (1,)]
        assert [float(y.sum()) for y in results] == [0, 0, 0, pool.n, pool.n]


# ---- what goes wrong ------------------------------------------------------------------------------------------------


def run_wrong(comm: a2a.Communicator) -> list[str]:
    good = {"x": np.ones(600, np.int8), "scale": 1.0, "offset": 0.0, "gather": "float16", "block": 128}
    cases: list[dict[str, Any]] = [
        {},
        {"x": np.ones(600, np.uint8)},
        {"x": np.ones((60, 20), np.int8)[:, ::2]},
        {"scale": 0.0},
        {"scale": [1.0, 2.0]},
        {"scale": "one"},
        {"scale": "1.0"},
        {"scale": None},
        {"scale": True},
        {"scale": 1e60},
        {"scale": 1e-60},
        {"scale": [[1.0], [2.0, 3.0]]},
        {"offset": float("nan")},
        {"offset": 1j},
        {"gather": "int4"},
        {"gather": np.zeros(2)},
        {"block": 0},
        {"x": np.ones(601, np.int8)},
        {"x": np.ones(10, np.int8)},
        {"scale": 2.0},
        {"block": 64},
        {"gather": "int8"},
        {},
    ]
    told = []
    for change in cases:
        arguments = {**good, **(change if comm.rank == 1 else {})}
        try:
            y = a2a.quantized_all_reduce(comm, **arguments)
            told.append(str(float(y[0])))
        except a2a.Error as error:
            told.append(f"{type(error).__name__} {error}")
    return told


def test_refusals_and_disagreements_reach_every_rank(four: Pool) -> None:
    told = four.run(run_wrong)
    reasons = ["x has dtype uint8; pass int8", "not contiguous", "scale[0] is 0.0; as a float32 it must be positive"]
    reasons += ["scale has 2 entries; pass one, or one for each of 600 channels", "scale is 'one'; pass a number"]
    reasons += ["scale is '1.0'; pass a number", "scale is None; pass a number", "scale is True; pass a number"]
    reasons += ["scale[0] is inf; as a float32", "scale[0] is 0.0; as a float32", "scale is [[1.0], [2.0, 3.0]]; pass"]
    reasons += ["offset[0] is nan; as a float32 it must be finite", "offset is 1j; pass a number"]
    reasons += ["gather is 'int4'; pass 'float16' or 'int8'", "gather is array([0., 0.]); pass", "block is 0"]
    for rank, said in enumerate(told):
        assert said[0] == said[-1] == "4.0"
        for text, reason in zip(said[1 : 1 + len(reasons)], reasons, strict=True):
            assert reason in text and text.startswith("InvalidArgumentError" if rank == 1 else "MismatchError"), text
        assert [text.startswith("MismatchError") for text in said[1 + len(reasons) : -1]] == [True] * 5, said


def test_bytes_on_the_wire() -> None:
    n = 1 << 20
    documented = wire_bytes(n, 8, send_scales=False, gather_item=2)
    assert documented.ratio == 0.375
    assert (documented.scatter, documented.gather, documented.float32) == (7 * n, 14 * n, 56 * n)
    assert wire_bytes(n, 8, send_scales=False).ratio == 0.25 + 4 / 128 / 8
    both = wire_bytes(n, 8, send_scales=True)
    assert both.ratio == 0.25 + 1 / 128 and both.ratio <= 0.27
    assert wire_bytes(n, 1, send_scales=True).ratio == 1.0
    for wrong in ({"elems": -1}, {"ranks": 0}, {"gather_item": 0}, {"block": 0}, {"block": 1.5}):
        with pytest.raises(a2a.InvalidArgumentError):
            wire_bytes(**({"elems": 1, "ranks": 2, "send_scales": True} | wrong))


class Counting:
    """A communicator that counts the bytes which go to other ranks."""

    def __init__(self, comm: a2a.Communicator) -> None:
        self.comm, self.rank, self.size = comm, comm.rank, comm.size
        self.scatter = self.gather = 0

    def alltoall_list(self, sends: list[Any], recvs: list[Any], **more: Any) -> None:
        self.scatter += sum(x.nbytes for peer, x in enumerate(sends) if peer != self.rank)
        self.comm.alltoall_list(sends, recvs, **more)

    def alltoallv(self, send: Any, send_counts: Any, recv: Any, recv_counts: Any, **more: Any) -> None:
        self.gather += sum(send.itemsize * count for peer, count in enumerate(send_counts) if peer != self.rank)
        self.comm.alltoallv(send, send_counts, recv, recv_counts, **more)


def run_counting(comm: a2a.Communicator, elems: int, block: int) -> list[tuple[int, int]]:
    q, x = np.ones(elems, np.int8), np.ones(elems, np.float32)
    sent = []
    for call, tensor, parameters in (
        (a2a.quantized_all_reduce, q, {"scale": 1.0}),
        (a2a.quantized_all_reduce, q, {"scale": 1.0, "gather": "int8"}),
        (a2a.block_quantized_all_reduce, x, {}),
        (a2a.block_quantized_all_reduce, x, {"gather": "same"}),
    ):
        counting: Any = Counting(comm)
        call(counting, tensor, block=block, **parameters)  # type: ignore[operator]
        sent.append((counting.scatter, counting.gather))
    return sent


@pytest.mark.parametrize(("elems", "block"), [(10_000, 128), (1, 1), (3, 7), (1000, 999), (0, 128)])
def test_these_bytes_are_sent(pool: Pool, elems: int, block: int) -> None:
    sent = np.array(pool.run(run_counting, elems, block)).sum(axis=0)
    sent[:, 0] -= 32 * pool.n * (pool.n - 1)  # by which ranks notice that they disagree
    wires = [
        wire_bytes(elems, pool.n, send_scales=scales, gather_item=item, block=block)
        for scales, item in ((False, 2), (False, 1), (True, 1), (True, 4))
    ]
    assert sent.tolist() == [[wire.scatter, wire.gather] for wire in wires]
