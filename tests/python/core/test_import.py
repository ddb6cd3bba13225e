"""What ``import a2a`` gives, what it says beside a2a-sdk, ``a2a.config``, and the types of a user's program."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from commands import environment, needs

import a2a
from a2a import _core, _names

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


COMM = Path(_names.__file__).parents[1] / "a2a_comm"


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


THE_SAME = """
import sys, types
import a2a_comm as first
import a2a, a2a_comm.testing, a2a_comm.cli.info
from a2a_comm import moe
from a2a_comm.frameworks import numpy as arrays
import a2a.testing, a2a.moe, a2a.cli.info, a2a.frameworks.numpy
assert first is a2a_comm is a2a
assert a2a_comm.testing is a2a.testing and a2a_comm.cli.info is a2a.cli.info
assert moe is a2a.moe and arrays is a2a.frameworks.numpy
assert a2a.moe.__name__ == a2a.moe.__spec__.name == "a2a.moe"
assert all(hasattr(a2a_comm, name) for name in sys.modules["a2a._names"].__all__)
try:
    import a2a_comm.nothing
except ModuleNotFoundError as error:
    print(error)
"""


def test_the_package_has_a_second_name() -> None:
    done = python(THE_SAME, "-W", "error")
    assert (done.stdout, done.stderr) == ("No module named 'a2a_comm.nothing'\n", "")


@pytest.mark.parametrize("theirs", ["first", "last", "uninstalled"])
def test_the_second_name_works_beside_the_other_package(tmp_path: Path, theirs: str) -> None:
    overlay(tmp_path, theirs_last=theirs != "first")
    for package in (COMM, *Path(np.__file__).parents[1].glob("numpy*")):
        (tmp_path / package.name).symlink_to(package)
    path, client = str(tmp_path), "import a2a.client"
    if theirs == "uninstalled":
        (tmp_path / "a2a" / "__init__.py").unlink()
        client = "assert a2a.__file__ is None"
    done = python(THE_SAME + client, "-S", "-W", "error", path=path)
    assert (done.stdout, done.stderr) == ("No module named 'a2a_comm.nothing'\n", "")
    info = python("import sys; from a2a_comm.cli import main; sys.exit(main(['info']))", "-S", path=path)
    assert info.returncode == 0, info.stderr
    assert "a2a_comm alone is sure: the unrelated package a2a-sdk (Agent2Agent)" in info.stdout


def test_modules_run_by_the_second_name() -> None:
    for module, expected in (("a2a_comm.config", a2a.get_library_dir()), ("a2a_comm", f"a2a-comm {a2a.__version__}")):
        flag = "--libdir" if "config" in module else "--version"
        done = subprocess.run(
            [sys.executable, "-W", "error", "-m", module, flag], capture_output=True, text=True, check=False
        )
        assert (done.stdout.strip(), done.stderr) == (expected, "")


def test_a_strange_package_in_the_place_of_this_one(tmp_path: Path) -> None:
    (tmp_path / "a2a").mkdir()
    (tmp_path / "a2a" / "__init__.py").write_text("")
    (tmp_path / "a2a_comm").symlink_to(COMM)
    done = python("import a2a_comm", "-S", path=str(tmp_path))
    assert f"ImportError: a2a_comm: the module a2a that Python finds, {tmp_path}/a2a/__init__.py, is not" in done.stderr


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


@pytest.mark.full
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
