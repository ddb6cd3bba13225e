"""The process in which rows run. It gets a job as JSON in its argument and writes one line of JSON for each row."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from .harness import be_guard, die_with_parent
from .rows import as_json, load, run_row


def main(job: dict[str, Any]) -> None:
    die_with_parent()
    be_guard()
    os.environ["A2A_FAULTS_TMP"] = os.environ["TMPDIR"] = job["folder"]
    results = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what ranks print is no result
    rows = load()
    for name, n in job["rows"]:
        result = run_row(rows[name], n, job["seed"], job["strict"], job["seconds"])
        print(json.dumps(as_json(result)), file=results, flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
