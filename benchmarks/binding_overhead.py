"""What a call costs before any byte travels: steps of the Python binding on a communicator of one rank.

``python benchmarks/binding_overhead.py [--json FILE] [--baseline FILE --tolerance 1.5]``: nanoseconds per call for
NumPy and, where installed, Torch. With a baseline, steps that became slower than ``tolerance`` times are listed and the
exit status is 1.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import timeit
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

Step = Callable[[], object]
ROWS = 4
REPEATS = 9
SECONDS_PER_REPEAT = 0.02


def numpy_rows() -> Any:
    return np.zeros((ROWS, 2), dtype=np.float32)


def torch_rows() -> Any:
    import torch

    return torch.zeros((ROWS, 2), dtype=torch.float32)


def steps(comm: Any, describe: Callable[[Any], object], send: Any, recv: Any) -> dict[str, Step]:
    """Named calls, from a property access to the dearest one. They differ in one thing at a time."""
    counts, array, displs = [ROWS], np.array([ROWS]), [0]
    plan = comm.plan_alltoallv(send, counts, recv, counts)
    return {
        "comm.rank": lambda: comm.rank,
        "describe one tensor": partial(describe, send),
        "plan.run": partial(plan.run, send, recv),
        "plan.start + wait": lambda: plan.start(send, recv).wait(),
        "alltoall": partial(comm.alltoall, send, recv),
        "alltoallv, counts in lists": partial(comm.alltoallv, send, counts, recv, counts),
        "alltoallv, counts in arrays": partial(comm.alltoallv, send, array, recv, array),
        "alltoallv, displacements": partial(comm.alltoallv, send, counts, recv, counts, displs, displs),
        "alltoallv async + wait": lambda: comm.alltoallv(send, counts, recv, counts, async_op=True).wait(),
        "allgather": partial(comm.allgather, send, recv),
        "global_scatter, out given": partial(comm.global_scatter, send, counts, counts, out=recv),
        "global_scatter, out allocated": partial(comm.global_scatter, send, counts, counts),
        "exchange": partial(comm.exchange, send, counts),
        "plan_alltoallv": partial(comm.plan_alltoallv, send, counts, recv, counts),
        "barrier": comm.barrier,
    }


def nanoseconds(step: Step) -> float:
    """The fastest of several repeats: everything that disturbs a call on one rank makes it slower."""
    timer = timeit.Timer(step)
    calls, seconds = timer.autorange()
    calls = max(1, int(calls * SECONDS_PER_REPEAT / seconds))
    return min(timer.repeat(REPEATS, calls)) / calls * 1e9


def measure() -> dict[str, dict[str, float]]:
    """Nanoseconds by framework and step."""
    import a2a  # type: ignore[import-not-found, unused-ignore]
    from a2a import _core  # type: ignore[import-not-found, unused-ignore]

    frameworks = {"numpy": numpy_rows}
    if importlib.util.find_spec("torch"):
        frameworks["torch"] = torch_rows
    figures = {}
    with a2a.init(rank=0, size=1) as comm:
        for framework, rows in frameworks.items():
            named = steps(comm, _core.describe_tensor, rows(), rows())
            figures[framework] = {name: nanoseconds(step) for name, step in named.items()}
    return figures


def slower(figures: dict[str, dict[str, float]], baseline: dict[str, dict[str, float]], tolerance: float) -> list[str]:
    """Steps that take more than ``tolerance`` times what they took in ``baseline``."""
    return [
        f"{framework}: {name}: {now:.0f} ns, was {then:.0f} ns"
        for framework, named in figures.items()
        for name, now in named.items()
        if (then := baseline.get(framework, {}).get(name)) and now > tolerance * then
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--baseline", type=Path, metavar="FILE")
    parser.add_argument("--tolerance", type=float, default=1.5)
    options = parser.parse_args(arguments)
    figures = measure()
    print(f"{'ns per call':<32}" + "".join(f"{framework:>10}" for framework in figures))
    for name in next(iter(figures.values())):
        print(f"{name:<32}" + "".join(f"{named[name]:>10.0f}" for named in figures.values()))
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n")
    if not options.baseline:
        return 0
    found = slower(figures, json.loads(options.baseline.read_text()), options.tolerance)
    print("\n".join(found) if found else f"no step is {options.tolerance:g} times slower than in {options.baseline}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
