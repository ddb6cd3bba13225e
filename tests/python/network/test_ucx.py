"""Ranks on several hosts that UCX connects. Hosts are assigned by A2A_HOSTS; UCX takes what it finds on this one."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import forked
import numpy as np
import pytest
from commands import command, environment
from forked import apart
from members import Me, Members
from rank_pool import Pool
from tcp_peer import free_address
from tcp_ranks import SECRET, join, outcome
from vendor_files import directory_of

import a2a
from a2a import _core

pytestmark = pytest.mark.timeout(100)
PROGRAM = str(Path(__file__).parents[1] / "support" / "mpi_ranks.py")
API = Path(__file__).parents[3] / "src/cpp/transport/ucx/ucx_api.h"


@pytest.fixture(autouse=True)
def ucx() -> None:
    try:
        _core.library_of("ucx")
    except a2a.UnsupportedError:
        pytest.skip("no UCX here")


# ---- bytes -----------------------------------------------------------------------------------------------------------


def exchanges(comm: a2a.Communicator) -> None:
    assert "UCX" in _core.host_ways(comm, 8)[-1][1]
    n, chance = comm.size, np.random.default_rng(7)  # the same on all ranks
    for largest in (1, 50, 5_000, 200_000):
        counts = chance.integers(0, largest + 1, (n, n))
        counts[chance.integers(n)] = 0  # somebody sends nothing
        own, due = counts[comm.rank], counts[:, comm.rank]
        send = np.concatenate([np.arange(count) + 1000.0 * comm.rank + peer for peer, count in enumerate(own)])
        recv = np.full(due.sum() + 1, -1.0)
        comm.alltoallv(send, own.tolist(), recv[:-1], due.tolist())
        expected = [np.arange(count) + 1000.0 * peer + comm.rank for peer, count in enumerate(due)]
        assert np.array_equal(recv, [*np.concatenate(expected), -1.0])
        total = np.full(largest, comm.rank + 1, "int64")
        comm.allreduce(total)
        assert (total == n * (n + 1) // 2).all()
    everybody = np.empty(n * 300_000, "float32")
    comm.allgather(np.full(300_000, comm.rank, "float32"), everybody)
    assert np.array_equal(everybody, np.repeat(np.arange(n, dtype="float32"), 300_000))


def messages(comm: a2a.Communicator) -> None:
    after, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    for size in (0, 1, 10_000, 1_000_000):
        works = [comm.send(np.full(size, float(comm.rank + tag)), after, tag, async_op=True) for tag in range(3)]
        for tag in (2, 0, 1):
            got = np.empty(size)
            comm.recv(got, before, tag)
            assert (got == before + tag).all()
        for work in works:
            work.wait()


@pytest.mark.parametrize("hosts", ["a,b", "a,b,a,b,c"])
def test_exchanges_and_messages(hosts: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A2A_NETWORK", "ucx")
    with Pool(hosts.count(",") + 1, hosts=hosts) as pool:
        for _ in range(3):
            pool.run(exchanges)
        pool.run(messages)


# ---- groups ----------------------------------------------------------------------------------------------------------


def connect(me: Me, handles: list[str], generation: int) -> int:
    me.comm = me.endpoint.connect(handles, generation, timeout=15)
    return int(me.comm.rank)


def exchange(me: Me) -> int:
    total = np.full(50_000, 1.0)
    me.comm.allreduce(total, timeout=15)
    return int(total[-1])


def shrink(me: Me) -> int:
    me.comm = me.comm.shrink(timeout=15)
    return exchange(me)


def values(answers: list[Any]) -> list[Any]:
    assert not any(answer.error for answer in answers), answers
    return [answer.value for answer in answers]


@apart
def test_generations_and_a_death() -> None:
    os.environ["A2A_NETWORK"] = "ucx"
    with Members(4, "abab") as members:
        for generation in range(3):
            values(members.run([0, 1, 2, 3], connect, members.handles, generation))
            assert values(members.run([0, 1, 2, 3], exchange)) == [4] * 4
        for member in (0, 1, 2):
            members.start(member, exchange)
        members.kill(3)
        answers = [members.answer(member) for member in (0, 1, 2)]
        assert {answer.error for answer in answers} <= {"PeerLostError", "AbortedError"}, answers
        assert any("rank 3" in answer.text for answer in answers), answers
        assert values(members.run([0, 1, 2], shrink)) == [3] * 3
        values(members.run([0, 2], connect, [members.handles[0], members.handles[2]], 9))
        assert values(members.run([0, 2], exchange)) == [2, 2]


def fork_and_die(rank: int, address: str) -> tuple[str, str, float]:
    """Rank 1 leaves a child behind that lives on, with copies of what it has open."""
    os.environ.update(A2A_HOSTS="a,b", A2A_NETWORK="ucx", UCX_TLS="tcp")
    comm = a2a.init(rank, 2, bootstrap=join(rank, 2, address), timeout=20)
    exchange_with(comm)
    if rank == 1:
        if os.fork() == 0:
            time.sleep(5)
            os._exit(0)
        exchange_with(comm)  # what the child has closed was a copy
        time.sleep(0.5)  # rank 0 has it all, and waits
        os.kill(os.getpid(), signal.SIGKILL)
    exchange_with(comm)
    return outcome(lambda: comm.alltoall(np.zeros(200), np.zeros(200), timeout=10))


def exchange_with(comm: a2a.Communicator) -> None:
    total = np.full(100_000, 1.0)
    comm.allreduce(total, timeout=15)
    assert (total == comm.size).all()


@apart
def test_a_forked_child_does_not_hide_a_death() -> None:
    survivor, victim = forked.run(2, fork_and_die, free_address())
    kind, text, seconds = survivor.value
    assert victim.status == -signal.SIGKILL
    assert (kind, seconds < 3) == ("PeerLostError", True) and "rank 1" in text, survivor.value


# ---- refusals --------------------------------------------------------------------------------------------------------


def choose(rank: int, address: str, variables: list[dict[str, str]]) -> tuple[str, str, float]:
    os.environ.update({"A2A_NETWORK": "ucx"} | variables[rank])
    os.environ["A2A_HOSTS"] = "a,b"
    return outcome(lambda: a2a.init(rank, 2, bootstrap=join(rank, 2, address), timeout=20).close())


def chosen(*variables: dict[str, str]) -> list[tuple[str, str, float]]:
    return forked.values(forked.run(2, choose, free_address(), list(variables)))


@apart
def test_ranks_that_choose_differently() -> None:
    for kind, text, seconds in chosen({"A2A_NETWORK": "tcp"}, {"A2A_NETWORK": "ucx"}):
        assert (kind, seconds < 10) == ("MismatchError", True)
        assert "tcp on rank 0, ucx on rank 1" in text
    assert [kind for kind, _, _ in chosen({"A2A_NETWORK": "auto"}, {"A2A_NETWORK": "ucx"})] == ["", ""]
    assert [kind for kind, _, _ in chosen({"A2A_NETWORK": "auto"}, {"A2A_NETWORK": "auto"})] == ["", ""]


@apart
@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"A2A_UCX_LIBRARY": "/nowhere/libucp.so"}, "A2A_UCX_LIBRARY names this file"),
        ({"A2A_UCX_LIBRARY": shutil.which("true") or ""}, "A2A_UCX_LIBRARY"),
        ({"UCX_TLS": "nothing"}, "UCX_TLS=nothing is set"),
        ({"UCX_NET_DEVICES": "none:1", "UCX_TLS": "tcp"}, "UCX_NET_DEVICES=none:1 is set"),
        ({"A2A_NETWORK": "mpi"}, "start them with mpiexec"),
        ({"A2A_NETWORK": "ethernet"}, "A2A_NETWORK"),
    ],
)
def test_a_rank_without_it(wrong: dict[str, str], text: str) -> None:
    for kind, told, seconds in chosen({}, wrong):
        assert kind in ("UnsupportedError", "InvalidArgumentError", "BackendError") and seconds < 10, (kind, told)
        assert text in told and "rank 1" in told, told


@apart
def test_ranks_that_cannot_reach_each_other() -> None:
    """All say the same, and what was set on whom."""
    told = {(kind, text) for kind, text, seconds in chosen({}, {"UCX_TLS": "self"}) if seconds < 10}
    assert len(told) == 1, told
    ((kind, text),) = told
    assert kind == "UnsupportedError" and text.startswith("A2A_NETWORK=ucx: rank 0 cannot reach rank 1: UCX 1."), text
    assert text.endswith("Destination is unreachable; UCX_TLS=self is set on rank 1"), text


OLD = """
extern "C" void ucp_get_version(unsigned* major, unsigned* minor, unsigned* release) {
  *major = 1, *minor = 9, *release = 0;
}
extern "C" const char* ucp_get_version_string() { return "1.9.0"; }
"""


@apart
def test_an_old_one() -> None:
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    if compiler is None:
        pytest.skip("no C++ compiler")
    with tempfile.TemporaryDirectory() as folder:
        library, source = Path(folder) / "libucp.so.0", Path(folder) / "old.cc"
        source.write_text(OLD)
        subprocess.run([compiler, "-shared", "-fPIC", str(source), "-o", str(library)], check=True)
        for kind, text, seconds in chosen({}, {"A2A_UCX_LIBRARY": str(library)}):
            assert kind == "UnsupportedError" and seconds < 10
            assert "rank 1: UCX 1.9.0 (" in text and "is not of version 1.10 or later" in text, text


def test_info_tells_the_choice() -> None:
    for variables, words in (({}, "UCX: A2A_NETWORK=ucx"), ({"A2A_NETWORK": "tcp"}, "TCP: A2A_NETWORK=tcp")):
        done = subprocess.run(
            command("info"), env=environment(**{"A2A_NETWORK": "ucx"} | variables), capture_output=True, text=True
        )
        assert words in done.stdout and "UCX 1." in done.stdout, done.stdout + done.stderr


# ---- the interface ---------------------------------------------------------------------------------------------------

ABI = """
#include <ucp/api/ucp.h>
#include "{api}"
using namespace a2a::ucx;
#define SAME(a, b) static_assert((a) == (b))
#define FIELD(ours, mine, theirs, its) SAME(offsetof(ours, mine), offsetof(theirs, its))
SAME(sizeof(Status), sizeof(ucs_status_t)); SAME(sizeof(Tag), sizeof(ucp_tag_t));
SAME(kInProgress, UCS_INPROGRESS); SAME(kCanceled, UCS_ERR_CANCELED);
FIELD(ContextParams, features, ucp_params_t, features);
FIELD(ContextParams, estimated_num_eps, ucp_params_t, estimated_num_eps);
SAME(ContextParams::kFeatures, UCP_PARAM_FIELD_FEATURES);
SAME(ContextParams::kEstimatedEndpoints, UCP_PARAM_FIELD_ESTIMATED_NUM_EPS);
SAME(ContextParams::kTagMatching, UCP_FEATURE_TAG); SAME(ContextParams::kWakeup, UCP_FEATURE_WAKEUP);
FIELD(WorkerParams, thread_mode, ucp_worker_params_t, thread_mode);
FIELD(WorkerParams, client_id, ucp_worker_params_t, client_id);
SAME(WorkerParams::kThreadMode, UCP_WORKER_PARAM_FIELD_THREAD_MODE);
SAME(WorkerParams::kSerialized, UCS_THREAD_MODE_SERIALIZED);
FIELD(EndpointParams, address, ucp_ep_params_t, address);
FIELD(EndpointParams, error_mode, ucp_ep_params_t, err_mode);
FIELD(EndpointParams, error_handler, ucp_ep_params_t, err_handler.cb);
FIELD(EndpointParams, error_argument, ucp_ep_params_t, err_handler.arg);
SAME(EndpointParams::kAddress, UCP_EP_PARAM_FIELD_REMOTE_ADDRESS);
SAME(EndpointParams::kErrorMode, UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE);
SAME(EndpointParams::kErrorHandler, UCP_EP_PARAM_FIELD_ERR_HANDLER);
SAME(EndpointParams::kPeerErrors, UCP_ERR_HANDLING_MODE_PEER);
SAME(sizeof(TagInfo), sizeof(ucp_tag_recv_info_t)); FIELD(TagInfo, length, ucp_tag_recv_info_t, length);
SAME(sizeof(Iov), sizeof(ucp_dt_iov_t)); FIELD(Iov, length, ucp_dt_iov_t, length);
FIELD(RequestParams, flags, ucp_request_param_t, flags);
FIELD(RequestParams, callback, ucp_request_param_t, cb);
FIELD(RequestParams, datatype, ucp_request_param_t, datatype);
FIELD(RequestParams, user_data, ucp_request_param_t, user_data);
FIELD(RequestParams, memory_type, ucp_request_param_t, memory_type);
SAME(RequestParams::kCallback, UCP_OP_ATTR_FIELD_CALLBACK); SAME(RequestParams::kFlags, UCP_OP_ATTR_FIELD_FLAGS);
SAME(RequestParams::kUserData, UCP_OP_ATTR_FIELD_USER_DATA); SAME(RequestParams::kBytes, ucp_dt_make_contig(1));
SAME(RequestParams::kDatatype, UCP_OP_ATTR_FIELD_DATATYPE); SAME(RequestParams::kIov, UCP_DATATYPE_IOV);
SAME(RequestParams::kMemoryType, UCP_OP_ATTR_FIELD_MEMORY_TYPE); SAME(RequestParams::kHost, UCS_MEMORY_TYPE_HOST);
SAME(RequestParams::kForceClose, UCP_EP_CLOSE_FLAG_FORCE);
FIELD(EndpointAttributes, transports, ucp_ep_attr_t, transports);
SAME(sizeof(TransportEntry), sizeof(ucp_transport_entry_t));
SAME(EndpointAttributes::kTransports, UCP_EP_ATTR_FIELD_TRANSPORTS);
int main() {{}}
"""


def test_it_is_declared_as_in_ucx_own_header(tmp_path: Path) -> None:
    include = directory_of("ucp/api/ucp.h", "A2A_UCX_INCLUDE", "libucx")
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    if compiler is None or not API.exists():
        pytest.skip("no C++ compiler, or no source tree beside the tests")
    source = tmp_path / "abi.cc"
    source.write_text(ABI.format(api=API))
    flags = ["-std=c++20", "-fsyntax-only", "-Wno-invalid-offsetof", f"-I{include}"]
    done = subprocess.run([compiler, *flags, str(source)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_repeated_exchanges_under_torchrun() -> None:
    host, port = free_address().split(":")
    env = environment(A2A_HOSTS="a,a,b", A2A_SECRET=SECRET.decode(), A2A_NETWORK="ucx")
    env |= {"MASTER_ADDR": host, "MASTER_PORT": str(int(port) - 1), "WORLD_SIZE": "3", "LOCAL_WORLD_SIZE": "1"}
    ranks = [
        subprocess.Popen([sys.executable, PROGRAM, "repeats", "3"], env=env | {"RANK": str(rank)}) for rank in range(3)
    ]
    assert [rank.wait(80) for rank in ranks] == [0, 0, 0]
