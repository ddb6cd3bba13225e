"""Writes python/a2a/conformance/cases/families.json: the case families of the upstream suites and of our own, for 1 to
8 ranks. Run it after a change of the formulas; a test compares the file with what this gives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

FILE = Path(__file__).parents[2] / "python" / "a2a" / "conformance" / "cases" / "families.json"
Family = dict[str, Any]


def alltoallv(name: str, source: str, counts: Any, row: list[int], **more: Any) -> Family:
    return {"name": name, "source": source, "op": "alltoallv", "dtypes": "all", "row": row,
            "send_counts": np.asarray(counts).tolist(), **more}  # fmt: skip


def displaced(rng: np.random.Generator, counts: Any) -> tuple[list[list[int]], list[int]]:
    """Displacements in any order and with gaps, and the rows of each rank's tensor."""
    displs, rows = np.zeros_like(counts), []
    for rank, row in enumerate(counts):
        at = int(rng.integers(3))
        for peer in rng.permutation(len(row)):
            displs[rank, peer] = at
            at += int(row[peer]) + int(rng.integers(3))
        rows.append(at)
    return displs.tolist(), rows


def of_ranks(n: int) -> list[Family]:
    rng = np.random.default_rng(n)
    ones, rank = np.ones((n, n), np.int64), np.arange(n)
    random = np.where(rng.random((n, n)) < 0.3, 0, rng.integers(1, 9, (n, n)))
    torch, paddle, own = "torch.distributed's process group tests", "paddle.distributed's collective tests", "a2a"
    cases = [
        alltoallv(f"equal splits, {n} ranks", torch, ones, [n]),
        alltoallv(f"splits grow with the peer, {n} ranks", torch, ones * (rank + 1), [n]),
        alltoallv(f"random send matrix, {n} ranks", "torch's functional collectives tests", random, [3]),
        alltoallv(f"two rows each, {n} ranks", paddle, ones * 2, [4]),
        alltoallv(f"nothing at all, {n} ranks", own, ones * 0, [2]),
        alltoallv(f"one rank sends nothing, {n} ranks", own, ones * (rank[:, None] > 0), [1]),
        alltoallv(f"one rank receives everything, {n} ranks", own, ones * 5 * (rank == n - 1), [2]),
        alltoallv(f"each to its neighbour, {n} ranks", own, (rank[None] == (rank[:, None] + 1) % n) * 7, [3]),
        alltoallv(f"parts above every threshold, {n} ranks", own, random * 2000, [2]),
        {"name": f"list of shapes, {n} ranks", "source": torch, "op": "alltoall_list", "dtypes": "all",
         "shapes": [[[(s + d) % 3, 2] if (s + d) % 2 else [s + 1] for d in range(n)] for s in range(n)]},
        {"name": f"all_gather, {n} ranks", "source": torch, "op": "allgather", "dtypes": "all", "shape": [3, 2]},
        {"name": f"all_gather of nothing, {n} ranks", "source": own, "op": "allgather", "dtypes": "all",
         "shape": [0, 2]},
    ]  # fmt: skip
    for permuted in (False, True):
        sends, rows = displaced(rng, random)
        received, recv_rows = displaced(rng, random.T)
        more = {"send_displs": sends, "send_rows": rows}
        if permuted:
            more |= {"recv_displs": received, "recv_rows": recv_rows}
        name = "gaps and any order on both sides" if permuted else "gaps in the input"
        cases.append(alltoallv(f"{name}, {n} ranks", "ATB's AllToAllV tests, with real rdispls", random, [], **more))
    for experts, empty in ((1, 0.0), (2, 0.0), (3, 0.6)):
        counts = rng.integers(1, 5, (n, n * experts))
        local = np.where(rng.random(counts.shape) < empty, 0, counts).tolist()
        what = f"{experts} experts a rank{', most without tokens' if empty else ''}, {n} ranks"
        source = "paddle's tests of global_scatter and global_gather" if experts == 2 else own
        for op in ("global_scatter", "global_gather"):
            cases.append({"name": f"{op}, {what}", "source": source, "op": op, "dtypes": "all", "row": [3],
                          "experts": experts, "local_count": local})  # fmt: skip
    return cases


def text() -> str:
    cases = [json.dumps(case) for n in range(1, 9) for case in of_ranks(n)]
    about = json.dumps("Case families for 1 to 8 ranks, written by tests/conformance/make_families.py.")
    return f'{{"about": {about}, "cases": [\n' + ",\n".join(cases) + "\n]}\n"


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
