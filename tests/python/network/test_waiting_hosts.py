"""What ranks on several hosts do while they wait: sleep, and have their operations moved on by a thread."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time

import forked
import numpy as np
import pytest
from commands import environment
from forked import apart
from tcp_peer import free_address
from tcp_ranks import SECRET, join

import a2a
from a2a import _core

pytestmark = pytest.mark.timeout(100)


def needs_network(network: str) -> None:
    if network == "ucx":
        try:
            _core.library_of("ucx")
        except a2a.UnsupportedError:
            pytest.skip("no UCX here")


# ---- sleeping --------------------------------------------------------------------------------------------------------

LATE = 2.0  # seconds


def wait_for_the_last(rank: int, address: str, hosts: str, network: str) -> float:
    """The CPU time of all threads of a rank that waits until the last one comes."""
    os.environ.update(A2A_HOSTS=hosts, A2A_NETWORK=network, A2A_PROGRESS_THREAD="0", UCX_TLS="tcp")
    n = hosts.count(",") + 1
    with a2a.init(rank, n, bootstrap=join(rank, n, address), timeout=30) as comm:
        send, recv = np.ones(n * 1000), np.empty(n * 1000)
        comm.alltoall(send, recv)
        comm.barrier()
        if rank == n - 1:
            time.sleep(LATE)
        before = time.process_time()
        comm.alltoall(send, recv)
        return time.process_time() - before


@apart
@pytest.mark.parametrize("hosts", ["a,b", "a,a,b"])
@pytest.mark.parametrize("network", ["tcp", "ucx"])
def test_a_rank_that_waits_takes_no_cpu(network: str, hosts: str) -> None:
    needs_network(network)
    n = hosts.count(",") + 1
    *waited, _ = forked.values(forked.run(n, wait_for_the_last, free_address(), hosts, network))
    assert max(waited) < 0.04 * LATE, waited


# ---- the progress thread ---------------------------------------------------------------------------------------------

MANY_CPUS = """
#include <dlfcn.h>
#include <sched.h>
#include <unistd.h>
extern "C" int sched_getaffinity(pid_t, size_t bytes, cpu_set_t* set) noexcept {
  CPU_ZERO_S(bytes, set);
  for (int cpu = 0; cpu < 6; ++cpu) CPU_SET_S(cpu, bytes, set);
  return 0;
}
extern "C" long sysconf(int name) noexcept {
  if (name == _SC_NPROCESSORS_ONLN) return 6;
  return reinterpret_cast<long (*)(int)>(dlsym(RTLD_NEXT, "sysconf"))(name);
}
"""
RANK = """
import sys, time
from pathlib import Path
import numpy as np
import a2a
comm, each = a2a.init(timeout=20), 1 << 20
n = comm.size
send, recv = np.repeat(np.arange(n, dtype=np.uint8) + 10 * comm.rank, each), np.zeros(n * each, np.uint8)
expected = np.repeat(10 * np.arange(n, dtype=np.uint8) + comm.rank, each)
served, until = False, time.monotonic() + 0.5  # it takes a moment to give itself its name
while not served and time.monotonic() < until:
    served = any((task / "comm").read_text() == "a2a-progress\\n" for task in Path("/proc/self/task").iterdir())
    time.sleep(0.02)
work = comm.alltoall(send, recv, async_op=True)
until = time.monotonic() + 20 * served
while not (come := bool((recv == expected).all())) and time.monotonic() < until:
    time.sleep(0.02)
work.wait()
assert (recv == expected).all()
print(served, come or not served)
comm.close()
"""


def served(hosts: str, **variables: str) -> bool:
    """Whether ranks on these hosts have a progress thread. If so, their operations come to an end while they sleep."""
    host, port = free_address().split(":")
    n = hosts.count(",") + 1
    env = environment(A2A_HOSTS=hosts, A2A_SECRET=SECRET.decode(), MASTER_ADDR=host, MASTER_PORT=str(int(port) - 1))
    env |= {"WORLD_SIZE": str(n), "LOCAL_WORLD_SIZE": "1"} | variables
    ranks = [
        subprocess.Popen([sys.executable, "-c", RANK], env=env | {"RANK": str(rank)}, stdout=subprocess.PIPE, text=True)
        for rank in range(n)
    ]
    told = {rank.communicate(timeout=60)[0] for rank in ranks}
    assert told in ({"True True\n"}, {"False True\n"}), told
    return told == {"True True\n"}


@pytest.fixture(scope="module")
def many_cpus(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """For a process that is to find six CPUs."""
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    if compiler is None:
        pytest.skip("no C++ compiler")
    source = tmp_path_factory.mktemp("cpus") / "cpus.cc"
    source.write_text(MANY_CPUS)
    library = source.with_suffix(".so")
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", str(source), "-o", str(library), "-ldl"], check=True)
    return {"LD_PRELOAD": str(library)}


@pytest.mark.parametrize("network", ["tcp", "ucx"])
def test_there_is_one_by_itself_where_cpus_are_spare(network: str, many_cpus: dict[str, str]) -> None:
    needs_network(network)
    assert served("a,b", A2A_NETWORK=network, **many_cpus)
    assert served("a,a,b", A2A_NETWORK=network, A2A_PROGRESS_THREAD="auto", **many_cpus)


def test_there_is_none_without_spare_cpus_on_one_host_or_if_it_is_refused(many_cpus: dict[str, str]) -> None:
    spare = len(os.sched_getaffinity(0)) >= 4 and (os.cpu_count() or 1) >= 4
    assert served("a,b") == spare
    assert not served("a,b,a,b", **many_cpus)
    assert not served("a,a", **many_cpus)
    assert not served("a,b", A2A_PROGRESS_THREAD="0", **many_cpus)
