"""Wrong types and values in every place of a2a.atb: a documented error or a result, never a crash and never a wait."""

from __future__ import annotations

import array
import ctypes
import decimal
import functools
import random
import subprocess
import sys
from typing import Any

import frameworks
import ml_dtypes
import numpy as np
import pytest
from rank_pool import Pool

import a2a
from a2a import atb

pytestmark = pytest.mark.timeout(110)
FIELDS = tuple(vars(atb.AllToAllVParam()))
GOOD = {"rank": 0, "rank_size": 1, "send_counts": [2], "sdispls": [1], "recv_counts": [2], "rdispls": [0]}


class Mistake(Exception):
    """What an object of the caller's own raises comes out as it is."""


class Odd:
    def raises(self, *_: Any) -> Any:
        raise Mistake

    __index__ = __float__ = __iter__ = __len__ = __fspath__ = __getitem__ = raises


class Unprintable:
    def __repr__(self) -> str:
        raise Mistake


VALUES: list[Any] = [
    *(None, True, False, ..., NotImplemented, Odd(), Unprintable(), object(), int, np, lambda: 1),
    *(-1, 0, 1, 2, 2**31 - 1, 2**31, -(2**31), 2**63 - 1, 2**63, -(2**63), 2**64, 10**5000),
    *(1.5, float("nan"), float("inf"), 1j, decimal.Decimal(1), ctypes.c_int(1), np.int64(1), np.bool_(True)),
    *(np.float32(1), np.datetime64("2020-01-01"), np.float64("nan")),
    *("", "x", "shm", "hccl", "auto", "nccl", "mpi", "\0", "shm\0", "\ud800", "x" * 128, "x" * 129, "é" * 65),
    *("0:199", "0:200", "/", "/dev/null", "/dev/zero", b"shm", b"\xff", bytes(64), bytes(65), bytearray(3)),
    *([], [2], [1], (2,), [0], [-1], [True], [None], [[2]], [2.0], ["2"], [2] * 1000, {2: 1}, {2}, range(2, 3)),
    *([2**63 - 1], [2**63], [-(2**63)], [10**5000], [Odd()], [np.array([1, 2])], memoryview(b"ab")),
    *(array.array("q", [2]), array.array("d", [2])),
    *(np.array(values, dtype) for values in (2, [2], [1, 2], [[2]], []) for dtype in ("i1", "u8", "f4", "?", "O")),
    *(np.array([2**64 - 1], "u8"), np.array(["a"]), np.array([2], ">i4"), np.arange(4)[::2]),
]
READ_ONLY = np.zeros(4, "f4")
READ_ONLY.flags.writeable = False
TENSORS: list[Any] = [
    *(np.zeros(4, dtype) for dtype in ("f2", "f4", "f8", ">f4", "i1", "u1", "?", "c8", "O", "U1", "M8[s]", "V3")),
    *(np.zeros(4, ml_dtypes.bfloat16), np.zeros(4, ml_dtypes.float8_e5m2), np.zeros(4, ml_dtypes.int4)),
    *(np.zeros((), "f4"), np.zeros((0, 3), "f4"), np.zeros((1,) * 9, "f4"), np.zeros((1,) * 60, "f4")),
    *(np.asfortranarray(np.zeros((2, 2))), np.zeros(8)[::2], np.zeros(4)[::-1], np.broadcast_to(np.zeros(1), 4)),
    *(READ_ONLY, np.zeros(1, "f4"), np.zeros(3, "f4"), bytes(8), bytearray(8), array.array("h", [1, 2, 3, 4])),
]


@functools.cache
def values() -> list[Any]:
    return VALUES + [
        frameworks.tensor(name, np.array(x)) for name in frameworks.INSTALLED for x in ([2], [1, 2], [2.0])
    ]


@functools.cache
def tensors() -> list[Any]:
    return TENSORS + [frameworks.tensor(name, np.zeros(4, "f4")) for name in frameworks.INSTALLED]


def documented(call: Any) -> Any:
    """The result, or None after an error that may be."""
    try:
        return call()
    except a2a.Error as error:
        assert isinstance(error, (a2a.InvalidArgumentError, a2a.UnsupportedError, a2a.TimeoutError)), repr(error)
        assert atb.ErrorType(error.status).name in str(error), repr(error)  # type: ignore[attr-defined]
    except Mistake:
        pass
    return None


def test_every_odd_value_in_every_field() -> None:
    for field in FIELDS:
        for value in values():
            param = atb.AllToAllVParam(**{**GOOD, "backend": "shm", field: value})
            operation = documented(lambda param=param: atb.AllToAllVOperation(param, timeout=0.02))
            if operation is not None:
                documented(lambda operation=operation: operation.forward([np.arange(4, dtype="f4")]))


def test_random_calls() -> None:
    rng = random.Random(7)
    made = 0
    for _ in range(600):
        changes = {rng.choice(FIELDS): rng.choice(values()) for _ in range(rng.choice([0, 0, 1, 2]))}
        timeout = rng.choice([0.02, 0.02, 0.02, rng.choice(values())])
        param = atb.AllToAllVParam(**{**GOOD, "backend": "shm", "comm_domain": "hostile", **changes})
        operation = documented(lambda p=param, t=timeout: atb.AllToAllVOperation(p, timeout=t))
        if operation is None:
            continue
        made += 1
        inputs = rng.choice(
            [[rng.choice(tensors())], [rng.choice(values())], rng.choice(values()), [np.zeros(4)] * 2, ()]
        )
        outputs = documented(lambda o=operation, x=inputs: o.forward(x))
        assert outputs is None or tuple(outputs[0].shape) == (1, 2)
    assert made > 100


def test_operations_are_as_good_after_a_refusal() -> None:
    operation = atb.AllToAllVOperation(atb.AllToAllVParam(**GOOD, backend="shm"), timeout=20)  # type: ignore[arg-type]
    for x in tensors():
        documented(lambda x=x: operation.forward([x]))
        assert operation.forward([np.arange(4, dtype=np.int16)])[0].tolist() == [[1, 2]]


def hostile_rank(comm: a2a.Communicator) -> int:
    """Rank 1 passes odd tensors. Returns how often this rank's call was refused."""
    ones = {"send_counts": [1, 1], "sdispls": [0, 1], "recv_counts": [1, 1], "rdispls": [0, 1], "backend": "shm"}
    domain = comm.allgather_bytes(str(id(comm)).encode())[0].decode()
    operation = atb.AllToAllVOperation(atb.AllToAllVParam(comm.rank, 2, comm_domain=domain, **ones), timeout=40)
    good, refused = np.zeros(2, np.float32), 0
    for odd in TENSORS:
        try:
            operation.forward([good if comm.rank == 0 else odd])
        except (a2a.InvalidArgumentError, a2a.MismatchError) as error:
            assert isinstance(error, a2a.MismatchError) or comm.rank == 1
            refused += 1
    operation.forward([good])
    return refused


def test_peers_of_a_hostile_rank_are_told_each_time() -> None:
    with Pool(2) as pool:
        told = pool.run(hostile_rank)
    assert told[0] == told[1] > 20


def test_objects_without_their_making_do_not_crash() -> None:
    program = """
import numpy as np
import a2a
from a2a import _core
from a2a.atb import _binding
for call in (
    lambda: _binding.AtbOperation.__new__(_binding.AtbOperation).name,
    lambda: _core.refuse(None, ValueError("x")),
    lambda: _core.host_facts(None),
    lambda: a2a.quantized_all_reduce(None, np.zeros(4, np.int8), 1.0),
    lambda: a2a.block_quantized_all_reduce(None, np.zeros(4, np.float32)),
):
    try:
        call()
    except TypeError:
        print("refused")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout.split()) == (0, ["refused"] * 5), done.stderr
