"""Ranks that meet in a store of a framework: threads here, with a dictionary for a store, which say that they are on
hosts of their own. tests/python/torch/test_torch_hosts.py has processes on hosts."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import a2a
from a2a import _store_meeting, endpoint
from a2a._core import host_facts

pytestmark = pytest.mark.timeout(60)
SECRET = "0123456789abcdef0123456789abcdef"
_here = threading.local()


class Store:
    """Keeps what was deleted, too, as Paddle's does."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self._numbers: defaultdict[str, int] = defaultdict(int)
        self._lock = threading.Lock()

    def set(self, key: str, value: bytes) -> None:
        assert value
        self.values[key] = value

    def get(self, key: str) -> bytes:
        return self.values[key]

    def find(self, key: str) -> bytes:
        return self.values.get(key, b"")

    def has(self, keys: Sequence[str]) -> bool:
        return all(key in self.values for key in keys)

    def add(self, key: str, number: int) -> int:
        with self._lock:
            self._numbers[key] += number
            return self._numbers[key]

    def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            self.values[key] = b""


@pytest.fixture(autouse=True)
def apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each thread is on a host of its own."""
    for name in ("A2A_SECRET", "A2A_SECRET_FILE", "A2A_TRUST_STORE", "A2A_BOOTSTRAP", "A2A_HOSTS", "MASTER_ADDR"):
        monkeypatch.delenv(name, raising=False)
    for module in (_store_meeting, endpoint):
        monkeypatch.setattr(module, "assigned_host", lambda: f"host{_here.rank}")


def outcomes(
    store: Store, size: int = 2, seconds: float = 20, then: Callable[[a2a.Communicator], Any] = lambda comm: None
) -> list[Any]:
    """How meet() ends on each rank: with the number of hosts, or an error in words."""

    def run(rank: int) -> Any:
        _here.rank = rank
        try:
            with _store_meeting.meet(store, rank, size, seconds, ["127.0.0.1"]) as comm:
                then(comm)
                return host_facts(comm)["hosts"]
        except a2a.Error as error:
            return f"{type(error).__name__}: {error}"

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(run, range(size)))


def exchange(comm: a2a.Communicator) -> None:
    assert comm.allgather_bytes(str(comm.rank).encode()) == [str(rank).encode() for rank in range(comm.size)]
    assert comm.timeout == 20


def test_a_secret_and_a_store_that_is_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store()
    assert all("have no common secret" in text for text in outcomes(store))
    monkeypatch.setenv("A2A_SECRET", SECRET)
    assert outcomes(store, 3, then=exchange) == [3] * 3
    assert SECRET not in repr(store.values)
    monkeypatch.delenv("A2A_SECRET")
    monkeypatch.setenv("A2A_TRUST_STORE", "yes")
    assert outcomes(store, then=exchange) == [2, 2]
    assert b"offered" not in b"".join(store.values.values())  # the secret was taken out of the store


def test_one_host_needs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_store_meeting, "assigned_host", lambda: "host")
    monkeypatch.setenv("A2A_SECRET_FILE", "/nowhere")
    monkeypatch.setenv("A2A_TRUST_STORE", "perhaps")
    assert outcomes(Store(), then=exchange) == [1, 1]


def test_no_address_that_others_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A2A_TRUST_STORE", "1")
    monkeypatch.setattr(_store_meeting, "host_id", lambda: f"machine{_here.rank}")
    first, second = outcomes(Store())
    assert first.startswith("InvalidArgumentError: rank 0 has no address that other hosts reach, only 127.0.0.1"), first
    assert second.startswith("InvalidArgumentError: rank 1 has no address that other hosts reach"), second


def test_ranks_of_mpi_and_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A2A_TRUST_STORE", "1")
    monkeypatch.setattr(_store_meeting._Meeting, "_started_by_mpi", lambda self: _here.rank == 1)
    for text in outcomes(Store()):
        assert text.endswith("group disagree: a launcher of MPI on rank 1, another, or none, on rank 0"), text


@pytest.mark.parametrize("without", [[0, 1], [1]])
def test_a_launcher_of_mpi_without_mpi(without: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """srun starts programs of any kind. Those that have no MPI meet over TCP."""

    def library_of(transport: str) -> str:
        if _here.rank in without:
            raise a2a.UnsupportedError("cannot find MPI")
        return "some MPI"

    monkeypatch.setenv("A2A_TRUST_STORE", "1")
    monkeypatch.setattr(_store_meeting._Meeting, "_started_by_mpi", lambda self: True)
    monkeypatch.setattr(_store_meeting, "library_of", library_of)
    if len(without) == 2:
        assert outcomes(Store(), then=exchange) == [2, 2]
    else:
        said = outcomes(Store())
        assert said == ["UnsupportedError: rank 1 cannot load MPI, as the others do: cannot find MPI"] * 2


def test_a_rank_that_never_comes() -> None:
    def run(rank: int) -> str:
        _here.rank = rank
        with pytest.raises(a2a.TimeoutError) as info:
            _store_meeting.meet(store, rank, 4, 1)
        return str(info.value)

    store = Store()
    with ThreadPoolExecutor(2) as pool:
        for rank, text in zip((0, 2), pool.map(run, (0, 2)), strict=True):
            assert text.startswith(f"rank {rank} of 4 timed out after 1 s waiting for rank 1, 3 in the first"), text
