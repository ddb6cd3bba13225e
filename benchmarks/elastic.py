"""How long a group is gone when it changes: ``python benchmarks/elastic.py [--gloo PYTHON]``.

Two figures, each the median over rounds, with its range:

  death      of four ranks one is killed in an operation, and one that runs already takes its place: from the kill to
             the end of the first operation of the next group, on the rank that is last
  reconnect  four ranks connect in the next generation, with nothing changed

``--gloo`` names an interpreter with torch 2.14 or later. Gloo's reconfigure then runs in turn with a2a, round by round.
The results go to ``--json`` and, with matplotlib, to ``--plot``."""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

RANKS = 4
FIGURES = ("death", "reconnect")


# ---- a member: a process that takes commands on stdin, and answers on stdout ---------------------------------------


class A2A:
    def __init__(self, number: int, port: int) -> None:
        import a2a

        self.endpoint, self.errors = a2a.Endpoint(), (a2a.Error,)
        self.comm: Any = None

    def handle(self) -> str:
        return self.endpoint.handle

    def connect(self, handles: list[str], generation: int) -> None:
        self.comm = self.endpoint.connect(handles, generation, timeout=30)

    def operate(self) -> float:
        import numpy as np

        value = np.ones(4)
        self.comm.allreduce(value)
        return float(value[0])


class Gloo:
    """``number`` 0 serves the store at which all meet, and is never killed."""

    def __init__(self, number: int, port: int) -> None:
        from datetime import timedelta

        import torch
        import torch.distributed as dist

        self.torch, self.dist, self.errors = torch, dist, (RuntimeError,)
        self.seconds = timedelta(seconds=30)
        store = dist.TCPStore("127.0.0.1", port, RANKS + 1, is_master=number == 0, wait_for_workers=False)
        dist.init_process_group(
            "gloo",
            store=store,
            rank=number,
            world_size=RANKS + 1,
            enable_reconfigure=True,
            timeout=timedelta(seconds=10),
        )

    def handle(self) -> str:
        return self.dist._get_reconfigure_handle()

    def connect(self, handles: list[str], generation: int) -> None:
        self.dist._reconfigure(generation, handles, timeout=self.seconds).wait()

    def operate(self) -> float:
        value = self.torch.ones(4)
        self.dist.all_reduce(value)
        return float(value[0])


def serve(kind: str, number: int, port: int) -> None:
    member = {"a2a": A2A, "gloo": Gloo}[kind](number, port)
    answers, sys.stdout = sys.stdout, sys.stderr  # a library may print
    print(json.dumps({"handle": member.handle()}), file=answers, flush=True)
    for line in sys.stdin:
        task = json.loads(line)
        answer: dict[str, Any] = {"error": ""}
        began = time.time()
        try:
            if "connect" in task:
                member.connect(task["connect"], task["generation"])
            answer["value"] = member.operate()
        except member.errors as error:
            answer["error"] = str(error)
        answer |= {"began": began, "ended": time.time(), "handle": member.handle()}
        print(json.dumps(answer), file=answers, flush=True)


# ---- the program that commands them --------------------------------------------------------------------------------


class Member:
    def __init__(self, kind: str, python: str, number: int, port: int) -> None:
        program = [python, __file__, "--serve", kind, str(number), str(port)]
        self.process = subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.handle: str = self.answer()["handle"]

    def tell(self, **task: Any) -> None:
        assert self.process.stdin
        print(json.dumps(task), file=self.process.stdin, flush=True)

    def answer(self) -> dict[str, Any]:
        assert self.process.stdout
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        self.handle = answer["handle"]
        return answer


def connect(members: list[Member], generation: int) -> tuple[float, float]:
    """Return when the first member began, and when the last one had done an operation."""
    for member in members:
        member.tell(connect=[one.handle for one in members], generation=generation)
    answers = [member.answer() for member in members]
    assert all(answer.get("value") == len(members) for answer in answers), answers
    return max(answer["began"] for answer in answers), max(answer["ended"] for answer in answers)


def measure(kind: str, python: str, reconnects: int) -> dict[str, float]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    members = [Member(kind, python, number, port) for number in range(RANKS + 1)]
    try:
        group, newcomer = members[:RANKS], members[RANKS]
        connect(group, 1)
        times = []
        for generation in range(2, 2 + reconnects):
            began, ended = connect(group, generation)
            times.append(ended - began)
        survivors, victim = group[:-1], group[-1]
        for member in survivors:
            member.tell()
        time.sleep(0.2)  # they wait in the operation
        killed = time.time()
        victim.process.send_signal(signal.SIGKILL)
        assert all(member.answer()["error"] for member in survivors)
        _, ended = connect([*survivors, newcomer], 2 + reconnects)
        return {"death": ended - killed, "reconnect": statistics.median(times)}
    finally:
        for member in members:
            member.process.kill()
            member.process.wait()


def plot(results: dict[str, dict[str, list[float]]], path: Path) -> None:
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 3))
    for row, (kind, figures) in enumerate(results.items()):
        middles = [1000 * statistics.median(figures[name]) for name in FIGURES]
        places = [place + (row - (len(results) - 1) / 2) * 0.35 for place in range(len(FIGURES))]
        bars = axes.barh(places, middles, height=0.32, label=kind)
        axes.bar_label(bars, labels=[f" {middle:,.1f} ms" for middle in middles])
    axes.set(xscale="log", yticks=range(len(FIGURES)), yticklabels=FIGURES, xlabel="milliseconds (shorter is better)")
    axes.margins(x=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.tight_layout()
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gloo", metavar="PYTHON", help="an interpreter with torch 2.14 or later")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--reconnects", type=int, default=20, help="of each round")
    parser.add_argument("--json", type=Path, help="where the figures go")
    parser.add_argument("--plot", type=Path, help="where the picture goes")
    parser.add_argument("--serve", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        kind, number, port = arguments.serve
        return serve(kind, int(number), int(port))
    pythons = {"a2a": sys.executable} | ({"gloo": arguments.gloo} if arguments.gloo else {})
    results: dict[str, dict[str, list[float]]] = {kind: {name: [] for name in FIGURES} for kind in pythons}
    for _ in range(arguments.rounds):
        for kind, python in pythons.items():
            for name, seconds in measure(kind, python, arguments.reconnects).items():
                results[kind][name].append(seconds)
    for name in FIGURES:
        for kind, figures in results.items():
            spread = sorted(1000 * seconds for seconds in figures[name])
            print(f"{name:10} {kind:5} {statistics.median(spread):10.2f} ms [{spread[0]:.2f}, {spread[-1]:.2f}]")
    if arguments.json:
        arguments.json.write_text(json.dumps({"cpus": os.cpu_count(), "seconds": results}, indent=1) + "\n")
    if arguments.plot:
        plot(results, arguments.plot)
    return None


if __name__ == "__main__":
    main()
