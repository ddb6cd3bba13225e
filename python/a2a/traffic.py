"""Who sends how many bytes to whom: made by a rule, read from a file, or recorded from a program.

A matrix is an array of uint64 of shape [ranks, ranks]; matrix[i, j] bytes go from rank i to rank j.
"""

from __future__ import annotations

import csv
import json
import re
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from . import trace
from ._core import InvalidArgumentError
from ._files import MOST_RANKS, brief, read_json, read_text
from ._files import write as write_file
from .workloads import WORKLOADS, route, workload

__all__ = ["NAMES", "Matrix", "Step", "lower_bound", "made", "read", "resized", "write"]

Matrix = npt.NDArray[np.uint64]

_MOST_BYTES = 1 << 63
_MOST_CELLS = 1 << 29  # of all matrices of a recording

NAMES = ("uniform", "zipf", "log-normal", "hot-rank")


@dataclass(frozen=True)
class Step:
    """One exchange of a recorded or written program."""

    matrix: Matrix
    op: str = "alltoallv"
    dtype: str = "uint8"
    seconds: float = 0.0
    """how long it took when it was recorded, from the first rank that began it to the last that finished; 0: unknown"""


def lower_bound(matrix: Matrix) -> int:
    """Return the most bytes that one rank sends, or receives: the exchange takes as long as these bytes at least."""
    between = matrix.copy()
    np.fill_diagonal(between, 0)
    return int(max(between.sum(0).max(), between.sum(1).max()))


def _checked(values: npt.NDArray[Any], what: str) -> Matrix:
    """Return the numbers of bytes that a matrix of any numbers has. Sums of all of them fit into 64 bits."""
    total = float(values.sum(dtype=np.float64))
    if not 0 <= total < _MOST_BYTES:
        raise InvalidArgumentError(f"{what}: all ranks together send {total:.4g} bytes; {_MOST_BYTES} are the most")
    return np.rint(values).astype(np.uint64) if values.dtype.kind == "f" else values.astype(np.uint64)


def _require_ranks(ranks: int, what: str) -> None:
    if not 1 <= ranks <= MOST_RANKS:
        raise InvalidArgumentError(f"{what}: {ranks} ranks, where there are at least one and {MOST_RANKS} at most")


# ---- rules -----------------------------------------------------------------------------------------------------------


def made(
    name: str,
    ranks: int,
    *,
    bytes_per_rank: int = 64 << 20,
    seed: int = 0,
    alpha: float = 1.2,
    sigma: float = 1.0,
    ratio: float = 4.0,
    routing: str = "zipf",
) -> Matrix:
    """Return the traffic of a rule, the same for the same arguments. A rank sends ``bytes_per_rank`` in the mean.

    ``uniform``: every rank sends every other one as much. ``zipf``: rank j receives in proportion to the power
    ``-alpha`` of its place in a random order. ``log-normal``: each pair is drawn with the deviation ``sigma`` of its
    logarithm. ``hot-rank``: rank 0 receives ``ratio`` times as much as others. The id of a workload, such as
    ``dsv3-train/16``: the rows that its tokens send when a router chooses experts by the rule ``routing``
    (a2a.workloads). Raises InvalidArgumentError for an unknown name, with those that there are."""
    _require_ranks(ranks, f"traffic {name!r}")
    if seed < 0:
        raise InvalidArgumentError(f"traffic: seed is {seed}; it is a number that is not negative")
    if name.partition("/")[0] in WORKLOADS:
        return _of_workload(name, ranks, routing, seed)
    for word, value in (("alpha", alpha), ("sigma", sigma), ("ratio", ratio), ("bytes_per_rank", bytes_per_rank)):
        if not 0 <= value < float("inf"):
            raise InvalidArgumentError(f"traffic: {word} is {value}; it is a number that is not negative")
    rng = np.random.default_rng(seed)
    shape = (ranks, ranks)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):  # what comes of it is refused below
        weights = _weights(name, shape, rng, alpha, sigma, ratio)
        np.fill_diagonal(weights, 0)
        if weights.any():
            weights *= bytes_per_rank * ranks / weights.sum()
        if not np.isfinite(weights.sum()) or (bytes_per_rank and ranks > 1 and not weights.any()):
            raise InvalidArgumentError(f"traffic {name!r}: alpha {alpha}, sigma {sigma} or ratio {ratio} is too large")
    return _checked(weights, f"traffic {name!r}")


def _weights(
    name: str, shape: tuple[int, int], rng: np.random.Generator, alpha: float, sigma: float, ratio: float
) -> npt.NDArray[np.float64]:
    if name == "uniform":
        weights = np.ones(shape)
    elif name == "zipf":
        popularity = (rng.permutation(shape[0]) + 1.0) ** -alpha
        weights = np.broadcast_to(popularity, shape).copy()
    elif name == "log-normal":
        weights = np.exp(sigma * rng.standard_normal(shape))
    elif name == "hot-rank":
        weights = np.ones(shape)
        weights[:, 0] = ratio
    else:
        raise InvalidArgumentError(f"traffic {name!r}: there are {', '.join(NAMES)}, and {', '.join(WORKLOADS)}")
    return weights


def _of_workload(name: str, ranks: int, routing: str, seed: int) -> Matrix:
    try:
        shape = workload(name)
    except ValueError as error:
        raise InvalidArgumentError(f"traffic {name!r}: {error}") from None
    if shape.experts % ranks:
        raise InvalidArgumentError(f"traffic {name!r}: {ranks} ranks do not divide {shape.experts} experts")
    home = shape.experts // ranks
    row = shape.bytes_per_rank // (shape.tokens * shape.top_k)
    matrix = np.zeros((ranks, ranks), np.uint64)
    for rank, choice in enumerate(route(shape, ranks, routing=routing, seed=seed)):
        matrix[rank] = np.bincount(choice.ravel() // home, minlength=ranks).astype(np.uint64) * np.uint64(row)
    return matrix


def all_resized(steps: Iterable[Step], ranks: int) -> list[Matrix]:
    """Return the matrices of exchanges for another number of ranks. Steps that share one share its result, too."""
    found, known = [], dict[int, Matrix]()
    for step in steps:
        if id(step.matrix) not in known:
            known[id(step.matrix)] = resized(step.matrix, ranks)
        found.append(known[id(step.matrix)])
    return found


def resized(matrix: Matrix, ranks: int) -> Matrix:
    """Return traffic of the same kind for another number of ranks: rank i sends as much as rank i % len(matrix) does
    here, spread over the ranks alike."""
    size = len(matrix)
    if ranks == size:
        return matrix
    what = f"traffic of {size} ranks on {ranks}"
    _require_ranks(ranks, what)
    rows = matrix[np.arange(ranks) % size].astype(np.float64)
    if ranks < size:
        folded = np.zeros((ranks, ranks))
        for rank in range(size):
            folded[:, rank % ranks] += rows[:, rank]
        return _checked(folded, what)
    columns = np.arange(ranks) % size
    share = np.bincount(columns, minlength=size)[columns]
    return _checked(rows[:, columns] / share, what)


# ---- files -----------------------------------------------------------------------------------------------------------


def _warn(text: str) -> None:
    warnings.warn(text, RuntimeWarning, stacklevel=4)


def read(path: str | Path, warn: Callable[[str], None] = _warn) -> list[Step]:
    """Read the exchanges of a file or folder: a recording (``A2A_RECORD``, ``A2A_TRACE``), traces of PARAM's
    comms-replay, one JSON file for each rank, or a matrix of bytes, its numbers separated by commas or blanks, as
    nccl-tests reads it. Raises InvalidArgumentError for anything else, OSError where it cannot be read. A recording
    that is known to be incomplete is what ``warn`` is called with; it is a RuntimeWarning by default."""
    path = Path(path)
    if path.is_dir():
        if recorded := trace.find([path]):
            return _recorded(recorded, warn)
        if written := sorted(path.glob("*.json"), key=_rank_in_name):
            return _of_param(written)
        raise InvalidArgumentError(f"{path}: no timelines (*.a2atrace) and no traces of PARAM (*.json) are there")
    if path.suffix == ".a2atrace":
        return _recorded([path], warn)
    if path.suffix == ".json":
        return _of_param([path])
    return [Step(_matrix(path))]


def write(path: str | Path, steps: Sequence[Step]) -> list[Path]:
    """Write the exchanges, and return the files: with the suffix .csv the sum of their matrices, otherwise a folder of
    traces for PARAM's comms-replay, one for each rank."""
    path = Path(path)
    if not steps:
        raise InvalidArgumentError("there are no exchanges to write")
    if path.suffix == ".csv":
        exact: npt.NDArray[Any] = np.zeros(steps[0].matrix.shape, object)  # integers of NumPy could wrap
        for step in steps:
            exact = exact + step.matrix.astype(object)
        total = _checked(exact, str(path))
        write_file(path, "".join(",".join(map(str, row)) + "\n" for row in total.tolist()))
        return [path]
    path.mkdir(parents=True, exist_ok=True)
    files = []
    for rank in range(len(steps[0].matrix)):
        file = path / f"rank-{rank}.json"
        write_file(file, json.dumps([_entry(step, rank) for step in steps], indent=1) + "\n")
        files.append(file)
    return files


def _matrix(path: Path) -> Matrix:
    rows: list[list[int]] = []
    try:
        for line in csv.reader(read_text(path).splitlines()):
            numbers = [word for part in line for word in part.split()]
            if numbers and not numbers[0].startswith("#"):
                rows.append(_numbers(numbers, path))
                _require_ranks(max(len(rows), len(rows[-1])), str(path))
    except csv.Error as error:
        raise InvalidArgumentError(f"{path} is no matrix: {error}") from None
    uneven = next((row for row in rows if len(row) != len(rows)), None)
    if not rows or uneven is not None:
        has = f"a row of {len(uneven)} numbers" if uneven is not None else "no numbers"
        raise InvalidArgumentError(f"{path} has {len(rows)} rows and {has}; a matrix has as many of both")
    return _of_rows(rows, path)


def _numbers(words: Sequence[str], path: Path) -> list[int]:
    row = []
    for word in words:
        try:
            row.append(int(float(word)) if re.search("[.eE]", word) else int(word))
        except (ValueError, OverflowError):
            raise InvalidArgumentError(f"{path}: {brief(word)} is no number of bytes") from None
    return row


def _of_rows(rows: Sequence[Sequence[int]], path: Path) -> Matrix:
    for rank, row in enumerate(rows):
        if min(row) < 0 or sum(row) >= _MOST_BYTES:
            wrong = min(row) if min(row) < 0 else sum(row)
            raise InvalidArgumentError(
                f"{path}: rank {rank} sends {brief(wrong)} bytes; 0 to {_MOST_BYTES} are possible"
            )
    return _checked(np.array(rows, np.uint64), str(path))


def _recorded(paths: Iterable[Path], warn: Callable[[str], None]) -> list[Step]:
    groups = trace.merge([trace.read(path) for path in paths])
    steps = []
    matrices: dict[tuple[int, ...], Matrix] = {}  # an exchange that is repeated is one matrix
    for group in groups:
        for text in group.incomplete():
            warn(f"the recording of {group.label} is incomplete: {text}")
        if len(group.ranks) < group.size:
            raise InvalidArgumentError(
                f"the recording of {group.label} has {len(group.ranks)} of {group.size} ranks; all are needed"
            )
        for number in group.numbers():
            operations = [timeline.operations.get(number) for timeline in group.ranks]
            found = [operation for operation in operations if operation is not None]
            if len(found) < group.size:
                continue  # a rank that was killed, or whose disk was full, has not written it
            seconds = max(0, max(one.ended for one in found) - min(one.started for one in found)) / 1e9
            same = tuple(id(one.sent) for one in found)
            if same not in matrices:
                if (len(matrices) + 1) * group.size**2 > _MOST_CELLS:
                    raise InvalidArgumentError(
                        f"the recording of {group.label} has more than {len(matrices)} different exchanges of "
                        f"{group.size} ranks; they do not fit into memory"
                    )
                matrices[same] = _of_rows([one.sent for one in found], group.ranks[0].path)
            matrix = matrices[same]
            if matrix.any():
                steps.append(Step(matrix, found[0].op, found[0].dtype, seconds))
    if not steps:
        raise InvalidArgumentError(
            "no operation with bytes is in the recording of all ranks; a rank that is killed loses its last second"
        )
    return steps


# ---- PARAM -----------------------------------------------------------------------------------------------------------

_ITEM_BYTES = {
    "char": 1, "byte": 1, "bool": 1, "int8": 1, "uint8": 1, "half": 2, "float16": 2, "bfloat16": 2, "int16": 2,
    "short": 2, "int": 4, "int32": 4, "float": 4, "float32": 4, "long": 8, "int64": 8, "double": 8, "float64": 8,
}  # fmt: skip


def _rank_in_name(path: Path) -> tuple[int, str]:
    number = re.search(r"\d+(?=\D*$)", path.stem)
    return (int(number[0]) if number else 0, path.name)


def _of_param(paths: Sequence[Path]) -> list[Step]:
    _require_ranks(len(paths), str(paths[0].parent))
    ranks = [_entries(path) for path in paths]
    counts = {len(entries) for entries in ranks}
    if len(counts) > 1:
        raise InvalidArgumentError(
            f"{paths[0].parent}: the traces have {brief(sorted(counts))} all-to-alls; every rank takes part in each"
        )
    steps = []
    for entries in zip(*ranks, strict=True):
        rows = [_row(entry, path, len(paths)) for entry, path in zip(entries, paths, strict=True)]
        steps.append(Step(_of_rows(rows, paths[0]), "alltoallv", brief(str(entries[0].get("dtype", "uint8")))))
    if not steps:
        raise InvalidArgumentError(f"{paths[0]}: no all_to_all, all_to_allv or all_to_all_single is in the trace")
    return steps


def _entries(path: Path) -> list[dict[str, Any]]:
    written = read_json(path)
    if not isinstance(written, list) or not all(isinstance(entry, dict) for entry in written):
        raise InvalidArgumentError(f"{path}: a trace of PARAM is a list of objects")
    return [entry for entry in written if str(entry.get("comms", "")).startswith("all_to_all")]


def _row(entry: dict[str, Any], path: Path, ranks: int) -> list[int]:
    word = str(entry.get("dtype", "uint8")).removeprefix("torch.").lower()
    item = _ITEM_BYTES.get(word)
    if item is None:
        raise InvalidArgumentError(f"{path}: dtype {brief(word)} is none of {', '.join(sorted(_ITEM_BYTES))}")
    splits: list[Any] = entry.get("in_split") or []
    if not splits:  # equal parts
        elems = entry.get("in_msg_size", 0)
        if isinstance(elems, bool) or not isinstance(elems, int) or elems < 0:
            raise InvalidArgumentError(f"{path}: in_msg_size is {brief(elems)}; it is a number of elements")
        splits = [elems // ranks] * ranks
    if (
        not isinstance(splits, list)
        or len(splits) != ranks
        or any(isinstance(one, bool) or not isinstance(one, int) or one < 0 for one in splits)
    ):
        raise InvalidArgumentError(
            f"{path}: in_split has {brief(splits)}; it needs one number for each of {ranks} ranks"
        )
    return [int(one) * item for one in splits]


def _entry(step: Step, rank: int) -> dict[str, Any]:
    sent, received = step.matrix[rank].tolist(), step.matrix[:, rank].tolist()
    ranks = len(sent)
    return {
        "comms": "all_to_allv",
        "in_msg_size": sum(sent),
        "out_msg_size": sum(received),
        "in_split": sent,
        "out_split": received,
        "dtype": "int8",
        "world_size": ranks,
        "pg_id": 0,
        "global_ranks": list(range(ranks)),
    }
