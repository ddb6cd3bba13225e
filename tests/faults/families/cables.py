"""What happens to the network itself: a host whose cable is pulled, and strangers at the ports of ranks."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import random
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ..harness import Answer, Board, NotRun, Report, attempt, connect, exchange, judge, run, worse
from .network import WAYS, on_each

sys.path.append(str(Path(__file__).parents[2] / "python" / "support"))
from network_hosts import hosts, namespace

DEADLINE, ENDING = 0.5, 1.0

# ---- a cable ---------------------------------------------------------------------------------------------------------


def exchange_till_it_fails(rank: int, places: list[str], job: str, board: Board, size: int) -> Answer:
    """On a host of its own. Notes how long the communicator took to end after that."""
    with Path(places[rank]).open("rb") as place:
        if ctypes.CDLL(None).setns(place.fileno(), 0) != 0:
            raise PermissionError("setns() is not allowed")
    n = len(places)
    comm = connect(rank, n, job, hosts="abc")
    send, recv = np.zeros(n * size, np.uint8), np.zeros(n * size, np.uint8)
    while True:
        board.words[rank] += 1
        answer = attempt(comm.alltoall, send, recv, timeout=DEADLINE)
        if answer.kind == "error":
            break
    begin = time.monotonic()
    del comm
    gc.collect()
    answer.note = time.monotonic() - begin
    return answer


@on_each("a host's cable is pulled", "raise by name at the deadline +-10 %", 2, 40, ["tcp"], exactly=DEADLINE)
@on_each("a host's cable is pulled", "raise by name 200 ms after the deadline", 2, 40, ["ucx"], within=DEADLINE + 0.2)
def pulled(chance: random.Random, job: str) -> Report:
    """Nothing tells the others: their deadline does. The host itself misses somebody, too."""
    n, size = chance.choice([2, 3]), chance.choice(WAYS)[1]
    victim, board = chance.randrange(n), Board(n)
    with some_hosts(n) as addresses:
        names = [namespace(host) for host in range(n)]
        job = job.replace("127.0.0.1", addresses[0])

        def during(_: list[int]) -> None:
            board.await_all(3)
            time.sleep(chance.random() * 0.01)
            subprocess.run(["ip", "-n", names[victim], "link", "set", "eth0", "down"], check=True, timeout=20)

        places = [f"/run/netns/{name}" for name in names]
        ends = run(n, exchange_till_it_fails, places, job, board, size, during=during)
    missed = ("TimeoutError", "PeerLostError")
    report = worse(judge(ends, missed, [f"rank {victim}"], but=[victim]), judge([ends[victim]], missed, ["rank "]))
    answers = [end.value for end in ends if isinstance(end.value, Answer)]
    report.seconds = max((answer.seconds for answer in answers), default=None)
    slowest = max((answer.note for answer in answers), default=0)
    return worse(report, Report("hang", text=f"its end took {slowest} s")) if slowest > ENDING else report


@contextlib.contextmanager
def some_hosts(count: int) -> Iterator[list[str]]:
    try:
        with hosts(count) as addresses:
            yield addresses
    except OSError as error:
        raise NotRun(str(error)) from None


# ---- strangers -------------------------------------------------------------------------------------------------------

JUNK = (b"", b"abc", bytes(4096), b"\xff" * 4096, b"GET / HTTP/1.1\r\n\r\n")


def exchange_for_a_while(rank: int, n: int, job: str, board: Board) -> Answer:
    """Until the board says that it is over, which all ranks hear of at once."""
    comm, right = connect(rank, n, job), True

    def go_on() -> None:
        nonlocal right
        over = np.zeros(1, np.int32)
        while not over[0]:
            for count in (1, 3000, 40_000):
                right = exchange(comm, count, board.words[rank]) and right
            board.words[rank] += 1
            over[0] = board.words[n]
            comm.allreduce(over)

    return attempt(go_on, right=lambda: right)


def listening(pid: int) -> list[tuple[str, int]]:
    """The addresses at which that process listens."""
    owned = {str(entry.readlink()) for entry in Path(f"/proc/{pid}/fd").iterdir() if entry.is_symlink()}
    found = []
    for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]:
        _, local, _, state, *_, inode = line.split()[:10]
        if state == "0A" and f"socket:[{inode}]" in owned:
            host, _, port = local.partition(":")
            found.append((socket.inet_ntoa(int(host, 16).to_bytes(4, sys.byteorder)), int(port, 16)))
    return found


@on_each("junk at the ports of ranks that exchange", "the right result", 2, 60, networks=["ucx"])
def junk(chance: random.Random, job: str) -> Report:
    """UCX listens as long as a communicator lives. Whether it goes on to is its own affair; the exchanges do."""
    n = chance.choice([2, 3])
    board = Board(n + 1)

    def during(pids: list[int]) -> None:
        board.words[n] = 0
        while any(board.words[rank] < 2 for rank in range(n)):
            time.sleep(0.001)
        doors = [door for pid in pids for door in listening(pid)]
        assert doors
        for door in doors * 5:
            with contextlib.suppress(OSError), socket.create_connection(door, timeout=1) as stranger:
                stranger.sendall(chance.choice([*JUNK, chance.randbytes(5000)]))
                time.sleep(chance.choice([0, 0.005]))
        seen = list(board.words[:n])
        while any(board.words[rank] < seen[rank] + 3 for rank in range(n)):
            time.sleep(0.001)
        board.words[n] = 1

    return judge(run(n, exchange_for_a_while, n, job, board, during=during), (), must_raise=False)
