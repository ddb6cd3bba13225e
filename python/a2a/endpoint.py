"""Groups that change: a standing way to reach a process, from which it joins one group after the other.

docs/guide/elastic.md has recipes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ._core import CoreEndpoint
from ._launchers import Launch
from ._places import assigned_host, meeting_place, own_address

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
            address = own_address(place)
        if secret is None and address is None:
            secret = ""
        return super().__new__(cls, address or "", secret, assigned_host(), check=check)
