"""All-reduce that sends int8: an all-to-all, a sum, an all-gather.

Each rank owns one part of the elements, whole blocks of it: it receives that part of every rank's tensor (the
all-to-all), adds them up, and sends the sum to all ranks (the all-gather). ATB's page "AllToAllVOperation" describes
its operation as part of this. docs/guide/quantized.md derives the bounds of the errors.
"""

from __future__ import annotations

import hashlib
import operator
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt

from ._core import (
    Communicator,
    InvalidArgumentError,
    MismatchError,
    collective,
    dequantize_blocks_sum,
    dequantize_sum,
    describe_tensor,
    everywhere,
    flat_array,
    from_float32,
    new_like,
    quantize_blocks,
    takes,
    to_float32,
    wait_to_read,
)

if TYPE_CHECKING:
    from ._core import Tensor

__all__ = ["WireBytes", "block_quantized_all_reduce", "quantized_all_reduce", "wire_bytes"]

_T = TypeVar("_T", bound="Tensor")
_Bytes = npt.NDArray[np.uint8]
_Floats = npt.NDArray[np.float32]

BLOCK = 128
"""The default number of elements that share a scale."""


@dataclass(frozen=True)
class WireBytes:
    """The bytes that all ranks together send to others, scales included. In the first exchange each rank sends each
    other one 32 more bytes, by which they notice a disagreement."""

    scatter: int
    gather: int
    float32: int
    """The bytes of an all-reduce of as many float32 in two steps, a reduce-scatter and an all-gather."""

    @property
    def total(self) -> int:
        return self.scatter + self.gather

    @property
    def ratio(self) -> float:
        """0.375 for int8 there and float16 back; 0.25 + 1 / block for int8 in blocks both ways."""
        return self.total / self.float32 if self.float32 else 1.0


def wire_bytes(elems: int, ranks: int, *, send_scales: bool, gather_item: int = 1, block: int = BLOCK) -> WireBytes:
    """Return the traffic of one call: ``send_scales`` for block_quantized_all_reduce, ``gather_item`` the bytes of an
    element in the all-gather; 1 is int8 in blocks. Raises InvalidArgumentError for numbers that no call has."""
    block = _block_of(block)
    if elems < 0 or ranks < 1 or gather_item < 1:
        raise InvalidArgumentError(f"wire_bytes: elems={elems}, ranks={ranks}, gather_item={gather_item}")
    scales = 4 * -(-elems // block)
    scatter = elems + (scales if send_scales else 0)
    gather = elems * gather_item + (scales if gather_item == 1 else 0)
    others = ranks - 1
    return WireBytes(others * scatter, others * gather, others * 8 * elems)


@collective
def quantized_all_reduce(
    comm: Communicator,
    x: _T,
    scale: Any,
    offset: Any = 0.0,
    *,
    gather: Literal["float16", "int8"] = "float16",
    block: int = BLOCK,
    timeout: float | None = None,
) -> _T:
    """Return the sum over all ranks of int8 tensors with a common scale, as float16: in the shape and framework of
    ``x``, with the same bits on every rank.

        y = (sum over ranks r of x_r + ranks * offset) * scale

    An int8 q stands for (q + offset) * scale; an ONNX zero point is -offset. ``scale`` and ``offset`` are numbers (per
    tensor) or have one entry for each channel, which is the last dimension of ``x``; both are the same on all ranks.
    The sum is exact in int32, the rest is float32, rounded once to float16.

    With ``gather="int8"`` the sum is sent in blocks of ``block`` elements, each with a scale of its own, so that 25 % +
    1 / block of the bytes of a float32 all-reduce are sent instead of 37.5 %.

    ``x`` is a contiguous tensor, on the host or of Torch on a device, and is not changed. Raises InvalidArgumentError
    for invalid arguments, and MismatchError on every rank when ranks disagree about the number of elements, scale,
    offset, gather or block. ``timeout`` in seconds is the deadline of each of the two exchanges."""
    takes(2)
    block = _block_of(block)
    _require_choice(gather, "float16", "int8")
    _require_communicator(comm)
    arithmetic = _arithmetic_for(x)
    wait_to_read(comm, [x])
    flat, _ = arithmetic.flat(x, "x", "int8")
    elems = len(flat)
    channels = _channels(x)
    scales, offsets = _parameter(scale, "scale", channels), _parameter(offset, "offset", channels)
    ours = _Parts(comm.size, elems, block)
    header = _header(elems, block, gather, scales, offsets)
    sends = [arithmetic.message(header, flat[part]) for part in ours.parts]
    received = _first(comm, arithmetic, sends, header.size + ours.elems[comm.rank], header, timeout)
    q = arithmetic.joined([message[header.size :] for message in received], "int8")
    first = ours.parts[comm.rank].start % max(channels, 1)
    summed = arithmetic.dequantize_sum(q, comm.size, scales, offsets, first)
    result: _T = _gather(comm, arithmetic, ours, summed, x, "float16", gather == "int8", timeout)
    return result


@collective
def block_quantized_all_reduce(
    comm: Communicator,
    x: _T,
    *,
    gather: Literal["int8", "same"] = "int8",
    block: int = BLOCK,
    timeout: float | None = None,
) -> _T:
    """Return the sum over all ranks of float tensors, sent as int8: in the shape, framework and dtype of ``x``
    (float32, float16 or bfloat16), with the same bits on every rank.

    Each block of ``block`` elements of each rank has its own scale:

        s = max |x| / 127 (1 for a block of zeros),  q = x / s rounded to nearest, ties to even
        y = sum over ranks r, in rising order, of q_r * s_r, in float32

    Without further rounding y is within the sum over ranks of s_r / 2 of the exact sum. ``gather="int8"`` quantises y
    the same way for the all-gather, which adds an error of half of its block's scale; ``gather="same"`` sends it in the
    dtype of ``x``. A block in which some rank has an infinity or a NaN becomes NaN.

    ``x`` is a contiguous tensor, on the host or of Torch on a device, and is not changed. Errors and ``timeout`` are
    those of quantized_all_reduce."""
    takes(2)
    block = _block_of(block)
    _require_choice(gather, "int8", "same")
    _require_communicator(comm)
    arithmetic = _arithmetic_for(x)
    wait_to_read(comm, [x])
    flat, dtype = arithmetic.flat(x, "x", "float32", "float16", "bfloat16")
    ours = _Parts(comm.size, len(flat), block)
    header = _header(len(flat), block, f"{dtype} {gather}")
    # The blocks are those of the whole tensor: parts are made of whole blocks.
    q, scales = arithmetic.quantize_blocks(arithmetic.to_float32(flat, dtype), block)
    sends = [
        arithmetic.message(header, scales[blocks], q[part])
        for part, blocks in zip(ours.parts, ours.blocks, strict=True)
    ]
    expected = header.size + ours.packed_bytes(comm.rank)
    received = _first(comm, arithmetic, sends, expected, header, timeout)
    messages = [message[header.size :] for message in received]
    summed = _sum_packed(arithmetic, messages, ours.elems[comm.rank], block)
    result: _T = _gather(comm, arithmetic, ours, summed, x, dtype, gather == "int8", timeout)
    return result


# ---- arithmetic -----------------------------------------------------------------------------------------------------


class _HostArithmetic:
    """The arithmetic on flat NumPy arrays, in C++. a2a.torch has the same for devices; both give the same bits."""

    flat = staticmethod(flat_array)
    to_float32 = staticmethod(to_float32)
    quantize_blocks = staticmethod(quantize_blocks)
    dequantize_sum = staticmethod(dequantize_sum)
    dequantize_blocks_sum = staticmethod(dequantize_blocks_sum)
    new_like = staticmethod(new_like)
    from_float32 = staticmethod(from_float32)

    def message(self, *parts: npt.NDArray[Any]) -> _Bytes:
        """The bytes of all parts, one after another."""
        return np.concatenate([part.view(np.uint8) for part in parts])

    def joined(self, messages: list[_Bytes], dtype: str) -> npt.NDArray[Any]:
        """The elements in all messages, one after another."""
        return np.concatenate(messages).view(dtype)

    def empty(self, elems: int, dtype: npt.DTypeLike = np.uint8) -> npt.NDArray[Any]:
        return np.empty(elems, dtype)

    def on_host(self, message: _Bytes) -> _Bytes:
        return message


def _arithmetic_for(x: Any) -> Any:
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(x, torch.Tensor) or x.device.type in ("cpu", "meta"):
        return _HostArithmetic()
    from a2a.torch._plugins.quantized import DeviceArithmetic

    return DeviceArithmetic(x.device)


# ---- the two exchanges ----------------------------------------------------------------------------------------------


class _Parts:
    """The elements that each rank adds up: whole blocks, divided as equally as possible."""

    def __init__(self, ranks: int, elems: int, block: int) -> None:
        blocks = -(-elems // block)
        edges = [rank * blocks // ranks for rank in range(ranks + 1)]
        self.ranks, self.block = ranks, block
        self.blocks = [slice(edges[rank], edges[rank + 1]) for rank in range(ranks)]
        self.parts = [slice(min(b.start * block, elems), min(b.stop * block, elems)) for b in self.blocks]
        self.elems = [part.stop - part.start for part in self.parts]

    def packed_bytes(self, rank: int) -> int:
        """The bytes of that part as int8 behind the float32 scales of its blocks."""
        blocks = self.blocks[rank]
        return 4 * (blocks.stop - blocks.start) + self.elems[rank]


def _first(
    comm: Communicator, arithmetic: Any, sends: list[Any], expected: int, header: _Bytes, timeout: float | None
) -> list[Any]:
    """Run the all-to-all of one message for each pair, which begins with the header. When ranks disagree, each of them
    notices that here, from the header or from the length, so that none goes on to the second exchange alone."""
    received = [arithmetic.empty(expected) for _ in sends]
    comm.alltoall_list(sends, received, timeout=timeout)
    for rank, message in enumerate(received):
        theirs = arithmetic.on_host(message[: header.size])
        if (theirs != header).any():
            text = f"quantized all-reduce: rank {rank} has {_said(theirs)}, but rank {comm.rank} has {_said(header)}"
            raise everywhere(MismatchError(text))
    return received


def _gather(
    comm: Communicator,
    arithmetic: Any,
    ours: _Parts,
    summed: Any,
    like: Any,
    dtype: str,
    quantized: bool,
    timeout: float | None,
) -> Any:
    """Run the all-gather of every rank's sums, into a new tensor."""
    out, finish = arithmetic.new_like(like, dtype)
    if quantized:
        q, scales = arithmetic.quantize_blocks(summed, ours.block)
        mine = arithmetic.message(scales, q)
        counts = [ours.packed_bytes(rank) for rank in range(ours.ranks)]
        target = arithmetic.empty(sum(counts))
    else:
        mine = arithmetic.empty(len(summed), out.dtype)
        arithmetic.from_float32(summed, dtype, mine)
        counts, target = ours.elems, out
    everybody = [len(mine)] * ours.ranks
    comm.alltoallv(mine, everybody, target, counts, send_displs=[0] * ours.ranks, timeout=timeout)
    if quantized:
        edges = np.cumsum([0, *counts]).tolist()
        for part, start, stop in zip(ours.parts, edges, edges[1:], strict=False):
            sums = _sum_packed(arithmetic, [target[start:stop]], part.stop - part.start, ours.block)
            arithmetic.from_float32(sums, dtype, out[part])
    return finish()


def _sum_packed(arithmetic: Any, messages: list[Any], elems: int, block: int) -> Any:
    """Add up messages of scales and int8 values."""
    split = 4 * -(-elems // block)
    scales = arithmetic.joined([message[:split] for message in messages], "float32")
    q = arithmetic.joined([message[split:] for message in messages], "int8")
    return arithmetic.dequantize_blocks_sum(q, scales, len(messages), block)


def _header(elems: int, block: int, kind: str, *parameters: _Floats) -> _Bytes:
    """Return the values on which ranks must agree, in 32 bytes: elements, block, and hashes of the rest."""
    said = hashlib.blake2b(digest_size=8)
    for parameter in parameters:
        said.update(str(parameter.size).encode() + parameter.tobytes())
    kinds = int.from_bytes(hashlib.blake2b(kind.encode(), digest_size=8).digest(), "little", signed=True)
    values = int.from_bytes(said.digest(), "little", signed=True)
    return np.array([elems, block, kinds, values], np.int64).view(np.uint8)


def _said(header: _Bytes) -> str:
    elems, block, kind, values = header.view(np.int64).tolist()
    hashes = f"{kind & 0xFFFF:04x}, scale and offset {values & 0xFFFF:04x}"
    return f"{elems} elements, block {block}, dtype and gather {hashes}"


# ---- arguments ------------------------------------------------------------------------------------------------------


def _block_of(block: Any) -> int:
    try:
        value = 0 if isinstance(block, bool) else operator.index(block)
    except TypeError:
        value = 0
    if not 1 <= value < 2**31:
        raise InvalidArgumentError(f"block is {block!r}; pass a number of elements from 1 on")
    return value


def _require_choice(gather: Any, *choices: str) -> None:
    if not isinstance(gather, str) or gather not in choices:
        raise InvalidArgumentError(f"gather is {gather!r}; pass {' or '.join(map(repr, choices))}")


def _require_communicator(comm: Any) -> None:
    if not hasattr(comm, "size"):
        raise TypeError(f"comm is {comm!r}, which is no communicator")


def _channels(x: Any) -> int:
    """Return the last dimension of a tensor."""
    shape = x.shape if hasattr(x, "shape") else describe_tensor(x)["shape"]  # a buffer has dimensions, too
    return int(shape[-1]) if len(shape) else 1


def _parameter(value: Any, name: str, channels: int) -> _Floats:
    """Return a scale or offset as float32: one entry, or one for each channel."""
    try:
        numbers = np.asarray(value)
        if not np.can_cast(numbers.dtype, np.float64, "same_kind") or numbers.dtype.kind == "b":
            raise TypeError
        with np.errstate(over="ignore"):
            array = np.ascontiguousarray(numbers, np.float32).reshape(-1)
    except (TypeError, ValueError, RuntimeError):
        raise InvalidArgumentError(f"{name} is {value!r}; pass a number, or one for each channel") from None
    if array.size not in (1, channels):
        raise InvalidArgumentError(f"{name} has {array.size} entries; pass one, or one for each of {channels} channels")
    wrong = np.flatnonzero(~np.isfinite(array) | ((array <= 0) & (name == "scale")))
    if wrong.size:
        wanted = "positive and finite" if name == "scale" else "finite"
        raise InvalidArgumentError(f"{name}[{wrong[0]}] is {array[wrong[0]]}; as a float32 it must be {wanted}")
    return array
