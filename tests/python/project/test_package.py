"""What is installed: libraries, headers, the CMake package, types; and nothing of the machine that built it."""

import importlib.metadata
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest
from a2a.atb import _binding

import a2a
from a2a import _core

# From the compiled core, because an editable install keeps it apart from the Python files.
INSTALLED = Path(_core.__file__).parent
DISTRIBUTION = importlib.metadata.distribution("a2a-comm")
FILES = [Path(str(DISTRIBUTION.locate_file(file))) for file in DISTRIBUTION.files or []]

ALLOWED = re.compile(r"(liba2a|liba2a_atb|libstdc\+\+|libgcc_s|libc|libm|libpthread|ld-linux(-\w+)*)\.so(\.\d+)?")


def tool(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def needed(library: Path) -> list[str]:
    return re.findall(r"\(NEEDED\).*\[(.*)\]", tool("readelf", "-d", str(library)))


def test_libraries_need_nothing_but_the_system() -> None:
    libraries = [path for path in FILES if path.suffix == ".so"]
    assert {path.name.partition(".")[0] for path in libraries} == {"_core", "_binding", "liba2a", "liba2a_atb"}
    unexpected = {path.name: [name for name in needed(path) if not ALLOWED.fullmatch(name)] for path in libraries}
    assert unexpected == {path.name: [] for path in libraries}


def run_path(library: Path) -> list[str]:
    return re.findall(r"RUNPATH.*\[(.*)\]", tool("readelf", "-d", str(library)))


def test_modules_find_their_libraries() -> None:
    atb = Path(_binding.__file__)
    assert "liba2a.so" in needed(Path(_core.__file__)) and run_path(Path(_core.__file__)) == ["$ORIGIN/lib"]
    assert {"liba2a.so", "liba2a_atb.so"} <= set(needed(atb)) and run_path(atb) == ["$ORIGIN/../lib"]
    assert atb.parent == INSTALLED / "atb"


def test_core_has_nothing_of_atb() -> None:
    core, atb = (Path(a2a.get_library_dir()) / name for name in ("liba2a.so", "liba2a_atb.so"))
    assert "liba2a_atb.so" not in needed(core) + needed(Path(_core.__file__))
    assert "a2a::atb::" not in tool("nm", "-DC", str(core))
    assert "liba2a.so" in needed(atb) and run_path(atb) == ["$ORIGIN"]
    assert "a2a::atb::read_rank_table" in tool("nm", "-DC", "--defined-only", str(atb))


def test_import_loads_nothing_of_atb() -> None:
    loaded = "print(*[name for name in ('liba2a.so', 'liba2a_atb.so') if name in open('/proc/self/maps').read()])"
    code = f"import a2a, sys; print('a2a.atb' in sys.modules); {loaded}; import a2a.atb; {loaded}"
    assert tool(sys.executable, "-c", code).splitlines() == ["False", "liba2a.so", "liba2a.so liba2a_atb.so"]


def test_headers_library_and_cmake_package_are_where_the_package_says() -> None:
    headers = {path.name for path in (Path(a2a.get_include()) / "a2a").iterdir()}
    assert headers >= {"bootstrap.h", "communicator.h", "libraries.h", "plan.h", "types.h", "views.h", "work.h"}
    assert headers >= {"atb.h", "atb", "quantize.h"}
    assert {path.name for path in Path(a2a.get_library_dir()).iterdir()} == {"liba2a.so", "liba2a_atb.so"}
    assert (Path(a2a.get_cmake_dir()) / "a2aConfig.cmake").is_file()


def test_sources_of_the_library_are_not_installed() -> None:
    assert [path for path in FILES if path.suffix in {".cc", ".pyx", ".pxd", ".pxi"}] == []
    assert [
        path for path in FILES if path.suffix == ".h" and "include" not in path.relative_to(INSTALLED).parts[:1]
    ] == []


def test_types_are_installed() -> None:
    names = {path.name for path in FILES}
    assert {"py.typed", "_core.pyi", "_binding.pyi"} <= names


def test_version_is_one() -> None:
    assert a2a.__version__ == _core.core_version == DISTRIBUTION.version
    config = (Path(a2a.get_cmake_dir()) / "a2aConfigVersion.cmake").read_text(encoding="utf-8")
    numbers = re.match(r"\d+\.\d+\.\d+", a2a.__version__)
    assert numbers is not None
    assert f'set(PACKAGE_VERSION "{numbers[0]}")' in config


def test_entry_points() -> None:
    entries = {(entry.group, entry.name): entry.value for entry in DISTRIBUTION.entry_points}
    assert entries["console_scripts", "a2a"] == "a2a.cli:main"
    assert importlib.util.find_spec(entries["cmake.root", "a2a"]) is not None


def test_numpy_is_the_only_dependency() -> None:
    required = [line for line in DISTRIBUTION.requires or [] if "extra ==" not in line]
    assert [re.split(r"\W", line)[0] for line in required] == ["numpy"]


def test_import_brings_no_framework() -> None:
    code = "import a2a, sys; print([name for name in ('torch', 'paddle', 'jax', 'ml_dtypes') if name in sys.modules])"
    assert tool(sys.executable, "-c", code) == "[]\n"


def test_nothing_of_the_building_machine_is_installed() -> None:
    absolute_source = re.compile(rb"\0(/[\w./+-]+\.(?:h|cc|cpp|cxx|c|pyx|pxd|pxi))\0")
    for path in FILES:
        if INSTALLED not in path.parents or path.suffix == ".pyc":
            continue
        content = path.read_bytes()
        if path.suffix == ".so":
            assert absolute_source.findall(content) == [], path
        elif path.suffix in {".cmake", ".h"}:
            assert b"DLPACK_MAJOR_VERSION" not in content, f"{path} is a copy of dlpack.h"
            assert not re.search(rb"\"/(?!/)\w", content), path


def test_library_hides_what_is_not_public() -> None:
    exported = tool("nm", "-DC", "--defined-only", str(Path(a2a.get_library_dir()) / "liba2a.so"))
    assert "a2a::Plan::transpose" in exported
    assert re.findall(r"^\w+ \w (a2a::shm::.*)$", exported, re.MULTILINE) == []


PROGRAM = """
import numpy as np

import a2a


def rank_main(comm: a2a.Communicator, rows: int) -> float:
    send = np.ones((rows * comm.size, 4), dtype=np.float32)
    recv = np.empty_like(send)
    counts = [rows] * comm.size
    comm.alltoallv(send, counts, recv, counts)
    work = comm.alltoall(send, recv, async_op=True)
    if work is not None:
        work.wait(timeout=1.0)
    received, received_counts = comm.exchange(send, counts)
    plan: a2a.Plan = comm.plan_alltoallv(send, counts, recv, counts)
    plan.transpose().run(recv, send)
    group = comm.split(comm.rank % 2)
    try:
        comm.barrier(timeout=5)
    except (a2a.PeerLostError, a2a.TimeoutError) as error:
        print(error.args[0])
        comm = comm.shrink()
    return float(received.sum()) + int(received_counts.sum()) + (group.size if group else 0)


if __name__ == "__main__":
    print(sum(a2a.spawn(rank_main, 4, 2)))
    with a2a.init(timeout=10) as comm:
        print(comm.rank)
"""


@pytest.mark.skipif(importlib.util.find_spec("mypy") is None, reason="mypy is not installed")
def test_a_users_program_type_checks(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM, encoding="utf-8")
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), "program.py"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
