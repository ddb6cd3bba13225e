"""Ranks that know the secret and break the rules, or have others."""

from __future__ import annotations

import contextlib
import re
import resource
import struct

import pytest
import tcp_peer
from tcp_peer import Peer, free_address
from tcp_ranks import SECRET, joining, listening, rank_0

pytestmark = pytest.mark.timeout(60)


def test_another_version_is_told() -> None:
    address = free_address()
    with rank_0(2, address) as result:
        text = tcp_peer.join(address, SECRET, 1, 2, protocol=7).refusal()
    assert text == "job 'job': rank 1 runs another version of this library: it speaks protocol 7, rank 0 1"
    assert result == [("UnsupportedError", text)]


@pytest.mark.parametrize("rank", [0, 2, 1 << 31, (1 << 32) - 1])
def test_a_rank_that_is_none(rank: int) -> None:
    address = free_address()
    with rank_0(2, address) as result:
        text = tcp_peer.join(address, SECRET, rank, 2).refusal()
    assert "is not between 1 and 1" in text and result == [("InvalidArgumentError", text)]


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


BROKEN = ["giant", "too large", "one bit", "a number left out", "twice", "no kind", "a welcome", "junk"]


def broken_frame(peer: Peer, name: str) -> bytes:
    if name == "giant":
        return struct.pack("<II", 0xFFFFFFFF, tcp_peer.LAST) + bytes(100)
    if name == "too large":
        return struct.pack("<II", tcp_peer.MOST_PAYLOAD + 1, tcp_peer.LAST) + bytes(100_000)
    if name == "no kind":
        return peer.sealed(9, b"x")
    if name == "a welcome":
        return peer.sealed(tcp_peer.WELCOME, b"")
    if name == "junk":
        return bytes(range(256))
    good = peer.sealed(tcp_peer.PART, b"x")
    if name == "twice":
        return good + good
    if name == "a number left out":
        return peer.sealed(tcp_peer.LAST, b"x")
    assert name == "one bit"
    return good[:8] + bytes([good[8] ^ 1]) + good[9:]


@pytest.mark.parametrize("name", BROKEN)
def test_broken_frames(name: str) -> None:
    address = free_address()
    with rank_0(3, address) as result:
        bad, good = (tcp_peer.join(address, SECRET, rank, 3) for rank in (1, 2))
        assert bad.frame() == good.frame() == (tcp_peer.WELCOME, b"")
        before = peak_mib()
        bad.connection.sendall(broken_frame(bad, name))
        text = good.refusal()
    assert re.match(r"job 'job': rank 1 \(pid \d+ at 127.0.0.1\) sent something that is no message of this job", text)
    assert result == [("BackendError", text)] and peak_mib() < before + 20


def test_a_string_without_end() -> None:
    address = free_address()
    with rank_0(2, address) as result:
        peer = tcp_peer.join(address, SECRET, 1, 2)
        assert peer.frame() == (tcp_peer.WELCOME, b"")
        before, part = peak_mib(), bytes(tcp_peer.MOST_PAYLOAD)
        with contextlib.suppress(ConnectionError):
            for _ in range(1000):
                peer.connection.sendall(peer.sealed(tcp_peer.PART, part))
    assert result[0][0] == "InvalidArgumentError" and "more than 16777216 bytes of one rank" in result[0][1]
    assert peak_mib() < before + 64


def test_a_rank_that_talks_on() -> None:
    address = free_address()
    with rank_0(3, address) as result:
        loud, quiet = (tcp_peer.join(address, SECRET, rank, 3) for rank in (1, 2))
        assert loud.frame() == quiet.frame() == (tcp_peer.WELCOME, b"")
        loud.connection.sendall(loud.sealed(tcp_peer.LAST, b"x") + loud.sealed(tcp_peer.LAST, b"y"))
        assert re.search(r"rank 1 \(.*\) spoke out of turn", quiet.refusal())
    assert result[0][0] == "BackendError"


@pytest.mark.parametrize(
    "table",
    [b"", bytes(7), struct.pack("<Q", 1 << 63), tcp_peer.pack_strings([b"1"]), tcp_peer.pack_strings([b""] * 3)],
)
def test_a_rank_0_that_talks_nonsense(table: bytes) -> None:
    with listening() as (listener, address):
        thread, end = joining(address)
        peer = tcp_peer.receive(listener, SECRET)
        peer.connection.sendall(peer.sealed(tcp_peer.WELCOME, b""))
        assert peer.message() == b"from 1"
        peer.send(table)
        thread.join(20)
    assert end[0][:2] == ("BackendError", "job 'job': rank 0 sent something that is no table of strings")
