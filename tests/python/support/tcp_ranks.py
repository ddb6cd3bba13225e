"""Ranks that meet over TCP, with a secret of the tests."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import a2a
from a2a import _core

SECRET = b"correct horse battery staple"


def join(rank: int, size: int, address: str, **more: Any) -> a2a.TcpBootstrap:
    return a2a.TcpBootstrap(rank, size, address, **{"job": "job", "secret": SECRET, "timeout": 20} | more)


def outcome(fn: Any, *args: Any, **more: Any) -> tuple[str, str, float]:
    """The name of the error, its text, and the seconds until it came."""
    begin = time.monotonic()
    try:
        fn(*args, **more)
    except a2a.Error as error:
        assert SECRET.decode() not in str(error)
        return type(error).__name__, str(error), time.monotonic() - begin
    return "", "", time.monotonic() - begin


@contextlib.contextmanager
def rank_0(size: int, address: str, timeout: float = 20, rounds: int = 1, **more: Any) -> Iterator[list[Any]]:
    """Rank 0 as a thread. The list gets how it ended: outcome(), or the results of its allgathers."""
    result: list[Any] = []

    def body() -> None:
        bootstrap = None
        try:
            bootstrap = join(0, size, address, timeout=timeout, **more)
            result.append([bootstrap.allgather(b"from 0") for _ in range(rounds)])
        except a2a.Error as error:
            result.append((type(error).__name__, str(error)))

    thread = threading.Thread(target=body)
    thread.start()
    port = address.rpartition(":")[2]
    while thread.is_alive():  # until it listens
        state = Path("/proc/net/tcp").read_text()
        if f":{int(port):04X} 00000000:0000 0A" in state:
            break
        time.sleep(0.005)
    try:
        yield result
    finally:
        thread.join(30)
        assert not thread.is_alive()


@contextlib.contextmanager
def listening() -> Iterator[tuple[socket.socket, str]]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(20)
        yield listener, f"127.0.0.1:{listener.getsockname()[1]}"


def joining(address: str, **more: Any) -> tuple[threading.Thread, list[tuple[str, str, float]]]:
    """Rank 1 of 2 as a thread, and how it ended."""
    end: list[tuple[str, str, float]] = []
    thread = threading.Thread(
        target=lambda: end.append(outcome(lambda: join(1, 2, address, **more).allgather(b"from 1")))
    )
    thread.start()
    return thread, end


def meet(rank: int, hosts: str, address: str, timeout: float = 20.0) -> a2a.Communicator:
    os.environ["A2A_HOSTS"] = hosts
    size = hosts.count(",") + 1
    comm = a2a.init(rank, size, bootstrap=join(rank, size, address), timeout=timeout)
    assert _core.host_facts(comm)["hosts"] == len(set(hosts.split(",")))
    return comm
