"""How long the ranks of a group take to meet, beyond starting their processes: ``python benchmarks/start.py -n 8``.

From when the last process was ready to call ``a2a.init()`` until the last rank had its communicator, and the same with
a first exchange of all with all. Milliseconds; median and range over several groups of new processes."""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time

RANKS_PROGRAM = "rank"  # in place of arguments: this process is a rank of a group


def rank() -> None:
    import numpy as np

    import a2a

    ready = time.monotonic()  # the clock is the same for all processes of a host
    comm = a2a.init()
    joined = time.monotonic()
    send, recv = np.zeros((2, comm.size), np.int64)
    comm.alltoall(send, recv)
    times = np.array([ready, joined, time.monotonic()])
    everyone = np.empty((comm.size, 3))
    comm.allgather(times, everyone)
    if comm.rank == 0:
        last_ready, last_joined, last_exchanged = everyone.max(axis=0)
        print(json.dumps([1e3 * (last_joined - last_ready), 1e3 * (last_exchanged - last_ready)]), flush=True)
    comm.close()


def one_group(ranks: int) -> list[float]:
    command = [sys.executable, "-m", "a2a", "run", "-n", str(ranks), __file__, RANKS_PROGRAM]
    output = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    times: list[float] = json.loads(output[output.index("[", output.index("]") + 1) :])  # behind a2a run's "[0] "
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", "--ranks", type=int, nargs="+", default=[2, 8])
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    print(f"{'ranks':>5} {'met, ms':>22} {'and exchanged, ms':>22}")
    for ranks in options.ranks:
        rounds = [one_group(ranks) for _ in range(options.rounds)]
        columns = [f"{statistics.median(c):.1f} [{min(c):.1f}, {max(c):.1f}]" for c in zip(*rounds, strict=True)]
        print(f"{ranks:>5} {columns[0]:>22} {columns[1]:>22}", flush=True)


if __name__ == "__main__":
    rank() if sys.argv[1:] == [RANKS_PROGRAM] else main()
