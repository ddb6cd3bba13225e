"""The forms in which torch.distributed.ProcessGroup's methods may be called: with lists of tensors and options, as
torch.distributed's own functions do, or with a tensor, the operation, the root and the timeout."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from torch import Tensor
from torch._C import _distributed_c10d as _c10d

__all__ = ["Forms"]

_OPERATIONS = (_c10d.ReduceOp, _c10d.ReduceOp.RedOpType)
_IN_OPTIONS = {"op": "reduceOp", "root": "rootRank", "timeout": "timeout"}
_DEFAULTS: dict[str, Any] = {"op": None, "timeout": None, "opts": None}


class Forms:
    """The forms of one method. The first one is that in which the method's own code gets its arguments, with options
    always. Each is the names of the parameters, with a "*" for a list of tensors and "**" for a list of lists."""

    def __init__(self, options: Any, *forms: str) -> None:
        self.options = options
        self.lists = forms[0].startswith("*")
        self._forms = [_parameters(form) for form in forms]
        self._first = self._forms[0]

    def arranged(self, name: str, given: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...]:
        """Return the arguments in the first form. Raises TypeError if they have none of the forms."""
        for form in self._forms:
            found = self._bound(form, given, named)
            if found is not None:
                return self._in_first_form(form, found)
        shown = "\n".join(f"    {name}({', '.join(form)})" for form in self._forms)
        kinds = [type(one).__name__ for one in given] + [f"{key}={type(one).__name__}" for key, one in named.items()]
        raise TypeError(f"{name}(): incompatible function arguments: {', '.join(kinds)}. It may be called as\n{shown}")

    def _bound(self, form: dict[str, int], given: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any] | None:
        if len(given) > len(form):
            return None
        found = dict(zip(form, given, strict=False))
        if found.keys() & named.keys() or not named.keys() <= form.keys():
            return None
        found |= named
        for name, depth in form.items():
            if name not in found:
                if name not in _DEFAULTS:
                    return None
                found[name] = _DEFAULTS[name]
            elif not self._fits(name, depth, found[name]):
                return None
        return found

    def _fits(self, name: str, depth: int, one: Any) -> bool:
        if name == "opts":
            return isinstance(one, self.options)
        if name == "op":
            return isinstance(one, _OPERATIONS)
        if name == "timeout":
            return one is None or isinstance(one, timedelta)
        if name in _NUMBERS:
            return hasattr(one, "__index__") and not isinstance(one, Tensor)
        if name.endswith("sizes"):
            return isinstance(one, (list, tuple))
        return _is_nested(one, depth)

    def _in_first_form(self, form: dict[str, int], found: dict[str, Any]) -> tuple[Any, ...]:
        if form is self._first and (found.get("opts") is not None or self.options is None):
            return tuple(_listed(one) for one in found.values())
        opts = self.options()
        for name, attribute in _IN_OPTIONS.items():
            if found.get(name) is not None:
                setattr(opts, attribute, found[name])
        rest = [_listed(one) for name, one in found.items() if name not in _IN_OPTIONS and name != "opts"]
        wanted = [depth for name, depth in self._first.items() if name != "opts"]
        depths = [depth for name, depth in form.items() if name not in _IN_OPTIONS and name != "opts"]
        return *([one] if more > depth else one for one, more, depth in zip(rest, wanted, depths, strict=True)), opts


_NUMBERS = ("root", "dstRank", "srcRank", "tag")


def _parameters(form: str) -> dict[str, int]:
    """Return the names of the parameters, and how deep the lists of tensors are."""
    return {word.lstrip("*"): word.count("*") for word in form.split()}


def _is_nested(one: Any, depth: int) -> bool:
    if depth == 0:
        return isinstance(one, Tensor)
    return isinstance(one, (list, tuple)) and all(_is_nested(each, depth - 1) for each in one)


def _listed(one: Any) -> Any:
    """Return a sequence as a list, as C++ hands it on."""
    return [_listed(each) for each in one] if isinstance(one, (list, tuple)) else one
