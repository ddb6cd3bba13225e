"""Tables and progress: drawn by rich where it is installed and the output is a terminal, plain text elsewhere."""

from __future__ import annotations

import importlib.util
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TextIO


@dataclass
class Table:
    """Cells are text as it is printed; columns of numbers are aligned to the right."""

    title: str
    rows: Sequence[Sequence[object]]
    columns: Sequence[str] = ()
    right: Sequence[int] = field(default_factory=list)
    """the columns that are numbers"""


def show(table: Table) -> None:
    rows = [[str(cell) for cell in row] for row in ([table.columns] if table.columns else []) + [*table.rows]]
    if is_rich(sys.stdout):
        _draw(table, rows)
        return
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))] if rows else []
    if table.title:
        print(table.title)
    for row in rows:
        cells = [
            cell.rjust(width) if column in table.right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        print(f"  {'  '.join(cells)}".rstrip())


def is_rich(stream: TextIO | None) -> bool:
    """Whether rich may draw on the stream."""
    return stream is not None and stream.isatty() and importlib.util.find_spec("rich") is not None


def _draw(table: Table, rows: list[list[str]]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    if table.title:
        Console().print(Text(table.title, style="bold"))
    header = rows.pop(0) if table.columns else []
    drawn = RichTable(
        box=box.SIMPLE_HEAD if header else None,
        show_header=bool(header),
    )
    for column in range(len(rows[0] if rows else header)):
        drawn.add_column(
            Text(header[column] if header else ""),
            justify="right" if column in table.right else "left",
            style="" if header or column else "cyan",
        )
    for row in rows:
        drawn.add_row(*map(Text, row))
    if rows:
        Console().print(drawn)


class Progress:
    """The progress of a long task: a bar on a terminal, one line at its end otherwise. For a ``with`` statement."""

    def __init__(self, what: str, total: int) -> None:
        self._what, self._total, self._done, self._bad = what, total, 0, 0
        self._shown, self._begin = 0.0, time.monotonic()
        self._terminal = sys.stderr is not None and sys.stderr.isatty()
        self._rich: Any = None

    def __enter__(self) -> Progress:
        if is_rich(sys.stderr):
            from rich import progress
            from rich.console import Console

            columns = (*progress.Progress.get_default_columns(), progress.MofNCompleteColumn())
            self._rich = progress.Progress(*columns, console=Console(stderr=True), transient=True)
            self._task = self._rich.add_task(self._what, total=self._total)
            self._rich.start()
        self._show()
        return self

    def step(self, failed: bool) -> None:
        self._done += 1
        self._bad += failed
        self._show()

    def _show(self) -> None:
        now = time.monotonic()
        if not self._terminal or now - self._shown < 0.1:
            return
        self._shown = now
        bad = f", {self._bad} failed" if self._bad else ""
        if self._rich is not None:
            self._rich.update(self._task, completed=self._done, description=self._what + bad)
            return
        width = 30 * self._done // max(1, self._total)
        left = (now - self._begin) * (self._total - self._done) / self._done if self._done else 0
        text = f"{self._what}: [{'#' * width:30}] {self._done}/{self._total}{bad}, {left:.0f} s left"
        columns = os.get_terminal_size(sys.stderr.fileno()).columns or 80
        print(f"\r\x1b[K{text[: columns - 1]}", end="", file=sys.stderr, flush=True)

    def __exit__(self, *_: object) -> None:
        end = f", {self._bad} failed" if self._bad else ""
        if self._rich is not None:
            self._rich.stop()
        start = "\r\x1b[K" if self._terminal and self._rich is None else ""
        print(f"{start}{self._what}: {self._done} of {self._total} tasks{end}", file=sys.stderr)
