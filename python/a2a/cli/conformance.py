"""``a2a conformance``: runs the conformance kit against this library, or against a peer."""

from __future__ import annotations

import argparse
import importlib.util
import random
import sys
import time
from pathlib import Path
from typing import Any

from .. import InvalidArgumentError, UnsupportedError, __version__

QUICK_TASKS = 400
"""Of each framework and number of ranks."""


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("conformance", help="run the conformance kit", description=__doc__)
    parser.add_argument("--ranks", default="1-8", help="numbers of ranks, such as 2,4 or 1-8 (default)")
    parser.add_argument("--frameworks", help="comma-separated; all that are installed by default")
    parser.add_argument("--mixed", action="store_true", help="also with ranks in different frameworks")
    parser.add_argument("--transport", choices=("shm", "threads", "mpi", "nccl", "hccl"), default="shm")
    parser.add_argument("--peer", choices=("gloo", "paddle-gloo", "mpi4py"), help="try this library instead")
    parser.add_argument("--quick", action="store_true", help="2 and 4 ranks, mixed, and a sample of the tasks")
    parser.add_argument("--sample", type=int, metavar="N", help="at most N tasks of each framework and number of ranks")
    parser.add_argument("--only", default="", metavar="TEXT", help="cases and signatures whose names contain the text")
    parser.add_argument("-x", "--exitfirst", action="store_true", help="stop at the first failure")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write the matrix")
    parser.set_defaults(function=conformance)


def conformance(options: argparse.Namespace) -> int:
    from ..conformance import Matrix, frameworks, groups, load, plan, plan_mixed, run

    if options.quick:
        options.ranks, options.mixed, options.sample = "2,4", True, options.sample or QUICK_TASKS
    if options.transport not in ("shm", "threads"):
        raise UnsupportedError(f"this build has no transport {options.transport}")
    names = options.frameworks.split(",") if options.frameworks else frameworks.installed()
    if unknown := set(names) - set(frameworks.installed()):
        raise InvalidArgumentError(f"--frameworks: {', '.join(sorted(unknown))} is not installed or not known")
    prefixes = ["core", *(prefix for prefix, module in groups.ADAPTERS.items() if _exists(module))]
    if options.peer:
        prefixes, options.mixed = [groups.PEERS[options.peer]], False
        names = [{"mpi4py": "numpy"}.get(prefixes[0], prefixes[0])]
    cases, chance = load(), random.Random(0)
    how = options.peer or options.transport
    matrix = Matrix({"a2a": __version__, "transport": how, "ranks": options.ranks, "frameworks": ", ".join(names)})
    begin = time.monotonic()
    for ranks in _numbers(options.ranks):
        batches = [(name, plan(cases, ranks, name, prefixes)) for name in names]
        if options.mixed and ranks > 1 and len(names) > 1:
            batches.append(("mixed", plan_mixed(cases, ranks, names, prefixes, chance)))
        for name, tasks in batches:
            tasks = [task for task in tasks if options.only in f"{task.case.name} {' '.join(task.signatures)}"]
            if options.sample and len(tasks) > options.sample:
                tasks = chance.sample(tasks, options.sample)
            with _Progress(f"{how}, {ranks} ranks, {name}", len(tasks)) as progress:
                for result in run(how, ranks, tasks, alone=bool(options.peer)):
                    matrix.add(result)
                    progress.step(result)
                    if matrix.failures and options.exitfirst:
                        break
            if matrix.failures and options.exitfirst:
                break
    print(matrix.text())
    print(f"{time.monotonic() - begin:.0f} s")
    for file, text in ((options.json, matrix.json), (options.html, matrix.html)):
        if file:
            file.write_text(text(), encoding="utf-8")
    return 1 if matrix.failures or not matrix.counts else 0


def _exists(module: str) -> bool:
    """Whether an adapter and the framework that it is for are installed."""
    framework = {"a2a.atb": "a2a"}.get(module, module.partition(".")[2])
    return importlib.util.find_spec(framework) is not None and importlib.util.find_spec(module) is not None


def _numbers(text: str) -> list[int]:
    """ "1-3,8" are 1, 2, 3 and 8."""
    numbers: list[int] = []
    try:
        for part in text.split(","):
            first, _, last = part.partition("-")
            numbers += range(int(first), int(last or first) + 1)
    except ValueError:
        raise InvalidArgumentError(f"--ranks {text}: write numbers such as 2,4 or 1-8") from None
    if not numbers or min(numbers) < 1 or max(numbers) > 8:
        raise InvalidArgumentError(f"--ranks {text}: there are cases for 1 to 8 ranks")
    return numbers


class _Progress:
    """A bar on a terminal, a line otherwise."""

    def __init__(self, what: str, total: int) -> None:
        self._what, self._total, self._done, self._bad = what, total, 0, 0
        self._shown = 0.0

    def __enter__(self) -> _Progress:
        return self

    def step(self, result: Any) -> None:
        self._done += 1
        self._bad += not result.verdict.startswith(("pass", "unsupported"))
        if sys.stderr.isatty() and time.monotonic() - self._shown > 0.1:
            self._shown = time.monotonic()
            width = 30 * self._done // max(1, self._total)
            print(f"\r{self._what}: [{'#' * width:30}] {self._done}/{self._total}", end="", file=sys.stderr)

    def __exit__(self, *_: object) -> None:
        end = f", {self._bad} failed" if self._bad else ""
        start = "\r" if sys.stderr.isatty() else ""
        print(f"{start}{self._what}: {self._done} of {self._total} tasks{end}{' ' * 30}".rstrip(), file=sys.stderr)
