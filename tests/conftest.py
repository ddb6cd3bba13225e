"""Ranks for tests, always with a time limit and never with anything left behind."""

from __future__ import annotations

import gc
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parent / "python" / "support"))  # whose modules tests and ranks import by name

import sample
from cpp_build import build_dir  # noqa: F401 (a fixture)
from network_hosts import hosts
from possessions import children, descriptors, shared_files
from rank_pool import Pool

from a2a import _spawn

# A shell that starts the tests in the background has them ignore SIGINT, and all their ranks with them.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Longest time of the ranks of one test, shorter than the limit of pytest-timeout so that their stacks are shown.
RANK_SECONDS = 60.0


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--full",
        action="store_true",
        help="run every combination of parameters; without it, each value of each parameter at least once",
    )
    parser.addoption("--peer", choices=["a2a", "gloo"], default="a2a", help="whose Torch collectives to test")


def pytest_configure(config: pytest.Config) -> None:
    sample.full = config.getoption("--full")  # before tests are imported


@pytest.hookimpl(trylast=True)  # after what -k and -m leave
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--full"):
        return
    kept = sample.sample(items)
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = [item for item in items if item in kept]


def pytest_collection_finish() -> None:
    """Exempt the imported frameworks from garbage collections: many tests, and ranks that are forked, ask for one."""
    gc.collect()
    gc.freeze()


def pytest_xdist_auto_num_workers() -> int:
    """More workers than CPUs, because many tests wait."""
    return min(len(os.sched_getaffinity(0)) + 1, 8)


@pytest.fixture(scope="module")
def addresses() -> Iterator[list[str]]:
    """Of three hosts that share nothing but a network."""
    try:
        with hosts(3) as made:
            yield made
    except OSError as error:
        pytest.skip(str(error))


@pytest.fixture
def nothing_left() -> Iterator[None]:
    """Fails the test if it leaves processes, descriptors or files in /dev/shm."""
    gc.collect()
    before = (children(), set(descriptors().items()), shared_files())
    yield
    deadline = time.monotonic() + 5
    while True:
        gc.collect()
        left = {
            "processes": children() - before[0],
            "descriptors": set(descriptors().items()) - before[1],
            "files in /dev/shm": shared_files() - before[2],
        }
        if not any(left.values()):
            return
        if time.monotonic() > deadline:
            pytest.fail(f"left behind: {left}")
        time.sleep(0.05)


@pytest.fixture
def run_ranks(nothing_left: None) -> Callable[..., list[Any]]:
    """``run_ranks(n, fn, *args)`` is ``a2a.spawn(fn, n, *args)`` with a time limit, after which the ranks are killed
    and the stack of each is in the error."""

    def run(
        n: int, fn: Callable[..., Any], *args: Any, threads: bool = False, timeout: float = RANK_SECONDS
    ) -> list[Any]:
        return _spawn.spawn(fn, n, *args, threads=threads, timeout=timeout)

    return run


@pytest.fixture
def rank_outcomes(nothing_left: None) -> Callable[..., list[_spawn.Outcome]]:
    """Like run_ranks, for tests of failures: returns how every rank ended, and lets the others go on when one fails."""

    def run(n: int, fn: Callable[..., Any], *args: Any, timeout: float = RANK_SECONDS) -> list[_spawn.Outcome]:
        return _spawn.run(fn, n, *args, timeout=timeout, keep_going=True)

    return run


@pytest.fixture(scope="session")
def paddle_pool() -> Iterator[Pool]:
    """Eight ranks for all tests of a2a.paddle, because importing Paddle takes seconds. Smaller groups are parts of
    them."""
    with Pool(8) as pool:
        yield pool
