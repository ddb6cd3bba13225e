"""What ``a2a simulate --reshard FILE`` reads: tensors and their shardings, in JSON."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import traffic
from .._core import InvalidArgumentError
from .._files import brief, read_json
from ..sharding import Partial, Replicate, Shard, Sharding, exchanges, matrix

Tensor = tuple[list[int], Sharding, Sharding, str]
_PLACEMENT = re.compile(
    r"""shard\((?P<dim>-?\d{1,4})\)|(?P<replicate>replicate)(\(\))?|partial(\((?P<quote>['"]?)(?P<op>\w*)(?P=quote)\))?""",
    re.ASCII | re.IGNORECASE,
)
"""As Python writes them, or without capitals, quotes and empty brackets."""
_MOST_RANKS = 16384


@dataclass(frozen=True)
class Spec:
    """Tensors, from one sharding to another."""

    tensors: list[Tensor]
    ranks: int

    def exchanges(self, ranks_per_host: int) -> list[traffic.Matrix]:
        """Return the matrices of bytes of the stages, which follow one another."""
        hosts = [rank // ranks_per_host for rank in range(self.ranks)]
        return list(exchanges(self.tensors, self.ranks, hosts).astype(np.int64))

    def gather_and_cut(self) -> list[traffic.Matrix]:
        """Return the same for programs that gather each tensor whole on each rank, and then cut their parts."""
        gathered = []
        for shape, src, dst, dtype in self.tensors:
            everybody = Sharding(np.union1d(src.mesh, dst.mesh), Replicate())
            gathered.append((shape, _without_terms(src), everybody, dtype))
        return [matrix(gathered, self.ranks).astype(np.int64)]


def _without_terms(src: Sharding) -> Sharding:
    """Partial sums as if each rank had them folded: gathering them whole would only take longer."""
    return Sharding(src.mesh, [Replicate() if isinstance(one, Partial) else one for one in src.placements])


def read(path: str, ranks: int | None) -> tuple[Spec, str]:
    """Return the tensors of a file, and what they are. Raises InvalidArgumentError for what is none."""
    try:
        given = read_json(path)
    except OSError as error:
        raise InvalidArgumentError(f"--reshard {path}: {error.strerror}") from None
    try:
        tensors = _tensors(given)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"--reshard {path}: {error}") from None
    named = 1 + max(int(one.mesh.max()) for _, src, dst, _ in tensors for one in (src, dst))
    if not named <= (ranks or named) <= _MOST_RANKS:
        raise InvalidArgumentError(f"--reshard {path}: it names {named} ranks; -n has to be as many, at most 16384")
    size = sum(math.prod(shape) * _bytes_of(dtype) for shape, _, _, dtype in tensors)
    many = "" if len(tensors) == 1 else "s"
    return Spec(tensors, ranks or named), f"{len(tensors)} tensor{many} of {size / 1e9:.4g} GB"


def _bytes_of(dtype: str) -> int:
    one: int = matrix([([1], Sharding([0], Replicate()), Sharding([0], Replicate()), dtype)], 1)[0, 0]
    return int(one)


def _tensors(given: Any) -> list[Tensor]:
    if isinstance(given, dict) and "shape" in given and "tensors" not in given:
        given = {"tensors": [given]}
    if not isinstance(given, dict) or not isinstance(given.get("tensors"), list) or not given["tensors"]:
        raise InvalidArgumentError('it is an object with "tensors": [{"shape", "src", "dst"}, ...]')
    shared = {name: value for name, value in given.items() if name != "tensors"}
    tensors: list[Tensor] = []
    for i, one in enumerate(given["tensors"]):
        what = f"tensors[{i}]"
        values = {"dtype": "float32", "count": 1, **shared, **(one if isinstance(one, dict) else {})}
        if not isinstance(one, dict) or values.keys() != {"shape", "src", "dst", "dtype", "count"}:
            raise InvalidArgumentError(f'{what} is {brief(repr(one))}; it has "shape", "src", "dst", "dtype", "count"')
        shape, count = values["shape"], values["count"]
        if not isinstance(shape, list) or not all(_is_whole(entries) for entries in shape):
            raise InvalidArgumentError(f"{what}: shape is {brief(repr(shape))}; it is a list of whole numbers")
        if not _is_whole(count) or not isinstance(values["dtype"], str):
            raise InvalidArgumentError(f"{what}: count is a whole number, and dtype a name")
        src, dst = (_sharding(values[side], f"{what}: {side}") for side in ("src", "dst"))
        tensors += [(shape, src, dst, values["dtype"])] * count
    if not tensors:
        raise InvalidArgumentError("all tensors have a count of 0")
    return tensors


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**40


def _sharding(given: Any, what: str) -> Sharding:
    if not isinstance(given, dict) or given.keys() != {"mesh", "placements"}:
        raise InvalidArgumentError(f'{what} is {brief(repr(given))}; it has "mesh" and "placements"')
    if not isinstance(given["placements"], list):
        raise InvalidArgumentError(f"{what}: placements is a list with an entry for each axis of the mesh")
    try:
        sharding = Sharding(_mesh(given["mesh"]), [_placement(one) for one in given["placements"]])
        sharding.box(0, [1] * 64)  # what is wrong with the mesh itself
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{what}: {error}") from None
    return sharding


def _mesh(given: Any) -> Any:
    """Nested lists of ranks, or {"first": 8, "shape": [4, 2]}: ranks 8 to 15."""
    if not isinstance(given, dict):
        return given
    shape, first = given.get("shape"), given.get("first", 0)
    if given.keys() - {"shape", "first"} or not isinstance(shape, list) or not all(map(_is_whole, [first, *shape])):
        raise InvalidArgumentError('mesh has "shape", a list of numbers, and "first", a rank')
    if not 1 <= math.prod(shape) <= _MOST_RANKS:
        raise InvalidArgumentError(f"mesh has {math.prod(shape)} ranks; it has 1 to {_MOST_RANKS}")
    return (first + np.arange(math.prod(shape))).reshape(shape)


def _placement(given: Any) -> Shard | Replicate | Partial:
    found = _PLACEMENT.fullmatch(given) if isinstance(given, str) else None
    if found is None:
        raise InvalidArgumentError(
            f'placements has {brief(repr(given))}; pass "shard(0)", "replicate" or "partial(sum)"'
        )
    if found["dim"]:
        return Shard(int(found["dim"]))
    return Replicate() if found["replicate"] else Partial(found["op"] or "sum")
