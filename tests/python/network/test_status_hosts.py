"""a2a.status() on ranks of several hosts: their waits name ranks of other hosts. Here all have one /proc."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from commands import call, environment, free_port
from tcp_ranks import SECRET

import a2a
from a2a import _status
from a2a._status_hosts import merged, pack, unpack
from a2a._status_pages import found
from a2a._status_ranks import Sample

PROGRAM = """
import sys, time
import numpy as np
import a2a

comm = a2a.init(timeout=60, job=sys.argv[1])
x, y = np.ones(comm.size), np.empty(comm.size)
comm.alltoall(x, y)
if comm.rank == 2:
    if sys.argv[2] == "message":
        comm.recv(x, 0)
    time.sleep(60)
if comm.rank == 0 and sys.argv[2] == "message":
    time.sleep(60)
comm.alltoall(x, y)
"""


@contextlib.contextmanager
def waiting_job(what: str) -> Iterator[_status.JobStatus]:
    """A job on two hosts, as soon as its ranks wait for the one that is late."""
    name = f"hosts-{what}-{time.monotonic_ns()}"
    env = environment(A2A_BOOTSTRAP=f"tcp://127.0.0.1:{free_port()}", A2A_SECRET=SECRET.decode(), A2A_HOSTS="0,0,1")
    ranks = [
        subprocess.Popen([sys.executable, "-c", PROGRAM, name, what], env=env | {"A2A_RANK": str(r), "A2A_SIZE": "3"})
        for r in range(3)
    ]
    late = 2 if what == "operation" else 0
    try:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            job = next((one for one in a2a.status(interval=0) if one.name == name), None)
            if job is not None and job.behind and job.behind[0].ranks == [late] and len(job.behind[0].waiting) == 2:
                break
            time.sleep(0.05)
        else:
            raise AssertionError(f"{job}")
        yield job
    finally:
        for one in ranks:
            one.kill()
            one.wait()


@pytest.mark.parametrize("what", ["operation", "message"])
def test_waits_for_ranks_of_another_host(what: str) -> None:
    with waiting_job(what) as job:
        assert job.hosts == 2 and " outside of a2a " in job.behind[0].why and "alltoall #1" in job.behind[0].why
        assert job.ranks[1].communicators[0].waits_for
        if what == "message":
            assert job.ranks[2].communicators[0].waits_in == "recv from rank 0"


def test_what_each_host_sees_is_put_together(tmp_path: Path) -> None:
    with waiting_job("operation") as job:
        with found() as processes:
            whole = Sample.of(processes)
        late = job.ranks[2].pid
        here = Sample(whole.at, tuple(rank for rank in whole.ranks if rank.pid != late))
        there = Sample(whole.at, tuple(rank for rank in whole.ranks if rank.pid == late))
        alone = next(one for one in _status.jobs_of(here, here) if one.name == job.name)
        assert "on another host" in alone.behind[0].why and alone.missing == [2]
        (moved,) = unpack(pack([there]), "node2", time.monotonic() + 5000)  # its clock may differ by any amount
        entry, shifted = there.ranks[0].entries[0], moved.ranks[0].entries[0]
        assert 4999 < shifted.started - entry.started < 5001 and replace(moved.ranks[0], entries=()).away == "node2"
        (same,) = unpack(pack([there]), "node2", time.monotonic())
        both = next(one for one in _status.jobs_of(whole, merged(here, [same])) if one.name == job.name)
        assert both.behind[0].ranks == [2] and f"(pid {late} on node2)" in both.behind[0].why
        assert " outside of a2a " in both.behind[0].why and both.missing == [] and both.host.endswith(", node2")
        assert merged(whole, [same]).ranks == whole.ranks

        (tmp_path / "rsh").write_text(
            '#!/bin/sh\n[ "$1" = gone ] && { echo "no route to gone" >&2; exit 255; }\nshift; "$@"\n'
        )
        (tmp_path / "rsh").chmod(0o755)
        done = call("status", job.name, "--json", "--hosts", "gone", "node2", "--rsh", str(tmp_path / "rsh"))
        assert done.returncode == 1 and "a2a status: gone: no route to gone" in done.stderr
        assert [rank["rank"] for rank in json.loads(done.stdout)[0]["ranks"]] == [0, 1, 2]


def test_hosts_that_cannot_be_asked() -> None:
    done = call("status", "--hosts", "node2", "--rsh", "echo 3")
    assert "a2a status: node2: its answer is none of this version of a2a" in done.stderr
    done = call("status", "--hosts", "node2", "--rsh", "/no/such/program")
    assert "a2a status: node2: " in done.stderr and "No such file" in done.stderr
