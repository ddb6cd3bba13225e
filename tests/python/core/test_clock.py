"""Deadlines while the wall clock jumps."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from commands import environment
from tcp_peer import free_address
from tcp_ranks import SECRET

pytestmark = pytest.mark.timeout(60)

# In place of the C library's: a wall clock that goes to and fro by days.
JUMPING = r"""
#define _GNU_SOURCE
#include <stdatomic.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
static long jump(void) { static atomic_int looks; return (atomic_fetch_add(&looks, 1) % 2 ? 86400L : -86400L) * 30; }
int clock_gettime(clockid_t clock, struct timespec* now) {
  long result = syscall(SYS_clock_gettime, clock, now);
  if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE) now->tv_sec += jump();
  return (int)result;
}
int gettimeofday(struct timeval* now, void* zone) {
  struct timespec at;
  (void)zone;
  clock_gettime(CLOCK_REALTIME, &at);
  now->tv_sec = at.tv_sec, now->tv_usec = at.tv_nsec / 1000;
  return 0;
}
time_t time(time_t* now) {
  struct timespec at;
  clock_gettime(CLOCK_REALTIME, &at);
  if (now) *now = at.tv_sec;
  return at.tv_sec;
}
"""

PROGRAM = """
import sys, time
import numpy as np
import a2a

def seconds_of(call, *args, **more):
    begin = time.monotonic()
    try:
        call(*args, **more)
    except TimeoutError:
        return time.monotonic() - begin
    raise AssertionError("no timeout")

assert abs(time.time() - time.time()) > 86400  # it jumps
rank = int(sys.argv[1])
if rank == 1:
    time.sleep(1.2)
else:
    assert 0.4 < seconds_of(a2a.init, job="nobody else", timeout=0.5) < 1.2
with a2a.init(timeout=10) as comm:
    comm.barrier()
    send, recv = np.arange(2), np.zeros(2, int)
    if rank == 1:
        time.sleep(1)
        comm.alltoall(send, recv)
    else:
        work = comm.alltoall(send, recv, async_op=True)
        assert 0.2 < seconds_of(work.wait, timeout=0.3) < 0.9
        work.wait()
    assert recv.tolist() == [rank, rank]
    comm.barrier()
print("right")
"""


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> str:
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        pytest.skip("no C compiler")
    folder = tmp_path_factory.mktemp("clock")
    source, library = folder / "clock.c", folder / "clock.so"
    source.write_text(JUMPING)
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", str(source), "-o", str(library)], check=True)
    return str(library)


@pytest.mark.parametrize("way", ["shm", "tcp", "tcp between hosts"])
def test_deadlines_do_not_look_at_the_wall_clock(way: str, shim: str, tmp_path: Path) -> None:
    more = {} if way == "shm" else {"A2A_BOOTSTRAP": f"tcp://{free_address()}", "A2A_SECRET": SECRET.decode()}
    if way == "tcp between hosts":
        more["A2A_HOSTS"] = "a,b"
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(rank)],
            env=environment(LD_PRELOAD=shim, A2A_RANK=str(rank), A2A_SIZE="2", A2A_JOB=f"clock-{os.getpid()}", **more),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    for rank in ranks:
        out, err = rank.communicate(timeout=50)
        assert (rank.returncode, out) == (0, "right\n"), err
