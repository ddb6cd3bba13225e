"""``a2a trace``: where the time of a program's operations went, from the timelines that ``A2A_TRACE`` asks for."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt

from .. import _files, _profiles, trace
from .._core import InvalidArgumentError
from .._files import printable
from . import _parser, _plot

_MOST_SHOWN = 16  # ranks in a table

_ADVICE = "ranks write timelines into the folder that A2A_TRACE names: A2A_TRACE=timeline a2a run -n 4 train.py"
_EXAMPLES = (
    ("A2A_TRACE=timeline a2a run -n 4 train.py", "has the ranks write their timelines into the folder timeline"),
    ("a2a trace timeline", "who sent how much to whom, who came late, and a file for Perfetto"),
    ("a2a trace timeline --profile profiles", "puts the traces of torch.profiler or JAX beside it, on one clock"),
    ("a2a trace timeline --plot timeline.png", "draws the timeline and the traffic"),
)


def add_parser(commands: argparse._SubParsersAction[_parser.Parser]) -> None:
    text = (
        "Merge the timelines that the ranks of a program write when A2A_TRACE names a folder. Print for each "
        "communicator who sent how much to whom, who kept others waiting, and the share of time waited. Write a "
        "timeline with a row for each rank, which ui.perfetto.dev and chrome://tracing open."
    )
    parser = _parser.add_command(
        commands, "trace", "where the time of operations went, and who came late", text, _EXAMPLES
    )
    parser.add_argument("timelines", nargs="+", metavar="FOLDER", help="the folder that A2A_TRACE named, or its files")
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="the timeline as JSON; trace.json in the first folder unless given"
    )
    parser.add_argument(
        "--profile",
        metavar="FILE",
        action="append",
        default=[],
        help="put a trace of torch.profiler or JAX of the same run into the timeline, or all of a folder; repeatable",
    )
    parser.add_argument("--plot", metavar="FILE", help="draw the timeline and the traffic")
    parser.set_defaults(function=_trace)


def _trace(options: argparse.Namespace) -> int:
    if options.plot:
        _plot.check(options.plot)
    missing = [path for path in options.timelines if not Path(path).exists()]
    if missing:
        print(f"a2a trace: {missing[0]}: no such folder; {_ADVICE}", file=sys.stderr)
        return 2
    timelines = []
    for path in trace.find(options.timelines):
        try:
            timelines.append(trace.read(path))
        except (InvalidArgumentError, OSError) as error:
            print(f"a2a trace: {_parser.in_words(error)}", file=sys.stderr)
    if not timelines:
        print(f"a2a trace: no timelines in {' '.join(options.timelines)}; {_ADVICE}", file=sys.stderr)
        return 2
    profiles = [_profiles.read(path) for name in options.profile for path in _profiles.find(name)]
    groups = trace.merge(timelines)
    print("\n\n".join(map(_text, groups)))
    first = Path(options.timelines[0])
    output = Path(options.output) if options.output else (first if first.is_dir() else first.parent) / "trace.json"
    timeline = trace.events(groups)
    _profiles.add(timeline, trace.origin_of(groups), profiles, groups[0].moved)
    _files.write(output, json.dumps(timeline))
    print(f"\ntimeline: {printable(str(output))} (open it in ui.perfetto.dev or chrome://tracing)")
    if options.plot:
        _plot.timeline(groups[0], options.plot)
        print(f"picture: {printable(options.plot)}")
    return 0


def _text(group: trace.Group) -> str:
    numbers, waited, inside = group.numbers(), group.waited(), group.inside()
    ranks = f"{group.size} rank" + ("s" if group.size > 1 else "")
    lines = [f"{group.label}, {ranks}, {len(numbers)} operations"]
    lines += [f"  incomplete: {text}" for text in group.incomplete()]
    lines += ["", "  bytes sent, row to column", *_matrix(group.traffic())]
    lines += ["", f"  {'rank':>6}  in operations  waited  share  most of it for"]
    for timeline in group.ranks[:_MOST_SHOWN]:
        own, total = waited[timeline.rank], inside[timeline.rank]
        share = f"{own.sum() / total:5.0%}" if total > 0 else "    -"
        whom = f"rank {own.argmax()} ({_seconds(own.max())})" if own.any() else "-"
        lines.append(f"  {timeline.rank:>6}  {_seconds(total):>13}  {_seconds(own.sum()):>6}  {share}  {whom}")
    caused = waited.sum(axis=0)
    if caused.any():
        worst = int(caused.argmax())
        count = sum(wait.peer == worst for wait in group.waits)
        known = ", in operations that all timelines have" if group.incomplete() else ""
        lines += ["", f"  straggler: rank {worst} kept others waiting {_seconds(caused[worst])}, {count} times{known}"]
    return "\n".join(lines)


def _matrix(traffic: npt.NDArray[np.int64]) -> list[str]:
    shown = min(len(traffic), _MOST_SHOWN)
    rows = [["", *map(str, range(shown)), "total"]]
    for rank in range(shown):
        rows.append([str(rank), *map(_bytes, traffic[rank, :shown]), _bytes(traffic[rank].sum(dtype=float))])
    columns = traffic.sum(axis=0, dtype=float)  # integers could wrap
    rows.append(["total", *map(_bytes, columns[:shown]), _bytes(columns.sum())])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  " + "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    return lines + ([f"  (the first {shown} of {len(traffic)} ranks)"] if shown < len(traffic) else [])


def _bytes(amount: float) -> str:
    value = float(amount)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def _seconds(value: float) -> str:
    if value == 0:
        return "0"
    if value < 1e-3:
        return f"{value * 1e6:.0f} us"
    return f"{value * 1e3:.1f} ms" if value < 1 else f"{value:.2f} s"
