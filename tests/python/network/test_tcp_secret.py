"""Nobody gets in without the secret, whatever he says, and nobody is kept out by those who try."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import socket
import struct
import threading
import time
from pathlib import Path

import pytest
import tcp_peer
from forked import apart, raised, run, values
from hypothesis import given, settings
from hypothesis import strategies as st
from tcp_peer import Peer, dial, free_address, received
from tcp_ranks import SECRET, join, joining, listening, rank_0

import a2a

pytestmark = pytest.mark.timeout(60)

# ---- the secret ------------------------------------------------------------------------------------------------------


def test_nothing_gets_in_or_out_without_the_secret() -> None:
    address, tries = free_address(), 300
    generator = random.Random(1)
    with rank_0(2, address) as result:
        for i in range(tries):
            peer = Peer(dial(address), generator.randbytes(generator.randrange(16, 99)) if i % 3 else SECRET[:-1])
            peer.greet()
            nearly = peer.said(1, 2, b"job") + mac_of(peer, i)
            peer.connection.sendall(nearly)
            assert received(peer.connection, 1) == b"", "closed without a word"
            peer.connection.close()
        peer = tcp_peer.join(address, SECRET, 1, 2)
        assert peer.frame() == (tcp_peer.WELCOME, b"")
        peer.send(b"from 1")
        assert list(tcp_peer.unpack_strings(peer.message())) == [b"from 0", b"from 1"]
    assert result == [[[b"from 0", b"from 1"]]]


def mac_of(peer: Peer, i: int) -> bytes:
    """MACs that are not this one: another secret's, of other words, none, or with one bit changed."""
    said = peer.said(1, 2, b"job")
    right = tcp_peer.mac(SECRET, b"a2a proof of a rank\0", peer.hello, peer.challenge, said)
    wrong = [
        tcp_peer.mac(peer.secret if peer.secret != SECRET else b"", b"a2a proof of a rank\0", said),
        tcp_peer.mac(SECRET, b"a2a proof of a rank\0", peer.challenge, peer.hello, said),
        tcp_peer.mac(SECRET, b"a2a key to rank 0\0", peer.hello, peer.challenge, said),
        bytes(32),
        bytes([right[0] ^ 1]) + right[1:],
        right[:-1] + bytes([right[-1] ^ 0x80]),
    ]
    return wrong[i % len(wrong)]


def test_what_was_recorded_is_of_no_use() -> None:
    """Of both directions: an old proof at rank 0, and old words of rank 0 at a rank."""
    address = free_address()
    with rank_0(2, address):
        old = tcp_peer.join(address, SECRET, 1, 2)
        assert old.frame() == (tcp_peer.WELCOME, b"")
        old.send(b"from 1")
        old.message()
    with rank_0(2, address, timeout=1) as result:
        for _ in range(50):
            with dial(address) as connection:
                connection.sendall(old.hello)
                received(connection, tcp_peer.GREETING_BYTES)
                connection.sendall(old.proof)
                assert received(connection, 1) == b""
    assert "refused: 50 connections without the job's secret, 0 that were no rank's" in result[0][1]

    with listening() as (listener, place):
        thread, text = joining(place)
        for _ in range(20):
            peer = tcp_peer.receive(listener, SECRET)
            peer.hello = old.hello  # keys of the old meeting
            peer.make_keys(rank_0=True)
            peer.connection.sendall(peer.sealed(tcp_peer.WELCOME, b""))
            peer.connection.close()
        thread.join(20)
    assert text[0][:2] == (
        "InvalidArgumentError",
        f"job 'job': rank 1 and whoever listens at {place} do not have the same secret",
    )


def test_somebody_else_at_rank_0s_address() -> None:
    """He gets a proof that is good for nothing else, and the rank goes on to look for rank 0."""
    with listening() as (listener, address):
        thread, end = joining(address)
        for manner in range(4):
            peer = tcp_peer.receive(listener, b"some other secret")
            if manner == 1:
                peer.connection.sendall(peer.sealed(tcp_peer.WELCOME, b""))
            elif manner == 2:
                peer.connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 10)
            elif manner == 3:
                peer.connection.sendall(struct.pack("<II", 0xFFFFFFFF, 4) + bytes(100))
            peer.connection.close()
    with rank_0(2, address) as result:
        thread.join(20)
    assert end[0][0] == "" and result == [[[b"from 0", b"from 1"]]], (end, result)


@settings(max_examples=60, deadline=None)
@given(st.binary(min_size=16, max_size=200), st.binary(max_size=300), st.integers(0, 70_000))
def test_digests_are_those_of_hashlib(secret: bytes, text: bytes, length: int) -> None:
    address = free_address()
    mine = (text * (length // max(len(text), 1) + 1))[:length]
    with rank_0(2, address, secret=secret) as result:
        peer = tcp_peer.join(address, secret, 1, 2)
        assert peer.frame() == (tcp_peer.WELCOME, b"")
        peer.send(mine)
        assert peer.message() == tcp_peer.pack_strings([b"from 0", mine])
    assert result == [[[b"from 0", mine]]]


@pytest.fixture
def secret_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "secret"
    path.write_bytes(SECRET + b"\n")
    path.chmod(0o600)
    monkeypatch.setenv("A2A_SECRET_FILE", str(path))
    monkeypatch.delenv("A2A_SECRET", raising=False)
    return path


def refused(address: str = "127.0.0.1:1") -> str:
    text = raised(a2a.InvalidArgumentError, a2a.TcpBootstrap, 0, 2, address, job="job", timeout=1)
    assert SECRET.decode() not in text
    return text


def test_secret_of_a_file(secret_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    address = free_address()
    with rank_0(2, address, secret=None) as result:
        join(1, 2, address).allgather(b"from 1")
    assert result == [[[b"from 0", b"from 1"]]]
    for mode in (0o604, 0o640, 0o644, 0o620, 0o602, 0o601, 0o610, 0o777):
        secret_file.chmod(mode)
        assert refused() == f"A2A_SECRET_FILE={secret_file}: others may open it; chmod 600"
    secret_file.chmod(0o400)
    monkeypatch.setenv("A2A_SECRET", SECRET.decode())
    assert refused() == "both A2A_SECRET_FILE and A2A_SECRET are set; keep one of them"
    monkeypatch.delenv("A2A_SECRET")
    if os.geteuid() == 0:
        os.chown(secret_file, 12345, -1)
        assert refused() == f"A2A_SECRET_FILE={secret_file}: belongs to user 12345"


def test_files_that_are_no_secret(secret_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for content, said in ((b"", "0"), (b"short \n\n", "5"), (b"x" * 15 + b"\n", "15"), (b"x" * 9000, "4097")):
        secret_file.write_bytes(content)
        assert refused() == f"the secret has {said} bytes; 16 to 4096 are accepted"
    secret_file.unlink()
    assert refused() == f"A2A_SECRET_FILE={secret_file}: No such file or directory"
    secret_file.mkdir(0o700)
    assert refused() == f"A2A_SECRET_FILE={secret_file}: is not a file"
    secret_file.rmdir()
    os.mkfifo(secret_file, 0o600)
    assert refused() == f"A2A_SECRET_FILE={secret_file}: is not a file"
    monkeypatch.delenv("A2A_SECRET_FILE")
    assert "need a common secret" in refused()
    monkeypatch.setenv("A2A_SECRET", "too short")
    assert refused() == "the secret has 9 bytes; 16 to 4096 are accepted"
    text = raised(a2a.InvalidArgumentError, a2a.TcpBootstrap, 0, 2, "127.0.0.1:1", secret="fifteen bytes..")
    assert "fifteen" not in text


# ---- strangers -------------------------------------------------------------------------------------------------------


def test_strangers_get_no_answer() -> None:
    address = free_address()
    said = [b"G", b"a2a-tcp\0", b"GET / HTTP/1.1\r\n\r\n", bytes(40), bytes(152), tcp_peer.MAGIC + bytes(33)]
    with rank_0(2, address, timeout=1) as result:
        for words in said:
            begin = time.monotonic()
            with dial(address) as stranger:
                stranger.sendall(words)
                assert received(stranger, 1) == b"" and time.monotonic() - begin < 1, words
    assert f"refused: 0 connections without the job's secret, {len(said)} that were no rank's" in result[0][1]


JUNK = 10_000


def knock(address: str, i: int, generator: random.Random, held: list[socket.socket]) -> None:
    """One connection of somebody who does not know the secret."""
    stranger = dial(address)
    manner = i % 8
    with contextlib.suppress(ConnectionError):
        if manner == 0:
            stranger.sendall(generator.randbytes(64))
        elif manner == 1:
            stranger.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        elif manner == 2:
            stranger.sendall(tcp_peer.MAGIC + generator.randbytes(generator.randrange(32)))
        elif manner == 3:
            stranger.sendall(tcp_peer.MAGIC + generator.randbytes(32))
        elif manner == 4:
            stranger.sendall(tcp_peer.MAGIC + generator.randbytes(32 + 112))
        elif manner == 5:
            stranger.sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + generator.randbytes(200))
        elif manner == 6:
            stranger.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # leaves with a reset
            stranger.close()
    if manner in (2, 3, 7):  # half-open: never a word more
        held.append(stranger)
        if len(held) > 300:
            held.pop(0).close()
    else:
        stranger.close()


def meet_in_a_crowd(rank: int, size: int, address: str) -> float:
    if rank == size:
        generator, held = random.Random(2), list[socket.socket]()
        while True:
            with contextlib.suppress(ConnectionRefusedError):
                dial(address).close()
                break
            time.sleep(0.01)
        begin = time.monotonic()
        for i in range(JUNK):
            knock(address, i, generator, held)
        Path(f"/proc/{os.getpid()}/comm").write_text("done")
        return time.monotonic() - begin
    if rank == size - 1:  # comes when all junk has
        crowd = Path(f"/proc/{os.getppid()}/task/{os.getppid()}/children")
        while "done\n" not in [Path(f"/proc/{pid}/comm").read_text() for pid in crowd.read_text().split()]:
            time.sleep(0.01)
    begin = time.monotonic()
    bootstrap = join(rank, size, address, timeout=50)
    spent = resource.getrusage(resource.RUSAGE_SELF)
    if rank == size - 1:
        assert time.monotonic() - begin < 2
    assert bootstrap.allgather(b"%d" % rank) == [b"%d" % r for r in range(size)]
    return spent.ru_utime + spent.ru_stime


def cpu_of_an_idle_meeting(rank: int, address: str) -> float:
    time.sleep(0.1 * rank)
    join(rank, 2, address)
    spent = resource.getrusage(resource.RUSAGE_SELF)
    return spent.ru_utime + spent.ru_stime


@apart
def test_junk_during_the_meeting() -> None:
    size = 3
    spent = values(run(size + 1, meet_in_a_crowd, size, free_address(), timeout=50))
    idle = values(run(2, cpu_of_an_idle_meeting, free_address()))[0]
    each = (spent[0] - idle) / JUNK * 1e6
    print(f"{JUNK} connections of strangers in {spent[size]:.1f} s cost rank 0 {each:.1f} us each")
    assert each < 300  # 100 where the machine has nothing else to do


def creep(address: str, connections: int, until: threading.Event) -> list[float]:
    """Slowly says the beginning of a greeting on many connections; returns how long each was listened to."""
    hello, began, ended = tcp_peer.MAGIC + bytes(32), {}, []
    for _ in range(connections):
        began[dial(address)] = time.monotonic()
    sent = 0
    while began and not until.wait(0.25):
        for stranger in list(began):
            try:
                stranger.sendall(hello[sent : sent + 1])
                stranger.setblocking(False)
                gone = stranger.recv(1) == b""
            except BlockingIOError:
                gone = False
            except OSError:
                gone = True
            if gone:
                ended.append(time.monotonic() - began.pop(stranger))
                stranger.close()
        sent += 1
    for stranger in began:
        stranger.close()
    return ended


def test_slow_strangers_wait_alone() -> None:
    address, until, ended = free_address(), threading.Event(), list[float]()
    with rank_0(3, address, timeout=30) as result:
        slow = threading.Thread(target=lambda: ended.extend(creep(address, 200, until)))
        slow.start()
        time.sleep(0.5)
        begin = time.monotonic()
        first = tcp_peer.join(address, SECRET, 1, 3)
        assert first.frame() == (tcp_peer.WELCOME, b"") and time.monotonic() - begin < 1
        slow.join(20)  # each is hung up on after 5 seconds
        until.set()
        second = tcp_peer.join(address, SECRET, 2, 3)
        assert second.frame() == (tcp_peer.WELCOME, b"")
        first.send(b"from 1")
        second.send(b"from 2")
    assert result == [[[b"from 0", b"from 1", b"from 2"]]]
    early = sum(seconds < 2 for seconds in ended)  # 128 may wait at once; the rank takes the place of one more
    assert len(ended) == 200 and early == 200 + 1 - 128, ended
    assert all(4.5 < seconds < 8 for seconds in sorted(ended)[early:]), ended
