"""What a rank has during a test: its variables, its communicator, and the groups of frameworks."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta

from ..._core import AbortedError, Communicator, InvalidArgumentError, MismatchError, PeerLostError
from ...dump import find, read
from ...launch import init
from .networks import entered

__all__ = ["PATIENCE", "Place", "World"]

# Variables of launchers describe the process that runs the tests, not its ranks.
_OF_LAUNCHERS = ("OMPI_", "PMIX_", "PMI_", "MPI_LOCAL", "SLURM_", "PADDLE_", "TORCHELASTIC_")
_LAUNCHED = (
    "A2A_RANK",
    "A2A_SIZE",
    "A2A_JOB",
    "A2A_LOCAL_RANK",
    "A2A_BOOTSTRAP",
    "A2A_SECRET",
    "A2A_SECRET_FILE",
    "A2A_HOSTS",
    "A2A_JOINED",
    "A2A_ENDED",
    "A2A_RESTARTS",
    "A2A_RESTART",
)

PATIENCE = 3600.0
"""By how many seconds the deadlines of operations exceed the time of a test. What ends a test that hangs is its limit,
which says more; and where a rank is in a debugger, the others wait for it."""


@dataclass(frozen=True)
class Place:
    """Which rank this is, and what the test wants."""

    rank: int
    size: int
    job: str
    limit: float
    """seconds of the test"""
    folder: str
    """of this test alone, which the process that runs the tests makes and removes"""
    torch: str = ""
    """the backend of the default process group"""
    paddle: bool = False
    jax: bool = False
    hosts: tuple[str, ...] = ()
    """of each rank"""
    meeting: str = ""
    """where ranks on several hosts meet, as host:port"""
    secret: str = ""
    network: str = ""
    """the file of the namespace whose network the rank uses"""


@dataclass
class World:
    place: Place
    _comm: Communicator | None = None
    _before: dict[str, str] | None = None
    _network: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    _close: list[Callable[[bool], None]] = field(default_factory=list)

    @property
    def comm(self) -> Communicator:
        """The communicator of all ranks, which the first use makes. Collective."""
        if self._comm is None:
            self._comm = init(timeout=self.place.limit + PATIENCE)
        return self._comm

    def open(self) -> None:
        """Set the variables, and make the groups of frameworks. Collective."""
        self._before = dict(os.environ)
        for name in list(os.environ):
            if name in _LAUNCHED or name.startswith(_OF_LAUNCHERS):
                del os.environ[name]
        os.environ.update(self._variables())
        if self.place.network:
            self._network.enter_context(entered(self.place.network))
        if self.place.torch:
            self._open_torch(self.place.torch)
        if self.place.paddle:
            self._open_paddle()
        if self.place.jax:
            self._open_jax()

    def _variables(self) -> dict[str, str]:
        place = self.place
        rank, size = str(place.rank), str(place.size)
        found = {"A2A_RANK": rank, "A2A_SIZE": size, "A2A_LOCAL_RANK": rank, "A2A_JOB": place.job}
        found |= {"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": size}
        if not os.environ.get("A2A_DUMP"):
            found["A2A_DUMP"] = place.folder
        if place.hosts:
            on_host = [r for r, host in enumerate(place.hosts) if host == place.hosts[place.rank]]
            found["A2A_LOCAL_RANK"] = found["LOCAL_RANK"] = str(on_host.index(place.rank))
            found["LOCAL_WORLD_SIZE"] = str(len(on_host))
            found |= {"A2A_HOSTS": ",".join(place.hosts), "A2A_BOOTSTRAP": f"tcp://{place.meeting}"}
            found["A2A_SECRET"] = place.secret
        if place.network:
            found["GLOO_SOCKET_IFNAME"] = "eth0"
        return found

    def abort(self, reason: str) -> None:
        """Have ranks that wait for this one raise AbortedError."""
        if self._comm is not None and not self._comm.closed:
            self._comm.abort(reason)

    def close(self, all_passed: bool) -> None:
        """Give everything back. Collective if all ranks have passed; otherwise nobody waits for anybody. The
        communicator's own errors are raised: an operation is unfinished, or the ranks are not in step."""
        try:
            with contextlib.ExitStack() as stack:
                stack.callback(self._close_comm, all_passed)
                for close in self._close:
                    stack.callback(close, all_passed)
        finally:
            self._close.clear()
            self._network.close()
            self._comm = None
            if self._before is not None:
                os.environ.clear()
                os.environ.update(self._before)
                self._before = None

    def _close_comm(self, all_passed: bool) -> None:
        comm = self._comm
        if comm is None or comm.closed:
            return
        if all_passed and not comm.broken:
            comm.close(timeout=5)
        else:
            comm.abort("the test has ended")
            with contextlib.suppress(Exception):
                comm.close(timeout=0.1)

    def out_of_step(self) -> str:
        """Return what is wrong with the communicator at the end of a test that this rank has passed, in words: nobody
        has waited for an operation, so that its result may be incomplete, or other ranks are still in one. Collective;
        "" where all is well, or another rank has failed."""
        if self._comm is None or self._comm.broken or self._comm.closed:
            return ""
        if unfinished := self._unfinished():
            return unfinished
        try:
            self._comm.allgather_bytes(b"the end of the test")
        except MismatchError as error:
            return f"rank {self._comm.rank} has come to the end of the test, and others have not: {error}"
        except (AbortedError, PeerLostError):
            pass
        return ""

    def _unfinished(self) -> str:
        assert self._comm is not None
        for path in find([os.environ["A2A_DUMP"]]):
            try:
                record = read(path)
            except (InvalidArgumentError, OSError):
                continue  # of another program, in a folder of the user's
            if record.rank != self._comm.rank or record.pid != os.getpid() or record.label != "world":
                continue
            for entry in record.entries.values():
                if record.fate == "open" and entry.state == "started":
                    return f"rank {record.rank} has not waited for {entry.op} #{entry.number}, called from {entry.site}"
        return ""

    # ---- frameworks --------------------------------------------------------------------------------------------------

    def _open_torch(self, backend: str) -> None:
        import torch.distributed as dist

        if dist.is_initialized():
            raise RuntimeError("the test before has left a default process group of torch")
        limit = timedelta(seconds=self.place.limit + PATIENCE)
        store = dist.FileStore(f"{self.place.folder}/store", self.place.size)
        dist.init_process_group(backend, store=store, rank=self.place.rank, world_size=self.place.size, timeout=limit)
        self._close.append(lambda all_passed: _close_torch())

    def _open_paddle(self) -> None:
        import a2a.paddle

        a2a.paddle.init_parallel_env()
        self._close.append(lambda all_passed: a2a.paddle.destroy_process_group())

    def _open_jax(self) -> None:
        from a2a.jax import _arguments

        _arguments._own = self.comm
        self._close.append(lambda all_passed: setattr(_arguments, "_own", None))


def _close_torch() -> None:
    import torch.distributed as dist

    if dist.is_initialized():
        dist.destroy_process_group()
