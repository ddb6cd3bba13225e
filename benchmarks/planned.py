"""What a planned exchange takes from C++ and from Python, and an exchange without a plan, beside the round trip of a
cache line: ``python benchmarks/planned.py -n 2 8``.

One call at once after the other. In every round new processes measure each of them; in those of Python batches of both
kinds take turns. Microseconds of the slowest rank; median and range of the rounds."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from environments import HERE, cache_directory, compiled
from floor import Floor

BATCHES = 20


def rank(size: int, calls: int) -> None:
    """Prints, as rank 0, the time of a plan's ``run`` and of ``alltoallv``."""
    import numpy as np

    import a2a

    with a2a.init() as comm:
        counts = np.full(comm.size, size)
        send = np.repeat(np.arange(comm.size, dtype=np.uint8) + 16 * comm.rank, size)
        recv = np.zeros_like(send)
        plan = comm.plan_alltoallv(send, counts, recv, counts)
        kinds = [lambda: plan.run(send, recv), lambda: comm.alltoallv(send, counts, recv, counts)]
        times: list[list[float]] = [[], []]
        for batch in range(2 * BATCHES):
            comm.barrier()
            call = kinds[batch % 2]
            start = time.perf_counter()
            for _ in range(calls // BATCHES):
                call()
            times[batch % 2].append(1e6 * (time.perf_counter() - start) / (calls // BATCHES))
        if not np.array_equal(recv, np.repeat(16 * np.arange(comm.size, dtype=np.uint8) + comm.rank, size)):
            raise AssertionError(f"rank {comm.rank} got wrong contents")
        mine, everyones = np.array([statistics.median(kind) for kind in times]), np.empty((comm.size, 2))
        comm.allgather(mine, everyones)
        if comm.rank == 0:
            print(json.dumps(everyones.max(axis=0).tolist()), flush=True)


def from_python(ranks: int, size: int, calls: int) -> list[float]:
    command = [sys.executable, "-m", "a2a", "run", "-n", str(ranks), __file__, "rank", str(size), str(calls)]
    output = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout
    times: list[float] = json.loads(output[output.index("[", output.index("]") + 1) :])  # behind a2a run's "[0] "
    return times


def built() -> Path:
    import a2a

    package = Path(a2a.__file__).parent
    library = f"-L{package / 'lib'}"
    flags = [f"-I{package / 'include'}", library, "-la2a", f"-Wl,-rpath,{package / 'lib'}"]
    target = cache_directory() / f"planned.{os.getpid()}"
    compiler = os.environ.get("CXX", "c++")
    subprocess.run([compiler, "-std=c++20", "-O2", str(HERE / "planned.cc"), *flags, "-o", str(target)], check=True)
    return target


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", "--ranks", type=int, nargs="+", default=[2, 8])
    parser.add_argument("--size", type=int, default=8, help="bytes per pair")
    parser.add_argument("--calls", type=int, default=100000)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    floor, program = Floor(compiled(cache_directory(), "floor.cc", library=False)), built()
    print(f"{'ranks':>5} {'line, round trip':>24} {'plan, C++':>24} {'plan, Python':>24} {'alltoallv, Python':>24}")
    try:
        for ranks in options.ranks:
            rounds = []
            for _ in range(options.rounds):
                command = [str(program), str(ranks), str(options.size), str(options.calls)]
                native = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout
                python = from_python(ranks, options.size, options.calls)
                rounds.append([floor.line_us(), float(native) / 1e3, *python])
            cells = [f"{statistics.median(c):.2f} [{min(c):.2f}, {max(c):.2f}]" for c in zip(*rounds, strict=True)]
            print(f"{ranks:>5} " + " ".join(f"{cell:>24}" for cell in cells), flush=True)
    finally:
        program.unlink()


if __name__ == "__main__":
    rank(int(sys.argv[2]), int(sys.argv[3])) if sys.argv[1:2] == ["rank"] else main()
