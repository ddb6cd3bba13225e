"""The primitive of all operations with one operand, and its rules. Its parameters are a communicator and an Operation.

It has the effect that orders operations. Outside of compiled programs it runs when it is bound."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

import a2a
from a2a import frameworks
from a2a._core import CompiledCalls
from a2a.adapting import collective, takes

from ._programs import call, effect, program_of, wait_for_programs

__all__ = [
    "Operation",
    "agreement",
    "as_jax",
    "bind",
    "kept_call",
    "new_array",
    "on_host",
    "refuse_lowering",
    "zero_tangent",
]

_ALIGNMENT = 64  # alignment of memory that JAX uses as an array without a copy


class Operation:
    """What one operation is, without the communicator. Equal ones are the same to JAX."""

    groups: Any = None
    in_place: ClassVar[bool] = False  # whether the operand becomes the result, where nothing else is received
    messages: ClassVar[bool] = False  # whether it is a message, which takes no number of an operation
    linear: Any = True

    @property
    def uniform(self) -> bool:
        """Whether each pair of ranks exchanges as much as any other."""
        return self.groups is None

    def shape(self, comm: Any, given: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the result."""
        return given

    def start(self, calls: Any, send: Any, recv: Any) -> Any:
        """Run it on arrays of NumPy, or keep it for a program and return its number."""
        raise NotImplementedError

    def compared(self, calls: Any, send: Any) -> dict[str, int]:
        """Return what the ranks of a program compare where their pairs exchange different amounts: then every rank sees
        that one has other arguments. Outside of programs ranks that are not concerned go on."""
        if self.uniform or not isinstance(calls, CompiledCalls):
            return {}
        return dict(agreement=agreement(self, send.shape, str(send.dtype)))

    def back(self, comm: Any, cotangent: Any) -> Any:
        """The transpose, of a linear one."""
        raise NotImplementedError

    def batched(self) -> tuple[Operation, int, int]:
        """Return the operation on all entries of a batch, and the axis of the batch in its operand and its result."""
        return self, 0, 0


def bind(x: Any, comm: a2a.Communicator, operation: Operation) -> Any:
    """Apply the primitive."""
    return _collective.bind(x, comm=comm, operation=operation)


@collective
def _run(comm: a2a.Communicator, x: Any, operation: Operation) -> Any:
    wait_for_programs()
    if operation.groups is not None:
        takes(2)
        _compare(comm, operation.groups)
    return _run_message(comm, x, operation)


def _run_message(comm: a2a.Communicator, x: Any, operation: Operation) -> Any:
    """Run the operation now, without copies of the arrays."""
    wait_for_programs()
    given = on_host(x)
    made = new_array(operation.shape(comm, given.shape), given.dtype)
    if operation.in_place:
        made[...] = given
    operation.start(comm, given, made)
    return as_jax(x, made)


def on_host(x: Any) -> npt.NDArray[Any]:
    """Return the memory of an array of JAX that is on the host."""
    if not isinstance(x, jax.Array):  # JAX hands an array of NumPy on as one of a kind of its own
        x = jnp.asarray(np.asarray(x))
    platforms = {device.platform for device in x.devices()}
    if platforms != {"cpu"} or len(x.devices()) != 1:
        raise a2a.InvalidArgumentError(
            f"x is on {sorted(map(str, x.devices()))}; pass an array that is on one device, the host: "
            "jax.device_put(x, jax.devices('cpu')[0])"
        )
    return np.asarray(x)


def as_jax(like: Any, made: npt.NDArray[Any]) -> Any:
    """Return an array of JAX on the device of ``like`` that shares the memory of ``made``."""
    framework: Any = frameworks.named("jax")
    return framework.convert(like if isinstance(like, jax.Array) else jnp.asarray(np.asarray(like)), made)


def new_array(shape: tuple[int, ...], dtype: Any) -> npt.NDArray[Any]:
    """Allocate aligned memory, of which JAX makes an array without a copy."""
    nbytes = math.prod(shape) * dtype.itemsize
    memory = np.empty(nbytes + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    room: npt.NDArray[Any] = memory[start : start + nbytes].view(dtype).reshape(shape)
    return room


def _compare(comm: a2a.Communicator, groups: Any) -> None:
    """Collective. The order of a list decides which slice goes where, and no count shows it."""
    own = repr(sorted(groups)).encode()
    for rank, told in enumerate(comm.allgather_bytes(own)):
        if told != own:
            raise a2a.MismatchError(
                f"axis_index_groups: rank {comm.rank} has {own.decode()}, rank {rank} has {told.decode()}"
            )


@collective
def kept_call(comm: a2a.Communicator, start: Callable[..., Any], ctx: Any, *avals: Any) -> Any:
    """Call ``start`` with CompiledCalls of the communicator for the program that is lowered, and arrays in the place of
    its own. What it raises reaches the peers, whose programs may be compiled and run."""
    wait_for_programs()
    return start(CompiledCalls(comm, program_of(ctx)), *[np.empty(aval.shape, aval.dtype) for aval in avals])


def agreement(*arguments: Any) -> int:
    """Return a number by which the ranks compare arguments that all have alike."""
    return zlib.crc32(repr(arguments).encode()) | 1


@collective
def refuse_lowering(*_: Any, comm: a2a.Communicator, **__: Any) -> Any:
    """The rule for devices on which a program cannot call a2a."""
    wait_for_programs()
    raise a2a.UnsupportedError(
        "a program with operations of a2a.jax was compiled for a device; they run in programs for the CPU: "
        "jax.jit(..., device=jax.devices('cpu')[0])"
    )


def zero_tangent(x: Any) -> Any:
    """The symbolic zero of the tangents of x."""
    return ad.Zero.from_primal_value(x)


# ---- rules -----------------------------------------------------------------------------------------------------------


def _apply(x: Any, *, comm: a2a.Communicator, operation: Operation) -> Any:
    return (_run_message if operation.messages else _run)(comm, x, operation)


def _abstract(x: Any, *, comm: a2a.Communicator, operation: Operation) -> Any:
    return x.update(shape=operation.shape(comm, x.shape)), {effect}


def _lower(ctx: Any, x: Any, *, comm: a2a.Communicator, operation: Operation) -> Any:
    number = kept_call(comm, operation.start, ctx, ctx.avals_in[0], ctx.avals_out[0])
    return call(ctx, number, [x], {0: 0} if operation.in_place else {})


def _jvp(primals: Any, tangents: Any, *, comm: a2a.Communicator, operation: Operation) -> Any:
    result = bind(primals[0], comm, operation)
    if type(tangents[0]) is ad.Zero:
        return result, zero_tangent(result)
    if not operation.linear:
        raise NotImplementedError(f"{operation} of a2a.jax has no derivative; see jax.lax.stop_gradient")
    return result, bind(tangents[0], comm, operation)


def _transpose(cotangent: Any, x: Any, *, comm: a2a.Communicator, operation: Operation) -> list[Any]:
    if type(cotangent) is ad.Zero:
        return [ad.Zero(x.aval)]
    return [operation.back(comm, cotangent)]


def _batched(tensors: Any, dims: Any, *, comm: a2a.Communicator, operation: Operation) -> tuple[Any, int]:
    """The rule for jax.vmap: all entries of the batch travel together."""
    whole, given, made = operation.batched()
    return bind(jnp.moveaxis(tensors[0], dims[0], given), comm, whole), made


_collective = Primitive("a2a_collective")
_collective.def_impl(_apply)
_collective.def_effectful_abstract_eval(_abstract)
ad.primitive_jvps[_collective] = _jvp
ad.primitive_transposes[_collective] = _transpose
batching.primitive_batchers[_collective] = _batched
mlir.register_lowering(_collective, refuse_lowering)
mlir.register_lowering(_collective, _lower, platform="cpu")
