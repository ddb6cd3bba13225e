"""What one rank does: it runs task after task and tells the runner how each ended."""

from __future__ import annotations

import importlib
import json
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from . import frameworks
from .buffers import Buffer
from .cases import Case
from .signatures import Call, of

__all__ = ["PASS", "Task", "run"]

PASS = "pass"


@dataclass(frozen=True)
class Task:
    """One case in one dtype; each rank has its framework and its signature."""

    case: Case
    dtype: str
    signatures: tuple[str, ...]
    frameworks: tuple[str, ...]


def run(tasks: Sequence[Task], rank: int, group: Any, modules: Mapping[str, str], runner: socket.socket) -> None:
    """``modules``: where the functions of a signature are, by its prefix. Every verdict is one line:
    {"rank": ..., "task": ..., "verdict": ...}."""
    prepared: dict[str, ModuleType] = {}
    for number, task in enumerate(tasks):
        name = task.frameworks[rank]
        if name not in prepared:
            prepared[name] = frameworks.load(name)
            prepared[name].prepare()
        try:
            verdict = attempt(task, rank, prepared[name], group, modules)
        except Exception as error:
            unsupported = isinstance(error, NotImplementedError)
            lines = str(error).strip().splitlines() or [""]
            verdict = f"{'unsupported' if unsupported else 'raises'}: {type(error).__name__}: {lines[0][:200]}"
        line = {"rank": rank, "task": number, "verdict": verdict}
        runner.sendall(json.dumps(line).encode() + b"\n")


def attempt(task: Task, rank: int, framework: ModuleType, group: Any, modules: Mapping[str, str]) -> str:
    """Runs one task in poisoned, guarded buffers and compares every bit."""
    case, dtype, signature = task.case, task.dtype, of(task.signatures[rank])
    name = modules.get(signature.name.partition(".")[0])
    module = importlib.import_module(name) if name else None
    receiver = framework if framework.OUTPUTS else frameworks.load("numpy")
    inputs = case.sends(dtype, rank)
    sends = [Buffer(framework, dtype, shape, raw) for shape, raw in zip(case.send_shapes(rank), inputs, strict=True)]
    recvs = [Buffer(receiver, dtype, shape) for shape in case.recv_shapes(rank)] if signature.out else []
    call = Call(case, rank, group, module, [one.tensor for one in sends], [one.tensor for one in recvs])
    results = signature.run(call)
    expected = case.expected(dtype, rank)
    for at, wanted in enumerate(expected):
        if results is None:
            difference = recvs[at].difference(wanted, dtype)
        else:
            difference = Buffer(framework, dtype, wanted.shape, wanted).difference(wanted, dtype, results[at])
        if difference:
            return f"wrong: output {at}: {difference}" if len(expected) > 1 else f"wrong: {difference}"
    for buffer, raw in zip(sends, inputs, strict=True):
        if difference := buffer.difference(raw, dtype):
            return f"wrong: the input was changed: {difference}"
    return PASS
