"""Faults injected into a2a, and how they end: ``python -m tests.faults.scorecard --help``, from the root of a checkout.

Ranks are real processes under a guard: whoever does not come back within a limit hangs, and is killed. Rows that strike
a rank at a chosen point need a library with fault points; ``--build`` names the CMake build directory that has one, and
makes it where it is missing.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence
from math import ceil
from pathlib import Path
from typing import Any

from . import report
from .rows import FAMILIES, Result, Row, load

ROOT = Path(__file__).resolve().parents[2]


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.scorecard", description=__doc__)
    extent = parser.add_mutually_exclusive_group()
    extent.add_argument("--quick", action="store_true", help="a few of each fault; the default")
    extent.add_argument(
        "--full", action="store_true", help="as many as the targets ask for; writes docs/design/reliability.md"
    )
    parser.add_argument("--only", nargs="+", metavar="NAME", help="rows or families whose name contains this")
    parser.add_argument("--peer", nargs="+", default=[], choices=["gloo", "openmpi", "mpich"], help="run them as well")
    parser.add_argument("--programs", nargs="+", metavar="NAME", help="of those that peers run as well")
    parser.add_argument("-n", type=int, metavar="N", help="faults of each row")
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies the N of every row")
    parser.add_argument(
        "--seconds", type=float, default=3600.0, help="after which a row ends with the N that it has got"
    )
    parser.add_argument("--seed", type=int, default=1, help="of the first fault of each row; failures print theirs")
    parser.add_argument("--build", type=Path, default=_build_dir(), help="of the library with fault points")
    parser.add_argument("--json", type=Path, default=ROOT / "build" / "scorecard.json")
    parser.add_argument(
        "--load", type=Path, nargs="+", metavar="FILE.json", help="put earlier runs together and show them"
    )
    parser.add_argument("--render", type=Path, metavar="FILE.md", help="write the table there")
    parser.add_argument("--note", default="", help="a sentence about the machine, for what --render writes")
    parser.add_argument("--list", action="store_true", help="name the rows and stop")
    return parser.parse_args(arguments)


def _build_dir() -> Path:
    return Path(os.environ.get("A2A_TEST_BUILD_DIR") or ROOT / "build" / "faults")


def fault_library(build: Path) -> Path:
    """liba2a with fault points. A build that was interrupted goes on; one that is complete is taken as it is."""
    build.mkdir(parents=True, exist_ok=True)
    library, complete = build / "liba2a.so", build / "fault-library-complete"
    with (build / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not complete.is_file():
            _build(build)
            complete.touch()
    return library


def _build(build: Path) -> None:
    cache = build / "CMakeCache.txt"
    if cache.is_file() and "A2A_FAULTS:BOOL=ON" not in cache.read_text():
        raise FileNotFoundError(
            f"{build} holds no library with fault points: configure it with -DA2A_FAULTS=ON, build it"
        )
    print(f"# building {build}", file=sys.stderr, flush=True)
    # pip installs CMake beside the interpreter, whether or not that is on PATH.
    path = os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)])
    options: list[str] = []
    if not cache.is_file():
        options = ["-DCMAKE_BUILD_TYPE=Release", "-DA2A_BUILD_TESTS=ON", "-DA2A_FAULTS=ON"]
        options += ["-G", "Ninja"] if shutil.which("ninja", path=path) else []
    for command in (["-S", ROOT, "-B", build, *options], ["--build", build, "--parallel", str(os.cpu_count())]):
        cmake = shutil.which("cmake", path=path) or "cmake"
        subprocess.run([cmake, *command], check=True, stdout=sys.stderr, env=os.environ | {"PATH": path})


def chosen(options: argparse.Namespace) -> list[tuple[Row, int]]:
    wanted = []
    for row in load().values():
        if options.only and not any(_names(part, row) for part in options.only):
            continue
        n = options.n or ceil((row.full if options.full else row.quick) * options.scale)
        if n > 0 or row.name in (options.only or ()):
            wanted.append((row, max(n, 1)))
    return wanted


def _names(part: str, row: Row) -> bool:
    return part == row.family if part in FAMILIES else part in row.name


def inject(rows: list[tuple[Row, int]], options: argparse.Namespace) -> Iterator[Result]:
    """Runs the rows in processes of their own, so that whatever a fault does, the scorecard goes on."""
    for faultpoints in (False, True):
        todo = [(row, n) for row, n in rows if row.faultpoints == faultpoints]
        while todo:
            finished = 0
            for result in _stage(todo, options, faultpoints):
                finished += 1
                yield result
            for row, n in todo[finished : finished + 1]:  # in which the stage itself died
                text = f"the process of this row ended; the ranks of n = {n} were not seen"
                lost = [{"seed": options.seed, "outcome": "crash", "text": text}]
                yield Result(row.name, row.family, row.target, failures=lost)
            todo = todo[finished + 1 :]


def _stage(rows: list[tuple[Row, int]], options: argparse.Namespace, faultpoints: bool) -> Iterator[Result]:
    names = [(row.name, n) for row, n in rows]
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        job = {
            "rows": names,
            "seed": options.seed,
            "strict": options.full,
            "seconds": options.seconds,
            "folder": folder,
        }
        yield from _start(job, options, faultpoints)


def _start(job: dict[str, Any], options: argparse.Namespace, faultpoints: bool) -> Iterator[Result]:
    env = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "A2A_FAULTS_BUILD": str(options.build)}
    if faultpoints:
        env["LD_PRELOAD"] = str(fault_library(options.build))
    command = [sys.executable, "-m", "tests.faults.stage", json.dumps(job)]
    with subprocess.Popen(command, cwd=ROOT, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as stage:
        assert stage.stdout is not None
        try:
            for line in stage.stdout:
                yield Result(**json.loads(line))
        finally:
            stage.kill()


def machine() -> dict[str, Any]:
    import a2a

    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = [line.split(":")[1].strip() for line in lines if "model name" in line]
    return {
        "cpus": len(os.sched_getaffinity(0)),
        "cpu": model[0] if model else platform.machine(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "a2a": a2a.__version__,
        "load": round(os.getloadavg()[0], 1),
    }


def run(options: argparse.Namespace) -> report.Card:
    options.json.parent.mkdir(parents=True, exist_ok=True)
    card = report.Card([report.command(options)], machine())
    print(report.HEADER, flush=True)
    for result in inject(chosen(options), options):
        card.results.append(result)
        card.save(options.json)  # what there is survives an end from outside
        print(report.line(result), flush=True)
    if options.peer:
        from .peers.compare import compare

        card.comparison = compare(options)
        print(report.comparison_table(card.comparison))
    return card


def main(arguments: Sequence[str] | None = None) -> int:
    """0 when every row that ran met its target."""
    options = parse(arguments)
    if options.list:
        print("\n".join(f"{row.family:14} {row.name}" for row in load().values()))
        return 0
    if options.load:
        card = report.Card.load(options.load)
        print("\n".join([report.HEADER, *map(report.line, card.results)]))
    else:
        card = run(options)
        card.save(options.json)
    page = ROOT / "docs" / "design" / "reliability.md"
    target = options.render or (page if options.full and not options.only else None)
    if target:
        target.write_text(report.markdown(card, options.note))
    missed = [result.row for result in card.results if not result.passed and not result.not_run]
    print(f"{len(card.results)} rows, {sum(r.n for r in card.results)} faults; missed: {', '.join(missed) or 'none'}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
