"""The folders of the compiled core and the C++ library."""

from __future__ import annotations

from pathlib import Path

from . import _core


def _root() -> Path:
    # Derived from the compiled core: in an editable install the core is beside the library, and the Python files are
    # not.
    return Path(_core.__file__).resolve().parent


def get_include() -> str:
    """The directory to pass to the compiler with -I: it holds a2a/*.h."""
    return str(_root() / "include")


def get_library_dir() -> str:
    """The directory of liba2a.so and liba2a_atb.so, for -L and the run path."""
    return str(_root() / "lib")


def get_cmake_dir() -> str:
    """The directory of a2aConfig.cmake, for -Da2a_ROOT= or CMAKE_PREFIX_PATH."""
    return str(_root() / "share" / "cmake" / "a2a")
