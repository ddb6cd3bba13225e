"""On GPUs: a2a beside torch.distributed over NCCL, in the same ranks, taking turns.

    python benchmarks/gpu.py                       # one rank, and as many as there are GPUs, or two that share one
    python benchmarks/gpu.py --ranks 1 4 --save    # also writes text and JSON to benchmarks/results
    python benchmarks/gpu.py --own-time            # without a GPU: the first part alone

Every call is enqueued behind something that holds its stream up. So the host's time is that of the call alone, the
device's time is that of the exchange alone, and a call that waits for the device is seen: #sync counts those. Inputs
are rewritten before and outputs are checked after each iteration. Columns as in nccl-tests; both times are the slowest
rank's medians, and algbw and busbw come from the device's. Several ranks on one GPU show that the results are right,
and what a call costs the host; how long it takes there says nothing about several GPUs.

Equal parts and all-gathers are measured beside the same work as a group of sends and receives, `a2a-group`: whether
NCCL's own calls, which a2a makes for them, are the faster ones.

Before that: what an exchange costs a2a itself, outside the calls of CUDA and NCCL, in eight ranks of which one measures
at a time, with libraries in their place that return at once; and how often it calls which function.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "tests" / "gpu"), str(HERE.parent / "tests" / "python" / "support")]

import cudart  # noqa: E402
import gpu_own_time  # noqa: E402
import gpu_rank  # noqa: E402
import gpu_ranks  # noqa: E402
from results import host_facts  # noqa: E402

import a2a  # noqa: E402
from a2a import frameworks  # noqa: E402
from a2a._core import library_of  # noqa: E402
from a2a.conformance import devices  # noqa: E402

RESULTS = HERE / "results"
GRACE_SECONDS = 40.0
"""For ranks to start and to finish the size that they are at."""
TARGETS = "a2a's own time: 3 us unplanned, 1 us planned; host: 1/2 of torch's, planned 1/4; device: 1.02 of torch's"


def facts() -> dict[str, str]:
    """What was measured, and on what."""
    asked = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    try:
        smi = subprocess.run(asked, capture_output=True, text=True, check=False, timeout=60).stdout.strip()
    except OSError:
        smi = ""
    found = {
        "command": shlex.join(["python", *sys.argv]),
        **{name: str(value) for name, value in host_facts().items()},
        "a2a": a2a.__version__,
        "GPU, driver, memory": smi.replace("\n", "; ") or "no nvidia-smi",
    }
    try:
        found["NCCL"] = library_of("nccl")
    except a2a.Error as error:
        found["NCCL"] = str(error).partition(";")[0]
    if "torch" in frameworks.installed():
        import torch

        found["torch"] = f"{torch.__version__}, CUDA {torch.version.cuda}"
        if torch.cuda.is_available():
            found["torch's NCCL"] = ".".join(map(str, torch.cuda.nccl.version()))
    else:
        found["torch"] = "not installed"
    if devices.look("cuda").double:
        found["NOT A GPU"] = "test doubles of CUDA and NCCL: times on the device mean nothing"
    return found


def sizes(options: argparse.Namespace) -> list[int]:
    found, size = [], options.b
    while size < options.e:
        found.append(size)
        size *= options.f
    return [*found, options.e]


def table(ranks: int, points: list[dict[str, Any]]) -> Iterator[str]:
    """A line for each operation, size and contender."""
    head = f"{'size(B)':>11} {'count':>11} {'type':>6}  {'operation':<9} {'call':<9}"
    head += f" {'host(us)':>9} {'device(us)':>10} {'algbw':>8} {'busbw':>8} {'#wrong':>6} {'#sync':>5}"
    yield f"#{head} {'host/torch':>10} {'dev/torch':>9}"
    for point in sorted(points, key=lambda point: gpu_rank.OPERATIONS.index(point["operation"])):
        peer = point["calls"].get("torch")
        for name, call in point["calls"].items():
            line = f" {point['size']:>11} {point['count']:>11} {'int64':>6}  {point['operation']:<9} {name:<9}"
            line += f" {call['host_us']:>9.2f}"
            device = call["device_us"]
            if device:
                algbw = point["size"] / device / 1e3
                line += f" {device:>10.2f} {algbw:>8.3f} {algbw * (ranks - 1) / ranks:>8.3f}"
            else:
                line += f" {'-':>10} {'-':>8} {'-':>8}"
            line += f" {call['wrong']:>6} {call['sync']:>5}"
            if peer and name != "torch":
                line += f" {call['host_us'] / peer['host_us']:>10.2f} {device / peer['device_us']:>9.3f}"
            yield line


def exchanges(ranks: int, options: argparse.Namespace, framework: str) -> dict[str, Any]:
    """The points of the table, or why there is none."""
    for name, value in (gpu_ranks.sharing() if ranks > options.gpus else {}).items():
        os.environ[name] = value
    seconds = options.seconds / len(options.ranks)
    arguments = (framework, sizes(options), options.rounds, seconds)
    try:
        told = a2a.spawn(gpu_rank.measure, ranks, *arguments, timeout=seconds + GRACE_SECONDS)
    except a2a.Error as error:
        return {"ranks": ranks, "failed": str(error)}
    return {"ranks": ranks, **told[0]}


def torch_devices() -> int:
    return frameworks.load("torch", "cuda").devices() if "torch" in frameworks.installed() else 0


def choose(options: argparse.Namespace) -> str:
    """Whose tensors to measure with; "" where there is no GPU."""
    found = devices.look("cuda")
    if found.missing:
        reason = found.missing.partition(";")[0]
        print(f"# skipped: no GPU that a2a can use: {reason}")
        return ""
    torch = 0 if found.double else torch_devices()
    if not torch:
        print("# without torch.distributed: " + ("it knows no doubles" if found.double else "no Torch that sees a GPU"))
    options.gpus = torch or cudart.devices()
    return "torch" if torch else "driver"


class Report:
    """What is printed, and the same as text and JSON in a folder, if there is one."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self.lines: list[str] = []
        self.results: dict[str, Any] = {}

    def say(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.lines.append(line)
            print(line, flush=True)

    def save(self) -> None:
        """After each part, in case that a later one does not end."""
        if self.folder:
            self.folder.mkdir(parents=True, exist_ok=True)
            stem = self.folder / f"gpu-{datetime.date.today().isoformat()}"
            stem.with_suffix(".txt").write_text("\n".join(self.lines) + "\n")
            stem.with_suffix(".json").write_text(json.dumps(self.results, indent=1) + "\n")


def one_group(report: Report, ranks: int, options: argparse.Namespace, framework: str) -> bool:
    """Measures and reports so many ranks; whether everything was right."""
    found = exchanges(ranks, options, framework)
    report.results["exchanges"].append(found)
    report.say([f"\n# {ranks} ranks on {options.gpus} GPUs; tensors of {framework}"])
    if "failed" in found:
        report.say([f"# failed: {found['failed']}"])
        return False
    report.say(table(ranks, found["points"]))
    if found.get("torch refused"):
        report.say([f"# without torch.distributed: {found['torch refused']}"])
    if found["left"]:
        report.say([f"# not measured for want of time: {', '.join(found['left'])}"])
    report.save()
    try:
        found["split"] = gpu_own_time.split(ranks)
        report.say(gpu_own_time.report_split(ranks, found["split"]))
    except a2a.Error as error:
        report.say([f"# where the host's time goes is not known: {error}"])
        return False
    ours = [call for point in found["points"] for name, call in point["calls"].items() if name != "torch"]
    return not any(call["wrong"] or call["sync"] for call in ours)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--ranks", type=int, nargs="+", help="default: 1, and all GPUs or 2")
    parser.add_argument("-b", type=int, default=8, help="smallest size: bytes that a rank sends in all")
    parser.add_argument("-e", type=int, default=256 << 20, help="largest size: bytes that a rank sends in all")
    parser.add_argument("-f", type=int, default=8, help="factor between sizes")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=120, help="for the exchanges in all")
    parser.add_argument("--own-time", action="store_true", help="only what needs no GPU: a2a's own time")
    parser.add_argument("--save", type=Path, nargs="?", const=RESULTS, metavar="FOLDER", help="default: %(const)s")
    options = parser.parse_args()

    report = Report(options.save)
    report.results = {"facts": facts(), "own time": gpu_own_time.idle(torch_devices() > 0), "exchanges": []}
    report.say(f"# {name}: {value}" for name, value in report.results["facts"].items())
    report.say([f"# aims: {TARGETS}"])
    report.say(gpu_own_time.report_idle(report.results["own time"]))
    good, framework = True, "" if options.own_time else choose(options)
    report.save()
    if framework:
        options.ranks = options.ranks or [1, max(2, options.gpus)]
        for ranks in options.ranks:
            good = one_group(report, ranks, options, framework) and good
            report.save()
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
