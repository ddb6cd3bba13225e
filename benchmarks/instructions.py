"""Instructions of one exchange of small messages from Python, by callgrind: ``python benchmarks/instructions.py``.

Rank 0 runs under valgrind, so slowly that the other ranks have always come before it: it never waits. Two runs of
different length are subtracted, so that only calls and the loop around them are counted."""

from __future__ import annotations

import argparse
import os
import re
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

CALLS = (1000, 11000)


def rank(kind: str, size: int, calls: int) -> None:
    import numpy as np

    import a2a

    with a2a.init() as comm:
        counts = np.full(comm.size, size)
        send, recv = np.zeros((2, size * comm.size), np.uint8)
        plan = comm.plan_alltoallv(send, counts, recv, counts)
        for _ in range(calls):
            if kind == "plan":
                plan.run(send, recv)
            else:
                comm.alltoallv(send, counts, recv, counts)


def instructions(ranks: int, kind: str, size: int, calls: int) -> int:
    """Of rank 0, from its start to its end."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "callgrind.out"
        valgrind = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={output}"]
        program = [sys.executable, __file__, "rank", kind, str(size), str(calls)]
        job = {"A2A_SIZE": str(ranks), "A2A_JOB": f"instructions-{os.getpid()}-{ranks}-{kind}-{calls}"}
        started = [
            subprocess.Popen(
                program if r else valgrind + program,
                env={**os.environ, **job, "A2A_RANK": str(r), "PYTHONHASHSEED": "0", "OPENBLAS_NUM_THREADS": "1"},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            for r in range(ranks)
        ]
        if any(process.wait(300) for process in started):
            raise SystemExit(f"{ranks} ranks, {kind}: a rank failed")
        found = re.search(r"^(?:totals|summary): (\d+)", output.read_text(), re.MULTILINE)
        assert found, "callgrind wrote no sum"
        return int(found[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", "--ranks", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--size", type=int, default=8, help="bytes per pair")
    options = parser.parse_args()
    # Every rank maps as much as the others could share, which may be more than valgrind has addresses for.
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 30, 1 << 30))
    print(f"{'ranks':>5} {'plan.run':>10} {'alltoallv':>10}")
    for ranks in options.ranks:
        few, many = ([instructions(ranks, kind, options.size, n) for kind in ("plan", "alltoallv")] for n in CALLS)
        each = [(b - a) / (CALLS[1] - CALLS[0]) for a, b in zip(few, many, strict=True)]
        print(f"{ranks:>5} {each[0]:>10.0f} {each[1]:>10.0f}", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["rank"]:
        rank(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    else:
        main()
