"""The environment variables of the ranks of ``a2a run``: a2a's own, and those by which Torch and Paddle meet."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import socket
from pathlib import Path

from .._job import new_secret
from ._machine import allowed_cpus

__all__ = ["Ports", "environment_of_job", "environment_of_rank"]

_TORCHS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_PADDLES = (
    *("PADDLE_TRAINER_ID", "PADDLE_TRAINERS_NUM", "PADDLE_RANK_IN_NODE"),
    *("PADDLE_CURRENT_ENDPOINT", "PADDLE_TRAINER_ENDPOINTS", "PADDLE_DISTRI_BACKEND"),
)
_DEVICES = ("nvidia[0-9]*", "davinci[0-9]*", "xpu[0-9]*", "kfd")
"""The files in /dev of what Paddle may use instead of the CPU."""


class Ports:
    """Consecutive TCP ports, the first of which is ``number``, that this job owns as long as it runs. The kernel does
    not give them to a program that asks for any port, nor to a client. A rank that asks for one gets it if it sets
    SO_REUSEADDR, as torch's store does."""

    def __init__(self, count: int) -> None:
        for _ in range(_TRIES):
            self._sockets = [_bound(0)]
            self.number: int = self._sockets[0].getsockname()[1]
            try:
                self._sockets += [_bound(self.number + more) for more in range(1, count)]
            except (OSError, OverflowError):  # taken, or beyond the last port
                self.close()
            else:
                return
        raise OSError(errno.EADDRINUSE, f"found no {count} consecutive TCP ports that are free")

    def close(self) -> None:
        for one in self._sockets:
            one.close()


_TRIES = 100


def _bound(port: int) -> socket.socket:
    made = socket.socket()
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(("", port))
    except BaseException:
        made.close()
        raise
    return made


def environment_of_job(ranks: int, port: int, paddles: int) -> dict[str, str]:
    """Return what all ranks have alike. ``port`` is for Torch's store, ``paddles`` for Paddle's."""
    env = dict(os.environ)
    for names, (rank, size) in ((_TORCHS, ("RANK", "WORLD_SIZE")), (_PADDLES, _PADDLES[:2])):
        if "A2A_RANK" in env and (env.get(rank), env.get(size)) == (env["A2A_RANK"], env.get("A2A_SIZE")):
            for name in names:  # of the job in which this one is started
                env.pop(name, None)
    env.pop("A2A_RESTART", None)  # of the job in which this one is started
    env |= {"A2A_SIZE": str(ranks), "A2A_JOB": f"run-{os.getpid()}-{secrets.token_hex(8)}"}
    torchs = {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
    env = torchs | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)} | env
    # Of rank 0's port Paddle makes its store; the others are names.
    ports = [paddles, *_free_ports(ranks - 1)]
    paddle = {
        "PADDLE_TRAINERS_NUM": str(ranks),
        "PADDLE_TRAINER_ENDPOINTS": ",".join(f"127.0.0.1:{port}" for port in ports),
    }
    if not any(one for pattern in _DEVICES for one in Path("/dev").glob(pattern)):
        paddle["PADDLE_DISTRI_BACKEND"] = "gloo"
    env = paddle | env
    if secret := new_secret():
        env["A2A_SECRET"] = secret
    if ranks > 1:
        # Otherwise every rank would start a thread per CPU.
        env.setdefault("OMP_NUM_THREADS", str(max(1, allowed_cpus() // ranks)))
    return env


def environment_of_rank(rank: int, env: dict[str, str], restarts: int) -> dict[str, str]:
    """Return the environment of a rank, from that of the job. ``restarts`` is how often it was started again."""
    number, endpoints = str(rank), env["PADDLE_TRAINER_ENDPOINTS"].split(",")
    others = {name: number for name in ("RANK", "LOCAL_RANK", "PADDLE_TRAINER_ID", "PADDLE_RANK_IN_NODE")}
    if rank < len(endpoints):
        others["PADDLE_CURRENT_ENDPOINT"] = endpoints[rank]
    again = {"A2A_RESTART": str(restarts)} if restarts else {}
    return others | env | {"A2A_RANK": number, "A2A_LOCAL_RANK": number} | again


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]
