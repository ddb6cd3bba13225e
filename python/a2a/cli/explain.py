"""``a2a explain``: which rank keeps a program from going on, from the records that ``A2A_DUMP`` asks for."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time

from .. import dump
from .._core import InvalidArgumentError
from ._diagnosis import Diagnosis, diagnose


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    text = (
        "Read the records that the ranks of a program write when A2A_DUMP names a folder, while it is stuck or after "
        "its end, and name the rank that differs and how. Exits with 0 when all is well, with 1 when something is not, "
        "and with 2 when there is nothing to read."
    )
    parser = commands.add_parser("explain", help="which rank a stuck program waits for", description=text)
    parser.add_argument("dumps", nargs="+", metavar="DUMP", help="the folder that A2A_DUMP named, or files of it")
    parser.add_argument("--all", action="store_true", help="show the ranks of communicators where all is well, too")
    parser.add_argument("--json", action="store_true", help="the same as JSON")
    parser.set_defaults(function=_explain)


def _explain(options: argparse.Namespace) -> int:
    records = []
    for path in dump.find(options.dumps):
        try:
            records.append(dump.read(path))
        except (InvalidArgumentError, OSError) as error:
            print(f"a2a explain: {error}", file=sys.stderr)
    if not records:
        print(f"a2a explain: no records in {' '.join(options.dumps)}", file=sys.stderr)
        return 2
    groups: dict[int, list[dump.Record]] = {}
    for record in sorted(records, key=lambda record: record.opened):
        groups.setdefault(record.group, []).append(record)
    diagnoses = [diagnose(group, records) for group in groups.values()]
    if options.json:
        print(json.dumps([dataclasses.asdict(diagnosis) for diagnosis in diagnoses], indent=2))
    else:
        print("\n\n".join(_text(diagnosis, options.all) for diagnosis in diagnoses))
    return 1 if any(diagnosis.operation for diagnosis in diagnoses) else 0


def _text(diagnosis: Diagnosis, show_all: bool) -> str:
    ranks = f"{diagnosis.size} rank" + ("s" if diagnosis.size > 1 else "") + f", since {_clock(diagnosis.opened)}"
    if diagnosis.operation == 0:
        lines = [f"{diagnosis.label}, {ranks}: nothing is in the way"]
    else:
        culprits = ", ".join(map(str, diagnosis.culprits))
        whom = f"because of rank {culprits}" if culprits else "and the records do not tell why"
        lines = [f"{diagnosis.label}, {ranks}: operation #{diagnosis.operation} is not finished on all ranks, {whom}"]
    lines += [f"  {finding}" for finding in diagnosis.findings]
    if diagnosis.operation or show_all:
        lines += _table(diagnosis)
    return "\n".join(lines)


def _clock(seconds: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(seconds)) + f".{int(seconds % 1 * 1000):03}"


def _table(diagnosis: Diagnosis) -> list[str]:
    rows = [("rank", "last operation", "state", "at", "process", "called from")]
    for rank in diagnosis.ranks:
        at = _clock(rank.at) if rank.at else ""
        rows.append((str(rank.rank), rank.operation, rank.state, at, rank.process, rank.site))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
    return lines + [f"  rank {rank.rank}: {rank.text}" for rank in diagnosis.ranks if rank.text]
