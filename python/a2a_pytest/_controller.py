"""Has ranks run each test that has the mark, in the process that runs the tests."""

from __future__ import annotations

import contextlib
import importlib
import os
import secrets
import shutil
import socket
import sys
import tempfile
import warnings
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import pytest

from a2a.testing.ranks.channel import Channel
from a2a.testing.ranks.networks import Networks
from a2a.testing.ranks.pool import Pool, TooMany
from a2a.testing.ranks.run import End, run
from a2a.testing.ranks.serving import serve
from a2a.testing.ranks.world import Place

from . import _reports
from ._marks import Wish, WrongMark, wish_of
from ._stage import PytestStage, Task

__all__ = ["Controller"]


class NoNetworks(Exception):
    """This machine has no network namespaces for this process."""


class Controller:
    """The plugin of a process that has such tests. Forks the process from which ranks are forked."""

    def __init__(self, session: pytest.Session, items: Sequence[pytest.Item]) -> None:
        self._session, self._config = session, session.config
        _import_what(items)
        factory = getattr(self._config, "_tmp_path_factory", None)
        if factory is not None:
            factory.getbasetemp()  # has the folders of ranks
        _flush(self._config)
        self._folder = Path(tempfile.mkdtemp(prefix="a2a-"))
        self._job = f"pytest-{os.getpid()}-{secrets.token_hex(4)}"
        self._tests = 0
        self._networks = Networks()

        def start(channel: Channel) -> None:
            stage = PytestStage(session)
            stage.start()
            serve(channel, stage)

        self._pool = Pool(start, self._remove)
        self._config.add_cleanup(self._pool.kill)

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtestloop(self) -> Generator[None, object, object]:
        result = yield
        for rank, said in self._pool.close().items():
            if said is not None:
                warnings.warn(f"rank {rank}, after its last test: {said}", pytest.PytestWarning, stacklevel=1)
        return result

    def _remove(self) -> None:
        self._networks.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
        if item.get_closest_marker("ranks") is None:
            return None
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        leave: BaseException | None = None
        try:
            reports, leave = self._run(item, nextitem)
        except (WrongMark, TooMany) as error:
            reports = _reports.of_a_text(item, str(error))
        except NoNetworks as error:
            reports = _reports.of_a_text(item, str(error), "skipped")
        except pytest.fail.Exception as error:  # of a plugin that limits the time of tests
            reports = _reports.of_a_text(item, str(error))
        reports += self._tear_down(item, nextitem)
        for report in reports:
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        if leave is not None:
            raise leave
        return True

    def _tear_down(self, item: pytest.Item, nextitem: pytest.Item | None) -> list[pytest.TestReport]:
        """Tear down what this process has set up for earlier tests, and kept because it is that of this test, too."""
        following = None if self._stops() else nextitem
        call = pytest.CallInfo.from_call(lambda: self._session._setupstate.teardown_exact(following), "teardown")
        return [item.ihook.pytest_runtest_makereport(item=item, call=call)] if call.excinfo is not None else []

    def _run(self, item: pytest.Item, nextitem: pytest.Item | None) -> tuple[list[Any], BaseException | None]:
        wish = wish_of(item)
        members = self._pool.take(1 if wish.threads else wish.ranks)
        following = nextitem.nodeid if nextitem is not None and not self._stops() else None
        folder = self._folder / str(self._tests)
        folder.mkdir(mode=0o700)
        self._tests += 1
        try:
            threads = wish.ranks if wish.threads else 0
            tasks = [Task(item.nodeid, following, place, threads) for place in self._places(wish, folder, len(members))]
            records = Path(os.environ.get("A2A_DUMP") or folder)
            ends = run(self._pool, members, tasks, self._limit(wish), records)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        reports, keep = _reports.merge(item, ends, wish.ranks, self._config)
        self._replay_warnings(item, ends)
        if not keep or wish.paddle:  # Paddle has one environment for the life of a process
            self._retire([end.rank for end in ends if not end.died])
        return reports, _asked_to_leave(ends)

    def _places(self, wish: Wish, folder: Path, processes: int) -> list[Place]:
        hosts, meeting, secret = wish.names(), "", ""
        networks = [""] * wish.ranks
        if hosts:
            meeting, secret = _free_address(), secrets.token_hex(16)
        if wish.network:
            try:
                files, addresses = self._networks.take(wish.hosts)
            except OSError as error:
                raise NoNetworks(str(error)) from None
            networks = [files[host] for host in wish.host_numbers()]
            meeting = f"{addresses[0]}:{20_000 + self._tests % 10_000}"
        return [
            Place(
                rank,
                processes,
                f"{self._job}-{self._tests}",
                wish.timeout,
                str(folder),
                wish.torch,
                wish.paddle,
                wish.jax,
                tuple(hosts),
                meeting,
                secret,
                networks[rank],
            )
            for rank in range(processes)
        ]

    def _limit(self, wish: Wish) -> float:
        return float("inf") if self._config.getoption("trace", False) else wish.timeout

    def _stops(self) -> bool:
        return bool(self._session.shouldfail or self._session.shouldstop)

    def _retire(self, ranks: list[int]) -> None:
        for rank, said in self._pool.retire(ranks).items():
            if said is not None:
                warnings.warn(f"rank {rank}, before it was replaced: {said}", pytest.PytestWarning, stacklevel=1)

    def _replay_warnings(self, item: pytest.Item, ends: Sequence[End]) -> None:
        seen = set()
        for end in ends:
            for message, filename, lineno, when, nodeid, location in end.done[0]["warnings"] if end.done else ():
                if (key := (str(message), filename, lineno)) in seen:
                    continue
                seen.add(key)
                recorded = warnings.WarningMessage(message, type(message), filename, lineno)
                item.ihook.pytest_warning_recorded.call_historic(
                    kwargs={"warning_message": recorded, "when": when, "nodeid": nodeid, "location": location}
                )


def _asked_to_leave(ends: Sequence[End]) -> BaseException | None:
    """pytest.exit() on a rank, or the end of a debugger, ends the run."""
    for end in ends:
        if end.done and end.done[0]["exit"] is not None:
            return pytest.exit.Exception(f"rank {end.rank}: {end.done[0]['exit']}")
    return None


def _import_what(items: Sequence[pytest.Item]) -> None:
    """Import the frameworks that marks name, so that ranks have them from their start."""
    options = [mark.kwargs for item in items if (mark := item.get_closest_marker("ranks")) is not None]
    for name in ("torch", "paddle", "jax"):
        if any(option.get(name) for option in options):
            with contextlib.suppress(ImportError):  # the test will say so
                importlib.import_module(f"a2a.{name}")


def _flush(config: pytest.Config) -> None:
    """What waits to be written would be written by every fork once more."""
    reporter = config.pluginmanager.getplugin("terminalreporter")
    streams: list[Any] = [sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__]
    if reporter is not None:
        streams.append(reporter._tw)
    for stream in streams:
        with contextlib.suppress(Exception):
            stream.flush()


def _free_address() -> str:
    """Return a port that is free on an address of this host that no other process uses: one made of its number."""
    number = os.getpid()
    address = f"127.{number >> 16 & 127 | 64}.{number >> 8 & 255}.{number & 255 or 1}"
    with socket.socket() as door:
        door.bind((address, 0))
        return f"{address}:{door.getsockname()[1]}"
