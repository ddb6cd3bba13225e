"""Makes groups of ranks: of a2a over one of its transports, or of a peer.

A way has its requirements, and the function by which a rank joins. Another transport, or another peer, is one more
entry of WAYS."""

from __future__ import annotations

import contextlib
import datetime
import importlib
import importlib.util
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import a2a

from .._core import library_of
from . import devices, mpiexec

__all__ = ["PEERS", "TRANSPORTS", "WAYS", "Place", "Way"]

OPERATION_SECONDS = 10.0
"""The deadline of each operation, after which a rank whose peers do not come reports."""


@dataclass(frozen=True)
class Place:
    """The meeting place of a session's ranks."""

    ranks: int
    job: str
    """A name that no other session has."""
    folder: Path | None
    """A folder that is removed after the session, where the way has one."""
    ports: tuple[int, ...]
    """Free ports on this host, one more than ranks."""


Join = Callable[[int, Place], contextlib.AbstractContextManager[Any]]
"""Joins as this rank and yields the group for signatures; leaves it at the end."""


@dataclass(frozen=True)
class Way:
    join: Join | None
    """The function to join; None where the ranks are threads, which get their communicators from a2a.spawn."""
    modules: Mapping[str, str]
    """The libraries whose signatures are tried, and the modules of their functions; "" for none."""
    missing: Callable[[], str] = field(default=lambda: "")
    """Return what is missing here for this way, in one line; "" for nothing."""
    memory: str = "host"
    """The kind of memory of its tensors: Framework.memory."""
    launcher: str = "fork"
    """How ranks are started: "fork"; "exec", where they must share nothing with the runner; "threads"; or "mpiexec",
    whose ranks get their number from the group that they join."""
    frameworks: tuple[str, ...] = ()
    """The only dtypes that it accepts; () for all."""
    folder: bool = False
    """Whether its ranks need a folder to meet in."""
    refusal: str = "(?!)"
    """A pattern of errors that mean "not supported", beside NotImplementedError."""


OWN = {"core": "", "torch": "a2a.torch", "paddle": "a2a.paddle", "atb": "a2a.atb"}
"""The libraries whose calls a2a has."""
_OWN_ON_DEVICES = {library: module for library, module in OWN.items() if library != "paddle"}
"""Paddle's calls go to Paddle's own process groups there."""


# ---- a2a's transports ------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _shared_memory(rank: int, place: Place) -> Iterator[Any]:
    # With these limits cases of moderate size take every way of the transport.
    os.environ.setdefault("A2A_SHM_STREAM_MIN", str(256 << 10))
    os.environ["A2A_JOB"] = place.job  # for groups that a call makes itself
    with a2a.init(rank, place.ranks, job=place.job, timeout=OPERATION_SECONDS) as comm:
        yield comm


@contextlib.contextmanager
def _over_mpi(rank: int, place: Place) -> Iterator[Any]:
    """Ranks take turns to be on one of two hosts, so that half of what they exchange goes over MPI."""
    os.environ["A2A_HOSTS"] = ",".join("ab"[rank % 2] for rank in range(place.ranks))
    with a2a.init(timeout=OPERATION_SECONDS) as comm:
        yield comm


@contextlib.contextmanager
def _over_tcp(rank: int, place: Place) -> Iterator[Any]:
    """The same over a2a's own TCP."""
    os.environ["A2A_HOSTS"] = ",".join("ab"[rank % 2] for rank in range(place.ranks))
    secret = place.job.encode()  # no other process knows the job's name
    meeting = a2a.TcpBootstrap(
        rank, place.ranks, f"127.0.0.1:{place.ports[0]}", job=place.job, secret=secret, timeout=OPERATION_SECONDS
    )
    with a2a.init(rank, place.ranks, timeout=OPERATION_SECONDS, bootstrap=meeting) as comm:
        yield comm


@contextlib.contextmanager
def _over_ucx(rank: int, place: Place) -> Iterator[Any]:
    os.environ["A2A_NETWORK"] = "ucx"
    with _over_tcp(rank, place) as comm:
        yield comm


def _no_ucx() -> str:
    try:
        library_of("ucx")
    except a2a.UnsupportedError as error:
        return str(error)
    return ""


def _on_devices(memory: str) -> Way:
    """Return the way in which rank r uses device r."""

    @contextlib.contextmanager
    def join(rank: int, place: Place) -> Iterator[Any]:
        with _shared_memory(rank, place) as comm:
            comm.connect(f"{memory}:{rank}", timeout=devices.CONNECT_SECONDS)
            yield comm

    return Way(join, _OWN_ON_DEVICES, lambda: devices.look(memory).missing, memory=memory, launcher="exec")


# ---- peers -----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _gloo(rank: int, place: Place) -> Iterator[Any]:
    dist = importlib.import_module("torch.distributed")
    limit = datetime.timedelta(seconds=OPERATION_SECONDS)
    assert place.folder is not None
    store = f"file://{place.folder / 'store'}"
    dist.init_process_group("gloo", store, rank=rank, world_size=place.ranks, timeout=limit)
    yield None


@contextlib.contextmanager
def _paddle_gloo(rank: int, place: Place) -> Iterator[Any]:
    master, *ports = place.ports
    ends = [f"127.0.0.1:{port}" for port in ports]
    os.environ |= {
        "PADDLE_TRAINER_ID": str(rank),
        "PADDLE_TRAINERS_NUM": str(place.ranks),
        "PADDLE_CURRENT_ENDPOINT": ends[rank],
        "PADDLE_TRAINER_ENDPOINTS": ",".join(ends),
        "PADDLE_MASTER": f"127.0.0.1:{master}",
        "PADDLE_DISTRI_BACKEND": "gloo",
    }
    importlib.import_module("paddle.distributed").init_parallel_env()
    yield None


@contextlib.contextmanager
def _mpi4py(rank: int, place: Place) -> Iterator[Any]:
    yield importlib.import_module("mpi4py.MPI").COMM_WORLD


def _lacks(module: str, program: str = "") -> Callable[[], str]:
    def missing() -> str:
        if importlib.util.find_spec(module) is None:
            return f"{module} is not installed"
        return f"there is no {program} in PATH" if program and not shutil.which(program) else ""

    return missing


TRANSPORTS = {
    "shm": Way(_shared_memory, OWN),
    "threads": Way(None, OWN, launcher="threads"),
    "tcp": Way(_over_tcp, OWN),
    "ucx": Way(_over_ucx, OWN, _no_ucx),
    "mpi": Way(_over_mpi, OWN, mpiexec.missing, launcher="mpiexec"),
    "nccl": _on_devices("cuda"),
    "hccl": _on_devices("npu"),
}
PEERS = {
    "gloo": Way(
        _gloo,
        {"torch": "torch.distributed"},
        _lacks("torch"),
        frameworks=("torch",),
        folder=True,
        refusal="Invalid scalar type|has no attribute",
    ),
    "paddle-gloo": Way(
        _paddle_gloo,
        {"paddle": "paddle.distributed"},
        _lacks("paddle"),
        frameworks=("paddle",),
        refusal="Do not support|has no attribute",
    ),
    "mpi4py": Way(
        _mpi4py,
        {"mpi4py": "mpi4py.MPI"},
        _lacks("mpi4py", "mpiexec"),
        launcher="mpiexec",
        frameworks=("numpy",),
        refusal="DLPack only supports",
    ),
}
WAYS = {**TRANSPORTS, **PEERS}
