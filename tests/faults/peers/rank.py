"""One rank of one library: ``python -m tests.faults.peers.rank LIBRARY PROGRAM FOLDER``. Writes FOLDER/ready.RANK.PID
and, at its end, FOLDER/answer.RANK.PID.json."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from .groups import NotExpressible, join
from .programs import PROGRAMS


def main(library: str, program: str, folder: Path) -> None:
    rank = os.environ.get("RANK") or os.environ.get("A2A_RANK") or ""
    answer = {"kind": "error", "error": "", "text": "", "time": 0.0}
    failure: BaseException | None = None
    group = None
    try:
        group = join(library)
        rank = str(group.rank)
        (folder / f"pid.{rank}").write_text(str(os.getpid()))
        right = PROGRAMS[program].run(group, lambda: (folder / f"ready.{rank}").touch())
        answer["kind"] = "right" if right else "wrong"
    except NotExpressible as reason:
        answer["kind"], answer["text"] = "not expressible", str(reason)
    except BaseException as error:
        answer["error"], answer["text"], failure = type(error).__name__, str(error), error
    answer["time"] = time.monotonic()
    path = folder / f"answer.{rank}.{os.getpid()}"
    path.write_text(json.dumps(answer))
    path.rename(path.with_suffix(".json"))
    if isinstance(failure, KeyError):
        raise failure  # the program's own mistake takes its usual way
    if failure is None and group is not None:
        group.close()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
