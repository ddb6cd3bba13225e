"""The ``a2a`` command. Each command is one module with ``add_parser`` and a function that returns the exit code."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence

from .._neighbour import ADVICE

try:
    from .. import Error, __version__
except ImportError:
    # Our own a2a/__init__.py has these, or fails before it comes here. So a2a-sdk has replaced it, or has even taken it
    # away when it was uninstalled, and nothing but this command can tell.
    raise SystemExit(f"a2a: {ADVICE}") from None

from .._descriptors import open_standard
from . import bench, conformance, demo, explain, info, run

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit code: 0 for success, 1 for a failure, 2 for a wrong command line."""
    parser = argparse.ArgumentParser(prog="a2a", description="All-to-all communication between ranks of one host.")
    parser.add_argument("--version", action="version", version=f"a2a-comm {__version__}")
    commands = parser.add_subparsers(metavar="command", required=True)
    for command in (run, demo, info, bench, conformance, explain):
        command.add_parser(commands)
    options = parser.parse_args(argv)
    open_standard()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored, as a caller may have left it, it hides how ranks ended
    try:
        code: int = options.function(options)
        if sys.stdout is not None:
            sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader left. Python would complain once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except Error as error:
        print(f"a2a: {error}", file=sys.stderr)
        if error.__cause__ is not None:
            print(error.__cause__, file=sys.stderr)
        return 1
