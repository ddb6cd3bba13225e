"""What a rank does: one test after the other, each in step with the process that runs the tests."""

from __future__ import annotations

import faulthandler
import os
import random
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from ..._descriptors import above_standard
from .channel import Channel, Closed

__all__ = ["CONNECTION_CLOSED", "Failure", "Stage", "Tested", "greet", "serve"]

CONNECTION_CLOSED = 77
"""The exit code of a rank that can no longer be heard: a test has closed its descriptors."""
_FORK_SECONDS = 0.5
_STACK_SIGNAL = int(signal.SIGRTMAX) - 2


@dataclass
class Failure:
    """Why a test did not pass on a rank."""

    time: float
    """on the monotonic clock that all processes share"""
    follows: bool
    """whether it may be the effect of another rank's failure"""
    message: str
    skipped: bool = False


@dataclass
class Tested:
    """How the test went on this rank, before anything is torn down. ``content`` is the stage's own."""

    failure: Failure | None
    content: Any = None


class Stage(Protocol):
    """What runs tests in a rank."""

    def outputs(self) -> dict[str, int]:
        """Return the files in which what the rank prints during a test is kept."""

    def run(self, task: Any, channel: Channel, meet: Callable[[Tested], str | None]) -> Any:
        """Run a test, and tear down what it used. Between the two it calls ``meet``, which waits for the other ranks. A
        reason says that not all have passed, so that nobody may wait for others any more."""

    def leave(self) -> Any:
        """Tear down what is kept from test to test. Returns what went wrong, in words, or None."""


def greet(channel: Channel, outputs: dict[str, int]) -> None:
    """Tell where this rank's output and stack are to be read."""
    stack = above_standard(os.memfd_create("a2a-stack", os.MFD_CLOEXEC))
    faulthandler.register(_STACK_SIGNAL, file=stack, all_threads=True)
    faulthandler.enable(file=stack)  # of a rank that dies of a signal such as SIGSEGV
    channel.send(([*outputs], _STACK_SIGNAL), [stack, *outputs.values()])


def serve(channel: Channel, stage: Stage) -> None:
    """The program of a rank. Returns when it is told to leave, or when the process that runs the tests is gone."""
    me = os.getpid()
    _seed()
    greet(channel, stage.outputs())
    forks: list[None] = []
    os.register_at_fork(after_in_parent=lambda: forks.append(None))

    def meet(tested: Tested) -> str | None:
        if os.getpid() != me:
            _end_fork(channel, me)
        if forks:
            _wait_for_forks()
        channel.send(("tested", tested))
        reason: str | None = channel.receive()[0]
        return reason

    try:
        while (task := channel.receive()[0]) is not None:
            forks.clear()
            try:
                channel.send(("done", stage.run(task, channel, meet)))
            except Closed:
                os._exit(CONNECTION_CLOSED)
            except BaseException:
                if os.getpid() != me:
                    _end_fork(channel, me)
                channel.send(("broken", traceback.format_exc()))
        channel.send(stage.leave())
    except Closed:
        pass


def _seed() -> None:
    """Ranks that are forked from one process would otherwise draw the same numbers where no test sets a seed."""
    random.seed()
    if "numpy" in sys.modules:
        import numpy as np

        np.random.seed()  # noqa: NPY002
    if "torch" in sys.modules:
        import torch

        # A process that has computed before it was forked has lost the threads of OpenMP, and would wait for them.
        torch.set_num_threads(1)


def _wait_for_forks() -> None:
    """Let children that come out of the test, too, say so before this rank is done."""
    deadline = time.monotonic() + _FORK_SECONDS
    while time.monotonic() < deadline and any(map(_runs, _children())):
        time.sleep(0.005)


def _children() -> list[str]:
    return Path(f"/proc/self/task/{threading.get_native_id()}/children").read_text().split()


def _runs(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _end_fork(channel: Channel, rank: int) -> None:
    """In a child of a rank: the test has forked, and the child has come out of the test as well."""
    channel.send(("forked", f"process {os.getpid()}, a child of the rank's process {rank}, came out of the test, too"))
    os._exit(0)
