"""What ranks do in test_views.py. Apart from the tests, so that ranks need not import pytest."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import numpy as np
from exchange_ranks import Recipe, dtype_of

import a2a
from a2a import testing

MIB = 1 << 20
SECONDS = 30.0


def segment_bytes() -> int:
    """What this process's segment takes in memory. Blocks from 1 MiB on leave it when they are given back."""
    for entry in Path("/proc/self/fd").iterdir():
        try:
            if str(entry.readlink()) == "/memfd:a2a (deleted)":
                return entry.stat().st_blocks * 512
        except FileNotFoundError:
            continue
    return 0


def rows_of(recipe: Recipe, rank: int) -> int:
    """From none to all, another number on each rank."""
    return int(np.random.default_rng((recipe.seed, rank)).integers(recipe.max_rows + 1))


def shown(comm: a2a.Communicator, recipe: Recipe) -> Any:
    """What this rank shows: a part of a larger tensor, with every bit set by the recipe."""
    rows = rows_of(recipe, comm.rank)
    whole = comm.empty((rows + 2, *recipe.trailing), recipe.dtype)
    testing.poison(whole)
    whole[1 : 1 + rows] = recipe.array(comm.rank, rows)
    return whole[1 : 1 + rows]


def look(comm: a2a.Communicator, recipe: Recipe) -> bytes:
    """All views of several rounds, one of them after another, in the order of the ranks."""
    seen = []
    for part in range(3):
        tensor = shown(comm, recipe)
        with comm.allgather_views(tensor) as views:
            assert len(views) == comm.size and not views.released
            del tensor
            gc.collect()
            for rank, view in enumerate(views):
                assert view.shape == (rows_of(recipe, rank), *recipe.trailing), (rank, view.shape)
                assert view.dtype == dtype_of(recipe.dtype) and not view.flags.writeable
                assert views[rank] is view and views[rank - comm.size] is view
            everything = np.concatenate(list(views))
        assert views.released
        views.wait_released(SECONDS)
        seen.append(everything.tobytes())
        assert seen[part] == seen[0]
    return seen[0]


def take_turns(comm: a2a.Communicator, rounds: int) -> int:
    """The owner writes into the same tensor in each round, as soon as it may. Returns the errors that anybody saw."""
    mine = comm.empty((comm.rank + 1, 1000), "int64")
    errors = 0
    for turn in range(rounds):
        mine[...] = turn * 100 + comm.rank
        views = comm.allgather_views(mine)
        for rank, view in enumerate(views):
            errors += int((view != turn * 100 + rank).sum())
        views.release()
        views.wait_released(SECONDS)
    return errors


def keep_all_sorts(comm: a2a.Communicator) -> None:
    """Many views at once, released in another order than made, and by dropping what was made from them."""
    kept: list[Any] = []
    for turn in range(40):
        tensor = comm.empty(5000, "int32")
        tensor[:] = 1000 * turn + comm.rank
        views = comm.allgather_views(tensor)
        kept.append((turn, views if turn % 3 == 0 else [view[10:] for view in views]))
        del tensor, views
        if turn % 4 == 3:
            for number, pieces in kept:
                for rank, view in enumerate(pieces):
                    assert (view == 1000 * number + rank).all(), (turn, number, rank)
            del kept[turn % 3 :: 2]
