"""Ranks that meet over TCP, or fail to."""

from __future__ import annotations

import contextlib
import os
import random
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from commands import command, environment
from forked import apart, run, values
from possessions import descriptors
from tcp_peer import free_address
from tcp_ranks import SECRET, join, outcome, rank_0

import a2a

pytestmark = pytest.mark.timeout(60)

# ---- what it is for --------------------------------------------------------------------------------------------------


def exchange(rank: int, size: int, address: str) -> None:
    bootstrap = join(rank, size, address)
    for round_, length in enumerate([0, 1, 1000, 70_000, 0, 5]):
        strings = [bytes([r, round_]) * (length * r) for r in range(size)]
        assert bootstrap.allgather(strings[rank]) == strings


@pytest.mark.parametrize("size", range(1, 9))
@apart
def test_ranks_exchange_strings(size: int) -> None:
    values(run(size, exchange, size, free_address()))


def exchange_much(rank: int, size: int, address: str) -> None:
    bootstrap = join(rank, size, address)
    for _ in range(2):
        strings = [random.Random(r).randbytes((r + 1) << 20) for r in range(size)]
        assert bootstrap.allgather(strings[rank]) == strings


@apart
def test_mebibytes() -> None:
    values(run(3, exchange_much, 3, free_address()))


def meet_again(rank: int, size: int, address: str) -> tuple[int, int]:
    counts = []
    for i in range(30):
        join(rank, size, address, job=f"job#{i}").allgather(b"x")
        counts.append(len(descriptors()))
    return counts[1], counts[-1]


@apart
def test_nothing_is_left_of_a_meeting() -> None:
    for before, after in values(run(3, meet_again, 3, free_address())):
        assert before == after


def meet_at_a_name(rank: int, size: int, address: str) -> None:
    assert join(rank, size, address).allgather(b"%d" % rank) == [b"0", b"1"]


@apart
def test_addresses() -> None:
    port = free_address().rpartition(":")[2]
    places = [f"localhost:{port}", f":{port}"]
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET6) as probe:
        probe.bind(("::1", 0))
        places.append(f"[::1]:{port}")
    for place in places:
        values(run(2, meet_at_a_name, 2, place))


def look_up_without_room(rank: int) -> tuple[str, str, float]:
    for _ in range(8):  # they take the stacks that the C library keeps of threads that have ended
        threading.Thread(target=time.sleep, args=(2,)).start()
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (4 << 20),) * 2)  # the stack of a thread has 8 MiB
    return outcome(join, 1, 2, f"localhost:{rank + 1}", timeout=5)


@apart
def test_no_thread_can_look_up_a_name() -> None:
    name, text, _ = values(run(1, look_up_without_room))[0]
    assert name == "BackendError" and text.startswith("cannot start a thread: "), (name, text)


def listeners(address: str) -> list[str]:
    """Where this machine listens on the address's port, as the kernel writes it."""
    port = f":{int(address.rpartition(':')[2]):04X}"
    lines = [line.split() for file in ("tcp", "tcp6") for line in Path(f"/proc/net/{file}").read_text().splitlines()]
    return [fields[1].removesuffix(port) for fields in lines if fields[1].endswith(port) and fields[3] == "0A"]


def test_rank_0_listens_on_one_interface_and_until_all_are_there() -> None:
    address = free_address()
    with rank_0(2, address, rounds=2) as result:
        assert listeners(address) == ["0100007F"]
        other = join(1, 2, address)
        other.allgather(b"from 1")
        assert listeners(address) == []
        other.allgather(b"from 1")
    assert result == [[[b"from 0", b"from 1"]] * 2]


PROGRAM = """
import os
import numpy as np
import a2a
for _ in range(3):
    with a2a.init(timeout=30) as comm:
        result = np.zeros(comm.size, np.int64)
        comm.allgather(np.array([comm.rank + 1]), result)
        assert result.tolist() == list(range(1, comm.size + 1))
print("met", len(os.environ["A2A_SECRET"]), flush=True)
"""


def test_init_under_a2a_run(tmp_path: Path) -> None:
    (tmp_path / "rank.py").write_text(PROGRAM)
    done = subprocess.run(
        command("run", "-n", "3", str(tmp_path / "rank.py")),
        env=environment(A2A_BOOTSTRAP=f"tcp://{free_address()}"),
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"[{rank}] met 64" for rank in range(3)]


def init_from_environment(rank: int, env: dict[str, str], timeout: float = 20) -> str:
    os.environ.update(env | {"RANK": str(rank)})
    try:
        with a2a.init(timeout=timeout) as comm:
            comm.barrier()
            assert (comm.rank, comm.size) == (rank, 2)
    except a2a.Error as error:
        return f"{type(error).__name__}: {error}"
    return ""


@apart
def test_init_where_the_launcher_says_several_hosts() -> None:
    host, port = free_address().split(":")
    env = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": host, "MASTER_PORT": str(int(port) - 3)}
    for name in ("A2A_SECRET", "A2A_SECRET_FILE", "A2A_BOOTSTRAP", "A2A_RANK", "A2A_SIZE", "A2A_JOB"):
        os.environ.pop(name, None)
    env |= {"A2A_PORT_OFFSET": "3", "A2A_SECRET": SECRET.decode()}
    assert values(run(2, init_from_environment, env)) == ["", ""]
    # That it was TCP shows where it cannot work.
    unknown = values(run(2, init_from_environment, env | {"MASTER_ADDR": "192.0.2.1", "A2A_PORT_OFFSET": "1"}, 0.5))
    assert f"InvalidArgumentError: address '192.0.2.1:{int(port) - 2}': this host, rank 0's, has no such" in unknown[0]
    for text in values(run(2, init_from_environment, env | {"A2A_SECRET": ""})):
        assert text.startswith(
            "InvalidArgumentError: ranks that meet over TCP need a common secret: set A2A_SECRET_FILE"
        )


# ---- ranks that do not fit -------------------------------------------------------------------------------------------


def meet_as(i: int, facts: list[tuple[int, int, dict[str, Any]]], address: str) -> tuple[str, str, float]:
    rank, size, more = facts[i]
    time.sleep(0.2 * (i == len(facts) - 1))
    return outcome(lambda: join(rank, size, address, **more).allgather(b""))


@apart
def test_everybody_learns_why_ranks_do_not_meet() -> None:
    for last, said in (
        ((1, 3, {}), r"job 'job': rank 1 joined twice, from pid \d+ at 127.0.0.1 and pid \d+ at 127.0.0.1$"),
        ((2, 4, {}), r"job 'job': rank 2 was started with size 4, rank 0 with size 3$"),
    ):
        facts = [(0, 3, {}), (1, 3, {}), last]
        for name, text, seconds in values(run(3, meet_as, facts, free_address())):
            assert name == "InvalidArgumentError" and re.match(said, text) and seconds < 1.2, (name, text, seconds)


@apart
def test_rank_0_twice() -> None:
    facts: list[Any] = [(0, 2, {"timeout": 1}), (0, 2, {})]
    first, second = values(run(2, meet_as, facts, free_address()))
    assert first[0] == "TimeoutError" and "timed out waiting for rank 1" in first[1], first
    assert second[0] == "InvalidArgumentError" and "the port is in use" in second[1] and second[2] < 1.2, second


def init_or_join_only(rank: int, address: str) -> tuple[str, str, float]:
    if rank == 0:
        os.environ |= {"A2A_BOOTSTRAP": f"tcp://{address}", "A2A_SECRET": SECRET.decode(), "A2A_JOB": "job"}
        return outcome(a2a.init, 0, 2, timeout=1.5)
    time.sleep(1)
    bootstrap = join(1, 2, address)
    time.sleep(2.5)
    return outcome(bootstrap.allgather, b"")


@apart
def test_the_timeout_of_init_counts_once() -> None:
    end = name, text, seconds = values(run(2, init_or_join_only, free_address()))[0]
    assert name == "TimeoutError" and "timed out waiting for rank 1" in text and 1.4 < seconds < 2, end


@apart
def test_a_stale_rank_is_told_and_does_no_harm() -> None:
    facts: list[Any] = [(0, 2, {}), (1, 2, {"job": "the last one"}), (1, 2, {})]
    ends = values(run(3, meet_as, facts, free_address()))
    assert [name for name, _, _ in ends] == ["", "InvalidArgumentError", ""], ends
    assert ends[1][1] == "job 'job': rank 1 of job 'the last one' came to rank 0 of this one" and ends[1][2] < 1


# ---- ranks that go ---------------------------------------------------------------------------------------------------


def lose(rank: int, size: int, address: str, victim: int, fault: int) -> tuple[str, str, float]:
    bootstrap = join(rank, size, address)
    bootstrap.allgather(b"")
    if rank == victim:
        time.sleep(0.3)
        os.kill(os.getpid(), fault)
    end = outcome(bootstrap.allgather, b"y")
    assert outcome(bootstrap.allgather, b"z")[:2] == end[:2]
    return end


@pytest.mark.parametrize("victim", [0, 2])
@apart
def test_a_rank_is_killed(victim: int) -> None:
    ends = run(4, lose, 4, free_address(), victim, signal.SIGKILL)
    assert ends[victim].status == -signal.SIGKILL
    for end in ends:
        if end.rank == victim:
            continue
        name, text, seconds = end.value
        assert name == "PeerLostError" and seconds < 1, end
        assert re.match(rf"job 'job': rank {victim} (\(pid \d+ at 127.0.0.1\) )?was lost", text), text


def interrupt(rank: int, size: int, address: str, where: str) -> Any:
    bootstrap = None
    if where == "allgather":
        bootstrap = join(rank, size, address)
        if rank == 2:
            time.sleep(0.5)
            return None
        if rank == 0:
            return outcome(bootstrap.allgather, b"")
    elif rank != (0 if where == "rank 0" else 1):
        return None
    signal.signal(signal.SIGINT, signal.default_int_handler)
    pid, due = os.getpid(), time.monotonic() + 0.3

    def strike() -> None:
        time.sleep(0.3)
        os.kill(pid, signal.SIGINT)

    threading.Thread(target=strike).start()
    try:
        bootstrap = bootstrap or join(rank, size, address)
        bootstrap.allgather(b"")
    except KeyboardInterrupt:
        late = time.monotonic() - due
    if where == "rank 0":  # the port is free again at once
        assert "waiting for rank" in outcome(join, rank, size, address, timeout=0.1)[1]
    return late


@pytest.mark.parametrize("where", ["rank 0", "rank 1", "allgather"])
@apart
def test_ctrl_c(where: str) -> None:
    ends = values(run(3, interrupt, 3, free_address(), where))
    assert ends[0 if where == "rank 0" else 1] < 0.3, ends
    if where == "allgather":
        assert ends[0][:2] == ("AbortedError", "job 'job': rank 1 was interrupted by a signal"), ends


# ---- several hosts, as far as one machine has them -------------------------------------------------------------------

IN_A_NAMESPACE = """
import sys
import a2a
rank, size, address = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
bootstrap = a2a.TcpBootstrap(rank, size, address, job="job", timeout=30)
for _ in range(3):
    assert bootstrap.allgather(b"%d" % rank) == [b"%d" % r for r in range(size)]
"""


def ip(*arguments: str, check: bool = True) -> int:
    return subprocess.run(["ip", *arguments], check=check, capture_output=True).returncode


@pytest.fixture
def hosts() -> Iterator[list[str]]:
    """Network namespaces with addresses 10.213.0.1, 10.213.0.2 and so on, connected by a bridge in the first."""
    if shutil.which("ip") is None:
        pytest.skip("no ip command")
    names = [f"a2a-{os.getpid()}-{i}" for i in range(3)]
    if ip("netns", "add", names[0], check=False) != 0:
        pytest.skip("network namespaces are not allowed here")
    try:
        if ip("-n", names[0], "link", "add", "bridge", "type", "bridge", check=False) != 0:
            pytest.skip("network bridges are not allowed here")
        ip("-n", names[0], "addr", "add", "10.213.0.1/24", "dev", "bridge")
        ip("-n", names[0], "link", "set", "bridge", "up")
        ip("-n", names[0], "link", "set", "lo", "up")
        for i, name in enumerate(names[1:], 2):
            ip("netns", "add", name)
            ip("-n", names[0], "link", "add", f"to{i}", "type", "veth", "peer", "name", "eth0", "netns", name)
            ip("-n", names[0], "link", "set", f"to{i}", "master", "bridge", "up")
            ip("-n", name, "addr", "add", f"10.213.0.{i}/24", "dev", "eth0")
            ip("-n", name, "link", "set", "eth0", "up")
        yield names
    finally:
        for name in names:
            ip("netns", "del", name, check=False)


def test_ranks_of_several_hosts(hosts: list[str]) -> None:
    size = 5
    enter = [["ip", "netns", "exec", hosts[rank % len(hosts)]] for rank in range(size)]
    ranks = [
        subprocess.Popen(
            [*enter[rank], sys.executable, "-c", IN_A_NAMESPACE, str(rank), str(size), "10.213.0.1:29501"],
            env=environment(A2A_SECRET=SECRET.decode()),
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]
    for rank in ranks:
        _, text = rank.communicate(timeout=50)
        assert rank.returncode == 0, text
