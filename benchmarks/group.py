"""One contender's ranks: started, commanded and ended from here, whatever they do."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import subprocess
import time
import uuid
from pathlib import Path
from typing import Any

from contenders import Contender

START_LIMIT_S = 120.0
QUIT_LIMIT_S = 10.0
_DUMP_S = 0.1  # for a rank to write down where it is
_EXPLAIN_LINES = 40
_LINE_BYTES = 128  # sizeof(bench::Line)
_MARK = "A2A_BENCH_MARK"


class GroupError(Exception):
    """The contender failed or did not answer in time."""


class Group:
    """Running ranks of a contender. Use as a context manager; at its end no process and no shared file is left."""

    def __init__(self, contender: Contender, ranks: int, scratch: Path, barrier_library: Path) -> None:
        self.name = contender.name
        self.version = ""
        self._ranks = ranks
        self._mark = uuid.uuid4().hex
        self._log = scratch / f"{self._mark}.log"
        self._links: list[_Link] = []
        self._shared_files: set[str] = set()
        self._rank_pids: list[int] = []
        barrier = scratch / f"{self._mark}.barrier"
        barrier.write_bytes(bytes(_LINE_BYTES * ranks))
        extra = {
            _MARK: self._mark,
            "A2A_BENCH_SOCKET": self._mark,
            "A2A_BENCH_BARRIER_LIBRARY": str(barrier_library),
            "A2A_BENCH_BARRIER_FILE": str(barrier),
            "TMPDIR": str(scratch),  # Session directories of launchers end with the run.
        }
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind("\0" + self._mark)
        self._listener.listen(ranks)
        # No session per rank: Linux may schedule every session as a group of its own (autogroup), and sched_yield()
        # would then no longer hand a CPU over to a peer.
        with self._log.open("wb") as log:
            self._processes = [
                subprocess.Popen(
                    process.argv,
                    env=process.env | extra,
                    cwd=scratch,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                )
                for process in contender.processes(ranks)
            ]

    def connect(self) -> None:
        """Waits until every rank has joined the contender's own group and said so."""
        deadline = time.monotonic() + START_LIMIT_S
        self._listener.settimeout(0.2)
        while len(self._links) < self._ranks:
            if time.monotonic() > deadline:
                came = f"{len(self._links)} of {self._ranks} ranks"
                raise GroupError(self._explain(f"only {came} came within {START_LIMIT_S:g} s"))
            if any(process.poll() not in (None, 0) for process in self._processes):
                raise GroupError(self._explain("a process ended while starting"))
            with contextlib.suppress(TimeoutError):
                self._links.append(_Link(self._listener.accept()[0]))
        hellos = self._replies(deadline)
        found = sorted((hello["rank"], hello["size"]) for hello in hellos)
        if found != [(rank, self._ranks) for rank in range(self._ranks)]:
            raise GroupError(self._explain(f"ranks did not find each other: (rank, size) are {found}"))
        self.version = hellos[0]["version"]
        self._rank_pids = [hello["pid"] for hello in hellos]
        self._shared_files |= _shared_files(self._marked())

    def run(self, command: dict[str, Any], limit_s: float) -> list[dict[str, Any]]:
        """Has every rank execute ``command``; their replies in no particular order."""
        line = json.dumps(command).encode() + b"\n"
        with contextlib.suppress(OSError):  # A dead rank shows up as the end of its replies.
            for link in self._links:
                link.socket.sendall(line)
        return self._replies(time.monotonic() + limit_s)

    def __enter__(self) -> Group:
        return self

    def __exit__(self, kind: type[BaseException] | None, *unused: object) -> None:
        try:
            if kind is None:
                self._quit()
        finally:
            self._kill()

    def _quit(self) -> None:
        deadline = time.monotonic() + QUIT_LIMIT_S
        with contextlib.suppress(OSError):
            for link in self._links:
                link.socket.sendall(b'{"do": "quit"}\n')
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))

    def _kill(self) -> None:
        """Ends what is left, ranks and launchers' helpers included: all of them inherited the mark."""
        self._shared_files |= _shared_files(self._marked())
        for link in self._links:
            link.socket.close()
        self._listener.close()
        while marked := self._marked():
            for pid in marked:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)
        for process in self._processes:
            process.wait()
        for path in self._shared_files:
            with contextlib.suppress(FileNotFoundError):
                Path(path).unlink()

    def _marked(self) -> list[int]:
        """Processes of this group that are alive."""
        needle = f"{_MARK}={self._mark}".encode()
        found = []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if entry.name.isdigit() and needle in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
        return found

    def _replies(self, deadline: float) -> list[dict[str, Any]]:
        replies: dict[_Link, dict[str, Any]] = {}
        with selectors.DefaultSelector() as selector:
            for link in self._links:
                selector.register(link.socket, selectors.EVENT_READ, link)
            while len(replies) < len(self._links):
                ready = selector.select(max(0.0, deadline - time.monotonic()))
                if not ready:
                    raise GroupError(self._explain(f"{len(replies)} of {self._ranks} ranks answered in time"))
                for key, _ in ready:
                    line = key.data.read_line()
                    if line is None:
                        continue
                    if not line:
                        raise GroupError(self._explain("a rank ended"))
                    replies[key.data] = reply = json.loads(line)
                    if "error" in reply:  # The peers of this rank may wait for it in vain.
                        raise GroupError(self._explain(reply["error"].strip()))
        return list(replies.values())

    def _explain(self, reason: str) -> str:
        """``reason``, and what the ranks have to say: their last output, and where in Python they are."""
        for pid in self._rank_pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGUSR1)
                time.sleep(_DUMP_S)  # One after another, or their lines would mix.
        with contextlib.suppress(OSError):
            tail = self._log.read_text(errors="replace").strip().splitlines()[-_EXPLAIN_LINES:]
            reason = "\n".join([reason, *tail])
        return reason


class _Link:
    """A rank's socket, read in lines."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self._buffer = b""

    def read_line(self) -> bytes | None:
        """A whole line, None if it is not complete yet, b"" at the end."""
        try:
            data = self.socket.recv(1 << 20)
        except ConnectionError:
            data = b""
        self._buffer += data
        if not data:
            return b""
        if not self._buffer.endswith(b"\n"):
            return None
        line, self._buffer = self._buffer, b""
        return line


def _shared_files(pids: list[int]) -> set[str]:
    """Named shared memory that these processes have mapped. Some libraries leave it behind when they are killed."""
    found = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
                path = line.partition("/dev/shm/")[2]
                if path and not path.endswith(" (deleted)"):
                    found.add("/dev/shm/" + path)
    return found
