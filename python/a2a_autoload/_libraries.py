"""Libraries that compare the name of a backend with lists of their own learn the name "a2a".

Accelerate, and Transformers with it, takes no other name than "gloo" for ranks on the host. Where it is not told that
they are on the host, it makes the group and leaves the model as it is, so that ranks would train apart. So does Ignite
for a name that it does not know. Nothing changes for programs that do not name "a2a" there.
"""

from __future__ import annotations

import functools
import warnings
from typing import Any

from . import _later

__all__ = ["register", "warn_of_untold"]

_untold: list[str] = []  # libraries of a version that this does not fit


def register() -> None:
    """Change the libraries, now or when they are imported."""
    _later.change("accelerate.state", _accelerate)
    _later.change("ignite.distributed.comp_models.native", _ignite)


def warn_of_untold() -> None:
    """Warn, once, of the libraries that could not be told. Call it when a group has the backend "a2a"."""
    while _untold:
        text = f'this version of {_untold.pop()} cannot be told of the backend "a2a": set A2A_TORCH_GLOO=1, name "gloo"'
        warnings.warn(text, RuntimeWarning, stacklevel=3)


def _accelerate(module: Any) -> None:
    theirs = getattr(getattr(module, "PartialState", None), "_prepare_backend", None)
    if theirs is None:
        return _untold.append("Accelerate")

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
    model: Any = getattr(module, "_NativeDistModel", None)
    known = getattr(model, "available_backends", ("mpi",))
    if not hasattr(module, "MPI") or "mpi" in known:
        return _untold.append("Ignite")
    module.MPI = "a2a"
    model.available_backends = (*known, "a2a")
