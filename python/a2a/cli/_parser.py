"""The common part of the parsers of all commands: errors of the command line, examples, numbers of ranks."""

from __future__ import annotations

import argparse
import difflib
import os
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NoReturn

_EXAMPLES = "examples:\n"


class Parser(argparse.ArgumentParser):
    """Refuses a wrong command line in two lines: the error, and the command for help."""

    def error(self, message: str) -> NoReturn:
        message = re.sub(r"^argument (\S+): ", r"\1: ", message)
        self.exit(2, f"{self.prog}: {message}\n{self.prog} -h shows how to call it\n")


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
        number = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of ranks") from None
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} ranks: at least one rank is needed")
    return number


def size(text: str) -> int:
    """A number of bytes on a command line."""
    found = re.fullmatch(r"(\d+)\s*([KMG]?)i?B?", text, re.IGNORECASE | re.ASCII)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 8, 64K, 32M or 1G")
    return int(found[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[found[2].upper()]


def writable(text: str) -> Path:
    """Check that the file can be written, before the run, which may take long."""
    path = Path(text)
    existed = path.exists()
    try:
        path.open("a").close()
        if not existed:
            path.unlink()
    except OSError as error:
        raise argparse.ArgumentTypeError(f"cannot write {text}: {error.strerror}") from None
    return path


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
