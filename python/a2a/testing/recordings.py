"""Keeps the inputs of an operation in a file when an assertion about it fails, and runs it again from the file."""

from __future__ import annotations

import contextlib
import json
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .._core import Communicator, InvalidArgumentError, describe_tensor
from .oracle import as_bytes

__all__ = ["Recording", "record", "replay"]


@contextlib.contextmanager
def record(folder: str | Path, comm: Communicator, op: str, **inputs: Any) -> Iterator[None]:
    """Where a ``with`` statement around the operation and its assertions raises AssertionError, write ``inputs``, as
    they were at its beginning, to ``folder``/OP-rank-R-of-N.npz, which replay() reads, and add the path to the error.
    ``op`` is the method of the communicator, ``inputs`` are its arguments by name: tensors of the host, numbers,
    texts, None, or lists of numbers."""
    content = {name: _packed(value) for name, value in inputs.items()}
    try:
        yield
    except AssertionError as error:
        path = Path(folder) / f"{op}-rank-{comm.rank}-of-{comm.size}.npz"
        path.parent.mkdir(parents=True, exist_ok=True)
        facts = {name: fact for name, (fact, _) in content.items()}
        header = json.dumps({"op": op, "rank": comm.rank, "size": comm.size, "inputs": facts})
        arrays = {f"input {name}": array for name, (_, array) in content.items() if array is not None}
        np.savez(path, header=np.frombuffer(header.encode(), np.uint8), **arrays)
        text = f"the inputs of rank {comm.rank} are in {path}: a2a.testing.replay()"
        error.args = (f"{error.args[0] if error.args else ''}\n{text}".lstrip(), *error.args[1:])
        raise


@dataclass
class Recording:
    """What one rank gave to an operation. Tensors are NumPy arrays, of ml_dtypes where NumPy has no such dtype."""

    op: str
    rank: int
    size: int
    inputs: dict[str, Any]

    def run(self, comm: Communicator) -> Any:
        """Call the operation on a communicator of as many ranks, each with its own recording."""
        if (comm.rank, comm.size) != (self.rank, self.size):
            raise InvalidArgumentError(
                f"the recording is of rank {self.rank} of {self.size}, not of rank {comm.rank} of {comm.size}"
            )
        return getattr(comm, self.op)(**self.inputs)


def replay(path: str | Path) -> Recording:
    """Read one file that record() has written. Raises InvalidArgumentError for another file, OSError."""
    from .. import frameworks

    try:
        with np.load(path, allow_pickle=False) as file:
            header = json.loads(file["header"].tobytes())
            numpy = frameworks.load("numpy")
            inputs = {}
            for name, fact in header["inputs"].items():
                inputs[name] = fact.get("value")
                if "dtype" in fact:
                    inputs[name] = numpy.tensor(file[f"input {name}"], 0, fact["dtype"], tuple(fact["shape"]))
            return Recording(header["op"], header["rank"], header["size"], inputs)
    except (KeyError, ValueError, TypeError, EOFError, zipfile.BadZipFile) as error:
        raise InvalidArgumentError(f"{path} is no recording of an operation: {error}") from None


def _packed(value: Any) -> tuple[dict[str, Any], Any]:
    """Return what a value is, and its bytes if it is a tensor."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return {"value": value}, None
    if isinstance(value, (list, tuple)):
        return {"value": [int(entry) for entry in value]}, None
    facts = describe_tensor(value)
    return {"dtype": facts["dtype"], "shape": list(facts["shape"])}, as_bytes(value).copy()
