"""Interrupts a collective call on one rank at every instruction of its Python code, or at random times, and checks what
the peers see: the result, or MismatchError at once. After that all ranks are in step."""

from __future__ import annotations

import random
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import a2a

PACKAGE = str(Path(a2a.__file__).parent)
OUTSIDE = ("torch/_untraced.py", "run")  # a plain function that makes the call, because torch.compile reads it
AT_ONCE = 5.0  # seconds, on a busy machine. The deadline of an operation is longer.


class Interrupt(BaseException):
    """What the signal handler raises."""


class Tracer:
    """Raises at the step with this number, counted in the code of the package: a line, or with ``opcodes`` an
    instruction."""

    def __init__(self, step: int, opcodes: bool) -> None:
        self.left, self.opcodes = step, opcodes

    def __call__(self, frame: FrameType, event: str, _: Any) -> Any:
        code = frame.f_code
        if not code.co_filename.startswith(PACKAGE):
            return None
        if code.co_filename.endswith(OUTSIDE[0]) and code.co_name == OUTSIDE[1]:
            return None
        frame.f_trace_opcodes = self.opcodes
        self.left -= 1
        if self.left < 0:
            raise Interrupt
        return self


def at_every_step(comm: a2a.Communicator, call: Callable[[], Any], opcodes: bool = False, every: int = 1) -> int:
    """Interrupt rank 1 at one step after another, until the call ends without. Returns the number of steps."""
    step = 0
    while True:
        tracer = Tracer(step, opcodes)
        before = sys.gettrace()
        ended, seconds = "", time.monotonic()
        try:
            if comm.rank == 1:
                sys.settrace(tracer)
            try:
                call()
            finally:
                sys.settrace(before)
        except Interrupt:
            ended = "interrupted"
        except a2a.Error as error:
            ended = f"{type(error).__name__}: {error}"
        seconds = time.monotonic() - seconds
        if not check(comm, f"step {step}", ended, seconds):
            return step
        step += every


def at_random_times(comm: a2a.Communicator, make: Callable[[a2a.Communicator], Any], trials: int, seed: int) -> int:
    """Interrupt rank 1 by a timer. Returns how often it was inside the call of ``make(communicator)``. Otherwise it
    aborts that communicator, a part of ``comm``."""

    armed = False

    def handler(*_: Any) -> None:
        nonlocal armed
        if armed:
            armed = False
            raise Interrupt

    rng, took, hits = random.Random(seed), 1e-3, 0
    part = call = None
    before = signal.signal(signal.SIGALRM, handler)
    try:
        for trial in range(trials):
            if part is None:
                part = comm.split(0)
                call = make(part)
                comm.barrier()  # a rank that is done may abort the part
            ended, begin = "", time.monotonic()
            try:
                armed = comm.rank == 1
                if armed:
                    signal.setitimer(signal.ITIMER_REAL, took * 1.2 * rng.random() + 1e-6)
                try:
                    call()
                    took = time.monotonic() - begin
                except a2a.Error as error:
                    ended = f"{type(error).__name__}: {error}"
                armed = False
            except Interrupt as interrupt:
                ended = "interrupted" if _inside(interrupt) else "outside"
            seconds = time.monotonic() - begin
            signal.setitimer(signal.ITIMER_REAL, 0)
            if ended == "outside":
                part.abort("outside")
            said = comm.allgather_bytes(ended.encode())
            if said[1] == b"outside":
                part = None
            else:
                hits += check(part, f"trial {trial}", ended, seconds)
                comm.barrier()
    finally:
        signal.signal(signal.SIGALRM, before)
    return hits


def _inside(interrupt: Interrupt) -> bool:
    """Whether it was raised below a frame of the package. The core's frames have names in angle brackets."""
    files = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(interrupt.__traceback__)]
    return any(file.startswith(PACKAGE) or file == "<a2a>" for file in files)


def check(comm: a2a.Communicator, where: str, ended: str, seconds: float) -> bool:
    """Whether rank 1 was interrupted."""
    said = [text.decode() for text in comm.allgather_bytes(f"{where}|{seconds}|{ended}".encode())]
    assert {text.partition("|")[0] for text in said} == {where}, said  # the ranks are in step
    peers = [text.split("|", 2) for rank, text in enumerate(said) if rank != 1]
    for _, took, how in peers:
        assert not how or (how.startswith("MismatchError") and "rank 1" in how), said
        assert float(took) < AT_ONCE, said
    assert said[1].endswith("|interrupted") or said[1].endswith("|"), said
    if said[1].endswith("|"):
        assert not any(how for *_, how in peers), said
    return said[1].endswith("|interrupted")
