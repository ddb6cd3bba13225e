"""Reductions, rooted operations and messages: ranks that die, that disagree, and arguments that are refused."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from typing import Any

import numpy as np

import a2a

from ..harness import Answer, Board, Report, attempt, connect, exchange, job_name, judge, network_job, run
from ..rows import row
from .death import LOST, kill_at_random, named
from .disagreement import MISMATCH, rounds_of

ROUNDS = 20
SIZES = (1, 40, 5000, 70_000)  # elements of each part: inline, at once, in parts, large


def operations(comm: a2a.Communicator, elems: int, dtype: str = "float32") -> dict[str, Callable[..., Any]]:
    """Calls in which every rank takes part. ``op`` and ``root`` are the caller's."""
    n, rank = comm.size, comm.rank
    many, few = np.ones(n * elems, dtype), np.ones(elems, dtype)

    def at(root: int, tensor: Any) -> Any:
        return tensor if rank == root else None

    return {
        "allreduce": lambda op="sum", root=0: comm.allreduce(many, many.copy(), op),
        "reduce_scatter": lambda op="sum", root=0: comm.reduce_scatter(many, few, op),
        "reduce": lambda op="sum", root=0: comm.reduce(many, at(root, many.copy()), root, op),
        "broadcast": lambda op="sum", root=0: comm.broadcast(many, root),
        "gather": lambda op="sum", root=0: comm.gather(few, at(root, many), root),
        "scatter": lambda op="sum", root=0: comm.scatter(at(root, many), few, root),
        "allgatherv": lambda op="sum", root=0: comm.allgatherv(few, many, [elems] * n),
    }


FOLDING = ("allreduce", "reduce_scatter", "reduce")
ROOTED = ("reduce", "broadcast", "gather", "scatter")


# ---- who dies --------------------------------------------------------------------------------------------------------


def reduce_for_ever(rank: int, n: int, job: str, board: Board, elems: int, env: dict[str, str]) -> Answer:
    os.environ.update(env)
    comm = connect(rank, n, job)
    calls = list(operations(comm, elems).values())

    def go_on() -> None:
        while True:
            board.words[rank] += 1
            for call in calls:
                call()
            comm.barrier()  # nobody is more than a round ahead

    return attempt(go_on)


def killed_in(job: str, chance: random.Random) -> Report:
    n, elems, when = chance.choice([2, 3, 4]), chance.choice(SIZES), list[float]()
    env = chance.choice([{}, {"A2A_SHM_CMA": "0"}, {"A2A_SHM_CMA_MIN": "1"}])
    victim, board = chance.randrange(n), Board(n)
    ends = run(n, reduce_for_ever, n, job, board, elems, env, during=kill_at_random(victim, board, chance, when))
    return judge(ends, LOST, [named(victim, job)], since=when[0], but=[victim])


@row("killed in reductions and rooted operations", "raise by name, p99 <= 50 ms", 10, 600, within=0.05)
def killed(chance: random.Random) -> Report:
    return killed_in(job_name(), chance)


@row("killed in reductions between hosts", "raise by name", 4, 200)
def killed_between_hosts(chance: random.Random) -> Report:
    return killed_in(network_job(), chance)


def pass_on(rank: int, n: int, job: str, board: Board, elems: int, env: dict[str, str]) -> Answer:
    """A message goes round, and the victim is not always the one that is waited for."""
    os.environ.update(env)
    comm = connect(rank, n, job)
    tensor = np.ones(elems, np.float32)

    def go_on() -> None:
        while True:
            board.words[rank] += 1
            sent = comm.send(tensor, (rank + 1) % n, tag=rank, async_op=True)
            comm.recv(np.empty_like(tensor), (rank - 1) % n, tag=(rank - 1) % n)
            assert sent is not None
            sent.wait()

    return attempt(go_on)


@row("killed while messages go round", "raise by name, p99 <= 50 ms", 10, 600, within=0.05)
def killed_in_messages(chance: random.Random) -> Report:
    job, n, elems, when = job_name(), 2, chance.choice(SIZES), list[float]()
    env = chance.choice([{}, {"A2A_SHM_CMA": "0"}])
    victim, board = chance.randrange(n), Board(n)
    ends = run(n, pass_on, n, job, board, elems, env, during=kill_at_random(victim, board, chance, when))
    return judge(ends, LOST, [named(victim, job)], since=when[0], but=[victim])


# ---- who disagrees ---------------------------------------------------------------------------------------------------


def odd_calls(n: int, seed: str) -> list[tuple[int, int, str, str]]:
    """For each round: who is odd, how many elements, which operation, in what."""
    chance = random.Random(seed)
    rounds = []
    for _ in range(ROUNDS):
        aspect = chance.choice(["op", "root", "size", "dtype"])
        names = {"op": FOLDING, "root": ROOTED}.get(aspect, (*FOLDING, *ROOTED, "allgatherv"))
        rounds.append((chance.randrange(n), chance.choice(SIZES[1:]), chance.choice(names), aspect))
    return rounds


def differ(rank: int, n: int, job: str, seed: str) -> list[Answer]:
    comm = connect(rank, n, job)
    answers = []
    for odd, elems, name, aspect in odd_calls(n, seed):
        odd_one = rank == odd
        size = elems + 1 if odd_one and aspect == "size" else elems
        calls = operations(comm, size, "int32" if odd_one and aspect == "dtype" else "float32")
        op, root = "max" if odd_one and aspect == "op" else "sum", 1 if odd_one and aspect == "root" else 0
        answers.append(attempt(calls[name], op, root))
        if not exchange(comm, 10):
            answers[-1].kind = "wrong"
    comm.close()
    return answers


def differ_in(job: str, chance: random.Random) -> list[Report]:
    n, seed = chance.choice([2, 3]), str(chance.random())
    ends = run(n, differ, n, job, seed)
    rounds = odd_calls(n, seed)

    def judge_round(i: int) -> Report:
        odd, _, name, aspect = rounds[i]
        if aspect in ("op", "dtype") or (aspect == "size" and name in ("allreduce",)):
            return judge(ends, MISMATCH, [f"rank {odd} "], at=i)
        # Who exchanges nothing with the odd rank may have a right result.
        return judge(ends, MISMATCH, ["rank "], at=i, must_raise=False)

    return rounds_of(ends, ROUNDS, judge_round)


@row("op, root, size or dtype of a reduction differs", "MismatchError, nothing silent, then right", 60, 1500)
def differing(chance: random.Random) -> list[Report]:
    return differ_in(job_name(), chance)


@row("the same between hosts", "MismatchError, nothing silent, then right", 20, 500)
def differing_between_hosts(chance: random.Random) -> list[Report]:
    return differ_in(network_job(), chance)


def refuse(rank: int, n: int, job: str, seed: str) -> list[Answer]:
    """One rank's arguments are bad: it says so, and the others hear of it, in large operations as well."""
    comm = connect(rank, n, job)
    chance = random.Random(seed)
    answers = []
    for _ in range(ROUNDS):
        odd, elems = chance.randrange(n), chance.choice(SIZES)
        name = chance.choice(["allreduce", "reduce_scatter", "broadcast"])
        bad: list[Callable[[], Any]] = [
            lambda: comm.allreduce(np.ones(4, np.float32), op="band"),
            lambda: comm.allreduce(np.ones(4, np.float32), op="mean"),  # type: ignore[arg-type]
            lambda: comm.reduce_scatter(np.ones(7, np.float32), np.ones(9, np.float32)),
            lambda: comm.broadcast(np.ones(4, np.float32), root=n),
            lambda: comm.allreduce("text"),  # type: ignore[arg-type]
        ]
        call = chance.choice(bad)
        answers.append(attempt(call if rank == odd else operations(comm, elems)[name]))
        if rank == odd and answers[-1].error == "InvalidArgumentError":
            answers[-1] = Answer("error", answers[-1].time, "MismatchError", f"rank {odd} " + answers[-1].text)
        if not exchange(comm, 10):
            answers[-1].kind = "wrong"
    comm.close()
    return answers


@row("arguments of a reduction are refused", "the documented error, peers told, then right", 60, 1500)
def refused(chance: random.Random) -> list[Report]:
    n, seed = chance.choice([2, 3]), str(chance.random())
    ends = run(n, refuse, n, job_name(), seed)
    return rounds_of(ends, ROUNDS, lambda i: judge(ends, MISMATCH, ["rank "], at=i))
