"""The records of A2A_DUMP, and what `a2a explain` makes of them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest
from commands import call, environment

from a2a import dump

# A program of a few ranks, each a process, which do what `body` says.
PROGRAM = """
import os, signal, sys, time
import numpy as np
import a2a

comm = a2a.init(timeout=float(sys.argv[1]))
r, n = comm.rank, comm.size

def numbers(counts):
    return np.zeros(sum(counts), np.float32)

try:
{body}
except a2a.Error as error:
    print(type(error).__name__, error, file=sys.stderr)
    os._exit(3)
"""


class Job:
    """A program under way."""

    def __init__(
        self, folder: Path, body: str, ranks: int = 3, timeout: float = 20, settings: dict[str, str] | None = None
    ):
        self.folder = folder / "dumps"
        self.program = folder / "program.py"
        self.program.write_text(PROGRAM.format(body=textwrap.indent(textwrap.dedent(body), "    ")))
        self.ranks = [
            subprocess.Popen(
                [sys.executable, self.program, str(timeout)],
                env=environment(A2A_JOB=str(folder), A2A_RANK=str(r), A2A_SIZE=str(ranks))
                | {"A2A_DUMP": str(self.folder)}
                | (settings or {}),
                stderr=subprocess.PIPE,
                text=True,
            )
            for r in range(ranks)
        ]

    def finish(self) -> list[str]:
        """Waits for all ranks and returns what they wrote on standard error."""
        return [rank.communicate(timeout=60)[1] for rank in self.ranks]

    def await_operation(self, number: int, ranks: int) -> None:
        """Until so many ranks have started it on the first communicator."""
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            records = [dump.read(path) for path in dump.find([self.folder])] if self.folder.is_dir() else []
            if sum(number in record.entries for record in records if record.label == "world") == ranks:
                return
            time.sleep(0.05)
        raise AssertionError(f"fewer than {ranks} ranks came to operation {number}")

    def explain(self) -> tuple[int, list[dict[str, Any]]]:
        done = call("explain", "--json", str(self.folder))
        return done.returncode, json.loads(done.stdout)

    def line_of(self, text: str) -> str:
        lines = self.program.read_text().splitlines()
        return f"{self.program}:{1 + next(i for i, line in enumerate(lines) if text in line)} in <module>"

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        for rank in self.ranks:
            if rank.poll() is None:
                rank.send_signal(signal.SIGCONT)
                rank.kill()
            rank.communicate()


def test_record_of_a_program_that_ends_well(tmp_path: Path) -> None:
    body = """
    comm.barrier()
    counts = [1 + r, 2, 0]
    comm.alltoallv(numbers(counts), counts, numbers([1 + p if r == 0 else 2 if r == 1 else 0 for p in range(n)]),
                   [1 + p if r == 0 else 2 if r == 1 else 0 for p in range(n)])
    pair = comm.split(0 if r < 2 else -1)
    if pair is not None:
        pair.close()
    comm.close()
    """
    with Job(tmp_path, body) as job:
        assert job.finish() == ["", "", ""]
        records = [dump.read(path) for path in dump.find([job.folder])]
        worlds = {record.rank: record for record in records if record.label == "world"}
        assert sorted(worlds) == [0, 1, 2] and len({record.group for record in worlds.values()}) == 1
        entry = worlds[1].entries[2]
        assert (entry.op, entry.dtype, entry.memory, entry.state) == ("alltoallv", "float32", "host", "finished")
        assert entry.sent == (8, 8, 0) and entry.expected == (8, 8, 8) and entry.unit_bytes == 4
        assert entry.site == job.line_of("comm.alltoallv(") and entry.counts_hash
        assert 0 < entry.ended - entry.started < 30 and abs(entry.started - time.time()) < 120
        assert {record.fate for record in records} == {"closed"}
        pairs = {record.rank: record for record in records if record.label.startswith("split #")}
        assert sorted(pairs) == [0, 1] and pairs[0].size == 2 and pairs[0].label.endswith(" of world")
        assert len({record.group for record in records}) == 2
        code, diagnoses = job.explain()
        assert code == 0 and [d["operation"] for d in diagnoses] == [0, 0]
        assert "no rank is stuck" in call("explain", str(job.folder)).stdout


def culprits(job: Job) -> tuple[dict[str, Any], list[int]]:
    code, diagnoses = job.explain()
    world = next(d for d in diagnoses if d["label"] == "world")
    assert code == 1
    return world, world["culprits"]


def test_another_count(tmp_path: Path) -> None:
    body = """
    for step in range(2):
        sent = [4, 4, 5] if (r, step) == (1, 1) else [4, 4, 4]
        comm.alltoallv(numbers(sent), sent, numbers([4] * n), [4] * n)
    """
    with Job(tmp_path, body) as job:
        assert [text.partition(" ")[0] for text in job.finish()] == ["", "MismatchError", "MismatchError"]
        world, ranks = culprits(job)
        assert world["operation"] == 2 and ranks == [1, 2]
        (finding,) = world["findings"]
        assert (
            "rank 1 sends 20 bytes (5 times 4) to rank 2" in finding and "which expects 16 bytes (4 times 4)" in finding
        )
        assert job.line_of("comm.alltoallv(") in finding


def test_another_operation(tmp_path: Path) -> None:
    body = """
    comm.barrier()
    if r == 2:
        comm.allgather(numbers([1]), numbers([n]))
    else:
        comm.alltoall(numbers([n]), numbers([n]))
    """
    with Job(tmp_path, body) as job:
        job.finish()
        world, ranks = culprits(job)
        assert world["operation"] == 2 and ranks == [2]
        assert f"rank 2 calls allgather ({job.line_of('comm.allgather(')})" in world["findings"]


def test_operations_that_may_meet(tmp_path: Path) -> None:
    """alltoall meets alltoallv on the host: it is the rank that does not come that is to blame."""
    body = """
    comm.barrier()
    if r == 0:
        comm.alltoall(numbers([n]), numbers([n]))
    elif r == 1:
        comm.alltoallv(numbers([1] * n), [1] * n, numbers([1] * n), [1] * n)
    else:
        time.sleep(600)
    """
    with Job(tmp_path, body) as job:
        job.await_operation(2, ranks=2)
        world, ranks = culprits(job)
        assert world["operation"] == 2 and ranks == [2] and len(world["findings"]) == 1


def test_refused_arguments(tmp_path: Path) -> None:
    body = """
    comm.barrier()
    comm.alltoall(numbers([n + (r == 0)]), numbers([n]))
    """
    with Job(tmp_path, body) as job:
        job.finish()
        world, ranks = culprits(job)
        assert ranks == [0] and "its arguments were refused: rank 0: " in world["findings"][0]


def test_a_call_that_is_missing(tmp_path: Path) -> None:
    body = """
    comm.barrier()
    if r == 1:
        time.sleep(600)
    comm.barrier()
    """
    with Job(tmp_path, body) as job:
        job.await_operation(2, ranks=2)
        world, ranks = culprits(job)  # while the others wait
        assert world["operation"] == 2 and ranks == [1]
        assert "rank 1 has not come: its last call was barrier #1 at " in world["findings"][0]
        assert "alive" in world["findings"][0]
        text = call("explain", str(job.folder)).stdout
        assert text.startswith("world, 3 ranks, since ")
        assert ": operation #2 is not finished on all ranks, because of rank 1\n" in text
        job.ranks[1].send_signal(signal.SIGSTOP)
        time.sleep(0.2)
        assert "stopped" in culprits(job)[0]["findings"][0]


def test_ranks_that_wait_in_different_groups(tmp_path: Path) -> None:
    body = """
    other = comm.group([1, 0])
    before = comm.allgather_bytes(b"")
    if other is not None:
        (comm if r == 0 else other).barrier()
    """
    with Job(tmp_path, body, ranks=2, timeout=3) as job:
        ended = [text.partition(" ")[0] for text in job.finish()]  # whoever is late finds that the other has gone
        assert "TimeoutError" in ended and set(ended) <= {"TimeoutError", "PeerLostError"}
        code, diagnoses = job.explain()
        assert code == 1 and [d["culprits"] for d in diagnoses] == [[1], [1]]
        assert "rank 1 has not come" in diagnoses[0]["findings"][0]
        assert diagnoses[0]["ranks"][0]["state"] in ended


ELSEWHERE = """
def waits(comm):
    pair = comm.group([0, 1])
    comm.barrier()
    if comm.rank == 2:
        time.sleep(600)
    (pair if comm.rank == 1 else comm).barrier()
"""


@pytest.mark.parametrize("threads", [False, True])
def test_a_rank_that_waits_elsewhere(tmp_path: Path, threads: bool) -> None:
    """Of threads of one process it cannot be told which one waits there."""
    start = "a2a.spawn(waits, 3, threads=True)" if threads else "waits(comm)"
    with Job(tmp_path, ELSEWHERE + start, ranks=1 if threads else 3) as job:
        deadline = time.monotonic() + 30
        while (found := job.explain()[1] if job.folder.is_dir() else []) == [] or not found[-1]["operation"]:
            assert time.monotonic() < deadline
        time.sleep(0.5)
        (world,) = [d for d in job.explain()[1] if d["size"] == 3]
        assert world["culprits"] == [1, 2]
        told = [" ".join(world["findings"])] if threads else world["findings"]
        assert ("meanwhile it waits, as rank 1 of " in told[0]) is not threads


def test_a_rank_that_was_killed(tmp_path: Path) -> None:
    body = """
    comm.barrier()
    if r == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    comm.barrier()
    """
    with Job(tmp_path, body) as job:
        assert [text.partition(" ")[0] for text in job.finish()] == ["PeerLostError", "PeerLostError", ""]
        world, ranks = culprits(job)
        assert ranks == [2] and "gone" in world["findings"][0]


def test_abort_says_why(tmp_path: Path) -> None:
    body = """
    if r == 1:
        comm.abort("enough")
    comm.barrier()
    """
    with Job(tmp_path, body) as job:
        job.finish()
        (record,) = [record for record in map(dump.read, dump.find([job.folder])) if record.rank == 1]
        assert (record.fate, record.reason) == ("aborted", "enough")


def test_only_the_last_operations_are_kept(tmp_path: Path) -> None:
    body = """
    for step in range(1000):
        comm.barrier()
    """
    with Job(tmp_path, body, ranks=2) as job:
        assert job.finish() == ["", ""]
        record = dump.read(dump.find([job.folder])[0])
        assert record.last == 1000 and sorted(record.entries) == list(range(745, 1001))


@pytest.mark.parametrize("where", ["/proc/no/such/place", "/dev/full"])
def test_a_folder_that_cannot_be_written(tmp_path: Path, where: str) -> None:
    """The program is worth more than its record."""
    with Job(tmp_path, "comm.barrier()", ranks=2, settings={"A2A_DUMP": where}) as job:
        for rank, text in zip(job.ranks, job.finish(), strict=True):
            assert rank.returncode == 0
            assert text.startswith(f"a2a: A2A_DUMP={where}: operations are not recorded: ")


def test_explain_without_records(tmp_path: Path) -> None:
    done = call("explain", str(tmp_path))
    assert done.returncode == 2 and f"no records in {tmp_path}" in done.stderr
    junk = tmp_path / "junk.a2a"
    junk.write_bytes(bytes(10_000))
    done = call("explain", str(junk))
    assert done.returncode == 2 and f"{junk} is no record of A2A_DUMP" in done.stderr
    junk.write_bytes(b"a2adump1" + os.urandom(10_000))
    done = call("explain", str(junk))
    assert done.returncode == 2 and "damaged" in done.stderr
    assert call("explain", str(tmp_path / "nothing")).returncode == 2
