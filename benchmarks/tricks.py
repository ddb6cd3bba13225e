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
    "copy-for-all": Trick(
        "one copy in shared memory of what all peers get",
        cases("allgather", [4, 8], [64 * KIB, 256 * KIB]),
        replace=[(f"{SHM}/policy/choose.cc", "if (ranks < 4 ||", "if (ranks > 0 ||")],
    ),
    "adaptive-staging": Trick(
        "chunks are stored past the caches where their lines come back slowly",
        cases("alltoall", [2, 4], [64 * KIB, MIB]),
        replace=[(f"{SHM}/copy/staging.h", "return streaming_left_ > 0 ?", "return false ?")],
    ),
    "spread": Trick(
        "ranks that share a CPU move to another one, where A2A_SHM_SPREAD allows it",
        cases("alltoall", [3, 4, 8], [8, 4 * KIB]),
        both={"A2A_SHM_SPREAD": "1"},
        without={"A2A_SHM_SPREAD": "0"},
    ),
}


class Sources:
    """A copy of the sources, from which liba2a is built without one trick after the other."""

    def __init__(self, folder: Path) -> None:
        self.tree, self.build = folder / "tree", folder / "build"
        shutil.copytree(ROOT, self.tree, ignore=shutil.ignore_patterns("build*", ".git", "results", "docs"))
        configure = ["cmake", "-S", str(self.tree), "-B", str(self.build), "-DCMAKE_BUILD_TYPE=Release"]
        subprocess.run(configure, check=True, stdout=subprocess.DEVNULL)

    def library_without(self, trick: Trick) -> Path:
        whole = {file: (self.tree / file).read_text() for file, _, _ in trick.replace}
        try:
            for file, old, new in trick.replace:
                if whole[file].count(old) != 1:
                    raise SystemExit(f"{file} has {whole[file].count(old)} times {old!r}")
                (self.tree / file).write_text(whole[file].replace(old, new))
            build = ["cmake", "--build", str(self.build), "--target", "a2a", "--parallel", str(os.cpu_count())]
            subprocess.run(build, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        finally:
            for file, text in whole.items():
                (self.tree / file).write_text(text)
        library = next(self.build.rglob("liba2a.so"))
        return Path(shutil.copy(library, self.build.parent / "liba2a_without.so"))


def contender(name: str, memory: str, extra: dict[str, str]) -> Contender:
    base: Callable[[int], list[Process]] = own(memory)(Path()).processes
    return Contender(name, True, lambda ranks: [Process(p.argv, p.env | extra) for p in base(ranks)])


def measure(trick: Trick, rounds: int, budget_s: float, scratch: Path, sources: Sources) -> list[dict[str, object]]:
    off = dict(trick.without)
    if trick.replace:
        off["LD_PRELOAD"] = str(sources.library_without(trick))
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


def report(rows: list[dict[str, object]]) -> None:
    for row in rows:
        print(
            f"  {row['op']:<10} {row['ranks']} ranks {row['bytes']:>9} bytes {row['with_us']:>10.1f} us, "
            f"without it {row['ratio']:.2f} [{row['lowest']:.2f}, {row['highest']:.2f}] times as long",
            flush=True,
        )
    # Where even the worst round is not faster without it, the median is no accident.
    best = max((float(str(row["ratio"])) for row in rows if float(str(row["lowest"])) >= 1), default=1)
    print(f"  best {best:.2f}: {'pays' if best >= 1.1 else 'does not pay here'}\n", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tricks", nargs="*", choices=[*TRICKS, []], help="which ones (default: all)", metavar="NAME")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--budget", type=float, default=0.1, help="seconds of a round")
    parser.add_argument("--json", type=Path, help="where to write the figures")
    options = parser.parse_args()
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        sources = Sources(Path(folder))
        for name in options.tricks or TRICKS:
            print(f"{name}: {TRICKS[name].what}", flush=True)
            results[name] = measure(TRICKS[name], options.rounds, options.budget, Path(folder), sources)
            report(results[name])
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
