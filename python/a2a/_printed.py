"""The output of ranks, where ``sys.stdout`` of the program is no file that they could inherit: in a cell of a notebook,
in IDLE, in a doctest. It then comes through pipes, and is printed here, line by line, before spawn() returns."""

from __future__ import annotations

import codecs
import contextlib
import io
import os
import select
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field

from ._descriptors import above_standard

_LONGEST_KEPT = 1 << 20  # bytes of a line that has not ended
_PIPE = 1 << 16  # the bytes that a pipe holds
_MOST_READS = 16  # after the end of ranks: a child of theirs may hold the pipe


@dataclass
class _Source:
    stream: io.TextIOBase
    rest: bytearray = field(default_factory=bytearray)
    decoder: codecs.IncrementalDecoder = field(
        default_factory=lambda: codecs.getincrementaldecoder("utf-8")(errors="replace")
    )

    def take(self, content: bytes) -> None:
        """Print the lines that have ended, and the beginning of one that becomes very long."""
        end = max(content.rfind(b"\n"), content.rfind(b"\r")) + 1  # progress bars end lines with \r
        if end or len(self.rest) + len(content) > _LONGEST_KEPT:
            end = end or len(content)
            self.print(bytes(self.rest) + content[:end])
            self.rest.clear()
            content = content[end:]
        self.rest += content

    def print(self, content: bytes, final: bool = False) -> None:
        self.stream.write(self.decoder.decode(content, final))
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
        """Print the lines that have arrived, not more than one pipe holds of each rank. Waits for the program's streams
        only."""
        poller = select.poll()
        for reader in self.pipes:
            poller.register(reader, select.POLLIN)
        for reader, _ in poller.poll(0):
            self._read(reader)

    def close(self) -> None:
        """Call when the ranks have ended."""
        for _ in range(_MOST_READS):
            if not self.pipes:
                return
            self.copy()
        for reader in list(self.pipes):
            self._end(reader)

    def _read(self, reader: int) -> None:
        source = self.pipes[reader]
        content = os.read(reader, _PIPE)
        if not content:
            return self._end(reader)
        source.take(content)

    def _end(self, reader: int) -> None:
        os.close(reader)
        source = self.pipes.pop(reader)
        source.print(bytes(source.rest), final=True)
