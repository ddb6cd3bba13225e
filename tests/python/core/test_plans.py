"""Plans: made once, run many times, turned round for the backward pass, and refused to what they were not made for."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from exchange_ranks import GUARD, Recipe
from rank_pool import Pool

import a2a
from a2a import testing

pytestmark = pytest.mark.timeout(110)


@pytest.fixture(scope="module", params=[(2, False), (5, False), (5, True)], ids=["2", "5", "5-threads"])
def pool(request: pytest.FixtureRequest) -> Iterator[Pool]:
    with Pool(*request.param) as pool:
        yield pool


def require_same(results: list[Any], expected: list[Any]) -> None:
    for rank, (left, right) in enumerate(zip(results, expected, strict=True)):
        assert testing.first_difference(left, right) is None, f"rank {rank}"


def arguments(comm: a2a.Communicator, recipe: Recipe, send: Any, recv: Any) -> tuple[Any, ...]:
    """What alltoallv and its plan take."""
    case, rank = recipe.case(comm.size), comm.rank
    sends, recvs = (case.send_counts, case.send_displs), (case.recv_counts, case.recv_displs)
    return (send, sends[0][rank], recv, recvs[0][rank], sends[1][rank], recvs[1][rank])


def plan_of(comm: a2a.Communicator, recipe: Recipe) -> a2a.Plan:
    case, rank = recipe.case(comm.size), comm.rank
    send, recv = recipe.poisoned(case.send_rows[rank]), recipe.poisoned(case.recv_rows[rank])
    return comm.plan_alltoallv(*arguments(comm, recipe, send, recv))


def expected_of(recipe: Recipe, n: int, data: Recipe, guard: int = 0) -> list[Any]:
    case = recipe.case(n)
    sends = [data.array(rank, rows) for rank, rows in enumerate(case.send_rows)]
    recvs = [recipe.poisoned(rows + guard) for rows in case.recv_rows]
    return testing.alltoallv(sends, case.send_counts, recvs, case.send_displs, case.recv_displs)


RECIPE = Recipe(1, "int16", (7,), max_rows=30)


def run_often(comm: a2a.Communicator, runs: int) -> list[Any]:
    """Other tensors each time, one of them larger than the plan needs, and two plans in turn."""
    plans = [plan_of(comm, RECIPE), plan_of(comm, RECIPE)]
    assert [plan.number for plan in plans] == [plans[0].number, plans[0].number + 1]
    case, results = RECIPE.case(comm.size), []
    for seed in range(runs):
        data = Recipe(seed, "int16", (7,))
        recv = RECIPE.poisoned(case.recv_rows[comm.rank] + GUARD)
        plans[seed % 2].run(data.array(comm.rank, case.send_rows[comm.rank]), recv)
        results.append(recv)
    return results


def test_a_plan_runs_often(pool: Pool) -> None:
    results = pool.run(run_often, 10)
    for seed in range(10):
        expected = expected_of(RECIPE, pool.n, Recipe(seed, "int16", (7,)), GUARD)
        require_same([result[seed] for result in results], expected)


def run_started(comm: a2a.Communicator, runs: int) -> list[Any]:
    plan, case = plan_of(comm, RECIPE), RECIPE.case(comm.size)
    outputs = [RECIPE.poisoned(case.recv_rows[comm.rank]) for _ in range(runs)]
    works = []
    for seed, output in enumerate(outputs):
        works.append(plan.start(Recipe(seed, "int16", (7,)).array(comm.rank, case.send_rows[comm.rank]), output))
    for work, output in zip(reversed(works), reversed(outputs), strict=True):
        work.wait()
        assert work.result is output
    return outputs


def test_a_plan_runs_several_times_at_once(pool: Pool) -> None:
    results = pool.run(run_started, 8)
    for seed in range(8):
        require_same([result[seed] for result in results], expected_of(RECIPE, pool.n, Recipe(seed, "int16", (7,))))


def run_backward(comm: a2a.Communicator, recipe: Recipe) -> tuple[Any, Any]:
    """There, and the gradient back, which lands where the rows came from."""
    case, rank = recipe.case(comm.size), comm.rank
    forward = plan_of(comm, recipe)
    backward = forward.transpose()
    assert backward.number == forward.number + 1
    there, back = recipe.poisoned(case.recv_rows[rank]), recipe.poisoned(case.send_rows[rank])
    forward.run(recipe.array(rank, case.send_rows[rank]), there)
    backward.run(there, back)
    again = np.copy(testing.poison(np.empty_like(there)))
    backward.transpose().run(back, again)
    assert testing.first_difference(again, there) is None
    return there, back


@pytest.mark.parametrize("seed", range(4))
def test_transpose_is_the_way_back(pool: Pool, seed: int) -> None:
    recipe = Recipe(seed, "bfloat16", (5,), max_rows=40)
    case, results = recipe.case(pool.n), pool.run(run_backward, recipe)
    there = expected_of(recipe, pool.n, recipe)
    require_same([result[0] for result in results], there)
    backs = [recipe.poisoned(rows) for rows in case.send_rows]
    back = testing.alltoallv(there, case.recv_counts, backs, case.recv_displs, case.send_displs)
    require_same([result[1] for result in results], back)


def run_experts(comm: a2a.Communicator, recipe: Recipe) -> list[Any]:
    """The transposed scatter is the gather, also beside ranks that made their plan as a gather."""
    counts, rank = recipe.local_counts(comm.size), comm.rank
    local, global_ = counts[rank], testing.global_counts(counts)[rank]
    x = recipe.array(rank, local.sum())
    scatter = comm.plan_global_scatter(x, local, global_)
    gather = scatter.transpose() if rank % 2 else comm.plan_global_gather(x, local, global_)
    there, back, again = (recipe.poisoned(rows) for rows in (global_.sum(), local.sum(), global_.sum()))
    scatter.run(x, there)
    gather.run(there, back)
    gather.transpose().run(back, again)
    return [there, back, again]


@pytest.mark.parametrize("experts", [1, 4])
def test_global_plans(pool: Pool, experts: int) -> None:
    recipe = Recipe(experts, "float16", (6,), max_rows=20, experts=experts)
    counts = recipe.local_counts(pool.n)
    xs = [recipe.array(rank, row.sum()) for rank, row in enumerate(counts)]
    there = testing.global_scatter(xs, counts)
    for step, expected in enumerate((there, xs, there)):
        require_same([result[step] for result in pool.run(run_experts, recipe)], expected)


def run_equal(comm: a2a.Communicator, recipe: Recipe) -> list[Any]:
    send = recipe.array(comm.rank, 2 * comm.size)
    equal, gathered = recipe.poisoned(2 * comm.size), recipe.poisoned(2 * comm.size**2)
    back = recipe.poisoned(2 * comm.size)
    plan, gather = comm.plan_alltoall(send, equal), comm.plan_allgather(send, gathered)
    plan.run(send, equal)
    plan.transpose().run(equal, back)
    gather.run(send, gathered)
    if comm.size > 1:
        with pytest.raises(a2a.InvalidArgumentError, match="overlap"):
            gather.transpose()
    return [equal, back, gathered]


def test_plans_of_equal_parts(pool: Pool) -> None:
    recipe = Recipe(3, "int32", (2,))
    sends = [recipe.array(rank, 2 * pool.n) for rank in range(pool.n)]
    results = pool.run(run_equal, recipe)
    for step, expected in enumerate((testing.alltoall(sends), sends, testing.allgather(sends))):
        require_same([result[step] for result in results], expected)


def overlapping(send: Any, recv: Any) -> tuple[Any, Any]:
    """Arrays like these two, in one piece of memory that is too short for both."""
    memory = np.zeros(send.nbytes + recv.nbytes, np.uint8)
    like = [memory[: send.nbytes], memory[send.nbytes - 2 : send.nbytes - 2 + recv.nbytes]]
    return tuple(part.view(old.dtype).reshape(old.shape) for part, old in zip(like, (send, recv), strict=True))


def read_only(array: Any) -> Any:
    array = array.copy()
    array.flags.writeable = False
    return array


# What is done to rank 1's tensors, and what it is told.
WRONG = {
    "dtype of both": (lambda s, r: (s.view(np.float16), r.view(np.float16)), "send is float16.*plan .*int16"),
    "row size": (lambda s, r: (s.reshape(-1, 1), r.reshape(-1, 1)), "a row of send .*2 bytes.*14 bytes"),
    "dtype of send": (lambda s, r: (s.view(np.float16), r), "send is float16, but recv is int16"),
    "short send": (lambda s, r: (s[:1], r), r"send \(1, 7\) has 14 bytes, but plan .* needs|buffer of 1,"),
    "short recv": (lambda s, r: (s, r[:1]), r"recv \(1, 7\) has 14 bytes, but plan .* needs|buffer of 1,"),
    "shared elements": (lambda s, r: (s, np.broadcast_to(r[0], r.shape)), "recv .*(elements that may share|read-only)"),
    "same memory": (lambda s, r: (r, r), "share memory"),
    "overlapping": (overlapping, "share memory"),
    "read-only": (lambda s, r: (s, read_only(r)), "recv .*read-only"),
    "byte order": (lambda s, r: (s.view(s.dtype.newbyteorder()), r), "send has the NumPy dtype >i2"),
}
# What a plan was made for is nothing to a call without one: there the ranks disagree, or do not.
PLANS_ONLY = {"dtype of both", "row size"}


def run_wrong(comm: a2a.Communicator, name: str, how: str) -> str:
    """Rank 1 passes tensors that do not fit. Everybody's next exchange is right."""
    recipe = Recipe(5, "int16", (7,), max_rows=30, empty=0)
    case, rank = recipe.case(comm.size), comm.rank
    plan = plan_of(comm, recipe)
    send, recv = recipe.array(rank, case.send_rows[rank]), recipe.poisoned(case.recv_rows[rank])

    def exchange(send: Any, recv: Any) -> None:
        if how == "no plan":
            comm.alltoallv(*arguments(comm, recipe, send, recv))
        else:
            plan.run(send, recv)

    if how != "first run":
        exchange(send, recv)
        testing.poison(recv)
    text = ""
    try:
        exchange(*(WRONG[name][0](send, recv) if rank == 1 else (send, recv)))
    except a2a.Error as error:
        text = f"{type(error).__name__}: {error}"
    # Nothing came from rank 1, and nothing at all on rank 1.
    expected = recipe.poisoned(case.recv_rows[rank])
    if rank != 1:
        expected[...] = expected_of(recipe, comm.size, recipe)[rank]
        start, rows = case.recv_displs[rank, 1], case.recv_counts[rank, 1]
        testing.poison(expected[start : start + rows])
    assert testing.first_difference(recv, expected) is None
    exchange(send, recv)
    assert testing.first_difference(recv, expected_of(recipe, comm.size, recipe)[rank]) is None
    return text


@pytest.mark.parametrize(
    ("how", "name"),
    [
        (how, name)
        for how in ("first run", "later run", "no plan")
        for name in WRONG
        if how != "no plan" or name not in PLANS_ONLY
    ],
)
def test_wrong_tensors(pool: Pool, name: str, how: str) -> None:
    texts = pool.run(run_wrong, name, how)
    for rank, text in enumerate(texts):
        kind = "InvalidArgumentError: rank 1: " if rank == 1 else "MismatchError: "
        assert text.startswith(kind), text
        assert re.search(WRONG[name][1], text), text


def run_different(comm: a2a.Communicator, other: str) -> str:
    """Rank 1 runs something else than the others."""
    plans = [comm.plan_alltoall(*np.empty((2, comm.size), np.int64)) for _ in range(2)]
    send, recv = np.full(comm.size, comm.rank), np.full(comm.size, -1)
    try:
        if comm.rank != 1:
            plans[0].run(send, recv)
        elif other == "plan":
            plans[1].run(send, recv)
        else:
            comm.alltoall(send, recv)
    except a2a.MismatchError as error:
        plans[1].run(send, recv)
        assert recv.tolist() == list(range(comm.size))
        return str(error)
    return ""


@pytest.mark.parametrize("other", ["plan", "no plan"])
def test_ranks_that_run_different_plans(pool: Pool, other: str) -> None:
    for rank, text in enumerate(pool.run(run_different, other)):
        assert "rank 0" in text or rank > 1, text
        assert "rank 1" in text and "plan" in text, text


def run_many_plans(comm: a2a.Communicator, count: int) -> None:
    recipes = [Recipe(seed, "int16", (7,), max_rows=5) for seed in range(count)]
    plans = [plan_of(comm, recipe) for recipe in recipes]
    for recipe, plan in zip(recipes, plans, strict=True):
        case = recipe.case(comm.size)
        recv = recipe.poisoned(case.recv_rows[comm.rank])
        plan.run(recipe.array(comm.rank, case.send_rows[comm.rank]), recv)
        assert testing.first_difference(recv, expected_of(recipe, comm.size, recipe)[comm.rank]) is None


def test_many_plans(pool: Pool) -> None:
    pool.run(run_many_plans, 50)
