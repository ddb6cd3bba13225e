"""pytest's plugin "a2a": ``@pytest.mark.ranks(4)`` runs a test on each of four ranks (docs/guide/testing.md).

Where a2a is installed, every run of pytest imports this module. So it imports nothing but pytest. The rest comes with
the first test that has the mark. ``-p no:a2a`` turns it off.

``_marks`` reads the marks. ``_controller`` has the ranks of ``a2a.testing.ranks`` run a test. ``_stage`` runs it in
each rank, or ``_threads`` in each thread. ``_reports`` makes one report of those of all ranks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import a2a
    from a2a.testing import Faults

_MARKS = (
    "ranks(n, ..., threads=False, timeout=60, torch=None, paddle=False, jax=False): run the test on each of n ranks; "
    "with several n once for each n, with threads=(False, True) in both ways. "
    'torch="a2a" or "gloo" makes torch\'s default process group, paddle=True Paddle\'s, jax=True that of a2a.jax.',
    "hosts(count, network=False): the ranks of the test are on so many hosts, as A2A_HOSTS assigns them; with "
    "network=True each host has a network namespace, and the test is skipped where there are none.",
)
_KIND = "_a2a_ranks"


def pytest_configure(config: pytest.Config) -> None:
    for mark in _MARKS:
        config.addinivalue_line("markers", mark)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    mark = metafunc.definition.get_closest_marker("ranks")
    if mark is None:
        return
    from ._marks import kinds_of

    kinds = kinds_of(mark)
    if len(kinds) > 1:
        metafunc.fixturenames.append(_KIND)
        ids = [f"{n} {'threads' if threads else 'ranks'}" for n, threads in kinds]
        metafunc.parametrize(_KIND, kinds, ids=ids, indirect=True)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """All tests are known, and none has run: this is when the process is forked from which ranks are forked."""
    if session.config.option.collectonly:
        return
    items = [item for item in session.items if item.get_closest_marker("ranks") is not None]
    if items:
        from ._controller import Controller

        session.config.pluginmanager.register(Controller(session, items), "a2a-controller")


@pytest.fixture
def _a2a_ranks(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def comm(request: pytest.FixtureRequest) -> a2a.Communicator:
    """The communicator of the ranks of this test, for tests with the mark ``ranks``. It is closed after the test."""
    from ._stage import communicator_of

    return communicator_of(request)


@pytest.fixture
def faults(request: pytest.FixtureRequest) -> Faults:
    """Faults that strike ranks of this test: ``faults.kill(rank, at=3)`` (docs/guide/testing.md)."""
    from ._stage import faults_of

    return faults_of(request)
