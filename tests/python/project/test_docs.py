"""The guide in docs/ against the code: variables, errors, calls, paths, links; its programs run and its site builds."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import command, environment

import a2a
from a2a import _variables, cli

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
pytestmark = pytest.mark.skipif(not DOCS.exists(), reason="no source tree beside the tests")

PAGES = sorted(DOCS.rglob("*.md"))
NOTES = [*sorted((ROOT / "benchmarks" / "notes").glob("*.md")), *sorted(ROOT.glob("*.md"))]
SHORT = [DOCS / "index.md", DOCS / "performance.md", *sorted((DOCS / "guide").glob("*.md"))]
SOURCES = [
    path
    for folder in ("src", "python", "adapters", "tests", "examples", "benchmarks", "cmake")
    for path in sorted((ROOT / folder).rglob("*"))
    if path.suffix in (".cc", ".h", ".py", ".pyi", ".pyx", ".pxi", ".pxd", ".txt", ".cmake", ".md")
    and "results" not in path.parts
]


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def without_code(text: str) -> str:
    return re.sub(r"^ *```.*?^ *```$", "", text, flags=re.DOTALL | re.MULTILINE)


# ---- what the guide says of the code ---------------------------------------------------------------------------------


def rows_of(page: str) -> list[list[str]]:
    lines = [line for line in read(DOCS / page).splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def test_the_table_of_variables_has_those_that_the_code_reads() -> None:
    """Each in one row, and no other. A2A_FAULT is read by builds that inject faults alone."""
    in_table = [name for row in rows_of("guide/variables.md") for name in re.findall(r"`(A2A_[A-Z_]+)`", row[0])]
    assert len(in_table) == len(set(in_table))
    read_by_code: set[str] = set()
    for path in SOURCES:
        if path.parts[len(ROOT.parts)] in ("src", "python", "adapters") and path.name != "_variables.py":
            read_by_code |= set(re.findall(r"\"(A2A_[A-Z0-9_]+)\"", read(path)))
    assert set(in_table) == read_by_code - {"A2A_FAULT", "A2A_VERSION"} == _variables.KNOWN - {"A2A_FAULT"}


def test_the_guide_names_the_variables_of_launchers() -> None:
    text = read(DOCS / "guide" / "variables.md")
    launchers = (
        "python/a2a/_launchers.py",
        "python/a2a/launch.py",
        "python/a2a/_places.py",
        "src/cpp/transport/mpi/library.cc",
    )
    wanted = {
        name
        for path in launchers
        for name in re.findall(r"\"([A-Z][A-Z0-9]*_[A-Z0-9_]+|RANK)\"", read(ROOT / path))
        if not name.startswith("A2A_")
    }
    assert len(wanted) > 20
    assert {name for name in wanted if f"`{name}`" not in text} == set()


def test_numbers_in_the_table_of_variables() -> None:
    """The defaults that the table gives as numbers, where the sources have them."""
    rows = {name: row for row in rows_of("guide/variables.md") for name in re.findall(r"`(A2A_[A-Z_]+)`", row[0])}
    choose = read(ROOT / "src/cpp/transport/shm/policy/choose.cc")
    assert "direct_min.value_or((machine.surroundings.oversubscribed() ? 16 : 8) * kKiB)" in choose
    assert rows["A2A_SHM_DIRECT_MIN"][1] == "8192; with more ranks than CPUs 16384"
    assert f"aggregate = {rows['A2A_AGGREGATE_MAX'][1]};" in read(ROOT / "src/cpp/transport/hosts/host_map.h")
    offset = rows["A2A_PORT_OFFSET"][1]
    assert f'"A2A_PORT_OFFSET", {offset},' in read(ROOT / "python/a2a/_places.py")
    assert "kSmallestSegment = size_t{16} << 20" in read(ROOT / "src/cpp/transport/shm/memory/arena.cc")
    assert str(16 << 20) in rows["A2A_SHM_SEGMENT"][2]
    nccl = re.findall(r"`(\S+)`", rows["A2A_NCCL_LIBRARY"][1])
    assert str(nccl).replace("'", '"')[1:-1] in read(ROOT / "src/cpp/transport/nccl/nccl_api.cc")


def test_every_error_has_a_row_and_a_section() -> None:
    errors = [kind for kind in vars(a2a).values() if isinstance(kind, type) and issubclass(kind, a2a.Error)]
    text = read(DOCS / "guide" / "errors.md")
    rows = {row[0].strip("`"): row for row in rows_of("guide/errors.md")}
    for kind in errors:
        if kind is a2a.Error:
            continue
        assert f"## {kind.__name__}\n" in text
        builtin = next(base for base in kind.__mro__ if base.__module__ == "builtins" and base is not Exception)
        assert builtin.__name__ in rows[kind.__name__][2]


@pytest.mark.smoke
def test_every_public_call_is_in_the_guide() -> None:
    guide = "".join(read(page) for page in SHORT)
    names = [name for name in dir(a2a.Communicator) if not name.startswith("_")]
    methods = [short if (short := name.removeprefix("plan_")) in names else name for name in names]
    assert [name for name in methods if not re.search(rf"\b{name}\b", guide)] == []
    assert [name for name in a2a.__all__ if not re.search(rf"\b{name}\b", guide + read(DOCS / "reference/a2a.md"))] == [
        "__version__"
    ]


def test_every_command_is_in_the_guide() -> None:
    text = read(DOCS / "guide" / "choose.md")
    commands = [path.stem for path in Path(cli.__file__).parent.glob("[a-z]*.py")]
    assert commands and [name for name in commands if f"`a2a {name}" not in text] == []


def test_the_messages_that_troubleshooting_quotes_are_those_of_the_code() -> None:
    """Up to the first word that changes from case to case."""
    code = "".join(read(path) for path in SOURCES if path.suffix != ".md" and "tests" not in path.parts)
    code = re.sub(r"\"\s*\n\s*f?\"", "", code)
    fixed = [
        " does not take part, its arguments were refused there: ",
        ", which still waits for ",
        " sends itself ",
        "an exchange converts nothing",
        " in the environment is ",
        "the environment has variables that a2a does not know",
        "ranks that meet over TCP need a common secret",
        "are on different hosts, and have no common secret",
        "ranks of a process group disagree",
        "does no firewall drop what they send?",
        "placed the ranks on several hosts",
        "no name for its job",
        "need job=",
        "the unrelated package a2a-sdk (Agent2Agent) is or was installed",
        "of this user namespace is also what users look like",
    ]
    assert [message for message in fixed if message not in code] == []


# ---- paths and links -------------------------------------------------------------------------------------------------


def slug(heading: str) -> str:
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading.replace("\\_", "_")).strip().lower())


def anchors(page: Path) -> set[str]:
    return {slug(heading) for heading in re.findall(r"^#+ (.*)$", without_code(read(page)), re.MULTILINE)}


def links(page: Path) -> Iterator[str]:
    yield from re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`]*`", "", without_code(read(page))))


@pytest.mark.parametrize("page", [*PAGES, *NOTES], ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    for link in links(page):
        if re.match(r"[a-z]+:", link):
            continue
        place, _, anchor = link.partition("#")
        target = (page.parent / place).resolve() if place else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link
        assert page not in PAGES or target.is_relative_to(DOCS), (
            f"{link} is not part of the site; name its path instead"
        )


def test_paths_that_pages_and_sources_name_exist() -> None:
    folders = "adapters|benchmarks|cmake|docs|examples|python|src|tests"
    missing = set()
    for page in [*PAGES, *NOTES]:
        for path in re.findall(rf"`((?:{folders})/[\w./-]+)`", read(page)):
            if not (ROOT / path).exists() and not path.startswith("tests/python/<"):
                missing.add((name_of(page), path))
    for source in SOURCES:
        for path in re.findall(r"\b((?:docs|benchmarks/notes)/[\w./-]+\.md)\b", read(source)):
            if not (ROOT / path).exists():
                missing.add((name_of(source), path))
    assert missing == set()


# ---- prose -----------------------------------------------------------------------------------------------------------


def sentences(text: str) -> Iterator[str]:
    """Those of paragraphs, list entries and cells. Code counts as one word."""
    text = re.sub(r"<!--.*?-->", "", without_code(text), flags=re.DOTALL)
    text = re.sub(r"^(    ?\S.*)$", lambda m: "" if m[1].startswith("    ") else m[1], text, flags=re.MULTILINE)
    text = re.sub(r"^\s*(?:[-*]|\d+\.) ", "\n\n", text, flags=re.MULTILINE)
    for block in re.split(r"\n\s*\n|^#.*$|^:::.*$| \| |^\||\|$", text, flags=re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\](?:\([^)]*\)|\[[^\]]*\])", r"\1", re.sub(r"`[^`]*`", "code", block))
        yield from re.split(r"(?<=[.!?])\s+", " ".join(plain.split()))


@pytest.mark.parametrize("page", [page for page in PAGES if ".zh." not in page.name], ids=name_of)
def test_sentences_are_short(page: Path) -> None:
    assert [sentence for sentence in sentences(read(page)) if len(sentence.split()) > 30] == []


@pytest.mark.parametrize("page", SHORT, ids=name_of)
def test_pages_of_the_guide_are_short(page: Path) -> None:
    assert len(read(page).splitlines()) <= 120


# ---- programs and the site -------------------------------------------------------------------------------------------


def programs() -> Iterator[object]:
    """Blocks of the language "python" are whole programs; parts of one are "py"."""
    for page in [*SHORT, DOCS / "frameworks" / "jax.md"]:
        for number, block in enumerate(re.findall(r"^```python\n(.*?)^```$", read(page), re.DOTALL | re.MULTILINE)):
            if "def test_" in block:
                continue  # tests/python/kit/test_guide.py runs them
            # Importing a framework takes each rank seconds.
            slow = pytest.mark.full if re.search("import (torch|paddle|jax)", block) else ()
            yield pytest.param(block, id=f"{page.stem}-{number}", marks=slow)


@pytest.mark.parametrize("block", list(programs()) if DOCS.exists() else ())
def test_program_runs(block: str, tmp_path: Path) -> None:
    for package in ("torch", "paddle", "jax"):
        if f"import {package}" in block and importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    script = tmp_path / "program.py"
    script.write_text(block, encoding="utf-8")
    alone = "a2a.spawn(" in block
    line = [sys.executable, str(script)] if alone else command("run", "-n", "3", str(script))
    done = subprocess.run(line, env=environment(), capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(importlib.util.find_spec("mkdocs") is None, reason="mkdocs is not installed")
@pytest.mark.skipif(importlib.util.find_spec("mkdocstrings_handlers") is None, reason="mkdocstrings is not installed")
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(build, cwd=ROOT, env=env, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    reference = read(tmp_path / "site" / "reference" / "a2a" / "index.html")
    assert 'id="a2a.Communicator.alltoallv"' in reference and 'id="a2a.Plan.transpose"' in reference
