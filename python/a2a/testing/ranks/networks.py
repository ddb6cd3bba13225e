"""Hosts on one machine that share nothing but a network: namespaces of the kernel with addresses of their own, and a
bridge that joins them. Root may make them, with the command ``ip``."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

__all__ = ["Networks", "entered"]

_CLONE_NEWNET = 0x40000000
_SECONDS = 20


class Networks:
    """The namespaces of this process. They are made when they are first needed, and stay until close(), which a forked
    child may call in its place."""

    def __init__(self) -> None:
        number = os.getpid()
        self._tag = f"{number:x}"
        self._network = f"10.{number >> 8 & 127 | 64}.{number & 255}"
        self._bridge = f"a2akb{self._tag}"
        self._count = 0

    def take(self, count: int) -> tuple[list[str], list[str]]:
        """Return the files of ``count`` namespaces, and their addresses. Raises OSError where they cannot be made."""
        if os.geteuid() != 0 or shutil.which("ip") is None:
            raise OSError("network namespaces need root and the command ip")
        try:
            if self._count == 0:
                self._make_bridge()
            while self._count < count:
                self._count += 1
                self._make(self._count - 1)
        except (subprocess.SubprocessError, OSError) as error:
            said = getattr(error, "stderr", b"") or b""
            self.close()
            raise OSError(f"no network namespaces here: {error} {said.decode(errors='replace').strip()}") from None
        return [f"/run/netns/{self._name(at)}" for at in range(count)], [self._address(at) for at in range(count)]

    def close(self) -> None:
        names = [path.name for path in Path("/run/netns").glob(f"a2akit-{self._tag}-*")]
        for name in names:
            _ip("netns", "del", name, check=False)  # with the cable to it
        if names:
            _ip("link", "del", self._bridge, check=False)
        self._count = 0

    def _name(self, at: int) -> str:
        return f"a2akit-{self._tag}-{at}"

    def _address(self, at: int) -> str:
        return f"{self._network}.{at + 10}"

    def _make_bridge(self) -> None:
        _ip("link", "add", self._bridge, "type", "bridge")
        _ip("addr", "add", f"{self._network}.1/24", "dev", self._bridge)
        _ip("link", "set", self._bridge, "up")

    def _make(self, at: int) -> None:
        name, cable = self._name(at), f"a2akv{self._tag}-{at}"
        _ip("netns", "add", name)
        _ip("link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", name)
        _ip("link", "set", cable, "master", self._bridge, "up")
        _ip("-n", name, "addr", "add", f"{self._address(at)}/24", "dev", "eth0")
        _ip("-n", name, "link", "set", "eth0", "up")
        _ip("-n", name, "link", "set", "lo", "up")


@contextlib.contextmanager
def entered(namespace: str) -> Iterator[None]:
    """Have this thread, and those that it starts, use the network of a namespace, given by its file."""
    library = ctypes.CDLL(None, use_errno=True)
    with Path("/proc/thread-self/ns/net").open() as before:
        with Path(namespace).open() as there:
            _enter(library, there.fileno())
        try:
            yield
        finally:
            _enter(library, before.fileno())


def _enter(library: ctypes.CDLL, descriptor: int) -> None:
    if library.setns(descriptor, _CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "setns")


def _ip(*arguments: str, check: bool = True) -> None:
    subprocess.run(["ip", *arguments], check=check, capture_output=True, timeout=_SECONDS)
