"""The scorecard as a table, as JSON and as docs/design/reliability.md."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from .harness import OUTCOMES
from .rows import Result, load

_COLUMNS = ("N", *OUTCOMES, "p50 ms", "p99 ms", "max ms", "left")
HEADER = f"{'fault':46} " + " ".join(f"{name:>7}" for name in _COLUMNS)


@dataclass
class Card:
    """A run of the scorecard."""

    commands: list[str]
    machine: dict[str, Any]
    results: list[Result] = field(default_factory=list)
    comparison: list[dict[str, Any]] = field(default_factory=list)

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self), indent=1))

    @staticmethod
    def load(paths: Sequence[Path]) -> Card:
        """Several runs as one; of a row that ran more than once the last counts."""
        runs = [json.loads(path.read_text()) for path in paths]
        found = {one["row"]: Result(**one) for run in runs for one in run["results"]}
        results = {name: found[name] for name in load() if name in found}
        comparison = {(one["program"], one["library"]): one for run in runs for one in run["comparison"]}
        commands = [command for run in runs for command in run["commands"]]
        return Card(commands, runs[-1]["machine"], list(results.values()), list(comparison.values()))


def command(options: argparse.Namespace) -> str:
    words = ["python -m tests.faults.scorecard", "--full" if options.full else "--quick"]
    if options.only:
        words += ["--only", *(f"'{name}'" for name in options.only)]
    if options.n:
        words.append(f"-n {options.n}")
    if options.scale != 1:
        words.append(f"--scale {options.scale:g}")
    if options.seconds != 3600:
        words.append(f"--seconds {options.seconds:g}")
    if options.peer:
        words += ["--peer", *options.peer]
    if options.programs:
        words += ["--programs", *(f"'{name}'" for name in options.programs)]
    return " ".join([*words, f"--seed {options.seed}"])


def _short(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"


def _times(result: Result) -> list[str]:
    return [_short(result.ms[name]) if name in result.ms else "" for name in ("p50", "p99", "max")]


def _cells(result: Result) -> list[str]:
    counts = [str(result.outcomes.get(name, 0)) for name in OUTCOMES]
    return [str(result.n), *counts, *_times(result), str(sum(result.left.values()))]


def line(result: Result) -> str:
    if result.not_run:
        return f"{result.row:46} not run: {result.not_run}"
    cells = " ".join(f"{cell:>7}" for cell in _cells(result))
    text = f"{result.row:46} {cells} {result.note}{'' if result.passed else ' MISSED'}"
    for failure in result.failures:
        text += f"\n    seed {failure['seed']}: {failure['outcome']}: {failure['text'][:300]}"
    return text


def table(rows: Sequence[Sequence[str]], left: int = 1) -> str:
    head, *body = rows
    marks = [":--" if i < left else "--:" for i in range(len(head))]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [head, marks, *body])


_INTRODUCTION = """# What happens when things go wrong

Faults injected into real rank processes, and how they ended for the ranks that they did not hit. A trial is as bad as
the worst of its ranks:

| | |
|---|---|
| right | the right result, bit for bit |
| clear | the documented error, in its class, whose message names the rank and what is wrong |
| unclear | an error that can be caught, but does not say who or what |
| silent | success with wrong bytes, or success where an error was due |
| abort, crash | the process ended by `SIGABRT`, or by another signal |
| hang | it did not come back within the limit, and was killed |

Times are from the fault to the last rank that knew; for rows about a deadline, from the call. *Left* are the files,
descriptors and processes that were there a second after a trial and not before it. Each trial has a seed: a failure
prints it, and `python -m tests.faults.scorecard --only ROW --seed SEED -n 1` repeats it.

`python -m tests.faults.chaos` mixes such faults at random, and compares every byte. With `--elastic` it does so with
endpoints that meet in one group after the other: processes die and are replaced, groups split and merge, lists and
generations disagree. All that live have to meet and exchange in the end, and nothing may grow with the generations.
"""

_COMPARISON = """
## Beside other libraries

The same programs on other libraries, with 2 or 3 ranks and a time limit of 3 s per operation where the library has
one. A cell says how it ended and after how long. Here, *unclear* is an error that can be caught and does not name the
rank at fault. *Late* is Ctrl-C after more than 100 ms. *Killed* means that the launcher ended the whole job, so that no
survivor could do anything about it. Each ran a few times only: a cell is an observation and not a rate. A library
without a limit on operations hangs where others time out, and without displacements in its interface it cannot be given
wrong ones (*not expressible*).
"""


def markdown(card: Card, note: str) -> str:
    """docs/design/reliability.md. ``note`` is about the machine."""
    facts = ", ".join(f"{name} {value}" for name, value in card.machine.items())
    made = "\n".join(["```sh", *card.commands, "```"])
    lines = [_INTRODUCTION, "Made by", "", made, "", f"on a machine with {facts}.", *([note] if note else []), ""]
    ran = [result for result in card.results if not result.not_run]
    head = ["fault", "target", "N", "right", "clear", "other", "p50 ms", "p99 ms", "max ms", "left", "met"]
    body = []
    for result in ran:
        outcomes = {name: count for name, count in result.outcomes.items() if name not in ("right", "clear")}
        other = ", ".join(f"{count} {name}" for name, count in outcomes.items()) or "0"
        good = [str(result.outcomes.get(name, 0)) for name in ("right", "clear")]
        left = str(sum(result.left.values()))
        met = "yes" if result.passed else "**no**"
        name = f"{result.row}: {result.note}" if result.note else result.row
        body.append([name, result.target, str(result.n), *good, other, *_times(result), left, met])
    lines.append(table([head, *body], left=2))
    skipped = [f"- {result.row}: {result.not_run}" for result in card.results if result.not_run]
    if skipped:
        lines += ["", "Not run on this machine:", "", *skipped]
    if card.comparison:
        lines += [_COMPARISON, comparison_table(card.comparison)]
    return "\n".join(lines) + "\n"


def comparison_table(cells: Sequence[dict[str, Any]]) -> str:
    libraries = list(dict.fromkeys(cell["library"] for cell in cells))
    programs = list(dict.fromkeys(cell["program"] for cell in cells))
    texts = {(cell["program"], cell["library"]): _cell(cell) for cell in cells}
    rows = [["fault", *libraries], *([name, *(texts.get((name, lib), "") for lib in libraries)] for name in programs)]
    for title, good in (
        ("right or clear", {"right", "clear"}),
        ("right, or any error in time", {"right", "clear", "unclear"}),
    ):
        rows.append([title, *(_score([c for c in cells if c["library"] == lib], good) for lib in libraries)])
    return table(rows, left=1 + len(libraries))


def _cell(cell: dict[str, Any]) -> str:
    if cell.get("not_run"):
        return str(cell["not_run"])
    parts = [name if count == cell["n"] else f"{count} {name}" for name, count in cell["outcomes"].items()]
    text = ", ".join(parts)
    return text if cell["ms"] is None else f"{text} ({_short(cell['ms'])} ms)"


def _score(cells: Sequence[dict[str, Any]], good: set[str]) -> str:
    ran = [cell for cell in cells if not cell.get("not_run")]
    return f"{sum(1 for cell in ran if set(cell['outcomes']) <= good)} of {len(ran)}"
