"""Makes programs that call ``paddle.distributed`` itself, ``paddle.DataParallel`` or fleet run on a2a."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from types import MethodType
from typing import Any

import paddle
import paddle.distributed as _paddle
from paddle.distributed import fleet
from paddle.distributed.fleet import Fleet
from paddle.distributed.fleet.utils import hybrid_parallel_util as _fleet
from paddle.distributed.utils import moe_utils as _paddle_moe

from . import _batch, _functions, _groups, _incubate, stream
from ._device import original, originals
from ._reducer import Reducer, make_contiguous
from .utils import moe_utils


def enable() -> None:
    """Make the collectives of ``paddle.distributed`` move CPU tensors with a2a, and every ``paddle.DataParallel`` that
    is made from now on average the gradients of CPU parameters with it. Paddle still serves tensors on devices, and
    static graphs. Call it on every rank, before or after init_parallel_env(); a second call has no effect."""
    for owner, name, function in _replacements():
        originals.setdefault((owner.__name__, name), getattr(owner, name))
        setattr(owner, name, function)


def disable() -> None:
    """Restore the functions of ``paddle.distributed``. Existing DataParallel objects do not change."""
    for owner, name, _ in _replacements():
        setattr(owner, name, original(owner, name))
    originals.clear()


def _replacements() -> Iterator[tuple[Any, str, Any]]:
    """Yield (module, name, replacement). Other functions of paddle.distributed call those of stream."""
    for name in stream.__all__:
        yield _paddle.stream, name, getattr(stream, name)
    # These do not call them where Paddle has no NCCL or Gloo cannot do it.
    for name in ("all_reduce", "reduce_scatter", "wait"):
        yield _paddle, name, getattr(_functions, name)
    yield _paddle, "batch_isend_irecv", _batch.batch_isend_irecv
    yield _paddle, "barrier", _on_cpu("barrier", _groups.barrier)
    yield _paddle, "init_parallel_env", _on_cpu("init_parallel_env", _groups.init_parallel_env)
    yield Fleet, "init", _init_fleet
    yield fleet, "init", MethodType(_init_fleet, fleet.fleet)  # a method of this one object, bound before
    yield _paddle, "new_group", _on_cpu("new_group", _groups.new_group)
    for name in moe_utils.__all__:
        yield _paddle_moe, name, getattr(moe_utils, name)
    yield paddle.DataParallel, "init_reducer", _init_reducer
    yield _fleet, "fused_allreduce_gradients_with_group", _fused_gradients
    yield from _incubate.replacements()


def _on_cpu(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a call that has no tensor: Paddle's own function is called where the program works on another device."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return (function if _works_on_cpu() else original(_paddle, name))(*args, **kwargs)

    return call


def _init_fleet(self: Any, role_maker: Any = None, is_collective: bool = False, *args: Any, **kwargs: Any) -> Any:
    """Replaces Fleet.init(), which reads Paddle's variables before it calls init_parallel_env()."""
    if (is_collective or getattr(role_maker, "_is_collective", False)) and _works_on_cpu():
        _groups.prepare_environment()
    return original(Fleet, "init")(self, role_maker, is_collective, *args, **kwargs)


def _works_on_cpu() -> bool:
    return paddle.in_dynamic_mode() and bool(paddle.get_device() == "cpu")


def _init_reducer(model: Any) -> None:
    """DataParallel.init_reducer()."""
    parameters = [p for p in model.parameters() if p.trainable and not getattr(p, "no_sync", False)]
    on_cpu = bool(parameters) and all(p.place.is_cpu_place() for p in parameters)
    comm = _groups.get_communicator(model.group) if on_cpu else None
    if comm is None:
        original(paddle.DataParallel, "init_reducer")(model)
        return
    model._reducer = Reducer(comm, parameters)
    model.register_forward_pre_hook(_begin)


def _fused_gradients(parameters: Iterable[Any], *args: Any, **kwargs: Any) -> Any:
    """Replaces Paddle's function, which assumes contiguous gradients and otherwise writes their elements to wrong
    places."""
    parameters = list(parameters)
    for parameter in parameters:
        if parameter.place.is_cpu_place():
            make_contiguous(parameter)
    return original(_fleet, "fused_allreduce_gradients_with_group")(parameters, *args, **kwargs)


def _begin(model: Any, _: Any) -> None:
    model._reducer.begin(model.grad_need_sync)
