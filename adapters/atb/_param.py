"""The parameters of AllToAllV in both spellings."""

from __future__ import annotations

import enum
import os
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, overload

from a2a import InvalidArgumentError

Counts: TypeAlias = Sequence[int] | Any
"""One integer per rank: a sequence, a NumPy array or any integer tensor."""


class CommMode(enum.IntEnum):
    """Whether the ranks of a group are processes or threads (atb::infer::CommMode)."""

    COMM_UNDEFINED = -1
    COMM_MULTI_PROCESS = 0
    COMM_MULTI_THREAD = 1


# Fields in the order of ATB's struct: the name here, ATB's name, and the function that makes the default.
_FIELDS: dict[str, tuple[str, Callable[[], Any]]] = {
    "rank": ("rank", lambda: 0),
    "rank_size": ("rankSize", lambda: 0),
    "rank_root": ("rankRoot", lambda: 0),
    "send_counts": ("sendCounts", list),
    "sdispls": ("sdispls", list),
    "recv_counts": ("recvCounts", list),
    "rdispls": ("rdispls", list),
    "backend": ("backend", lambda: "hccl"),
    "hccl_comm": ("hcclComm", lambda: None),
    "comm_mode": ("commMode", lambda: CommMode.COMM_MULTI_PROCESS),
    "rank_table_file": ("rankTableFile", lambda: ""),
    "comm_domain": ("commDomain", lambda: ""),
    "rsv": ("rsv", lambda: bytes(64)),
}
_SPELLINGS = {spelling: name for name, (camel, _) in _FIELDS.items() for spelling in (name, camel)}


def _plain(value: Any) -> Any:
    """Return lists, arrays and tensors as lists, so that they can be compared; other objects unchanged."""
    if isinstance(value, (bytes, list, tuple, range)):
        return list(value)
    return value.tolist() if hasattr(value, "tolist") else value


class AllToAllVParam:
    """One rank's parameters of AllToAllV, with ATB's names, order and defaults. Each may be spelled like ``sendCounts``
    or like ``send_counts``, as an argument and as an attribute. An operation checks them when it is made.

    Args:
        rank, rank_size: this rank's number and how many ranks there are. With a rank table both may be left out.
        rank_root: a rank of the group; host backends do not use it.
        send_counts, sdispls: ``send_counts[i]`` elements of the flat input from element ``sdispls[i]`` on go to rank i.
        recv_counts, rdispls: ``recv_counts[i]`` elements from rank i go to element ``rdispls[i]`` of the output.
        backend: "hccl" as in ATB; here also "shm", "nccl", "mpi" and "auto".
        hccl_comm: the address of an HcclComm of the caller, for "hccl".
        comm_mode: COMM_MULTI_THREAD when the ranks are threads of this process.
        rank_table_file: a rank table of version 1.0 or 1.2.
        comm_domain: at most 128 bytes; groups of different domains are independent.
        rsv: 64 bytes, all zero.
    """

    rank: int
    rank_size: int
    rank_root: int
    send_counts: Counts
    sdispls: Counts
    recv_counts: Counts
    rdispls: Counts
    backend: str
    hccl_comm: int | None
    comm_mode: CommMode | int
    rank_table_file: str | os.PathLike[str]
    comm_domain: str
    rsv: Counts
    rankSize: int
    rankRoot: int
    sendCounts: Counts
    recvCounts: Counts
    hcclComm: int | None
    commMode: CommMode | int
    rankTableFile: str | os.PathLike[str]
    commDomain: str

    @overload
    def __init__(
        self,
        rank: int = 0,
        rank_size: int = 0,
        rank_root: int = 0,
        send_counts: Counts = ...,
        sdispls: Counts = ...,
        recv_counts: Counts = ...,
        rdispls: Counts = ...,
        backend: str = "hccl",
        hccl_comm: int | None = None,
        comm_mode: CommMode | int = CommMode.COMM_MULTI_PROCESS,
        rank_table_file: str | os.PathLike[str] = "",
        comm_domain: str = "",
        rsv: Counts = ...,
    ) -> None: ...

    @overload
    def __init__(
        self,
        rank: int = 0,
        rankSize: int = 0,
        rankRoot: int = 0,
        sendCounts: Counts = ...,
        sdispls: Counts = ...,
        recvCounts: Counts = ...,
        rdispls: Counts = ...,
        backend: str = "hccl",
        hcclComm: int | None = None,
        commMode: CommMode | int = CommMode.COMM_MULTI_PROCESS,
        rankTableFile: str | os.PathLike[str] = "",
        commDomain: str = "",
        rsv: Counts = ...,
    ) -> None: ...
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if len(args) > len(_FIELDS):
            raise InvalidArgumentError(f"AllToAllVParam has {len(_FIELDS)} fields, got {len(args)} values")
        given = dict(zip(_FIELDS, args, strict=False))
        for spelling, value in kwargs.items():
            if spelling not in _SPELLINGS:
                raise TypeError(f"AllToAllVParam has no field {spelling!r}; it has {', '.join(_FIELDS)}")
            if _SPELLINGS[spelling] in given:
                raise InvalidArgumentError(f"AllToAllVParam got {_SPELLINGS[spelling]} twice, once as {spelling}")
            given[_SPELLINGS[spelling]] = value
        for name, (_, default) in _FIELDS.items():
            self.__dict__[name] = given.get(name, default())

    def __getattr__(self, name: str) -> Any:
        if name in _SPELLINGS and _SPELLINGS[name] in self.__dict__:
            return self.__dict__[_SPELLINGS[name]]
        raise AttributeError(f"AllToAllVParam has no field {name!r}; it has {', '.join(_FIELDS)}")

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in _SPELLINGS:
            raise AttributeError(f"AllToAllVParam has no field {name!r}; it has {', '.join(_FIELDS)}")
        self.__dict__[_SPELLINGS[name]] = value

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"AllToAllVParam always has its field {name!r}")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, AllToAllVParam):
            return NotImplemented
        return [*map(_plain, vars(self).values())] == [*map(_plain, vars(other).values())]

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        fields = [
            f"{name}={value!r}" for name, value in vars(self).items() if name != "rsv" or _plain(value) != [0] * 64
        ]
        return f"AllToAllVParam({', '.join(fields)})"
