"""Launchers: the environment variables that each of them sets, and the launcher that started this process.

Where launchers are nested (torchrun inside ``a2a run`` inside srun), the nearest to the program decides: the one whose
variables the fewest of the process's ancestors had in the environment with which they were started. Wrappers between a
launcher and the program, a shell or ``numactl``, have the variables of all. If that shows no difference, or the
ancestors cannot be read, the first of this list decides:

1. ``a2a run``, or the same variables set by hand: A2A_RANK, A2A_SIZE, A2A_JOB, A2A_LOCAL_RANK
2. torchrun, and ``env://`` by hand: RANK, WORLD_SIZE; the job is named by TORCHELASTIC_RUN_ID,
   TORCHELASTIC_RESTART_COUNT, MASTER_ADDR and MASTER_PORT. Without TORCHELASTIC_RUN_ID, and under ``a2a run`` or an
   mpiexec (5, 6) that gives the same rank and size, that one wins: a program that sets the variables for torch is no
   launcher, and does not say where its ranks live.
3. paddle.distributed.launch: PADDLE_TRAINER_ID, PADDLE_TRAINERS_NUM; PADDLE_TRAINER_ENDPOINTS
4. Ascend's scripts: RANK_ID, RANK_TABLE_FILE; what the rank table says. The table without RANK_ID says nothing about
   this process, so that the launchers below decide.
5. Open MPI mpiexec: OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE; PMIX_NAMESPACE
6. MPICH or Intel MPI mpiexec: PMI_RANK, PMI_SIZE; I_MPI_HYDRA_UUID, or the process behind PMI_FD
7. srun: SLURM_PROCID, SLURM_STEP_NUM_TASKS or SLURM_NTASKS; SLURM_JOB_ID, SLURM_STEP_ID. A batch script outside
   of srun is one process, although SLURM_PROCID is set there: SLURM_STEP_ID tells the two apart.

Otherwise the program is one rank. A2A_JOB without A2A_RANK replaces the name of the job under every launcher.

A rank's children inherit all of these variables and are no ranks: a process that has taken them says so in A2A_JOINED,
and what its descendants find unchanged is not theirs. They are one rank each, unless another launcher starts them or
they give rank, size and job themselves.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ._core import InvalidArgumentError, UnsupportedError
from ._variables import integer, is_set

__all__ = ["Launch", "mark_as_rank"]


@dataclass(frozen=True)
class Launch:
    """The facts of a launcher about this process."""

    launcher: str = "none"
    rank: int = 0
    size: int = 1
    local_rank: int = 0
    job: str | None = None
    """Equal for all ranks of the job, and different for other jobs of this host; None when the launcher does not
    say."""
    several_hosts: str = ""
    """The variables that say that the ranks are on several hosts, or nothing."""

    @classmethod
    def from_environ(cls, env: Mapping[str, str] | None = None) -> Launch:
        """Read the variables of the launchers above, from ``os.environ`` by default. Raises InvalidArgumentError naming
        the variable when its value is invalid, or when its companion is missing, and naming the JSON path of a mistake
        in a rank table."""
        own, env = env is None, os.environ if env is None else env
        inherited = _inherited(env)
        found = [launch for launch in _launches(env) if not any(launch.is_that_of(entry) for entry in inherited)]
        if found:
            return _nearest(found) if own and len(found) > 1 else found[0]
        if inherited:
            return cls()
        if table := env.get("RANK_TABLE_FILE"):
            raise InvalidArgumentError(f"RANK_TABLE_FILE={table} is set in the environment, but RANK_ID is not")
        return cls()

    def is_that_of(self, entry: list[Any]) -> bool:
        """Whether an ancestor has taken these facts. The job may be missing here: a child may not be able to read its
        name."""
        return [self.launcher, self.rank, self.size] == entry[:3] and self.job in (None, entry[3])

    def named_job(self) -> str:
        """``job``. Raises InvalidArgumentError when the launcher does not say."""
        if self.job is None:
            giver = "A2A_RANK" if self.launcher == "a2a run" else self.launcher  # a2a run names every job
            raise InvalidArgumentError(
                f"{giver} gives rank {self.rank} of {self.size} no name for its job: "
                f"{_NO_JOB[self.launcher]}; set A2A_JOB to one text for all ranks of the job, or pass job="
            )
        return self.job

    def require_one_host(self) -> None:
        """Raise UnsupportedError when the ranks are on several hosts."""
        if self.several_hosts:
            raise UnsupportedError(
                f"{self.launcher} placed the ranks on several hosts ({self.several_hosts}); pass bootstrap="
            )


_NO_JOB = {
    "a2a run": "A2A_JOB is not set",
    "torchrun": "neither TORCHELASTIC_RUN_ID nor MASTER_PORT is set",
    "paddle.distributed.launch": "neither PADDLE_TRAINER_ENDPOINTS nor PADDLE_MASTER is set",
    "Open MPI": "neither PMIX_NAMESPACE nor OMPI_MCA_ess_base_jobid is set",
    "MPICH": "PMI_FD does not lead to the launcher, perhaps a wrapper closed it",
    "srun": "SLURM_JOB_ID is not set",
}


def _launches(env: Mapping[str, str]) -> list[Launch]:
    """Return the facts of each launcher, in the documented order. Invalid variables raise only if they come first."""
    found: list[Launch] = []
    for detect in _DETECTORS:
        try:
            launch = detect(env)
        except InvalidArgumentError:
            if not found:
                raise
            continue
        if launch is not None and launch not in found:
            found.append(launch)
    return found


def _nearest(launches: list[Launch]) -> Launch:
    """Return the nearest launcher. The first ancestor that lacks some of them has started it, or is it."""
    for env in _environments_of_ancestors():
        try:
            there = _launches(env)
        except InvalidArgumentError:
            there = []
        missing = [launch for launch in launches if launch not in there]
        if missing:
            return missing[0]
    return launches[0]


def _environments_of_ancestors() -> Iterator[dict[str, str]]:
    """Yield the environments with which the ancestors were started, from the parent on, as far as they can be read."""
    pid = os.getppid()
    while pid > 0:
        try:
            words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]
        except OSError:
            return
        yield dict(os.fsdecode(word).split("=", 1) for word in words if b"=" in word)
        pid = int(parent)


_JOINED = "A2A_JOINED"


def mark_as_rank() -> None:
    """Tell the children of this process that the launchers' variables are not about them."""
    entries = [[launch.launcher, launch.rank, launch.size, launch.job] for launch in _launches(os.environ)]
    os.environ[_JOINED] = json.dumps([_this_process(), entries])


def is_child_of_rank(env: Mapping[str, str]) -> bool:
    """Whether the launchers' variables are about an ancestor of this process."""
    return bool(_inherited(env))


def _inherited(env: Mapping[str, str]) -> list[list[Any]]:
    """Return the facts that the nearest ancestor that is a rank has found in its environment."""
    if not is_set(env, _JOINED):
        return []
    try:
        process, entries = json.loads(env[_JOINED])
        if any(len(entry) != 4 for entry in entries):
            raise ValueError
    except (ValueError, TypeError, RecursionError):
        raise InvalidArgumentError(
            f"{_JOINED}={env[_JOINED][:60]!r} in the environment is nothing that a rank sets"
        ) from None
    return [] if process == _this_process() else [list(entry) for entry in entries]


def _this_process() -> list[str]:
    """Return the number and the start time of this process. The start time tells it from others with the same number,
    also in another PID namespace."""
    try:
        return [str(os.getpid()), _start_of(os.getpid())]
    except OSError:
        return [str(os.getpid())]


def _a2a(env: Mapping[str, str]) -> Launch | None:
    found = _rank_and_size(env, "A2A_RANK", "A2A_SIZE")
    if found is None:
        return None
    rank, size = found
    return Launch("a2a run", rank, size, integer(env, "A2A_LOCAL_RANK", rank), _job(env, []))


def _torchrun(env: Mapping[str, str]) -> Launch | None:
    found = _rank_and_size(env, "RANK", "WORLD_SIZE")
    if found is None:
        return None
    if "TORCHELASTIC_RUN_ID" not in env:
        for launch in (_a2a(env), _open_mpi(env) or _pmi(env)):
            if launch is not None and (launch.rank, launch.size) == found:
                return launch
    rank, size = found
    # A restarted group must not meet ranks of the first attempt, hence the restart count. The run id is "none" under a
    # static rendezvous, hence the port.
    names = ["TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT"]
    known = "TORCHELASTIC_RUN_ID" in env or "MASTER_PORT" in env
    return Launch(
        "torchrun",
        rank,
        size,
        integer(env, "LOCAL_RANK", rank),
        _job(env, [env.get(name, "") for name in names] if known else []),
        _differ(env, "LOCAL_WORLD_SIZE", "WORLD_SIZE"),
    )


def _paddle(env: Mapping[str, str]) -> Launch | None:
    found = _rank_and_size(env, "PADDLE_TRAINER_ID", "PADDLE_TRAINERS_NUM")
    if found is None:
        return None
    rank, size = found
    endpoints = env.get("PADDLE_TRAINER_ENDPOINTS", "")
    names = [name for name in (endpoints, env.get("PADDLE_MASTER", "")) if name]
    hosts = {endpoint.rpartition(":")[0] for endpoint in endpoints.split(",") if endpoint}
    several = f"PADDLE_TRAINER_ENDPOINTS={endpoints}" if len(hosts) > 1 else ""
    if integer(env, "PADDLE_NNODES", 1) > 1:
        several = f"PADDLE_NNODES={env['PADDLE_NNODES']}"
    local_rank = integer(env, "PADDLE_RANK_IN_NODE", rank)
    return Launch("paddle.distributed.launch", rank, size, local_rank, _job(env, names), several)


def _rank_table(env: Mapping[str, str]) -> Launch | None:
    table = env.get("RANK_TABLE_FILE")
    if not table or "RANK_ID" not in env:
        return None
    from .atb._binding import read_rank_table  # here, because most programs do not need ATB

    try:
        _, identity, places = read_rank_table(table)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"RANK_TABLE_FILE={table} in the environment: {error}") from None
    rank, size = integer(env, "RANK_ID", 0), len(places)
    if not 0 <= rank < size:
        raise InvalidArgumentError(f"RANK_ID={rank} in the environment is not one of the {size} ranks of {table}")
    servers = [place["server_id"] for place in places]
    hosts = len(set(servers))
    several = f"RANK_TABLE_FILE={table} has {hosts} servers" if hosts > 1 else ""
    # The ranks of a server follow one another.
    local_rank = rank - servers.index(servers[rank])
    return Launch("a rank table", rank, size, local_rank, _job(env, ["rank-table", identity]), several)


def _open_mpi(env: Mapping[str, str]) -> Launch | None:
    found = _rank_and_size(env, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")
    if found is None:
        return None
    rank, size = found
    names = [env[name] for name in ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid") if name in env]
    return Launch(
        "Open MPI",
        rank,
        size,
        integer(env, "OMPI_COMM_WORLD_LOCAL_RANK", rank),
        _job(env, names[:1]),
        _differ(env, "OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_COMM_WORLD_SIZE"),
    )


def _pmi(env: Mapping[str, str]) -> Launch | None:
    found = _rank_and_size(env, "PMI_RANK", "PMI_SIZE")
    if found is None:
        return None
    rank, size = found
    names = [env["I_MPI_HYDRA_UUID"]] if "I_MPI_HYDRA_UUID" in env else _process_behind(env.get("PMI_FD", ""))
    local_rank = integer(env, "MPI_LOCALRANKID", rank)
    launcher = "Intel MPI" if "I_MPI_HYDRA_UUID" in env else "MPICH"
    return Launch(launcher, rank, size, local_rank, _job(env, names), _differ(env, "MPI_LOCALNRANKS", "PMI_SIZE"))


def _slurm(env: Mapping[str, str]) -> Launch | None:
    if "SLURM_STEP_ID" not in env:
        return None
    tasks = "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in env else "SLURM_NTASKS"
    found = _rank_and_size(env, "SLURM_PROCID", tasks)
    if found is None:
        return None
    rank, size = found
    names = [env["SLURM_JOB_ID"], env["SLURM_STEP_ID"]] if "SLURM_JOB_ID" in env else []
    # SLURM_NNODES counts the nodes of the whole allocation; a step may use fewer.
    nodes = "SLURM_STEP_NUM_NODES" if "SLURM_STEP_NUM_NODES" in env else "SLURM_NNODES"
    several = f"{nodes}={env[nodes]}" if integer(env, nodes, 1) > 1 else ""
    return Launch("srun", rank, size, integer(env, "SLURM_LOCALID", rank), _job(env, names), several)


_DETECTORS = (_a2a, _torchrun, _paddle, _rank_table, _open_mpi, _pmi, _slurm)


def _rank_and_size(env: Mapping[str, str], rank_name: str, size_name: str) -> tuple[int, int] | None:
    if not is_set(env, rank_name) and not is_set(env, size_name):
        return None
    for present, absent in ((rank_name, size_name), (size_name, rank_name)):
        if not is_set(env, absent):
            raise InvalidArgumentError(f"{present}={env[present]} is set in the environment, but {absent} is not")
    rank, size = integer(env, rank_name, 0), integer(env, size_name, 1)
    if size < 1:
        raise InvalidArgumentError(f"{size_name}={size} in the environment is not a number of ranks")
    if not 0 <= rank < size:
        raise InvalidArgumentError(f"{rank_name}={rank} in the environment is not a rank below {size_name}={size}")
    return rank, size


def _differ(env: Mapping[str, str], local_name: str, size_name: str) -> str:
    size = integer(env, size_name, 1)
    local = integer(env, local_name, size)
    return f"{local_name}={local}, {size_name}={size}" if local != size else ""


def _job(env: Mapping[str, str], names: list[str]) -> str | None:
    # With A2A_RANK, A2A_JOB names the job of ``a2a run``, whose ranks may start launchers of their own.
    if (job := env.get("A2A_JOB")) and (not names or not is_set(env, "A2A_RANK")):
        return job
    if not names:
        return None
    # Socket names are short (107 bytes), endpoint lists are not.
    text = "/".join(names)
    return text if len(text) <= 64 else hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _process_behind(descriptor: str) -> list[str]:
    """Return process id and start time of the process at the other end of a socket. MPICH names its jobs in no
    variable, but all local ranks are connected to one proxy process, also through shell wrappers. Empty when this is no
    such socket."""
    try:
        with socket.fromfd(int(descriptor), socket.AF_UNIX, socket.SOCK_STREAM) as peer:
            credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        pid = struct.unpack("3i", credentials)[0]
        started = _start_of(pid)
    except (OSError, ValueError, IndexError, OverflowError):
        return []
    return [str(pid), started]


def _start_of(pid: int) -> str:
    # The start time, field 22, is counted after the command's closing parenthesis, which may hold blanks.
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
