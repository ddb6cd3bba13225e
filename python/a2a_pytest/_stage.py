"""Runs tests in a rank, with all that pytest does around a test: fixtures, captured output, warnings, other plugins."""

from __future__ import annotations

import os
import pickle
import sys
import time
import warnings
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
from _pytest.runner import call_and_report

from a2a._core import AbortedError, Communicator, Error, MismatchError, PeerLostError, TimeoutError
from a2a.testing.faults import Faults
from a2a.testing.ranks.channel import Channel
from a2a.testing.ranks.serving import Failure, Tested
from a2a.testing.ranks.world import Place, World

from ._threads import Ended, run_threads

__all__ = ["PytestStage", "Task", "communicator_of", "faults_of"]

_ECHOES = (PeerLostError, AbortedError, MismatchError, TimeoutError, ConnectionError)
# What Gloo says, by a RuntimeError, when a peer has gone.
_ECHOES_OF_GLOO = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "Connection refused")


@dataclass(frozen=True)
class Task:
    nodeid: str
    next: str | None
    """the node id of the test that the process that runs the tests has next"""
    place: Place
    threads: int = 0
    """how many ranks are threads of the process"""


class PytestStage:
    """``start()`` makes it of a fork of the process that runs the tests."""

    def __init__(self, session: pytest.Session) -> None:
        self._session = session
        self._items = {item.nodeid: item for item in session.items}
        self._plugin: _RankPlugin | None = None

    def start(self) -> None:
        manager = self._session.config.pluginmanager
        manager.unregister(name="a2a-controller")
        self._plugin = _RankPlugin(self._session)
        manager.register(self._plugin, "a2a-rank")
        if manager.unregister(name="pdbinvoke") is not None:
            manager.register(_DebuggerOfOneRank(self._plugin), "a2a-debugger")
        _capture_apart(self._session.config)

    def outputs(self) -> dict[str, int]:
        capture = _capture_of(self._session.config)
        found = {}
        for name, stream in (("stdout", "out"), ("stderr", "err")):
            try:
                found[name] = getattr(capture._global_capturing, stream).tmpfile.fileno()
            except (AttributeError, OSError, ValueError):
                pass  # it is not captured, or not in a file
        return found

    def run(self, task: Task, channel: Channel, meet: Callable[[Tested], str | None]) -> Any:
        assert self._plugin is not None
        item = self._items[task.nodeid]
        nextitem = self._items.get(task.next) if task.next is not None else None
        # What this rank has kept for a test that another rank, or the process that runs the tests, has run meanwhile.
        self._tear_down(item)
        return self._plugin.run(item, nextitem, task, channel, meet)

    def _tear_down(self, nextitem: pytest.Item | None) -> None:
        capture = _capture_of(self._session.config)
        if capture is not None:
            capture.resume_global_capture()
        try:
            self._session._setupstate.teardown_exact(nextitem)
        finally:
            if capture is not None:
                capture.suspend_global_capture(in_=True)
                capture._global_capturing and capture.read_global_capture()

    def leave(self) -> str | None:
        said = None
        try:
            self._tear_down(None)
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        _save_coverage()
        return said


class _RankPlugin:
    """pytest's hooks in a rank."""

    def __init__(self, session: pytest.Session) -> None:
        self._config = session.config
        self._warnings: list[Any] = []
        self._facts: dict[str, Failure] = {}
        self._task: Task | None = None
        self._meet: Callable[[Tested], str | None] | None = None
        self._all_passed = True
        self._has_folder = False
        self.world: World | None = None
        self.channel: Channel | None = None

    def run(
        self,
        item: pytest.Item,
        nextitem: pytest.Item | None,
        task: Task,
        channel: Channel,
        meet: Callable[[Tested], str | None],
    ) -> Any:
        self._task, self._meet, self.channel = task, meet, channel
        self._warnings, self._facts, self._all_passed = [], {}, True
        self._exit: str | None = None
        self._in_threads: list[tuple[Ended, pytest.ExceptionInfo[BaseException]]] = []
        self._reports: list[pytest.TestReport] = []
        self._faults: Faults | None = None
        self._close_error: Error | None = None
        self._name_folder(task.place.rank)
        if task.place.rank > 0:  # --trace: one rank alone gets the terminal
            self._config.pluginmanager.unregister(name="pdbtrace")
        self.world = World(task.place)
        item.ihook.pytest_runtest_protocol(item=item, nextitem=nextitem)
        return {
            "reports": self._serialised(self._reports[-1:]),
            "warnings": self._warnings,
            "exit": self._exit,
        }

    @property
    def threads(self) -> int:
        return self._task.threads if self._task is not None else 0

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool:
        assert self.world is not None and self._meet is not None
        try:
            self._report(item, "setup")
            if self._reports[-1].passed and not self._config.getoption("setuponly", False):
                self._report(item, "call")
        except (pytest.exit.Exception, KeyboardInterrupt) as error:
            self._exit = str(error) or type(error).__name__
            self._facts["call"] = Failure(time.monotonic(), False, self._exit)
            self.pytest_leave_pdb()  # where that was the end of a debugger
        failure = self._facts.get("setup") or self._facts.get("call")
        if self._faults is not None:
            self._faults._close()
        reason = self._meet(Tested(failure, self._serialised(self._reports)))
        if reason is not None:
            self._all_passed = False
            self.world.abort(reason)
        self._report(item, "teardown", nextitem=nextitem)
        return True

    def _report(self, item: pytest.Item, when: Any, **options: Any) -> None:
        report = call_and_report(item, when, log=False, **options)
        if closed := _mend_capture(self._config):
            report.outcome, report.longrepr = "failed", f"the test has closed {closed}, which pytest captures"
            self._facts[when] = Failure(time.monotonic(), False, report.longrepr)
        self._reports += self._of_threads(item, report) if when == "call" and self._in_threads else [report]

    @pytest.hookimpl(tryfirst=True)
    def pytest_pyfunc_call(self, pyfuncitem: pytest.Function) -> bool | None:
        assert self._task is not None and self.channel is not None
        if not self._task.threads:
            return None
        arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
        channel = self.channel

        def on_rank(comm: Communicator) -> None:
            own = {name: comm if name == "comm" else value for name, value in arguments.items()}
            pyfuncitem.obj(**own)

        ended = run_threads(
            on_rank, self._task.threads, self._task.place.limit, lambda threads: channel.send(("threads", threads))
        )
        self._in_threads = [(one, pytest.ExceptionInfo.from_exception(one.error)) for one in ended]
        if ended:
            raise ended[0].error
        return True

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self) -> Generator[None, Any, Any]:
        result = yield
        assert self.world is not None
        missing = self._faults._missing() if self._faults is not None else self.world.out_of_step()
        if missing:
            pytest.fail(missing, pytrace=False)
        return result

    def make_faults(self) -> Faults:
        assert self._task is not None and self.channel is not None
        channel, place = self.channel, self._task.place
        self._faults = Faults(place.rank, place.size, lambda kind, content: channel.send((kind, content)))
        self._faults._open()
        return self._faults

    def _of_threads(self, item: pytest.Item, whole: pytest.TestReport) -> list[pytest.TestReport]:
        """Return a report for each rank that has failed. The call has raised the error of the first."""
        reports = []
        for ended, excinfo in self._in_threads:
            call: pytest.CallInfo[None] = pytest.CallInfo(
                None, excinfo, start=whole.start, stop=whole.stop, duration=whole.duration, when="call", _ispytest=True
            )
            report = item.ihook.pytest_runtest_makereport(item=item, call=call)
            report.a2a_rank, report.a2a_failure = ended.rank, (ended.time, isinstance(ended.error, _ECHOES))
            reports.append(report)
        return reports

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Before fixtures are set up, and after marks have skipped the test."""
        assert self.world is not None
        if self.threads and isinstance(item, pytest.Function):
            _require_no_fixture_with_comm(item)
        if getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
            import hypothesis  # all ranks try the same examples

            hypothesis.seed(self.world.place.job)(item.obj)  # type: ignore[attr-defined]
        self.world.open()

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_teardown(self) -> Generator[None, Any, Any]:
        assert self.world is not None
        try:
            return (yield)
        finally:
            try:
                self.world.close(self._all_passed)
            except Error as error:
                self._close_error = error
                raise pytest.fail.Exception(f"the ranks have not ended in step: {error}", pytrace=False) from None

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if call.excinfo is not None and call.when in ("setup", "call"):
            error = call.excinfo.value
            skipped = report.skipped and not hasattr(report, "wasxfail")
            follows = isinstance(error, _ECHOES) or any(text in str(error) for text in _ECHOES_OF_GLOO)
            failure = Failure(time.monotonic(), follows, call.excinfo.exconly(), skipped)
            self._facts.setdefault(call.when, failure)
            report.a2a_failure = (failure.time, failure.follows)  # type: ignore[attr-defined]
        elif self._close_error is not None and call.when == "teardown":
            follows = isinstance(self._close_error, PeerLostError)
            report.a2a_failure = (time.monotonic(), follows)  # type: ignore[attr-defined]
        return report

    def pytest_warning_recorded(
        self, warning_message: warnings.WarningMessage, when: str, nodeid: str, location: Any
    ) -> None:
        message: Any = warning_message.message
        try:
            pickle.dumps((message, warning_message.category))
        except Exception:
            message = RuntimeWarning(f"{warning_message.category.__name__}: {message}")
        self._warnings.append((message, warning_message.filename, warning_message.lineno, when, nodeid, location))

    def pytest_enter_pdb(self) -> None:
        assert self.channel is not None
        self.channel.send(("debug", True))
        _take_terminal()

    def pytest_leave_pdb(self) -> None:
        assert self.channel is not None
        self.channel.send(("debug", False))

    def _serialised(self, reports: list[pytest.TestReport]) -> list[Any]:
        found = []
        for report in reports:
            data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
            try:
                pickle.dumps(data)
            except Exception as error:
                data["user_properties"] = [(name, repr(value)) for name, value in report.user_properties]
                data["sections"] = [*report.sections, ("Captured by a2a", f"sent as text, because of {error!r}")]
            found.append(data)
        return found

    def _name_folder(self, rank: int) -> None:
        """Give this rank's tmp_path a folder of its own in that of the process that runs the tests."""
        factory = getattr(self._config, "_tmp_path_factory", None)
        if self._has_folder or factory is None or getattr(factory, "_basetemp", None) is None:
            return
        self._has_folder = True
        folder: Path = factory._basetemp / f"rank{rank}"
        if folder.exists():  # of a rank that this one replaces
            folder = folder.with_name(f"rank{rank}-{os.getpid()}")
        factory._basetemp = None
        factory._given_basetemp = folder


class _DebuggerOfOneRank:
    """``--pdb``: the first rank of a test that fails gets the terminal."""

    def __init__(self, plugin: _RankPlugin) -> None:
        self._plugin = plugin

    def pytest_exception_interact(self, node: Any, call: Any, report: Any) -> None:
        from _pytest.debugging import PdbInvoke

        channel = self._plugin.channel
        assert channel is not None
        channel.send(("debugger?", None))
        if channel.receive()[0]:
            try:
                PdbInvoke().pytest_exception_interact(node, call, report)
            finally:
                self._plugin.pytest_leave_pdb()


def communicator_of(request: pytest.FixtureRequest) -> Communicator:
    world, threads = _world_of(request, "comm")
    # Each thread gets a communicator of its own when the test function is called.
    return cast("Communicator", None) if threads else world.comm


def faults_of(request: pytest.FixtureRequest) -> Faults:
    _world_of(request, "faults")
    plugin: _RankPlugin = request.config.pluginmanager.getplugin("a2a-rank")
    if plugin.threads:
        pytest.fail("the fixture faults needs processes: threads=True has none for each rank", pytrace=False)
    return plugin.make_faults()


def _require_no_fixture_with_comm(item: pytest.Function) -> None:
    for name, definitions in item._fixtureinfo.name2fixturedefs.items():
        if "comm" in definitions[-1].argnames:
            pytest.fail(
                f"with threads=True fixtures are set up once for all ranks, so the fixture {name} cannot have comm, "
                "which is another one for each: let the test pass it on, or use processes",
                pytrace=False,
            )


def _world_of(request: pytest.FixtureRequest, fixture: str) -> tuple[World, int]:
    plugin = request.config.pluginmanager.getplugin("a2a-rank")
    if plugin is None or plugin.world is None:
        pytest.fail(f"the fixture {fixture} is for tests with the mark ranks: @pytest.mark.ranks(4)", pytrace=False)
    return plugin.world, plugin.threads


# ---- a process of its own --------------------------------------------------------------------------------------------


def _capture_of(config: pytest.Config) -> Any:
    return config.pluginmanager.getplugin("capturemanager")


def _capture_apart(config: pytest.Config) -> None:
    """Capture output in files of this rank. Those that it has from fork() are the ones of the process that runs the
    tests."""
    capture = _capture_of(config)
    if capture is None or capture._global_capturing is None:
        return
    capture._global_capturing.stop_capturing()
    capture._global_capturing = None
    capture.start_global_capturing()
    capture.suspend_global_capture(in_=True)


def _mend_capture(config: pytest.Config) -> str:
    """Capture anew where the test has closed what output is captured in. Returns what it has closed, in words."""
    capture = _capture_of(config)
    streams = capture._global_capturing if capture is not None else None
    if streams is None:
        return ""
    closed = [one for one in (streams.out, streams.err) if one is not None and one.tmpfile.closed]
    for one in closed:
        if hasattr(one, "targetfd_save"):
            os.dup2(one.targetfd_save, one.targetfd)
    if closed:
        sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__
        capture._global_capturing = None
        capture.start_global_capturing()
        capture.suspend_global_capture(in_=True)
    return " and ".join("sys.stdout" if one is streams.out else "sys.stderr" for one in closed)


def _save_coverage() -> None:
    """coverage has measured this process from its fork on, and knows that it is another one."""
    coverage = sys.modules.get("coverage")
    current = coverage.Coverage.current() if coverage is not None else None
    if current is not None:
        current.stop()
        current.save()


def _take_terminal() -> None:
    """Ranks are in process groups of their own; the terminal lets only one group read."""
    import signal

    try:
        terminal = sys.__stdin__.fileno()  # type: ignore[union-attr]
        if os.isatty(terminal):
            before = signal.signal(signal.SIGTTOU, signal.SIG_IGN)
            os.tcsetpgrp(terminal, os.getpgrp())
            signal.signal(signal.SIGTTOU, before)
    except (OSError, ValueError, AttributeError):
        pass
