"""What a release is made of: one version everywhere, links that work elsewhere, files that workflows name, and what
whoever has no compiler is told."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import cmake_tools
import pytest
from commands import needs

ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.skipif(not (ROOT / ".github").exists(), reason="no source tree beside the tests")


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def found(pattern: str, text: str) -> str:
    match = re.search(pattern, text, re.MULTILINE)
    assert match is not None, pattern
    return match[1]


def version() -> str:
    return found(r'^version = "(.*)"$', read("pyproject.toml"))


def test_the_version_is_the_same_everywhere() -> None:
    assert found(r"^version: (.*)$", read("CITATION.cff")) == version()
    assert found(r"^## \[(\d.*?)\]", read("CHANGELOG.md")) == version()
    example = read("examples/cpp_embedding/CMakeLists.txt")
    assert found(r"find_package\(a2a (\S+) ", example) == version().rpartition(".")[0]


def test_the_changelog_is_sorted() -> None:
    text = read("CHANGELOG.md")
    released = text[text.index(f"## [{version()}] - ") : text.index("## [0.1.0]")]
    assert re.findall(r"^### (.*)$", released, re.MULTILINE) == ["Added", "Changed", "Fixed"]


def test_every_python_is_named_built_and_tested() -> None:
    project = read("pyproject.toml")
    named = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', project)
    built = re.findall(r'"cp3(\d+)-\*"', project)
    tested = re.findall(r'"(3\.\d+)"', found(r"^ +python: \[(.*)\]$", read(".github/workflows/ci.yml")))
    assert named == [f"3.{minor}" for minor in built] == tested
    assert named[0] == found(r'requires-python = ">=(.*)"', project)


def test_wheels_are_tested_by_files_that_exist() -> None:
    paths = re.findall(r"tests/python/\S+\.py", found(r'test-command = """([^"]*)"""', read("pyproject.toml")))
    assert len(paths) > 3
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_workflows_and_forms_are_yaml() -> None:
    needs("yaml")
    import yaml

    files = [*(ROOT / ".github").rglob("*.yml"), ROOT / "CITATION.cff"]
    assert len(files) >= 6
    for file in files:
        assert isinstance(yaml.safe_load(file.read_text(encoding="utf-8")), dict), file
    jobs = yaml.safe_load(read(".github/workflows/release.yml"))["jobs"]
    assert jobs["publish"]["permissions"] == {"id-token": "write"}
    assert set(jobs["publish"]["needs"]) == {"sdist", "wheels", "install"}


# ---- what .github/published.py makes of the sources ------------------------------------------------------------------

ADDRESS = "https://forge.example/someone/a2a"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of what it reads, with empty files where README.md links to."""
    for name in (".github/published.py", "README.md", "pyproject.toml", "CHANGELOG.md", "CITATION.cff"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", read("README.md")):
        source, copy = ROOT / target, tmp_path / target
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.mkdir(exist_ok=True) if source.is_dir() else copy.touch()
    return tmp_path


def publish(checkout: Path, ref: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(checkout / ".github" / "published.py"), ADDRESS, ref]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_published_links_are_absolute(checkout: Path) -> None:
    done = publish(checkout, f"v{version()}")
    assert done.returncode == 0, done.stderr
    text = (checkout / "README.md").read_text(encoding="utf-8")
    assert re.findall(r"\]\((?!https?:|#)[^)]*\)", text) == []
    assert f"({ADDRESS}/blob/v{version()}/CONTRIBUTING.md)" in text
    assert f"({ADDRESS}/raw/v{version()}/docs/images/" in text
    project = (checkout / "pyproject.toml").read_text(encoding="utf-8")
    table = project[project.index("[project.urls]\n") : project.index("[project.optional-dependencies]")]
    assert f'Homepage = "{ADDRESS}"\n' in table and f'Changelog = "{ADDRESS}/blob/v{version()}/CHANGELOG.md"\n' in table
    assert ADDRESS not in project.replace(table, "")


def test_a_tag_of_another_version_is_refused(checkout: Path) -> None:
    done = publish(checkout, "v9.9.9")
    assert done.returncode == 1
    assert done.stderr == f"the tag is v9.9.9, but pyproject.toml has version {version()}\n"


def test_a_version_without_a_date_is_refused(checkout: Path) -> None:
    changes = checkout / "CHANGELOG.md"
    text = changes.read_text(encoding="utf-8")
    changes.write_text(re.sub(rf"## \[{re.escape(version())}\] - .*", "", text), encoding="utf-8")
    done = publish(checkout, f"v{version()}")
    assert done.returncode == 1 and f"CHANGELOG.md has no '## [{version()}] - DATE'" in done.stderr


def test_a_link_that_leads_nowhere_is_refused(checkout: Path) -> None:
    (checkout / "CONTRIBUTING.md").unlink()
    done = publish(checkout, f"v{version()}")
    assert done.returncode == 1 and "README.md links to CONTRIBUTING.md, which is not there" in done.stderr


# ---- without a compiler ----------------------------------------------------------------------------------------------

INSTALL = "Install GCC 11 or newer, or Clang 16 or newer (Debian, Ubuntu: apt install g++; "


def configure(build: Path, *options: str, **variables: str) -> str:
    cmake, ninja = (shutil.which(tool, path=cmake_tools.PATH) for tool in ("cmake", "ninja"))
    assert cmake is not None and ninja is not None
    command = [cmake, "-S", str(ROOT), "-B", str(build), "-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}", *options]
    env = {name: value for name, value in os.environ.items() if name not in ("CXX", "CXXFLAGS")} | variables
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 1
    return done.stderr


@pytest.mark.skipif(bool(cmake_tools.MISSING), reason=f"not installed: {cmake_tools.MISSING}")
def test_without_a_compiler_one_line_says_what_to_install(tmp_path: Path) -> None:
    python = str(Path(sys.executable).parent)  # where a script that is called cmake finds its interpreter
    said = configure(tmp_path / "build", "-DCMAKE_FIND_USE_CMAKE_SYSTEM_PATH=OFF", PATH=python)
    lines = [line for line in said.splitlines() if "compiler" in line and ".cmake" not in line]
    assert len(lines) == 1
    assert lines[0].strip().startswith(f"a2a is built from C++20, and there is no C++ compiler. {INSTALL}")


@pytest.mark.skipif(bool(cmake_tools.MISSING), reason=f"not installed: {cmake_tools.MISSING}")
def test_a_compiler_that_is_too_old(tmp_path: Path) -> None:
    pretended = ("ID=GNU", "VERSION=10.2.1", "FORCED=ON")
    said = configure(tmp_path / "build", *(f"-DCMAKE_CXX_COMPILER_{fact}" for fact in pretended))
    assert "is GNU 10.2.1. " + INSTALL in said
