"""Torch's own analysis reads what a2a has recorded, and finds what ranks did differently."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from commands import command, environment

import a2a

pytest.importorskip("torch")
pytestmark = pytest.mark.timeout(110)

BEGIN = """
import os, torch, torch.distributed as dist, a2a.torch
from datetime import timedelta
dist.init_process_group("a2a", timeout=timedelta(seconds=20))
rank, x = dist.get_rank(), torch.ones(6)
def parts():
    return [torch.ones(3), torch.ones(3)]
dist.all_reduce(x)
dist.broadcast(x, 1)
dist.reduce(x, 1)
dist.all_gather([torch.empty(6), torch.empty(6)], x)
dist.reduce_scatter(torch.empty(3), parts())
dist.gather(x, [torch.empty(6), torch.empty(6)] if rank == 0 else None, 0)
dist.scatter(torch.empty(3), parts() if rank == 1 else None, 1)
dist.all_to_all_single(torch.empty(6), x, [4, 2] if rank == 0 else [2, 4], [4, 2] if rank == 0 else [2, 4])
dist.barrier()
alone = dist.new_group([rank], use_local_synchronization=True)
dist.all_reduce(x, group=alone)
"""
MISTAKES = {
    "none": "pass",
    "operation": "dist.all_reduce(x) if rank == 0 else dist.broadcast(x, 0)",
    "size": "dist.all_reduce(torch.ones(4 + rank))",
    "dtype": "dist.all_reduce(torch.ones(4, dtype=torch.float64 if rank else torch.float32))",
    "rank": "os._exit(3) if rank else dist.all_reduce(x)",
}
WORDS = {
    "none": [],
    "operation": ["Culprit rank 1", "COLLECTIVE_TYPE_MISMATCH", "'all_reduce' does not match", "'broadcast'"],
    "size": ["Culprit rank 1", "SIZE_OR_SYNTAX_MISMATCH", "'[[4]]' does not match found input sizes: '[[5]]'"],
    "dtype": ["Culprit rank 1", "COLLECTIVE_DTYPE_MISMATCH", "Float", "Double"],
    "rank": ["Not all ranks joining collective", "missing ranks: {1}"],
}


def run(*arguments: str, **changes: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", *arguments]
    return subprocess.run(line, env=environment(**changes), capture_output=True, text=True, timeout=60, check=False)


OFTEN = ("operation", "rank")


@pytest.mark.parametrize(
    "mistake", [pytest.param(name, marks=() if name in OFTEN else pytest.mark.full) for name in MISTAKES]
)
def test_torch_finds_the_mistake(tmp_path: Path, mistake: str) -> None:
    program = tmp_path / "program.py"
    program.write_text(BEGIN + f"try:\n    {MISTAKES[mistake]}\nexcept Exception as error:\n    print(error)\n")
    line, records = command("run", "-n", "2", str(program)), tmp_path / "records"
    made = subprocess.run(line, env=environment(A2A_DUMP=str(records)), capture_output=True, timeout=60, check=False)
    assert (made.returncode == 0) == (mistake != "rank"), made.stderr
    written = run("a2a", "explain", str(records), "--flight-recorder", str(tmp_path / "traces"))
    assert written.stderr == f"a2a explain: 2 traces in {tmp_path / 'traces'}\n"
    found = run("torch.distributed.flight_recorder.fr_trace", str(tmp_path / "traces"))
    said = found.stdout + found.stderr
    assert found.returncode == 0, said
    assert all(word in said for word in WORDS[mistake]), said
    errors = [text for text in said.splitlines() if "has errors" in text or "sequence number" in text]
    assert [text for text in errors if "number: 10" in text] == errors
    assert bool(errors) == (mistake != "none"), said
    traces = [pickle.loads((tmp_path / "traces" / f"trace_{rank}").read_bytes()) for rank in range(2)]
    assert [one["record_id"] for one in traces[0]["entries"]] == list(range(len(traces[0]["entries"])))
    assert traces[0]["entries"][0]["frames"][0] == {"name": "<module>", "filename": str(program), "line": 8}


def test_records_that_are_none(tmp_path: Path) -> None:
    from a2a.torch import flight_recorder

    with pytest.raises(a2a.InvalidArgumentError, match="no records"):
        flight_recorder.write([tmp_path], tmp_path / "traces")
    done = run("a2a.torch.flight_recorder", str(tmp_path), str(tmp_path / "traces"))
    assert done.returncode == 1 and "there are no records of A2A_DUMP here" in done.stderr
