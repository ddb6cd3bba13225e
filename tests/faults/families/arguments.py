"""Bad arguments at random: the documented error, outputs untouched, and the other rank hears of it."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import numpy as np

from ..harness import Answer, Report, attempt, connect, exchange, job_name, judge, run, worse
from ..rows import row

ROUNDS = 100
POISON = 0x5A
REFUSED = ("InvalidArgumentError", "UnsupportedError")
Arguments = dict[str, Any]


def good() -> Arguments:
    """A call of alltoallv on 2 ranks that would be right."""
    send, recv = np.zeros((12, 3), np.float32), np.empty((12, 3), np.float32)
    recv.view(np.uint8).fill(POISON)
    return {
        "send": send,
        "send_counts": [5, 5],
        "recv": recv,
        "recv_counts": [5, 5],
        "send_displs": [0, 6],
        "recv_displs": [0, 6],
    }


def _read_only(array: Any) -> Any:
    array.flags.writeable = False
    return array


def _no_tensor(chance: random.Random) -> Any:
    return chance.choice([None, 7, "text", [1.0, 2.0], object(), {}, 1.5, np.zeros(4, object), np.zeros(4, "M8[s]")])


def _count(chance: random.Random) -> Any:
    numbers = [-1, -(2**31), 13, 2**31, 2**62, 2**63 - 1, 2**63, -(2**63), 2**64, 10**30]
    return chance.choice([*numbers, 1.5, math.nan, "4", b"4", None, 1j, [4], object()])


def bad_count(a: Arguments, chance: random.Random) -> None:
    name = chance.choice(["send_counts", "recv_counts", "send_displs", "recv_displs"])
    a[name] = [0, 6]  # whatever another mistake has made of it
    a[name][chance.randrange(2)] = _count(chance)


def bad_length(a: Arguments, chance: random.Random) -> None:
    name = chance.choice(["send_counts", "recv_counts", "send_displs", "recv_displs"])
    a[name] = chance.choice([[], [1], [1, 2, 3], [0] * 1000, 3, "11", {3}, np.zeros((1, 2), int), object()])


def sums_too_large(a: Arguments, chance: random.Random) -> None:
    a[f"{chance.choice(['send', 'recv'])}_counts"] = chance.choice([[7, 8], [13, 0], [2**62, 2**62], [2**63 - 1] * 2])


def leaves_the_tensor(a: Arguments, chance: random.Random) -> None:
    side = chance.choice(["send", "recv"])
    a[f"{side}_displs"] = chance.choice([[0, 8], [-1, 6], [9, 0], [2**62, 0], [0, 2**63 - 1]])


def receives_overlap(a: Arguments, chance: random.Random) -> None:
    a["recv_displs"] = chance.choice([[0, 3], [2, 0], [4, 4], [1, 1]])


def overlaps_itself(a: Arguments, chance: random.Random) -> None:
    """Sends from where it receives."""
    base = np.zeros((24, 3), np.float32)
    base.view(np.uint8).fill(POISON)
    shift = chance.randrange(1, 9)
    a["recv"], a["send"] = base[:12], base[shift : shift + 12]


def no_tensor(a: Arguments, chance: random.Random) -> None:
    a[chance.choice(["send", "recv"])] = _no_tensor(chance)


def elements_overlap(a: Arguments, chance: random.Random) -> None:
    """Receives into a tensor of which several elements are the same memory."""
    line = np.empty(40, np.float32)
    line.view(np.uint8).fill(POISON)
    a["recv"] = np.lib.stride_tricks.as_strided(
        line, (12, 3), chance.choice([(0, 4), (4, 4), (8, 4), (12, 0), (12, 3)])
    )


def read_only(a: Arguments, chance: random.Random) -> None:
    a["recv"] = chance.choice(
        [_read_only(np.zeros((12, 3), np.float32)), bytes(144), np.broadcast_to(np.float32(0), (12, 3))]
    )


def other_dtype(a: Arguments, chance: random.Random) -> None:
    a["send"] = np.zeros((12, 3), chance.choice(["f8", "i4", "f2", "u1", "c8"]))


def other_row(a: Arguments, chance: random.Random) -> None:
    a["send"] = np.zeros((12, chance.choice([1, 2, 4, 0])), np.float32)


def scalar(a: Arguments, chance: random.Random) -> None:
    a[chance.choice(["send", "recv"])] = chance.choice([np.zeros((), np.float32), np.float32(1)])


def bad_timeout(a: Arguments, chance: random.Random) -> None:
    a["timeout"] = chance.choice([-1, math.nan, "soon", [], object(), 1j])


def bad_stream(a: Arguments, chance: random.Random) -> None:
    a["stream"] = chance.choice(["stream", object(), 1.5, -1, 2**64])


MISTAKES: list[Callable[[Arguments, random.Random], None]] = [
    bad_count,
    bad_length,
    sums_too_large,
    leaves_the_tensor,
    receives_overlap,
    overlaps_itself,
    no_tensor,
    elements_overlap,
    read_only,
    other_dtype,
    other_row,
    scalar,
    bad_timeout,
    bad_stream,
]


def make_mistakes(rank: int, job: str, seed: str) -> list[Answer]:
    comm = connect(rank, 2, job)
    chance, answers = random.Random(seed), []
    for number in range(ROUNDS):
        arguments = good()
        for mistake in chance.sample(MISTAKES, chance.choice([1, 1, 2])):
            mistake(arguments, chance)
        if rank == 1:
            arguments = good()
        answers.append(attempt(comm.alltoallv, **arguments))
        recv = arguments["recv"]
        if answers[-1].kind != "error" or (rank == 0 and not _untouched(recv)):
            answers[-1].kind = "wrong"
        if not exchange(comm, 4, number):
            answers[-1].kind = "wrong"
    comm.close()
    return answers


def _untouched(recv: Any) -> bool:
    if not isinstance(recv, np.ndarray) or recv.dtype != np.float32 or recv.size < 2 or not recv.flags.writeable:
        return True
    return set(recv.tobytes()) == {POISON}


@row("bad arguments at random", "the documented error, outputs untouched", 300, 10_000)
def bad_arguments(chance: random.Random) -> list[Report]:
    ends = run(2, make_mistakes, job_name(), str(chance.random()))

    def judge_round(i: int) -> Report:
        mine = judge(ends, REFUSED, ["rank 0"], but=[1], at=i)
        peer = judge(ends, ["MismatchError"], ["rank 0 does not take part, its arguments were refused"], but=[0], at=i)
        return worse(mine, peer)

    return [judge_round(i) for i in range(ROUNDS)]


UNFIT: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "alltoall": (lambda c: c.alltoall(np.zeros(2)), lambda c: c.alltoall(np.zeros(2), np.zeros(2))),
    "allgather_bytes": (lambda c: c.allgather_bytes(b"", 1), lambda c: c.allgather_bytes(b"")),
    "barrier": (lambda c: c.barrier(5), lambda c: c.barrier()),
    "split": (lambda c: c.split(), lambda c: c.split(0)),
    "exchange": (lambda c: c.exchange(np.zeros(2), [1, 1], 1), lambda c: c.exchange(np.zeros(2), [1, 1])),
    "global_scatter": (lambda c: c.global_scatter(), lambda c: c.global_scatter(np.zeros(2), [1, 1], [1, 1])),
}


def call_unfit(rank: int, job: str, seed: str) -> list[Answer]:
    comm = connect(rank, 2, job)
    chance, answers = random.Random(seed), []
    for number in range(ROUNDS):
        unfit, fit = UNFIT[chance.choice(sorted(UNFIT))]
        answers.append(attempt(fit if rank == 1 else unfit, comm))
        if not exchange(comm, 4, number):
            answers[-1].kind = "wrong"
    comm.close()
    return answers


@row("arguments that do not fit the signature", "TypeError; MismatchError, and in step", 100, 5_000)
def unfit_arguments(chance: random.Random) -> list[Report]:
    ends = run(2, call_unfit, job_name(), str(chance.random()))

    def judge_round(i: int) -> Report:
        mine = judge(ends, ["TypeError"], ["argument"], but=[1], at=i)
        peer = judge(ends, ["MismatchError"], ["rank 0 does not take part", "argument"], but=[0], at=i)
        return worse(mine, peer)

    return [judge_round(i) for i in range(ROUNDS)]
