"""Runs one rank: task after task, and reports to the runner how each ended."""

from __future__ import annotations

import contextlib
import importlib
import json
import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import _core, frameworks
from ..frameworks import Framework
from .buffers import Buffer, first_difference
from .cases import Case, Raw
from .groups import Way
from .signatures import Call, of

__all__ = ["PASS", "Task", "preload", "prepare", "run", "tell", "verdict_of"]

PASS = "pass"
_NEEDED = {"torch": ("{}",), "paddle": ("{}", "{}.utils.moe_utils"), "atb": ("{}",)}
_FOR_GRADIENTS = {"torch": ("{}.nn.functional", "torch._dynamo")}
"""The modules that signatures import, and that their libraries import in the first call. {} is the way's module of the
library's functions."""


@dataclass(frozen=True)
class Task:
    """One case in one dtype; each rank has its framework and its signature."""

    case: Case
    dtype: str
    signatures: tuple[str, ...]
    frameworks: tuple[str, ...]


Prepared = dict[str, Framework | Exception]
"""The objects that a rank uses, by name, or the reason why it cannot."""


def preload(tasks: Sequence[Task], way: Way) -> None:
    """Import the modules that the tasks call, which may take longer than a task may. Forked ranks share them."""
    for signature in map(of, {name for task in tasks for name in task.signatures}):
        more = _FOR_GRADIENTS.get(signature.library, ()) if signature.gradient else ()
        for module in (*_NEEDED.get(signature.library, ()), *more):
            with contextlib.suppress(ImportError):  # then the call tells it
                importlib.import_module(module.format(way.modules[signature.library]))


def prepare(tasks: Sequence[Task], rank: int, way: Way) -> Prepared:
    """Prepare the frameworks of the tasks, before the time of the first task begins."""
    result: Prepared = {}
    for name in dict.fromkeys(task.frameworks[rank] for task in tasks):
        try:
            framework = frameworks.load(name, way.memory)
            framework.prepare(rank)
            result[name] = framework
        except Exception as error:
            result[name] = error
    return result


def run(tasks: Sequence[Task], rank: int, group: Any, way: Way, prepared: Prepared, runner: socket.socket) -> None:
    """Send the runner one line for each task, {"rank": ..., "verdict": ...}."""
    data = _Data(rank)
    for task in tasks:
        framework = prepared[task.frameworks[rank]]
        try:
            if isinstance(framework, Exception):
                raise framework
            verdict = attempt(task, data, framework, group, way.modules)
        except Exception as error:
            verdict = verdict_of(error, way)
        tell(runner, {"rank": rank, "verdict": verdict})


def verdict_of(error: Exception, way: Way) -> str:
    refused = isinstance(error, NotImplementedError) or re.search(way.refusal, str(error))
    kind = "unsupported" if refused else "raises"
    # Paddle puts the error of a backward pass below "(External)" and a line of "=".
    lines = (line.strip() for line in str(error).splitlines())
    first = next((line for line in lines if line not in ("", "{", "(External)") and not line.startswith("===")), "")
    return f"{kind}: {type(error).__name__}: {first[:200]}"


def tell(runner: socket.socket, said: dict[str, Any]) -> None:
    runner.sendall(json.dumps(said).encode() + b"\n")


class _Data:
    """The tensors that a rank sends and has to receive. Tasks of the same case and dtype follow each other, and share
    them."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self._key: tuple[Any, ...] = ()
        self._known: dict[str, list[Raw]] = {}

    def of(self, case: Case, dtype: str, what: str) -> list[Raw]:
        """``what``: "sends", "expected", "cotangents" or "gradients"."""
        if self._key != (id(case), dtype):
            self._key, self._known = (id(case), dtype), {}
        if what not in self._known:
            there = case if what in ("sends", "expected") else case.transposed()
            made = there.sends if what in ("sends", "cotangents") else there.expected
            self._known[what] = made(dtype, self.rank)
        return self._known[what]


def attempt(task: Task, data: _Data, framework: Framework, group: Any, modules: Mapping[str, str]) -> str:
    """Run one task in poisoned, guarded buffers and compare every bit."""
    case, dtype, rank, signature = task.case, task.dtype, data.rank, of(task.signatures[data.rank])
    inputs, expected = data.of(case, dtype, "sends"), data.of(case, dtype, "expected")
    if signature.parts:
        expected = [part.reshape(inputs[0].shape) for part in np.split(expected[0].reshape(-1), case.ranks)]
    given = data.of(case, dtype, "cotangents") if signature.gradient else []
    shapes = signature.send_shapes(case, rank)
    sends = [Buffer(framework, dtype, shape, raw) for shape, raw in zip(shapes, inputs, strict=True)]
    receiver = frameworks.load("numpy") if framework.immutable else framework
    recvs = [Buffer(receiver, dtype, raw.shape) for raw in expected] if signature.out else []
    cotangents = [Buffer(framework, dtype, raw.shape, raw) for raw in given]
    name = modules.get(signature.library)
    module = importlib.import_module(name) if name else None
    tensors = [[buffer.tensor for buffer in buffers] for buffers in (sends, recvs, cotangents)]
    results = signature.run(Call(case, rank, group, module, *tensors))
    wrong = (
        _wrong_buffer("output", recvs, expected if signature.out else [])
        or _wrong_buffer("input after the call", sends, inputs)
        or _wrong_buffer("gradient after the call", cotangents, given)
    )
    if results is not None and not wrong:
        if not signature.parts:
            shapes = signature.result_shapes(case, rank)
            expected = [raw.reshape(shape) for raw, shape in zip(expected, shapes, strict=True)]
        gradients = data.of(case, dtype, "gradients") if signature.gradient else []
        like = frameworks.of(type(sends[0].tensor))
        wrong = _wrong_result(framework, case.recv_dtype(dtype), like, results, [*expected, *gradients])
    return f"wrong: {wrong}" if wrong else PASS


def _wrong_buffer(what: str, buffers: Sequence[Buffer], raws: Sequence[Raw]) -> str | None:
    for at, (buffer, raw) in enumerate(zip(buffers, raws, strict=True)):
        if differs := buffer.difference(raw):
            return f"{_numbered(what, at, raws)}: {differs}"
    return None


def _wrong_result(
    framework: Framework, dtype: str, like: Framework | None, results: Sequence[Any], expected: Sequence[Raw]
) -> str | None:
    """Return what is wrong with the tensors that a call made. They have to be of its input's framework if a2a knows
    that one."""
    if len(results) != len(expected):
        return f"{len(results)} results instead of {len(expected)}"
    for at, (result, raw) in enumerate(zip(results, expected, strict=True)):
        seen = _core.describe_tensor(result)
        if (tuple(seen["shape"]), seen["dtype"]) != (raw.shape, dtype):
            differs = f"{seen['dtype']} of shape {tuple(seen['shape'])} instead of {dtype} of shape {raw.shape}"
            return f"{_numbered('result', at, expected)} is {differs}"
        if like is not None and seen["framework"] != like.name:
            return f"{_numbered('result', at, expected)} is of {seen['framework']}, not of {like.name} as the input"
        if difference := first_difference(framework, result, raw):
            return f"{_numbered('result', at, expected)}: {difference}"
    return None


def _numbered(what: str, at: int, every: Sequence[Any]) -> str:
    return f"{what} {at}" if len(every) > 1 else what
