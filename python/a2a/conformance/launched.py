"""One rank that mpiexec started: ``python -m a2a.conformance.launched FILE``."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from .cases import Case
from .groups import Place
from .processes import die_with_parent, run_rank
from .rank import Task


def main(path: Path) -> None:
    die_with_parent()
    given = json.loads(path.read_text(encoding="utf-8"))
    os.kill(given["runner"], 0)  # an error when it, and with it our parent, is gone already
    place = Place(given["ranks"], given["job"], path.parent, ())
    tasks = [
        Task(Case(task["case"]), task["dtype"], tuple(task["signatures"]), tuple(task["frameworks"]))
        for task in given["tasks"]
    ]
    run_rank(given["how"], -1, place, tasks, given["address"])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
