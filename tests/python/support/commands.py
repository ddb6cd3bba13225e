"""Runs the ``a2a`` command as a user does, and looks after processes."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from unittest import mock

import pytest


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "a2a", *arguments]


def environment(**changes: str) -> dict[str, str]:
    """Ours without what a launcher or an earlier test may have set."""
    unwanted = ("A2A_", "OMP_", "PYTHONUNBUFFERED", "RANK", "WORLD_SIZE", "LOCAL_", "MASTER_")
    return {name: value for name, value in os.environ.items() if not name.startswith(unwanted)} | changes


def needs(module: str) -> None:
    """Skips the test where a module is not installed that the processes of the test will import; here it is not."""
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def call(*arguments: str, **changes: str) -> subprocess.CompletedProcess[str]:
    env = environment(**changes)
    return subprocess.run(command(*arguments), env=env, capture_output=True, text=True, timeout=100, check=False)


def call_here(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Like call(), without another process. For command lines that are refused before any work."""
    from a2a import cli  # takes longer than all the rest that ranks import of this module

    out, errors = io.StringIO(), io.StringIO()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGCHLD, signal.SIGTERM)}
    with mock.patch.dict(os.environ, environment(), clear=True), contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.redirect_stdout(out))
        stack.enter_context(contextlib.redirect_stderr(errors))
        try:
            code = cli.main(arguments)
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
    return subprocess.CompletedProcess(arguments, code, out.getvalue(), errors.getvalue())


def is_alive(pid: int, patience: float = 3) -> bool:
    """Whether the process is still there after so many seconds. A zombie is not."""
    deadline = time.monotonic() + patience
    while True:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX":
                return False
        except OSError:
            return False
        if time.monotonic() >= deadline:
            return True
        time.sleep(0.02)
