"""Experts on groups that change: a rank dies within a dispatch, others go on, replacements join and get experts."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import placement_ranks as ranks
import pytest
from commands import command, environment
from forked import apart
from members import Answer, Me, Members

import a2a
from a2a import moe

pytestmark = pytest.mark.timeout(90)

EXPERTS = 8
# The plans of NIXL EP's elastic tests: the ranks of each phase; a negative one is killed within that phase.
PLANS = {
    "no expansion": [[0, 1, 2, 3]],
    "one expansion": [[0, 1, 2, 3], [0, 1, 2, 3, 4, 5, 6, 7]],
    "two expansions": [[0, 1, 2, 3], [0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 4, 5, 6, 7]],
    "expansion, a fault, contraction": [[0, 1], [0, 1, 2, 3], [0, 1, -2, 3], [0, 3]],
    "expansion, a fault, expansion": [[0, 1, 2], [0, 1, 2, 3, 4], [0, 1, 2, -3, 4], [0, 1, 2, 3, 4]],
    "one rank": [[0]],
}


def enter(me: Me, handles: list[str], generation: int, replicas: int) -> tuple[tuple[int, ...], ...]:
    """Go on with these endpoints, then place the experts evenly. Lost ones are loaded. A step before and one after."""
    me.comm = me.endpoint.connect(handles, generation, timeout=15)
    me.comm.timeout = 15
    if "ep" in me.kept:
        me.kept["ep"].connect(me.comm)
    elif generation == 0:
        me.kept["ep"] = moe.ExpertParallel(me.comm, EXPERTS, replicas=1)
    else:
        me.kept["ep"] = moe.ExpertParallel.join(me.comm)
    ep = me.kept["ep"]
    weights = me.kept.setdefault("weights", ranks.weights_of(ep.local_experts))
    ranks.step(ep, generation)
    homes = [[(e + i) % me.comm.size for i in range(min(replicas, me.comm.size))] for e in range(EXPERTS)]
    me.kept["weights"] = ep.place(homes, weights, load=lambda expert: [w[0] for w in ranks.weights_of([expert])])
    ranks.check_weights(me.kept["weights"], ep.local_experts, "numpy")
    ranks.step(ep, generation + 1)
    return tuple(ep.expert_to_rank)


def serve(me: Me, dies: bool) -> tuple[str, str, float]:
    """Steps until one fails. Returns how, and when."""
    if dies:
        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGKILL)).start()
    try:
        for number in range(1 << 20):
            ranks.step(me.kept["ep"], number)
    except a2a.Error as error:
        return type(error).__name__, str(error), time.monotonic()
    raise AssertionError("nobody died")


def shrunk(me: Me) -> float:
    """Go on with the survivors. Returns when the first step was over."""
    me.comm = me.comm.shrink(15)
    me.kept["ep"].connect(me.comm)
    routed, _ = ranks.step(me.kept["ep"], 5)
    me.kept["dropped"] = len(routed.dropped)
    return time.monotonic()


def values(answers: list[Answer]) -> list[Any]:
    assert not any(answer.error for answer in answers), answers
    return [answer.value for answer in answers]


@apart
@pytest.mark.parametrize("place", ["unix", "abab"])
@pytest.mark.parametrize("plan", PLANS)
def test_plans_of_connections(plan: str, place: str) -> None:
    with Members(max(max(map(abs, phase)) for phase in PLANS[plan]) + 1, place) as members:
        at = list(range(8))  # the member that has this number in the plan
        for generation, phase in enumerate(PLANS[plan]):
            if all(number >= 0 for number in phase):
                listed = [at[number] for number in phase]
                placed = values(members.run(listed, enter, members.list(listed), 10 * generation, 2))
                assert len(set(placed)) == 1
                continue
            (killed,) = (-number for number in phase if number < 0)
            listed = [at[abs(number)] for number in phase]
            for member in listed:
                members.start(member, serve, member == at[killed])
            rank = listed.index(at[killed])
            for member in listed:
                if member != at[killed]:
                    kind, text, _ = members.answer(member).value
                    assert kind == "PeerLostError" and f"rank {rank}" in text, (kind, text)
            at[killed] = members.add()  # whoever takes its place is new


@apart
@pytest.mark.parametrize("place", ["unix", "abab"])
def test_survivors_go_on_after_a_death_within_a_dispatch(place: str) -> None:
    with Members(4, place) as members:
        values(members.run(range(4), enter, members.list(range(4)), 0, 1))
        for member in range(4):
            members.start(member, serve, member == 2)
        for member in (0, 1, 3):
            kind, text, _ = members.answer(member).value
            assert kind == "PeerLostError" and "rank 2" in text, (kind, text)
        values(members.run([0, 1, 3], shrunk))
        assert sum(values(members.run([0, 1, 3], dropped))) > 0
        late = members.add()
        placed = values(members.run([0, late, 1, 3], enter, members.list([0, late, 1, 3]), 7, 2))
        assert all(len(own) == 2 for own in placed[0])


def dropped(me: Me) -> int:
    return int(me.kept["dropped"])


def test_arrays_of_no_experts_have_a_place() -> None:
    def rank(comm: a2a.Communicator) -> None:
        ep = moe.ExpertParallel(comm, 2, [1, 1])
        weights = [np.ones((ep.num_local_experts, 4), np.float32)]
        (moved,) = ep.place([0, 0], weights)
        assert moved.shape == (2 if comm.rank == 0 else 0, 4) and (moved == 1).all()

    a2a.spawn(rank, 2, threads=True)


def test_the_example_of_a_server(tmp_path: Path) -> None:
    """Rank 2 dies and comes back; every answer of every client is right, and experts that were lost are not missed."""
    example = Path(__file__).parents[3] / "examples" / "elastic_moe_server.py"
    if not example.exists():
        pytest.skip("no examples beside the tests")
    line = command("run", "-n", "4", "--restarts", "1", "--no-prefix", str(example), "--seconds", "4", "--die", "0.5")
    done = subprocess.run(
        line, capture_output=True, text=True, timeout=80, check=False, env=environment(TMPDIR=str(tmp_path))
    )
    assert done.returncode == 0, (done.stdout, done.stderr)
    told = re.search(r"(\d+) answers, 0 wrong, 1 joined", done.stdout)
    assert told and int(told[1]) > 20, (done.stdout, done.stderr)
    assert "starting it again (1 of 1 restarts)" in done.stderr
    assert list(tmp_path.iterdir()) == []


RESTARTED = """
import os, a2a, placement_ranks as ranks
from a2a import moe

comm = a2a.init(elastic=True, timeout=30)
ep, weights, step, load = None, None, 0, lambda expert: [one[0] for one in ranks.weights_of([expert])]
while step < 40:
    try:
        if ep is None and comm.generation == 0:
            ep = moe.ExpertParallel(comm, 6)
            weights = ranks.weights_of(ep.local_experts)
        else:
            if ep is None:
                ep, weights = moe.ExpertParallel.join(comm), ranks.weights_of([])
            else:
                ep.connect(comm)
            weights = ep.place([expert % comm.size for expert in range(6)], weights, load=load)
        ranks.check_weights(weights, ep.local_experts, "numpy")
        step = max(int(one) for one in comm.allgather_bytes(str(step).encode()))
        while step < 40:
            if step == 15 and comm.rank == 1 and comm.generation == 0:
                os.kill(os.getpid(), 9)
            routed, _ = ranks.step(ep, step)
            assert len(routed.dropped) == 0
            step += 1
    except (a2a.PeerLostError, a2a.AbortedError):
        comm = comm.recover()
os.write(1, f"rank {comm.rank} generation {comm.generation} served\\n".encode())
comm.close()
"""


def test_a_rank_that_is_started_again_joins(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(RESTARTED)
    line = command("run", "-n", "3", "--restarts", "1", "--no-prefix", str(program))
    support = str(Path(ranks.__file__).parent)
    done = subprocess.run(
        line, capture_output=True, text=True, timeout=80, check=False, env=environment(PYTHONPATH=support)
    )
    assert done.returncode == 0, (done.stdout, done.stderr)
    assert sorted(done.stdout.splitlines()) == [f"rank {rank} generation 1 served" for rank in range(3)]
