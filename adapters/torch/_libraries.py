"""Libraries that compare the name of a backend with lists of their own learn the name "a2a".

Accelerate, and Transformers with it, takes no other name than "gloo" for ranks on the host. Where it is not told that
they are on the host, it makes the group and leaves the model as it is, so that ranks would train apart. So does Ignite
for a name that it does not know. Nothing changes for programs that do not name "a2a" there.
"""

from __future__ import annotations

import functools
import warnings
from typing import Any

import torch.distributed as dist

from . import _later

__all__ = ["register"]


def register() -> None:
    """Change the libraries, now or when they are imported."""
    _later.change("accelerate.state", _accelerate)
    _later.change("ignite.distributed.comp_models.native", _ignite)


def _accelerate(module: Any) -> None:
    theirs = getattr(getattr(module, "PartialState", None), "_prepare_backend", None)
    if theirs is None:
        return _warn("Accelerate")

    @functools.wraps(theirs)
    def prepare(self: Any, cpu: bool = False, sagemaker_dp: bool = False, backend: str | None = None) -> Any:
        if backend != "a2a":
            return theirs(self, cpu, sagemaker_dp, backend)
        name, kind = theirs(self, cpu, sagemaker_dp, "gloo")
        if kind == "NO":  # no device: the ranks are on the host, whether or not the program says so
            name, kind = theirs(self, True, sagemaker_dp, "gloo")
        return "a2a" if name == "gloo" else name, kind

    module.PartialState._prepare_backend = prepare


def _ignite(module: Any) -> None:
    # auto_model() compares the backend with the module's NCCL, GLOO and MPI. A torch with MPI is rare.
    model = getattr(module, "_NativeDistModel", None)
    if not hasattr(module, "MPI") or not hasattr(model, "available_backends") or dist.is_mpi_available():
        return _warn("Ignite")
    module.MPI = "a2a"
    module._NativeDistModel.available_backends += ("a2a",)


def _warn(library: str) -> None:
    text = f'this version of {library} cannot be told of the backend "a2a": set A2A_TORCH_GLOO=1 and name "gloo" there'
    warnings.warn(text, RuntimeWarning, stacklevel=2)
