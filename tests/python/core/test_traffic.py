"""Traffic: made by rules, read from files of several formats, written, and folded onto another number of ranks."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import a2a
from a2a import traffic
from a2a.workloads import workload


@pytest.mark.parametrize("name", traffic.NAMES)
def test_rules(name: str) -> None:
    matrix = traffic.made(name, 16, bytes_per_rank=1 << 20, seed=2)
    assert matrix.dtype == np.uint64 and matrix.shape == (16, 16) and not matrix.diagonal().any()
    assert int(matrix.sum()) == pytest.approx(16 << 20, rel=1e-3)
    assert (matrix == traffic.made(name, 16, bytes_per_rank=1 << 20, seed=2)).all()
    skew = matrix.sum(0).max() / matrix.sum(0).mean()
    assert skew == pytest.approx(1, rel=1e-3) if name == "uniform" else skew > 1.2
    assert traffic.made(name, 1).tolist() == [[0]]


def test_a_workload() -> None:
    shape = workload("mixtral-train/16")
    matrix = traffic.made("mixtral-train/16", 8, routing="uniform")
    assert (matrix.sum(1) == shape.bytes_per_rank).all()
    for name, words in (
        ("mixtral-train/16", "do not divide"),
        ("mixtral-train/x", "unknown workload"),
        ("no", "there are"),
    ):
        with pytest.raises(a2a.InvalidArgumentError, match=words):
            traffic.made(name, 3)
    with pytest.raises(a2a.InvalidArgumentError, match="at least one"):
        traffic.made("uniform", 0)


@pytest.mark.parametrize(
    "text", ["1,2\n3,4\n", "1 2\n3 4", "# of nccl-tests\n1\t2\n\n3 4\n", "1, 2\n3, 4.0\n", "1e0 2\n3 4\n"]
)
def test_a_matrix_in_a_file(text: str, tmp_path: Path) -> None:
    file = tmp_path / "bytes.txt"
    file.write_text(text)
    (step,) = traffic.read(file)
    assert step.matrix.tolist() == [[1, 2], [3, 4]]


@pytest.mark.parametrize(
    "text", ["", "1,2\n", "1,2\n3\n", "1,-2\n3,4\n", "a,b\nc,d\n", "1,2\n3,nan\n", f"1,2\n3,{2**64}\n"]
)
def test_no_matrix(text: str, tmp_path: Path) -> None:
    file = tmp_path / "bytes.csv"
    file.write_text(text)
    with pytest.raises(a2a.InvalidArgumentError, match=r"bytes\.csv"):
        traffic.read(file)


def test_written_and_read(tmp_path: Path) -> None:
    steps = [traffic.Step(traffic.made(name, 3, seed=1)) for name in ("log-normal", "hot-rank")]
    (csv,) = traffic.write(tmp_path / "sum.csv", steps)
    (total,) = traffic.read(csv)
    assert (total.matrix == steps[0].matrix + steps[1].matrix).all()
    files = traffic.write(tmp_path / "param", steps)
    assert [file.name for file in files] == ["rank-0.json", "rank-1.json", "rank-2.json"]
    assert [step.matrix.tolist() for step in traffic.read(tmp_path / "param")] == [
        step.matrix.tolist() for step in steps
    ]


def test_traces_of_param(tmp_path: Path) -> None:
    """More than ten ranks, so that their files are not in the order of their names; other collectives are left out."""
    ranks = 11
    for rank in range(ranks):
        split = [rank + peer for peer in range(ranks)]
        entries = [
            {"comms": "init", "world_size": ranks},
            {"comms": "all_to_allv", "in_split": split, "dtype": "Float", "in_msg_size": sum(split)},
            {"comms": "all_reduce", "in_msg_size": 5, "dtype": "Float"},
            {"comms": "all_to_all", "in_msg_size": 2 * ranks, "in_split": [], "dtype": "torch.bfloat16"},
            {"comms": "wait"},
        ]
        (tmp_path / f"et_rank{rank}.json").write_text(json.dumps(entries))
    uneven, equal = traffic.read(tmp_path)
    assert uneven.matrix.tolist() == [[4 * (i + j) for j in range(ranks)] for i in range(ranks)]
    assert (equal.matrix == 4).all()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "no JSON"),
        ("{}", "list of objects"),
        ("[]", "no all_to_all"),
        ('[{"comms": "all_to_allv", "in_split": [1, 2], "dtype": "int8"}]', "in_split"),
        ('[{"comms": "all_to_allv", "in_split": [1], "dtype": "what"}]', "dtype"),
        ('[{"comms": "all_to_all", "in_msg_size": "x", "dtype": "int8"}]', "in_msg_size"),
        ('[{"comms": "all_to_allv", "in_split": "ab", "dtype": "int8"}]', "in_split"),
    ],
)
def test_wrong_traces(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "rank0.json").write_text(text)
    with pytest.raises(a2a.InvalidArgumentError, match=words):
        traffic.read(tmp_path)


def test_an_empty_folder_and_ranks_that_differ(tmp_path: Path) -> None:
    with pytest.raises(a2a.InvalidArgumentError, match="no timelines"):
        traffic.read(tmp_path)
    entry = {"comms": "all_to_allv", "in_split": [1, 2], "dtype": "int8"}
    (tmp_path / "0.json").write_text(json.dumps([entry]))
    (tmp_path / "1.json").write_text(json.dumps([entry, entry]))
    with pytest.raises(a2a.InvalidArgumentError, match="every rank takes part"):
        traffic.read(tmp_path)


def test_other_numbers_of_ranks() -> None:
    matrix = traffic.made("log-normal", 4, seed=9)
    assert traffic.resized(matrix, 4) is matrix
    for ranks in (1, 2, 3, 6, 8, 17):
        other = traffic.resized(matrix, ranks)
        assert other.shape == (ranks, ranks)
        for rank in range(ranks):
            assert int(other[rank].sum()) == pytest.approx(int(matrix[rank % 4].sum()), abs=ranks)
