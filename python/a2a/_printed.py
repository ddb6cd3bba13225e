"""The output of ranks, where ``sys.stdout`` of the program is no file that they could inherit: in a cell of a notebook,
in IDLE, in a doctest. It then comes through pipes, and is printed here, line by line, before spawn() returns."""

from __future__ import annotations

import contextlib
import io
import os
import select
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from ._descriptors import above_standard


@dataclass
class _Source:
    stream: io.TextIOBase
    rest: bytes = b""

    def write(self, content: bytes) -> None:
        self.stream.write(content.decode(errors="replace"))
        self.stream.flush()


class Printed:
    """The output of all ranks of one spawn()."""

    def __init__(self) -> None:
        self.pipes: dict[int, _Source] = {}

    @contextlib.contextmanager
    def streams(self) -> Iterator[dict[str, int]]:
        """Yield the streams of one rank, for subprocess.Popen."""
        writers = {}
        try:
            for name in ("stdout", "stderr"):
                stream = getattr(sys, name)
                if stream is not None and not isinstance(stream, io.TextIOWrapper):
                    reader, writers[name] = map(above_standard, os.pipe())
                    self.pipes[reader] = _Source(stream)
            yield writers
        finally:
            for writer in writers.values():
                os.close(writer)

    def copy(self) -> None:
        """Print the lines that have arrived. Never blocks."""
        poller = select.poll()
        for reader in self.pipes:
            poller.register(reader, select.POLLIN)
        while ready := poller.poll(0):
            for reader, _ in ready:
                source = self.pipes[reader]
                content = os.read(reader, 1 << 16)
                lines, newline, rest = (source.rest + content).rpartition(b"\n")
                source.rest = rest
                if newline:
                    source.write(lines + newline)
                if not content:
                    poller.unregister(reader)
                    self._end(reader)

    def close(self) -> None:
        for reader in list(self.pipes):
            self._end(reader)

    def _end(self, reader: int) -> None:
        os.close(reader)
        source = self.pipes.pop(reader)
        if source.rest:
            source.write(source.rest)
