"""Jobs of mpiexec, whose ranks are on two hosts as far as they know: how they end when a rank does."""

from __future__ import annotations

import random

from ..harness import Report
from ..launched import RANKS, installed, launch
from ..rows import row

LIMIT = 40.0
HOW = ("raises", "exits", "_exit", "kill", "term", "leaves")


@row("over MPI: a rank ends in any way", "status of the worst rank, nothing left", 2, 200)
def ends(chance: random.Random) -> Report:
    which, n = chance.choice(installed()), chance.choice([2, 3, 4])
    how, who, others = chance.choice(HOW), chance.randrange(n), chance.choice(["catch", "raise"])
    hosts = ["a", "b"] + [chance.choice("ab") for _ in range(n - 2)]
    done = launch(which, hosts, [RANKS, "ends", how, str(who), others], LIMIT)
    text = f"{which.name}, rank {who} of {','.join(hosts)} {how}, others {others}: {done.status}, {done.said[-400:]}"
    if done.hung:
        return Report("hang", text=text)
    # A rank that leaves in order does no harm, but the others may not catch what they meet.
    well = how == "leaves" and others == "catch"
    return Report("clear" if (done.status == 0) == well else "unclear", text=text)


@row("over MPI: killed at a random moment", "status not 0, 0 wrong bytes, nothing left", 2, 200)
def killed(chance: random.Random) -> Report:
    which, n = chance.choice(installed()), chance.choice([2, 3, 4])
    hosts = ["a", "b"] + [chance.choice("ab") for _ in range(n - 2)]
    program = [RANKS, "is_struck", str(chance.randrange(n)), str(chance.randrange(400)), str(chance.getrandbits(30))]
    done = launch(which, hosts, program, LIMIT)
    text = f"{which.name}, {n} ranks, {program[2:]}: {done.status}, {done.said[-400:]}"
    if done.hung:
        return Report("hang", text=text)
    if "wrong bytes" in done.said:
        return Report("silent", text=text)
    return Report("clear" if done.status != 0 else "unclear", text=text)
