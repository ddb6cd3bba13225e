"""The documentation's examples under every launcher that needs nothing installed, and what starting a world refuses."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from commands import environment
from torch_worlds import true_backends

pytest.importorskip("torch")
pytestmark = pytest.mark.timeout(110)

EXAMPLES = Path(__file__).parents[1] / "support" / "torch_seed_examples.py"
LAUNCHERS = {
    "a2a run": ["-m", "a2a", "run", "-n", "4"],
    "torchrun": ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4"],
}


# Launcher and backend; without a backend the ranks of the launcher are used as they are.
WORLDS = [("a2a run", backend) for backend in ("", "gloo", "cpu:a2a")] + [
    ("torchrun", backend) for backend in ("", "a2a")
]


@pytest.mark.parametrize(
    ("launcher", "backend"),
    [WORLDS[0], *(pytest.param(*world, marks=pytest.mark.full) for world in WORLDS[1:])],
)
def test_documented_examples(launcher: str, backend: str) -> None:
    command = [sys.executable, *LAUNCHERS[launcher], str(EXAMPLES), *([backend] if backend else [])]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("done") == 4
    assert ("does not belong to the given group" in done.stderr) == (done.stderr != "")


@pytest.mark.full
def test_the_expert_parallel_example_is_equal_to_the_dense_layer() -> None:
    example = Path(__file__).parents[3] / "examples" / "torch_expert_parallel.py"
    if not example.exists():
        pytest.skip("no source tree beside the tests")
    command = [sys.executable, *LAUNCHERS["a2a run"], str(example)]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("are those of the dense layer") == 4


def python(code: str, **changes: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        env=environment(**changes),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.skipif(true_backends(), reason="Torch 2.14 makes both backends")
def test_a_mixture_of_backends_is_refused_with_a_reason() -> None:
    done = python(
        "import torch.distributed as dist, a2a.torch\n"
        "for backend in ('cpu:a2a,cuda:nccl', 'cpu:gloo,cuda:a2a'):\n"
        "    try:\n"
        "        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)\n"
        "    except ValueError as error:\n"
        "        print(type(error).__name__, error)\n"
        "dist.init_process_group('a2a', store=dist.HashStore(), rank=0, world_size=1)\n"
        "print(dist.get_backend())"
    )
    lines = done.stdout.splitlines()
    assert len(lines) == 3, done.stdout + done.stderr
    assert lines[0].startswith('InvalidArgumentError backend "cpu:a2a,cuda:nccl" cannot be had: before Torch 2.14')
    assert lines[1].startswith('InvalidArgumentError backend "cpu:gloo,cuda:a2a" cannot be had: before Torch 2.14')
    assert lines[2] == "a2a"


def test_every_public_name_of_torch_distributed_is_there() -> None:
    done = python(
        "import torch.distributed as theirs, a2a.torch as ours\n"
        "names = [name for name in dir(theirs) if not name.startswith('_')]\n"
        "assert len(names) > 100\n"
        "print([name for name in names if not hasattr(ours, name)])\n"
        "print(ours.ReduceOp is theirs.ReduceOp, set(names) <= set(dir(ours)))\n"
        "from a2a.torch import DeviceMesh, all_reduce\n"
        "import inspect\n"
        "pairs = {n: (getattr(ours, n), getattr(theirs, n)) for n in names if n != 'reduce_op'}\n"
        "mine = [n for n, (one, other) in pairs.items() if inspect.isfunction(one) and one is not other]\n"
        "print(len(mine))\n"
        "print([n for n in mine if list(inspect.signature(getattr(ours, n)).parameters)"
        " != list(inspect.signature(getattr(theirs, n)).parameters)])\n"
    )
    assert done.stdout == "[]\nTrue True\n26\n[]\n", done.stdout + done.stderr


def test_without_a_launcher_the_world_is_one_rank() -> None:
    done = python(
        "import torch, a2a.torch as dist\n"
        "output = torch.empty(3)\n"
        "dist.all_to_all_single(output, torch.arange(3.))\n"
        "print(output.tolist(), dist.get_rank(), dist.get_world_size(), dist.is_initialized())\n"
        "try: dist.init_process_group('gloo')\n"
        "except ValueError as error: print('RANK' in str(error))"
    )
    assert done.stdout == "[0.0, 1.0, 2.0] 0 1 True\nTrue\n", done.stdout + done.stderr


def test_importing_takes_no_time_beside_torch() -> None:
    done = python(
        "import time, torch, torch.distributed\n"
        "started = time.perf_counter()\nimport a2a.torch\nprint(time.perf_counter() - started)"
    )
    assert float(done.stdout) < 1.0, done.stdout + done.stderr


@pytest.mark.full
def test_dtensor_may_be_imported_before() -> None:
    """Afterwards is the other tests' order."""
    done = python(
        "import torch.distributed.tensor.placement_types as types, a2a.torch\n"
        "print(types.shard_dim_alltoall.__module__)"
    )
    assert done.stdout == "a2a.torch._plugins.dtensor\n", done.stdout + done.stderr


@pytest.mark.full
def test_a_plain_program_starts_under_a2a_run(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import a2a.torch, torch\nimport torch.distributed as dist\n"
        "dist.init_process_group('a2a')\n"
        "tensor = torch.ones(1)\ndist.all_reduce(tensor)\nprint(tensor.item(), dist.get_node_local_rank())\n"
        "dist.destroy_process_group()"
    )
    command = [sys.executable, "-m", "a2a", "run", "-n", "2", str(program)]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=100, check=False)
    assert sorted(done.stdout.splitlines()) == ["[0] 2.0 0", "[1] 2.0 1"], done.stdout + done.stderr
