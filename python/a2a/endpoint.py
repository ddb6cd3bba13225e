"""Groups that change: a standing way to reach a process, from which it joins one group after the other.

docs/guide/elastic.md has recipes.
"""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

from ._core import CoreEndpoint, InvalidArgumentError
from ._launchers import Launch
from ._places import meeting_place

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Endpoint"]


class Endpoint(CoreEndpoint):
    """One member of future groups: a process, or a thread that is a rank. ``handle`` goes to the others, by any means;
    ``connect()`` makes the communicator of a group. It has one listening socket and no thread.

    ``address`` is that of an interface of this host, "host" or "host:port", for groups across hosts. All endpoints of
    such a job have the same ``secret``, of at least 16 bytes; None is the one of A2A_SECRET_FILE or A2A_SECRET. Without
    an address the endpoint is for groups of this host, unless a launcher has started ranks on several: then its address
    is that of the interface towards the place at which ``a2a.init()`` would meet. ``check`` is that of ``a2a.init()``.

    Raises InvalidArgumentError for an address that this host does not have, and for a secret that is missing or too
    short."""

    def __new__(
        cls, *, address: str | None = None, secret: str | bytes | None = None, check: str | None = None
    ) -> Self:
        if address is None and (place := meeting_place(Launch.from_environ())) is not None:
            address = _own_address(place)
        if secret is None and address is None:
            secret = ""
        return super().__new__(cls, address or "", secret, assigned_host(), check=check)


def _own_address(place: str) -> str:
    """Return the address of the interface by which packets go to ``place``, "host:port". Sends none."""
    host, _, port = place.rpartition(":")
    try:
        family, kind, _, _, address = socket.getaddrinfo(
            host.strip("[]") or "127.0.0.1", int(port), type=socket.SOCK_DGRAM
        )[0]
        with socket.socket(family, kind) as probe:
            probe.connect(address)
            own: str = probe.getsockname()[0]
    except OSError as error:
        raise InvalidArgumentError(
            f"Endpoint: no interface of this host leads to {place}: {error}; pass address="
        ) from None
    return f"[{own}]" if ":" in own else own


def assigned_host() -> str:
    """Return this rank's entry of A2A_HOSTS; "" if it has none."""
    names = os.environ.get("A2A_HOSTS", "").split(",")
    if len(names) == 1:
        return f"assigned {names[0]}" if names[0] else ""
    launch = Launch.from_environ()
    return f"assigned {names[launch.rank]}" if launch.size == len(names) else ""
