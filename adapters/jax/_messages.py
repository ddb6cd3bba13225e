"""Messages between two ranks, and the barrier, also within compiled programs."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

import a2a
from a2a.adapting import collective

from ._arguments import communicator, rank_of
from ._operations import Barrier, Recv, Send
from ._primitive import bind
from ._programs import wait_for_programs

__all__ = ["barrier", "recv", "send"]


def send(x: Any, axis_name: a2a.Communicator | None, dest: int, *, tag: int = 0) -> None:
    """Send an array to rank ``dest``, whose recv() has the same tag, shape and dtype. It has no derivative. In a
    compiled program it stands in program order with all other operations; see Communicator.send for what waits."""
    comm = communicator(axis_name)
    bind(jnp.asarray(x), comm, Send(rank_of(comm, "dest", dest), int(tag)))


def recv(x: Any, axis_name: a2a.Communicator | None, source: int | None = None, *, tag: int = 0) -> Any:
    """Receive an array of the shape and dtype of ``x`` from rank ``source``; None: the first one of any rank. It has no
    derivative."""
    comm = communicator(axis_name)
    return bind(jnp.asarray(x), comm, Recv(None if source is None else rank_of(comm, "source", source), int(tag)))


def barrier(axis_name: a2a.Communicator | None = None) -> None:
    """Block until every rank has called it, or in a compiled program has come to it."""
    _barrier(communicator(axis_name))


@collective
def _barrier(comm: a2a.Communicator) -> None:
    wait_for_programs()
    bind(jnp.zeros(0, np.uint8), comm, Barrier())
