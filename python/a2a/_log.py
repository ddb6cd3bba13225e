"""The logger "a2a": how the ranks of a communicator met, which way their bytes go, and for whom a call waits long.
A2A_LOG prints it on standard error."""

from __future__ import annotations

import logging
import os
import socket

from ._core import Communicator, InvalidArgumentError, host_facts, host_ways, set_wait_listener

LOGGER = logging.getLogger("a2a")
LOGGER.addHandler(logging.NullHandler())
if LOGGER.level == logging.NOTSET:
    LOGGER.setLevel(logging.WARNING)  # importing Paddle makes the root logger print INFO

_LEVELS = {"warning": logging.WARNING, "info": logging.INFO, "debug": logging.DEBUG}
_SIZES = (4 << 10, 64 << 10, 1 << 20, 16 << 20)
_MOST_NAMED = 8
_printed = False


def configure() -> None:
    """Prints what A2A_LOG asks for. The first call counts; a program that sets the logger's level needs no variable."""
    global _printed
    word = os.environ.get("A2A_LOG", "").strip().lower()
    if not word or _printed:
        return
    if word not in _LEVELS:
        raise InvalidArgumentError(f"A2A_LOG={word} in the environment is none of {', '.join(_LEVELS)}")
    _printed = True
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s a2a %(levelname)s: %(message)s"))
    LOGGER.addHandler(handler)
    LOGGER.setLevel(_LEVELS[word])
    LOGGER.propagate = False


def met(comm: Communicator, how: str, seconds: float) -> None:
    """Call when the ranks of init() have met."""
    if not LOGGER.isEnabledFor(logging.INFO):
        return
    facts = host_facts(comm)
    crowded = ", fewer than ranks" if facts["oversubscribed"] else ""
    LOGGER.info(
        "rank %d of %d (%s, pid %d): met through %s in %.1f ms; %d ranks share memory here, with %d CPUs%s; %s",
        comm.rank,
        comm.size,
        socket.gethostname(),
        os.getpid(),
        how,
        seconds * 1e3,
        facts["ranks"],
        facts["cpus"],
        crowded,
        "one host" if facts["hosts"] == 1 else f"{facts['hosts']} hosts",
    )
    if comm.size == 1 or not LOGGER.isEnabledFor(logging.DEBUG):
        return
    for size in _SIZES:
        for memory, way, reason in host_ways(comm, size):
            LOGGER.debug("rank %d: %d bytes of each pair, %s: %s (%s)", comm.rank, size, memory, way, reason)


def _waits(comm: Communicator, seconds: float, ranks: list[int]) -> None:
    some = ", ".join(map(str, ranks[:_MOST_NAMED])) + (" and others" if len(ranks) > _MOST_NAMED else "")
    others = f"for {'ranks' if len(ranks) > 1 else 'rank'} {some}" if ranks else "for its bytes to leave"
    LOGGER.warning("rank %d of %d has waited %.0f s %s", comm.rank, comm.size, seconds, others)


set_wait_listener(_waits)
