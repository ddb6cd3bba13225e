"""Where mkdocstrings finds the package: the sources laid out as they are installed, without an installation.

Adapters stand in adapters/<name>/ and are installed as a2a.<name>. The reference reads a copy that has them there."""

from __future__ import annotations

import runpy
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
    # Without overloads, because mkdocstrings shows nothing of a function that has nothing but overloads.
    generate = runpy.run_path(str(root / "src" / "pyx" / "generate.py"))
    (package / "_core.pyi").write_text(generate["stub"](generate["read_table"](), overloads=False), encoding="utf-8")
    config.plugins["mkdocstrings"].config.handlers["python"]["paths"] = [_folder.name]
    return config
