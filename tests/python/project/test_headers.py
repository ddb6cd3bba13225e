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

# From the bottom up. A folder includes itself and what stands before it.
LAYERS = [
    {"a2a"},
    {"runtime"},
    {"core/fold"},
    {"core/strided"},
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
    {"transport/shm/messages"},
    {"transport/shm"},
    {"transport/hosts"},
    {"transport/tcp", "transport/mpi", "transport/device"},
    {"transport/nccl", "transport/hccl"},
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


def test_no_include_points_upwards() -> None:
    upwards = []
    for path in sorted(SOURCES.rglob("*.[hc]*")):
        folder = str(path.parent.relative_to(SOURCES))
        for included in INCLUDE.findall(path.read_text()):
            target = str(Path(included).parent)
            if LAYER[target] > LAYER[folder] or (LAYER[target] == LAYER[folder] and target != folder):
                upwards.append(f"{path.relative_to(SOURCES)} includes {included}")
    assert upwards == []


def test_atb_includes_only_what_is_installed() -> None:
    installed = {str(path.relative_to(a2a.get_include())) for path in INSTALLED}
    of_atb = [path for path in (ROOT / "adapters" / "atb").rglob("*") if path.suffix in {".h", ".cc", ".pxd", ".pyx"}]
    foreign = []
    for path in sorted([*of_atb, ROOT / "src" / "pyx" / "a2a.pxd"]):  # which its binding uses
        for included in INCLUDE.findall(path.read_text()):
            if included not in installed and not (path.parent / included).is_file():
                foreign.append(f"{path.relative_to(ROOT)} includes {included}")
    assert len(of_atb) > 15
    assert foreign == []
