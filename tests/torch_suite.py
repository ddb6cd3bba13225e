"""torch's own tests of torch.distributed, those of host tensors, on the backend "a2a" and on Gloo:
``python -m tests.torch_suite --help``, from the root of a checkout, with expecttest installed beside torch.

They are those of the installed wheel, ``torch/testing/_internal/distributed/distributed_test.py``. Each forks its
ranks. Many ask for a backend by name; under "a2a" they are told "gloo", and those of the all-to-all, which torch knows
of MPI alone on the host, "mpi"."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
import tempfile
import unittest
from collections import Counter
from collections.abc import Sequence
from typing import Any

TESTS = "torch.testing._internal.distributed.distributed_test"
BACKENDS, WORLDS = ("a2a", "gloo"), (3, 4)
SECONDS = 90  # of one test; torch gives its longest ones more
# What torch's function refuses before 2.14 for every backend but Gloo has another one in a2a.torch.
OURS = ("monitored_barrier",)
# Torch 2.14 calls every backend that is not its own "custom" in the data that DDP logs.
NAMED = ("test_ddp_logging_data_cpu",)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.torch_suite", description=__doc__)
    parser.add_argument("--backend", nargs="+", default=BACKENDS, choices=BACKENDS)
    parser.add_argument("--world", nargs="+", type=int, default=WORLDS, help="how many ranks")
    parser.add_argument("-k", default="", metavar="A,B", help="tests whose name contains one of these")
    parser.add_argument("--hosts", type=int, default=1, help="on how many hosts a2a takes its ranks to be")
    parser.add_argument("--piece", default="1/1", metavar="N/OF", help="every OF-th test, from the N-th on")
    parser.add_argument("--rank-tests", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.rank_tests:
        backend, size, told = options.rank_tests
        _run_tests(backend, int(size), told, options)
        return 0
    worse = False
    for size in options.world:
        found = {backend: _results(backend, size, options) for backend in options.backend}
        for backend, results in found.items():
            counts = Counter(result["state"] for result in results.values())
            print(f"{size} ranks, {backend}: " + ", ".join(f"{n} {state}" for state, n in sorted(counts.items())))
            for name, result in results.items():
                if result["state"] == "failed":
                    print(f"  {name}: {result['words']}")
        worse |= _compare(size, found)
    return int(worse)


def _results(backend: str, size: int, options: argparse.Namespace) -> dict[str, dict[str, str]]:
    """Of each test that the backend, under one of the names that it is told, does not skip."""
    results: dict[str, dict[str, str]] = {}
    for told in ("gloo", "mpi"):
        arguments = ["--rank-tests", backend, str(size), told, "-k", options.k, "--piece", options.piece]
        arguments += ["--hosts", str(options.hosts)]
        command = [sys.executable, "-m", "tests.torch_suite", *arguments]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
            assert process.stdout is not None
            for line in process.stdout:
                if not line.startswith('{"name"'):
                    continue
                result = json.loads(line)
                before = results.get(result["name"], {"state": "skipped"})
                if before["state"] == "skipped":
                    results[result["name"]] = result
                print(f"{size} {backend} as {told}: {result['name']} {result['state']}", file=sys.stderr, flush=True)
    return results


def _compare(size: int, found: dict[str, dict[str, dict[str, str]]]) -> bool:
    """Whether a test that passes on Gloo does not on a2a."""
    if set(found) != set(BACKENDS):
        return False
    lost = [name for name, result in found["gloo"].items()
            if result["state"] == "passed" != found["a2a"].get(name, {"state": "absent"})["state"]]  # fmt: skip
    gained = [name for name, result in found["a2a"].items()
              if result["state"] == "passed" != found["gloo"].get(name, {"state": "absent"})["state"]]  # fmt: skip
    print(f"{size} ranks: on Gloo alone pass {lost or 'none'}; on a2a alone pass {gained or 'none'}")
    return bool(set(lost) - set(NAMED))


def _run_tests(backend: str, size: int, told: str, options: argparse.Namespace) -> None:
    """Prints a line for each."""
    module = _module(backend, size, told)
    torch = module.torch

    class Suite(module.TestDistBackend, module.DistributedTest._DistTestBase):  # type: ignore[misc]
        def setUp(self) -> None:
            super().setUp()
            self._start_processes(torch.multiprocessing.get_context("fork").Process)

        @classmethod
        def _run(cls, rank: int, *arguments: Any, **named: Any) -> None:
            if options.hosts > 1:  # adjacent ranks share a host
                os.environ |= {"A2A_HOSTS": f"host{rank * options.hosts // size}", "A2A_TRUST_STORE": "1"}
            super()._run(rank, *arguments, **named)

    Suite.__module__ = "__main__"
    names = unittest.TestLoader().getTestCaseNames(Suite)
    if told == "mpi":
        names = [name for name in names if "all_to_all" in name]
    chosen = [name for name in names if not options.k or any(word in name for word in options.k.split(","))]
    first, step = map(int, options.piece.split("/"))
    for name in chosen[first - 1 :: step]:
        outcome = unittest.TestResult()
        Suite(name).run(outcome)
        print(json.dumps({"name": name} | _state(outcome)), flush=True)


def _module(backend: str, size: int, told: str) -> Any:
    os.environ |= {"BACKEND": told, "WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": "1"}
    os.environ["INIT_METHOD"] = f"file://{tempfile.mkdtemp()}/shared"
    common = importlib.import_module("torch.testing._internal.common_distributed")
    common.TIMEOUT_DEFAULT = SECONDS
    module: Any = importlib.import_module(TESTS)
    if backend == "a2a":
        ours = importlib.import_module("a2a.torch")
        if not hasattr(ours, "BackendA2A"):
            for name in OURS:
                setattr(module.dist, name, getattr(ours, name))
        module.dist.Backend.backend_capability["a2a"] = ["cpu"]
    module.BACKEND = _Backend(backend)
    module.BACKEND.told = told
    return module


class _Backend(str):
    """The backend's name, which is also the one that tests ask for."""

    told: str

    def __eq__(self, other: object) -> bool:
        return str.__eq__(self, other) is True or other == self.told

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = str.__hash__


def _state(outcome: unittest.TestResult) -> dict[str, str]:
    if outcome.skipped:
        return {"state": "skipped", "words": outcome.skipped[0][1]}
    failures = outcome.failures + outcome.errors
    if not failures:
        return {"state": "passed", "words": ""}
    lines = [line.strip() for line in failures[0][1].splitlines() if line.strip()]
    said = [line for line in lines if "Error" in line.partition(":")[0]]
    return {"state": "failed", "words": (said or lines)[-1][:300]}


if __name__ == "__main__":
    sys.exit(main())
