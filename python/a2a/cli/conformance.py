"""``a2a conformance``: runs the conformance kit against this library, or against a peer."""

from __future__ import annotations

import argparse
import importlib.util
import random
import re
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .. import __version__, _files, frameworks
from .._core import dtype_names
from ._parser import Parser, add_command, offer, writable
from ._terminal import Progress

if TYPE_CHECKING:
    from ..conformance import Case, Result, Task
    from ..conformance.groups import Way

QUICK_TASKS = 800
"""The number of tasks of each framework and number of ranks."""
_MOST_RANKS = 8
_TRANSPORTS = ("shm", "threads", "tcp", "ucx", "mpi", "nccl", "hccl")
_PEERS = ("gloo", "paddle-gloo", "mpi4py")

_DESCRIPTION = """\
Run every case of the conformance kit through every call that it applies to, and compare all bytes. Prints a matrix.
Exits with 1 when something differs, and with 2 when it cannot be tried."""


_EXAMPLES = (
    ("a2a conformance --quick", "a minute: a sample with 2 and 4 ranks"),
    ("a2a conformance -n 2,3 --mixed", "also with ranks in different frameworks"),
    ("a2a conformance --frameworks torch --only alltoallv", "one framework, one call"),
    ("a2a conformance --peer gloo --html matrix.html", "what another library does with the same cases"),
)


def add_parser(commands: argparse._SubParsersAction[Parser]) -> None:
    parser = add_command(commands, "conformance", "compare every call with what is right", _DESCRIPTION, _EXAMPLES)
    parser.add_argument(
        *("-n", "-np", "--ranks"),
        dest="ranks",
        type=_numbers,
        help="numbers of ranks, such as 2,4 or 1-8 (default)",
        metavar="NUMBERS",
    )
    action = parser.add_argument(
        "--frameworks", type=_names, metavar="NAMES", help="comma-separated names, or files; default: all installed"
    )
    offer(action, frameworks.known())
    parser.add_argument("--mixed", action="store_true", help="also with ranks in different frameworks")
    parser.add_argument("--transport", choices=_TRANSPORTS, help="what carries the bytes (default: shm)")
    parser.add_argument("--peer", choices=_PEERS, help="try this library instead")
    parser.add_argument("--quick", action="store_true", help="a sample of the tasks of 2 and 4 ranks, mixed ones too")
    parser.add_argument(
        "--sample", type=_positive, metavar="N", help="at most N tasks of each framework and number of ranks"
    )
    parser.add_argument("--only", default="", metavar="TEXT", help="cases and calls whose names contain the text")
    parser.add_argument("-x", "--exitfirst", action="store_true", help="stop at the first failure")
    parser.add_argument("--json", type=writable, metavar="FILE", help="write the results to a file")
    parser.add_argument("--html", type=writable, metavar="FILE", help="write the matrix to a file")
    parser.set_defaults(function=lambda options: _conformance(parser, options))


# ---- options ---------------------------------------------------------------------------------------------------------


def _numbers(text: str) -> list[int]:
    """ "1-3,8" are 1, 2, 3 and 8."""
    numbers: set[int] = set()
    for part in text.split(","):
        found = re.fullmatch(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?", part, re.ASCII)
        if not found:
            raise argparse.ArgumentTypeError(f"{text!r}: write numbers such as 2,4 or 1-8")
        first, last = int(found[1]), int(found[2] or found[1])
        if first > last:
            raise argparse.ArgumentTypeError(f"{text!r}: {first} is more than {last}")
        if first < 1 or last > _MOST_RANKS:
            raise argparse.ArgumentTypeError(f"{text!r}: there are cases for 1 to {_MOST_RANKS} ranks")
        numbers.update(range(first, last + 1))
    return sorted(numbers)


def _names(text: str) -> list[str]:
    names = list(dict.fromkeys(name.strip() for name in text.split(",")))
    for name in names:
        if name.endswith(".py"):
            if not Path(name).is_file():
                raise argparse.ArgumentTypeError(f"there is no file {name}")
        elif name not in frameworks.known():
            known = ", ".join(frameworks.known())
            raise argparse.ArgumentTypeError(f"{name!r} is not known; there are {known}, and files NAME.py")
        elif not frameworks.load(name).is_installed():
            raise argparse.ArgumentTypeError(f"{name} is not installed")
    return names


def _positive(text: str) -> int:
    if not re.fullmatch(r"[1-9]\d*", text, re.ASCII):
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return int(text)


# ---- the run ---------------------------------------------------------------------------------------------------------


def _conformance(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    from ..conformance import Matrix, devices, groups, load, report

    if options.peer and (options.transport or options.mixed):
        parser.error(f"--peer {options.peer}: a peer has no {'--transport' if options.transport else '--mixed'}")
    how = options.peer or options.transport or "shm"
    way = groups.WAYS[how]
    missing = way.missing() if way.memory == "host" else ""
    option = f"{'--peer' if options.peer else '--transport'} {how}"
    if way.memory == "host" and (missing := way.missing()):
        return _cannot(option, missing)
    try:
        names = _usable(options.frameworks, how, way)
        ranks = _possible(options.ranks, [2, 4] if options.quick else range(1, _MOST_RANKS + 1), names, way)
    except ValueError as error:
        parser.error(str(error))
    if way.memory != "host" and (missing := way.missing()):  # a vendor's library needs a framework with device tensors
        return _cannot(option, missing)
    if options.mixed and (len(names) == 1 or ranks == [1]):
        parser.error(f"--mixed: there is only one {'rank' if ranks == [1] else f'framework, {names[0]}'}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that the ranks end, too
    facts = {"ranks": ",".join(map(str, ranks)), "frameworks": ", ".join(map(_named, names))}
    if way.memory != "host" and (double := devices.look(way.memory).double):
        facts[report.DOUBLE] = double
    matrix = Matrix({"a2a": __version__, "transport": how, **facts})
    begin = time.monotonic()
    interrupted = False
    try:
        for result in _results(how, way, names, ranks, load(), options):
            matrix.add(result)
            if matrix.failures and options.exitfirst:
                break
    except KeyboardInterrupt:  # the results so far may be hours of work
        interrupted = True
    if not matrix.counts and not interrupted:
        only = f"--only {options.only}: no case and no call of these has that in its name"
        parser.error(only if options.only else "there is nothing to try with these")
    code = 1 if matrix.failures else 0
    for file, text in ((options.json, matrix.json), (options.html, matrix.html)):
        if file:
            try:
                _files.write(file, text())
            except OSError as error:
                print(f"a2a conformance: cannot write {file}: {error.strerror}", file=sys.stderr)
                code = 2
    print(matrix.text())
    print(f"{time.monotonic() - begin:.0f} s{', interrupted' if interrupted else ''}")
    return 130 if interrupted else code


def _cannot(option: str, missing: str) -> int:
    print(f"a2a conformance: {option}: {missing}", file=sys.stderr)
    return 2


def _usable(given: Sequence[str] | None, how: str, way: Way) -> list[str]:
    """Return the frameworks to try: those given, which must fit, or all that fit."""
    result, lacking = [], []
    for name in given or way.frameworks or frameworks.known(way.memory):
        if not (reason := _unusable(name, how, way)):
            result.append(name)
        elif given:
            raise ValueError(f"--frameworks: {reason}")
        else:
            lacking.append(reason)
    if not result:
        option = "--peer" if how in _PEERS else "--transport"
        what = "" if way.memory == "host" else f"no framework here has tensors in {way.memory} memory: "
        raise ValueError(f"{option} {how}: {what}{'; '.join(lacking)}")
    return result


def _unusable(name: str, how: str, way: Way) -> str:
    """Return why a framework cannot be tried that way; "" if it can."""
    if way.frameworks and name not in way.frameworks:
        return f"{how} takes {', '.join(way.frameworks)}, not {name}"
    if not name.endswith(".py"):
        if name not in frameworks.known(way.memory):
            return f"{how} serves {way.memory} memory, which the kit has no tensors of {name} in"
        if not frameworks.load(name).is_installed():
            return f"{name} is not installed"
    try:
        framework = frameworks.load(name, way.memory)
        if way.memory not in framework.memories:
            return f"{how} serves {way.memory} memory, but {name} has {', '.join(framework.memories)} memory"
        if unknown := sorted(framework.dtypes() - dtype_names.keys()):
            return f"{name} has dtypes that a2a does not know: {', '.join(unknown)}"
        seen = way.memory == "host" or framework.devices() > 0
    except (Exception, SystemExit) as error:
        return f"{name} cannot be used: {type(error).__name__}: {error}"
    return "" if seen else f"{name} sees no device"


def _possible(given: Sequence[int] | None, usual: Sequence[int], names: Sequence[str], way: Way) -> list[int]:
    """Return the numbers of ranks to try: those given, or of the usual ones all for which there are devices."""
    most = _MOST_RANKS
    if way.memory != "host":
        most = min(most, *(frameworks.load(name, way.memory).devices() for name in names))
    if given and max(given) > most:
        raise ValueError(f"--ranks: {max(given)} ranks need as many devices, and there are {most}")
    return list(given or [ranks for ranks in usual if ranks <= most] or [1])


def _named(name: str) -> str:
    """Return a framework's name with its version."""
    version = frameworks.load(name).version() if name in frameworks.known() else ""
    return f"{frameworks.short(name)} {version}".rstrip()


def _results(
    how: str,
    way: Way,
    names: Sequence[str],
    numbers: Sequence[int],
    cases: Sequence[Case],
    options: argparse.Namespace,
) -> Iterator[Result]:
    from ..conformance import devices, plan, plan_mixed, run

    note = " (test double)" if way.memory != "host" and devices.look(way.memory).double else ""
    libraries = [library for library, module in way.modules.items() if not module or _exists(module)]
    chance = random.Random(0)
    mixed = options.mixed or (options.quick and not options.peer)
    sample = options.sample or (QUICK_TASKS if options.quick else None)
    for ranks in numbers:
        batches = [(frameworks.short(name), plan(cases, ranks, name, libraries, way.memory)) for name in names]
        if mixed and ranks > 1 and len(names) > 1:
            batches.append(("mixed", plan_mixed(cases, ranks, names, libraries, way.memory, chance)))
        for name, tasks in batches:
            chosen = _chosen(tasks, options.only, sample, chance)
            with Progress(f"{how}{note}, {ranks} rank{'s' * (ranks > 1)}, {name}", len(chosen)) as progress:
                for result in run(how, ranks, chosen):
                    progress.step(result.failed)
                    yield result


def _chosen(tasks: Sequence[Task], only: str, sample: int | None, chance: random.Random) -> list[Task]:
    chosen = [task for task in tasks if only in f"{task.case.name} {' '.join(task.signatures)}"]
    if sample and len(chosen) > sample:
        chosen = [chosen[at] for at in sorted(chance.sample(range(len(chosen)), sample))]
    return chosen


def _exists(module: str) -> bool:
    """Whether a module can be found. It is not imported."""
    framework = module.partition(".")[2] if module.startswith("a2a.") else module.partition(".")[0]
    needed = "a2a" if framework == "atb" else framework
    return importlib.util.find_spec(needed) is not None
