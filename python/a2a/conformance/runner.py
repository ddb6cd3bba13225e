"""Plans the tasks, and runs them in sessions."""

from __future__ import annotations

import functools
import itertools
import random
from collections import Counter
from collections.abc import Iterator, Sequence

from .. import frameworks
from .cases import Case
from .groups import OWN, PEERS
from .rank import Task
from .session import Result, Session
from .signatures import SIGNATURES, Signature

__all__ = ["plan", "plan_mixed", "run"]

ALL_ASSIGNMENTS = 3
"""Up to this number of ranks every assignment of frameworks to ranks is tried; above it, a sample."""
SAMPLED_ASSIGNMENTS = 12
MEETINGS = 2
"""The number of times that a peer may try again to make a group."""
LONELY = 3
"""After this number of tasks in a row whose ranks could not meet, the others fail without being tried."""


def plan(
    cases: Sequence[Case],
    ranks: int,
    framework: str,
    libraries: Sequence[str] = tuple(OWN),
    memory: str = "host",
) -> list[Task]:
    """Plan every case in every dtype for every signature to which it applies, with all ranks in one framework.
    ``memory``: that of its tensors, as in Framework.memory."""
    tasks = []
    for case in _of_size(cases, ranks):
        fitting = _fitting(case, framework, libraries, memory)
        for dtype in _dtypes(case, [framework], memory):
            for signature in fitting:
                if signature.dtypes is None or dtype in signature.dtypes:
                    tasks.append(Task(case, dtype, (signature.name,) * ranks, (framework,) * ranks))
    return tasks


def plan_mixed(
    cases: Sequence[Case],
    ranks: int,
    names: Sequence[str],
    libraries: Sequence[str] = tuple(OWN),
    memory: str = "host",
    chance: random.Random | None = None,
) -> list[Task]:
    """Plan the same with ranks in different frameworks. Each rank uses the calls of its own framework if those can meet
    the others', and where a framework has several, one after the other. Exchanges that only a2a has (plans, exchange)
    are tried in one dtype after the other."""
    assignments = [one for one in itertools.product(names, repeat=ranks) if len(set(one)) > 1]
    if ranks > ALL_ASSIGNMENTS:
        chance = chance or random.Random(0)
        assignments = chance.sample(assignments, min(len(assignments), SAMPLED_ASSIGNMENTS))
    tasks = []
    turns: Counter[str] = Counter()
    for case, assignment in itertools.product(_of_size(cases, ranks), assignments):
        offered = [_by_meeting(_fitting(case, name, libraries, memory), name, memory) for name in assignment]
        dtypes = _dtypes(case, assignment, memory)
        chosen: dict[str, list[tuple[str, ...]]] = {dtype: [] for dtype in dtypes}
        for meeting in _common(offered):
            taken = [dtype for dtype in dtypes if all(_taking(one[meeting], dtype) for one in offered)]
            if meeting != case.op and taken:
                taken = [taken[turns[meeting] % len(taken)]]
            for dtype in taken:
                at = turns[meeting]
                turns[meeting] += 1
                choices = [_taking(one[meeting], dtype) for one in offered]
                chosen[dtype].append(tuple(one[(at + rank) % len(one)].name for rank, one in enumerate(choices)))
        tasks += [Task(case, dtype, names, assignment) for dtype in dtypes for names in chosen[dtype]]
    return tasks


def _of_size(cases: Sequence[Case], ranks: int) -> list[Case]:
    return [case for case in cases if case.ranks == ranks]


def _dtypes(case: Case, names: Sequence[str], memory: str) -> list[str]:
    common = frozenset.intersection(*(_dtypes_of(name, memory) for name in names))
    return [dtype for dtype in case.dtypes if dtype in common]


@functools.cache
def _dtypes_of(framework: str, memory: str) -> frozenset[str]:
    return frameworks.load(framework, memory).dtypes()


def _fitting(case: Case, framework: str, libraries: Sequence[str], memory: str) -> list[Signature]:
    return [
        one
        for one in SIGNATURES
        if one.library in libraries
        and one.framework in ("", framework)
        and (one.memory is None or memory in one.memory)
        and one.op == case.op
        and one.fits(case)
    ]


def _by_meeting(signatures: Sequence[Signature], framework: str, memory: str) -> dict[str, list[Signature]]:
    """Return a rank's choices for each exchange: the framework's own calls, or a2a's."""
    result: dict[str, list[Signature]] = {}
    for one in signatures:
        result.setdefault(one.meeting(memory), []).append(one)
    for meeting, choices in result.items():
        result[meeting] = [one for one in choices if one.library == framework] or choices
    return result


def _common(offered: Sequence[dict[str, list[Signature]]]) -> list[str]:
    return [meeting for meeting in offered[0] if all(meeting in one for one in offered)]


def _taking(signatures: Sequence[Signature], dtype: str) -> list[Signature]:
    return [one for one in signatures if one.dtypes is None or dtype in one.dtypes]


def run(how: str, ranks: int, tasks: Sequence[Task], *, seconds: float = 20.0) -> Iterator[Result]:
    """Run tasks with ``ranks`` ranks, one after another, and yield the result of each: a crash or a hang fails only its
    own task, and the next begins with new ranks. ``how``: a transport of a2a, or a peer, with which every task has
    processes of its own, or every case where a launcher is slow. A task may take ``seconds``."""
    done = failures = lonely = 0
    while done < len(tasks):
        with Session(how, ranks, _together(how, tasks, done)) as session:
            for result in session.results(seconds):
                if not session.met and how in PEERS and failures < MEETINGS:
                    failures += 1  # the start is not under test, and may fail on a busy machine
                    break
                failures = 0
                lonely = 0 if session.met else lonely + 1
                done += 1
                yield result
        if lonely == LONELY:
            yield from (Result(task, result.verdicts) for task in tasks[done:])
            return


def _together(how: str, tasks: Sequence[Task], start: int) -> Sequence[Task]:
    """Return the tasks from ``start`` on that may run in the same processes."""
    if how not in PEERS:
        return tasks[start:]
    if PEERS[how].launcher != "mpiexec":
        return tasks[start : start + 1]
    case = tasks[start].case
    return list(itertools.takewhile(lambda task: task.case is case, itertools.islice(tasks, start, None)))
