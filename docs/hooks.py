"""Where mkdocstrings finds the package: the sources laid out as they are installed, without an installation.

Adapters stand in adapters/<name>/ and are installed as a2a.<name>. The reference reads a copy that has them there."""

from __future__ import annotations

import ast
import shutil
import tempfile
from pathlib import Path
from typing import Any

from mkdocs.plugins import event_priority

_folder = tempfile.TemporaryDirectory(prefix="a2a-docs-")  # removed when the build ends


@event_priority(100)  # before mkdocstrings reads its configuration
def on_config(config: Any) -> Any:
    root = Path(config.config_file_path).parent
    package = Path(_folder.name) / "a2a"
    python_only = shutil.ignore_patterns("*.so", "__pycache__", "cpp", "include", "pyx")
    shutil.copytree(root / "python" / "a2a", package, ignore=python_only, dirs_exist_ok=True)
    shutil.copytree(root / "adapters", package, ignore=python_only, dirs_exist_ok=True)
    core = package / "_core.pyi"
    core.write_text(_last_overloads(core.read_text(encoding="utf-8")), encoding="utf-8")
    config.plugins["mkdocstrings"].config.handlers["python"]["paths"] = [_folder.name]
    return config


def _last_overloads(stub: str) -> str:
    """A stub with the last overload of each function, which has the docstring. mkdocstrings shows none of a function
    that has nothing but overloads."""
    dropped: set[int] = set()
    for node in ast.walk(ast.parse(stub)):
        if isinstance(node, ast.FunctionDef):
            overload = [one for one in node.decorator_list if isinstance(one, ast.Name) and one.id == "overload"]
            if overload and ast.get_docstring(node) is None:
                dropped |= {*range(overload[0].lineno, (node.end_lineno or 0) + 1)}
            dropped |= {one.lineno for one in overload}
    return "".join(line for at, line in enumerate(stub.splitlines(keepends=True), 1) if at not in dropped)
