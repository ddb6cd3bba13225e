"""How long trivial tests on two ranks take, with the mark ``ranks`` and with torch's MultiProcessTestCase, which starts
new processes for each test: ``python benchmarks/test_kit.py``. It wants expecttest for the latter.

Each takes turns: a run of the kit with all its tests, then one of torch's with a part of them. Seconds of whole runs of
pytest, with its start; median and range over the rounds. A test of either does one barrier."""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

KIT = """
import pytest

@pytest.mark.parametrize("number", range({tests}))
@pytest.mark.ranks(2)
def test_barrier(comm, number):
    comm.barrier()
"""
TORCH = """
import torch.distributed as dist
from torch.testing._internal.common_distributed import MultiProcessTestCase

class TestBarrier(MultiProcessTestCase):
    @property
    def world_size(self):
        return 2

    def setUp(self):
        super().setUp()
        self._spawn_processes()

def of_number(number):
    def test(self):
        store = dist.FileStore(self.file_name, self.world_size)
        dist.init_process_group("gloo", store=store, rank=self.rank, world_size=self.world_size)
        dist.barrier()
        dist.destroy_process_group()
    return test

for number in range({tests}):
    setattr(TestBarrier, f"test_{{number}}", of_number(number))
"""


def seconds_of(folder: Path, source: str, tests: int) -> float:
    (folder / "test_it.py").write_text(source.format(tests=tests))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "test_it.py"]
    began = time.monotonic()
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    took = time.monotonic() - began
    if f"{tests} passed" not in done.stdout:
        raise SystemExit(f"not all of {tests} tests passed:\n{done.stdout}{done.stderr}")
    return took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tests", type=int, default=200)
    parser.add_argument("--of-torch", type=int, default=20, help="tests of torch's in each round; 0: none")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    contenders = [("kit", KIT, options.tests), ("MultiProcessTestCase", TORCH, options.of_torch)]
    taken: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(options.rounds):
            for name, source, tests in contenders:
                if tests:
                    taken.setdefault(name, []).append(seconds_of(Path(folder), source, tests))
    print(f"{'':22} {'tests':>6} {'seconds':>22} {'ms a test':>10}")
    for name, _, tests in contenders:
        if name in taken:
            middle = statistics.median(taken[name])
            spread = f"{middle:.1f} [{min(taken[name]):.1f}, {max(taken[name]):.1f}]"
            print(f"{name:22} {tests:>6} {spread:>22} {1e3 * middle / tests:>10.0f}")


if __name__ == "__main__":
    main()
