"""What the ranks of ``a2a run`` print, in whole lines."""

from __future__ import annotations

import os
from typing import ClassVar

__all__ = ["RankOutput", "write_all"]

# So much of a line is kept until its end comes.
_LONGEST_KEPT = 1 << 20


class RankOutput:
    """Whole lines of one rank's output. A carriage return ends a line too, so that progress bars are shown. Of a line
    that becomes very long the beginning is written before its end is known, so that no more is kept. It goes on in the
    same line, unless another rank has written in between: then it goes on in a line with the prefix again."""

    _unfinished: ClassVar[dict[tuple[int, int], RankOutput]] = {}  # whose line is the last of a file

    def __init__(self, prefix: bytes, target: int) -> None:
        self._prefix, self._target = prefix, target
        facts = os.fstat(target)
        self._file = (facts.st_dev, facts.st_ino)
        self._rest = bytearray()  # of the last line
        self._returned = False  # a line has ended in a carriage return; a newline may follow

    def write(self, data: bytes) -> bool:
        """Write the complete lines at once. Returns False when the output has no reader any more."""
        if self._returned:
            data = data.removeprefix(b"\n")
        self._returned = data.endswith(b"\r")
        first, *lines = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        self._rest += first
        if lines:
            rest = lines.pop()
            ended = b"".join(self._prefix + line + b"\n" for line in lines)
            if not self._put(b"\n" + ended, ends=True):
                return False
            self._rest += rest
        return len(self._rest) < _LONGEST_KEPT or self._put(b"", ends=False)

    def end(self) -> bool:
        """Write the rest of a line that has no end."""
        return self._put(b"\n", ends=True) if self._rest or self._goes_on() else True

    def _goes_on(self) -> bool:
        return self._unfinished.get(self._file) is self

    def _put(self, text: bytes, ends: bool) -> bool:
        """Write what was kept, and the text behind it."""
        text = bytes(self._rest) + text
        self._rest.clear()
        if not self._goes_on():
            text = (b"\n" if self._file in self._unfinished else b"") + self._prefix + text
        self._unfinished.pop(self._file, None)
        if not ends:
            self._unfinished[self._file] = self
        return write_all(self._target, text)


def write_all(target: int, data: bytes) -> bool:
    """Write the data. Returns False when the output has no reader any more."""
    left = memoryview(data)
    try:
        while left:
            left = left[os.write(target, left) :]
    except BrokenPipeError:
        return False
    return True
