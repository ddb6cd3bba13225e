"""The doubles in tests/fakes declare the vendors' interfaces as the vendors' own headers do.

The headers are nowhere in this repository. They are found in installed packages, or in a directory that the environment
names: A2A_ASCEND_INCLUDE (torch_npu), A2A_NCCL_WHEEL (nvidia-nccl), A2A_CUDA_INCLUDE (nvidia-cuda-runtime). The extra
`test` brings NVIDIA's, of whatever version goes with the installed Torch: what is newer than that is not compared.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Set
from pathlib import Path

import pytest
from vendor_files import directory_of, nccl_version

FAKES = Path(__file__).parents[2] / "fakes"
COMPILER = shutil.which(os.environ.get("CXX", "c++"))

pytestmark = [
    pytest.mark.skipif(not FAKES.exists(), reason="no source tree beside the tests"),
    pytest.mark.skipif(COMPILER is None, reason="no C++ compiler"),
]


def without_comments(header: str) -> str:
    return re.sub(r"//[^\n]*|/\*.*?\*/", "", (FAKES / header).read_text(), flags=re.DOTALL)


def functions(header: str) -> list[str]:
    return re.findall(r"^A2A_FAKE_API\s[^;(]*?\b(\w+)\(", without_comments(header), flags=re.MULTILINE)


def declarations(header: str, without: Set[str]) -> str:
    found = re.findall(r"^(A2A_FAKE_API\s[^;(]*?\b(\w+)\([^;]*;)", without_comments(header), flags=re.MULTILINE)
    return "\n".join(text for text, name in found if name not in without)


def values(header: str) -> list[str]:
    """Enumerators and constants."""
    text = without_comments(header)
    bodies = re.findall(r"enum\s*\w*\s*\{(.*?)\}", text, flags=re.DOTALL)
    names = [name for body in bodies for name in re.findall(r"^\s*(\w+)", body, flags=re.MULTILINE)]
    return names + re.findall(r"^(?:static )?const \w+ (\w+) =", text, flags=re.MULTILINE)


def newer(header: str, version: int) -> set[str]:
    """What the double has and that version of the vendor's has not: the comments behind it say since when."""
    declared = r"(\w+)(?:\([^;]*\)| = [^,;\n]+)?[;,]\s*// (\d+)\.(\d+)(?:\.(\d+))?$"
    found = re.findall(declared, (FAKES / header).read_text(), flags=re.MULTILINE)
    return {
        name for name, major, minor, patch in found if version < 10000 * int(major) + 100 * int(minor) + int(patch or 0)
    }


def structs(header: str) -> list[tuple[str, list[str]]]:
    """Each struct's name and fields."""
    found = re.findall(r"typedef struct\s*\w*\s*\{(.*?)\}\s*(\w+);", without_comments(header), flags=re.DOTALL)
    return [(name, re.findall(r"(\w+)(?:\[\w+\])?;", body)) for body, name in found]


def same_struct(name: str, fields: list[str], without: Set[str]) -> list[str]:
    """A struct grows at its end, so that an older one ends where the first field begins that it is without."""
    lines = [f"SAME(alignof(fake::{name}), alignof(::{name}));"]
    for field in fields:
        if field in without:
            end, unit = f"offsetof(fake::{name}, {field})", f"alignof(::{name})"
            return [*lines, f"SAME(({end} + {unit} - 1) / {unit} * {unit}, sizeof(::{name}));"]
        lines.append(f"SAME(offsetof(fake::{name}, {field}), offsetof(::{name}, {field}));")
        lines.append(f"SAME(sizeof(fake::{name}::{field}), sizeof(::{name}::{field}));")
    return [*lines, f"SAME(sizeof(fake::{name}), sizeof(::{name}));"]


def check(
    tmp_path: Path,
    includes: list[Path],
    vendor: list[str],
    types: list[str],
    declared: list[str],
    without: Set[str] = frozenset(),
) -> None:
    """Compiles what has to hold, but for the names that the vendor's version is without: values, sizes, offsets, and
    the type of every function."""
    names = [name for header in types for name in values(header) if name not in without]
    lines = [
        "#include <cstddef>",
        "#include <cstdint>",
        "#include <type_traits>",
        *(f"#include <{header}>" for header in vendor),
        # Some of the vendor's constants are macros, which would change the double's header.
        *(f"constexpr long long vendor_{name} = static_cast<long long>({name});\n#undef {name}" for name in names),
        # The double's types have a namespace of their own, its functions are declared over the vendor's types.
        *(f'namespace fake {{\n#include "{header}"\n}}' for header in types),
        "#define A2A_FAKE_API",
        *(f"namespace declared {{\n{declarations(header, without)}\n}}" for header in declared),
        "#define SAME(a, b) static_assert(static_cast<long long>(a) == static_cast<long long>(b), #a)",
    ]
    lines += [f"SAME(fake::{name}, vendor_{name});" for name in names]
    for name, fields in (struct for header in types for struct in structs(header)):
        lines += same_struct(name, fields, without)
    for name in (name for header in declared for name in functions(header) if name not in without):
        lines.append(f'static_assert(std::is_same_v<decltype(&::{name}), decltype(&declared::{name})>, "{name}");')
    asserts = sum(line.startswith(("SAME", "static_assert")) for line in lines)
    assert asserts > 50, "the headers of the double were not understood"
    source = tmp_path / "abi.cc"
    source.write_text("\n".join(lines) + "\n")
    flags = [f"-I{FAKES}", *(f"-isystem{directory}" for directory in includes)]
    command = [str(COMPILER), "-std=c++20", "-fsyntax-only", *flags, str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    errors = [line for line in done.stderr.splitlines() if "error" in line]
    assert done.returncode == 0, "\n".join(errors[:50])


def test_ascend(tmp_path: Path) -> None:
    hccl = "third_party/hccl/inc/hccl/hccl.h"  # the name that it includes its own parts by
    includes = [directory_of(name, "A2A_ASCEND_INCLUDE", "torch_npu") for name in ("acl/acl_rt.h", hccl)]
    parts = ["acl", "hccl"]
    types = [f"ascend/{part}_types.h" for part in parts]
    check(tmp_path, includes, ["acl/acl.h", hccl], types, [f"ascend/{part}_functions.h" for part in parts])


@pytest.fixture
def runtime_stub(tmp_path: Path) -> Path:
    """What nccl.h includes of the CUDA runtime: two handles, and whether there is bfloat16, which versions before 2.24
    ask. Its own headers are not needed for that."""
    stub = tmp_path / "stub"
    stub.mkdir()
    (stub / "cuda_runtime.h").write_text(
        "#pragma once\n#define __CUDA_BF16_TYPES_EXIST__ 1\n"
        "typedef struct CUstream_st* cudaStream_t;\ntypedef struct CUevent_st* cudaEvent_t;\n"
    )
    (stub / "cuda_fp16.h").write_text("")
    return stub


def test_nccl(tmp_path: Path, runtime_stub: Path) -> None:
    include = directory_of("nccl.h", "A2A_NCCL_WHEEL", "nvidia.nccl")
    types, declared = "nvidia/nccl_types.h", "nvidia/nccl_functions.h"
    version = nccl_version(include / "nccl.h")
    without = newer(types, version) | newer(declared, version)
    check(tmp_path, [runtime_stub, include], ["nccl.h"], [types], [declared], without)


def test_cuda(tmp_path: Path) -> None:
    include = directory_of("cuda.h", "A2A_CUDA_INCLUDE", "nvidia")
    check(tmp_path, [include], ["cuda.h"], ["nvidia/cuda_types.h"], ["nvidia/cuda_functions.h"])


def test_nccl_symbols() -> None:
    """The vendor's library, which needs no GPU to be loaded, has every function of the double."""
    library = directory_of("libnccl.so.2", "A2A_NCCL_WHEEL", "nvidia.nccl") / "libnccl.so.2"
    program = (
        "import ctypes, sys\n"
        "library = ctypes.CDLL(sys.argv[1])\n"
        "version = ctypes.c_int()\n"
        "assert library.ncclGetVersion(ctypes.byref(version)) == 0\n"
        "print(version.value, *(name for name in sys.argv[2:] if not hasattr(library, name)))\n"
    )
    # A process of its own, so that this one keeps no such library.
    command = [sys.executable, "-c", program, str(library), *functions("nvidia/nccl_functions.h")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stderr
    version, *missing = done.stdout.split()
    assert set(missing) == newer("nvidia/nccl_functions.h", int(version)), version


ALIKE = """
template <class A, class B>
constexpr bool alike() {
  constexpr bool pointers = std::is_pointer_v<A> == std::is_pointer_v<B>;
  return sizeof(A) == sizeof(B) && alignof(A) == alignof(B) && std::is_class_v<A> == std::is_class_v<B> && pointers;
}
template <class R, class... P, class S, class... Q>
constexpr bool alike(R (*)(P...), S (*)(Q...)) {
  if constexpr (sizeof...(P) == sizeof...(Q)) return alike<R, S>() && (alike<P, Q>() && ...);
  return false;
}
"""


@pytest.mark.parametrize(
    ("table", "members", "header"),
    [("nccl_api", "a2a::nccl::Api", "nccl"), ("cuda_driver", "a2a::nccl::CudaDriver", "cuda")],
)
def test_own_declarations(tmp_path: Path, table: str, members: str, header: str) -> None:
    """What a2a declares itself, to find it at run time, is passed alike: a2a's reading against the double's."""
    sources = FAKES.parents[1] / "src" / "cpp"
    code = [(sources / "transport" / "nccl" / f"{table}{suffix}").read_text() for suffix in (".cc", ".h")]
    found = re.findall(r'\.(?:require|find)\("(\w+)", &\w+\.(\w+)\)', code[0])
    assert len(found) > 15 and {member for _, member in found} == set(re.findall(r"\(\*(\w+)\)\(", code[1]))
    lines = [
        f'#include "transport/nccl/{table}.h"',
        "#include <cstdint>\n#include <type_traits>",
        f'#define A2A_FAKE_API\nnamespace fake {{\n#include "nvidia/{header}_functions.h"\n}}',
        ALIKE,
        *(f'static_assert(alike(decltype({members}::{own}){{}}, &fake::{name}), "{name}");' for name, own in found),
    ]
    if header == "nccl":
        own_names = {name.replace("_", ""): name for name in re.findall(r"\w+", code[1])}
        fields = next(fields for name, fields in structs("nvidia/nccl_types.h") if name == "ncclConfig_t")
        offset = "offsetof({}, {})".format
        for field in fields:
            own = offset("a2a::nccl::Config", own_names[field.lower()])
            lines.append(f'static_assert({own} == {offset("fake::ncclConfig_t", field)}, "{field}");')
        names = {"Result::success": "Success", "Result::in_progress": "InProgress"}
        for enum in ("Type", "ReduceOp"):
            body = re.search(rf"enum class {enum} : int32_t {{(.*?)}};", code[1], flags=re.DOTALL)
            assert body is not None
            names |= {f"{enum}::{name}": name.capitalize() for name in re.findall(r"(\w+) = ", body[1])}
        assert len(names) == 19
        for own, name in names.items():
            lines.append(f'static_assert(static_cast<int>(a2a::nccl::{own}) == fake::nccl{name}, "{name}");')
    source = tmp_path / "own.cc"
    source.write_text("\n".join(lines) + "\n")
    command = [str(COMPILER), "-std=c++20", "-fsyntax-only", f"-I{FAKES}", f"-I{sources}", str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, "\n".join(line for line in done.stderr.splitlines() if "error" in line)
