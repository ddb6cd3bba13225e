"""The matrix of a run: signature by dtype, for each framework; as text, where dtypes of a kind share a column, as JSON
and as HTML."""

from __future__ import annotations

import html
import json
import re
import textwrap
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from .. import frameworks
from .cases import DTYPES
from .rank import PASS
from .session import Result
from .signatures import SIGNATURES, of

__all__ = ["Matrix"]

MIXED = "mixed"
DOUBLE = "test double"
"""The fact that a run was on a test double: its text."""
UNSUPPORTED = "unsupported"
_LETTERS = {"wrong": "W", "raises": "R", "crash": "C", "hang": "H", UNSUPPORTED: "-"}
LEGEND = (
    "A number: so many cases, all passed. 3/5 R: 3 of 5 passed.",
    "W: wrong bytes, R: raises, C: crash, H: hang, -: unsupported. Empty: nothing to try.",
)
_COLUMNS = 100
_SHORT = {"float": "f", "bfloat": "bf", "complex": "c", "uint": "u", "int": "i"}
_KINDS = ("bool", "int", "uint", "float", "complex", "float8", "float4")
"""The columns of the text. A dtype is in the longest that its name begins with."""

Cell = Counter[str]
Rows = dict[str, dict[str, Cell]]


class Matrix:
    """Counts of tasks by their verdicts, for each block (a framework, or "mixed"), row (a signature; in mixed blocks
    the exchange in which they meet) and dtype."""

    def __init__(self, facts: Mapping[str, Any]) -> None:
        self.facts = dict(facts)
        self.failures: list[dict[str, Any]] = []
        self._first: dict[tuple[str, str, str], int] = {}
        """The first failure of a cell."""
        self._cells: defaultdict[str, defaultdict[str, defaultdict[str, Cell]]] = defaultdict(
            lambda: defaultdict(lambda: defaultdict(Counter))
        )

    def add(self, result: Result) -> None:
        task = result.task
        mixed = len(set(task.frameworks)) > 1
        block = MIXED if mixed else frameworks.short(task.frameworks[0])
        row = of(task.signatures[0]).meeting() if mixed else task.signatures[0]
        verdict = result.verdict
        kind = verdict.partition(":")[0]
        self._cells[block][row][task.dtype][kind] += 1
        if result.failed:
            self._first.setdefault((block, row, task.dtype), len(self.failures))
            self.failures.append(
                {
                    "case": task.case.name,
                    "source": task.case.facts["source"],
                    "ranks": task.case.ranks,
                    "dtype": task.dtype,
                    "signatures": list(task.signatures),
                    "frameworks": list(task.frameworks),
                    "verdict": verdict,
                    "verdicts": {str(rank): text for rank, text in sorted(result.verdicts.items())},
                }
            )

    @property
    def counts(self) -> Cell:
        total: Cell = Counter()
        for rows in self._cells.values():
            for cells in rows.values():
                for cell in cells.values():
                    total += cell
        return total

    def _blocks(self) -> list[tuple[str, Rows, list[str]]]:
        """Name, rows in the order of the signatures, and dtypes."""
        order = {one.name: at for at, one in enumerate(SIGNATURES)}
        order |= {one.meeting(): at for at, one in reversed(list(enumerate(SIGNATURES)))}
        result = []
        for block, rows in self._cells.items():
            ordered: Rows = {
                name: dict(rows[name]) for name in sorted(rows, key=lambda name: order.get(name, len(order)))
            }
            result.append((block, ordered, [dtype for dtype in DTYPES if any(dtype in row for row in rows.values())]))
        return result

    def text(self) -> str:
        """Return the matrix in lines of 100 columns. What failed has longer ones."""
        lines = [line for key, value in self.facts.items() for line in textwrap.wrap(f"{key}: {value}", _COLUMNS)]
        for block, rows, dtypes in self._blocks():
            kinds = [kind for kind in _KINDS if any(_kind(dtype) == kind for dtype in dtypes)]
            table = [[f"{block}:", *kinds, "all"]]
            for name, row in [*rows.items(), ("all", _sums(rows.values(), str))]:
                of_kinds = _sums([row], _kind)
                table.append([name, *(_cell(of_kinds.get(kind)) for kind in kinds), _cell(_sum(row.values()))])
            lines += ["", *_folded(table), *_dtypes_of(kinds, dtypes)]
        return "\n".join([*lines, *self._failures(), "", *LEGEND, self._total()])

    def _failures(self) -> list[str]:
        kinds: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
        for failure in self.failures:  # failures that differ only in numbers are one
            kind = re.sub(r"0x[0-9a-f]+|\d+|, (?=\d)", "", failure["verdict"])
            kinds[kind, ", ".join(sorted(set(failure["signatures"])))].append(failure)
        lines = ["", "what failed, how often, and the first of them:"] if kinds else []
        for (_, names), ones in sorted(kinds.items(), key=lambda item: -len(item[1]))[:40]:
            where = f"{ones[0]['case']}, {ones[0]['dtype']}, {_shown(ones[0])}"
            lines.append(f"{len(ones):6}  {names}: {ones[0]['verdict']}\n        {where}")
        if len(kinds) > 40:
            lines.append(f"        and {len(kinds) - 40} more kinds; --json has all")
        return lines

    def _total(self) -> str:
        total = ", ".join(f"{count} {kind}" for kind, count in sorted(self.counts.items())) or "nothing was run"
        return f"{total}; on a test double, which says nothing about a device" if DOUBLE in self.facts else total

    def json(self) -> str:
        cells = {block: rows for block, rows, _ in self._blocks()}
        return json.dumps({**self.facts, "counts": self.counts, "cells": cells, "failures": self.failures}, indent=1)

    def html(self) -> str:
        """Return a page: headers stay in sight, a cell says in words what it counts, and a failed one is a link."""
        facts = ", ".join(f"{key}: {value}" for key, value in self.facts.items())
        parts = [_HEAD, *(f"<p>{html.escape(text)}</p>" for text in (facts, self._total(), " ".join(LEGEND)))]
        blocks = self._blocks()
        places = [*(block for block, _, _ in blocks), *["failures"] * bool(self.failures)]
        links = (f'<a href="#{html.escape(place)}">{html.escape(place)}</a>' for place in places)
        parts.append(f"<nav>{' '.join(links)}</nav>")
        for block, rows, dtypes in blocks:
            name, heads = html.escape(block), "".join(f"<th>{dtype}</th>" for dtype in dtypes)
            parts.append(f'<h2 id="{name}">{name}</h2><table><thead><tr><th>{name}</th>{heads}</tr></thead>')
            for call, row in rows.items():
                cells = "".join(self._html_cell(block, call, dtype, row.get(dtype)) for dtype in dtypes)
                parts.append(f"<tr><th>{html.escape(call)}</th>{cells}</tr>")
            parts.append("</table>")
        return "\n".join([*parts, *self._html_failures()]) + "\n"

    def _html_cell(self, block: str, row: str, dtype: str, cell: Cell | None) -> str:
        if not cell:
            return "<td></td>"
        counts = ", ".join(f"{count} {kind}" for kind, count in sorted(cell.items()))
        title = html.escape(f"{block}, {row}, {dtype}: {counts}")
        text, failure = _cell(cell), self._first.get((block, row, dtype))
        if failure is not None:
            text = f'<a href="#failure{failure}">{text}</a>'
        return f'<td class="{_class(cell)}" title="{title}">{text}</td>'

    def _html_failures(self) -> list[str]:
        if not self.failures:
            return []
        heads = "".join(f"<th>{head}</th>" for head in ("signatures", "frameworks", "case", "dtype", "verdict"))
        parts = [f'<h2 id="failures">failures</h2><table class="texts"><thead><tr>{heads}</tr></thead>']
        for number, failure in enumerate(self.failures):
            columns = [", ".join(sorted(set(failure["signatures"]))), _shown(failure)]
            columns += [failure[key] for key in ("case", "dtype", "verdict")]
            source = html.escape(f"{failure['ranks']} ranks; {failure['source']}")
            cells = "".join(f"<td>{html.escape(column)}</td>" for column in columns)
            parts.append(f'<tr id="failure{number}" title="{source}">{cells}</tr>')
        return [*parts, "</table>"]


def _kind(dtype: str) -> str:
    """Return the column of a dtype."""
    return max((kind for kind in _KINDS if dtype.removeprefix("b").startswith(kind) or dtype == kind), key=len)


def _sums(rows: Iterable[Mapping[str, Cell]], key: Callable[[str], str]) -> dict[str, Cell]:
    """Return the sums of the cells whose dtypes have the same key."""
    cells: defaultdict[str, list[Cell]] = defaultdict(list)
    for row in rows:
        for dtype, cell in row.items():
            cells[key(dtype)].append(cell)
    return {name: _sum(some) for name, some in cells.items()}


def _sum(cells: Iterable[Cell]) -> Cell:
    return sum(cells, Cell())


def _dtypes_of(kinds: Sequence[str], dtypes: Sequence[str]) -> list[str]:
    """Return lines with the dtypes of those columns that have several."""
    groups = {kind: [_short(dtype) for dtype in dtypes if _kind(dtype) == kind] for kind in kinds}
    text = "; ".join(f"{kind}: {' '.join(names)}" for kind, names in groups.items() if len(names) > 1)
    return textwrap.wrap(text, _COLUMNS, initial_indent="  ", subsequent_indent="  ")


def _shown(failure: Mapping[str, Any]) -> str:
    """Return the frameworks of its ranks, or one if all have the same."""
    names = [frameworks.short(name) for name in failure["frameworks"]]
    return names[0] if len(set(names)) == 1 else "+".join(names)


def _cell(cell: Cell | None) -> str:
    if not cell:
        return ""
    passed, total = cell[PASS], sum(cell.values())
    if passed == total:
        return str(passed)
    letters = "".join(letter for kind, letter in _LETTERS.items() if cell[kind])
    return f"{passed}/{total} {letters}" if passed else letters


def _class(cell: Cell | None) -> str:
    if not cell:
        return ""
    bad = any(cell[kind] for kind in _LETTERS if kind != UNSUPPORTED)
    return "bad" if bad else "good" if cell[PASS] else "none"


def _short(dtype: str) -> str:
    name = dtype.rstrip("0123456789")
    return _SHORT[name] + dtype[len(name) :] if name in _SHORT else dtype.replace("float", "f", 1)


def _folded(table: Sequence[Sequence[str]]) -> list[str]:
    """Return aligned lines. Columns that have no room go below, beside the first column once more."""
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines: list[str] = []
    at = 1
    while at < len(widths):
        end = at + 1
        while end < len(widths) and widths[0] + sum(2 + width for width in widths[at : end + 1]) <= _COLUMNS:
            end += 1
        for row in table:
            cells = (row[column].rjust(widths[column]) for column in range(at, end))
            lines.append(f"{row[0].ljust(widths[0])}  {'  '.join(cells)}".rstrip())
        at = end
    return lines


_HEAD = """<!doctype html><meta charset="utf-8"><title>a2a conformance</title>
<style>body{font:14px sans-serif;margin:2em}table{border-collapse:separate;border-spacing:0}
td,th{border:solid #ccc;border-width:0 1px 1px 0;padding:2px 6px;text-align:right;white-space:nowrap;background:#fff}
tr>:first-child{position:sticky;left:0;z-index:1;text-align:left;font-weight:normal;border-left-width:1px}
thead th{position:sticky;top:0;z-index:2;background:#eee;border-top-width:1px}
thead tr>:first-child{z-index:3;font-weight:bold}.texts *{text-align:left;white-space:normal}
.texts td{position:static!important}tr,h2{scroll-margin-top:2em}
tr:hover>*{background:#eef}:target>*{background:#ffc!important}
td.good{background:#dfd}td.bad{background:#fcc}td.none{color:#999}nav a{margin-right:1em}</style>
<h1>a2a conformance</h1>"""
