"""Ranks that live for many tests: each runs one function after another, so that a property test makes hundreds of
exchanges without starting a process for each."""

from __future__ import annotations

import gc
import itertools
import multiprocessing.connection
import multiprocessing.context
import os
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from multiprocessing import connection
from typing import Any

from commands import command
from forked import die_with_parent
from mpi import Mpi
from tcp_peer import free_address

import a2a
from a2a._core import host_facts

# Deadlines of one operation and of one function. The first is shorter, so that its message is what a test shows.
OPERATION_SECONDS = 40.0
RUN_SECONDS = 60.0
START_SECONDS = 90.0
LEAVE_SECONDS = 10.0

_numbers = itertools.count()


class RankFailure(AssertionError):
    """What went wrong on a rank, with its traceback."""


class Pool:
    """``n`` ranks, as processes, as threads of this one, or as processes on the hosts of a list as in A2A_HOSTS, which
    ``mpi`` connects, or TCP without one. Use as a context manager."""

    def __init__(self, n: int, threads: bool = False, hosts: str = "", mpi: Mpi | None = None) -> None:
        self.n, self.threads, self.hosts, self.mpi = n, threads, hosts, mpi
        self._ranks: list[connection.Connection] = []
        self._spawner: threading.Thread | None = None

    def __repr__(self) -> str:
        network = self.mpi.name if self.mpi else "TCP"
        place = f"on {self.hosts} over {network}" if self.hosts else "threads" if self.threads else "processes"
        return f"<{self.n} {place}>"

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        for rank in self._ranks:
            rank.send(None)
        self.stop()

    def run(self, fn: Callable[..., Any], *args: Any) -> list[Any]:
        """``fn(comm, *args)`` on every rank, and the results in rank order. Function and results are pickled. When a
        rank raises, its communicator may be broken, so the next call starts new ranks."""
        if not self._ranks:
            self._start()
        try:
            for rank in self._ranks:
                rank.send((fn, args))
            answers = self._collect()
            failures = [answer for answer in answers if answer[0] != "value"]
            if failures:
                first = min(failures, key=lambda failure: failure[2])
                raise RankFailure(f"{len(failures)} of {self.n} ranks failed, the first of them {first[1]}")
        except BaseException:
            self.stop()
            raise
        return [answer[1] for answer in answers]

    def stop(self) -> None:
        """Ends the ranks. Without a word before, idle ones fail, so that spawn() ends those that are stuck."""
        for rank in self._ranks:
            rank.close()
        self._ranks = []
        if self._spawner is not None:
            self._spawner.join(timeout=15)
            self._spawner = None

    def _collect(self) -> list[Any]:
        answers: dict[int, Any] = {}
        deadline = time.monotonic() + RUN_SECONDS
        while len(answers) < self.n:
            waiting = {rank: at for at, rank in enumerate(self._ranks) if at not in answers}
            ready = connection.wait(list(waiting), timeout=max(deadline - time.monotonic(), 0))
            if not ready:
                raise RankFailure(f"no answer from ranks {sorted(waiting.values())} after {RUN_SECONDS} s")
            for rank in ready:
                at = waiting[rank]  # type: ignore[index]
                try:
                    answers[at] = rank.recv()  # type: ignore[union-attr]
                except (EOFError, ConnectionError):
                    answers[at] = ("died", f"rank {at}: died", time.monotonic())
        return [answers[at] for at in range(self.n)]

    def _start(self) -> None:
        # An abstract address: nothing is left in the file system.
        address = f"\0a2a-test-pool-{os.getpid()}-{next(_numbers)}"
        errors: list[BaseException] = []

        def spawn() -> None:
            try:
                if self.hosts:
                    self._run_on_hosts(address.removeprefix("\0"))
                elif self.threads:
                    a2a.spawn(_serve, self.n, address, threads=True)
                else:
                    self._run_processes(address)
            except BaseException as error:
                errors.append(error)

        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(address)
            listener.listen(self.n)
            listener.settimeout(0.1)
            self._spawner = threading.Thread(target=spawn, daemon=True)
            self._spawner.start()
            deadline = time.monotonic() + START_SECONDS
            ranks: dict[int, connection.Connection] = {}
            while len(ranks) < self.n:
                try:
                    end = connection.Connection(listener.accept()[0].detach())
                except TimeoutError:
                    if errors or time.monotonic() > deadline:
                        raise RankFailure(f"{len(ranks)} of {self.n} ranks started") from next(iter(errors), None)
                    continue
                ranks[end.recv()] = end
        self._ranks = [ranks[at] for at in range(self.n)]

    def _run_processes(self, address: str) -> None:
        # Forked from a process that has imported the frameworks, which takes each rank seconds otherwise.
        job, context = f"pool-{os.getpid()}-{next(_numbers)}", fork_server()
        facts = [(rank, self.n, job, address, dict(os.environ)) for rank in range(self.n)]
        ranks = [context.Process(target=_serve_forked, args=one, daemon=True) for one in facts]
        for rank in ranks:
            rank.start()
        try:
            while not multiprocessing.connection.wait([rank.sentinel for rank in ranks]):
                pass
            for rank in ranks:
                rank.join(LEAVE_SECONDS)
        finally:
            codes = [rank.exitcode for rank in ranks]
            for rank in ranks:
                rank.kill()
                rank.join()
        if any(codes):
            raise RankFailure(f"exit codes {codes}")

    def _run_on_hosts(self, address: str) -> None:
        # The folders of tests, whose functions ranks import.
        env = {**os.environ, "A2A_HOSTS": self.hosts, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        if self.mpi is None:
            started = command("run", "-n", str(self.n), __file__, address)
            env["A2A_BOOTSTRAP"] = f"tcp://{free_address()}"
        else:
            started = self.mpi.command(self.n, __file__, address)
            env |= self.mpi.variables()
        subprocess.run(started, env=env, check=True)


def fork_server() -> multiprocessing.context.ForkServerContext:
    """Starts the server with the first call, with what this process has imported by then."""
    context = multiprocessing.get_context("forkserver")
    preload = [name for name in ("numpy", "torch", "paddle", "jax", "a2a", "rank_pool") if name in sys.modules]
    context.set_forkserver_preload(preload)
    return context


def _serve_forked(rank: int, n: int, job: str, address: str, environment: dict[str, str]) -> None:
    die_with_parent()
    gc.freeze()
    os.environ.clear()
    own = {"A2A_RANK": rank, "A2A_LOCAL_RANK": rank, "A2A_SIZE": n, "A2A_JOB": job}  # as spawn() sets them
    os.environ.update(environment | {name: str(value) for name, value in own.items()})
    with a2a.init(timeout=OPERATION_SECONDS) as comm:
        _serve(comm, address)


class _Through:
    """Ranks meet through the communicator that they have already."""

    def __init__(self, comm: a2a.Communicator) -> None:
        self.allgather = comm.allgather_bytes


def reconnect(comm: a2a.Communicator) -> a2a.Communicator:
    """Another communicator of the same ranks, with a deadline that suits tests."""
    return a2a.init(comm.rank, comm.size, timeout=OPERATION_SECONDS, bootstrap=_Through(comm))


def _serve(outer: a2a.Communicator, address: str) -> None:
    with socket.socket(socket.AF_UNIX) as end:
        end.connect(address)
        parent = connection.Connection(end.detach())
    parent.send(outer.rank)
    # A bootstrap of Python's does not reach other hosts.
    comm = outer if host_facts(outer)["hosts"] > 1 else reconnect(outer)
    while (call := parent.recv()) is not None:
        fn, args = call
        try:
            answer = ("value", fn(comm, *args))
        except BaseException:  # pytest's own failures are no Exception
            answer = ("error", f"rank {comm.rank}:\n{traceback.format_exc()}", time.monotonic())
        parent.send(answer)
    comm.close()


if __name__ == "__main__":
    _serve(a2a.init(timeout=OPERATION_SECONDS), "\0" + sys.argv[1])
