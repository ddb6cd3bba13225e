"""One rank that is a program of its own: ``python -m a2a.conformance.launched FILE [RANK]``. A rank that mpiexec starts
gets its number from MPI."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from .cases import Case
from .groups import WAYS, Place
from .processes import die_with_parent, run_rank
from .rank import Task, preload


def main(path: Path, rank: int = -1) -> None:
    die_with_parent()
    given = json.loads(path.read_text(encoding="utf-8"))
    os.kill(given["runner"], 0)  # raises if the runner, and with it the parent, has ended
    place = Place(given["ranks"], given["job"], None, ())
    cases = [Case(facts) for facts in given["cases"]]
    tasks = [Task(cases[at], dtype, tuple(names), tuple(frameworks)) for at, dtype, names, frameworks in given["tasks"]]
    preload(tasks, WAYS[given["how"]])
    run_rank(given["how"], rank, place, tasks, given["address"])


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
