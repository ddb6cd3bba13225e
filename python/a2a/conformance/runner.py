"""Plans the tasks, starts ranks, and watches them: a crash or a hang costs the task that it happens in, not the run."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import secrets
import selectors
import signal
import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from . import frameworks, groups
from .cases import Case
from .rank import PASS, Task
from .signatures import SIGNATURES, Signature

__all__ = ["Result", "plan", "plan_mixed", "run"]

_START_SECONDS = 60.0
_ALL_ASSIGNMENTS = 3
"""Up to so many ranks, every assignment of frameworks to ranks is tried; above, a sample."""
_SAMPLED_ASSIGNMENTS = 12


@dataclass
class Result:
    """How a task ended: "pass", or what went wrong on the first rank where something did."""

    task: Task
    verdicts: dict[int, str] = field(default_factory=dict)

    @property
    def verdict(self) -> str:
        worst = [text for _, text in sorted(self.verdicts.items()) if text != PASS]
        # A rank that merely noticed what happened to another one tells less.
        worst.sort(key=lambda text: ("PeerLost" in text or "Aborted" in text, text.startswith("hang")))
        return worst[0] if worst else PASS if len(self.verdicts) == self.task.case.ranks else "hang"


# ---- what to run -----------------------------------------------------------------------------------------------------


def plan(cases: Sequence[Case], ranks: int, framework: str, prefixes: Sequence[str]) -> list[Task]:
    """Every case for every signature it applies to, with all ranks in one framework."""
    tasks = []
    for case, signature in itertools.product(_of_size(cases, ranks), SIGNATURES):
        prefix = signature.name.partition(".")[0]
        if prefix in prefixes and _applies(signature, case, framework):
            for dtype in sorted(frameworks.load(framework).DTYPES & set(case.dtypes)):
                tasks.append(Task(case, dtype, (signature.name,) * ranks, (framework,) * ranks))
    return tasks


def plan_mixed(
    cases: Sequence[Case], ranks: int, names: Sequence[str], prefixes: Sequence[str], chance: random.Random
) -> list[Task]:
    """The same with ranks in different frameworks, each of which uses its own words."""
    assignments = [one for one in itertools.product(names, repeat=ranks) if len(set(one)) > 1]
    if ranks > _ALL_ASSIGNMENTS:
        assignments = chance.sample(assignments, min(len(assignments), _SAMPLED_ASSIGNMENTS))
    tasks = []
    for assignment, case in itertools.product(assignments, _of_size(cases, ranks)):
        signatures = [_own_words(name, case, prefixes) for name in assignment]
        common = set(case.dtypes).intersection(*(frameworks.load(name).DTYPES for name in assignment))
        for dtype in sorted(common):
            tasks.append(Task(case, dtype, tuple(one.name for one in signatures), assignment))
    return tasks


def _of_size(cases: Sequence[Case], ranks: int) -> list[Case]:
    return [case for case in cases if case.ranks == ranks]


def _applies(signature: Signature, case: Case, framework: str) -> bool:
    own = signature.framework in ("", framework) or (signature.framework, framework) == ("mpi4py", "numpy")
    return own and signature.op == case.op and signature.fits(case)


def _own_words(framework: str, case: Case, prefixes: Sequence[str]) -> Signature:
    """The signature of a framework's own adapter; a2a's where it has none."""
    offered = [one for one in SIGNATURES if one.name.partition(".")[0] in prefixes]
    fitting = [one for one in offered if one.mixes and _applies(one, case, framework)]
    return max(fitting, key=lambda one: one.framework == framework)


# ---- running it ------------------------------------------------------------------------------------------------------


def run(how: str, ranks: int, tasks: Sequence[Task], *, alone: bool = False, seconds: float = 20.0) -> Iterator[Result]:
    """Runs tasks with ``ranks`` ranks, one after another, and gives the result of each. ``how``: a transport of a2a, or
    a peer. ``alone``: each task in processes of its own. A task may take ``seconds``."""
    done = 0
    while done < len(tasks):
        with _Session(how, ranks, tasks[done : done + 1] if alone else tasks[done:]) as session:
            for result in session.results(seconds):
                done += 1
                yield result


class _Session:
    """Ranks that run tasks one after another until something goes wrong."""

    def __init__(self, how: str, ranks: int, tasks: Sequence[Task]) -> None:
        self._how, self._ranks, self._tasks = how, ranks, tasks

    def __enter__(self) -> _Session:
        address = f"\0a2a-conformance-{secrets.token_hex(8)}"
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(address)
        self._listener.listen(self._ranks)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._pending: dict[socket.socket, bytes] = {}
        self._pids = groups.start(self._how, self._ranks, self._tasks, address)
        return self

    def __exit__(self, *_: object) -> None:
        for pid in self._pids:
            # The group, because a launcher has children. It is gone already when all went well.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
        for pid in self._pids:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
        for end in (*self._pending, self._listener):
            end.close()
        self._selector.close()

    def results(self, seconds: float) -> Iterator[Result]:
        """One result for each task, up to the first that fails: after it the ranks may be out of step."""
        results = [Result(task) for task in self._tasks]
        at = 0
        deadline = time.monotonic() + _START_SECONDS
        while at < len(results):
            grace = 1.0 if self._failed(results[at]) else float("inf")
            ready = self._selector.select(min(grace, max(0.0, deadline - time.monotonic())))
            for key, _ in ready:
                for rank, number, verdict in self._read(key.fileobj):
                    results[number].verdicts[rank] = verdict
                if len(self._pending) == self._ranks:  # all have come
                    deadline = time.monotonic() + seconds
            while at < len(results) and len(results[at].verdicts) == self._ranks:
                yield results[at]
                if self._failed(results[at]):
                    return
                at += 1
            if at < len(results) and (not ready or self._crashed(results[at])):
                if time.monotonic() >= deadline or not self._failed(results[at]):
                    self._mark_missing(results[at], "hang")
                yield results[at]
                return

    def _failed(self, result: Result) -> bool:
        return any(verdict != PASS and not verdict.startswith("unsupported") for verdict in result.verdicts.values())

    def _read(self, source: object) -> list[tuple[int, int, str]]:
        if source is self._listener:
            end = self._listener.accept()[0]
            self._pending[end] = b""
            self._selector.register(end, selectors.EVENT_READ)
            return []
        assert isinstance(source, socket.socket)
        data = source.recv(1 << 16)
        if not data:
            self._selector.unregister(source)
        *lines, self._pending[source] = (self._pending[source] + data).split(b"\n")
        return [(said["rank"], said["task"], said["verdict"]) for said in map(json.loads, lines)]

    def _crashed(self, result: Result) -> bool:
        """Whether a rank died on a signal; then the result says so."""
        for at, pid in enumerate(self._pids):
            with contextlib.suppress(ChildProcessError):
                done, status = os.waitpid(pid, os.WNOHANG)
                if done and os.WIFSIGNALED(status):
                    name = signal.Signals(os.WTERMSIG(status)).name
                    if len(self._pids) == self._ranks:
                        result.verdicts[at] = f"crash: {name}"
                    self._mark_missing(result, f"crash: {name}")
                    return True
                if done and os.WEXITSTATUS(status):
                    self._mark_missing(result, f"crash: exit code {os.WEXITSTATUS(status)}")
                    return True
        return False

    def _mark_missing(self, result: Result, verdict: str) -> None:
        for rank in range(self._ranks):
            result.verdicts.setdefault(rank, verdict)
