"""Maps a host tensor of another process of this host, to write into it.

The memory that torch shares has a file descriptor, which processes of the same user open through /proc. A second
descriptor is of a file with a random text. It proves that the number of the process means the same process to both."""

from __future__ import annotations

import contextlib
import json
import math
import os
import secrets
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from a2a._places import assigned_host

__all__ = ["Description", "SharedTensor"]


@dataclass(frozen=True)
class Description:
    """Where a tensor is, for other processes."""

    host: str  # that A2A_HOSTS assigns
    pid: int
    proof_file: int  # a descriptor of that process
    proof: str  # what that file contains
    file: int  # the descriptor of the memory
    bytes: int  # of the memory
    offset: int  # of the tensor in it, in elements
    shape: list[int]
    dtype: str

    def text(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def of_text(text: str) -> Description:
        return Description(**json.loads(text))

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    def mapped(self) -> Tensor | None:
        """Return the tensor, in the memory of the process that described it; None where it cannot be mapped here."""
        if self.host != assigned_host() or self._read_proof() != self.proof:
            return None
        dtype = getattr(torch, self.dtype.removeprefix("torch."))
        if self.numel == 0:
            return torch.empty(self.shape, dtype=dtype)
        with contextlib.suppress(OSError, RuntimeError):
            file = os.open(f"/proc/{self.pid}/fd/{self.file}", os.O_RDWR | os.O_CLOEXEC)
            try:
                if os.fstat(file).st_size < self.bytes:  # reading beyond the end of a file is a crash
                    return None
                storage = torch.UntypedStorage._new_shared_fd_cpu(file, self.bytes)
            finally:
                os.close(file)
            return torch.empty(0, dtype=dtype).set_(storage, self.offset, self.shape)  # checks that it fits
        return None

    def _read_proof(self) -> str:
        try:
            return Path(f"/proc/{self.pid}/fd/{self.proof_file}").read_text()
        except (OSError, ValueError):
            return ""


class SharedTensor:
    """A contiguous host tensor whose memory other processes may map until close(). Its storage moves into shared
    memory, as ``tensor.share_memory_()`` has it."""

    def __init__(self, tensor: Tensor) -> None:
        storage: Any = tensor.untyped_storage()
        file, size = storage._share_fd_cpu_() if storage.nbytes() else (-1, 0)  # the storage keeps the descriptor
        proof = secrets.token_hex(16)
        self._proof = os.memfd_create("a2a window", os.MFD_CLOEXEC)
        os.write(self._proof, proof.encode())
        self.tensor = tensor
        self.description = Description(
            assigned_host(), os.getpid(), self._proof, proof, file, size, tensor.storage_offset(), list(tensor.shape),
            str(tensor.dtype),
        )  # fmt: skip

    def close(self) -> None:
        """No process can map it any more. Those that have done so keep its memory."""
        if self._proof >= 0:
            os.close(self._proof)
        self._proof = -1

    def __del__(self) -> None:
        self.close()
