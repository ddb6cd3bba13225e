"""spawn() of functions that no rank can import: of a notebook, of ``python -c``, of a prompt and of standard input; and
what ranks print there."""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from commands import environment, needs

import a2a
from a2a import _printed

NOTEBOOK = Path(__file__).parents[3] / "examples" / "notebook.ipynb"

PROGRAM = """
import numpy as np
import a2a
class Answer:
    def __init__(self, value): self.value = value

def answer(comm, scale):
    received = np.zeros(comm.size, np.int64)
    comm.allgather(np.array([comm.rank * scale]), received)
    return Answer(received.tolist())

answers = a2a.spawn(answer, 3, 10, timeout=60)
print([type(each) is Answer and each.value for each in answers])
"""
HINT = (
    "spawn: ranks cannot import answer, which is defined in a notebook, at a prompt, in python -c or in standard "
    "input; install cloudpickle (pip install 'a2a-comm[notebook]'), put it into a module, or pass threads=True"
)


def run(way: str, program: str, folder: Path) -> subprocess.CompletedProcess[str]:
    script = folder / "script.py"
    script.write_text("import a2a\nprint('the script has run')\n", encoding="utf-8")
    arguments, given = {
        "-c": (["-c", program], ""),
        "standard input": (["-"], program),
        "prompt": (["-i"], program),
        "prompt after a script": (["-i", str(script)], program),
    }[way]
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, input=given, env=environment(), capture_output=True, text=True, timeout=90, check=False
    )


WAYS = ["-c", "standard input", "prompt", "prompt after a script"]


@pytest.mark.parametrize("way", WAYS)
def test_functions_that_cannot_be_imported(tmp_path: Path, way: str) -> None:
    needs("cloudpickle")
    done = run(way, PROGRAM, tmp_path)
    assert "[[0, 10, 20], [0, 10, 20], [0, 10, 20]]" in done.stdout, done.stderr
    assert "Error" not in done.stderr
    assert done.stdout.count("the script has run") == (way == "prompt after a script")  # not once more in every rank


@pytest.mark.parametrize("way", WAYS)
def test_without_cloudpickle_the_error_says_what_helps(tmp_path: Path, way: str) -> None:
    done = run(way, "import sys; sys.modules['cloudpickle'] = None\n" + PROGRAM, tmp_path)
    assert f"InvalidArgumentError: {HINT}" in done.stderr
    assert done.returncode == (0 if "prompt" in way else 1)


IMPORTABLE = """
import sys; sys.modules["cloudpickle"] = None
import operator
import a2a
print(a2a.spawn(operator.attrgetter("size"), 2, timeout=60), a2a.spawn(lambda comm: comm.rank, 2, threads=True))
"""


@pytest.mark.parametrize("way", WAYS[:2])
def test_what_can_be_imported_needs_no_cloudpickle(tmp_path: Path, way: str) -> None:
    done = run(way, IMPORTABLE, tmp_path)
    assert done.stdout == "[2, 2] [0, 1]\n", done.stderr


# ---- the example -----------------------------------------------------------------------------------------------------


def cells() -> list[str]:
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    return ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]


# Jupyter's own client, in a process of its own: in pytest's, ipykernel would leave standard output alone.
EXECUTE = """
import json, sys
import nbclient, nbformat
notebook = nbformat.read(sys.argv[1], as_version=4)
nbclient.NotebookClient(notebook, timeout=90, kernel_name="python3").execute()
texts = ["".join(output.get("text", "") for output in cell.outputs) for cell in notebook.cells if "outputs" in cell]
print(json.dumps(texts))
"""


@pytest.mark.full
@pytest.mark.skipif(not NOTEBOOK.exists(), reason="no source tree beside the tests")
def test_the_example_runs_in_a_kernel(tmp_path: Path) -> None:
    for module in ("cloudpickle", "nbclient", "ipykernel"):
        needs(module)
    command = [sys.executable, "-c", EXECUTE, str(NOTEBOOK)]
    env = environment(PYTHONWARNINGS="ignore", IPYTHONDIR=str(tmp_path), JUPYTER_PLATFORM_DIRS="1")
    env.pop("PYTEST_CURRENT_TEST", None)
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr
    texts = json.loads(done.stdout.splitlines()[-1])
    assert {f"rank {rank} received 10 rows" for rank in range(4)} <= set(texts[1].splitlines())
    assert texts[2:4] == ["the same bits as in one process\n", "rank 2 does not like its data\n"]


@pytest.mark.skipif(not NOTEBOOK.exists(), reason="no source tree beside the tests")
def test_the_example_runs_without_a_kernel(tmp_path: Path) -> None:
    needs("cloudpickle")
    done = run("-c", "\n".join(cells()), tmp_path)
    assert done.returncode == 0, done.stderr
    assert "the same bits as in one process\nrank 2 does not like its data\n" in done.stdout


@pytest.mark.skipif(not NOTEBOOK.exists(), reason="no source tree beside the tests")
def test_the_example_is_kept_without_outputs() -> None:
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    assert [cell["id"] for cell in notebook["cells"] if cell.get("outputs") or cell.get("execution_count")] == []


# ---- what ranks print ------------------------------------------------------------------------------------------------


def talk(comm: a2a.Communicator) -> None:
    print(f"rank {comm.rank}:", "ä" * 100_000, flush=True)
    print("to the other", file=sys.stderr)
    comm.barrier()
    print("no end of line", end="")


def talk_and_sleep(comm: a2a.Communicator) -> None:
    print(f"rank {comm.rank} sleeps", flush=True)
    __import__("time").sleep(60)


def test_what_ranks_print_goes_where_the_program_prints(run_ranks: Callable[..., list[Any]]) -> None:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        run_ranks(2, talk)
    text = out.getvalue()
    for rank in range(2):  # the end of one rank may come before the long line of the other has been read
        line = f"rank {rank}: {'ä' * 100_000}\n"
        assert text.count(line) == 1
        text = text.replace(line, "")
    assert text == "no end of line" * 2 and err.getvalue() == "to the other\n" * 2


def test_a_line_without_an_end_takes_linear_time_and_bounded_memory() -> None:
    """Nobody scans or keeps what has come before."""
    stream = io.StringIO()
    source = _printed._Source(stream)
    kept, piece = 0, "ä".encode() * (1 << 15) + "ä".encode()[:1]  # ends within a character
    begin = time.process_time()
    for _ in range(512):
        source.take(piece)
        kept = max(kept, len(source.rest))
        source.take("ä".encode()[1:])
    assert time.process_time() - begin < 5 and kept <= _printed._LONGEST_KEPT
    source.take(b"\nlast")
    assert stream.getvalue() == "ä" * (512 * (1 << 15) + 512) + "\n"


@pytest.mark.full
def test_what_ranks_printed_before_they_were_ended(run_ranks: Callable[..., list[Any]]) -> None:
    out = io.StringIO()
    with contextlib.redirect_stdout(out), pytest.raises(a2a.TimeoutError):
        run_ranks(2, talk_and_sleep, timeout=20)
    assert sorted(out.getvalue().splitlines()) == ["rank 0 sleeps", "rank 1 sleeps"]


def test_cloudpickle_is_loaded_by_those_who_need_it() -> None:
    code = "import a2a._processes, sys; print('cloudpickle' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
