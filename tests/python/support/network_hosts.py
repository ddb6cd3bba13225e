"""Hosts that have nothing in common but a network: namespaces with addresses of their own, joined by a bridge. Root may
make them where the kernel lets it."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

NETWORK = "10.77.{}"


def _ip(*arguments: str, check: bool = True) -> None:
    subprocess.run(["ip", *arguments], check=check, capture_output=True, timeout=20)


def namespace(number: int) -> str:
    """The name of one of this process's hosts."""
    return f"a2a-{os.getpid() % 100_000:x}-{number}"


@contextlib.contextmanager
def hosts(count: int) -> Iterator[list[str]]:
    """The addresses of ``count`` new hosts. Raises OSError where they cannot be made."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        raise OSError("only root can, with the command ip")
    tag = f"{os.getpid() % 100_000:x}"
    bridge, network = f"a2ab{tag}", NETWORK.format(os.getpid() % 200 + 20)
    names = [namespace(number) for number in range(count)]
    addresses = [f"{network}.{number + 10}" for number in range(count)]
    try:
        try:
            _ip("link", "add", bridge, "type", "bridge")
            _ip("addr", "add", f"{network}.1/24", "dev", bridge)
            _ip("link", "set", bridge, "up")
            for number, (name, address) in enumerate(zip(names, addresses, strict=True)):
                _add(name, address, bridge, f"a2av{tag}{number}", f"{network}.1")
        except (subprocess.SubprocessError, OSError) as error:
            raise OSError(f"no network namespaces here: {error}") from None
        yield addresses
    finally:
        for number, name in enumerate(names):
            _ip("netns", "del", name, check=False)
            _ip("link", "del", f"a2av{tag}{number}", check=False)
            shutil.rmtree(Path("/etc/netns") / name, ignore_errors=True)
        _ip("link", "del", bridge, check=False)


def _add(name: str, address: str, bridge: str, cable: str, gateway: str) -> None:
    _ip("netns", "add", name)
    _ip("link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", name)
    _ip("link", "set", cable, "master", bridge, "up")
    _ip("-n", name, "addr", "add", f"{address}/24", "dev", "eth0")
    _ip("-n", name, "link", "set", "eth0", "up")
    _ip("-n", name, "link", "set", "lo", "up")
    # The launcher on this host is called by its name.
    files = Path("/etc/netns") / name
    files.mkdir(parents=True)
    (files / "hosts").write_text(f"127.0.0.1 localhost\n{gateway} {socket.gethostname()}\n")


def remote_shell(path: Path, addresses: list[str]) -> Path:
    """A program that runs a command on one of the hosts, called as ssh is. Each call sees a /dev/shm of its own: Open
    MPI names its files there after the host's name, which is the same in all namespaces, and the rank's place on it."""
    cases = "\n".join(f"  {address}) name={namespace(number)} ;;" for number, address in enumerate(addresses))
    path.write_text(
        "#!/bin/sh\n"
        'while [ "${1#-}" != "$1" ]; do shift; done\n'
        f'case "$1" in\n{cases}\nesac\nshift\n'
        'exec ip netns exec "$name" sh -c "mount -t tmpfs none /dev/shm && $*"\n'
    )
    path.chmod(0o755)
    return path
