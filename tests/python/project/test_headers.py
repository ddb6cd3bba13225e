"""The C++ headers: those that are installed stand alone, and no folder includes what is built on top of it."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

import a2a

INCLUDE = re.compile(r'^\s*#include "([^"]+)"', re.MULTILINE)
INSTALLED = sorted((Path(a2a.get_include()) / "a2a").rglob("*.h"))
ROOT = Path(__file__).parents[3]
SOURCES = ROOT / "src" / "cpp"
PYX = ROOT / "src" / "pyx"
EXTERN = re.compile(r'^\s*cdef extern from "([^"]+)"', re.MULTILINE)
OF_OTHERS = {"Python.h", "dlpack/dlpack.h"}

# From the bottom up. A folder includes itself and what stands before it.
LAYERS = [
    {"a2a"},
    {"runtime"},
    {"core/fold"},
    {"core/strided"},
    {"core/stages"},
    {"core/sharding"},
    {"core"},
    {"bootstrap"},
    {"bootstrap/tcp"},
    {"bootstrap/unix"},
    {"simulator"},
    {"transport/shm/memory"},
    {"transport/shm/copy"},
    {"transport/shm/protocol"},
    {"transport/shm/policy"},
    {"transport/shm/peers"},
    {"transport/shm/ways"},
    {"transport/shm/sinks"},
    {"transport/shm/messages"},
    {"transport/shm"},
    {"transport/hosts"},
    {"transport/ucx"},
    {"transport/tcp", "transport/mpi", "transport/device"},
    {"transport/nccl", "transport/hccl"},
    {"endpoint"},
    {"transport"},
]
LAYER = {folder: layer for layer, folders in enumerate(LAYERS) for folder in folders}


@pytest.mark.full
@pytest.mark.parametrize("header", INSTALLED, ids=lambda path: path.name)
def test_installed_header_compiles_alone(header: Path) -> None:
    compiler = shutil.which("c++") or pytest.skip("no C++ compiler")
    command = [compiler, "-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-x", "c++"]
    done = subprocess.run(
        [*command, "-include", str(header), "-I", a2a.get_include(), "/dev/null"],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr


def test_every_source_stands_in_a_known_folder() -> None:
    folders = {str(path.parent.relative_to(SOURCES)) for path in SOURCES.rglob("*.[hc]*")}
    assert folders == set(LAYER)


@pytest.mark.smoke
def test_no_include_points_upwards() -> None:
    upwards = []
    for path in sorted(SOURCES.rglob("*.[hc]*")):
        folder = str(path.parent.relative_to(SOURCES))
        for included in INCLUDE.findall(path.read_text()):
            target = str(Path(included).parent)
            if LAYER[target] > LAYER[folder] or (LAYER[target] == LAYER[folder] and target != folder):
                upwards.append(f"{path.relative_to(SOURCES)} includes {included}")
    assert upwards == []


def foreign_includes(folder: Path) -> list[str]:
    """Includes of headers that are neither installed, nor of the bindings, nor of the folder itself."""
    known = {str(path.relative_to(a2a.get_include())) for path in INSTALLED}
    known |= {str(path.relative_to(PYX)) for path in (PYX / "cpp").rglob("*.h")}
    foreign = []
    for path in sorted(folder.rglob("*")):
        if path.suffix not in {".h", ".cc", ".pxd", ".pxi", ".pyx"}:
            continue
        text = path.read_text()
        for included in [*INCLUDE.findall(text), *EXTERN.findall(text)]:
            if included not in known | OF_OTHERS and not (path.parent / included).is_file():
                foreign.append(f"{path.relative_to(ROOT)} includes {included}")
    return foreign


def test_bindings_include_only_what_is_installed() -> None:
    assert len(list((PYX / "cpp").rglob("*.h"))) > 10
    assert foreign_includes(PYX) == []


def test_atb_includes_only_what_is_installed() -> None:
    assert len(list((ROOT / "adapters" / "atb").rglob("*.h"))) > 5
    assert foreign_includes(ROOT / "adapters" / "atb") == []


def test_only_one_folder_of_the_bindings_knows_python() -> None:
    of_python = [
        f"{path.relative_to(PYX)} includes {included}"
        for path in sorted((PYX / "cpp").glob("*.h"))
        for included in re.findall(r'#include [<"]([^>"]+)', path.read_text())
        if included.startswith("cpp/python/") or included in {"Python.h", "frameobject.h", "structmember.h"}
    ]
    assert of_python == []


@pytest.mark.parametrize("folder", [PYX, ROOT / "adapters" / "atb" / "pyx"], ids=["core", "atb"])
def test_bindings_have_no_cpp_in_strings(folder: Path) -> None:
    written = re.compile(r'cdef extern from [^\n]*:\n\s*"""')
    found = [path.name for path in sorted(folder.iterdir()) if path.is_file() and written.search(path.read_text())]
    assert found == []
