"""Whole handshakes that somebody on the network has recorded, said again, in part and to others; and a rank's own words
sent back to it."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import tcp_door
import tcp_peer
from forked import apart
from tcp_peer import GREETING_BYTES, dial, free_address, received
from tcp_ranks import join, joining, listening, rank_0

import a2a

pytestmark = pytest.mark.timeout(60)

PROOF_BYTES = 112


@contextmanager
def recorder(address: str) -> Iterator[tuple[str, list[bytes]]]:
    """Somebody between one rank and rank 0: the address at which he listens, and what each of the two says."""
    said = [b"", b""]
    with listening() as (listener, place):

        def carry(source: socket.socket, to: socket.socket, who: int) -> None:
            while data := received(source, 1):
                said[who] += data
                to.sendall(data)
            to.shutdown(socket.SHUT_WR)

        def stand_between() -> None:
            ends = listener.accept()[0], dial(address)
            threads = [threading.Thread(target=carry, args=(ends[i], ends[1 - i], i)) for i in range(2)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(20)
            for end in ends:
                end.close()

        thread = threading.Thread(target=stand_between)
        thread.start()
        yield place, said
        thread.join(20)


def recorded(address: str) -> list[bytes]:
    """What rank 1 and rank 0 said in a meeting of two."""
    with recorder(address) as (place, said), rank_0(2, address) as result:
        join(1, 2, place).allgather(b"from 1")
    assert result == [[[b"from 0", b"from 1"]]]
    return said


def test_a_recorded_rank_at_rank_0() -> None:
    address = free_address()
    rank, _ = recorded(address)
    hello, proof, rest = (
        rank[:GREETING_BYTES],
        rank[GREETING_BYTES:][:PROOF_BYTES],
        rank[GREETING_BYTES + PROOF_BYTES :],
    )
    assert rest
    with rank_0(2, address) as result:
        for words in (rank, rank[: GREETING_BYTES + 1], proof, proof + rest, rest):  # all at once
            with dial(address) as thief:
                thief.sendall(words)
                assert received(thief, 1) == b""
        for end in range(0, len(proof), 16):  # in turn, up to somewhere
            with dial(address) as thief:
                thief.sendall(hello)
                assert len(received(thief, GREETING_BYTES)) == GREETING_BYTES
                thief.sendall(proof[:end])
                thief.shutdown(socket.SHUT_WR)
                assert received(thief, 1) == b""
        for words in (proof, proof + rest, rest):
            with dial(address) as thief:
                thief.sendall(hello)
                received(thief, GREETING_BYTES)
                thief.sendall(words)
                assert received(thief, 1) == b""
        join(1, 2, address).allgather(b"the true 1")
    assert result == [[[b"from 0", b"the true 1"]]]


def test_a_recorded_rank_0_at_a_rank() -> None:
    address = free_address()
    _, hub = recorded(address)
    with listening() as (listener, place):
        thread, end = joining(place)
        for words in (hub, hub[:GREETING_BYTES], hub[:-1], hub[: GREETING_BYTES + 8]):
            connection = listener.accept()[0]
            received(connection, GREETING_BYTES)
            connection.sendall(words)
            received(connection, PROOF_BYTES)
            connection.close()
    with rank_0(2, place) as result:
        thread.join(20)
    assert end[0][0] == "" and result == [[[b"from 0", b"from 1"]]], (end, result)


def test_own_words_sent_back() -> None:
    address = free_address()
    with rank_0(2, address) as result:
        for _ in range(3):
            with dial(address) as first, dial(address) as mirror:
                first.sendall(tcp_peer.MAGIC + os.urandom(32))
                challenge = received(first, GREETING_BYTES)
                mirror.sendall(challenge)  # as if it were a rank's hello
                again = received(mirror, GREETING_BYTES)
                assert again != challenge
                mirror.sendall(again + challenge + bytes(PROOF_BYTES - 2 * GREETING_BYTES))
                assert received(mirror, 1) == b""
        join(1, 2, address).allgather(b"from 1")
    assert result == [[[b"from 0", b"from 1"]]]
    with listening() as (listener, place):
        thread, end = joining(place)
        for _ in range(4):
            connection = listener.accept()[0]
            connection.sendall(received(connection, GREETING_BYTES))
            connection.sendall(received(connection, PROOF_BYTES))
            connection.close()
    with rank_0(2, place) as result:
        thread.join(20)
    assert end[0][0] == "" and result == [[[b"from 0", b"from 1"]]], (end, result)


def said_by(peer: tcp_peer.Peer) -> tuple[bytes, bytes]:
    return peer.hello, peer.proof


def say_again(door: tuple[str, int], hello: bytes, proof: bytes) -> bytes:
    with socket.create_connection(door, timeout=10) as thief:
        thief.sendall(hello)
        received(thief, GREETING_BYTES)
        thief.sendall(proof)
        return received(thief, 1)


def real_rank(rank: int, size: int, address: str, ends: list[str]) -> threading.Thread:
    def body() -> None:
        try:
            a2a.init(rank, size, bootstrap=join(rank, size, address, timeout=20), timeout=20)
            ends.append("met")
        except a2a.Error as error:
            ends.append(f"{type(error).__name__}: {error}")

    thread = threading.Thread(target=body)
    thread.start()
    return thread


@apart
def test_recorded_connections_at_the_doors_between_hosts() -> None:
    os.environ["A2A_HOSTS"] = "a,b,c"
    address, old, ends = free_address(), [], list[str]()
    for _ in range(2):
        threads = [real_rank(rank, 3, address, ends) for rank in range(2)]
        guest = tcp_door.Guest(2, 3, address)
        for words in old:  # of the last meeting
            assert say_again(guest.door_of(0), *words) == say_again(guest.door_of(1), *words) == b""
        peer = guest.connect(0)
        assert peer.frame() == (tcp_peer.WELCOME, b"")
        assert say_again(guest.door_of(1), *said_by(peer)) == b""  # at another door of this one
        old.append(said_by(peer))
        assert not ends
        guest.leave()
        for thread in threads:
            thread.join(20)
            assert not thread.is_alive()
        ends.clear()
