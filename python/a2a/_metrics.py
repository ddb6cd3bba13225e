"""``A2A_METRICS``: the counts of a rank as Prometheus reads them, from a port or from a file. What goes wrong is said
once and does not stop the program."""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

from ._core import InvalidArgumentError, metrics_text
from ._files import printable
from ._variables import integer

__all__ = ["publish"]

_SECONDS = 5.0
"""between two writes of a file"""
_PATIENCE = 1.0
"""for a reader that says nothing"""

_lock = threading.Lock()
_process = 0


def publish(rank: int) -> None:
    """Begin to publish the counts of this process, whose first rank has this number, unless it does so already."""
    global _process
    with _lock:
        if _process == os.getpid():
            return
        _process = os.getpid()
    wanted = os.environ["A2A_METRICS"].strip()
    try:
        if (place := _place(wanted)) is not None:
            _serve(*place, integer(os.environ, "A2A_LOCAL_RANK", integer(os.environ, "LOCAL_RANK", rank)))
        else:
            _write_repeatedly(Path(wanted), rank)
    except (OSError, InvalidArgumentError, OverflowError) as error:
        print(f"a2a: A2A_METRICS={printable(wanted)}: no metrics are published: {error}", file=sys.stderr)


def _place(text: str) -> tuple[str, int] | None:
    """Return the address and port that the variable names; None where it names a file."""
    found = re.fullmatch(r"(?:(\[[0-9a-fA-F:]+\]|[^/:]+):)?([0-9]{1,5})", text, re.ASCII)
    if found is None:
        return None
    return (found[1] or "127.0.0.1").strip("[]"), int(found[2])


class _Handler(BaseHTTPRequestHandler):
    timeout = _PATIENCE
    server_version, sys_version = "a2a", ""

    def do_GET(self) -> None:
        if self.path.partition("?")[0] != "/metrics":
            self.send_error(404)
            return
        content = metrics_text().encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:  # the default prints each request
        pass


class _Server(HTTPServer):
    allow_reuse_address = True

    def handle_error(self, *_: object) -> None:  # of a reader that is gone; the default prints it
        pass


class _Server6(_Server):
    import socket

    address_family = socket.AF_INET6


def _serve(address: str, port: int, local_rank: int) -> None:
    server = (_Server6 if ":" in address else _Server)((address, port + local_rank), _Handler)
    os.register_at_fork(after_in_child=server.socket.close)
    threading.Thread(target=server.serve_forever, name="a2a metrics", daemon=True).start()


def _write_repeatedly(path: Path, rank: int) -> None:
    path = path.with_name(f"{path.stem}.{rank}{path.suffix}")
    _write(path)
    stop, process = threading.Event(), os.getpid()

    def run() -> None:
        while not stop.wait(_SECONDS):
            with contextlib.suppress(OSError):  # the disk may have room again
                _write(path)

    def end() -> None:
        stop.set()
        if os.getpid() == process:
            with contextlib.suppress(OSError):
                _write(path)

    threading.Thread(target=run, name="a2a metrics", daemon=True).start()
    atexit.register(end)


def _write(path: Path) -> None:
    """Write the file as a whole: a reader finds the former contents or these."""
    unfinished = path.with_name(f"{path.name}.{os.getpid()}.new")
    unfinished.unlink(missing_ok=True)
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(metrics_text().encode())
        unfinished.replace(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
