"""Files that others may have written, or may write to: a folder in /tmp, a share. Only regular files of a bounded size
are read. Nothing is written through a link, which may lead to a file of the user that others cannot write. Whatever is
printed of a file loses its control characters first."""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from ._core import InvalidArgumentError

__all__ = ["MOST_RANKS", "brief", "check_writable", "opened", "printable", "read_json", "read_text", "write"]

MOST_RANKS = 16384
"""A file that claims more is refused: a table of all pairs would not fit into memory."""
_MOST_TEXT = 256 << 20  # bytes
_MOST_SHOWN = 60  # characters of a value in an error
# Links of the kernel, which lead where the user's shell says.
_STREAMS = ("/dev/stdout", "/dev/stderr", "/dev/fd/")


@contextlib.contextmanager
def opened(path: str | Path) -> Iterator[BinaryIO]:
    """Open a file to read it. Raises InvalidArgumentError when it is no regular file, OSError when it cannot be
    opened. Never blocks, as a pipe without a writer would."""
    _require_regular(path, Path(path).stat())  # to open a device may have effects
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb", buffering=1 << 18) as file:
        _require_regular(path, os.fstat(descriptor))
        yield file


def _require_regular(path: str | Path, facts: os.stat_result) -> None:
    if not stat.S_ISREG(facts.st_mode):
        raise InvalidArgumentError(f"{path} is no regular file")


def read_text(path: str | Path) -> str:
    """Return the text of a file. Raises InvalidArgumentError when it has none, or more than 256 MiB."""
    with opened(path) as file:
        if os.fstat(file.fileno()).st_size > _MOST_TEXT or len(content := file.read(_MOST_TEXT + 1)) > _MOST_TEXT:
            raise InvalidArgumentError(f"{path} has more than {_MOST_TEXT >> 20} MiB")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidArgumentError(f"{path} is no text: byte {error.start} is no UTF-8") from None


def read_json(path: str | Path) -> Any:
    """Return what a file of JSON says. Raises InvalidArgumentError when it is none."""
    text = read_text(path)
    try:
        return json.loads(text)
    except RecursionError:
        raise InvalidArgumentError(f"{path} is no JSON that can be read: it is nested too deeply") from None
    except ValueError as error:  # also a number of too many digits
        raise InvalidArgumentError(f"{path} is no JSON: {error}") from None


def write(path: str | Path, content: str | bytes) -> None:
    """Write a whole file. Raises OSError; where the name is that of a link or of no regular file, too."""
    try:
        with os.fdopen(_created(path), "wb") as file:
            file.write(content.encode("utf-8", "backslashreplace") if isinstance(content, str) else content)
    except OSError as error:  # that of a write, as on a full disk, does not name the file
        raise OSError(error.errno, error.strerror, os.fspath(path)) from None


def check_writable(path: str | Path) -> None:
    """Raise now the errors of write(). Leaves the file as it is."""
    existed = os.path.lexists(path)
    os.close(_created(path, empty=False))
    if not existed:
        Path(path).unlink()


def _created(path: str | Path, empty: bool = True) -> int:
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOCTTY
    if os.fspath(path).startswith(_STREAMS):
        return os.open(path, flags)
    if os.path.lexists(path):
        _require_writable(path, os.lstat(path))  # to open a device may have effects
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    try:
        _require_writable(path, os.fstat(descriptor))
        if empty:
            os.ftruncate(descriptor, 0)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _require_writable(path: str | Path, facts: os.stat_result) -> None:
    if stat.S_ISLNK(facts.st_mode):
        raise OSError(errno.ELOOP, "it is a symbolic link, and nothing is written through one", os.fspath(path))
    if stat.S_ISDIR(facts.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    if not stat.S_ISREG(facts.st_mode) and os.fspath(path) != os.devnull:
        raise OSError(errno.EINVAL, "it is no regular file", os.fspath(path))
    if facts.st_nlink > 1 and stat.S_ISREG(facts.st_mode):
        raise OSError(errno.EMLINK, "the file has another name, too, under which it would change", os.fspath(path))


@functools.lru_cache(1 << 12)
def printable(text: str) -> str:
    """Return the text with a sign in place of each character that could steer a terminal. Lines become one."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else " " if one in "\t\n\r" else "\ufffd" for one in text)


def brief(value: object) -> str:
    """Return a value as an error shows it: the beginning, if it is long."""
    text = value if isinstance(value, str) else repr(value)
    text = printable(text[: _MOST_SHOWN + 1])
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."
