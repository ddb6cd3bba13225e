"""The conformance kit on this library, and its command line."""

from __future__ import annotations

import importlib.util
import json
import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path

import make_families
import mpi
import pytest
from commands import call_here
from leftovers import CODES, assert_none_after

import a2a
from a2a import conformance, frameworks
from a2a._core import library_of
from a2a.conformance import runner
from a2a.conformance.groups import OWN
from a2a.conformance.signatures import SIGNATURES

FULL = pytest.mark.full

FIFTH = str(Path(__file__).with_name("ctypes_arrays.py"))
COMMAND = [sys.executable, "-m", "a2a.cli", "conformance"]


def command(
    *arguments: str, seconds: float = 170, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=seconds, check=False, env=env)


@pytest.mark.full
@pytest.mark.timeout(400)  # a minute where nothing else runs
def test_this_library_in_every_framework_and_mixed(tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    done = command("--quick", "--json", str(file), "--html", str(tmp_path / "matrix.html"), seconds=390)
    assert done.returncode == 0, done.stdout + done.stderr
    results = json.loads(file.read_text())
    installed = frameworks.installed("host")
    assert set(results["cells"]) == {*installed, "mixed"} if len(installed) > 1 else set(installed)
    assert results["counts"]["pass"] >= 1590 * len(installed)
    assert results["failures"] == []
    page = (tmp_path / "matrix.html").read_text()
    assert page.count("</table>") == len(results["cells"]) and 'class="good"' in page and 'class="bad"' not in page


def test_threads() -> None:
    done = command("--ranks", "3", "--frameworks", "numpy", "--transport", "threads", "--sample", "200")
    assert done.returncode == 0, done.stdout + done.stderr


def test_more_ranks_than_cpus() -> None:
    done = command("--ranks", "8", "--frameworks", "numpy", "--sample", "200")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.full
@pytest.mark.timeout(150)
@pytest.mark.parametrize(
    ("peer", "framework"),
    [
        ("gloo", "torch"),
        pytest.param("paddle-gloo", "paddle", marks=FULL),
        pytest.param("mpi4py", "mpi4py", marks=FULL),
    ],
)
def test_peers(peer: str, framework: str, tmp_path: Path) -> None:
    """What they do with the cases is theirs; every task has some result, and each is told."""
    if importlib.util.find_spec(framework) is None:
        pytest.skip(f"{framework} is not installed")
    env = None
    if peer == "mpi4py":
        if not mpi.LIBRARIES:
            pytest.skip("there is no MPI")
        env = with_mpi(mpi.LIBRARIES[0], **mpi.LIBRARIES[0].for_mpi4py())
    file = tmp_path / "results.json"
    done = command("--peer", peer, "--ranks", "2", "--sample", "8", "--json", str(file), seconds=140, env=env)
    results = json.loads(file.read_text())
    assert done.returncode == (1 if results["failures"] else 0), done.stdout + done.stderr
    assert sum(results["counts"].values()) == 8 and results["transport"] == peer


def with_mpi(library: mpi.Mpi, **changes: str) -> dict[str, str]:
    """The environment in which its launcher is found."""
    return library.environment(PATH=f"{library.prefix / 'bin'}{os.pathsep}{os.environ['PATH']}", **changes)


def between_hosts(transport: str, file: Path, env: dict[str, str] | None = None) -> None:
    options = ["--ranks", "2,3", "--frameworks", "numpy", "--sample", "200", "--json", str(file)]
    done = command("--transport", transport, *options, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    results = json.loads(file.read_text())
    # Only memory of the same host can be looked at.
    views = results["cells"]["numpy"].pop("core.allgather_views")
    assert {kind for one in views.values() for kind in one} == {"unsupported"}
    assert {kind for name in results["cells"]["numpy"].values() for one in name.values() for kind in one} == {"pass"}
    assert results["counts"]["pass"] + results["counts"]["unsupported"] == 400


def test_between_hosts_over_tcp(tmp_path: Path) -> None:
    between_hosts("tcp", tmp_path / "results.json")


def test_between_hosts_over_ucx(tmp_path: Path) -> None:
    try:
        library_of("ucx")
    except a2a.UnsupportedError:
        pytest.skip("no UCX here")
    between_hosts("ucx", tmp_path / "results.json")


@pytest.mark.full
@pytest.mark.parametrize("library", mpi.INSTALLED, ids=lambda library: library.name)
def test_between_hosts_over_mpi(library: mpi.Mpi, tmp_path: Path) -> None:
    between_hosts("mpi", tmp_path / "results.json", with_mpi(library))
    done = command("--transport", "mpi", env=with_mpi(library, A2A_MPI_LIBRARY="/nowhere/libmpi.so"))
    assert done.returncode == 2 and "--transport mpi: " in done.stderr and "/nowhere/libmpi.so" in done.stderr, done


def test_without_a_launcher() -> None:
    done = command("--transport", "mpi", env={**os.environ, "PATH": "/nowhere"})
    assert done.returncode == 2 and done.stderr == "a2a conformance: --transport mpi: there is no mpiexec in PATH\n", (
        done
    )


@pytest.mark.full
def test_a_framework_that_the_kit_does_not_know(tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    options = ["--ranks", "1,3", "--sample", "300", "--mixed", "--json", str(file)]
    done = command("--frameworks", f"numpy,{FIFTH}", *options)
    assert done.returncode == 0, done.stdout + done.stderr
    results = json.loads(file.read_text())
    assert set(results["cells"]) == {"numpy", "ctypes_arrays", "mixed"} and results["counts"]["pass"] >= 1400


# ---- what is run -----------------------------------------------------------------------------------------------------


def test_families_are_up_to_date() -> None:
    assert make_families.FILE.read_text(encoding="utf-8") == make_families.text()


@pytest.mark.smoke
def test_every_case_is_complete() -> None:
    cases = conformance.load()
    assert len({case.name for case in cases}) == len(cases)
    for case in cases:
        assert case.facts["source"] and 1 <= case.ranks <= 8
        for dtype in {"bool", "int8", "bfloat16", "complex128"} & set(case.dtypes):
            for rank in {0, case.ranks - 1}:
                expected = case.expected(dtype, rank)
                assert [part.shape for part in expected] == case.recv_shapes(rank)


def test_every_method_with_a_plan_has_its_calls() -> None:
    plans = [name for name in dir(a2a.Communicator) if name.startswith("plan_")]
    methods = {name.removeprefix("plan_") for name in plans} & set(dir(a2a.Communicator))
    wanted = {f"core.{name}" for name in plans}
    wanted |= {f"core.{call}" for name in methods for call in (name, f"{name} async", f"plan_{name}")}
    assert wanted - {one.name for one in SIGNATURES} == set()


def test_the_documentation_has_the_matrix_of_this_version() -> None:
    """Made by the command, of the calls and dtypes that there are."""
    text = (Path(__file__).parents[2] / "docs" / "design" / "conformance.md").read_text(encoding="utf-8")
    matrix = text[text.index("## The matrix") :]
    assert f"a2a: {a2a.__version__}\n" in matrix and "frameworks: numpy " in matrix
    rows = set(re.findall(r"^((?:core|torch|paddle|atb)\..*?)  ", matrix, re.MULTILINE))
    assert rows == {
        one.name for one in SIGNATURES if one.library in OWN and (one.memory is None or "host" in one.memory)
    }


def test_every_document_and_every_suite_has_its_cases() -> None:
    sources = [case.facts["source"] for case in conformance.load()]
    for document, count in (
        ("paddle.distributed.stream.alltoall_single", 2),
        ("torch.distributed.all_to_all,", 10),
        ("AllToAllVOperation,", 5),
        ("paddle.distributed.utils.global_scatter", 2),
        ("torch.distributed.all_gather_into_tensor", 1),
        *(
            (suite, 8)
            for suite in (
                "of pytorch",
                "of Paddle",
                "of mpi4py",
                "of nccl-tests",
                "of ascend-transformer-boost",
                "of fastmoe",
            )
        ),
    ):
        assert sum(document in source for source in sources) >= count, document


def test_the_documents_agree_with_the_oracle() -> None:
    checked = 0
    for case in conformance.load():
        for given in (case, case.transposed()) if "gradient" in case.facts else (case,):
            if "expected" in given.facts:
                derived = conformance.Case({key: value for key, value in given.facts.items() if key != "expected"})
                for dtype in given.dtypes:
                    for rank in range(given.ranks):
                        pairs = zip(given.expected(dtype, rank), derived.expected(dtype, rank), strict=True)
                        assert all(one.tobytes() == other.tobytes() for one, other in pairs), (case.name, dtype, rank)
                        checked += 1
    assert checked > 70


def test_every_call_and_every_dtype_is_tried() -> None:
    cases, installed = conformance.load(), frameworks.installed()
    tasks = [task for name in installed for task in conformance.plan(cases, 2, name)]
    tried = {task.signatures[0] for task in tasks}
    libraries = {"core", "atb", *installed} & set(OWN)
    on_host = [one for one in SIGNATURES if one.memory is None or "host" in one.memory]
    assert tried == {one.name for one in on_host if one.library in libraries}
    for name in installed:
        assert {task.dtype for task in tasks if task.frameworks[0] == name} == frameworks.load(name).dtypes()


@pytest.mark.parametrize("ranks", [2, 3])
def test_every_assignment_is_tried_with_every_case(ranks: int) -> None:
    names = ["numpy", FIFTH]
    cases = [case for case in conformance.load() if case.ranks == ranks]
    tasks = conformance.plan_mixed(cases, ranks, names)
    found = {(id(task.case), task.frameworks) for task in tasks}
    assert len({assignment for _, assignment in found}) == 2**ranks - 2
    assert len(found) == sum(len(runner._dtypes(case, names, "host")) > 0 for case in cases) * (2**ranks - 2)
    alltoallv = [task for task in tasks if task.case.op == "alltoallv"]
    assert any("atb.AllToAllVOperation" in task.signatures for task in alltoallv)
    assert any("core.exchange" in task.signatures for task in alltoallv)


# ---- the command line ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["--ranks", "0"], "there are cases for 1 to 8 ranks"),
        (["--ranks", "1-9"], "there are cases for 1 to 8 ranks"),
        (["--ranks", "9-1"], "9 is more than 1"),
        (["--ranks", "x"], "2,4 or 1-8"),
        (["--ranks", ""], "2,4 or 1-8"),
        (["--frameworks", "numpy,nonsense"], "'nonsense' is not known; there are numpy"),
        (["--frameworks", "numpy,nowhere.py"], "there is no file nowhere.py"),
        (["--peer", "gloo", "--mixed"], "a peer has no --mixed"),
        (["--peer", "gloo", "--transport", "shm"], "a peer has no --transport"),
        (["--mixed", "--frameworks", "numpy"], "there is only one framework, numpy"),
        (["--mixed", "--ranks", "1"], "there is only one rank"),
        (["--sample", "0"], "'0' is not a positive number"),
        (["--json", "/nowhere/results.json"], "cannot write /nowhere/results.json"),
        (["--html", "."], "cannot write ."),
        (["--only", "no such case", "--frameworks", "numpy", "--ranks", "1"], "no case and no call"),
    ],
)
def test_command_line_mistakes(arguments: list[str], part: str) -> None:
    done = call_here("conformance", *arguments)
    assert done.returncode == 2 and part in done.stderr, done
    assert "Traceback" not in done.stderr and done.stdout == ""


def test_what_is_not_installed_is_named() -> None:
    for name in set(frameworks.known()) - set(frameworks.installed()):
        done = command("--frameworks", name)
        assert done.returncode == 2 and f"{name} is not installed" in done.stderr, done
    if importlib.util.find_spec("mpi4py") is None:
        done = command("--peer", "mpi4py")
        assert done.returncode == 2 and done.stderr == "a2a conformance: --peer mpi4py: mpi4py is not installed\n", done


OWN_FILE = "from a2a.frameworks.numpy import Framework, NumPy\n"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("import nonsense_that_is_not_there", "cannot be used: ModuleNotFoundError"),
        ("def x(", "cannot be used: SyntaxError"),
        ("raise SystemExit(0)", "cannot be used: SystemExit"),
        ("del FRAMEWORK", "cannot be used: ImportError: "),
        ("FRAMEWORK = 5", "has no FRAMEWORK, a class derived from a2a.frameworks.Framework"),
        ("class FRAMEWORK(Framework): tensor = print", "cannot be used: TypeError: "),
        ("NumPy.dtypes = lambda self: {'int8', 'int7'}", "has dtypes that a2a does not know: int7"),
        ("NumPy.memories = ('moon',)", "shm serves host memory, but"),
    ],
)
def test_a_framework_file_with_a_mistake(text: str, told: str, tmp_path: Path) -> None:
    file = tmp_path / "broken.py"
    file.write_text(f"{OWN_FILE}FRAMEWORK = NumPy\n{text}\n")
    done = command("--frameworks", str(file))
    assert done.returncode == 2 and told in done.stderr, done
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("    def prepare(self, rank): raise OSError('no license')", "raises: OSError: no license"),
        ("    def make(self, content): raise MemoryError('none left')", "raises: MemoryError: none left"),
        ("    def read(self, thing): __import__('os').abort()", "crash: SIGABRT"),
        ("    def make(self, content): return super().make(content // 2)", "wrong: "),
    ],
)
def test_a_framework_that_does_wrong(text: str, told: str, tmp_path: Path) -> None:
    file = tmp_path / "broken.py"
    file.write_text(f"{OWN_FILE}class FRAMEWORK(NumPy):\n{text}\n")
    done = command("--frameworks", str(file), "--ranks", "2", "--sample", "3")
    assert done.returncode == 1 and told in done.stdout, done
    assert done.stdout.count(", broken") == 3 or "3 " + told.partition(":")[0] in done.stdout, done


def test_progress_bar() -> None:
    reader, writer = pty.openpty()
    plain = "import sys; sys.modules['rich'] = None; from a2a.cli import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", plain, "conformance"]
    options = ["--ranks", "2", "--frameworks", "numpy", "--sample", "500"]
    done = subprocess.run([*command, *options], stdout=subprocess.DEVNULL, stderr=writer, timeout=100, check=False)
    os.close(writer)
    shown = b""
    while b"tasks" not in shown:
        shown += os.read(reader, 1 << 16)
    os.close(reader)
    assert done.returncode == 0
    assert re.search(rb"shm, 2 ranks, numpy: \[#* *\] \d+/500, \d+ s left", shown), shown
    assert b"shm, 2 ranks, numpy: 500 of 500 tasks" in shown


_INTERRUPTED_FORK = """
import os, signal, sys
from a2a.conformance import processes
os.register_at_fork(after_in_parent=lambda: os.kill(os.getpid(), signal.SIGTERM))
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
processes._fork(lambda: None)
"""


def test_an_interrupt_while_a_rank_is_forked_is_not_lost() -> None:
    assert subprocess.run([sys.executable, "-c", _INTERRUPTED_FORK], check=False).returncode == 143


@pytest.mark.parametrize("number", CODES)
@pytest.mark.parametrize(("transport", "processes"), [("shm", 5), ("threads", 2)])
def test_nothing_is_left_after_an_interrupt(number: signal.Signals, transport: str, processes: int) -> None:
    options = ["--ranks", "4", "--frameworks", "numpy", "--transport", transport]
    assert_none_after(number, [*COMMAND, *options], processes)
