"""Virtual environments of the peers and the compiled helpers, made on first use and kept in a cache directory."""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
TORCH = "torch==2.13.0"


def cache_directory() -> Path:
    chosen = os.environ.get("A2A_BENCH_CACHE")
    return Path(chosen) if chosen else Path.home() / ".cache" / "a2a-bench"


def environment(cache: Path, name: str, requirements: Sequence[str]) -> Path:
    """The Python of a virtual environment that holds ``requirements`` and this NumPy. A complete one is reused."""
    wanted = "\n".join([*requirements, f"numpy=={np.__version__}"])
    root = cache / f"{name}-{platform.machine()}-py{sys.version_info.major}.{sys.version_info.minor}"
    python, complete = root / "bin" / "python", root / "complete.txt"
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / f"{root.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # Two runs at once must not build the same environment.
        if complete.is_file() and complete.read_text() == wanted:
            return python
        print(f"setting up {root} with {', '.join(wanted.splitlines())}", flush=True)
        shutil.rmtree(root, ignore_errors=True)
        _checked([sys.executable, "-m", "venv", str(root)])
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        _checked([*pip, *wanted.splitlines()])
        complete.write_text(wanted)
    return python


def torch_environment(cache: Path) -> Path:
    """This interpreter if it has Torch, otherwise one of its own."""
    if importlib.util.find_spec("torch"):
        return Path(sys.executable)
    return environment(cache, "gloo", [TORCH])


def compiled(cache: Path, source: str, *, library: bool) -> Path:
    """A C++ file of this directory, built by the system's compiler ($CXX or c++) for this machine."""
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    if not compiler:
        raise FileNotFoundError("no C++ compiler found: set CXX or install g++")
    text = (HERE / source).read_bytes() + (HERE / "barrier.h").read_bytes() + platform.processor().encode()
    stem = f"{Path(source).stem}-{hashlib.sha256(text + compiler.encode()).hexdigest()[:12]}"
    target = cache / (f"lib{stem}.so" if library else stem)
    if not target.is_file():
        cache.mkdir(parents=True, exist_ok=True)
        unfinished = target.with_name(f"{target.name}.{os.getpid()}")
        kind = ["-shared", "-fPIC"] if library else ["-march=native"]
        flags = ["-std=c++20", "-O3", *kind, str(HERE / source), "-o", str(unfinished)]
        _checked([compiler, *flags])
        unfinished.rename(target)
    return target


def _checked(command: list[str]) -> None:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed with exit status {done.returncode}:\n{done.stdout[-2000:]}")
