"""Sends a call to ranks that are processes, and its result back: by pickle, where ranks can import the function.

A function in a notebook, in ``python -c``, at a prompt or in standard input cannot be imported. It is sent by value, by
cloudpickle, where that is installed."""

from __future__ import annotations

import importlib.util
import io
import mmap
import multiprocessing.spawn
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from types import FunctionType
from typing import Any

from ._core import InvalidArgumentError

_MAIN = ("init_main_from_name", "init_main_from_path")

_importing_main = False
_dumps: Callable[[Any], bytes] = pickle.dumps
"""The function by which a rank packs its result: by value, if the call has come by value."""


def pack_call(fn: Callable[..., Any], args: tuple[Any, ...]) -> bytes:
    """Return the call as bytes. Raises InvalidArgumentError when it cannot be packed."""
    if _importing_main:
        raise RuntimeError(
            "spawn() was called while a rank imports the main program: put the call under `if __name__ == '__main__':`"
        )
    # The facts that multiprocessing gives its own children: module search path, main module, arguments, log level. Its
    # key for sockets cannot be pickled, and ranks do not need it.
    preparation = multiprocessing.spawn.get_preparation_data("a2a rank")
    preparation.pop("authkey", None)
    main = preparation.get("init_main_from_path", "")
    if main and not Path(main).is_file():
        del preparation["init_main_from_path"]  # "<stdin>"
    at_prompt = hasattr(sys, "ps1") or bool(sys.flags.interactive)
    hidden = at_prompt or not any(key in preparation for key in _MAIN)
    by_value = False
    try:
        try:
            call = _by_import((fn, args), main if hidden else None)
        except _Hidden as error:
            if importlib.util.find_spec("cloudpickle") is None:
                raise InvalidArgumentError(str(error)) from None
            by_value, call = True, _by_value((fn, args))
            for key in _MAIN:
                preparation.pop(key, None)  # its definitions are sent by value
    except InvalidArgumentError:
        raise
    except Exception as error:
        raise InvalidArgumentError(
            f"spawn: the function or its arguments cannot be pickled ({error}); use a function of a module, "
            "or threads=True"
        ) from error
    return pickle.dumps((preparation, by_value)) + call


def unpack_call(file: mmap.mmap) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Return, in a rank, the function and its arguments. Imports the main program first where that is needed."""
    global _importing_main, _dumps
    preparation, by_value = pickle.load(file)
    _importing_main = True
    try:
        multiprocessing.spawn.prepare(preparation)
    finally:
        _importing_main = False
    if by_value:
        _dumps = _by_value
    fn, args = pickle.load(file)
    return fn, args


def pack_result(value: Any) -> bytes:
    """Return, in a rank, the bytes that the caller unpickles."""
    return _dumps(value)


def _by_value(value: Any) -> bytes:
    import cloudpickle

    content: bytes = cloudpickle.dumps(value)
    return content


def _by_import(value: Any, hidden_main: str | None) -> bytes:
    file = io.BytesIO()
    _Pickler(file, hidden_main).dump(value)
    return file.getvalue()


class _Hidden(Exception):
    """An object that ranks cannot import."""


class _Pickler(pickle.Pickler):
    """Refuses objects that ranks cannot import: those of a main program that is no file, or that were defined after it
    had run."""

    def __init__(self, file: io.BytesIO, hidden_main: str | None) -> None:
        super().__init__(file)
        self._hidden_main = hidden_main

    def reducer_override(self, value: Any) -> Any:
        if self._hidden_main is None or not isinstance(value, FunctionType | type) or value.__module__ != "__main__":
            return NotImplemented
        if self._hidden_main and isinstance(value, FunctionType) and value.__code__.co_filename == self._hidden_main:
            return NotImplemented
        raise _Hidden(
            f"spawn: ranks cannot import {value.__qualname__}, which is defined in a notebook, at a prompt, in python "
            "-c or in standard input; install cloudpickle (pip install 'a2a-comm[notebook]'), put it into a module, "
            "or pass threads=True"
        )
