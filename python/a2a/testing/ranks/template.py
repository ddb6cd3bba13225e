"""The process from which ranks are forked. It is itself forked when all tests are known and none has run: so ranks have
the frameworks imported, and nothing that tests leave behind in the process that runs them, such as threads."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import signal
import socket
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from ..._signals import held_signals
from .channel import Channel, Closed, pair

__all__ = ["ForkFailed", "Template"]

_PR_SET_PDEATHSIG = 1


class ForkFailed(Exception):
    """There is no further rank. The text is the system's reason."""


class Template:
    """``serve(channel)`` is what a rank does; its process ends when it returns. ``clean_up()`` is called at the end,
    even if the process that runs the tests is killed."""

    def __init__(self, serve: Callable[[Channel], None], clean_up: Callable[[], None]) -> None:
        self._channel, theirs = pair()
        parent = os.getpid()
        with held_signals() as release:
            with _without_warnings():
                self._pid = os.fork()
            if self._pid == 0:
                with _last_frame():
                    release()
                    self._channel.close()
                    # The terminal's Ctrl-C is for the process that runs the tests, which ends this one.
                    signal.signal(signal.SIGINT, signal.SIG_IGN)
                    with contextlib.suppress(Closed):
                        _become_child(parent, signal.SIGTERM, _close)
                        _fork_on_request(theirs, serve)
                    signal.signal(signal.SIGTERM, signal.SIG_IGN)
                    clean_up()
        theirs.close()

    def fork(self) -> tuple[int, Channel]:
        """Start a rank. Returns its process, a child of the template, and the channel to it. Raises ForkFailed."""
        ours, theirs = pair()
        try:
            self._channel.send(None, [theirs.fileno()])
            answer, _ = self._channel.receive()
        except Closed:
            ours.close()
            raise ForkFailed("the process from which ranks are forked has died") from None
        finally:
            theirs.close()
        if isinstance(answer, int):
            return answer, ours
        ours.close()
        raise ForkFailed(answer)

    def end(self, pid: int) -> int | None:
        """End a rank with the children of its process group. Returns its exit code, negative for a signal, or None if
        it cannot be known. A rank that has ended by itself keeps its number until this call."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        try:
            self._channel.send(pid)
            answer, _ = self._channel.receive()
        except Closed:
            return None
        code: int | None = answer
        return code

    def close(self) -> None:
        self._channel.close()
        with contextlib.suppress(ChildProcessError):  # somebody else has reaped it
            os.waitpid(self._pid, 0)


def _fork_on_request(channel: Channel, serve: Callable[[Channel], None]) -> None:
    gc.freeze()  # a collection in a rank would copy the memory that it shares with this process
    while True:
        request, descriptors = channel.receive()
        if request is None:
            channel.send(_fork_rank(channel, descriptors[0], serve))
            os.close(descriptors[0])
        else:
            channel.send(_reap(request))


def _fork_rank(own: Channel, descriptor: int, serve: Callable[[Channel], None]) -> int | str:
    template = os.getpid()
    try:
        with _without_warnings():
            pid = os.fork()
    except OSError as error:
        return f"fork: {error}"
    if pid == 0:
        with _last_frame():
            own.close()
            os.setpgid(0, 0)  # so that it can be ended with its children
            _become_child(template, signal.SIGKILL, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            channel = Channel(socket.socket(fileno=descriptor))
            serve(channel)
            channel.close()
    with contextlib.suppress(OSError):
        os.setpgid(pid, pid)
    return pid


def _reap(pid: int) -> int | None:
    try:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    except ChildProcessError:
        return None


def _become_child(parent: int, at_its_death: signal.Signals, on_sigterm: Any) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, on_sigterm)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, at_its_death, 0, 0, 0)
    if os.getppid() != parent:
        raise Closed("the process that has forked this one is gone")


def _close(*_: object) -> None:
    raise Closed("the process that runs the tests is gone")


@contextlib.contextmanager
def _last_frame() -> Iterator[None]:
    """Let nothing leave a forked process but its exit: the frames above are of the process that it was forked from."""
    code = 1
    try:
        yield
        code = 0
    except Closed:
        pass
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        os._exit(code)


@contextlib.contextmanager
def _without_warnings() -> Iterator[None]:
    """Python, where the process has threads, and JAX warn of every fork(). The child has one thread, and uses none of
    what the others had locked."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
