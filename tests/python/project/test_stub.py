"""The stub of the compiled core against the module: the same names, arguments and docstrings."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from a2a import _core

STUB = ast.parse((Path(_core.__file__).parent / "_core.pyi").read_text(encoding="utf-8"))
Definition = ast.FunctionDef | ast.ClassDef


def definitions(body: list[ast.stmt], scope: Any, prefix: str = "") -> Iterator[tuple[str, Definition, Any]]:
    """Yield each public class and function with its object in the module. Of overloads the last one has the docstring;
    the others are left out. Protocols are for annotations only."""
    for node in body:
        if not isinstance(node, Definition) or node.name.startswith("_") or node.name.startswith("Supports"):
            continue
        decorators = [ast.unparse(one) for one in node.decorator_list]
        if ("overload" in decorators and ast.get_docstring(node) is None) or f"{node.name}.setter" in decorators:
            continue
        found = getattr(scope, node.name, None)
        yield prefix + node.name, node, found
        if isinstance(node, ast.ClassDef):
            yield from definitions(node.body, found, f"{prefix}{node.name}.")


DEFINITIONS = {name: (node, found) for name, node, found in definitions(STUB.body, _core)}


def test_the_module_has_what_the_stub_has() -> None:
    assert [name for name, (_, found) in DEFINITIONS.items() if found is None] == []


def test_docstrings_are_the_same() -> None:
    """Members that Cython reads itself have none in the module."""
    differ = {
        name: (ast.get_docstring(node), inspect.getdoc(found))
        for name, (node, found) in DEFINITIONS.items()
        if not inspect.isgetsetdescriptor(found) or inspect.getdoc(found) is not None
    }
    assert {name: both for name, both in differ.items() if both[0] != both[1]} == {}


def arguments(given: ast.arguments) -> list[str]:
    more = [one.arg for one in (given.vararg, given.kwarg) if one]
    return [one.arg for one in (*given.posonlyargs, *given.args)] + more + [one.arg for one in given.kwonlyargs]


def test_arguments_are_the_same() -> None:
    differ = {}
    for name, (node, found) in DEFINITIONS.items():
        if isinstance(node, ast.FunctionDef) and callable(found):
            inside, outside = list(inspect.signature(found).parameters), arguments(node.args)
            if inside != outside:
                differ[name] = (inside, outside)
    assert differ == {}


@pytest.mark.parametrize("name", ["scan", "alltoallv", "reduce"])
def test_a_collective_has_a_plan_and_three_overloads(name: str) -> None:
    (communicator,) = (node for node in STUB.body if isinstance(node, ast.ClassDef) and node.name == "Communicator")
    methods = [node for node in communicator.body if isinstance(node, ast.FunctionDef)]
    returned = [ast.unparse(node.returns) for node in methods if node.name == name and node.returns]
    assert returned == ["None", "Work", "Work | None"]
    own = arguments(DEFINITIONS[f"Communicator.{name}"][0].args)  # type: ignore[union-attr]
    planned = arguments(DEFINITIONS[f"Communicator.plan_{name}"][0].args)  # type: ignore[union-attr]
    assert [one for one in own if one not in ("async_op", "stream", "timeout")] == planned
