"""Makes the communicators of process groups whose ranks meet through a store of their framework.

Ranks of one host need nothing else. Between hosts they go the way of ``a2a.init()``: over MPI under its launchers, and
over TCP otherwise, with the secret of A2A_SECRET_FILE or A2A_SECRET. The store knows nobody, so it carries no secret,
but for A2A_TRUST_STORE=1: then rank 0 makes one for the group.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import hmac
import json
import os
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ._core import (
    Communicator,
    CoreBootstrap,
    Error,
    InvalidArgumentError,
    MismatchError,
    ShownMeeting,
    TimeoutError,
    UnsupportedError,
    connect,
    library_of,
    mpi_bootstrap,
    secret_of_environment,
)
from ._ended import tell_why_it_fails
from ._launchers import Launch
from ._log import configure, met
from ._places import MPI_LAUNCHERS, address_among, assigned_host, host_id, interface_towards, is_loopback, named_place
from ._store_bootstrap import Store, StoreBootstrap
from ._variables import is_set, switch, warn_of_unknown
from .endpoint import Endpoint
from .launch import init

__all__ = ["Store", "StoreBootstrap", "meet"]

_TRUST = "A2A_TRUST_STORE"


def meet(
    store: Store, rank: int, size: int, timeout: float, places: Sequence[str] = (), launch: Launch | None = None
) -> Communicator:
    """Make the communicator of the ranks that meet in ``store``, which no other group uses. Collective over them; they
    need not have met before. ``places`` are names or addresses of hosts that all ranks reach, such as the store's.
    ``launch`` is that of the environment unless given. After an error it may be called again."""
    bootstrap = StoreBootstrap(store, rank, size, timeout)
    try:
        comm = _Meeting(bootstrap, timeout, places, launch).communicator()
    except BaseException:
        bootstrap.withdraw()
        raise
    bootstrap.finish()
    return comm


@dataclass(frozen=True)
class _Told:
    """What a rank tells the others where they are on several hosts."""

    machine: str
    """Ranks of one name reach each other at 127.0.0.1."""
    mpi: bool
    trusting: bool
    digest: str
    """Of the secret; "" without one."""
    offered: str
    """The secret that rank 0 makes where it trusts the store."""
    address: str
    """Of the interface by which packets go to the others; "" if nothing says where they are."""


class _Meeting:
    def __init__(self, bootstrap: StoreBootstrap, timeout: float, places: Sequence[str], launch: Launch | None) -> None:
        self._bootstrap, self._timeout, self._places, self._launch = bootstrap, timeout, places, launch
        self._began = time.monotonic()
        self._hosts: list[str] = []
        self._told: list[_Told] = []
        self._secret = b""

    def communicator(self) -> Communicator:
        with ShownMeeting(self._bootstrap.rank, self._bootstrap.size):
            self._hosts = self._together(lambda: assigned_host() or host_id())
        if len(set(self._hosts)) == 1:
            return init(self._bootstrap.rank, self._bootstrap.size, bootstrap=self._bootstrap, timeout=self._timeout)
        warn_of_unknown()
        configure()
        tell_why_it_fails()
        self._told = [_Told(**json.loads(text)) for text in self._together(self._facts)]
        over_mpi = self._has_mpi()
        comm = self._over_mpi() if over_mpi else self._over_tcp()
        comm.timeout = self._timeout
        met(comm, "the store, MPI" if over_mpi else "the store, TCP", time.monotonic() - self._began)
        return comm

    # ---- what this rank knows

    def _facts(self) -> str:
        trusting, digest = switch(os.environ, _TRUST), ""
        if is_set(os.environ, "A2A_SECRET_FILE") or is_set(os.environ, "A2A_SECRET"):
            self._secret = secret_of_environment()
            text = f"a2a secret {self._bootstrap.meeting}".encode()
            digest = hmac.new(self._secret, text, hashlib.sha256).hexdigest()
        named = (named_place() or "").rpartition(":")[0].strip("[]")
        told = _Told(
            machine=host_id(),
            mpi=named_place() is None and self._started_by_mpi(),
            trusting=trusting,
            digest=digest,
            offered=secrets.token_hex(32) if trusting and self._bootstrap.rank == 0 else "",
            address=address_among([named, *self._places, os.environ.get("MASTER_ADDR", "")]),
        )
        return json.dumps(dataclasses.asdict(told))

    # ---- over MPI

    def _started_by_mpi(self) -> bool:
        try:
            return (self._launch or Launch.from_environ()).launcher in MPI_LAUNCHERS
        except InvalidArgumentError:  # such as WORLD_SIZE without RANK: this group has got its ranks in another way
            return False

    def _has_mpi(self) -> bool:
        """Whether MPI connects the ranks: its launchers have started them, and all can load it. srun also starts
        programs without an MPI; those meet over TCP."""
        self._require_one(lambda one: one.mpi, "a launcher of MPI", "another, or none,")
        if not self._told[0].mpi:
            return False
        missing = ""
        try:
            library_of("mpi")
        except UnsupportedError as error:
            missing = str(error)
        found = self._bootstrap.allgather(missing.encode())
        if any(found) and not all(found):
            where = [rank for rank, words in enumerate(found) if words]
            text = f"{_named(where)} cannot load MPI, as the others do: {found[where[0]].decode()}"
            raise self._all_raise(UnsupportedError(text))
        return not any(found)

    def _over_mpi(self) -> Communicator:
        """The network is that of all processes of MPI, which is made once. Of its ranks only those of this group meet
        here."""
        network: CoreBootstrap | None = None

        def place() -> str:
            nonlocal network
            network = mpi_bootstrap(name=b"a2a store", timeout=self._bootstrap.left())
            if network.size < self._bootstrap.size:
                raise UnsupportedError(
                    f"MPI has {network.size} processes, the process group has {self._bootstrap.size} ranks; set "
                    "A2A_BOOTSTRAP=tcp://host:port and A2A_SECRET_FILE to have TCP between hosts"
                )
            return str(network.rank)

        processes = [int(text) for text in self._together(place)]
        if len(set(processes)) < len(processes):
            text = f"ranks of the process group are the same process of MPI: {processes}"
            raise self._all_raise(MismatchError(text))
        return connect(
            self._bootstrap.rank,
            self._bootstrap.size,
            bootstrap=self._bootstrap,
            timeout=self._timeout,
            waited=time.monotonic() - self._began,
            network=network,
            processes=processes,
            host=self._hosts[self._bootstrap.rank],
        )

    # ---- over TCP

    def _over_tcp(self) -> Communicator:
        """Each rank makes an endpoint for this group, which its communicator keeps."""
        secret, address = self._common_secret(), ""
        endpoint: Endpoint | None = None

        def handle() -> str:
            nonlocal address, endpoint
            address = self._reachable_address()
            endpoint = Endpoint(address=address, secret=secret)
            return endpoint.handle

        handles = self._together(handle)
        assert endpoint is not None
        try:
            return endpoint.connect(handles, 0, timeout=self._bootstrap.left())
        except TimeoutError as error:
            raise TimeoutError(
                f"{error}. Each rank listens at the address by which it reaches the store, this one at {address}, on "
                "any port: is it one that the other hosts reach, and does no firewall drop what they send?"
            ) from None

    def _common_secret(self) -> bytes | str:
        """Return the secret that all ranks have."""
        self._require_one(lambda one: bool(one.digest), "a secret (A2A_SECRET_FILE or A2A_SECRET)", "none")
        if self._secret:
            self._require_one(lambda one: one.digest == self._told[0].digest, "one secret", "another")
            return self._secret
        self._require_one(lambda one: one.trusting, f"{_TRUST}=1", "not")
        if self._told[0].trusting:
            return self._told[0].offered
        other = next(rank for rank, host in enumerate(self._hosts) if host != self._hosts[0])
        text = (
            f"rank 0 and rank {other} are on different hosts, and have no common secret by which to know each other. "
            "Set, on all ranks, one of\n"
            "  A2A_SECRET_FILE=path   a file of mode 600 with the same secret on each host (openssl rand -hex 32)\n"
            f"  {_TRUST}=1      on a network without strangers: rank 0 makes a secret and tells it in the store"
        )
        raise self._all_raise(InvalidArgumentError(text))

    def _reachable_address(self) -> str:
        """Return an address at which the other hosts reach this rank. One that only this host has, such as that of rank
        0 where its name stands for 127.0.1.1, is replaced by that of the interface towards another host."""
        own = self._told[self._bootstrap.rank]
        if all(one.machine == own.machine for one in self._told):
            return own.address or "127.0.0.1"
        if own.address and not is_loopback(own.address):
            return own.address
        for one in self._told:
            if one.machine != own.machine and one.address and not is_loopback(one.address):
                with contextlib.suppress(OSError):
                    return interface_towards(one.address.strip("[]"))
        raise InvalidArgumentError(
            f"rank {self._bootstrap.rank} has no address that other hosts reach, only {own.address or 'none'}; set "
            "MASTER_ADDR, or A2A_BOOTSTRAP=tcp://host:port, to an address of rank 0's host that all hosts reach"
        )

    # ---- what all ranks have to agree about

    def _together(self, make: Callable[[], str]) -> list[str]:
        """Return what all ranks make. Where one cannot, it raises its error, and the others one that names the rank."""
        failure, made = None, ""
        try:
            made = make()
        except Error as error:
            failure = error
        said = self._bootstrap.allgather(json.dumps([made, str(failure or "")]).encode())
        for rank, (_, problem) in enumerate(map(json.loads, said)):
            if problem:
                other = MismatchError(f"rank {rank} cannot join the process group: {problem}")
                raise self._all_raise(failure or other)
        return [json.loads(text)[0] for text in said]

    def _require_one(self, holds: Callable[[_Told], bool], words: str, otherwise: str) -> None:
        """Raise on all ranks where this holds for some, and not for others."""
        yes = [rank for rank, one in enumerate(self._told) if holds(one)]
        no = [rank for rank in range(len(self._told)) if rank not in yes]
        if yes and no:
            text = f"ranks of a process group disagree: {words} on {_named(yes)}, {otherwise} on {_named(no)}"
            raise self._all_raise(MismatchError(text))

    def _all_raise(self, error: Error) -> Error:
        """Return an error that all ranks raise here, once all have come to it."""
        self._bootstrap.part()
        return error


def _named(ranks: Sequence[int]) -> str:
    some = ", ".join(map(str, ranks[:8])) + (", ..." if len(ranks) > 8 else "")
    return f"rank{'s' if len(ranks) > 1 else ''} {some}"
