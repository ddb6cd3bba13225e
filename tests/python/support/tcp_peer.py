"""The protocol of src/cpp/bootstrap/tcp/frames.h once more, with hashlib and hmac, and in the hands of somebody who may
break its rules."""

from __future__ import annotations

import hashlib
import hmac
import os
import socket
import struct
from collections.abc import Iterator

MAGIC = b"a2a-tcp\1"
GREETING_BYTES = 40
WELCOME, REFUSAL, PART, LAST = 1, 2, 3, 4
MOST_PAYLOAD = 65536 - 40


def free_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def dial(address: str) -> socket.socket:
    host, port = address.rsplit(":", 1)
    return socket.create_connection((host, int(port)), timeout=10)


def mac(key: bytes, *parts: bytes) -> bytes:
    return hmac.digest(key, b"".join(parts), "sha256")


def received(connection: socket.socket, n: int) -> bytes:
    """n bytes, or fewer when the other end hangs up."""
    data = b""
    while len(data) < n:
        try:
            more = connection.recv(n - len(data))
        except ConnectionResetError:
            break
        if not more:
            break
        data += more
    return data


def pack_strings(strings: list[bytes]) -> bytes:
    return b"".join(struct.pack("<Q", len(s)) + s for s in strings)


def unpack_strings(message: bytes) -> Iterator[bytes]:
    while message:
        (length,) = struct.unpack_from("<Q", message)
        yield message[8 : 8 + length]
        message = message[8 + length :]


class Peer:
    """One end of a connection."""

    def __init__(self, connection: socket.socket, secret: bytes) -> None:
        self.connection, self.secret = connection, secret
        self.sent = self.heard = 0  # frames
        self.hello = self.challenge = self.proof = b""

    def greet(self, nonce: bytes | None = None) -> None:
        self.hello = MAGIC + (nonce or os.urandom(32))
        self.connection.sendall(self.hello)
        self.challenge = received(self.connection, GREETING_BYTES)
        assert self.challenge.startswith(MAGIC) and len(self.challenge) == GREETING_BYTES, self.challenge

    def said(self, rank: int, size: int, job: bytes, protocol: int = 1) -> bytes:
        return struct.pack("<4I64s", protocol, rank, size, os.getpid(), job)

    def prove(self, rank: int, size: int, job: bytes = b"job", protocol: int = 1) -> None:
        said = self.said(rank, size, job, protocol)
        self.proof = said + mac(self.secret, b"a2a proof of a rank\0", self.hello, self.challenge, said)
        self.connection.sendall(self.proof)
        self.make_keys()

    def make_keys(self, rank_0: bool = False) -> None:
        parts = (self.hello, self.challenge, self.proof)
        self.send_key, self.receive_key = (
            mac(self.secret, label, *parts) for label in (b"a2a key to rank 0\0", b"a2a key from rank 0\0")
        )
        if rank_0:
            self.send_key, self.receive_key = self.receive_key, self.send_key

    def sealed(self, kind: int, payload: bytes) -> bytes:
        header = struct.pack("<II", len(payload), kind)
        tag = mac(self.send_key, struct.pack("<Q", self.sent), header, hashlib.sha256(payload).digest())
        self.sent += 1
        return header + payload + tag

    def send(self, message: bytes) -> None:
        while len(message) > MOST_PAYLOAD:
            self.connection.sendall(self.sealed(PART, message[:MOST_PAYLOAD]))
            message = message[MOST_PAYLOAD:]
        self.connection.sendall(self.sealed(LAST, message))

    def frame(self) -> tuple[int, bytes] | None:
        """The next frame, whose MAC must be right. None when the other end hung up."""
        header = received(self.connection, 8)
        if not header:
            return None
        length, kind = struct.unpack("<II", header)
        payload, tag = received(self.connection, length), received(self.connection, 32)
        number = struct.pack("<Q", self.heard)
        assert tag == mac(self.receive_key, number, header, hashlib.sha256(payload).digest())
        self.heard += 1
        return kind, payload

    def refusal(self) -> str:
        frame = self.frame()
        assert frame is not None and frame[0] == REFUSAL, frame
        return frame[1][4:].decode()

    def message(self) -> bytes:
        whole = b""
        while True:
            frame = self.frame()
            assert frame is not None and frame[0] in (PART, LAST), frame
            whole += frame[1]
            if frame[0] == LAST:
                return whole


def join(address: str, secret: bytes, rank: int, size: int, job: bytes = b"job", protocol: int = 1) -> Peer:
    """A rank that has proved itself. It may not say more before it has read what rank 0 answers."""
    peer = Peer(dial(address), secret)
    peer.greet()
    peer.prove(rank, size, job, protocol)
    return peer


def receive(listener: socket.socket, secret: bytes) -> Peer:
    """Rank 0's side of a handshake, whatever the other end proves; a welcome is not sent."""
    peer = Peer(listener.accept()[0], secret)
    peer.hello = received(peer.connection, GREETING_BYTES)
    peer.challenge = MAGIC + os.urandom(32)
    peer.connection.sendall(peer.challenge)
    peer.proof = received(peer.connection, 112)
    peer.make_keys(rank_0=True)
    return peer
