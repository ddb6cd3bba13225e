# PYTHON_ARGCOMPLETE_OK
"""The ``a2a`` command. Each command is one module with ``add_parser`` and a function that returns the exit code."""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Sequence

from .._neighbour import ADVICE

try:
    from .. import Error, __version__
except ImportError:
    # This package's a2a/__init__.py has these, or fails earlier. So a2a-sdk has replaced it, or has removed it when it
    # was uninstalled, and only this command can report that.
    raise SystemExit(f"a2a: {ADVICE}") from None

from .._descriptors import open_standard
from . import _parser, bench, conformance, demo, explain, info, replay, run, simulate, status, trace

__all__ = ["main"]

_EXAMPLES = (
    ("a2a demo", "try it: four ranks exchange tensors, and every bit is compared"),
    ("a2a run -n 4 program.py", "start program.py as four ranks"),
    ("a2a status", "what running ranks do now, and who is behind"),
    ("a2a info", "what works on this machine"),
    ("a2a run -h", "all about one command"),
)


_COMMANDS = {
    "run": run,
    "demo": demo,
    "info": info,
    "bench": bench,
    "conformance": conformance,
    "status": status,
    "explain": explain,
    "trace": trace,
    "simulate": simulate,
    "replay": replay,
}


def make_parser() -> _parser.Parser:
    parser = _parser.root("All-to-all communication between ranks, for any DLPack tensor.", _EXAMPLES)
    parser.add_argument("--version", action="version", version=f"a2a-comm {__version__}")
    commands = parser.add_subparsers(metavar="command")
    for command in _COMMANDS.values():
        command.add_parser(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code: 0 for success, 1 for a failure, 2 for a wrong command line."""
    parser = make_parser()
    _parser.complete(parser)
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments and not arguments[0].startswith("-") and arguments[0] not in _COMMANDS:
        _parser.refuse_unknown(parser, arguments, [*_COMMANDS], "command")
    options, unknown = parser.parse_known_args(arguments)
    if unknown:
        own = getattr(options, "parser", parser)
        _parser.refuse_unknown(own, unknown, [*own._option_string_actions], "option or argument")
    if "function" not in options:
        parser.print_help(sys.stderr)
        return 2
    open_standard()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a text of a file that the terminal cannot show
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # the caller may have left it ignored, which would hide how ranks end
    try:
        code: int = options.function(options)
        if sys.stdout is not None:
            sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader has closed the pipe. Without this Python would raise again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except Error as error:
        print(f"a2a: {_parser.in_words(error)}", file=sys.stderr)
        if error.__cause__ is not None:
            print(error.__cause__, file=sys.stderr)
        return 1
    except (OSError, MemoryError) as error:  # a file that cannot be read or written, more than fits
        print(f"a2a: {_parser.in_words(error)}", file=sys.stderr)
        return 1
