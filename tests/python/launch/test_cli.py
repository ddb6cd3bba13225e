"""``a2a demo``, ``a2a info`` and ``a2a bench`` as a user runs them, and what they say when results are wrong."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import call, call_here, command, environment, needs
from sample import with_full

import a2a
from a2a import cli, frameworks, moe, trace
from a2a.cli import _bench_rank, _demo_rank, _plot, bench, demo
from a2a.workloads import workload

# a2a demo ---------------------------------------------------------------------------------------------------------


FULL = pytest.mark.full


def test_demo_with_numpy_alone() -> None:
    done = call("demo", "--frameworks", "numpy", "--tokens", "2", "--steps", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"rank 3: numpy {np.__version__}" in done.stdout
    assert re.search(
        r"^verified: .* MiB in 2 steps equal the one-process oracle bit for bit$", done.stdout, re.MULTILINE
    )


@pytest.mark.parametrize("name", with_full(["torch", "paddle", "jax"]))
def test_demo_with_another_framework(name: str) -> None:
    needs(name)
    done = call("demo", "--frameworks", f"{name},numpy", "--ranks", "2", "--tokens", "4", "--steps", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"rank 0: {name} " in done.stdout and "rank 1: numpy" in done.stdout and "\nverified: " in done.stdout


def small_job(ranks: int = 2, dtype: str = "float32") -> _demo_rank.Job:
    layer = dataclasses.replace(workload("dsv3-train"), tokens=5, hidden=64, dtype=dtype)
    return _demo_rank.Job(layer, ["numpy"] * ranks, steps=2, seed=1, alpha=1.2)


def test_demo_verdict(run_ranks: Callable[..., list[Any]], capsys: pytest.CaptureFixture[str]) -> None:
    job = small_job()
    reports = run_ranks(2, _demo_rank.run_rank, job)
    assert demo.conclude(reports, job) == 0
    assert "verified: " in capsys.readouterr().out
    # 5 tokens of 64 float32 on each of 2 ranks; nearly all have experts on both.
    assert 2 * 5 * 64 * 4 <= demo.traffic(reports, job).sum() <= 2 * 2 * 5 * 64 * 4

    expected = _demo_rank.Expected(job, 0).dispatched(0)
    wrong = expected.copy()
    wrong.view(np.uint8)[3, 5] ^= 1
    reports[0].compare("step 0: dispatched rows", wrong, expected)
    assert demo.conclude(reports, job) == 1
    captured = capsys.readouterr()
    assert "verified: " not in captured.out
    assert "rank 0: step 0: dispatched rows: byte" in captured.err and "NOT verified" in captured.err


@pytest.mark.parametrize("operation", ["dispatch", "combine"])
def test_demo_sees_one_wrong_bit(
    operation: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """That an exchange gets wrong."""
    right = getattr(moe.ExpertParallel, operation)

    def wrong(*arguments: Any) -> Any:
        result = right(*arguments)
        array = result.x if operation == "dispatch" else result
        array.view(np.uint8).flat[array.nbytes // 2] ^= 1
        return result

    monkeypatch.setattr(moe.ExpertParallel, operation, wrong)
    job = small_job(1)
    with a2a.init(0, 1) as comm:
        report = _demo_rank.run_rank(comm, job)
    assert demo.conclude([report], job) == 1
    # A wrong dispatched row comes back wrong too, if its bit survives the rounding.
    assert len(report.differences) in ((2, 3, 4) if operation == "dispatch" else (2,))


@pytest.mark.parametrize("bits", [np.uint16, np.uint32])
def test_demo_expects_what_arithmetic_gives(bits: Any) -> None:
    job = small_job(2, "bfloat16" if bits is np.uint16 else "float32")
    expected = _demo_rank.Expected(job, 0)

    def values(array: Any) -> Any:
        return (array.astype(np.uint32) << 16 if bits is np.uint16 else array).view(np.float32)

    for rank in range(2):
        tokens, combined = values(expected.tokens(rank)), values(expected.combined(rank))
        factors = (expected.weights[rank] * np.exp2(expected.choice[rank] % 7 - 3.0)).sum(axis=1)
        assert np.allclose(combined, tokens * factors[:, None], rtol=1e-2 if bits is np.uint16 else 1e-6)
        assert np.isfinite(combined).all() and (np.abs(combined) > 1e-30).all()
        assert len(expected.factors(rank)) == len(expected.dispatched(rank)) == expected.counts(rank).sum()


def test_demo_gives_all_ranks_one_dtype(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frameworks.load("numpy"), "bfloat16", False)
    assert demo.plan(workload("dsv3-train"), ["numpy", "torch"], 4).layer.dtype == "float32"
    assert demo.plan(workload("dsv3-train"), ["torch"], 4).layer.dtype == "bfloat16"


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--frameworks", "numpi"], 2, "--frameworks numpi: there are numpy, jax, paddle, torch"),
        (["--ranks", "3"], 2, "-n 3 does not divide 256 experts evenly; 2, 4 and 8 do"),
        (["--tokens", "0"], 2, "--tokens 0: at least 1"),
    ],
)
def test_demo_refuses(arguments: list[str], code: int, message: str) -> None:
    done = call_here("demo", *arguments)
    assert done.returncode == code and message in done.stderr


@pytest.mark.parametrize("arguments", [["demo", "--frameworks", "numpy"], ["bench", "-r", "1", "-b", "64", "-n", "1"]])
def test_plot_without_matplotlib_is_refused_before_the_work(arguments: list[str], tmp_path: Path) -> None:
    # A finder that does not find stands for an environment without the package.
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.util\nfind = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *more: None if name == 'matplotlib' else find(name, *more)\n"
    )
    search = f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"
    done = call(*arguments, "--plot", str(tmp_path / "x.png"), PYTHONPATH=search)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "a2a: --plot needs matplotlib: pip install 'a2a-comm[plot]'\n"


@pytest.mark.full
def test_plots(tmp_path: Path) -> None:
    needs("matplotlib")
    heat, curve = tmp_path / "heat.png", tmp_path / "curve.svg"
    done = call("demo", "--frameworks", "numpy", "--tokens", "2", "--steps", "1", "--plot", str(heat))
    assert done.returncode == 0 and heat.read_bytes().startswith(b"\x89PNG")
    done = call("bench", "-r", "2", "-n", "2", "-w", "1", "--plot", str(curve))
    assert done.returncode == 0 and all(
        f">{text}</text>" in curve.read_text() for text in ("4 KiB", "1 MiB", "time of a call, us", "size / time, GB/s")
    )
    done = call("demo", "--plot", str(tmp_path / "x.txt"))
    assert done.returncode == 1 and "the name has to end in one of" in done.stderr
    done = call("demo", "--plot", str(tmp_path / "no" / "x.png"))
    assert done.returncode == 1 and "there is no directory" in done.stderr


def corner(figure: Any) -> str:
    """Checks that all axes have names. Returns the text in the corner."""
    assert all(axes.get_xlabel() or axes.get_label() == "<colorbar>" for axes in figure.axes)
    assert all(axes.get_ylabel() for axes in figure.axes)
    return str(figure.get_supxlabel())


def test_the_plot_of_a_benchmark(tmp_path: Path) -> None:
    needs("matplotlib")
    sizes = [4 << 10, 64 << 10, 1 << 20]
    sweep = _bench_rank.Sweep("alltoallv", sizes, ["int8", "float64"], 5, 1, 1, 0, None, "zipf", "store")
    rows = [
        _bench_rank.Row("alltoallv", size, 0, dtype, size / 1e3, size / 2e3, size / 1e3, size / 4e3, 100.0, 1, 1, 0, 0)
        for dtype in sweep.dtypes
        for size in sizes
    ]
    figure = bench.picture(str(tmp_path / "x.png"), sweep, 2, rows)
    assert f"a2a {a2a.__version__}, NumPy {np.__version__}" in corner(figure) and "CPUs, Linux" in corner(figure)
    slow, fast = figure.axes
    assert [line.get_label() for line in slow.lines] == [
        "a2a, int8: median, and up to p99",
        "a2a, float64: median, and up to p99",
        "torch.distributed on Gloo: median",
        "one copy out of shared memory: median",
    ]
    for axes, expected in ((slow, [2.048, 32.768, 524.288]), (fast, [2, 2, 2])):
        assert all(list(line.get_xdata()) == sizes for line in axes.lines) and len(axes.lines) == 4
        assert list(axes.lines[0].get_ydata()) == pytest.approx(expected)
        assert [label.get_text() for label in axes.get_xticklabels()] == ["4 KiB", "64 KiB", "1 MiB"]
        assert axes.get_title() == "alltoallv, 2 ranks"


def test_the_plot_of_one_size_has_bars(tmp_path: Path) -> None:
    needs("matplotlib")
    lines = [_plot.Curve("one", [10.0]), _plot.Curve("copy", [5.0], floor=True)]
    figure = _plot.curves([1 << 20], lines, str(tmp_path / "x.png"), "title", "size: bytes")
    assert "a2a" in corner(figure)
    assert [text.get_text() for axes in figure.axes for text in axes.texts] == ["10", "5", "105", "210"]
    assert figure.axes[0].get_ylabel() == "1 MiB"


@pytest.mark.parametrize("ranks", [2, 20])
def test_the_picture_of_traffic_has_totals(ranks: int, tmp_path: Path) -> None:
    needs("matplotlib")
    matrix = np.full((ranks, ranks), 3 << 20)
    figure = _plot.heat_map(matrix, str(tmp_path / "x.svg"), "title", [f"{rank} numpy" for rank in range(ranks)])
    assert "a2a" in corner(figure)
    axes, bar = figure.axes
    assert bar.get_ylabel() == "MiB"
    texts = [text.get_text() for text in axes.texts]
    assert texts == (["3", "3", "6", "3", "3", "6", "6", "6", "12"] if ranks == 2 else [])
    assert [label.get_text() for label in axes.get_yticklabels()][:2] == [
        "0 numpy",
        "1 numpy" if ranks == 2 else "2 numpy",
    ]


def test_the_picture_of_a_timeline(tmp_path: Path) -> None:
    """Three ranks; rank 1 is late by 4 ms for an operation, which others are asynchronous beside."""
    needs("matplotlib")
    one = trace.Operation(
        1, "alltoall", "host", "int8", 10**10, 10**10 + 6_000_000, False, False, (1024,) * 3, (1024,) * 3
    )
    late = dataclasses.replace(one, started=one.started + 4_000_000)
    beside = dataclasses.replace(one, number=2, op="allreduce", asynchronous=True)
    timelines = [
        trace.Timeline(tmp_path, rank, 3, 7, "world", "host", 1, 9 * 10**9, {1: late if rank == 1 else one, 2: beside})
        for rank in range(3)
    ]
    figure = _plot.timeline(trace.Group(timelines), str(tmp_path / "x.png"))
    assert "a2a" in corner(figure)
    rows, square = figure.axes[:2]
    assert rows.get_xlabel() == "time, ms" and rows.get_title().endswith("rank 1 kept others waiting 8 ms")
    assert [text.get_text() for text in square.texts][-4:] == ["6", "6", "6", "18"]
    (legend,) = figure.legends
    names = [text.get_text() for text in legend.get_texts()]
    assert names == ["allreduce", "alltoall", "waits for the last peer", "thin: asynchronous"]


def test_sizes_as_people_write_them() -> None:
    sizes = (0, 100, 4096, 1536, 100_000, 1 << 20, 3 << 30)
    assert [_plot.size_text(size) for size in sizes] == [
        *("0 B", "100 B", "4 KiB", "1.5 KiB", "97.7 KiB", "1 MiB", "3 GiB"),
    ]


# a2a info, a2a bench ----------------------------------------------------------------------------------------------


def test_info_says_which_way_bytes_go_and_why() -> None:
    few = call("info", "--why", "100").stdout
    assert few.startswith("100 bytes for each of 2 ranks\n") and few.count("inlined: fits into the line") == 3
    assert few.count("inlined: fits into the packet of its header") == 3
    many = call("info", "--why", str(1 << 20), "-r", "3").stdout
    assert re.search(r"  shared memory +shared: shared memory: one copy", many)
    assert re.search(r"private memory in small pages +(staged|cma): private memory", many)
    assert re.search(r"message of shared memory +shared: shared memory: one copy", many)
    forced = call("info", "--why", "5000", A2A_SHM_CMA_MIN="4000").stdout
    assert re.search(r"message of private memory in small pages +staged: so few bytes are copied at once", forced)
    assert "cma: private memory: A2A_SHM_CMA_MIN asks for" in forced or "does not let the receiver read" in forced
    refused = call("info", "--why", "-1")
    assert refused.returncode == 2 and "--why: '-1' is not a size such as 8, 64K" in refused.stderr
    assert call("info", "-n", "3", "--why", "64K").stdout.startswith("65536 bytes for each of 3 ranks\n")


def test_info_says_the_stages_of_collectives_and_why() -> None:
    here = call("info", "--why", "100").stdout
    assert re.search(r"Stages of collectives of 2 ranks on one host\n +allreduce +at once: each rank waits", here)
    assert re.search(r" allreduce from \d+ bytes +in parts: each rank folds a part", here)
    assert "progress thread  no: the ranks share a host; A2A_PROGRESS_THREAD=1 starts it" in here
    far = call("info", "--why", "100", "-n", "9", "--hosts", "9").stdout
    assert re.search(r"progress thread  (yes, except over MPI|no): 1 ranks of a host and \d+ CPUs, so ", far)
    assert "Stages of collectives of 9 ranks on 9 hosts" in far
    assert re.search(r" allreduce from \d+ bytes +ring: each host only sends", far)
    assert re.search(r" broadcast from \d+ bytes +in parts: the root's link", far)
    refused = call("info", "--why", "100", "--hosts", "3")
    assert refused.returncode == 2 and "--hosts: 3 hosts for 2 ranks" in refused.stderr


@pytest.mark.smoke
def test_info() -> None:
    done = call("info", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    facts = json.loads(done.stdout)
    assert facts["versions"]["numpy"] == np.__version__ and facts["versions"]["a2a-comm"] == a2a.__version__
    assert facts["transports"]["shared memory"] == "works"
    assert facts["transports"]["process_vm_readv"].startswith(("allowed", "not allowed"))
    assert 1 <= facts["machine"]["cpus allowed"] <= facts["machine"]["cpus by affinity"]
    assert facts["launcher"]["seen"] == "none"
    thresholds = facts["thresholds of 2 ranks, bytes"]
    assert thresholds["A2A_SHM_CMA_MIN"] == "never" or thresholds["A2A_SHM_CMA_MIN"] >= 64 << 10
    assert thresholds["A2A_SHM_DIRECT_MIN"] >= 4096 and thresholds["A2A_SHM_STREAM_MIN"] >= 1 << 20
    assert thresholds["set from outside"] == "none"
    text = call("info", A2A_RANK="1", A2A_SIZE="2", A2A_JOB="x", A2A_SHM_CMA_MIN="99", A2A_SHM_DIRECT_MIN="77").stdout
    assert re.search(r"launcher +a2a run\n +this rank +1 of 2\n +job +x\n +ranks meet +on this host\n", text)
    assert re.search(r"A2A_SHM_DIRECT_MIN +77 +one copy out of shared memory.*\n +A2A_SHM_CMA_MIN +(99|never)", text)
    assert re.search(r"set from outside +A2A_SHM_DIRECT_MIN, A2A_SHM_CMA_MIN\n", text)
    assert re.search(r"ranks of this host +yes, through shared memory\n", text)
    few = call("info", "-r", "3").stdout
    assert "From how many bytes on, with 3 ranks\n" in few and "launcher  none is seen" in few
    assert call("info", "-r", "0").returncode == 2


@pytest.mark.full
def test_the_letter_of_ranks_is_that_of_mpiexec(tmp_path: Path) -> None:
    """In every command; -n of the benchmark is nccl-tests' number of iterations where the ranks are given already."""
    usual = ["-b", "64", "-w", "1"]
    for arguments, ranks, iterations in (
        (["-n", "2", "--iters", "3"], 2, 3),
        (["-np", "2", "-n", "4"], 2, 4),
        (["-r", "2", "-n", "4"], 2, 4),
        (["--ranks", "3", "--iters", "2"], 3, 2),
    ):
        done = call("bench", *usual, *arguments)
        assert f"# alltoall, {ranks} ranks, {iterations} iterations" in done.stdout, done.stderr
    refused = call("bench", "-r", "2", "-n", "3", "--iters", "4")
    assert refused.returncode == 2 and "-n 3" in refused.stderr
    assert "From how many bytes on, with 3 ranks" in call("info", "-n", "3").stdout
    demo = ["--frameworks", "numpy", "--tokens", "2", "--steps", "1"]
    assert call("demo", "-n", "2", *demo).stdout.startswith("2 ranks, ")


@pytest.mark.parametrize("command", ["run", "demo", "info", "bench", "conformance", "explain"])
def test_help_has_examples_that_parse(command: str) -> None:
    done = call_here(command, "-h")
    assert done.returncode == 0
    examples = done.stdout.partition("\nexamples:\n")[2].splitlines()
    assert len(examples) > 1
    for example in examples:
        words = shlex.split(re.split(r"  +", example.strip())[0])
        words = words[words.index("a2a") + 1 :]
        options, unknown = cli.make_parser().parse_known_args(words)
        assert options.function is not None and not unknown, example


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["infos"], "a2a: there is no command infos; did you mean info?\na2a -h shows"),
        (
            ["bench", "--datatyp3", "x"],
            "there is no option or argument --datatyp3; did you mean --datatype?\na2a bench -h",
        ),
        (["info", "--ranks", "0"], "0 ranks: at least one rank is needed\na2a info -h shows"),
        (["demo", "-n", "two"], "'two' is not a number of ranks\na2a demo -h shows"),
        (["--nonsense"], "there is no option or argument --nonsense"),
    ],
)
def test_a_wrong_command_line_names_what_to_read(arguments: list[str], message: str) -> None:
    done = call_here(*arguments)
    assert done.returncode == 2 and done.stdout == "" and message in done.stderr, done.stderr
    assert "usage:" not in done.stderr


def test_without_a_command_there_is_help() -> None:
    done = call()
    assert done.returncode == 2 and "a2a run -n 4 program.py" in done.stderr


def completions(line: str, tmp_path: Path) -> list[str]:
    """What argcomplete would have the shell offer."""
    answer = tmp_path / "answer"
    env = {
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_IFS": " ",
        "_ARGCOMPLETE_STDOUT_FILENAME": str(answer),
        "COMP_LINE": line,
        "COMP_POINT": str(len(line)),
        "COMP_TYPE": "9",
    }
    call(**env)
    return answer.read_text().split()


def test_the_shell_completes(tmp_path: Path) -> None:
    needs("argcomplete")
    assert completions("a2a conf", tmp_path) == ["conformance"]
    assert completions("a2a bench --workload dsv3-t", tmp_path) == ["dsv3-train"]
    assert {"numpy", "torch"} <= set(completions("a2a demo --frameworks ", tmp_path))


def on_a_terminal(*arguments: str) -> str:
    """What a command writes there."""
    written = b""
    with subprocess.Popen(
        [sys.executable, "-c", f"import pty; pty.spawn({command(*arguments)!r})"],
        env=environment(TERM="xterm", COLUMNS="150"),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
    ) as child:
        written, _ = child.communicate(timeout=100)
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", written.decode()).replace("\r\n", "\n")


def test_tables_on_a_terminal_say_the_same() -> None:
    """With rich and without."""
    drawn = on_a_terminal("info")
    assert re.search(r"ranks of this host +yes, through shared memory", drawn)
    bar = on_a_terminal("conformance", "-n", "2", "--frameworks", "numpy", "--only", "alltoallv", "--sample", "20")
    assert "shm, 2 ranks, numpy: 20 of 20 tasks" in bar


@pytest.mark.parametrize("operation", _bench_rank.OPERATIONS)
def test_bench_measures_and_checks(operation: str, tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    arguments = ["-r", "3", "--op", operation, "-b", "48", "-e", "100K", "-f", "8", "-n", "4", "-w", "1", "-c", "2"]
    done = call("bench", *arguments, "-J", str(file))
    assert done.returncode == 0, done.stdout + done.stderr
    results = json.loads(file.read_text())["results"]
    assert len(results) == 4 == len([line for line in done.stdout.splitlines() if not line.startswith("#")])
    for result in results:
        assert result["wrong"] == 0
        assert 0 < result["p50"] <= result["p99"]
        assert result["algbw"] == pytest.approx(result["size"] / result["time"] / 1e3)
        assert result["busbw"] == pytest.approx(result["algbw"] * 2 / 3)


def test_bench_has_several_sizes_unless_one_is_given(tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    for arguments, sizes in (
        ([], [4096 << step for step in range(11)]),
        (["-e", "16K"], [4096, 8192, 16384]),
        (["-b", "64"], [64]),
    ):
        done = call("bench", "-r", "2", "-n", "1", "-w", "0", *arguments, "-J", str(file))
        assert done.returncode == 0, done.stderr
        assert [result["size"] for result in json.loads(file.read_text())["results"]] == sizes


@pytest.mark.parametrize("operation", ["alltoallv", *with_full(["alltoall", "allgather"])])
def test_bench_beside_gloo(operation: str, tmp_path: Path) -> None:
    needs("torch")
    file = tmp_path / "out.json"
    done = call("bench", "-n", "2", "--op", operation, "--peer", "gloo", "-b", "6K", "--iters", "2", "-J", str(file))
    assert done.returncode == 0 and "gloo p50" in done.stdout, done.stdout + done.stderr
    (result,) = json.loads(file.read_text())["results"]
    assert result["wrong"] == 0 and result["gloo"] > 0 and result["copy"] > 0


def test_bench_of_a_workload_and_all_types() -> None:
    done = call("bench", "-r", "2", "--workload", "gptoss-120b/1024", "--op", "alltoallv", "-d", "int8", "-n", "1")
    if done.returncode == 1:
        assert "bfloat16 needs ml_dtypes" in done.stderr
    else:
        assert done.stdout.splitlines()[-1].split()[2] == "bfloat16"
    done = call("bench", "-r", "2", "-b", "1K", "-d", "double", "-n", "1", "-w", "0", "-c", "0")
    assert done.stdout.splitlines()[-1].split()[:3] == ["1024", "64", "float64"]


def test_bench_uses_the_launchers_ranks() -> None:
    done = call("run", "-n", "2", "-m", "a2a", "bench", "-b", "1K", "-n", "2")
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stdout.splitlines() if not line.startswith("[0]")] == []
    assert "[0] # alltoall, 2 ranks" in done.stdout
    done = call("bench", "-r", "3", A2A_RANK="0", A2A_SIZE="2", A2A_JOB="x")
    assert done.returncode == 2 and "-r 3: a2a run has started 2 ranks" in done.stderr


class Forgetful:
    """A communicator that does not write the last element."""

    def __init__(self, comm: a2a.Communicator) -> None:
        self._comm = comm

    def __getattr__(self, name: str) -> Any:
        return getattr(self._comm, name)

    def alltoall(self, send: Any, recv: Any) -> None:
        last = recv[-1].copy()
        self._comm.alltoall(send, recv)
        recv[-1] = last


def test_bench_counts_wrong_elements(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_bench_rank, "host_facts", lambda comm: {"hosts": 1, "messages": 0})
    sweep = _bench_rank.Sweep("alltoall", [1024], ["int32"], 2, 0, 2, 0, None, "zipf")
    with a2a.init(0, 1) as comm:
        (row,) = _bench_rank.run_rank(Forgetful(comm), sweep)  # type: ignore[arg-type]
        assert row.wrong == 2
        (row,) = _bench_rank.run_rank(comm, sweep)
        assert row.wrong == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-b", "1X"], "'1X' is not a size"),
        (["-d", "int3"], "-d int3: there are int8"),
        (["-b", "1M", "-e", "1K"], "sizes grow from -b to -e"),
        (["-i", "1K", "-f", "2"], "-i and -f: give one of them"),
        (["--workload", "gpt"], "unknown workload 'gpt'"),
        (["--workload", "dsv3-train", "--op", "allgather"], "a workload runs as global_scatter, alltoallv, dispatch"),
        (["-n", "0"], "-n 0: at least 1"),
        (["-b", "100000000000000000000"], "100000000000000000000 is more than a process can address"),
        (["-b", "1", "-e", "1G", "-i", "1"], "more than 10000 sizes from -b 1 to -e 1073741824"),
        (["-f", "nan"], "sizes grow from -b to -e"),
        (["-f", "inf"], "sizes grow from -b to -e"),
        (["--iters", "99999999999999"], "--iters 99999999999999: at least 1, at most 1000000000"),
        (["--seed", "-1"], "--seed: -1: at least 0"),
        (["--seed", "x"], "--seed: 'x' is no whole number"),
        (["-n", "3", "--workload", "mixtral-train"], "3 ranks do not divide 8 experts"),
        (["-n", "3", "--workload", "mixtral-train", "--op", "dispatch"], "3 ranks do not divide 8 experts"),
        (["-J", "/dev/zero"], "cannot write /dev/zero: it is no regular file"),
        (["--peer", "gloo", "--op", "dispatch"], "--peer: for alltoall, alltoallv, allgather, not for dispatch"),
    ],
)
def test_bench_refuses(arguments: list[str], message: str) -> None:
    done = call_here("bench", *arguments)
    assert done.returncode == 2 and message in done.stderr
