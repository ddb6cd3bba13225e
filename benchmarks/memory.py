"""What a rank holds beyond Python and NumPy, after exchanges of growing size: ``a2a run -n 8 benchmarks/memory.py``.

KiB of rank 0. ``private`` are pages that this process has written and nobody shares; ``shared`` is its part of the
memory that all ranks share, which is what all of them hold divided by their number."""

from __future__ import annotations

from pathlib import Path

import numpy as np

ROUNDS = 50


def kib() -> tuple[int, int]:
    rows = [line.split() for line in Path("/proc/self/smaps_rollup").read_text().splitlines()[1:]]
    by_name = {row[0]: int(row[1]) for row in rows}
    return by_name["Private_Dirty:"], by_name["Pss_Shmem:"]


def main() -> None:
    largest = 1 << 20
    send, recv = np.zeros((2, 8 * largest), np.uint8)
    before = kib()
    import a2a

    imported = kib()
    comm = a2a.init()
    if comm.rank == 0:
        print("bytes per pair    private KiB    shared KiB")
        print(f"{'import':>14} {imported[0] - before[0]:>14} {imported[1] - before[1]:>13}")
    size = 8
    while size <= largest:
        counts = [size] * comm.size
        for _ in range(ROUNDS):
            comm.alltoallv(send[: size * comm.size], counts, recv[: size * comm.size], counts)
        comm.barrier()
        now = kib()
        if comm.rank == 0:
            print(f"{size:>14} {now[0] - before[0]:>14} {now[1] - before[1]:>13}", flush=True)
        comm.barrier()
        size *= 8
    comm.close()


if __name__ == "__main__":
    main()
