"""Chaos: random plans of faults over every transport, until the time is over.

    python -m tests.faults.chaos --minutes 10 --seed 1
    python -m tests.faults.chaos --transport tcp mpi
    python -m tests.faults.chaos --repeat tcp:17         # the plan of faults that the seed stands for, again
    python -m tests.faults.chaos --elastic               # of generations

Ranks are killed, stopped, interrupted, late or never come; they pass wrong counts and read-only outputs, abort, end
by exceptions, drop what they have begun, fork, and use threads and several communicators. Every byte is compared
with the oracle (``a2a.testing``), every wait has a bound, and whatever is left behind is a finding. Each finding is a
line with the seed of its plan, and has the status be 1."""

from __future__ import annotations

import argparse
import collections
import os
import pickle
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import a2a
from a2a._core import thread_bootstraps

from . import generations, launched
from .chaos_ranks import BROKEN, IN_CALL, OPERATIONS, TIMEOUT, Fault, Plan, Step, play
from .harness import Answer, Belongings, End, NotRun, be_guard, connect, job_name, network_job, run
from .rows import left_since

TRANSPORTS = ("shm", "threads", "tcp", "ucx", "mpi")
LIMIT = 3 * TIMEOUT

# What ends a process ends all ranks that are threads of it, and MPI_Init_thread waits for ever for one who never comes.
AMID = ("kill", "exit", "exception", "stop", "Ctrl-C", "abort", *IN_CALL)
AT_FIRST = ("late", "never comes", "dropped communicator")
_NOT_WITH = {"threads": ("kill", "exit", "stop", "Ctrl-C"), "mpi": ("never comes",)}
HARMLESS = ("late", "stop", "dropped communicator")
DEADLY = ("kill", "exit")


def draw(transport: str, seed: int) -> Plan:
    """The same for the same seed."""
    chance = random.Random(f"{transport}:{seed}")
    n = chance.choice([2, 2, 3, 4])
    operations = [name for name in OPERATIONS if transport != "threads" or name != "forked"]
    rows = [1, 30, 1000, 20_000]
    steps = [
        Step(chance.choice(operations), chance.getrandbits(30), chance.choice(rows))
        for _ in range(chance.randint(2, 8))
    ]
    kinds = [kind for kind in (*AMID, *AT_FIRST) if kind not in _NOT_WITH.get(transport, ())]
    faults = []
    for _ in range(chance.choice([0, 1, 1, 1, 2])):
        kind = chance.choice(kinds)
        step = -1 if kind in AT_FIRST else chance.randrange(len(steps))
        if kind in IN_CALL and steps[step].operation in ("several_in_flight", "dropped"):
            # The rank makes one call in place of the step; the others start several before they hear of it.
            steps[step] = replace(steps[step], operation="alltoallv")
        faults.append(Fault(kind, chance.randrange(n), step, round(chance.random() * 0.3, 4)))
    return Plan(transport, n, steps, faults)


# ---- running a plan --------------------------------------------------------------------------------------------------


def _in_process(rank: int, plan: Plan, job: str) -> list[Answer]:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    return play(plan, rank, lambda: connect(rank, plan.ranks, job, plan.timeout))


def _as_threads(_: int, plan: Plan) -> list[list[Answer]]:
    met, n = thread_bootstraps(plan.ranks), plan.ranks
    answers: list[list[Answer]] = [[] for _ in range(n)]

    def one(rank: int) -> None:
        answers[rank] = play(plan, rank, lambda: a2a.init(rank, n, bootstrap=met[rank], timeout=plan.timeout))

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(n)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


def _over_mpi(plan: Plan, seed: int) -> Iterator[tuple[End, str]]:
    chance = random.Random(seed)
    which = chance.choice(launched.installed())
    hosts = ["a", "b"] + [chance.choice("ab") for _ in range(plan.ranks - 2)]
    with tempfile.TemporaryDirectory() as folder:
        variables = {"CHAOS_PLAN": plan.to_json(), "CHAOS_FOLDER": folder}
        done = launched.launch(which, hosts, ["-m", "tests.faults.chaos_ranks"], LIMIT, **variables)
        told = {int(path.name): pickle.loads(path.read_bytes()) for path in Path(folder).iterdir()}
    yields_nothing = plan.has(*DEADLY)  # the launcher ends the others
    failed = struck(plan, told) or any(map(_ends_by_exception, told.values()))
    expected = "not 0" if failed else "0"
    wrong = (done.status == 0) != (expected == "0")
    for rank in range(plan.ranks):
        missing = rank not in told and not yields_nothing
        text = f"{which.name}: the job ended with {done.status}, due was {expected}; {done.said[-300:]}"
        status = None if missing or wrong else 0
        yield End(rank, told.get(rank), status, done.hung), text


def _ends_by_exception(answers: list[Answer]) -> bool:
    return bool(answers) and answers[-1].error == "Leaves"


def struck(plan: Plan, told: dict[int, Any]) -> bool:
    """Whether a rank that was to die has: it may have come to the end before."""
    return any(fault.rank not in told for fault in plan.faults if fault.kind in DEADLY)


def execute(plan: Plan, seed: int) -> list[tuple[End, str]]:
    if plan.transport == "mpi":
        return list(_over_mpi(plan, seed))
    if plan.transport == "threads":
        (whole,) = run(1, _as_threads, plan, limit=LIMIT)
        told = whole.value if isinstance(whole.value, list) else [whole.value] * plan.ranks
        return [(End(rank, told[rank], whole.status, whole.hung), "") for rank in range(plan.ranks)]
    job = network_job(plan.transport) if plan.transport in ("tcp", "ucx") else job_name()
    return [(end, "") for end in run(plan.ranks, _in_process, plan, job, limit=LIMIT)]


# ---- judging ---------------------------------------------------------------------------------------------------------


def findings(plan: Plan, ends: Sequence[tuple[End, str]]) -> Iterator[str]:
    dead = {fault.rank for fault in plan.faults if fault.kind in DEADLY}
    # What breaks a communicator ends what slower ranks have not finished, too, so any step may raise then.
    harmed = any(fault.kind not in HARMLESS for fault in plan.faults)
    for end, text in ends:
        where = f"rank {end.rank}"
        if end.hung:
            yield f"{where} hangs {text}"
        elif not isinstance(end.value, list):
            if end.rank not in dead and not (plan.transport == "mpi" and end.status == 0):
                yield f"{where} ended with {end.status} and told {end.value} {text}"
        else:
            if end.status != 0 and end.rank not in dead:
                yield f"{where} ended with {end.status} {text}"
            for i, answer in enumerate(end.value):
                if said := _finding(plan, answer, harmed):
                    yield f"{where}, step {i - 1}: {said}"


def _finding(plan: Plan, answer: Answer, harmed: bool) -> str:
    said = f"{answer.error}: {answer.text}"
    if answer.kind == "wrong":
        return f"wrong bytes: {said}"
    if answer.kind == "right":
        return ""
    known = (*BROKEN, "MismatchError", "InvalidArgumentError", "UnsupportedError", "Leaves")
    if answer.error not in known:
        return f"no error of a2a: {said}"
    if answer.error == "TimeoutError" and not plan.has("never comes"):
        return f"a wait that nobody ended: {said}"
    return "" if harmed else f"an error without a fault: {said}"


# ---- the run ---------------------------------------------------------------------------------------------------------


@dataclass
class Tally:
    """What came of a transport's plans."""

    plans: int = 0
    answers: collections.Counter[str] = field(default_factory=collections.Counter)
    faults: collections.Counter[str] = field(default_factory=collections.Counter)
    findings: int = 0
    slowest: float = 0.0


def one(transport: str, seed: int, tally: Tally, elastic: bool) -> None:
    before, begin = Belongings.now(), time.monotonic()
    if elastic:
        played = generations.play(transport, seed)
        faults, answers, said, name = played.faults, played.answers, played.findings, "--elastic --repeat"
    else:
        faults, answers, said, name = *_one_group(transport, seed), "--repeat"
    tally.slowest = max(tally.slowest, time.monotonic() - begin)
    left = left_since(before)
    if any(left.values()):
        said.append(f"left behind: {left}")
    tally.plans += 1
    tally.findings += len(said)
    tally.faults.update(faults)
    tally.answers.update(answers)
    for line in said:
        print(f"FOUND {name} {transport}:{seed} {line}", flush=True)


def _one_group(transport: str, seed: int) -> tuple[list[str], collections.Counter[str], list[str]]:
    plan = draw(transport, seed)
    ends = execute(plan, seed)
    told = [end.value for end, _ in ends if isinstance(end.value, list)]
    answers = collections.Counter(answer.kind for answers in told for answer in answers)
    said = [f"{plan.faults or 'no faults'}: {line}" for line in findings(plan, ends)]
    return [fault.kind for fault in plan.faults], answers, said


def table(tallies: dict[str, Tally]) -> str:
    lines = [f"{'transport':10}{'plans':>7}{'right':>8}{'errors':>8}{'slowest':>9}{'findings':>10}  faults"]
    for transport, tally in tallies.items():
        faults = ", ".join(f"{kind} {count}" for kind, count in sorted(tally.faults.items()))
        lines.append(
            f"{transport:10}{tally.plans:7}{tally.answers['right']:8}{tally.answers['error']:8}"
            f"{tally.slowest:8.1f}s{tally.findings:10}  {faults}"
        )
    return "\n".join(lines)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.chaos", description=__doc__.split("\n")[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1, help="of the first plan; the others follow")
    parser.add_argument("--elastic", action="store_true", help="endpoints that meet in one group after the other")
    parser.add_argument("--transport", nargs="+", metavar="NAME", default=[], help="these instead of all")
    parser.add_argument("--repeat", nargs="+", default=[], metavar="TRANSPORT:SEED", help="these plans, and no others")
    options = parser.parse_args(arguments)
    known = generations.TRANSPORTS if options.elastic else TRANSPORTS
    options.transport = options.transport or list(known)
    if unknown := set(options.transport) - set(known):
        parser.error(f"no transports: {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    be_guard()
    tallies: dict[str, Tally] = {}
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="chaos-") as folder:
        os.environ |= {"A2A_FAULTS_TMP": folder, "TMPDIR": folder, "OMP_NUM_THREADS": "1"}
        tempfile.tempdir = folder
        for transport, seed in _chosen(options, begin + 60 * options.minutes):
            try:
                one(transport, seed, tallies.setdefault(transport, Tally()), options.elastic)
            except NotRun as reason:
                print(f"{transport} was left out: {reason}", flush=True)
                options.transport = [other for other in options.transport if other != transport]
    print(table(tallies))
    return int(any(tally.findings for tally in tallies.values()))


def _chosen(options: argparse.Namespace, until: float) -> Iterator[tuple[str, int]]:
    if options.repeat:
        for name in options.repeat:
            transport, _, seed = name.partition(":")
            yield transport, int(seed)
        return
    seed = options.seed
    while time.monotonic() < until and options.transport:
        for transport in list(options.transport):
            if time.monotonic() < until:
                yield transport, seed
        seed += 1


if __name__ == "__main__":
    sys.exit(main())
