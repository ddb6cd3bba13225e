"""How ranks become a group: of a2a over one of its transports, or of a peer."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import a2a

from .cases import Case
from .rank import Task, run

__all__ = ["ADAPTERS", "PEERS", "TRANSPORTS", "start"]

TRANSPORTS = ("shm", "threads", "mpi", "nccl", "hccl")
PEERS = {"gloo": "torch", "paddle-gloo": "paddle", "mpi4py": "mpi4py"}
"""The prefix of the signatures that each peer is called by."""

OPERATION_SECONDS = 10.0
_PR_SET_PDEATHSIG = 1


def start(how: str, ranks: int, tasks: Sequence[Task], address: str) -> list[int]:
    """Starts the ranks, which connect to the runner at ``address`` and run the tasks. Returns the processes' ids."""
    job = f"conformance-{os.getpid()}-{address.strip(chr(0))}"
    if how == "mpi4py":
        return [_mpiexec(ranks, tasks, address)]
    if how == "threads":
        return [_fork(lambda: _threads(ranks, tasks, address))]
    join = {"shm": _shared_memory, "gloo": _gloo, "paddle-gloo": _paddle_gloo}.get(how)
    if join is None:
        raise a2a.UnsupportedError(f"this build has no transport {how}")
    bodies = [partial(_process, join, rank, ranks, tasks, address, job) for rank in range(ranks)]
    return [_fork(body) for body in bodies]


ADAPTERS = {"torch": "a2a.torch", "paddle": "a2a.paddle", "atb": "a2a.atb"}
ORIGINALS = {"torch": "torch.distributed", "paddle": "paddle.distributed"}
"""The module whose functions the signatures of a framework call, by their prefix."""


def _fork(body: Callable[[], None]) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        os.setpgid(0, 0)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        silent = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(silent, stream)
        body()
    except BaseException:
        os._exit(1)
    os._exit(0)


@contextlib.contextmanager
def _runner(address: str) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as end:
        end.connect(address)
        yield end


def _process(join: Any, rank: int, ranks: int, tasks: Sequence[Task], address: str, job: str) -> None:
    with _runner(address) as runner, join(rank, ranks, job) as (group, peer):
        run(tasks, rank, group, ORIGINALS if peer else ADAPTERS, runner)


def _threads(ranks: int, tasks: Sequence[Task], address: str) -> None:
    def body(comm: a2a.Communicator) -> None:
        with _runner(address) as runner:
            run(tasks, comm.rank, comm, ADAPTERS, runner)

    a2a.spawn(body, ranks, threads=True)


@contextlib.contextmanager
def _shared_memory(rank: int, ranks: int, job: str) -> Iterator[tuple[Any, bool]]:
    with a2a.init(rank, ranks, job=job, timeout=OPERATION_SECONDS) as comm:
        yield comm, False


@contextlib.contextmanager
def _gloo(rank: int, ranks: int, job: str) -> Iterator[tuple[Any, bool]]:
    import datetime

    dist = importlib.import_module("torch.distributed")
    path = Path(tempfile.gettempdir()) / f"{job}.store"
    limit = datetime.timedelta(seconds=OPERATION_SECONDS)
    dist.init_process_group("gloo", f"file://{path}", rank=rank, world_size=ranks, timeout=limit)
    yield None, True


@contextlib.contextmanager
def _paddle_gloo(rank: int, ranks: int, job: str) -> Iterator[tuple[Any, bool]]:
    first = 20000 + sum(job.encode()) * 7919 % 20000
    ends = [f"127.0.0.1:{first + r}" for r in range(ranks)]
    os.environ |= {
        "PADDLE_TRAINER_ID": str(rank),
        "PADDLE_TRAINERS_NUM": str(ranks),
        "PADDLE_CURRENT_ENDPOINT": ends[rank],
        "PADDLE_TRAINER_ENDPOINTS": ",".join(ends),
        "PADDLE_MASTER": f"127.0.0.1:{first + ranks}",
        "PADDLE_DISTRI_BACKEND": "gloo",
    }
    importlib.import_module("paddle.distributed").init_parallel_env()
    yield None, True


def _mpiexec(ranks: int, tasks: Sequence[Task], address: str) -> int:
    with tempfile.NamedTemporaryFile(prefix="a2a-conformance-", delete=False) as file:
        file.write(json.dumps({"address": address, "tasks": [dataclasses.asdict(task) for task in tasks]}).encode())
    options = ["--allow-run-as-root", "--oversubscribe"] if _is_open_mpi() else []
    command = ["mpiexec", *options, "-n", str(ranks), sys.executable, "-m", __name__, file.name]
    quiet = subprocess.DEVNULL
    return subprocess.Popen(command, stdin=quiet, stdout=quiet, stderr=quiet, start_new_session=True).pid


def _is_open_mpi() -> bool:
    said = subprocess.run(["mpiexec", "--version"], capture_output=True, text=True, check=False).stdout
    return "Open MPI" in said or "OpenRTE" in said or "PRRTE" in said


def _mpi_rank(path: str) -> None:
    world = importlib.import_module("mpi4py.MPI").COMM_WORLD
    given = json.loads(Path(path).read_text(encoding="utf-8"))
    tasks = [Task(Case(**task.pop("case")), **task) for task in given["tasks"]]
    with _runner(given["address"]) as runner:
        run(tasks, world.rank, world, ORIGINALS, runner)


if __name__ == "__main__":
    _mpi_rank(sys.argv[1])
