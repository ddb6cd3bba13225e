"""``a2a run`` as a user runs it: exit codes, output, signals, and what is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from commands import call, call_here, command, environment, is_alive

import a2a
from a2a.cli import _machine, _rank_output
from a2a.cli._verdict import End, verdict

PACKAGE = Path(a2a.__file__).parent


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], str]:
    def write(text: str) -> str:
        (tmp_path / "script.py").write_text(text)
        return str(tmp_path / "script.py")

    return write


SHOW = """
import os, sys
print(*(os.environ[f"A2A_{name}"] for name in ("RANK", "LOCAL_RANK", "SIZE")), sys.argv[1:])
print(os.environ["A2A_JOB"], os.environ.get("OMP_NUM_THREADS"), file=sys.stderr)
"""


def test_run_tells_ranks_who_they_are_and_prefixes_their_lines(script: Callable[[str], str]) -> None:
    done = call("run", "-n", "3", "--", script(SHOW), "-n", "x")
    assert done.returncode == 0
    assert sorted(done.stdout.splitlines()) == [f"[{rank}] {rank} {rank} 3 ['-n', 'x']" for rank in range(3)]
    lines = sorted(done.stderr.splitlines())
    threads = str(max(1, _machine.allowed_cpus() // 3))
    assert [line.split()[0] for line in lines] == ["[0]", "[1]", "[2]"]
    assert len({line.split()[1] for line in lines}) == 1 and {line.split()[2] for line in lines} == {threads}


def test_run_leaves_the_number_of_threads_alone_when_set_or_for_one_rank(script: Callable[[str], str]) -> None:
    assert call("run", "-n", "2", script(SHOW), OMP_NUM_THREADS="5").stderr.count(" 5\n") == 2
    assert call("run", "-n", "1", script(SHOW)).stderr.endswith(" None\n")


def test_two_jobs_have_two_names(script: Callable[[str], str]) -> None:
    names = {call("run", "-n", "1", script(SHOW)).stderr.split()[1] for _ in range(2)}
    assert len(names) == 2


TORCHS = """
import os, socket
names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
# One write: ranks of an inner job share a pipe, and print() writes word by word where nothing is buffered.
os.write(1, (" ".join(os.environ[name] for name in names) + "\\n").encode())
"""


def test_run_sets_what_torch_reads_unless_it_is_set(script: Callable[[str], str]) -> None:
    lines = [sorted(call("run", "-n", "2", script(TORCHS)).stdout.splitlines()) for _ in range(2)]
    ports = [job[0].split()[-1] for job in lines]
    assert ports[0] != ports[1]
    for port, job in zip(ports, lines, strict=True):
        assert job == [f"[{rank}] {rank} 2 {rank} 2 127.0.0.1 {port}" for rank in range(2)]
    lines[0] = sorted(call("run", "-n", "2", script(TORCHS), MASTER_ADDR="here", LOCAL_RANK="7").stdout.splitlines())
    assert [line.split()[1:6] for line in lines[0]] == [[str(rank), "2", "7", "2", "here"] for rank in range(2)]


def test_a_job_inside_a_job_has_numbers_and_a_port_of_its_own(script: Callable[[str], str]) -> None:
    inner = ["--no-python", "--", *command("run", "-n", "2", "--no-prefix", script(TORCHS))]
    lines = sorted(call("run", "-n", "2", *inner).stdout.splitlines())
    assert [line.split()[:5] for line in lines] == [[f"[{o}]", i, "2", i, "2"] for o in range(2) for i in "01"]
    ports = [line.split()[-1] for line in lines]
    assert ports[0] == ports[1] != ports[2] == ports[3]


@pytest.mark.parametrize("offset", [0, 1])  # torch's store; where ranks on several hosts meet
def test_a_jobs_port_is_free_for_it_and_taken_for_others(script: Callable[[str], str], offset: int) -> None:
    text = """
import os, socket, sys
port = int(os.environ["MASTER_PORT"]) + int(sys.argv[1])
with socket.socket() as other:
    try: other.bind(("", port))
    except OSError: print("taken")
with socket.socket() as store:
    store.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    store.bind(("", port))
    store.listen()
    print("free")
"""
    assert call("run", "-n", "1", "--no-prefix", script(text), str(offset)).stdout.split() == ["taken", "free"]


PADDLES = """
import os
names = ("TRAINER_ID", "TRAINERS_NUM", "RANK_IN_NODE", "CURRENT_ENDPOINT", "TRAINER_ENDPOINTS")
os.write(1, (" ".join(os.environ["PADDLE_" + name] for name in names) + "\\n").encode())
"""


def test_run_sets_what_paddle_reads_unless_it_is_set(script: Callable[[str], str]) -> None:
    lines = sorted(call("run", "-n", "3", script(PADDLES)).stdout.splitlines())
    endpoints = lines[0].split()[-1]
    each = endpoints.split(",")
    assert len(set(each)) == 3 and all(one.startswith("127.0.0.1:") for one in each)
    assert lines == [f"[{rank}] {rank} 3 {rank} {each[rank]} {endpoints}" for rank in range(3)]
    given = {"PADDLE_TRAINER_ENDPOINTS": "a:1,b:2", "PADDLE_RANK_IN_NODE": "7"}
    lines = sorted(call("run", "-n", "2", script(PADDLES), **given).stdout.splitlines())
    assert lines == ["[0] 0 2 7 a:1 a:1,b:2", "[1] 1 2 7 b:2 a:1,b:2"]
    inner = ["--no-python", "--", *command("run", "-n", "2", "--no-prefix", script(PADDLES))]
    lines = sorted(call("run", "-n", "2", *inner).stdout.splitlines())
    assert [line.split()[:4] for line in lines] == [[f"[{o}]", i, "2", i] for o in range(2) for i in "01"]
    assert len({line.split()[-1] for line in lines}) == 2


LONG = """
import os, sys, time
rank = int(os.environ["A2A_RANK"])
for _ in range(80):
    sys.stdout.buffer.write(b"%d" % rank * 65536)
sys.stdout.buffer.write(b"\\nabc\\r")
sys.stdout.flush()
time.sleep(0.3)
sys.stdout.buffer.write(b"\\ndef\\n\\nlast")
"""


def test_a_line_without_an_end_is_one_line_of_a_rank(script: Callable[[str], str]) -> None:
    """What follows a carriage return comes in another read."""
    line = "0" * 80 * 65536
    assert call("run", "-n", "1", script(LONG)).stdout == f"[0] {line}\n[0] abc\n[0] def\n[0] \n[0] last\n"
    lines = call("run", "-n", "3", script(LONG)).stdout.splitlines()
    for rank in range(3):
        own = [line.removeprefix(f"[{rank}] ") for line in lines if line.startswith(f"[{rank}] ")]
        assert "".join(own) == f"{rank}" * 80 * 65536 + "abcdeflast"
        assert all(len(piece) >= 1 << 16 for piece in own[:-5])  # the last piece may be short
    assert all(line[:4] in ("[0] ", "[1] ", "[2] ") for line in lines)


def test_a_line_without_an_end_takes_linear_time_and_bounded_memory(tmp_path: Path) -> None:
    with (tmp_path / "out").open("wb") as file:
        output = _rank_output.RankOutput(b"[0] ", file.fileno())
        kept, begin = 0, time.process_time()
        for _ in range(1024):
            output.write(b"x" * (1 << 16))
            kept = max(kept, len(output._rest))
        output.end()
    assert time.process_time() - begin < 5 and kept <= _rank_output._LONGEST_KEPT
    assert (tmp_path / "out").stat().st_size == (64 << 20) + len(b"[0] \n")


def test_run_without_prefix_and_as_module(script: Callable[[str], str], tmp_path: Path) -> None:
    script(SHOW)
    done = call("run", "-n", "1", "--no-prefix", "-m", "script", "a", PYTHONPATH=f"{tmp_path}:{PACKAGE.parent}")
    assert done.stdout == "0 0 1 ['a']\n"


def test_run_any_executable() -> None:
    lines = call("run", "-n", "2", "--no-python", "echo", "hi").stdout.splitlines()
    assert sorted(lines) == ["[0] hi", "[1] hi"]
    done = call("run", "-n", "2", "--no-python", "/no/such/program")
    assert (done.returncode, done.stderr) == (127, "a2a run: /no/such/program: No such file or directory\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-n", "2"], "which program? For example: a2a run -n 2 program.py"),
        (["-n", "0", "x.py"], "-n/-np/--ranks: 0 ranks: at least one rank is needed"),
        (["-n", "two", "x.py"], "-n/-np/--ranks: 'two' is not a number of ranks"),
        (["-n", "2", "no_such_file.py"], "no_such_file.py: no such file"),
        (["-n", "2", "echo"], "echo: no such file; echo is a command, which --no-python starts"),
        (["-n", "2", "no.module"], "no.module: no such file; -m no.module starts a module"),
        (["x.py"], "how many ranks? For example: a2a run -n 4 x.py"),
        (["-n", "2", "--no-prefxi", "x.py"], "there is no option or argument --no-prefxi; did you mean --no-prefix?"),
    ],
)
def test_wrong_command_lines(arguments: list[str], message: str) -> None:
    done = call_here("run", *arguments)
    assert done.returncode == 2 and done.stderr == f"a2a run: {message}\na2a run -h shows how to call it\n"


def test_run_knows_the_spelling_of_mpirun(script: Callable[[str], str]) -> None:
    assert len(call("run", "-np", "2", script("print('hi')")).stdout.splitlines()) == 2


def test_lines_are_whole_whatever_ranks_write(script: Callable[[str], str]) -> None:
    text = """
import os, sys
rank = os.environ["A2A_RANK"]
for line in range(300):
    for piece in ("<", rank * 50, str(line), ">", "\\r\\n" if line % 2 else "\\n"):
        os.write(1, piece.encode())
os.write(1, b"50 %\\r100 %\\rno newline")
"""
    lines = call("run", "-n", "4", script(text)).stdout.split("\n")
    for rank in range(4):
        own = [line.removeprefix(f"[{rank}] ") for line in lines if line.startswith(f"[{rank}]")]
        assert own == [f"<{str(rank) * 50}{line}>" for line in range(300)] + ["50 %", "100 %", "no newline"]
    assert len(lines) == 4 * 303 + 1 and lines[-1] == ""


FAIL = """
import os, sys, time, signal
if os.environ["A2A_RANK"] == "1":
    {action}
time.sleep(600)
"""


@pytest.mark.parametrize(
    ("action", "code", "message"),
    [
        ("sys.exit(7)", 7, "rank 1 exited with code 7; ended ranks 0, 2"),
        ("raise ValueError('bad')", 1, "ValueError: bad"),
        ("os.kill(os.getpid(), signal.SIGKILL)", 137, "rank 1 was killed by SIGKILL; ended ranks 0, 2"),
        ("os.abort()", 134, "rank 1 was killed by SIGABRT"),
    ],
)
def test_a_failing_rank_ends_the_job(script: Callable[[str], str], action: str, code: int, message: str) -> None:
    started = time.monotonic()
    done = call("run", "-n", "3", script(FAIL.format(action=action)))
    assert done.returncode == code
    assert message in done.stderr
    assert time.monotonic() - started < 20


FAIL_TOGETHER = """
import os, sys, time
import a2a
import numpy as np

comm = a2a.init(timeout=20)
rank = comm.rank
{action}
comm.barrier(timeout=4)
time.sleep(600)
"""


@pytest.mark.parametrize(
    ("action", "last"),
    [
        ("if rank == 1: raise ValueError('my bug')", "rank 1 raised ValueError: my bug"),
        ("if rank == 1: os._exit(3)", "rank 1 exited with code 3"),
        ("if rank == 1: os.kill(os.getpid(), 9)", "rank 1 was killed by SIGKILL"),
        (
            "if rank == 1: comm.alltoall(np.zeros(4), np.zeros(5))\ncomm.alltoall(np.zeros(3), np.zeros(3))",
            "rank 1 raised a2a.InvalidArgumentError: rank 1: ",
        ),
        (
            "comm.alltoallv(np.zeros(9), [1, 2, 3], np.zeros(9), [1, 2, 3])",
            "ranks 0, 1, 2 do not agree: a2a.MismatchError: alltoallv #1: ",
        ),
        ("if rank == 1: time.sleep(600)", "rank 1 did not come: ranks 0, 2 gave up: a2a.TimeoutError: barrier #1: "),
        ("if rank == 1: sys.exit(0)", "ranks 0, 2 gave up: a2a.PeerLostError: barrier #1: "),
    ],
)
@pytest.mark.parametrize("prefix", [True, False])
def test_the_last_line_has_the_rank_that_caused_it(
    script: Callable[[str], str], action: str, last: str, prefix: bool
) -> None:
    """And not the one that was gone first: those that notice a failure end before the one that failed does."""
    done = call("run", "-n", "3", *([] if prefix else ["--no-prefix"]), script(FAIL_TOGETHER.format(action=action)))
    lines = done.stderr.splitlines()
    assert lines[-1].startswith(f"a2a run: {last}"), done.stderr
    assert [line for line in lines[:-1] if line.startswith("a2a run:")] == []
    assert done.returncode == {"os._exit(3)": 3, "os.kill(os.getpid(), 9)": 137}.get(action.partition(": ")[2], 1)


def test_a_rank_that_has_come_is_not_said_to_be_missing() -> None:
    told = (
        "gave up: a2a.TimeoutError: barrier #1: timeout on rank 0, which still waits for rank 2; rank 1 has come; more"
    )
    said = verdict([End(0, 1, "exited with code 1", told)], [1, 2])
    assert said.startswith("rank 0 gave up: ") and said.endswith("; ended ranks 1, 2")
    late = verdict([End(rank, 1, "exited with code 1", told) for rank in (0, 1)], [2])
    assert late.startswith("rank 2 did not come: ranks 0, 1 gave up: ")


def test_an_error_that_a_program_wraps_is_still_another_ranks(script: Callable[[str], str]) -> None:
    wrap = "try:\n    comm.barrier()\nexcept a2a.Error as e:\n    raise RuntimeError('step 7 failed') from e"
    action = f"if rank == 2: time.sleep(1); raise KeyError('first')\n{wrap}"
    done = call("run", "-n", "3", script(FAIL_TOGETHER.format(action=action)))
    assert done.stderr.splitlines()[-1].startswith("a2a run: rank 2 raised KeyError: 'first'"), done.stderr


def test_a_child_of_a_rank_does_not_speak_for_it(script: Callable[[str], str]) -> None:
    child = "import a2a; a2a.init(0, 1); raise ValueError('only a child')"
    action = f"import subprocess; subprocess.run([sys.executable, '-c', {child!r}]); sys.exit(5 if rank == 1 else 0)"
    done = call("run", "-n", "2", script(FAIL_TOGETHER.format(action=action)))
    assert done.stderr.splitlines()[-1].startswith("a2a run: rank 1 exited with code 5"), done.stderr


def test_a_rank_that_ignores_sigterm_is_killed(script: Callable[[str], str]) -> None:
    text = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + FAIL.format(
        action="time.sleep(1); sys.exit(3)"
    )
    started = time.monotonic()
    assert call("run", "-n", "2", script(text)).returncode == 3
    assert 5 < time.monotonic() - started < 25


WAIT = """
import os, signal, subprocess, sys, time
{setup}
child = subprocess.Popen(["sleep", "600"])
print("pids", os.getpid(), child.pid, flush=True)
time.sleep(600)
"""


@contextmanager
def running(file: str, ranks: int) -> Iterator[tuple[subprocess.Popen[str], list[int], list[int]]]:
    """The launcher, its ranks and the ranks' children, once all are up."""
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command("run", "-n", str(ranks), file), env=environment(), stdout=pipe, stderr=pipe, text=True
    ) as launcher:
        assert launcher.stdout is not None
        numbers = [list(map(int, launcher.stdout.readline().split()[2:])) for _ in range(ranks)]
        try:
            yield launcher, [pair[0] for pair in numbers], [pair[1] for pair in numbers]
        finally:
            launcher.kill()
            for _, child in numbers:
                if is_alive(child, patience=0):
                    os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_end_ranks_and_all_that_they_started(script: Callable[[str], str], number: signal.Signals) -> None:
    with running(script(WAIT.format(setup="")), 2) as (launcher, ranks, others):
        launcher.send_signal(number)
        assert launcher.wait(20) == 128 + number
        assert not any(is_alive(pid) for pid in ranks + others)


def test_ranks_may_answer_a_signal_in_their_own_way(script: Callable[[str], str]) -> None:
    setup = "def leave(*_): print('saving', flush=True); sys.exit(0)\nsignal.signal(signal.SIGTERM, leave)"
    with running(script(WAIT.format(setup=setup)), 2) as (launcher, _, _):
        launcher.terminate()
        output, _ = launcher.communicate(timeout=20)
        assert launcher.returncode == 143
        assert sorted(output.splitlines()) == ["[0] saving", "[1] saving"]


def test_a_second_signal_kills_at_once(script: Callable[[str], str]) -> None:
    setup = "signal.signal(signal.SIGINT, lambda *_: print('no', flush=True))"
    with running(script(WAIT.format(setup=setup) + "time.sleep(600)\n" * 3), 1) as (launcher, ranks, _):
        started = time.monotonic()
        launcher.send_signal(signal.SIGINT)
        assert launcher.stdout is not None and launcher.stdout.readline() == "[0] no\n"
        launcher.send_signal(signal.SIGINT)
        assert launcher.wait(20) == 130
        assert time.monotonic() - started < 4
        assert not is_alive(ranks[0])


def test_ranks_do_not_outlive_a_killed_launcher(script: Callable[[str], str]) -> None:
    with running(script(WAIT.format(setup="")), 3) as (launcher, ranks, _):
        launcher.kill()
        launcher.wait(20)
        assert not any(is_alive(pid) for pid in ranks)


def test_a_reader_that_leaves_ends_the_job(script: Callable[[str], str]) -> None:
    text = "import time\nwhile True: print('x' * 100)"
    with subprocess.Popen(command("run", "-n", "2", script(text)), stdout=subprocess.PIPE, text=True) as launcher:
        assert launcher.stdout is not None and "x" in launcher.stdout.readline()
        launcher.stdout.close()
        assert launcher.wait(20) == 128 + signal.SIGPIPE


@pytest.mark.full
def test_examples_run_on_four_ranks() -> None:
    folder = Path(__file__).parents[3] / "examples"
    if not folder.is_dir():
        pytest.skip("no source tree beside the tests")
    names = ("moe_dispatch.py", "mixed_frameworks.py", "quantized_all_reduce.py", "reshard_trainer_generator.py")
    for name in names:
        done = call("run", "-n", "4", str(folder / name))
        assert done.returncode == 0, done.stdout + done.stderr
        assert [rank for rank in range(4) if f"[{rank}] rank {rank}: " not in done.stdout] == []


@pytest.mark.parametrize("code", [0, 7])
def test_who_started_it_may_have_blocked_and_ignored_sigchld(script: Callable[[str], str], code: int) -> None:
    def hide_ends() -> None:
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD, signal.SIGTERM])

    program = command("run", "-n", "2", script(f"import sys; sys.exit({code})"))
    done = subprocess.run(
        program, env=environment(), capture_output=True, timeout=30, check=False, preexec_fn=hide_ends
    )
    assert done.returncode == code, done.stderr
