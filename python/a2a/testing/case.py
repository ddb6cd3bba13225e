"""``RanksTestCase``: tests on ranks with unittest alone."""

from __future__ import annotations

import atexit
import importlib
import os
import secrets
import shutil
import sys
import tempfile
import time
import traceback
import unittest
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from .._core import AbortedError, Communicator, MismatchError, PeerLostError, TimeoutError
from .ranks.channel import Channel
from .ranks.pool import Pool, TooMany
from .ranks.run import End, run
from .ranks.serving import Failure, Tested, serve
from .ranks.verdict import Fault, grouped, in_words
from .ranks.world import Place, World

__all__ = ["RanksTestCase"]

__unittest = True  # unittest leaves the frames of this module out of tracebacks
_ECHOES = (PeerLostError, AbortedError, MismatchError, TimeoutError, ConnectionError)
_world: World | None = None
"""In a rank: that of the test which runs."""


class RanksTestCase(unittest.TestCase):
    """A TestCase whose tests run on each of ``ranks`` ranks, which are forked processes:

        class TestExchange(a2a.testing.RanksTestCase):
            ranks = 4

            def test_barrier(self):
                self.comm.barrier()

    setUp() and tearDown() run on each rank, too, and setUpClass() both there and in the process that runs the tests.
    A test that does not pass on all ranks is one failure, with the rank that failed first at the top."""

    ranks: int = 2
    timeout: float = 60.0
    """seconds after which a test that hangs ends"""
    torch: str = ""
    """the backend of torch's default process group, "a2a" or "gloo"; "" for none"""

    @property
    def comm(self) -> Communicator:
        """The communicator of the ranks of this test."""
        if _world is None:
            raise RuntimeError("comm is there on ranks, while a test runs")
        return _world.comm

    def run(self, result: unittest.TestResult | None = None) -> unittest.TestResult | None:
        if _world is not None:
            return super().run(result)
        result = result if result is not None else self.defaultTestResult()
        if _is_skipped(self):
            return super().run(result)
        result.startTest(self)
        try:
            _report(self, result, _run_on_ranks(self))
        except TooMany as error:
            result.addError(self, _raised(error))
        finally:
            result.stopTest(self)
        return result


class RanksFailed(AssertionError):
    """A test did not pass on all ranks. The text has each rank's own traceback."""


# ---- the process that runs the tests ---------------------------------------------------------------------------------


class _Runner:
    """The ranks of this process, forked when the first test runs."""

    def __init__(self) -> None:
        self.modules = set(sys.modules)
        self.pid = os.getpid()
        self.job = f"unittest-{self.pid}-{secrets.token_hex(4)}"
        self.tests = 0
        for stream in (sys.stdout, sys.stderr):
            stream.flush()  # what waits to be written would be written by every fork once more
        self.folder = Path(tempfile.mkdtemp(prefix="a2a-"))
        self.pool = Pool(
            lambda channel: serve(channel, _UnittestStage()), lambda: shutil.rmtree(self.folder, ignore_errors=True)
        )
        atexit.register(self.close)

    def close(self) -> None:
        if os.getpid() == self.pid:
            self.pool.close()
        atexit.unregister(self.close)


_runner: _Runner | None = None


def _runner_for(test: unittest.TestCase) -> _Runner:
    global _runner
    if _runner is not None and (_runner.pid != os.getpid() or type(test).__module__ not in _runner.modules):
        _runner.close()
        _runner = None
    if _runner is None:
        _runner = _Runner()
    return _runner


def _run_on_ranks(test: RanksTestCase) -> list[End]:
    runner = _runner_for(test)
    members = runner.pool.take(test.ranks)
    runner.tests += 1
    folder = runner.folder / str(runner.tests)
    folder.mkdir(mode=0o700)
    try:
        job = f"{runner.job}-{runner.tests}"
        places = [Place(rank, test.ranks, job, test.timeout, str(folder), test.torch) for rank in range(test.ranks)]
        kind = type(test)
        tasks = [(kind.__module__, kind.__qualname__, test._testMethodName, place) for place in places]
        ends = run(runner.pool, members, tasks, test.timeout, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if any(end.failed or end.died for end in ends):
        runner.pool.retire([end.rank for end in ends if not end.died])
    return ends


def _report(test: RanksTestCase, result: unittest.TestResult, ends: Sequence[End]) -> None:
    said = {end.rank: end.tested.content for end in ends if end.tested is not None}
    failed = [end for end in ends if end.died or said.get(end.rank, {}).get("failed") or (end.done and end.done[0])]
    skipped = {rank: content["skipped"] for rank, content in said.items() if content["skipped"]}
    if failed:
        result.addFailure(test, _raised(RanksFailed("\n".join(_texts(failed, said, len(ends))))))
    elif skipped and len(skipped) < len(ends):
        text = f"{in_words([*skipped])} skipped the test ({next(iter(skipped.values()))}), and others did not"
        result.addFailure(test, _raised(RanksFailed(text)))
    elif skipped:
        result.addSkip(test, next(iter(skipped.values())))
    elif any(content["expected"] for content in said.values()):
        result.addExpectedFailure(test, _raised(RanksFailed("as expected")))
    elif any(content["unexpected"] for content in said.values()):
        result.addUnexpectedSuccess(test)
    else:
        result.addSuccess(test)


def _raised(error: Exception) -> Any:
    """Return what sys.exc_info() says while the error is handled."""
    __tracebackhide__ = True
    try:
        raise error
    except Exception:
        return sys.exc_info()


def _texts(failed: Sequence[End], said: dict[int, Any], size: int) -> list[str]:
    texts, faults = {}, []
    for end in failed:
        rank = end.rank
        if end.died:
            texts[rank] = f"{end.died}\n{end.stack}".rstrip()
            faults.append(Fault(rank, end.time, end.follows, "", texts[rank]))
            continue
        failure = end.tested.failure if end.tested else None
        texts[rank] = said[rank]["failed"] or end.done[0]
        follows = failure is not None and failure.follows
        lines = texts[rank].rstrip().splitlines()
        places = [line for line in lines if line.startswith('  File "') and not line.startswith('  File "<')]
        where, message = places[-1] if places else "", lines[-1]
        faults.append(Fault(rank, failure.time if failure else end.time, follows, where, message))
    groups = grouped(faults)
    return [
        f"{group.header(size, culprit=at == 0, alone=len(groups) == 1)}\n{texts[group.first.rank].rstrip()}\n"
        for at, group in enumerate(groups)
    ]


def _is_skipped(test: unittest.TestCase) -> bool:
    method = getattr(test, test._testMethodName)
    return getattr(type(test), "__unittest_skip__", False) or getattr(method, "__unittest_skip__", False)


# ---- ranks -----------------------------------------------------------------------------------------------------------


class _UnittestStage:
    """Runs tests in a rank."""

    def __init__(self) -> None:
        self._kind: type[unittest.TestCase] | None = None

    def outputs(self) -> dict[str, int]:
        return {}

    def run(self, task: Any, channel: Channel, meet: Callable[[Tested], str | None]) -> str:
        global _world
        module, name, method, place = task
        kind: Any = importlib.import_module(module)
        for part in name.split("."):
            kind = getattr(kind, part)
        world, result, failure = World(place), _Result(), None
        try:
            world.open()
            _world = world
            self._enter(kind)
            kind(method).run(result)
            failure = result.failure
        except Exception as error:
            failure = Failure(time.monotonic(), isinstance(error, _ECHOES), str(error))
            result.texts.append(traceback.format_exc())
        if failure is None and not result.skipped:
            text = world.out_of_step()
            if text:
                failure = Failure(time.monotonic(), False, text)
                result.texts.append(text)
        reason = meet(Tested(failure, result.content()))
        if reason is not None:
            world.abort(reason)
        try:
            world.close(reason is None)
        except Exception as error:
            return f"the ranks have not ended in step: {error}"
        finally:
            _world = None
        return ""

    def _enter(self, kind: type[unittest.TestCase]) -> None:
        if kind is not self._kind:
            self._leave_class()
            kind.setUpClass()
            self._kind = kind

    def _leave_class(self) -> None:
        if self._kind is not None:
            kind, self._kind = self._kind, None
            kind.tearDownClass()
            kind.doClassCleanups()

    def leave(self) -> str | None:
        try:
            self._leave_class()
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return None


class _Result(unittest.TestResult):
    """What one rank says of a test."""

    def __init__(self) -> None:
        super().__init__()
        self.failure: Failure | None = None
        self.texts: list[str] = []

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:
        super().addFailure(test, err)
        self._note(err, self.failures[-1][1])

    def addError(self, test: unittest.TestCase, err: Any) -> None:
        super().addError(test, err)
        self._note(err, self.errors[-1][1])

    def addSubTest(self, test: unittest.TestCase, subtest: unittest.TestCase, err: Any) -> None:
        super().addSubTest(test, subtest, err)
        if err is not None:
            self._note(err, f"{subtest}\n{self._exc_info_to_string(err, test)}")  # type: ignore[attr-defined]

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        super().addSkip(test, reason)
        self.failure = self.failure or Failure(time.monotonic(), False, reason, skipped=True)

    def addExpectedFailure(self, test: unittest.TestCase, err: Any) -> None:
        super().addExpectedFailure(test, err)
        self.failure = self.failure or Failure(time.monotonic(), False, str(err[1]), skipped=True)

    def content(self) -> dict[str, Any]:
        return {
            "failed": "\n".join(self.texts),
            "skipped": self.skipped[0][1] if self.skipped else "",
            "expected": bool(self.expectedFailures),
            "unexpected": bool(self.unexpectedSuccesses),
        }

    def _note(self, err: Any, text: str) -> None:
        self.texts.append(text)
        self.failure = self.failure or Failure(time.monotonic(), isinstance(err[1], _ECHOES), str(err[1]))
