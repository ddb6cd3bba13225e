"""What pytest does with tests on ranks: options, debuggers, coverage, other plugins; and what it costs without."""

from __future__ import annotations

import importlib.util
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from kit_programs import run_pytest

pytest.importorskip("a2a_pytest")

TESTS = """
import os
import pytest
import measured


@pytest.fixture(scope="session")
def whole():
    yield os.getpid()
    print("torn down", os.getpid())


@pytest.mark.ranks(2)
def test_fails(comm, whole):
    value = 41 + measured.double(comm.rank)
    assert value == 0


@pytest.mark.ranks(2)
def test_stops(comm):
    if comm.rank == 1 and "STOPS" in os.environ:
        breakpoint()
    comm.barrier()


@pytest.mark.ranks(2)
def test_passes(comm, whole):
    comm.barrier()


def test_plain():
    pass
"""
MEASURED = """
def double(x):
    if x == 0:
        return 0
    if x == 1:
        return 2
    return None
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "test_it.py").write_text(TESTS)
    (tmp_path / "measured.py").write_text(MEASURED)
    return tmp_path


def verdicts(run: object) -> dict[str, list[str]]:
    return {name: case.verdicts for name, case in run.cases.items()}  # type: ignore[attr-defined]


@pytest.mark.smoke
def test_stops_after_the_first_failure(folder: Path) -> None:
    run = run_pytest(folder, "-x", "--durations=0", "-vv")
    assert verdicts(run) == {"test_fails": ["failure"]} and "stopping after 1 failures" in run.printed
    assert re.search(r"s call +test_it.py::test_fails", run.printed)


def test_pdb_on_one_rank(folder: Path) -> None:
    run = run_pytest(folder, "--pdb", typed="p 'value is', value\nc\n")
    assert len(re.findall(r"\('value is', 4[13]\)", run.printed)) == 1, run.printed
    assert verdicts(run)["test_passes"] == [] and run.printed.count("entering PDB") == 1


def test_trace_on_one_rank(folder: Path) -> None:
    run = run_pytest(folder, "--trace", "-k", "passes", typed="p 'rank is', comm.rank\nc\n")
    assert run.printed.count("('rank is', 0)") == 1 and verdicts(run) == {"test_passes": []}, run.printed


def test_records_of_the_users_own(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a folder that has other files, which stay."""
    records = folder / "records"
    records.mkdir()
    (records / "broken.a2a").write_text("no record")
    monkeypatch.setenv("A2A_DUMP", str(records))
    run = run_pytest(folder, "-k", "passes")
    assert verdicts(run) == {"test_passes": []}, run.printed
    assert len([*records.iterdir()]) == 3


def test_the_end_of_a_debugger_is_that_of_the_run(folder: Path) -> None:
    run = run_pytest(folder, "--pdb", typed="q\n")
    assert set(verdicts(run)) == {"test_fails"} and "Quitting debugger" in run.printed, run.printed


def test_a_debugger_has_the_terminal(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks are in process groups of their own, from which the terminal does not let them read."""
    monkeypatch.setenv("STOPS", "1")
    options = [
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        "-c",
        os.devnull,
        "--rootdir",
        str(folder),
        "-k",
        "not fails",
    ]
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(sys.executable, [sys.executable, "-m", "pytest", *options, str(folder / "test_it.py")])
    printed, typed, deadline = b"", False, time.monotonic() + 60
    try:
        while time.monotonic() < deadline:
            if not select.select([terminal], [], [], 0.2)[0]:
                continue
            try:
                printed += os.read(terminal, 1 << 16)
            except OSError:  # the other end is closed
                break
            if b"(Pdb)" in printed and not typed:
                typed = os.write(terminal, b"p 'rank is', comm.rank\nc\n") > 0
    finally:
        os.close(terminal)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert code == 0 and b"('rank is', 1)" in printed, printed.decode()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_run_that_is_ended_leaves_nothing(folder: Path, number: int) -> None:
    (folder / "test_it.py").write_text(
        "import pathlib, time, pytest\n@pytest.mark.ranks(2)\ndef test_it(comm):\n"
        "    pathlib.Path('started').write_text('')\n    time.sleep(100)\n"
    )
    options = ["-p", "no:cacheprovider", "-p", "no:xdist", "-c", os.devnull, "--rootdir", str(folder), "test_it.py"]
    command = [sys.executable, "-m", "pytest", *options]
    with subprocess.Popen(command, cwd=folder, env=os.environ | {"TMPDIR": str(folder)}, stdout=subprocess.PIPE) as run:
        deadline = time.monotonic() + 60
        while not (folder / "started").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        ranks = children_of(run.pid)
        assert len(ranks) == 3
        run.send_signal(number)
        printed = run.communicate(timeout=60)[0].decode()
    assert run.returncode == (2 if number == signal.SIGINT else -number), printed
    assert ("KeyboardInterrupt" in printed) == (number == signal.SIGINT), printed
    deadline = time.monotonic() + 10
    while [*folder.glob("a2a-*")] or any(Path(f"/proc/{pid}").exists() for pid in ranks):
        assert time.monotonic() < deadline, [*folder.glob("a2a-*")]
        time.sleep(0.02)


def children_of(pid: int) -> list[int]:
    """All processes below this one."""
    found = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, path.read_text().split()):
            found += [child, *children_of(child)]
    return found


def test_without_the_plugin(folder: Path) -> None:
    run = run_pytest(folder, "-p", "no:a2a")
    assert verdicts(run)["test_plain"] == [] and "fixture 'comm' not found" in run.printed


def test_xdist(folder: Path) -> None:
    if importlib.util.find_spec("xdist") is None:
        pytest.skip("pytest-xdist is not installed")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", str(folder)]
    done = subprocess.run(
        [*command, "-n", "2", str(folder / "test_it.py")], capture_output=True, text=True, timeout=90, cwd=folder
    )
    assert "1 failed, 3 passed" in done.stdout, done.stdout
    assert re.search(r"rank [01] failed first:.*\n(.*\n)*?E +assert 4[13] == 0", done.stdout), done.stdout


def test_coverage_of_all_ranks(folder: Path) -> None:
    if importlib.util.find_spec("pytest_cov") is None:
        pytest.skip("pytest-cov is not installed")
    run = run_pytest(folder, "--cov=measured", "--cov-report=term-missing", "-p", "pytest_cov")
    assert re.search(r"measured.py +6 +1 +83% +7", run.printed), run.printed
    assert [path.name for path in folder.glob(".coverage*")] == [".coverage"]


def test_a_run_without_ranks_imports_nothing(tmp_path: Path) -> None:
    text = (
        "import sys\ndef test_it():\n    assert not {'a2a', 'numpy', 'torch', 'a2a_pytest._stage'} & set(sys.modules)\n"
    )
    (tmp_path / "test_it.py").write_text(text)
    run = run_pytest(tmp_path)
    assert run.code == 0 and "a2a_pytest" in sys.modules, run.printed


def test_a_test_counts_once_where_all_ranks_die(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "import os, pytest\n"
        "from a2a import testing\n"
        "@pytest.mark.ranks(2)\ndef test_dies(comm):\n    os._exit(3)\n"
        "@pytest.mark.ranks(2)\n"
        "def test_dies_as_it_asked(comm, faults):\n"
        "    faults.kill(0, at='here')\n    faults.kill(1, at='here')\n    testing.point('here')\n"
    )
    run = run_pytest(tmp_path)
    assert re.search(r"= 1 failed, 1 passed in", run.printed), run.printed
    assert verdicts(run) == {"test_dies": ["failure"], "test_dies_as_it_asked": []}


def test_a_rank_that_dies_between_tests_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "import os, threading, time, pytest\n"
        "@pytest.mark.ranks(2)\n"
        "def test_leaves_a_thread(comm):\n    threading.Timer(0.2, lambda: os._exit(9)).start()\n"
        "def test_plain():\n    time.sleep(0.6)\n"
        "@pytest.mark.ranks(2)\ndef test_on_ranks(comm):\n    comm.barrier()\n"
    )
    run = run_pytest(tmp_path)
    assert run.code == 0 and "3 passed" in run.printed, run.printed


def test_fixtures_here_are_torn_down_between_tests_on_ranks(tmp_path: Path) -> None:
    """What a test without the mark has set up stays set up for those with the mark in its module, and no longer."""
    for name in "ab":
        (tmp_path / f"test_{name}.py").write_text(
            "import pytest\n"
            "@pytest.fixture(scope='module')\n"
            "def kept():\n    yield 1\n    print('torn down')\n    raise OSError('in the end')\n"
            "def test_first(kept):\n    pass\n"
            "@pytest.mark.ranks(2)\ndef test_on_ranks(comm):\n    pass\n"
        )
    run = run_pytest(tmp_path)
    assert "4 passed, 2 errors" in run.printed, run.printed
    assert run.printed.count("ERROR at teardown of test_on_ranks") == 2, run.printed


def test_fixtures_of_the_session_are_torn_down_on_ranks(folder: Path) -> None:
    (folder / "conftest.py").write_text(
        "import os, pathlib, pytest\n"
        "@pytest.fixture(scope='session')\n"
        "def marked():\n"
        "    yield\n"
        "    pathlib.Path(f'down-{os.getpid()}').write_text('')\n"
    )
    (folder / "test_it.py").write_text(
        "import pytest\n@pytest.mark.ranks(2)\ndef test_it(comm, marked):\n    pass\ndef test_plain():\n    pass\n"
    )
    assert run_pytest(folder).code == 0
    assert len([*folder.glob("down-*")]) == 2
