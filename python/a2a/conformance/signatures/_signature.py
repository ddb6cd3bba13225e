"""Signatures, and their arguments."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..cases import Case

__all__ = ["DEVICES", "FLOATS", "HOST", "Call", "Signature", "differentiable", "equal", "packed", "register", "rows"]

Counts = npt.NDArray[np.int64]


@dataclass
class Call:
    """The arguments of a signature. Tensors are those of the rank's framework, by position as in Case.send_shapes()."""

    case: Case
    rank: int
    group: Any
    """An a2a communicator, or a peer's default group (None)."""
    module: Any
    """The module of the adapter's functions: a2a.torch, torch.distributed, ..."""
    sends: list[Any]
    recvs: list[Any]
    cotangents: list[Any]
    """The gradients of the outputs, for signatures with ``gradient``."""

    # By the names of the arguments of Communicator's methods.

    @property
    def send(self) -> Any:
        """None on a rank that has nothing to send."""
        return self.sends[0] if self.sends else None

    @property
    def recv(self) -> Any:
        """None on a rank that receives nothing."""
        return self.recvs[0] if self.recvs else None

    @property
    def tensor(self) -> Any:
        """The only tensor of a rank."""
        return self.recv if self.send is None else self.send

    @property
    def op(self) -> str:
        return self.case.fold

    @property
    def root(self) -> int:
        return self.case.root

    @property
    def counts(self) -> list[int]:
        return self.case.counts

    @property
    def send_counts(self) -> list[int]:
        return list(map(int, self.case.send_counts[self.rank]))

    @property
    def recv_counts(self) -> list[int]:
        if "counts" in self.case.facts:
            return self.case.counts
        return list(map(int, self.case.recv_counts[self.rank]))

    @property
    def send_displs(self) -> list[int] | None:
        return self.case.displs("send", self.rank)

    @property
    def recv_displs(self) -> list[int] | None:
        return self.case.displs("recv", self.rank)

    @property
    def displs(self) -> tuple[list[int] | None, list[int] | None]:
        return self.send_displs, self.recv_displs

    @property
    def expert_counts(self) -> tuple[Counts, Counts]:
        """local_count and global_count."""
        local, global_ = self.case.local_counts[self.rank], self.case.global_counts[self.rank]
        return np.ascontiguousarray(local), np.ascontiguousarray(global_)


Run = Callable[[Call], Any]
"""Exchanges. Returns None when the outputs were written in place, otherwise the list of result tensors, followed by the
gradients of the inputs where the signature has ``gradient``."""


@dataclass(frozen=True)
class Signature:
    name: str
    op: str
    """The operation of the cases for which it is."""
    fits: Callable[[Case], bool]
    run: Run
    framework: str = ""
    """The only framework whose tensors it accepts, or "" for any."""
    out: bool = True
    """Whether it receives into given tensors."""
    dtypes: frozenset[str] | None = None
    """None: every dtype of the framework."""
    memory: frozenset[str] | None = None
    """The memory that the tensors may have, as in Framework.memory. None: any."""
    meets: str = ""
    """The name of its exchange: signatures with the same one may meet in an operation. "" is its own name."""
    meets_on_devices: str = ""
    """The name of its exchange on devices, where it is another one."""
    gradient: bool = False
    """Whether it also sends gradients back."""
    send_shapes: Callable[[Case, int], list[tuple[int, ...]]] = Case.send_shapes
    """The shapes of the tensors that it gets on a rank."""
    result_shapes: Callable[[Case, int], list[tuple[int, ...]]] = Case.recv_shapes
    """The shapes of the outputs that it returns on a rank."""
    parts: bool = False
    """Whether its outputs are all ranks' parts separately, not one tensor (allgather)."""

    @property
    def library(self) -> str:
        return self.name.partition(".")[0]

    def meeting(self, memory: str = "host") -> str:
        there = "" if memory == "host" else self.meets_on_devices
        return there or self.meets or self.name


FLOATS = frozenset({"float16", "bfloat16", "float32", "float64", "complex64", "complex128"})
"""The dtypes that have gradients in every framework with gradients."""
HOST, DEVICES = frozenset({"host"}), frozenset({"cuda", "npu"})


def register(signatures: list[Signature], framework: str = "") -> Callable[..., Callable[[Run], Run]]:
    """Return a decorator that adds a function to a file's signatures."""

    def signature(
        name: str, op: str, fits: Callable[[Case], bool] = lambda case: True, **more: Any
    ) -> Callable[[Run], Run]:
        def add(run: Run) -> Run:
            signatures.append(Signature(name, op, fits, run, **{"framework": framework, **more}))
            return run

        return add

    return signature


# ---- for which cases -------------------------------------------------------------------------------------------------


def packed(case: Case) -> bool:
    return case.packed


def equal(case: Case) -> bool:
    return case.equal


def differentiable(case: Case) -> bool:
    return case.differentiable


def rows(case: Case) -> bool:
    """Whether each rank's part of an allgather has a dim 0, and is no scalar."""
    return bool(case.facts["shape"])
