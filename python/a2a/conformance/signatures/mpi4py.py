"""mpi4py's calls on NumPy arrays. Only a peer has them."""

from __future__ import annotations

import importlib
import math
from typing import Any

import numpy as np

from ._signature import Call, Signature, equal, register

SIGNATURES: list[Signature] = []
signature = register(SIGNATURES, "numpy")


def _in_elements(c: Call) -> list[list[Any]]:
    """Return both sides with the datatypes that mpi4py finds for their elements."""
    row = math.prod(c.case.row)
    return [
        [tensor, ([row * count for count in counts], [row * displ for displ in displs])]
        for tensor, counts, displs in _sides(c)
    ]


def _sides(c: Call) -> list[tuple[Any, list[int], list[int]]]:
    sides = []
    for tensor, counts, displs in zip((c.send, c.recv), (c.send_counts, c.recv_counts), c.displs, strict=True):
        sides.append((tensor, counts, (np.cumsum(counts) - counts).tolist() if displs is None else displs))
    return sides


@signature("mpi4py.Alltoallv", "alltoallv")
def _(c: Call) -> None:
    c.group.Alltoallv(*_in_elements(c))


@signature("mpi4py.Ialltoallv", "alltoallv")
def _(c: Call) -> None:
    c.group.Ialltoallv(*_in_elements(c)).Wait()


@signature("mpi4py.Alltoallv_init", "alltoallv")
def _(c: Call) -> None:
    request = c.group.Alltoallv_init(*_in_elements(c))
    request.Start()
    request.Wait()
    request.Free()


@signature("mpi4py.Alltoallv of bytes", "alltoallv")
def _(c: Call) -> None:
    byte = importlib.import_module("mpi4py.MPI").BYTE
    row = byte.Create_contiguous(max(1, c.send.dtype.itemsize * math.prod(c.case.row))).Commit()
    c.group.Alltoallv(*([tensor.view(np.uint8), counts, displs, row] for tensor, counts, displs in _sides(c)))
    row.Free()


@signature("mpi4py.Alltoall", "alltoallv", equal)
def _(c: Call) -> None:
    c.group.Alltoall(c.send, c.recv)


@signature("mpi4py.Allgather", "allgather")
def _(c: Call) -> None:
    c.group.Allgather(c.send, c.recv)


@signature("mpi4py.Allgather of bytes", "allgather")
def _(c: Call) -> None:
    byte = importlib.import_module("mpi4py.MPI").BYTE
    c.group.Allgather(*([tensor.reshape(-1).view(np.uint8), byte] for tensor in (c.send, c.recv)))
