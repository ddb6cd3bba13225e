"""Prints the place of this installation's C++ library: ``python -m a2a.config --cxxflags --ldflags``."""

from __future__ import annotations

import argparse

from ._paths import get_cmake_dir, get_include, get_library_dir


def main(argv: list[str] | None = None) -> int:
    answers = {
        "includedir": get_include(),
        "libdir": get_library_dir(),
        "cmakedir": get_cmake_dir(),
        "cxxflags": f"-std=c++20 -I{get_include()}",
        "ldflags": f"-L{get_library_dir()} -Wl,-rpath,{get_library_dir()} -la2a",
    }
    parser = argparse.ArgumentParser(prog="python -m a2a.config", description="Print where liba2a and its headers are.")
    for name, answer in answers.items():
        parser.add_argument(f"--{name}", dest="wanted", action="append_const", const=answer)
    wanted = parser.parse_args(argv).wanted
    if not wanted:
        parser.error("say what to print: " + " ".join(f"--{name}" for name in answers))
    print(" ".join(wanted))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
