"""The programs of docs/frameworks/atb.md and docs/guide/quantized.md, and a2a/atb.h as other programs include it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import cmake_tools
import pytest

import a2a

DOCS = Path(__file__).parents[3] / "docs"
COMPILER = os.environ.get("CXX") or shutil.which("c++") or ""
pytestmark = pytest.mark.skipif(not DOCS.exists(), reason="no source tree beside the tests")
needs_compiler = pytest.mark.skipif(not COMPILER, reason="no C++ compiler")


def block(document: str, language: str) -> str:
    text = (DOCS / document).read_text(encoding="utf-8")
    (found,) = re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return str(found)


def test_python_of_atb(tmp_path: Path) -> None:
    script = tmp_path / "example.py"
    script.write_text(block("frameworks/atb.md", "python"), encoding="utf-8")
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_python_of_quantized(tmp_path: Path) -> None:
    script = tmp_path / "example.py"
    script.write_text(block("guide/quantized.md", "python"), encoding="utf-8")
    command = [sys.executable, "-m", "a2a.cli", "run", "-n", "3", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


MAIN = """
#include <sys/wait.h>
#include <unistd.h>
#include <cstdio>
int main() {
  const bool child = fork() == 0;
  std::vector<float> x{10, 11, 12}, y;
  if (child) x = {20, 21, 22};
  const atb::Status status = exchange(child ? 1 : 0, x, y);
  if (status != atb::NO_ERROR) std::fprintf(stderr, "%s\\n", atb::LastFailure().text.c_str());
  const std::vector<float> wanted = child ? std::vector<float>{11, 12, 21, 22} : std::vector<float>{10, 20};
  if (child) _exit(status != atb::NO_ERROR || y != wanted);
  int other = -1;
  wait(&other);
  return status != atb::NO_ERROR || y != wanted || other != 0;
}
"""


def compile_(source: Path, *options: str) -> None:
    command = [COMPILER, "-std=c++20", "-Wall", "-Wextra", "-Werror", f"-I{a2a.get_include()}", str(source), *options]
    cmake_tools.run(*command)


def ends_well(program: Path) -> None:
    environment = {**os.environ, "A2A_JOB": f"document-{os.getpid()}"}
    done = subprocess.run([str(program)], env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


@needs_compiler
def test_cpp_of_atb(tmp_path: Path) -> None:
    (tmp_path / "example.cc").write_text(block("frameworks/atb.md", "cpp") + MAIN, encoding="utf-8")
    printed = cmake_tools.run(sys.executable, "-m", "a2a.config", "--ldflags").split()
    compile_(tmp_path / "example.cc", "-o", str(tmp_path / "example"), "-la2a_atb", *printed)
    ends_well(tmp_path / "example")


CMAKE_PROJECT = """
cmake_minimum_required(VERSION 3.20...4.4)
project(example LANGUAGES CXX)
find_package(a2a CONFIG REQUIRED)
add_executable(example example.cc)
target_link_libraries(example PRIVATE a2a::atb)
"""


@pytest.mark.timeout(900)  # the second may have to build the library
@pytest.mark.skipif(bool(cmake_tools.MISSING), reason=f"not installed: {cmake_tools.MISSING}")
@pytest.mark.parametrize("of", ["wheel", "installed library"])
def test_cpp_of_atb_by_the_cmake_package(of: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    (tmp_path / "example.cc").write_text(block("frameworks/atb.md", "cpp") + MAIN, encoding="utf-8")
    (tmp_path / "CMakeLists.txt").write_text(CMAKE_PROJECT, encoding="utf-8")
    place = f"-Da2a_ROOT={a2a.get_cmake_dir()}"
    if of != "wheel":
        built, place = request.getfixturevalue("build_dir"), f"-DCMAKE_PREFIX_PATH={tmp_path / 'prefix'}"
        cmake_tools.run("cmake", "--install", str(built), "--prefix", str(tmp_path / "prefix"))
    build = tmp_path / "build"
    cmake_tools.run("cmake", "-S", str(tmp_path), "-B", str(build), "-G", "Ninja", place)
    cmake_tools.run("cmake", "--build", str(build))
    ends_well(build / "example")


# A stand-in for the official header: its guard, and names and values that a2a/atb.h uses.
ACL = """
#ifndef INC_EXTERNAL_ACL_ACL_BASE_H_
#define INC_EXTERNAL_ACL_ACL_BASE_H_
typedef void *aclrtStream;
typedef enum {
  ACL_DT_UNDEFINED = -1, ACL_FLOAT = 0, ACL_FLOAT16 = 1, ACL_INT8 = 2, ACL_INT32 = 3, ACL_UINT8 = 4, ACL_INT16 = 6,
  ACL_UINT16 = 7, ACL_UINT32 = 8, ACL_INT64 = 9, ACL_UINT64 = 10, ACL_DOUBLE = 11, ACL_BOOL = 12, ACL_BF16 = 27,
} aclDataType;
typedef enum { ACL_FORMAT_UNDEFINED = -1, ACL_FORMAT_NCHW = 0, ACL_FORMAT_NHWC = 1, ACL_FORMAT_ND = 2 } aclFormat;
static const int kOfficial = 1;
#endif
"""


@needs_compiler
@pytest.mark.parametrize(
    "includes",
    [
        "#include <a2a/atb.h>\nstatic const int kOfficial = 1;",
        "#include <acl/acl_base.h>\n#include <a2a/atb.h>",
        "#include <a2a/atb.h>\n#include <acl/acl_base.h>",
        '#include "elsewhere.h"\n#include <a2a/atb.h>',
    ],
    ids=["none", "before", "after", "under another name"],
)
def test_official_acl_headers_are_used_where_they_are(tmp_path: Path, includes: str) -> None:
    (tmp_path / "acl").mkdir()
    name = "elsewhere.h" if "elsewhere" in includes else "acl/acl_base.h"
    (tmp_path / name).write_text(ACL, encoding="utf-8")
    source = tmp_path / "program.cc"
    source.write_text(
        f"{includes}\nint main() {{ a2a::atb::TensorDesc desc; desc.dtype = ACL_BF16; return kOfficial - 1; }}\n",
        encoding="utf-8",
    )
    compile_(source, "-fsyntax-only", *([f"-I{tmp_path}"] if "elsewhere" in includes or "acl" in includes else []))
