"""The matrix of a run: signature by dtype, for each framework; as text, JSON and HTML."""

from __future__ import annotations

import html
import json
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
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
    "A number: so many cases, all passed. 3/5 R: 3 of 5 passed. W: wrong bytes, R: raises, C: crash, H: hang, "
    "-: unsupported. Empty: nothing to try."
)
_SHORT = {"float": "f", "bfloat": "bf", "complex": "c", "uint": "u", "int": "i"}

Cell = Counter[str]
Rows = dict[str, dict[str, Cell]]


class Matrix:
    """Counts of tasks by their verdicts, for each block (a framework, or "mixed"), row (a signature; in mixed blocks
    the exchange in which they meet) and dtype."""

    def __init__(self, facts: Mapping[str, Any]) -> None:
        self.facts = dict(facts)
        self.failures: list[dict[str, Any]] = []
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
        lines = [f"{key}: {value}" for key, value in self.facts.items()]
        for block, rows, dtypes in self._blocks():
            table = [[f"{block}:", *map(_short, dtypes)]]
            table += [[name, *(_cell(row.get(dtype)) for dtype in dtypes)] for name, row in rows.items()]
            lines += ["", *_aligned(table)]
        return "\n".join([*lines, *self._failures(), "", LEGEND, self._total()])

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
        facts = ", ".join(f"{key}: {value}" for key, value in self.facts.items())
        parts = [_HEAD, f"<p>{html.escape(facts)}</p><p>{html.escape(self._total())}</p><p>{html.escape(LEGEND)}</p>"]
        for block, rows, dtypes in self._blocks():
            heads = "".join(f"<th>{dtype}</th>" for dtype in dtypes)
            parts.append(f"<h2>{html.escape(block)}</h2><table><tr><th></th>{heads}")
            for name, row in rows.items():
                cells = "".join(f'<td class="{_class(row.get(d))}">{_cell(row.get(d))}</td>' for d in dtypes)
                parts.append(f"<tr><td>{html.escape(name)}</td>{cells}")
            parts.append("</table>")
        if self.failures:
            parts.append("<h2>failures</h2><table><tr><th>signatures<th>frameworks<th>case<th>dtype<th>verdict")
            for failure in self.failures:
                columns = [", ".join(sorted(set(failure["signatures"]))), _shown(failure)]
                columns += [failure[key] for key in ("case", "dtype", "verdict")]
                parts.append("<tr>" + "".join(f"<td>{html.escape(column)}</td>" for column in columns))
            parts.append("</table>")
        return "\n".join(parts) + "\n"


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


def _aligned(table: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = []
    for first, *rest in table:
        cells = (text.rjust(width) for text, width in zip(rest, widths[1:], strict=True))
        lines.append(f"{first.ljust(widths[0])}  {'  '.join(cells)}".rstrip())
    return lines


_HEAD = """<!doctype html><meta charset="utf-8"><title>a2a conformance</title>
<style>body{font:14px sans-serif;margin:2em}table{border-collapse:collapse}td,th{border:1px solid #ccc;padding:2px 6px;
text-align:right}td:first-child{text-align:left}.good{background:#dfd}.bad{background:#fcc}.none{color:#999}</style>
<h1>a2a conformance</h1>"""
