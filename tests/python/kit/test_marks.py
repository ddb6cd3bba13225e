"""Tests with the mark ``ranks``, run by this very suite: what ranks get, and what pytest does on them."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import a2a

try:
    import hypothesis
    import hypothesis.strategies
except ImportError:
    hypothesis = None  # type: ignore[assignment]

pytest.importorskip("a2a_pytest")
HERE = os.getpid()
"""Of the process that has imported this file: the one that runs the tests."""
NETWORK = Path("/proc/thread-self/ns/net").readlink()


@pytest.fixture(scope="module")
def kept() -> Iterator[dict[str, int]]:
    """One of each rank."""
    yield {"pid": os.getpid(), "tests": 0}


@pytest.fixture
def rows(comm: a2a.Communicator) -> Any:
    return np.full(comm.size, comm.rank + 1.0)


def total(comm: a2a.Communicator) -> float:
    x = np.ones(1)
    comm.allreduce(x)
    return float(x[0])


@pytest.mark.smoke
@pytest.mark.ranks(2)
def test_ranks_are_processes(comm: a2a.Communicator) -> None:
    assert comm.size == 2 and total(comm) == 2
    pids = comm.allgather_bytes(str(os.getpid()).encode())
    assert len(set(pids)) == 2 and str(HERE).encode() not in pids
    assert threading.active_count() == 1


@pytest.mark.ranks(2)
def test_the_next_test_has_another_communicator(comm: a2a.Communicator, kept: dict[str, int]) -> None:
    kept["tests"] += 1
    kept["comm"] = id(comm)
    comm.timeout = 33
    assert kept["pid"] == os.getpid()


@pytest.mark.ranks(2)
def test_fixtures_of_modules_live_from_test_to_test(comm: a2a.Communicator, kept: dict[str, int]) -> None:
    assert kept["tests"] == 1 and kept["pid"] == os.getpid()
    assert comm.timeout != 33


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("factor", [1, 5])
def test_numbers_of_ranks_and_parameters(
    comm: a2a.Communicator, rows: Any, factor: int, request: pytest.FixtureRequest
) -> None:
    assert f"{comm.size} ranks" in request.node.name and str(factor) in request.node.name
    received = np.empty_like(rows)
    comm.alltoall(rows * factor, received)
    assert received.tolist() == [(peer + 1.0) * factor for peer in range(comm.size)]


@pytest.mark.ranks((1, 2))
def test_numbers_in_a_tuple(comm: a2a.Communicator) -> None:
    assert comm.size in (1, 2)


@pytest.mark.ranks(2)
class TestOfAClass:
    def test_has_the_mark_of_its_class(self, comm: a2a.Communicator) -> None:
        assert comm.size == 2

    @pytest.mark.ranks(3)
    def test_or_its_own(self, comm: a2a.Communicator) -> None:
        assert comm.size == 3


@pytest.mark.ranks(2)
def test_ranks_have_folders_and_output_of_their_own(
    comm: a2a.Communicator, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = {path.decode() for path in comm.allgather_bytes(str(tmp_path).encode())}
    assert len(paths) == 2 and tmp_path.is_dir()
    os.write(1, f"rank {comm.rank}".encode())
    assert capfd.readouterr().out == f"rank {comm.rank}"
    monkeypatch.setenv("A_VARIABLE_OF_A_TEST", "1")
    os.environ["ANOTHER_ONE"] = "1"


@pytest.mark.ranks(2)
def test_variables_of_a_test_do_not_stay(comm: a2a.Communicator) -> None:
    assert "A_VARIABLE_OF_A_TEST" not in os.environ and "ANOTHER_ONE" not in os.environ
    assert os.environ["RANK"] == os.environ["A2A_RANK"] == str(comm.rank)


@pytest.mark.ranks(2)
def test_a_program_makes_communicators_itself() -> None:
    with a2a.init() as comm:
        assert comm.size == 2 and total(comm) == 2


@pytest.mark.ranks(2)
def test_ranks_draw_numbers_of_their_own(comm: a2a.Communicator) -> None:
    assert len(set(comm.allgather_bytes(np.random.bytes(8)))) == 2  # noqa: NPY002


@pytest.mark.ranks(2)
def test_a_communicator_may_be_closed_by_the_test(comm: a2a.Communicator) -> None:
    comm.close()


@pytest.mark.ranks(2)
def test_a_test_may_break_its_communicator(comm: a2a.Communicator) -> None:
    if comm.rank == 0:
        comm.abort("on purpose")
    with pytest.raises(a2a.AbortedError):
        while True:
            comm.barrier()


@pytest.mark.ranks(3, threads=True)
@pytest.mark.parametrize("value", [7])
def test_ranks_that_are_threads(comm: a2a.Communicator, value: int, kept: dict[str, int]) -> None:
    assert comm.size == 3 and total(comm) == 3 and value == 7
    assert len(set(comm.allgather_bytes(str(os.getpid()).encode()))) == 1
    assert threading.current_thread().name == f"rank {comm.rank}"
    assert kept["pid"] == os.getpid()


@pytest.mark.ranks(1, 2, threads=(False, True))
def test_both_kinds(comm: a2a.Communicator, request: pytest.FixtureRequest) -> None:
    assert f"{comm.size} " in request.node.name and total(comm) == comm.size
    in_thread = threading.current_thread() is not threading.main_thread()
    assert in_thread == ("threads" in request.node.name)


@pytest.mark.hosts(2)
@pytest.mark.ranks(4)
def test_ranks_on_two_hosts(comm: a2a.Communicator) -> None:
    assert total(comm) == 4
    assert a2a._core.host_facts(comm)["hosts"] == 2
    assert os.environ["A2A_HOSTS"] == "host0,host0,host1,host1"


@pytest.mark.hosts(2, network=True)
@pytest.mark.ranks(3)
def test_hosts_with_networks_of_their_own(comm: a2a.Communicator) -> None:
    """The test is skipped where the machine has none."""
    assert total(comm) == 3
    mine = Path("/proc/thread-self/ns/net").readlink()
    networks = [network.decode() for network in comm.allgather_bytes(str(mine).encode())]
    assert networks[0] == networks[1] != networks[2]


@pytest.mark.hosts(2)
@pytest.mark.ranks(2)
def test_the_next_test_has_the_machines_network(comm: a2a.Communicator) -> None:
    assert total(comm) == 2 and Path("/proc/thread-self/ns/net").readlink() == NETWORK


@pytest.mark.ranks(2, torch="a2a")
def test_the_default_group_of_torch() -> None:
    import torch
    import torch.distributed as dist

    x = torch.ones(2)
    dist.all_reduce(x)
    assert x.tolist() == [2, 2] and dist.get_backend() == "a2a"


@pytest.mark.ranks(3, torch="gloo")
def test_another_default_group_of_torch_after_it(comm: a2a.Communicator) -> None:
    import torch
    import torch.distributed as dist

    x = torch.ones(2)
    dist.all_reduce(x)
    assert x.tolist() == [3, 3] and dist.get_backend() == "gloo" and dist.get_rank() == comm.rank


@pytest.mark.ranks(2, jax=True)
def test_the_communicator_of_jax() -> None:
    import jax.numpy as jnp
    from a2a.jax import all_to_all

    received = all_to_all(jnp.arange(2.0) + int(os.environ["RANK"]) * 10, None, 0, 0, tiled=True)
    assert received.tolist() == [float(os.environ["RANK"]), 10 + float(os.environ["RANK"])]


@pytest.mark.ranks(2)
def test_warnings_are_those_of_the_run(comm: a2a.Communicator) -> None:
    with pytest.warns(UserWarning, match="of a rank"):
        warnings.warn("of a rank", stacklevel=1)
    with pytest.raises(DeprecationWarning), warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.warn("raised", DeprecationWarning, stacklevel=1)


if hypothesis is not None:

    @pytest.mark.ranks(2)
    @hypothesis.given(x=hypothesis.strategies.integers())
    @hypothesis.settings(
        max_examples=20, deadline=None, suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture]
    )
    def test_ranks_try_the_same_examples(comm: a2a.Communicator, x: int) -> None:
        assert len(set(comm.allgather_bytes(str(x).encode()))) == 1


def test_a_test_without_the_mark_stays_here() -> None:
    assert os.getpid() == HERE
