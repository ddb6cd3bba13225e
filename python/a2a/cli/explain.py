"""``a2a explain``: names the ranks that keep a program from going on, from the records of ``A2A_DUMP``."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import io
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from .. import _flight_recorder, dump
from .._core import InvalidArgumentError
from .._files import printable
from ._diagnosis import Diagnosis, diagnose, name_ranks
from ._parser import Parser, add_command, in_words
from ._terminal import Table, show

_ADVICE = "ranks write records into the folder that A2A_DUMP names, for example: A2A_DUMP=dumps a2a run -n 4 train.py"

_EXAMPLES = (
    ("A2A_DUMP=dumps a2a run -n 4 train.py", "has the ranks write records into the folder dumps"),
    ("a2a explain dumps", "reads them, while the program is stuck or after its end"),
    ("a2a explain dumps --all", "shows the ranks of every communicator"),
    ("a2a explain dumps --flight-recorder traces", "writes them for Torch's analysis, fr_trace traces"),
)


def add_parser(commands: argparse._SubParsersAction[Parser]) -> None:
    text = (
        "Read the records that the ranks of a program write when A2A_DUMP names a folder, while it is stuck or after "
        "its end, and name the rank that differs and how. Exits with 0 when all is well, with 1 when something is not, "
        "and with 2 when there is nothing to read."
    )
    parser = add_command(commands, "explain", "which rank a stuck program waits for", text, _EXAMPLES)
    parser.add_argument("dumps", nargs="+", metavar="DUMP", help="the folder that A2A_DUMP named, or files of it")
    parser.add_argument("--all", action="store_true", help="show the ranks of communicators where all is well, too")
    parser.add_argument("--json", action="store_true", help="the same as JSON")
    parser.add_argument(
        "--flight-recorder",
        metavar="FOLDER",
        help="also write there, for each process, what torch.distributed.flight_recorder reads",
    )
    parser.set_defaults(function=_explain)


def _explain(options: argparse.Namespace) -> int:
    records, unreadable = _read(options.dumps)
    for text in unreadable:
        print(f"a2a explain: {text}", file=sys.stderr)
    if not records:
        empty = [path for path in options.dumps if Path(path).is_dir()]
        if empty:
            print(f"a2a explain: no records in {' '.join(empty)}", file=sys.stderr)
        print(f"a2a explain: nothing to read; {_ADVICE}", file=sys.stderr)
        return 2
    if options.flight_recorder is not None:
        written = _flight_recorder.write_traces(records, options.flight_recorder)
        print(f"a2a explain: {len(written)} traces in {printable(options.flight_recorder)}", file=sys.stderr)
    diagnoses = _diagnose_all(records)
    if options.json:
        print(json.dumps([dataclasses.asdict(diagnosis) for diagnosis in diagnoses], indent=2))
    else:
        for at, diagnosis in enumerate(diagnoses):
            if at:
                print()
            _show(diagnosis, options.all)
    return 1 if any(diagnosis.operation for diagnosis in diagnoses) else 0


def stuck_in(folder: Path) -> tuple[str, list[int]]:
    """Return what the command prints about communicators of this folder on which a rank is stuck, and the ranks that it
    names as the cause."""
    diagnoses = [diagnosis for diagnosis in _diagnose_all(_read([folder])[0]) if diagnosis.operation]
    with contextlib.redirect_stdout(io.StringIO()) as text:
        for diagnosis in diagnoses:
            _show(diagnosis, False)
    return text.getvalue(), sorted({rank for diagnosis in diagnoses for rank in diagnosis.culprits})


def _read(paths: Sequence[str | Path]) -> tuple[list[dump.Record], list[str]]:
    """Return the records, and why others cannot be read."""
    records, unreadable = [], []
    for path in dump.find(paths):
        try:
            records.append(dump.read(path))
        except (InvalidArgumentError, OSError) as error:
            unreadable.append(in_words(error))
    return records, unreadable


def _diagnose_all(records: list[dump.Record]) -> list[Diagnosis]:
    groups: dict[int, list[dump.Record]] = {}
    for record in sorted(records, key=lambda record: record.opened):
        groups.setdefault(record.group, []).append(record)
    return [diagnose(group, records) for group in groups.values()]


def _show(diagnosis: Diagnosis, show_all: bool) -> None:
    ranks = f"{diagnosis.size} rank" + ("s" if diagnosis.size > 1 else "") + f", since {_clock(diagnosis.opened)}"
    if diagnosis.operation == 0:
        print(f"{diagnosis.label}, {ranks}: no rank is stuck")
    else:
        whom = (
            f"because of {name_ranks(diagnosis.culprits)}" if diagnosis.culprits else "and the records do not tell why"
        )
        print(f"{diagnosis.label}, {ranks}: operation #{diagnosis.operation} is not finished on all ranks, {whom}")
    for finding in diagnosis.findings:
        print(f"  {finding}")
    if diagnosis.operation or show_all:
        show(_table(diagnosis))
        for rank in diagnosis.ranks:
            if rank.text:
                print(f"  rank {rank.rank}: {rank.text}")


def _clock(seconds: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(seconds)) + f".{int(seconds % 1 * 1000):03}"


def _table(diagnosis: Diagnosis) -> Table:
    rows = [
        (
            str(rank.rank),
            rank.operation,
            rank.state,
            _clock(rank.at) if rank.at else "",
            rank.process,
            rank.site,
        )
        for rank in diagnosis.ranks
    ]
    return Table("", rows, ("rank", "last operation", "state", "at", "process", "called from"))
