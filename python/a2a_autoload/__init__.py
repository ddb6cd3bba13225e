"""What ``import torch`` runs of a2a: torch knows the backend "a2a" and ``init_method="a2a://"`` without another import.
So do libraries that have lists of backends.

This is an entry point of the group "torch.backends". Where a2a is installed, every ``import torch`` runs it. So it
imports little: a2a itself is imported when it makes its first group. TORCH_DEVICE_BACKEND_AUTOLOAD=0 switches it off;
``import a2a.torch`` then does the same.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from . import _libraries

__all__ = ["autoload", "register", "serve_gloo"]

_NAME = "a2a"
_ON, _OFF = ("1", "on", "true", "yes"), ("", "0", "off", "false", "no")


def autoload() -> None:
    """The entry point: register(), whose failure on a torch that is too new must not make ``import torch`` fail."""
    try:
        register()
    except (AttributeError, ImportError, TypeError) as error:
        warnings.warn(f'torch does not know the backend "a2a": {error}', RuntimeWarning, stacklevel=2)


def register() -> None:
    """Register the backend and the rendezvous with torch.distributed, once, and serve "gloo" if A2A_TORCH_GLOO asks
    for it. Raises InvalidArgumentError for another word in that variable."""
    import torch.distributed as dist

    if not dist.is_available() or _NAME in dist.Backend.backend_list:
        return
    from torch.distributed.rendezvous import register_rendezvous_handler

    dist.Backend._plugins = _Plugins(dist.Backend._plugins)
    dist.Backend.register_backend(_NAME, _create, extended_api=True, devices=["cpu", "cuda"])
    register_rendezvous_handler(_NAME, _rendezvous)
    _libraries.register()
    word = os.environ.get("A2A_TORCH_GLOO", "").strip()
    if word.lower() in _ON:
        serve_gloo()
    elif word.lower() not in _OFF:
        error = _load("a2a").InvalidArgumentError
        raise error(f"A2A_TORCH_GLOO={word} in the environment is none of 1, 0, on, off, true, false, yes, no")


def serve_gloo() -> None:
    """Have a2a make the process groups that are asked for as "gloo" from now on: by this name, in a mixture such as
    "cpu:gloo,cuda:nccl", or without a name where Gloo is torch's choice. All ranks have to call it, before they make
    the group. Groups that exist stay as they are.

    It is for libraries that accept no name but their own. ``get_backend()`` of such a group returns what was asked for,
    because they compare it; ``get_backend_config()`` and the group's ``name()`` have "a2a"."""
    from torch.distributed import distributed_c10d as c10d

    make: Callable[..., Any] = c10d._new_process_group_helper
    if hasattr(make, "_serves_gloo"):
        return
    signature = inspect.signature(make)

    @functools.wraps(make)
    def make_group(*arguments: Any, **options: Any) -> Any:
        call = signature.bind(*arguments, **options)
        asked = call.arguments["backend"]
        if not _is_gloo(asked):
            return make(*arguments, **options)
        call.arguments["backend"] = c10d.Backend(_NAME)
        group, store = make(*call.args, **call.kwargs)
        if group != c10d.GroupMember.NON_GROUP_MEMBER:
            c10d._world.pg_map[group] = (asked, store)
            _load("a2a._log").LOGGER.info('process group "%s": a2a serves the backend "%s"', group.group_name, asked)
        return group, store

    make_group._serves_gloo = True  # type: ignore[attr-defined]
    c10d._new_process_group_helper = make_group


def _is_gloo(asked: str) -> bool:
    """Whether torch would give host tensors to Gloo, and those of devices to Gloo or NCCL."""
    from torch.distributed import distributed_c10d as c10d

    try:
        backends = c10d.BackendConfig(c10d.Backend(asked)).get_device_backend_map()
    except (ValueError, KeyError):
        return False  # torch says what is wrong
    return backends.get("cpu") == "gloo" and set(backends.values()) <= {"gloo", "nccl"}


class _Plugins(dict[str, Any]):
    """The backends that are not torch's own. Where keys() names one, torch leaves a group of its own backends that is
    asked for by device ("cpu:gloo") without a default backend. So "A2A" is found, but not listed."""

    def keys(self) -> Any:
        return [name for name in super().keys() if name != _NAME.upper()]


def _create(options: Any, backend_options: Any) -> Any:
    # The backend reads this variable of its caller. It is a local variable of torch, and nowhere else.
    backend_config = sys._getframe(1).f_locals.get("backend_config")  # noqa: F841
    _libraries.warn_of_untold()
    return _load("a2a.torch._backend.registration")._create(options, backend_options)


def _rendezvous(url: str, **options: Any) -> Iterator[tuple[Any, int, int]]:
    yield from _load("a2a.torch._process_group.world")._rendezvous(url, **options)


def _load(name: str) -> Any:
    importlib.import_module("a2a_comm")  # makes the module a2a whole where a2a-sdk has replaced it
    if name.startswith("a2a.torch."):
        importlib.import_module("a2a.torch")
    return importlib.import_module(name)
