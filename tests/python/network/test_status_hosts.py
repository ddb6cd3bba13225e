"""a2a.status() on ranks of several hosts: their waits name ranks of other hosts. Here all have one /proc."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest
from commands import environment, free_port
from tcp_ranks import SECRET

import a2a

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


@pytest.mark.parametrize("what", ["operation", "message"])
def test_waits_for_ranks_of_another_host(what: str) -> None:
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
        assert job.hosts == 2 and " outside of a2a " in job.behind[0].why and "alltoall #1" in job.behind[0].why
        assert job.ranks[1].communicators[0].waits_for
        if what == "message":
            assert job.ranks[2].communicators[0].waits_in == "recv from rank 0"
    finally:
        for one in ranks:
            one.kill()
            one.wait()
