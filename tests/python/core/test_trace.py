"""A2A_TRACE and `a2a trace`, and A2A_LOG."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import call, command, environment

import a2a
from a2a import dump, trace


def steps(comm: a2a.Communicator, late: int) -> None:
    send = np.ones(comm.size * 1000)
    recv = np.empty_like(send)
    for step in range(30):
        if comm.rank == late and step % 10 == 9:
            time.sleep(0.05)
        comm.alltoall(send, recv)
    counts = [0] * comm.size
    counts[(comm.rank + 1) % comm.size] = 7
    comm.exchange(np.ones(7), counts)
    works = [comm.allreduce(np.ones(5000), async_op=True) for _ in range(3)]
    for work in works:
        work.wait()
    comm.barrier()


@pytest.fixture
def folder(tmp_path: Path, run_ranks: Callable[..., list[Any]], monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("A2A_TRACE", str(tmp_path / "timeline"))
    run_ranks(3, steps, 1)
    return tmp_path / "timeline"


def test_every_operation_is_there_with_its_bytes(folder: Path) -> None:
    groups = trace.merge(map(trace.read, trace.find([folder])))
    (group,) = (one for one in groups if one.traffic().any())
    assert (group.label, group.size, len(group.ranks)) == ("world", 3, 3)
    for rank in range(3):
        operations = group.operations(rank)
        assert [one.number for one in operations] == list(range(1, len(operations) + 1))
        assert [one.op for one in operations[:30]] == ["alltoall"] * 30
        assert all(one.sent == (8000,) * 3 and one.expected == (8000,) * 3 for one in operations[:30])
        assert sum(one.asynchronous for one in operations) == 3
        assert all(one.started <= one.ended and not one.failed for one in operations)
    moved = group.traffic() - 30 * 8000
    assert all(moved[rank, (rank + 1) % 3] >= 7 * 8 for rank in range(3))


def test_who_is_late_is_named(folder: Path) -> None:
    done = subprocess.run(command("trace", str(folder)), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "straggler: rank 1 kept others waiting" in done.stdout
    groups = trace.merge(map(trace.read, trace.find([folder])))
    waited = groups[0].waited()
    assert waited[0, 1] > 0.1 and waited[2, 1] > 0.1  # three times 50 ms
    drawn = json.loads((folder / "trace.json").read_text())["traceEvents"]
    assert {event["tid"] for event in drawn if event["ph"] == "X"} == {0, 1, 2}
    assert sum(event["ph"] == "b" for event in drawn) == sum(event["ph"] == "e" for event in drawn) == 9
    assert {
        event["args"]["waited for rank"]
        for event in drawn
        if event.get("tid") == 0 and "waited, us" in event.get("args", {})
    } >= {1}


def sparse(comm: a2a.Communicator) -> None:
    if comm.rank == 2:
        time.sleep(0.3)
    counts = [4 if comm.rank < 2 and peer < 2 else 0 for peer in range(comm.size)]
    comm.alltoallv(np.ones(sum(counts)), counts, np.empty(sum(counts)), counts)


def test_a_late_rank_without_bytes_is_named_too(
    tmp_path: Path, run_ranks: Callable[..., list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A2A_TRACE", str(tmp_path))
    run_ranks(3, sparse)
    group = trace.merge(map(trace.read, trace.find([tmp_path])))[0]
    assert group.waited()[:2].argmax(axis=1).tolist() == [2, 2]


def dropped(comm: a2a.Communicator) -> None:
    x = np.ones(comm.size)
    for _ in range(20_000):
        comm.alltoall(x, np.empty_like(x), async_op=True)
    comm.barrier()


def test_work_that_is_dropped_is_in_the_timeline(
    tmp_path: Path, run_ranks: Callable[..., list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A2A_TRACE", str(tmp_path))
    run_ranks(1, dropped)
    timelines = list(map(trace.read, trace.find([tmp_path])))
    assert max(len(one.operations) for one in timelines) >= 20_000


def test_clocks_of_other_hosts_are_moved(folder: Path) -> None:
    def elsewhere(one: trace.Timeline, by: int) -> trace.Timeline:
        moved = {n: replace(op, started=op.started + by, ended=op.ended + by) for n, op in one.operations.items()}
        return replace(one, host="other", operations=moved)

    ranks = [trace.read(path) for path in trace.find([folder])]
    for by in (100_000_000_000, -100_000_000_000):
        group = trace.Group([ranks[0], ranks[1], elsewhere(ranks[2], by)])
        apart = [group.operations(2)[step].ended - group.operations(0)[step].ended for step in range(30)]
        assert max(map(abs, apart)) < 1_000_000_000


def test_what_was_not_written_whole_is_left_out(folder: Path) -> None:
    path = trace.find([folder])[0]
    whole = trace.read(path)
    path.write_bytes(path.read_bytes()[:-5])
    assert set(whole.operations) - set(trace.read(path).operations) == {max(whole.operations)}
    path.write_bytes(b"something else")
    with pytest.raises(a2a.InvalidArgumentError, match="no timeline"):
        trace.read(path)


CUT = """
import a2a, numpy as np, os, resource, signal
comm = a2a.init(timeout=20)
x, y = np.ones(2000), np.ones(2000)
if comm.rank == 1:
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # Python ignores it; C++ programs die of it
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))  # as a full disk
for _ in range(3000):
    comm.alltoall(x, y)
if comm.rank == 0: comm.send(x[:1], 1)
if comm.rank == 1: comm.recv(y[:1])
comm.close()
print("done")
"""


def test_a_timeline_that_is_cut_off_says_so(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(CUT)
    traced = tmp_path / "traced"
    done = call("run", "-n", "2", str(tmp_path / "program.py"), A2A_TRACE=str(traced))
    assert done.returncode == 0 and done.stdout.count("done") == 2, done.stderr
    assert re.fullmatch(r"\[1\] a2a: rank 1: .*a2atrace: the timeline is incomplete .*: File too large\n", done.stderr)
    (group,) = trace.merge(map(trace.read, trace.find([traced])))
    whole, cut = group.ranks
    missing = len(whole.operations) - len(cut.operations)
    assert (whole.missing, whole.incomplete, len(whole.messages)) == (0, "", 1)
    assert 1000 < missing < 3000 and (cut.missing, cut.incomplete) == (missing + 1, "File too large")
    words = f"incomplete: rank 1: {missing + 1} operations or messages are missing: File too large"
    assert words in call("trace", str(traced)).stdout
    assert words in call("replay", str(traced), "--simulate").stderr


KILLED = """
import a2a, numpy as np, os, signal
comm = a2a.init(timeout=20)
for _ in range(10): comm.allreduce(np.ones(3))
if comm.rank == 1: os.kill(os.getpid(), signal.SIGKILL)
comm.barrier()
"""


def test_a_timeline_of_a_killed_rank_says_so(tmp_path: Path) -> None:
    traced = tmp_path / "traced"
    both = environment(A2A_TRACE=str(traced), A2A_JOB=str(tmp_path), A2A_SIZE="2")
    ranks = [
        subprocess.Popen([sys.executable, "-c", KILLED], env=both | {"A2A_RANK": str(rank)}, stderr=subprocess.DEVNULL)
        for rank in range(2)
    ]
    assert [rank.wait(60) for rank in ranks] == [1, -signal.SIGKILL]
    said = call("trace", str(traced)).stdout
    assert "incomplete: rank 1: 11 operations or messages are missing: the rank runs, or was killed" in said
    assert "incomplete: rank 0" not in said and "straggler" not in said


def test_a_timeline_that_was_truncated_says_so(folder: Path) -> None:
    path = trace.find([folder])[0]
    data, size = path.read_bytes(), 264
    number = len(trace.read(path).operations)
    for content, missing, why in (
        (data[:size], number, f"it ends after {size} of {len(data)} bytes"),
        (data[:-1], 1, "it ends within the entry at byte"),
        (data[:-104] + bytes(104), 1, "there are zeros from byte"),
        (data[:size] + bytes(1 << 20), number, f"there are zeros from byte {size} on"),
    ):
        path.write_bytes(content)
        found = trace.read(path)
        assert found.missing == missing and found.incomplete.startswith(why), found.incomplete
    path.write_bytes(data)
    assert (trace.read(path).missing, trace.read(path).incomplete) == (0, "")


OTHERS = """
import a2a, os, socket, sys
name = f"rank0-of-1.{socket.gethostname()}.{os.getpid()}.1."
for ending in ("a2atrace", "a2atrace.new", "a2a", "a2a.new"):
    path = os.path.join(sys.argv[1], name + ending)
    os.mkfifo(path) if sys.argv[2] == "pipe" else os.symlink(sys.argv[1] + "/victim", path)
with a2a.init(0, 1, timeout=2) as comm:
    comm.barrier()
print("made")
"""


@pytest.mark.parametrize("what", ["pipe", "link"])
def test_what_others_put_in_the_folder_is_not_opened(what: str, tmp_path: Path) -> None:
    """A pipe would block for ever, and the file behind a link would be overwritten."""
    (tmp_path / "victim").write_text("precious")
    env = environment(A2A_TRACE=str(tmp_path), A2A_DUMP=str(tmp_path))
    line = [sys.executable, "-c", OTHERS, str(tmp_path), what]
    done = subprocess.run(line, env=env, capture_output=True, text=True, timeout=30, check=False)
    assert done.stdout == "made\n" and done.stderr == ""
    assert (tmp_path / "victim").read_text() == "precious"
    assert trace.read(trace.find([tmp_path])[0]).operations
    assert dump.read(dump.find([tmp_path])[0]).entries
    assert not list(tmp_path.glob("*.new"))


def test_nothing_to_read(tmp_path: Path) -> None:
    done = subprocess.run(command("trace", str(tmp_path)), capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "no timelines" in done.stderr


def test_a_folder_that_cannot_be_made_stops_nobody(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    program = "import a2a, numpy as np\nwith a2a.init() as comm: comm.allreduce(np.ones(3))\nprint('done')"
    env = {"A2A_TRACE": str(tmp_path / "file"), "PATH": "/usr/bin"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=env, check=False)
    assert done.stdout == "done\n" and done.stderr.count("operations are not traced") == 1


@pytest.mark.parametrize("word", ["info", "DEBUG"])
def test_the_log_says_how_ranks_met(word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A2A_LOG", word)
    (tmp_path / "program.py").write_text("import a2a\nwith a2a.init(): pass\n")
    done = subprocess.run(
        command("run", "-n", "2", str(tmp_path / "program.py")), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    said = done.stdout + done.stderr
    assert all(f"rank {rank} of 2" in said for rank in range(2))
    assert ("bytes of each pair" in said) == (word == "DEBUG")


def test_a_word_that_is_no_level() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import a2a; a2a.init()"],
        env={"A2A_LOG": "loud"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "A2A_LOG=loud in the environment is none of warning, info, debug" in done.stderr


@pytest.mark.parametrize(("ask", "said"), [("", False), ("logging.getLogger('a2a').setLevel('INFO')", True)])
def test_only_a_program_that_asks_gets_the_log(ask: str, said: bool) -> None:
    """Paddle sets the root logger to INFO, as here."""
    program = f"import logging; logging.basicConfig(level='INFO'); import a2a; {ask}\na2a.init(0, 1)"
    done = subprocess.run([sys.executable, "-c", program], env={}, capture_output=True, text=True, check=True)
    assert ("rank 0 of 1" in done.stderr) == said, done.stderr


def send_in_a_ring(comm: a2a.Communicator) -> None:
    to, source = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    work = comm.send(np.ones(100, np.int16), to, async_op=True)
    assert comm.recv(np.empty(100, np.int16)) == source
    work.wait()
    work.wait()


def test_messages_are_in_the_timeline(
    run_ranks: Callable[..., list[Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A2A_TRACE", str(tmp_path))
    run_ranks(3, send_in_a_ring)
    (group,) = [one for one in trace.merge(map(trace.read, trace.find([tmp_path]))) if one.label == "world"]
    for rank in range(3):
        sent, received = sorted(group.messages(rank), key=lambda one: not one.sends)
        assert (sent.sends, sent.peer, sent.nbytes, sent.dtype) == (True, (rank + 1) % 3, 200, "int16")
        assert (received.sends, received.peer, received.nbytes) == (False, (rank - 1) % 3, 200)
        assert sent.asynchronous and not received.asynchronous and not sent.failed
        assert group.traffic()[rank, (rank + 1) % 3] == 200
    names = {event["name"] for event in trace.events([group])["traceEvents"]}
    assert {"send to 1", "recv from 1"} <= names
