"""A rank that meets others over TCP as src/cpp/transport/tcp/meeting.cc does, with hashlib and hmac, in the hands of
somebody who may stop anywhere. Hosts are those of A2A_HOSTS, "a", "b" and so on, one for each rank."""

from __future__ import annotations

import hashlib
import os
import socket
import struct
import threading

import tcp_peer
from tcp_ranks import SECRET, join


class Guest:
    """Has met the others and told them where it listens, which it does not."""

    def __init__(self, rank: int, size: int, address: str) -> None:
        self.rank, self.size = rank, size
        self.bootstrap = join(rank, size, address)
        host = b"assigned " + b"abcdef"[rank : rank + 1]
        self.bootstrap.allgather(struct.pack("<IiI96s40s", 9, rank, 4096, host, b"one"))
        self.bootstrap.allgather(b"tcp?")  # which network it takes
        self.port = int(tcp_peer.free_address().rpartition(":")[2])
        mine = struct.pack("=HHI", socket.AF_INET, socket.htons(self.port), os.getpid())
        mine += socket.inet_aton("127.0.0.1").ljust(16, b"\0") + os.urandom(32)
        self.cards = self.bootstrap.allgather(mine)
        self.network_key = tcp_peer.mac(SECRET, b"a2a key of the network")
        self.meeting = hashlib.sha256(b"".join(self.cards)).digest()

    def door_of(self, rank: int) -> tuple[str, int]:
        family, port = struct.unpack_from("=HH", self.cards[rank])
        assert family == socket.AF_INET
        return socket.inet_ntoa(self.cards[rank][8:12]), socket.ntohs(port)

    def door_key(self, rank: int, meeting: bytes | None = None) -> bytes:
        return tcp_peer.mac(self.network_key, b"a2a door of rank %d " % rank, meeting or self.meeting)

    def connect(
        self, to: int, key: bytes | None = None, rank: int | None = None, size: int | None = None
    ) -> tcp_peer.Peer:
        """Proves itself; what comes next is the other side's."""
        host, port = self.door_of(to)
        rank, size = self.rank if rank is None else rank, self.size if size is None else size
        return tcp_peer.join(f"{host}:{port}", key or self.door_key(to), rank, size)

    def leave(self) -> None:
        del self.bootstrap


def together(address: str, size: int) -> list[Guest]:
    """Ranks 1, 2, ... of so many, which have to come at the same time."""
    guests: dict[int, Guest] = {}

    def come(rank: int) -> None:
        guests[rank] = Guest(rank, size, address)

    threads = [threading.Thread(target=come, args=(rank,)) for rank in range(1, size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    return [guests[rank] for rank in range(1, size)]
