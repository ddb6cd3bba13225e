"""Chaos with serving traffic: experts answer while ranks die, others join, masks change and experts move.

    python -m tests.faults.chaos_experts --minutes 10 --seed 1
    python -m tests.faults.chaos_experts --repeat abab:17          # one plan again

A plan is a few rounds of one group. In each round ranks serve random tokens, and every answer has to have the bits of a
loop over the experts in one process. Meanwhile random ranks are masked, experts move with their weights, and one rank
may be killed at any time. The survivors go on; then others join. Each finding is a line with its plan, and has the
status be 1."""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import threading
import time
from typing import Any

import numpy as np

import a2a
from a2a import moe

from . import launched  # so that modules of tests/python/support are found

import placement_ranks as ranks  # isort: skip
from members import Answer, Me, Members  # isort: skip

assert launched.TESTS

PLACES = ("unix", "abab", "tcp")
EXPERTS, MOST, STEPS = 8, 5, 80


def load(expert: int) -> list[Any]:
    return [one[0] for one in ranks.weights_of([expert])]


def enter(me: Me, handles: list[str], generation: int, new: bool, seed: str) -> None:
    """Go on with these endpoints, and place all experts anew."""
    me.comm = me.endpoint.connect(handles, generation, timeout=15)
    me.comm.timeout = 15
    if "ep" in me.kept:
        me.kept["ep"].connect(me.comm)
    elif new:
        me.kept["ep"] = moe.ExpertParallel(me.comm, EXPERTS, replicas=1)
    else:
        me.kept["ep"] = moe.ExpertParallel.join(me.comm)
    ep = me.kept["ep"]
    weights = me.kept.setdefault("weights", ranks.weights_of(ep.local_experts))
    ep.active = range(me.comm.size)
    me.kept["weights"] = ep.place(homes_of(seed, me.comm.size), weights, load=load)
    ranks.check_weights(me.kept["weights"], ep.local_experts, "numpy")


def homes_of(seed: str, size: int) -> list[list[int]]:
    chance = random.Random(seed)
    if chance.random() < 0.5:
        return moe.balanced_placement([chance.random() ** 3 for _ in range(EXPERTS)], size, -(-EXPERTS // size) + 1)
    return [chance.sample(range(size), chance.randint(1, min(size, 3))) for _ in range(EXPERTS)]


def serve(me: Me, seed: str, dies_after: float | None, expects_death: bool) -> tuple[int, int]:
    """Serve the steps of a round: until the death that is due, and some more, so that nobody has left when it comes.
    Returns how many were answered, and how many deaths there were."""
    if dies_after is not None:
        threading.Timer(dies_after, os.kill, (os.getpid(), signal.SIGKILL)).start()
    answered = deaths = number = 0
    end: int | None = None if expects_death else STEPS
    move: moe.Move | None = None
    while end is None or number < end:
        try:
            move = disturb(me, f"{seed} {number}", move)
            ranks.step(me.kept["ep"], number)
            answered += 1
            number += 1
        except (a2a.PeerLostError, a2a.AbortedError):
            deaths, move = deaths + 1, None
            number = survive(me, number)
            end = number + STEPS // 2
    if move is not None:
        finish(me, move)
    return answered, deaths


def disturb(me: Me, seed: str, move: moe.Move | None) -> moe.Move | None:
    """Change the mask, or have experts move, or arrive: the same on all ranks. Returns the move in flight."""
    ep, chance, size = me.kept["ep"], random.Random(seed), me.comm.size
    what = chance.random()
    if what < 0.15:
        ep.active = chance.sample(range(size), chance.randint(1, size))
    elif what < 0.35 and move is None:
        ep.active = range(size)
        return ep.place(homes_of(seed, size), me.kept["weights"], load=load, async_op=True)  # type: ignore[no-any-return]
    elif what > 0.6 and move is not None:
        finish(me, move)
        return None
    return move


def finish(me: Me, move: moe.Move) -> None:
    me.kept["weights"] = move.finish()
    ranks.check_weights(me.kept["weights"], me.kept["ep"].local_experts, "numpy")


def survive(me: Me, number: int) -> int:
    """Go on with those who are left. Returns the step at which all go on."""
    while True:
        try:
            me.comm = me.comm.shrink(15)
            me.kept["ep"].connect(me.comm)
            return max(int(one) for one in me.comm.allgather_bytes(str(number).encode())) + 1
        except (a2a.PeerLostError, a2a.AbortedError):
            continue


def plan(place: str, seed: int) -> tuple[int, int, list[str]]:
    """Run a plan. Returns the answers, the deaths, and what was wrong."""
    chance, name = random.Random(f"{place}:{seed}"), f"{place}:{seed}"
    group = list(range(chance.randint(2, MOST)))
    answered = deaths = 0
    with Members(len(group), place) as members:
        for number in range(3):
            told = members.run(group, enter, members.list(group), 10 * number, number == 0, f"{name} {number}")
            if wrong := wrong_of(told):
                return answered, deaths, wrong
            victim = chance.choice(group) if len(group) > 1 and chance.random() < 0.8 else None
            after = chance.random() ** 2 * 0.5
            for member in group:
                dies_after = after if member == victim else None
                members.start(member, serve, f"{name} {number}", dies_after, victim is not None)
            told = [members.answer(member) for member in group if member != victim]
            if wrong := wrong_of(told):
                return answered, deaths, wrong
            answered += sum(answer.value[0] for answer in told)
            deaths += max(answer.value[1] for answer in told)
            if victim is not None:
                members.kill(victim)
                group.remove(victim)
            while len(group) < MOST and chance.random() < 0.5:
                group.insert(chance.randint(0, len(group)), members.add())
    return answered, deaths, []


def wrong_of(answers: list[Answer]) -> list[str]:
    return [f"{answer.error}: {answer.text}" for answer in answers if answer.error]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--place", nargs="+", choices=PLACES, default=PLACES)
    parser.add_argument("--repeat", metavar="PLACE:SEED")
    options = parser.parse_args()
    np.seterr(all="raise", under="ignore")
    places, seed, until = list(options.place), options.seed, time.monotonic() + 60 * options.minutes
    if options.repeat:
        places, seed, until = [options.repeat.partition(":")[0]], int(options.repeat.partition(":")[2]), 0.0
    plans = answered = deaths = findings = 0
    while plans == 0 or time.monotonic() < until:
        place = places[plans % len(places)]
        try:
            answers, died, wrong = plan(place, seed)
        except Exception as error:  # a member that does not come back
            answers, died, wrong = 0, 0, [f"{type(error).__name__}: {error}"]
        plans, answered, deaths, findings = plans + 1, answered + answers, deaths + died, findings + bool(wrong)
        if wrong:
            print(f"FOUND {place}:{seed}", *wrong, sep="\n  ", flush=True)
        seed += 1
    print(f"{plans} plans, {answered} answers, {deaths} deaths, {findings} findings", flush=True)
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
