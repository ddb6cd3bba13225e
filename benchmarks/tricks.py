"""Whether each trick of the shared-memory transport pays: ``python benchmarks/tricks.py [NAME ...]``.

A trick is code that is there for speed alone. Each is measured against the library without it, in turn in the same run,
with inputs rewritten and outputs checked: by a variable where one switches it off, otherwise by a second library, built
from sources in which the trick is taken out. The table shows time without it / time with it; what never reaches 1.10
has no place in the sources."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from cases import Case
from contenders import Contender, Process, own
from environments import compiled
from rounds import Effort, Seat, run_case

ROOT = Path(__file__).parents[1]
SHM = "src/cpp/transport/shm"
KIB, MIB = 1 << 10, 1 << 20


@dataclass(frozen=True)
class Trick:
    """``without`` switches it off by variables; ``replace`` takes it out of the sources: (file, text, new text)."""

    what: str
    cases: list[Case]
    memory: str = "a2a"
    both: dict[str, str] = field(default_factory=dict)
    without: dict[str, str] = field(default_factory=dict)
    replace: list[tuple[str, str, str]] = field(default_factory=list)


def cases(op: str, ranks: list[int], sizes: list[int]) -> list[Case]:
    return [Case(op, n, size) for n in ranks for size in sizes]


TRICKS = {
    "rep-movsb": Trick(
        "`rep movsb` where it is measured to be faster than a loop",
        cases("alltoall", [2, 4], [64 * KIB, 512 * KIB]),
        without={"A2A_SHM_REP_MOVSB": "0"},
    ),
    "cma": Trick(
        "the kernel's copy instead of two through chunks",
        cases("alltoall", [2, 4], [MIB, 16 * MIB]),
        without={"A2A_SHM_CMA": "0"},
    ),
    "huge-pages": Trick(
        "chunks where memory lies in small pages, from which the kernel's copy is slow",
        cases("alltoall", [4], [8 * MIB, 16 * MIB]),
        both={"NUMPY_MADVISE_HUGEPAGE": "0"},
        replace=[
            (f"{SHM}/post.cc", "return link_.operation.huge_pages.in(", "return true || link_.operation.huge_pages.in(")
        ],
    ),
    "stream": Trick(
        "stores past the caches for what does not fit there",
        cases("alltoall", [2, 4], [16 * MIB, 32 * MIB]),
        without={"A2A_SHM_STREAM_MIN": str(1 << 50)},
    ),
    "put": Trick(
        "the sender writes into shared outputs",
        cases("alltoall", [2, 4], [64 * KIB, 512 * KIB]),
        memory="a2a-shared",
        without={"A2A_SHM_PUT": "0"},
    ),
    "copy-for-all": Trick(
        "one copy in shared memory of what all peers get",
        cases("allgather", [4, 8], [64 * KIB, 256 * KIB]),
        replace=[(f"{SHM}/policy/choose.cc", "if (ranks < 4 ||", "if (ranks > 0 ||")],
    ),
    "trade": Trick(
        "a chunk is filled while another one is emptied",
        cases("alltoall", [2], [64 * KIB, 256 * KIB, MIB]),
        replace=[(f"{SHM}/ways/staged.cc", "trades = trade_chunks(link, chunk)", "trades = false")],
    ),
    "beside-own": Trick(
        "the own part is copied while a peer's lines arrive",
        cases("alltoall", [2], [64 * KIB, 256 * KIB, MIB]),
        memory="a2a-shared",
        replace=[(f"{SHM}/ways/pull.cc", "meanwhile = own.in_left > 0", "meanwhile = false")],
    ),
    "fetch": Trick(
        "up to 64 KiB all of a peer's lines are fetched first",
        cases("alltoall", [2], [16 * KIB, 64 * KIB]),
        memory="a2a-shared",
        replace=[(f"{SHM}/ways/pull.cc", "kMostFetched = size_t{64} << 10;", "kMostFetched = 0;")],
    ),
    "odd-ranks-pull-first": Trick(
        "every other rank begins with its peers' parts",
        cases("alltoall", [2, 4], [8 * MIB, 32 * MIB]),
        replace=[(f"{SHM}/own_part.cc", "operation_.rank % 2 == 1", "false")],
    ),
    "adaptive-staging": Trick(
        "chunks are stored past the caches where their lines come back slowly",
        cases("alltoall", [2, 4], [64 * KIB, MIB]),
        replace=[(f"{SHM}/copy/staging.h", "return streaming_left_ > 0 ?", "return false ?")],
    ),
    "chunk-order": Trick(
        "the chunk that has been free for longest is filled next",
        cases("alltoall", [2], [4 * KIB, 64 * KIB, 256 * KIB]),
        replace=[(f"{SHM}/ways/staged.cc", "newest = link.pair", "newest = true || link.pair")],
    ),
    "newest-chunk": Trick(
        "the chunk that was emptied last is filled next, of few bytes and where ranks share CPUs",
        cases("alltoall", [2, 4], [2 * KIB, 8 * KIB, 64 * KIB]),
        replace=[(f"{SHM}/ways/staged.cc", "<= kSmall || link.m.surroundings().oversubscribed()", "== 0")],
    ),
    "vectors-512": Trick(
        "copies with vectors of 512 bits",
        cases("alltoall", [2], [4 * KIB, 64 * KIB, 256 * KIB]),
        both={"A2A_SHM_REP_MOVSB": "0"},
        replace=[(f"{SHM}/copy/copy.cc", '"avx512vbmi2") ?', '"avx512vbmi2") && false ?')],
    ),
    "spread": Trick(
        "ranks that share a CPU move to another one, where A2A_SHM_SPREAD allows it",
        cases("alltoall", [3, 4, 8], [8, 4 * KIB]),
        both={"A2A_SHM_SPREAD": "1"},
        without={"A2A_SHM_SPREAD": "0"},
    ),
}


def library_without(trick: Trick, folder: Path) -> Path:
    """liba2a, built from a copy of the sources without the trick."""
    tree = folder / "tree"
    shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns("build*", ".git", "results", "docs"))
    for file, old, new in trick.replace:
        text = (tree / file).read_text()
        if text.count(old) != 1:
            raise SystemExit(f"{file} has {text.count(old)} times {old!r}")
        (tree / file).write_text(text.replace(old, new))
    configure = ["cmake", "-S", str(tree), "-B", str(folder / "build"), "-DCMAKE_BUILD_TYPE=Release"]
    subprocess.run(configure, check=True, stdout=subprocess.DEVNULL)
    build = ["cmake", "--build", str(folder / "build"), "--target", "a2a", "--parallel", str(os.cpu_count())]
    subprocess.run(build, check=True, stdout=subprocess.DEVNULL)
    return next((folder / "build").rglob("liba2a.so"))


def contender(name: str, memory: str, extra: dict[str, str]) -> Contender:
    base: Callable[[int], list[Process]] = own(memory)(Path()).processes
    return Contender(name, True, lambda ranks: [Process(p.argv, p.env | extra) for p in base(ranks)])


def measure(trick: Trick, rounds: int, budget_s: float, scratch: Path) -> list[dict[str, object]]:
    off = dict(trick.without)
    if trick.replace:
        off["LD_PRELOAD"] = str(library_without(trick, scratch))
    effort = Effort(rounds, budget_s, limit_s=60, case_s=600)
    barrier = compiled(scratch, "barrier.cc", library=True)
    found: list[dict[str, object]] = []
    for ranks in sorted({case.ranks for case in trick.cases}):
        seats = [
            Seat(contender("with", trick.memory, trick.both), ranks, scratch, barrier),
            Seat(contender("without", trick.memory, trick.both | off), ranks, scratch, barrier),
        ]
        try:
            for case in (case for case in trick.cases if case.ranks == ranks):
                points = run_case(case, seats, None, effort)
                if any(point.failure for point in points):
                    raise SystemExit("; ".join(point.failure for point in points))
                if any(point.wrong for point in points):
                    raise SystemExit(f"{case}: wrong words")
                times = [[sample.time_us for sample in point.samples] for point in points]
                ratios = sorted(b / a for a, b in zip(*times, strict=True))
                found.append(
                    {"op": case.op, "ranks": ranks, "bytes": case.size, "with_us": statistics.median(times[0]),
                     "ratio": statistics.median(ratios), "lowest": ratios[0], "highest": ratios[-1]}
                )  # fmt: skip
        finally:
            for seat in seats:
                seat.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tricks", nargs="*", choices=[*TRICKS, []], help="which ones (default: all)", metavar="NAME")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--budget", type=float, default=0.1, help="seconds of a round")
    parser.add_argument("--json", type=Path, help="where to write the figures")
    options = parser.parse_args()
    results = {}
    for name in options.tricks or TRICKS:
        trick = TRICKS[name]
        print(f"{name}: {trick.what}", flush=True)
        with tempfile.TemporaryDirectory() as scratch:
            results[name] = measure(trick, options.rounds, options.budget, Path(scratch))
        for row in results[name]:
            print(
                f"  {row['op']:<10} {row['ranks']} ranks {row['bytes']:>9} bytes {row['with_us']:>10.1f} us, "
                f"without it {row['ratio']:.2f} [{row['lowest']:.2f}, {row['highest']:.2f}] times as long",
                flush=True,
            )
        best = max(float(str(row["ratio"])) for row in results[name])
        print(f"  best {best:.2f}: {'stays' if best >= 1.1 else 'GOES'}\n", flush=True)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
