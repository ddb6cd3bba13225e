"""The common part of the parsers of all commands: errors of the command line, examples, numbers of ranks."""

from __future__ import annotations

import argparse
import difflib
import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NoReturn

from .._files import brief, check_writable, printable

_EXAMPLES = "examples:\n"
_MOST_BYTES = 1 << 57


class Parser(argparse.ArgumentParser):
    """Refuses a wrong command line in two lines: the error, and the command for help."""

    def error(self, message: str) -> NoReturn:
        message = re.sub(r"^argument (\S+): ", r"\1: ", message)
        self.exit(2, f"{self.prog}: {printable(message)}\n{self.prog} -h shows how to call it\n")


class _Formatter(argparse.HelpFormatter):
    """Wraps the paragraphs of descriptions, but keeps examples and paragraphs with indented lines."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        fill = super()._fill_text
        return "\n\n".join(part if "\n  " in part else fill(part, width, indent) for part in text.split("\n\n"))


def add_command(
    commands: argparse._SubParsersAction[Parser],
    name: str,
    summary: str,
    description: str,
    examples: Sequence[tuple[str, str]],
    usage: str | None = None,
) -> Parser:
    """Add a command's parser. ``examples`` are command lines and their meanings."""
    parser = commands.add_parser(
        name, help=summary, description=description, epilog=shown(examples), formatter_class=_Formatter, usage=usage
    )
    parser.set_defaults(parser=parser)
    return parser


def root(description: str, examples: Sequence[tuple[str, str]]) -> Parser:
    return Parser(prog="a2a", description=description, epilog=shown(examples), formatter_class=_Formatter)


def shown(examples: Sequence[tuple[str, str]]) -> str:
    width = max(len(line) for line, _ in examples)
    return _EXAMPLES + "\n".join(f"  {line:<{width}}  {text}".rstrip() for line, text in examples)


def add_ranks(parser: argparse.ArgumentParser, text: str, old: Sequence[str] = (), default: int | None = None) -> None:
    """Add the number of ranks: mpiexec's letter for all commands, mpirun's spelling, and a command's earlier names."""
    parser.add_argument("-n", "-np", *old, "--ranks", dest="ranks", type=ranks, default=default, metavar="N", help=text)


def ranks(text: str) -> int:
    """Parse a number of ranks on a command line."""
    try:
        count = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{brief(text)!r} is not a number of ranks") from None
    if count < 1:
        raise argparse.ArgumentTypeError(f"{count} ranks: at least one rank is needed")
    if count >= 2**31:
        raise argparse.ArgumentTypeError(f"{brief(text)} ranks: there are at most {2**31 - 1}")
    return count


def size(text: str) -> int:
    """A number of bytes on a command line."""
    found = re.fullmatch(r"(\d+)\s*([KMG]?)i?B?", text, re.IGNORECASE | re.ASCII)
    if found is None:
        raise argparse.ArgumentTypeError(f"{brief(text)!r} is not a size such as 8, 64K, 32M or 1G")
    power = {"": 0, "K": 10, "M": 20, "G": 30}[found[2].upper()]
    if len(found[1]) > 20 or int(found[1]) << power > _MOST_BYTES:
        raise argparse.ArgumentTypeError(f"{brief(text)} is more than a process can address")
    return int(found[1]) << power


def seed(text: str) -> int:
    """A seed on a command line."""
    return whole(text, 0)


def whole(text: str, least: int = 1, most: int = 2**63 - 1) -> int:
    """A whole number on a command line."""
    if not re.fullmatch(r"[+-]?[0-9]{1,4000}", text, re.ASCII):
        raise argparse.ArgumentTypeError(f"{brief(text)!r} is no whole number")
    if not least <= int(text) <= most:
        raise argparse.ArgumentTypeError(
            f"{brief(text)}: " + (f"at least {least}" if int(text) < least else f"at most {most}")
        )
    return int(text)


def writable(text: str) -> Path:
    """Check that the file can be written, before the run, which may take long."""
    try:
        check_writable(text)
    except OSError as error:
        raise argparse.ArgumentTypeError(f"cannot write {text}: {error.strerror}") from None
    return Path(text)


def warn(parser: argparse.ArgumentParser) -> Callable[[str], None]:
    """Return what prints a warning of a command."""
    return lambda text: print(f"{parser.prog}: {printable(text)}", file=sys.stderr)


def in_words(error: BaseException) -> str:
    """Return an error as one line. A name of a file in it may hold control characters."""
    text = str(error) or "not enough memory"
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        text = f"{os.fsdecode(error.filename)}: {error.strerror}"
    return printable(text)


def refuse_unknown(parser: Parser, words: Sequence[str], known: Sequence[str], what: str) -> NoReturn:
    """Refuse a word, and suggest similar ones."""
    meant = difflib.get_close_matches(words[0], known, n=1)
    parser.error(f"there is no {what} {words[0]}" + (f"; did you mean {meant[0]}?" if meant else ""))


def offer(action: argparse.Action, words: Iterable[str]) -> None:
    """Make a shell offer these words, which need not be all."""
    action.completer = lambda **_: words  # type: ignore[attr-defined]


def complete(parser: argparse.ArgumentParser) -> None:
    """Answer a shell that asks for completions, if argcomplete is installed."""
    if "_ARGCOMPLETE" in os.environ:
        try:
            import argcomplete
        except ImportError:
            sys.exit(1)
        argcomplete.autocomplete(parser)
