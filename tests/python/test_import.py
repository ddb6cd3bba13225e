"""What ``import a2a`` gives, what it says beside a2a-sdk, ``a2a.config``, and the types of a user's program."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from commands import environment, needs

import a2a
from a2a import _core

PACKAGE = Path(a2a.__file__).parent


def python(code: str, *flags: str, path: str = "") -> subprocess.CompletedProcess[str]:
    env = environment(PYTHONPATH=path) if path else environment()
    return subprocess.run(
        [sys.executable, *flags, "-c", code], env=env, capture_output=True, text=True, timeout=60, check=False
    )


def test_import_loads_no_framework() -> None:
    done = python(
        "import a2a, sys; print(sorted({'torch', 'paddle', 'jax', 'multiprocessing', 'argparse'} & set(sys.modules)))"
    )
    assert done.stdout == "[]\n"


def test_everything_public_is_there() -> None:
    assert all(hasattr(a2a, name) for name in a2a.__all__)
    assert list(a2a.__all__) == sorted(a2a.__all__)
    assert issubclass(a2a.TimeoutError, TimeoutError) and issubclass(a2a.MismatchError, a2a.Error)


def test_config_prints_flags() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "a2a.config", "--cxxflags", "--ldflags", "--cmakedir"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stderr == ""
    assert done.stdout.split() == [
        "-std=c++20", f"-I{a2a.get_include()}", f"-L{a2a.get_library_dir()}", f"-Wl,-rpath,{a2a.get_library_dir()}",
        "-la2a", a2a.get_cmake_dir(),
    ]  # fmt: skip
    for path in (a2a.get_include(), a2a.get_library_dir(), a2a.get_cmake_dir()):
        assert Path(path).is_dir()
    assert a2a.get_include() == str(Path(_core.__file__).resolve().parent / "include")


def overlay(folder: Path, theirs_last: bool) -> Path:
    """This package with the files of a2a-sdk over it, or under it."""
    package = folder / "a2a"
    package.mkdir()
    for entry in [*PACKAGE.iterdir(), *Path(_core.__file__).parent.iterdir()]:
        if not (package / entry.name).exists():
            (package / entry.name).symlink_to(entry)
    (package / "client").mkdir()
    (package / "client" / "__init__.py").write_text("")
    if theirs_last:
        (package / "__init__.py").unlink()
        (package / "__init__.py").write_text('"""The A2A Python SDK."""\n')
    # `python -m a2a.cli` and imports below have to find the copied __init__, not ours behind a link.
    (package / "cli").unlink()
    (package / "cli").mkdir()
    for entry in (PACKAGE / "cli").glob("*.py"):
        (package / "cli" / entry.name).symlink_to(entry)
    return folder


def test_import_warns_of_the_other_package_with_this_name(tmp_path: Path) -> None:
    path = str(overlay(tmp_path, theirs_last=False))
    done = python("import a2a; print(a2a.__file__)", path=path)
    assert done.returncode == 0 and str(tmp_path) in done.stdout
    assert "RuntimeWarning: the unrelated package a2a-sdk (Agent2Agent) is or was installed" in done.stderr
    assert "<string>:1:" in done.stderr
    assert python("import a2a", "-W", "error").returncode == 0


@pytest.mark.parametrize("gone", [False, True], ids=["replaced", "uninstalled"])
def test_the_command_tells_when_the_other_package_replaced_this_one(tmp_path: Path, gone: bool) -> None:
    path = str(overlay(tmp_path, theirs_last=True))
    if gone:
        (tmp_path / "a2a" / "__init__.py").unlink()
        (tmp_path / "a2a" / "client" / "__init__.py").unlink()
    # Without site-packages, where the real package stands: it would be preferred to a folder without __init__.py.
    done = python("import sys; from a2a.cli import main; sys.exit(main(['info']))", "-S", path=path)
    assert done.returncode == 1
    assert done.stderr.startswith("a2a: the unrelated package a2a-sdk (Agent2Agent) is or was installed")


def test_looking_for_the_other_package_takes_no_time() -> None:
    done = python(
        "import time\nfrom a2a._neighbour import warn_of_sdk\nstarted = time.perf_counter()\n"
        "for _ in range(100): warn_of_sdk('/nowhere', '/usr')\nprint((time.perf_counter() - started) / 100)"
    )
    assert float(done.stdout) < 1e-3


TYPED_PROGRAM = """
import numpy as np
import a2a

def fn(comm: a2a.Communicator, scale: float, name: str) -> int:
    recv, counts = comm.exchange(np.zeros(comm.size), [1] * comm.size)
    work = comm.alltoall(recv, recv.copy(), async_op=True)
    if work is not None:
        work.wait(timeout=1.0)
    total: float = float(recv.sum()) + int(counts.sum())
    return int(total * scale)

if __name__ == "__main__":
    results: list[int] = a2a.spawn(fn, 2, 1.5, "x", threads=True)
    try:
        with a2a.init(timeout=1.0) as comm:
            comm.barrier()
    except a2a.Error as error:
        print(error, a2a.get_include(), results)
"""


def test_a_users_program_passes_mypy(tmp_path: Path) -> None:
    needs("mypy")
    (tmp_path / "good.py").write_text(TYPED_PROGRAM)
    (tmp_path / "bad.py").write_text(TYPED_PROGRAM.replace('1.5, "x"', '"x", 1.5'))

    def mypy(name: str) -> tuple[int, str]:
        command = [sys.executable, "-m", "mypy", "--strict", "--python-version", "3.10", "--cache-dir", "cache", name]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout

    assert mypy("good.py") == (0, "Success: no issues found in 1 source file\n")
    code, output = mypy("bad.py")
    assert code == 1 and 'Argument 1 to "spawn"' in output
