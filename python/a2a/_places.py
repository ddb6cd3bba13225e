"""Where the ranks of a job meet, by a launcher's variables."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

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


def own_address(place: str) -> str:
    """Return the address of the interface by which packets go to ``place``, "host:port"."""
    host, _, port = place.rpartition(":")
    try:
        return interface_towards(host.strip("[]") or "127.0.0.1", int(port))
    except OSError as error:
        raise InvalidArgumentError(
            f"Endpoint: no interface of this host leads to {place}: {error}; pass address="
        ) from None


def interface_towards(host: str, port: int = 9) -> str:
    """Return the address of the interface by which packets go to a host, an IPv6 one in brackets. Sends none. Raises
    OSError where there is none, and for a name that nobody knows."""
    family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(address)
        own: str = probe.getsockname()[0]
    return f"[{own}]" if ":" in own else own


def address_among(hosts: Sequence[str]) -> str:
    """Return the address of the interface by which packets go to the first of these hosts that is known; otherwise that
    of the default route, or of any other interface; "" where there is none."""
    for host in (*hosts, _NOBODYS):
        if host:
            with contextlib.suppress(OSError):
                return interface_towards(host)
    return next(iter(own_addresses()), "")


_NOBODYS = "192.0.2.1"  # packets to it would go by the default route


def own_addresses() -> list[str]:
    """Return the IPv4 addresses of this host's interfaces, without the loopback. The host's name need not resolve to
    any of them."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        found = [_address_of(probe, name) for _, name in socket.if_nameindex()]
    return [address for address in found if address and not address.startswith("127.")]


def _address_of(probe: socket.socket, interface: str) -> str:
    request: Any = struct.pack("256s", interface.encode())  # a struct ifreq
    try:
        return socket.inet_ntoa(fcntl.ioctl(probe, _SIOCGIFADDR, request)[20:24])
    except OSError:
        return ""  # it has none


_SIOCGIFADDR = 0x8915


def is_loopback(address: str) -> bool:
    return address.startswith("127.") or address == "[::1]"


def host_id() -> str:
    """Return an id that is equal for processes that can reach each other's shared memory: the running kernel, and the
    network namespace of its sockets."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {Path('/proc/self/ns/net').stat().st_ino}"


def assigned_host() -> str:
    """Return this rank's entry of A2A_HOSTS; "" if it has none."""
    names = os.environ.get("A2A_HOSTS", "").split(",")
    if len(names) == 1:
        return f"assigned {names[0]}" if names[0] else ""
    launch = Launch.from_environ()
    return f"assigned {names[launch.rank]}" if launch.size == len(names) else ""
