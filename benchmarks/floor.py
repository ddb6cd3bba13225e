"""The least that this machine needs, measured by floor.cc between the rounds of the contenders."""

from __future__ import annotations

import subprocess
from pathlib import Path

from cases import Case
from group import GroupError
from results import Sample

_LIMIT_S = 120.0


class Floor:
    """``program`` is the compiled floor.cc. Methods raise GroupError when it fails or does not end."""

    def __init__(self, program: Path) -> None:
        self._program = program

    def line_us(self) -> float:
        """One round trip of a cache line between two processes."""
        return self._run(["line", "500"], "")[0] / 1e3

    def copy(self, case: Case, budget_s: float) -> Sample:
        """Every rank copies its own part and its peers' parts from shared memory; no waiting inside the timed span.
        ``budget_s`` for each of the two kinds of copy."""
        same = "1" if case.op == "allgather" else "0"
        matrix = case.matrix // 8 * 8
        numbers = " ".join(str(value) for value in matrix.ravel())
        time_ns, span_ns, wrong, iterations = self._run(["copy", str(case.ranks), str(budget_s), same], numbers)
        return Sample(time_ns / 1e3, span_ns / 1e3, wrong, iterations)

    def _run(self, arguments: list[str], given: str) -> list[int]:
        command = [str(self._program), *arguments]
        try:
            done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=_LIMIT_S, check=True)
        except (subprocess.SubprocessError, OSError) as error:
            raise GroupError(str(error)) from error
        return [int(number) for number in done.stdout.split()]
