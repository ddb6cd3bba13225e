"""Whether the kit would notice: one line of the copy loops, of a plan, of a transport or of an adapter is broken at a
time, and the kit has to fail every such mutant."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import cmake_tools
import pytest
from doubles import DOUBLES, variables

import a2a

ROOT = Path(__file__).parents[2]

pytestmark = [
    pytest.mark.skipif(not (ROOT / "CMakeLists.txt").exists(), reason="no source tree"),
    pytest.mark.skipif(bool(cmake_tools.MISSING), reason=f"not installed: {cmake_tools.MISSING}"),
    pytest.mark.timeout(900),  # the first test builds the library
]


@dataclass(frozen=True)
class Mutant:
    file: str
    old: str
    new: str
    only: str = ""
    """Cases and signatures that can notice."""
    says: str = "wrong: (output|result)"
    """How the kit tells of it, as a pattern: in most cases the bytes that come out are others."""
    transport: str = "shm"

    def apply(self, text: str) -> str:
        assert text.count(self.old) == 1, f"{self.file} has {text.count(self.old)} times {self.old!r}"
        return text.replace(self.old, self.new)


COPY, PLAN = "src/cpp/transport/shm/copy/copy.cc", "src/cpp/core/plan.cc"
FOLD = "src/cpp/core/fold/fold.cc"
ATB = "adapters/atb/cpp/all_to_all_operation.cc"
NCCL, HCCL = "src/cpp/transport/nccl/nccl_collectives.cc", "src/cpp/transport/hccl/hccl_collectives.cc"
CORE = [
    Mutant(COPY, "    to += step;\n", ""),
    Mutant(COPY, "    from += step;\n", ""),
    Mutant(COPY, "copying.left / kBlock * kBlock", "copying.left / 64 * 64"),
    Mutant(COPY, "    left -= bytes;\n", "    left -= bytes / 64 * 64;\n"),
    Mutant(COPY, "    from.advance(step);\n    to.advance(step);\n", "    from.advance(step);\n"),
    Mutant(
        COPY,
        "  (void)stores;\n#endif\n  std::memcpy(to, from, bytes);\n",
        "  (void)stores;\n#endif\n  std::memcpy(to, from, bytes);\n  to[bytes] = {};\n",
        "core.allgather",
        "wrong: output: 1 bytes around the tensor were written",
    ),
    Mutant(PLAN, "packed = displ + count;", "packed = displ;"),
    Mutant(PLAN, "displ * elem_bytes, count * elem_bytes", "packed * elem_bytes, count * elem_bytes"),
    Mutant(PLAN, "static_cast<size_t>(peer) * bytes_per_rank", "static_cast<size_t>(size - 1 - peer) * bytes_per_rank"),
    Mutant(PLAN, "next[expert + 1] += bytes", "next[expert] += bytes"),
    Mutant(PLAN, "    next += bytes;\n", ""),
    Mutant(
        PLAN,
        "row_bytes, local, global);\n  plan.first().sends.swap(plan.first().recvs);\n",
        "row_bytes, local, global);\n",
    ),
    Mutant(PLAN, "static_cast<int>(i), 0, bytes[i]", "0, 0, bytes[i]"),
    Mutant(
        PLAN,
        "  plan.first().sends = stages_.front().recvs;\n",
        "  plan.first().sends = stages_.front().sends;\n",
        "transposed",
        r"MismatchError: alltoallv #\d+: rank \d sends \d+ rows to rank \d, which expects \d+",
    ),
    Mutant(
        "src/cpp/transport/shm/ways/staged.cc",
        "scatter(p.target, chunks.data(chunk)",
        "scatter(p.target, chunks.data(chunk ^ 1)",
    ),
    Mutant(FOLD, "parts.subspan(1)", "parts.subspan(2)", "core.reduce"),
    Mutant(FOLD, "static_cast<int>(parts.size()), out + at", "1, out + at", "core.allreduce"),
    Mutant("src/cpp/core/quantize.cc", "shift *= static_cast<float>(ranks)", "shift *= 1", "quantized"),
    Mutant(
        ATB,
        "{counts.recvCounts, counts.rdispls}, static_cast",
        "{counts.recvCounts, {}}, static_cast",
        "atb.",
    ),
    Mutant(
        ATB,
        "{counts.sendCounts, counts.sdispls},\n",
        "{counts.sendCounts, {}},\n",
        "atb.",
    ),
    Mutant(NCCL, "    if (!with_own) copy_own(batch, stream);\n", "", transport="nccl"),
    Mutant(NCCL, "if (step == 0 && !with_own) continue;", "if (step == 0) continue;", transport="nccl"),
    Mutant(NCCL, "to[i].bytes, stream.handle", "to[i].bytes / 2, stream.handle", transport="nccl"),
    Mutant(HCCL, "static_cast<size_t>(run.data - base) / unit", "0", transport="hccl"),
    Mutant(
        HCCL,
        "runs[i - 1].peer == run.peer ? k + 1 : 0",
        "false ? 1 : 0",
        "core.global_",
        "BackendError: .*two items of one direction",
        transport="hccl",
    ),
]
# Counts that do not fit are found before anything moves.
SIZES = r"raises: .*InvalidArgumentError: rank \d: (in|out)_split_sizes .* sums to"
OWN = "raises: InvalidArgumentError: .* for this rank itself"
ITSELF = "raises: InvalidArgumentError: .*: sends itself"
TORCH, PADDLE = "torch/_calls/collectives.py", "paddle/_collectives.py"
PYTHON = {
    "torch": [
        Mutant(
            TORCH,
            "output, input, output_split_sizes, input_split_sizes, async_op",
            "output, input, input_split_sizes, output_split_sizes, async_op",
            says="raises: SplitError: rank 0: output_split_sizes .* sums to",
        ),
        Mutant(
            TORCH,
            "comm, output_tensor_list, input_tensor_list, async_op",
            "comm, output_tensor_list, input_tensor_list[::-1], async_op",
            "torch.all_to_all",
        ),
        Mutant(
            "torch/_operations/c10d_operations.py",
            "_allgather(comm, output, input, async_op, seconds)",
            "_allgather(comm, output, input.flip(0), async_op, seconds)",
            "torch.all_gather",
        ),
        Mutant(
            "torch/_operations/c10d_operations.py",
            "allgather_list(comm, outputs, input,",
            "allgather_list(comm, outputs[::-1], input,",
            "torch.all_gather",
        ),
        Mutant(
            "torch/_compile/custom_ops.py",
            "for one in inputs], by_name",
            "for one in inputs[::-1]], by_name",
            "torch.nn.all_to_all",
            "raises: SplitError: .* for this rank itself|wrong: result",
        ),
    ],
    "paddle": [
        Mutant(
            "paddle/_functions.py",
            "in_tensor, out_split_sizes, in_split_sizes, sync_op",
            "in_tensor, in_split_sizes, out_split_sizes, sync_op",
            "paddle.alltoall_single",
            SIZES,
        ),
        Mutant(
            PADDLE,
            "out, given, out_sizes, in_sizes, not sync_op",
            "out, given, in_sizes, out_sizes, not sync_op",
            "paddle.",
            SIZES,
        ),
        Mutant(
            PADDLE,
            "_GATHER_LIST.allgather_list(comm, out,",
            "_GATHER_LIST.allgather_list(comm, out[::-1],",
            "paddle.all_gather",
        ),
        Mutant(
            PADDLE, "alltoall_list(comm, out, given,", "alltoall_list(comm, out, given[::-1],", "paddle.alltoall", OWN
        ),
        Mutant("paddle/utils/moe_utils.py", "ways[::-1] if gather", "ways[::-1] if not gather", "paddle.utils"),
        Mutant("paddle/utils/moe_utils.py", "[home(comm, gradients", "[forth(comm, gradients", "paddle.utils"),
        Mutant(
            PADDLE,
            "gradients[0].detach(), in_sizes, out_sizes",
            "gradients[0].detach(), out_sizes, in_sizes",
            "paddle.alltoall_single gradient",
            SIZES,
        ),
    ],
    "atb": [
        Mutant(
            "atb/_operation.py",
            "(**vars(param), timeout",
            "(**vars(param) | {'sdispls': param.rdispls}, timeout",
            "atb.",
            r"raises: InvalidArgumentError: sendCounts \+ sdispls is out of bounds|wrong: result",
        ),
        Mutant("atb/_operation.py", "forward(inputs)", "forward([inputs[0][::-1].copy()])", "atb."),
    ],
    "a2a": [
        Mutant("quantized.py", "ours.parts[comm.rank].start % max(channels, 1)", "0", "quantized"),
        Mutant(
            "quantized.py",
            "counts, target = ours.elems, out",
            "counts, target = ours.elems[::-1], out",
            "quantized",
            ITSELF,
        ),
    ],
}


def kit(folder: Path, framework: str, mutant: Mutant, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Runs the package in ``folder``."""
    command = [sys.executable, "-m", "a2a.cli", "conformance", "-x", "--ranks", "2-3", "--sample", "800"]
    return subprocess.run(
        [*command, "--transport", mutant.transport, "--frameworks", framework, "--only", mutant.only],
        env={**environment, "PYTHONPATH": str(folder)},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


def unnoticed(mutant: Mutant, done: subprocess.CompletedProcess[str]) -> str:
    """What is wrong with how the kit told of it; "" for nothing."""
    if done.returncode != 1 or "what failed" not in done.stdout:
        return f"nobody noticed {mutant}: code {done.returncode}\n{done.stdout[-1500:]}{done.stderr[-1500:]}"
    # Not because it is no program any more.
    if re.search("SyntaxError|NameError|ImportError|AttributeError|TypeError", done.stdout):
        return f"{mutant} is no program: {done.stdout}"
    return "" if re.search(mutant.says, done.stdout) else f"{mutant} is told otherwise:\n{done.stdout}"


def on_all_cpus(check: Callable[[Mutant], str], mutants: Sequence[Mutant]) -> None:
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        complaints = list(pool.map(check, mutants))
    assert not any(complaints), "\n\n".join(filter(None, complaints))


class Packages:
    """Copies of the installed package, each with one file that is different."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._count = folder, 0
        shutil.copytree(Path(a2a.__file__).parent, folder / "a2a", ignore=shutil.ignore_patterns("__pycache__"))

    def read(self, file: str) -> str:
        return (self._folder / "a2a" / file).read_text()

    def make(self, name: str, file: str, content: bytes) -> Path:
        """The folder to import it from."""
        folder = self._folder / name
        shutil.copytree(self._folder / "a2a", folder / "a2a", copy_function=os.link)
        (folder / "a2a" / file).unlink()
        (folder / "a2a" / file).write_bytes(content)
        return folder


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Packages:
    return Packages(tmp_path_factory.mktemp("mutants"))


def compilation(build: Path, library: str, file: str) -> tuple[str, str]:
    """The command of the build that compiles this file of a library, and what it compiles: lines that include the file
    and those of its group."""
    included = f'#include "{ROOT / file}"'
    for entry in json.loads((build / "compile_commands.json").read_text()):
        if f"{library}_objects" in entry["command"]:
            text = included if entry["file"] == str(ROOT / file) else Path(entry["file"]).read_text()
            if included in text:
                return entry["command"], text
    raise AssertionError(f"nothing compiles {file}")


def library(build: Path, folder: Path, file: str, text: str) -> tuple[str, bytes]:
    """The library that is made of this file, with another text in it: its name, and the objects of the build with one
    that is compiled anew, in the same way, so that the precompiled headers fit."""
    name = "a2a_atb" if file.startswith("adapters/atb/") else "a2a"
    command, compiled = compilation(build, name, file)
    mutated, source, output = folder / Path(file).name, folder / f"compiled-{Path(file).name}", str(folder / "mutant.o")
    mutated.write_text(text)
    source.write_text(compiled.replace(f'#include "{ROOT / file}"', f'#include "{mutated}"'))
    *options, _, built, _, _ = shlex.split(command)  # ... -o built -c file
    cmake_tools.run(*options, "-iquote", str((ROOT / file).parent), "-o", output, "-c", str(source))
    commands = cmake_tools.run("ninja", "-C", str(build), "-t", "commands", name).splitlines()
    words = shlex.split(
        next(line for line in commands if f"-o lib{name}.so" in line).removeprefix(": && ").removesuffix(" && :")
    )
    words[words.index(built)] = output
    words[words.index("-o") + 1] = str(folder / f"lib{name}.so")
    # On top of the core that is installed: that of the build has another name, and would be loaded beside it.
    words = [f"{a2a.get_library_dir()}/liba2a.so" if word.startswith("liba2a.so") else word for word in words]
    subprocess.run(words, cwd=build, check=True, timeout=100)
    return f"lib{name}.so", (folder / f"lib{name}.so").read_bytes()


def test_there_are_enough_and_all_fit_the_sources(packages: Packages) -> None:
    assert len(CORE) + sum(map(len, PYTHON.values())) >= 35
    for mutant in CORE:
        mutant.apply((ROOT / mutant.file).read_text())
    for mutants in PYTHON.values():
        for mutant in mutants:
            mutant.apply(packages.read(mutant.file))


@pytest.mark.full
def test_mutants_of_the_core(packages: Packages, build_dir: Path, tmp_path: Path, pytestconfig: pytest.Config) -> None:
    def run(name: str, mutant: Mutant, text: str) -> subprocess.CompletedProcess[str]:
        work = tmp_path / name
        work.mkdir()
        built, content = library(build_dir, work, mutant.file, text)
        folder = packages.make(name, f"lib/{built}", content)
        return kit(folder, DOUBLES.get(mutant.transport, "numpy"), mutant, variables(build_dir))

    def check(mutant: Mutant) -> str:
        text = (ROOT / mutant.file).read_text()
        return unnoticed(mutant, run(f"core{CORE.index(mutant)}", mutant, mutant.apply(text)))

    def control(mutant: Mutant) -> str:
        done = run(f"unchanged-{Path(mutant.file).stem}", mutant, (ROOT / mutant.file).read_text())
        return "" if done.returncode == 0 else f"without a mutation: {done.stdout}{done.stderr}"

    on_all_cpus(control, [Mutant(COPY, "", ""), Mutant(ATB, "", "", "atb."), Mutant(NCCL, "", "", transport="nccl")])
    on_all_cpus(check, CORE if pytestconfig.getoption("--full") else CORE[::3])


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.full) if name in ("torch", "paddle") else name for name in PYTHON]
)
def test_mutants_in_python(name: str, packages: Packages, pytestconfig: pytest.Config) -> None:
    framework = name if name in ("torch", "paddle") else "numpy"
    if importlib.util.find_spec(framework) is None:
        pytest.skip(f"{framework} is not installed")

    def check(mutant: Mutant) -> str:
        text = mutant.apply(packages.read(mutant.file))
        folder = packages.make(f"{name}{PYTHON[name].index(mutant)}", mutant.file, text.encode())
        return unnoticed(mutant, kit(folder, framework, mutant, dict(os.environ)))

    on_all_cpus(check, PYTHON[name] if pytestconfig.getoption("--full") else PYTHON[name][::3])
