"""The matrix of a run: signature by dtype, for each framework; as text, JSON and HTML."""

from __future__ import annotations

import html
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from .cases import DTYPES
from .rank import PASS
from .runner import Result

__all__ = ["Matrix"]

MIXED = "mixed"
_SHORT = {"float8_e4m3fn": "f8e4m3", "float8_e5m2": "f8e5m2", "complex64": "c64", "complex128": "c128",
          "bfloat16": "bf16", "float16": "f16", "float32": "f32", "float64": "f64"}  # fmt: skip


class Matrix:
    """Counts of how tasks ended. A cell is the number of cases that passed, ``k/n`` when only k of n did, or ``-`` when
    the dtype or the call is not supported there."""

    def __init__(self, facts: Mapping[str, Any]) -> None:
        self.facts = dict(facts)
        self.failures: list[dict[str, Any]] = []
        self._cells: dict[str, dict[str, dict[str, Counter[str]]]] = defaultdict(
            lambda: defaultdict(lambda: defaultdict(Counter))
        )

    def add(self, result: Result) -> None:
        task = result.task
        mixed = len(set(task.frameworks)) > 1
        block = MIXED if mixed else task.frameworks[0]
        row = task.case.op if mixed else task.signatures[0]
        verdict = result.verdict
        kind = PASS if verdict == PASS else verdict.partition(":")[0]
        self._cells[block][row][task.dtype][kind] += 1
        if kind not in (PASS, "unsupported"):
            self.failures.append(
                {
                    "case": task.case.name,
                    "source": task.case.facts["source"],
                    "ranks": task.case.ranks,
                    "dtype": task.dtype,
                    "signatures": list(task.signatures),
                    "frameworks": list(task.frameworks),
                    "verdict": verdict,
                }
            )

    @property
    def counts(self) -> Counter[str]:
        total: Counter[str] = Counter()
        for _, _, cells in self._rows():
            for cell in cells.values():
                total += cell
        return total

    def _rows(self) -> Iterable[tuple[str, str, Mapping[str, Counter[str]]]]:
        for block, rows in self._cells.items():
            for name, cells in rows.items():
                yield block, name, cells

    def text(self) -> str:
        lines = []
        for block, rows in self._cells.items():
            used = [dtype for dtype in DTYPES if any(dtype in cells for cells in rows.values())]
            widths = [max(len(_SHORT.get(dtype, dtype)), 5) for dtype in used]
            first = max(map(len, rows))
            names = "  ".join(_SHORT.get(dtype, dtype).rjust(width) for dtype, width in zip(used, widths, strict=True))
            lines += ["", f"{block}:".ljust(first) + "  " + names]
            for name, cells in rows.items():
                values = (_cell(cells.get(dtype)).rjust(width) for dtype, width in zip(used, widths, strict=True))
                lines.append(name.ljust(first) + "  " + "  ".join(values))
        by_verdict = Counter(
            (failure["verdict"], ", ".join(sorted(set(failure["signatures"])))) for failure in self.failures
        )
        if by_verdict:
            lines += ["", "what failed, how often:"]
            lines += [f"{count:6}  {names}: {verdict}" for (verdict, names), count in by_verdict.most_common(40)]
        lines += ["", ", ".join(f"{count} {kind}" for kind, count in sorted(self.counts.items())) or "nothing was run"]
        return "\n".join(lines).lstrip("\n")

    def json(self) -> str:
        cells = {
            block: {name: {dtype: dict(cell) for dtype, cell in cells.items()} for name, cells in rows.items()}
            for block, rows in self._cells.items()
        }
        return json.dumps({**self.facts, "counts": self.counts, "cells": cells, "failures": self.failures}, indent=1)

    def html(self) -> str:
        parts = [_HEAD, "<p>" + html.escape(", ".join(f"{key}: {value}" for key, value in self.facts.items())) + "</p>"]
        for block, rows in self._cells.items():
            used = [dtype for dtype in DTYPES if any(dtype in cells for cells in rows.values())]
            parts.append(f"<h2>{html.escape(block)}</h2><table><tr><th></th>" + "".join(f"<th>{d}</th>" for d in used))
            for name, cells in rows.items():
                parts.append(f"<tr><td>{html.escape(name)}</td>")
                for dtype in used:
                    cell = cells.get(dtype)
                    parts.append(f'<td class="{_class(cell)}">{_cell(cell)}</td>')
            parts.append("</table>")
        if self.failures:
            parts.append("<h2>failures</h2><table>")
            for failure in self.failures:
                columns = (
                    ", ".join(sorted(set(failure["signatures"]))),
                    failure["case"],
                    failure["dtype"],
                    failure["verdict"],
                )
                parts.append("<tr>" + "".join(f"<td>{html.escape(str(column))}</td>" for column in columns))
            parts.append("</table>")
        return "\n".join(parts) + "\n"


def _cell(cell: Counter[str] | None) -> str:
    if cell is None:
        return ""
    passed, total = cell[PASS], sum(cell.values())
    if passed == total:
        return str(passed)
    return "-" if cell["unsupported"] == total else f"{passed}/{total}"


def _class(cell: Counter[str] | None) -> str:
    if cell is None:
        return ""
    bad = sum(count for kind, count in cell.items() if kind not in (PASS, "unsupported"))
    return "bad" if bad else "good" if cell[PASS] else "none"


_HEAD = """<!doctype html><meta charset="utf-8"><title>a2a conformance</title>
<style>body{font:14px sans-serif;margin:2em}table{border-collapse:collapse}td,th{border:1px solid #ccc;padding:2px 6px;
text-align:right}td:first-child{text-align:left}.good{background:#dfd}.bad{background:#fcc}.none{color:#999}</style>
<h1>a2a conformance</h1>"""
