"""The calls under test, one file for each library that has them. A signature says for which cases it can be used and
how it is called. Several signatures of the same exchange may meet in one operation, in which each rank uses the call of
its own framework."""

from __future__ import annotations

from . import atb, core, mpi4py, paddle, torch
from ._signature import Call, Signature

__all__ = ["SIGNATURES", "Call", "Signature", "of"]

SIGNATURES: list[Signature] = [
    *core.SIGNATURES,
    *torch.SIGNATURES,
    *paddle.SIGNATURES,
    *atb.SIGNATURES,
    *mpi4py.SIGNATURES,
]


def of(name: str) -> Signature:
    return next(signature for signature in SIGNATURES if signature.name == name)
