"""Where the ranks of a job meet, by a launcher's variables."""

from __future__ import annotations

import os

from ._core import InvalidArgumentError
from ._launchers import Launch
from ._variables import integer

MPI_LAUNCHERS = ("Open MPI", "MPICH", "Intel MPI", "srun")
_MOST_PORT = 65535


def meeting_place(launch: Launch) -> str | None:
    """Return the address at which the ranks meet over TCP; None when they meet in another way."""
    if place := named_place():
        return place
    host, port = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT")
    if not several_hosts(launch) or launch.launcher in MPI_LAUNCHERS or not host or not port:
        return None
    number = integer(os.environ, "MASTER_PORT", 0, 0, _MOST_PORT)
    number += integer(os.environ, "A2A_PORT_OFFSET", 1, -_MOST_PORT, _MOST_PORT)
    if not 0 < number <= _MOST_PORT:
        raise InvalidArgumentError(f"MASTER_PORT={port} + A2A_PORT_OFFSET in the environment is {number}, no port")
    return f"{f'[{host}]' if ':' in host else host}:{number}"


def named_place() -> str | None:
    name = os.environ.get("A2A_BOOTSTRAP")
    if not name:
        return None
    if not name.startswith("tcp://"):
        raise InvalidArgumentError(f"A2A_BOOTSTRAP={name} in the environment is not tcp://host:port")
    return name.removeprefix("tcp://")


def several_hosts(launch: Launch) -> str:
    assigned = os.environ.get("A2A_HOSTS")
    return launch.several_hosts or (f"A2A_HOSTS={assigned}" if assigned else "")
