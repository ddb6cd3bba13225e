"""A user namespace that does not map every user shows those it does not map under one id, the overflow id. Ranks that
have this id themselves let nobody in because of it."""

from __future__ import annotations

import array
import contextlib
import ctypes
import fcntl
import os
import re
import secrets
import socket
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from forked import apart, assert_usable, connect, job_name, raised, run, values

import a2a

pytestmark = pytest.mark.timeout(60)

OVERFLOW = int(Path("/proc/sys/kernel/overflowuid").read_text())
SECRET = "s" * 32
CLONE_NEWUSER = 0x10000000


def become_nobody(mapped: bool) -> None:
    """Into a new user namespace, where this user has the overflow id: because it is mapped so, or as nobody is."""
    uid = os.geteuid()
    if ctypes.CDLL(None).unshare(CLONE_NEWUSER) != 0:
        pytest.skip("this process may not make user namespaces")
    if mapped:
        Path("/proc/self/uid_map").write_text(f"{OVERFLOW} {uid} 1\n")
    assert os.geteuid() == OVERFLOW


def can_be_nobody() -> bool:
    pid = os.fork()
    if pid == 0:
        os._exit(ctypes.CDLL(None).unshare(CLONE_NEWUSER) != 0)
    return os.waitpid(pid, 0)[1] == 0


needs_namespaces = pytest.mark.skipif(not can_be_nobody(), reason="this process may not make user namespaces")
# Somebody else, whom a namespace does not map, can be played by root alone.
needs_stranger = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
both_ways = pytest.mark.parametrize("mapped", [True, False])


def enter(rank: int, n: int, job: str, mapped: bool, namespace: str | None) -> str:
    """A rank in a namespace of its own, or in that of rank 0; returns its error."""
    become_nobody(mapped)
    os.environ.pop("A2A_SECRET", None)
    if namespace is not None:
        os.environ["A2A_SECRET"] = namespace
    try:
        comm = connect(rank, n, job, 3)
    except a2a.Error as error:
        return f"{type(error).__name__}: {error}"
    assert_usable(comm)
    comm.close()
    return ""


@needs_namespaces
@both_ways
@apart
def test_ranks_with_a_secret_meet(mapped: bool) -> None:
    assert values(run(3, enter, 3, job_name(), mapped, SECRET)) == ["", "", ""]


@needs_namespaces
@both_ways
@apart
def test_ranks_without_a_secret_are_refused(mapped: bool) -> None:
    begin = time.monotonic()
    for text in values(run(2, enter, 2, job_name(), mapped, None)):
        assert text.startswith(f"UnsupportedError: user {OVERFLOW} ") and "A2A_SECRET" in text and "a2a run" in text
    assert time.monotonic() - begin < 2


@needs_namespaces
@both_ways
@apart
def test_ranks_with_other_secrets_do_not_meet(mapped: bool) -> None:
    def one(rank: int, job: str) -> str:
        return enter(rank, 2, job, mapped, SECRET + str(rank))

    for text in values(run(2, one, job_name())):
        assert "TimeoutError" in text or "do not have the same secret" in text, text


@needs_namespaces
@apart
def test_secret_file_that_may_be_a_strangers(tmp_path: Path) -> None:
    def read(_: int) -> str:
        path = tmp_path / "secret"
        path.write_text(SECRET)
        path.chmod(0o600)
        become_nobody(True)
        os.environ["A2A_SECRET_FILE"] = str(path)
        return raised(a2a.InvalidArgumentError, connect, 0, 2, job_name(), 1)

    (text,) = values(run(1, read))
    assert re.search(r"A2A_SECRET_FILE=.* belongs to user \d+, as a file of any user does .* A2A_SECRET", text), text
    assert SECRET not in text


def as_threads(_: int) -> list[str]:
    become_nobody(True)
    return a2a.spawn(lambda comm: assert_usable(comm) or "", 3, threads=True)


@needs_namespaces
@apart
def test_threads_need_no_secret() -> None:
    assert values(run(1, as_threads)) == [["", "", ""]]


# ---- strangers -------------------------------------------------------------------------------------------------------


def as_stranger() -> None:
    os.setgroups([])
    os.setresgid(1234, 1234, 1234)
    os.setresuid(1234, 1234, 1234)


def knock(kind: int, name: str) -> tuple[str, bytes]:
    """What rank 0 says to somebody who says the right thing without the secret, and says nothing himself after that."""
    with socket.socket(socket.AF_UNIX, kind) as stranger:
        stranger.settimeout(2)
        patience = time.monotonic() + 1
        while True:
            try:
                stranger.connect(name)
                break
            except ConnectionRefusedError as error:
                if time.monotonic() > patience:
                    return type(error).__name__, b""
        stranger.send(struct.pack("<IIiii", 0x61326103, 0, 1, 2, os.getpid()))
        try:
            return "", stranger.recv(1 << 16)
        except OSError as error:
            return type(error).__name__, b""


def visited(rank: int, job: str, mapped: bool) -> Any:
    if rank == 0:
        become_nobody(mapped)
        os.environ["A2A_SECRET"] = SECRET
        return raised(a2a.TimeoutError, connect, 0, 2, job, 2.5)
    as_stranger()
    return [knock(kind, f"\0a2a-{OVERFLOW}-{job}") for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET)]


@needs_namespaces
@needs_stranger
@both_ways
@apart
def test_strangers_do_not_join(mapped: bool) -> None:
    text, answers = values(run(2, visited, job_name(), mapped))
    assert "timed out waiting for rank 1" in text
    assert answers[0][0] != "ConnectionRefusedError" and all(answer == b"" for _, answer in answers), answers


# What ranks tell each other of themselves, as far as it is changed here.
NONCE, SEGMENT, LISTENER = slice(72, 80), slice(88, 104), slice(-32, None)


class Forged:
    """A meeting through which a stranger has become the other rank, as through a store that anybody may write to. It
    stands for what the stranger makes of the victim's address."""

    def __init__(self, rank: int, forge: Callable[[bytes], bytes]) -> None:
        self.rank, self.forge = rank, forge

    def allgather(self, mine: bytes) -> list[bytes]:
        theirs = self.forge(mine)
        return [mine, theirs] if self.rank == 0 else [theirs, mine]


def connects_to_a_stranger(rank: int, pipe: tuple[int, int], mapped: bool, secret: str | None) -> Any:
    """Rank 0 connects to whoever holds the name that rank 1 is said to have."""
    if rank == 0:
        name = os.read(pipe[0], 32)
        become_nobody(mapped)
        os.environ.pop("A2A_SECRET", None)
        if secret:
            os.environ["A2A_SECRET"] = secret

        def forge(mine: bytes) -> bytes:
            theirs = bytearray(mine)
            theirs[NONCE] = secrets.token_bytes(8)
            theirs[LISTENER] = name.ljust(32, b"\0")
            return bytes(theirs)

        with pytest.raises(a2a.Error) as caught:
            a2a.init(0, 2, bootstrap=Forged(0, forge), timeout=1)
        return str(caught.value)
    as_stranger()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind("")
        listener.listen(4)
        listener.settimeout(3)
        os.write(pipe[1], listener.getsockname()[1:])
        descriptors: list[int] = []
        with contextlib.suppress(OSError):
            while True:
                end, _ = listener.accept()
                end.settimeout(1.5)
                with contextlib.suppress(OSError):
                    while True:
                        data, ancillary, _, _ = end.recvmsg(4096, socket.CMSG_SPACE(32))
                        for _, _, content in ancillary:
                            descriptors += array.array("i", content)
                        if not data:
                            break
        return len(descriptors)


@pytest.mark.full
@needs_namespaces
@needs_stranger
@both_ways
@pytest.mark.parametrize("secret", [None, SECRET])
@apart
def test_memory_is_not_given_to_a_stranger(mapped: bool, secret: str | None) -> None:
    text, descriptors = values(run(2, connects_to_a_stranger, os.pipe(), mapped, secret))
    assert descriptors == 0, text
    assert ("A2A_SECRET" in text) == (secret is None), text


def sealed(size: int) -> int:
    memory = os.memfd_create("stranger", os.MFD_ALLOW_SEALING)
    os.ftruncate(memory, size)
    fcntl.fcntl(memory, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    return memory


def lets_in_a_stranger(rank: int, pipes: list[tuple[int, int]], mapped: bool) -> Any:
    """A stranger, who knows what the bootstrap knows, connects to rank 1 as rank 0 does."""
    nonce, sizes = b"n" * 8, struct.pack("<QQ", 1 << 20, 1 << 16)
    if rank == 1:
        become_nobody(mapped)
        os.environ["A2A_SECRET"] = SECRET

        def forge(mine: bytes) -> bytes:
            os.write(pipes[0][1], mine)
            theirs = bytearray(mine)
            theirs[NONCE], theirs[SEGMENT] = nonce, sizes
            return bytes(theirs)

        with pytest.raises(a2a.Error) as caught:
            a2a.init(1, 2, bootstrap=Forged(1, forge), timeout=1)
        return str(caught.value)
    mine = os.read(pipes[0][0], 4096)
    as_stranger()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stranger:
        stranger.settimeout(2)
        stranger.connect(b"\0" + mine[LISTENER].rstrip(b"\0"))
        hello = mine[:4] + struct.pack("<i8sIi", 0, nonce, 0, -1)
        socket.send_fds(stranger, [hello], [sealed(1 << 20), sealed(1 << 16)])
        try:
            data, ancillary, _, _ = stranger.recvmsg(4096, socket.CMSG_SPACE(32))
        except OSError:
            return 0
        return len(data) + len(ancillary)


@needs_namespaces
@needs_stranger
@both_ways
@apart
def test_strangers_memory_is_not_taken(mapped: bool) -> None:
    answer, text = values(run(2, lets_in_a_stranger, [os.pipe()], mapped))
    assert answer == 0 and "waiting for rank 0" in text, (answer, text)
