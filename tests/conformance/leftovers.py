"""What a run leaves behind when it is interrupted."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

CODES = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGKILL: -9}


def assert_none_after(
    number: signal.Signals, command: Sequence[str], processes: int, environment: Mapping[str, str] = os.environ
) -> None:
    """Interrupts the command once it has so many processes, its own among them, and sees all of them end, and none of
    their files."""
    mark = f"A2A_CONFORMANCE_TEST={os.getpid()}-{time.monotonic_ns()}"
    with tempfile.TemporaryDirectory() as folder:
        marked = {**environment, **dict([mark.split("=")]), "TMPDIR": folder}
        with subprocess.Popen(command, stdout=-3, stderr=-3, env=marked, start_new_session=True) as process:
            wait_for(lambda: len(with_mark(mark)) >= processes, 60)
            time.sleep(0.2)  # amid the exchanges
            process.send_signal(number)
            assert process.wait(20) == CODES[number]
        wait_for(lambda: not with_mark(mark), 5)
        assert list(Path(folder).iterdir()) == []


def with_mark(mark: str) -> list[str]:
    """The processes with this in their environment."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (folder / "environ").read_bytes():
                found.append(folder.name)
        except OSError:
            pass  # it has ended
    return found


def wait_for(condition: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)
