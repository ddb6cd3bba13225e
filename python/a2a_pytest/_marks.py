"""What the marks of a test ask for."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

import pytest

__all__ = ["Wish", "WrongMark", "kinds_of", "wish_of"]

_SECONDS = 60.0
_OPTIONS = ("threads", "timeout", "torch", "paddle", "jax")
_BACKENDS = ("a2a", "gloo")


class WrongMark(Exception):
    """The mark makes no sense. The text says how to write it."""


@dataclass(frozen=True)
class Wish:
    ranks: int
    threads: bool = False
    timeout: float = _SECONDS
    torch: str = ""
    paddle: bool = False
    jax: bool = False
    hosts: int = 1
    network: bool = False
    """whether each host has a network namespace"""

    def names(self) -> list[str]:
        """Return the hosts of the ranks, neighbours on the same; nothing where there is one host."""
        return [f"host{host}" for host in self.host_numbers()] if self.hosts > 1 else []

    def host_numbers(self) -> list[int]:
        return [rank * self.hosts // self.ranks for rank in range(self.ranks)]


def kinds_of(mark: pytest.Mark) -> list[tuple[Any, Any]]:
    """Return the numbers of ranks, of ``ranks(2, 4)`` and of ``ranks((2, 4))``, each with whether they are threads."""
    numbers = mark.args[0] if len(mark.args) == 1 and isinstance(mark.args[0], (tuple, list)) else mark.args
    threads = mark.kwargs.get("threads", False)
    return [*itertools.product(numbers, threads if isinstance(threads, (tuple, list)) else [threads])]


def wish_of(item: pytest.Item) -> Wish:
    """Raises WrongMark."""
    mark = item.get_closest_marker("ranks")
    assert mark is not None
    number, threads = _kind_for(item, mark)
    unknown = [name for name in mark.kwargs if name not in _OPTIONS]
    if unknown:
        raise WrongMark(f"@pytest.mark.ranks has no argument {unknown[0]}; it has {', '.join(_OPTIONS)}")
    options = {**mark.kwargs, "threads": threads}
    for name in ("threads", "paddle", "jax"):
        if not isinstance(options.get(name, False), bool):
            raise WrongMark(f"@pytest.mark.ranks({name}={options[name]!r}): {name} is True or False")
    seconds = options.get("timeout", _SECONDS)
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 < seconds < math.inf:
        raise WrongMark(f"@pytest.mark.ranks(timeout={seconds!r}): timeout is a number of seconds above 0")
    backend = options.get("torch") or ""
    if backend not in ("", *_BACKENDS):
        raise WrongMark(f'@pytest.mark.ranks(torch={backend!r}): torch is "a2a" or "gloo"')
    asked = [name for name in ("torch", "paddle") if options.get(name)]
    if options.get("threads") and asked:
        raise WrongMark(f"@pytest.mark.ranks(threads=True, {asked[0]}=...): {asked[0]} has one rank in each process")
    hosts, network = _hosts_for(item, number)
    wish = Wish(
        number,
        options.get("threads", False),
        float(seconds),
        backend,
        options.get("paddle", False),
        options.get("jax", False),
        hosts,
        network,
    )
    if wish.threads and (wish.hosts > 1 or wish.jax):
        raise WrongMark("@pytest.mark.ranks(threads=True): ranks that are threads share one host and one JAX")
    return wish


def _kind_for(item: pytest.Item, mark: pytest.Mark) -> tuple[int, Any]:
    kinds = kinds_of(mark)
    if not kinds:
        raise WrongMark("@pytest.mark.ranks needs the number of ranks: @pytest.mark.ranks(4)")
    callspec = getattr(item, "callspec", None)
    number, threads = callspec.params["_a2a_ranks"] if len(kinds) > 1 and callspec else kinds[0]
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        raise WrongMark(f"@pytest.mark.ranks({number!r}): a number of ranks is an integer from 1 on")
    return number, threads


def _hosts_for(item: pytest.Item, ranks: int) -> tuple[int, bool]:
    mark = item.get_closest_marker("hosts")
    if mark is None:
        return 1, False
    count = mark.args[0] if len(mark.args) == 1 and mark.kwargs.keys() <= {"network"} else None
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= ranks:
        raise WrongMark(
            f"@pytest.mark.hosts{mark.args!r} needs one number of hosts from 1 to the number of ranks, {ranks}"
        )
    return count, bool(mark.kwargs.get("network"))
