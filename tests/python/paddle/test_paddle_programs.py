"""Whole programs with a2a.paddle, under the launchers that start them: the example, the documentation's programs, and
the table of calls."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from sample import with_full

pytest.importorskip("paddle")
import paddle_calls

FULL = pytest.mark.full

ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.timeout(110)

PROGRAM = """
import paddle
import a2a.paddle as dist

dist.init_parallel_env()
rank, size = dist.get_rank(), dist.get_world_size()
out = paddle.empty([size], "int64")
dist.alltoall_single(out, paddle.arange(size) + size * rank)
assert out.tolist() == [size * peer + rank for peer in range(size)]
if size > 1:
    total = paddle.ones([1])
    dist.all_reduce(total)
    assert float(total.item()) == size
    group = dist.new_group([1, 0])
    pair = paddle.empty([2], "int64")
    dist.alltoall_single(pair, paddle.to_tensor([rank, rank]), group=group)
    assert rank > 1 or pair.tolist() == [0, 1]
with open(f"{rank}-of-{size}", "w") as done:
    done.write("done")
"""


def run(program: Path, *launcher: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *launcher, program.name]
    environment = {**os.environ, **variables}
    return subprocess.run(
        command, cwd=program.parent, env=environment, capture_output=True, text=True, timeout=100, check=False
    )


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM, encoding="utf-8")
    return path


def require_done(program: Path, done: subprocess.CompletedProcess[str], size: int) -> None:
    finished = sorted(path.name for path in program.parent.glob("*-of-*"))
    assert finished == [f"{rank}-of-{size}" for rank in range(size)], done.stdout + done.stderr
    assert done.returncode == 0


LAUNCHERS = {
    "alone": ((), 1),
    "a2a run": (("-m", "a2a.cli", "run", "-n", "3"), 3),
    "launch": (("-m", "paddle.distributed.launch", "--nproc_per_node", "2", "--backend", "gloo"), 2),
    "launch without backend": (("-m", "paddle.distributed.launch", "--nproc_per_node", "2"), 2),
}


@pytest.mark.parametrize("launcher", ["launch", *with_full(name for name in LAUNCHERS if name != "launch")])
def test_launcher(program: Path, launcher: str) -> None:
    command, size = LAUNCHERS[launcher]
    require_done(program, run(program, *command), size)


ENVIRONMENTS = {
    "mpiexec": "OMPI_COMM_WORLD_RANK={rank} OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_SIZE=2 PMIX_NAMESPACE={job}",
    "srun": "SLURM_PROCID={rank} SLURM_NTASKS=2 SLURM_STEP_ID=0 SLURM_JOB_ID={job}",
    "torchrun": "RANK={rank} WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=1 TORCHELASTIC_RUN_ID={job}",
}


@pytest.mark.full
@pytest.mark.parametrize("launcher", ENVIRONMENTS)
def test_environment_of_a_launcher(program: Path, launcher: str) -> None:
    """What other launchers give to two ranks."""
    ranks = []
    for rank in range(2):
        words = ENVIRONMENTS[launcher].format(rank=rank, job=f"{os.getpid()}-{launcher}").split()
        environment = {**os.environ, **dict(word.split("=") for word in words)}
        ranks.append(subprocess.Popen([sys.executable, program.name], cwd=program.parent, env=environment))
    try:
        assert [rank.wait(timeout=100) for rank in ranks] == [0, 0]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()


FLEET = """
import paddle
import a2a.paddle
from paddle.distributed import fleet

a2a.paddle.enable()
strategy = fleet.DistributedStrategy()
strategy.hybrid_configs = {"dp_degree": 2, "mp_degree": 1, "pp_degree": 1, "sharding_degree": 1}
fleet.init(is_collective=True, strategy=strategy)
paddle.seed(3)
layer = paddle.nn.Linear(2, 1)
model = fleet.distributed_model(layer)
rank = fleet.worker_index()
model(paddle.full([1, 2], float(rank))).sum().backward()
assert layer.weight.grad.flatten().tolist() == [0.5, 0.5], layer.weight.grad
assert paddle.distributed.get_world_size() == fleet.worker_num() == 2
with open(f"{rank}-of-2", "w") as done:
    done.write("done")
"""

FLEETS_LAUNCHERS = {
    "a2a run": ("-m", "a2a.cli", "run", "-n", "2"),
    "torchrun": ("-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "0"),
    "launch": ("-m", "paddle.distributed.launch", "--nproc_per_node", "2", "--backend", "gloo"),
}


@pytest.mark.parametrize("launcher", ["a2a run", *with_full(name for name in FLEETS_LAUNCHERS if name != "a2a run")])
def test_fleet_under_any_launcher(program: Path, launcher: str) -> None:
    if launcher == "torchrun":
        pytest.importorskip("torch")
    program.write_text(FLEET, encoding="utf-8")
    require_done(program, run(program, *FLEETS_LAUNCHERS[launcher]), 2)


ALONE = """
import paddle
import paddle.distributed as dist
from paddle.distributed import fleet

{call}
total = paddle.ones([1])
dist.all_reduce(total)
assert float(total.item()) == dist.get_world_size() == 2
with open(f"{{dist.get_rank()}}-of-2", "w") as done:
    done.write("done")
"""


@pytest.mark.full
@pytest.mark.parametrize("call", ["dist.init_parallel_env()", "fleet.init(is_collective=True)"])
def test_paddle_alone_under_a2a_run(program: Path, call: str) -> None:
    """Without a2a.paddle, on Gloo."""
    program.write_text(ALONE.format(call=call), encoding="utf-8")
    require_done(program, run(program, "-m", "a2a.cli", "run", "-n", "2"), 2)


@pytest.mark.full
def test_spawn(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    body = "\n".join(f"    {line}" for line in PROGRAM.strip().splitlines()[2:])
    text = f"import paddle\nimport a2a.paddle as dist\n\ndef main():\n{body}\n\n"
    path.write_text(text + "if __name__ == '__main__':\n    dist.spawn(main, nprocs=2, backend='gloo')\n")
    require_done(path, run(path), 2)


@pytest.mark.full
@pytest.mark.skipif(not (ROOT / "examples").exists(), reason="no source tree beside the tests")
def test_example_is_as_good_as_the_dense_layer() -> None:
    done = run(ROOT / "examples" / "moe_paddle.py", "-m", "a2a.cli", "run", "-n", "4")
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(re.findall(r"rank (\d): loss .* as of the dense layer", done.stdout)) == list("0123")


@pytest.mark.full
@pytest.mark.skipif(not (ROOT / "docs").exists(), reason="no source tree beside the tests")
def test_programs_of_the_documentation(tmp_path: Path) -> None:
    # All in one program, because starting ranks is what takes long.
    blocks = []
    for page in ("paddle.md", "paddle.zh.md"):
        text = (ROOT / "docs" / "frameworks" / page).read_text("utf-8")
        blocks += re.findall(r"^```python\n(.*?)^```$", text, re.S | re.M)
    assert len(blocks) == 10
    path = tmp_path / "program.py"
    path.write_text("\n".join(blocks), encoding="utf-8")
    done = run(path, "-m", "a2a.cli", "run", "-n", "2")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.full
@pytest.mark.skipif(not (ROOT / "docs").exists(), reason="no source tree beside the tests")
def test_table_of_calls() -> None:
    works = paddle_calls.column("a2a")
    assert works == ["works"] * len(paddle_calls.CALLS)
    for page in ("paddle.md", "paddle.zh.md"):
        text = (ROOT / "docs" / "frameworks" / page).read_text("utf-8")
        rows = re.findall(r"^\| (`.*) \| .* \| (.*) \|$", text, re.M)
        assert [call for call, _ in rows] == list(paddle_calls.CALLS)
