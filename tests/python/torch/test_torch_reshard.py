"""DTensors and state dicts from one mesh to another, with torch's own parts and full_tensor() as the oracle."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch_reshard_ranks as on_ranks
from rank_pool import Pool

pytest.importorskip("torch")
pytestmark = pytest.mark.timeout(110)


@pytest.fixture(scope="module", params=["processes", pytest.param("hosts", marks=pytest.mark.full)])
def four(request: pytest.FixtureRequest) -> Iterator[Pool]:
    with Pool(4, hosts="a,b,a,b" if request.param == "hosts" else "") as pool:
        yield pool


@pytest.mark.parametrize("seed", [1, 2, pytest.param(3, marks=pytest.mark.full)])
def test_random_layouts(four: Pool, seed: int) -> None:
    four.run(on_ranks.at_random, seed, 60)


def test_gradients(four: Pool) -> None:
    four.run(on_ranks.gradients)


def test_fsdp_of_tensor_parallel(four: Pool) -> None:
    four.run(on_ranks.strided)


def test_several_axes_at_once(four: Pool) -> None:
    four.run(on_ranks.several_axes)


def test_compiled_changes_of_meshes(four: Pool) -> None:
    four.run(on_ranks.compiled)


def test_state_dicts(four: Pool) -> None:
    four.run(on_ranks.state_dicts)


def test_a_group_has_ranks_of_its_own(four: Pool) -> None:
    four.run(on_ranks.of_a_group)


def test_chunks_of_a_checkpoint(four: Pool) -> None:
    four.run(on_ranks.checkpoint)


def test_bad_arguments_are_refused_here_and_a_mismatch_there(four: Pool) -> None:
    four.run(on_ranks.refused)


def test_ranks_that_differ(four: Pool) -> None:
    four.run(on_ranks.differ)


def test_default_group_of_gloo(ranks: Pool) -> None:
    ranks.run(on_ranks.of_gloo)


@pytest.mark.parametrize(
    ("chunks", "words"),
    [(3, "chunks is int"), ([3], r"chunks\[0\] is 3"), ({1: object()}, r"chunks\[1\] is <object")],
)
def test_chunks_that_are_none(chunks: Any, words: str) -> None:
    import a2a.torch

    with pytest.raises(a2a.InvalidArgumentError, match=words):
        a2a.torch.chunk_boxes(chunks)
