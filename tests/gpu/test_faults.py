"""Disagreement, refusals, abort, deadlines and death: an error within seconds, and never a hang."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gpu_ranks
import pytest
from gpu_ranks import DRIVER
from rank_pool import Pool

from a2a import _spawn, frameworks

pytestmark = pytest.mark.timeout(150)
SOON = 20.0  # seconds


@pytest.fixture(autouse=True)
def several(ranks: Pool) -> None:
    if ranks.n < 2:
        pytest.skip("needs a peer")


def apart(n: int, fn: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> list[_spawn.Outcome]:
    """How so many new ranks end, of which some may die."""
    for name, value in gpu_ranks.sharing().items():
        monkeypatch.setenv(name, value)
    return _spawn.run(fn, n, DRIVER, timeout=90, keep_going=True)


@pytest.mark.parametrize("check", ["first", "always"])
def test_a_mismatch_is_an_error_on_every_rank(ranks: Pool, framework: str, check: str) -> None:
    for told, _ in ranks.run(gpu_ranks.mismatch, framework, check):
        assert told.startswith("MismatchError: "), told


def test_a_mismatch_that_nobody_compares_does_not_hang(ranks: Pool) -> None:
    """NCCL may wait for ever, complain, or deliver a part of it: a2a's deadline ends the first."""
    for told, seconds in ranks.run(gpu_ranks.mismatch, DRIVER, "off"):
        print(told, seconds)
        assert float(seconds) < SOON and not told.startswith("MismatchError")


def test_tensors_that_cannot_take_part(ranks: Pool, framework: str) -> None:
    *others, last = ranks.run(gpu_ranks.refused, framework)
    assert len(last) >= 3 and all(told.startswith("InvalidArgumentError: ") for told in last), last
    for told in others:
        assert len(told) == len(last) and all(one.startswith("MismatchError: ") for one in told), told


def test_another_device_is_current(ranks: Pool, framework: str) -> None:
    if frameworks.load(framework, "cuda").devices() < 2:
        pytest.skip("needs two GPUs")
    ranks.run(gpu_ranks.another_device_is_current, framework)


def test_a_stream_that_is_gone(ranks: Pool, double: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """In processes of their own: CUDA does not say what it does then, and may end the last rank's."""
    *others, last = apart(ranks.n, gpu_ranks.destroyed_stream, monkeypatch)
    if not double and not last.value:
        pytest.skip(f"this driver does not tell: {last.error or 'it takes the stream'}")
    assert [told.partition(":")[0] for told in last.value] == ["InvalidArgumentError"] * 2, last.value
    assert all("the stream does not exist; was it destroyed?" in told for told in last.value), last.value
    for outcome in others:
        (told,) = outcome.value  # what comes after an exchange is no business of the peers
        assert told.startswith("MismatchError: ") and f"rank {ranks.n - 1}" in told, told


def test_abort(ranks: Pool) -> None:
    _, *others = ranks.run(gpu_ranks.aborted, DRIVER)
    for told, seconds in others:
        assert told.startswith("AbortedError: ") and "enough" in told and float(seconds) < SOON, told


@pytest.mark.parametrize("check", ["off", "always"])
def test_a_rank_that_does_not_come(ranks: Pool, check: str) -> None:
    _, *others = ranks.run(gpu_ranks.late, DRIVER, check)
    assert any(told.startswith("TimeoutError: ") for told, _ in others), others
    for told, seconds in others:
        assert told and float(seconds) < SOON, told


def test_a_rank_that_dies(ranks: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    for outcome in apart(ranks.n, gpu_ranks.dies, monkeypatch)[1:]:
        assert outcome.value, outcome.traceback
        told, seconds = outcome.value
        assert told.startswith("PeerLostError: ") and "rank 0" in told and seconds < SOON, told
