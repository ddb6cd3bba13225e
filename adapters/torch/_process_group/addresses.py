"""Finds the address of rank 0 for ranks on other hosts, when their launcher does not give it."""

from __future__ import annotations

import json
import os
import socket

from a2a._places import host_id, own_addresses

__all__ = ["addresses_of", "reached_address", "told_addresses"]

_SECONDS = 3.0  # for an address that does not answer, as in a network that only rank 0's host has


def told_addresses(port: int) -> bytes:
    """Return the message of rank 0 to the others: its host's identity, its addresses, and the port."""
    named = os.environ.get("MASTER_ADDR")
    return json.dumps([host_id(), [named] * bool(named) + own_addresses(), port]).encode()


def addresses_of(told: bytes) -> list[str]:
    addresses: list[str] = json.loads(told)[1]
    return addresses


def reached_address(told: bytes) -> tuple[str, int] | None:
    """Return the first of rank 0's addresses at which this process reaches it, with the port; None if there is none."""
    host, addresses, port = json.loads(told)
    if host == host_id():
        return "127.0.0.1", port
    # An address that this host has, too, leads to this host: many have a bridge of the same address for their
    # containers.
    own = own_addresses()
    for address in addresses:
        if address not in own and _answers(address, port):
            return address, port
    return None


def _answers(address: str, port: int) -> bool:
    try:
        socket.create_connection((address, port), timeout=_SECONDS).close()
    except OSError:
        return False
    return True
