"""Files that others may have written or may write to: each reader refuses what makes no sense in a line that names the
file, and never hangs, runs out of memory or prints what steers a terminal. Nothing is written through links."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import random
import re
import signal
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import call_here

import a2a
from a2a import _files, _timelines, dump, trace, traffic

EXTREMES = (0, 1, 2, 3, 255, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**53, 2**57, 2**62, 2**63 - 1, 2**63, 2**64 - 1)
SECONDS = 20.0  # for one command on a machine with other work; most take some milliseconds


def steps(comm: a2a.Communicator) -> None:
    send = np.ones(comm.size * 4)
    for _ in range(3):
        comm.alltoall(send, np.empty_like(send))
    comm.alltoallv(np.ones(3), [1, 2], np.empty(2 * (comm.rank + 1)), [comm.rank + 1] * 2)
    if comm.rank == 0:
        comm.send(np.ones(5), 1)
    else:
        comm.recv(np.empty(5))
    comm.barrier()


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, bytes]]:
    """What this version writes, by command and name."""
    folder = tmp_path_factory.mktemp("written")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("A2A_TRACE", str(folder / "trace"))
        patch.setenv("A2A_DUMP", str(folder / "dump"))
        a2a.spawn(steps, 2)
    (folder / "bytes.csv").write_text("0,100\n300,0\n")
    traffic.write(folder / "param", traffic.read(folder / "bytes.csv"))
    (folder / "cluster.json").write_text('{"ranks_per_host": 4, "link": 1.25e10, "latency": 1e-5, "ports": "shared"}')
    world = {trace.read(path).group for path in trace.find([folder / "trace"]) if trace.read(path).label == "world"}
    return {
        "trace": {p.name: p.read_bytes() for p in trace.find([folder / "trace"]) if trace.read(p).group in world},
        "dump": {p.name: p.read_bytes() for p in dump.find([folder / "dump"]) if dump.read(p).group in world},
        "param": {p.name: p.read_bytes() for p in (folder / "param").iterdir()},
        "csv": {"bytes.csv": (folder / "bytes.csv").read_bytes()},
        "cluster": {"cluster.json": (folder / "cluster.json").read_bytes()},
    }


COMMANDS = {
    "trace": ["trace X", "replay X --simulate --schedule longest", "replay X -o X/out.csv"],
    "dump": ["explain X --all", "explain X --json"],
    "param": ["replay X --simulate --schedule longest", "replay X -o X/out.csv"],
    "csv": ["replay X/bytes.csv --simulate --schedule longest", "simulate --traffic X/bytes.csv"],
    "cluster": ["simulate -n 8 --cluster X/cluster.json"],
}


@contextlib.contextmanager
def time_limit() -> Iterator[None]:
    def too_late(*_: object) -> None:
        raise AssertionError(f"it takes more than {SECONDS} s")

    before = signal.signal(signal.SIGALRM, too_late)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def judge(line: str, folder: Path) -> str:
    """Run a command on files and return what it says. It ends in time, and by words where it ends in an error."""
    with time_limit():
        done = call_here(*line.replace("X", str(folder)).split(" "))
    said = done.stdout + done.stderr
    assert done.returncode in (0, 1, 2), said
    assert all(one.isprintable() or one == "\n" for one in said), repr(said)
    if "explain" not in line:
        assert len(done.stderr.splitlines()) <= 3, done.stderr
    assert max(map(len, done.stderr.splitlines()), default=0) < 600
    return said


def put(folder: Path, files: dict[str, bytes]) -> Path:
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


# ---- damage at random ------------------------------------------------------------------------------------------------


def damaged(content: bytes, chance: random.Random) -> bytes:
    """Flip a bit, cut the end off, put an extreme number or zeros somewhere, repeat a part."""
    data = bytearray(content)
    for _ in range(chance.choice((1, 1, 2, 4))):
        at = chance.randrange(min(len(data), chance.choice((40, 600, 1 << 30))) or 1)
        kind = chance.randrange(5)
        if kind == 0 and data:
            data[at] ^= 1 << chance.randrange(8)
        elif kind == 1:
            del data[at:]
        elif kind == 2:
            width = chance.choice((4, 8))
            at -= at % width
            data[at : at + width] = (chance.choice(EXTREMES) % (1 << 8 * width)).to_bytes(width, "little")
        elif kind == 3:
            length = chance.randrange(1, 200)
            data[at : at + length] = bytes(length)
        else:
            data[at:at] = data[at : at + chance.randrange(1, 200)]
    return bytes(data)


WORDS = (
    *("-1", "-0", "1e18", "1e400", "NaN", "-Infinity", "1.5", "9" * 30, "9" * 5000, str(2**62), str(2**63), "[" * 9999),
    *("null", "true", '"x"', "[]", "{}", '""', '"\\ud800"', '"\\u001b]0;x"', "\x1b[2J", "\x00"),
)


def reworded(content: bytes, chance: random.Random) -> bytes:
    """Put another word in the place of a number."""
    text = content.decode()
    found = chance.choice(list(re.finditer(r"\d+(\.\d+)?(e-?\d+)?", text)))
    return (text[: found.start()] + chance.choice(WORDS) + text[found.end() :]).encode()


@pytest.mark.parametrize("kind", COMMANDS)
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.full)])
def test_damaged_files(kind: str, seed: int, written: dict[str, dict[str, bytes]], tmp_path: Path) -> None:
    chance = random.Random(f"{kind} {seed}")
    for number in range(400 if seed else 60):
        folder = put(tmp_path / f"{kind}{number}", written[kind])
        victim = chance.choice(sorted(folder.iterdir()))
        change = damaged if kind in ("trace", "dump") or chance.random() < 0.3 else reworded
        victim.write_bytes(change(victim.read_bytes(), chance))
        judge(chance.choice(COMMANDS[kind]), folder)


# ---- an extreme number in every field --------------------------------------------------------------------------------


def in_each_field(content: bytes, layout: struct.Struct, at: int) -> Iterator[bytes]:
    """Yield the file with an extreme number in one field of a structure there."""
    fields = list(layout.unpack_from(content, at))
    for number, field in enumerate(fields):
        if isinstance(field, bytes):
            continue
        for extreme in EXTREMES:
            changed = [*fields[:number], extreme, *fields[number + 1 :]]
            with contextlib.suppress(struct.error):  # more than the field holds
                yield content[:at] + layout.pack(*changed) + content[at + layout.size :]


def entry_of(content: bytes, kind: int) -> int:
    at = _timelines._HEADER.size + _timelines._END.size
    while _timelines._ENTRY.unpack_from(content, at)[0] != kind:
        at += _timelines._ENTRY.unpack_from(content, at)[1]
    return at


def test_extreme_numbers_in_timelines(written: dict[str, dict[str, bytes]], tmp_path: Path) -> None:
    name, content = next(iter(written["trace"].items()))
    folder = put(tmp_path / "files", written["trace"])
    head = _timelines._HEADER.size
    amounts = entry_of(content, 1) + _timelines._AMOUNTS.size
    for layout, at in (
        (_timelines._HEADER, 0),
        (_timelines._END, head),
        (_timelines._AMOUNTS, amounts - _timelines._AMOUNTS.size),
        (struct.Struct("<4Q"), amounts),
        (_timelines._OPERATION, entry_of(content, 2)),
        (_timelines._MESSAGE, entry_of(content, 3)),
    ):
        for number, changed in enumerate(in_each_field(content, layout, at)):
            (folder / name).write_bytes(changed)
            said = judge(COMMANDS["trace"][number % 2], folder)
            assert " -" not in re.sub(r"  -|-h ", "", said), said  # no bytes or times below 0


def test_extreme_numbers_in_records(written: dict[str, dict[str, bytes]], tmp_path: Path) -> None:
    name, content = next(iter(written["dump"].items()))
    folder = put(tmp_path / "files", written["dump"])
    for layout, at in ((dump._HEADER, 0), (dump._ENTRY, dump._HEADER_BYTES + struct.unpack_from("<I", content, 8)[0])):
        for changed in in_each_field(content, layout, at):
            (folder / name).write_bytes(changed)
            judge("explain X --all", folder)


def test_numbers_that_wrap_when_they_are_added(tmp_path: Path) -> None:
    """Each may be right, and the sum of all is not."""
    for most, said in ((2**57 // 2, "PiB|TiB"), (2**57, "sends 288230376151711744 bytes")):
        for rank in range(2):
            write_timeline(tmp_path / f"{rank}.a2atrace", rank, 2, [most] * 4)
        assert re.search(said, judge("trace X", tmp_path))
        judge("replay X --simulate", tmp_path)
        assert re.search(r"free|sends \d+ bytes", judge("replay X", tmp_path))


# ---- what a file claims ----------------------------------------------------------------------------------------------


def write_timeline(
    path: Path, rank: int, size: int, amounts: list[int] | None = None, more: bytes = b"", label: bytes = b"world"
) -> None:
    """Version 1, which tells nothing of its end."""
    content = _timelines._HEADER.pack(b"a2atrac1", rank, size, 7, 10**18, 1, 0, b"h", label)
    if amounts:
        content += _timelines._AMOUNTS.pack(1, _timelines._AMOUNTS.size + 8 * len(amounts), 1)
        content += struct.pack(f"<{len(amounts)}Q", *amounts)
        texts = (b"alltoallv", b"host", b"uint8")
        content += _timelines._OPERATION.pack(2, _timelines._OPERATION.size, 1, 10**18, 10**18 + 1000, 1, 0, 0, *texts)
    path.write_bytes(content + more)


def message(peer: int, sends: int = 1, nbytes: int = 8) -> bytes:
    return _timelines._MESSAGE.pack(
        3, _timelines._MESSAGE.size, 10**18, 10**18 + 5, nbytes, peer, sends, 0, 0, b"uint8"
    )


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (message(-2), "a message to rank -2 of 2"),
        (message(2), "a message to rank 2 of 2"),
        (message(-1), "a message to rank -1 of 2"),
        (message(-2, sends=0), "a message from rank -2 of 2"),
        (message(1, nbytes=2**63), "a message of 9223372036854775808 bytes"),
        (struct.pack("<II", 9, 16) + bytes(8), "it is of kind 9 and has 16 bytes"),
        (struct.pack("<II", 2, 0), "it is of kind 2 and has 0 bytes"),
    ],
    ids=range(7),
)
def test_a_timeline_that_is_refused(more: bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / "0.a2atrace"
    write_timeline(path, 0, 2, [8] * 4, more)
    with pytest.raises(a2a.InvalidArgumentError, match=f"{re.escape(str(path))} is damaged: entry at byte .*: {said}"):
        trace.read(path)


def test_a_recv_from_any_that_failed_is_no_damage(tmp_path: Path) -> None:
    write_timeline(tmp_path / "0.a2atrace", 0, 2, [8] * 4, message(-1, sends=0))
    assert trace.read(tmp_path / "0.a2atrace").messages[0].peer == -1


@pytest.mark.parametrize("ending", ["a2atrace", "a2a"])
@pytest.mark.parametrize("size", [0, -1, 16385, 200_000_000, 2**31 - 1])
def test_numbers_of_ranks_that_no_job_has(ending: str, size: int, tmp_path: Path) -> None:
    path = tmp_path / f"0.{ending}"
    if ending == "a2atrace":
        write_timeline(path, 0, size)
        read: Callable[[Path], object] = trace.read
    else:
        facts = (dump._ENTRY.size + 16 * size & 0xFFFFFFFF, 0, 0, size, 7, 10**18, 1, 0, 0, b"h", b"world", b"")
        path.write_bytes(dump._HEADER.pack(b"a2adump1", *facts).ljust(4096, b"\0"))
        read = dump.read
    with time_limit(), pytest.raises(a2a.InvalidArgumentError, match=f"0.{ending} is damaged: {size} ranks"):
        read(path)
    judge("trace X" if ending == "a2atrace" else "explain X", tmp_path)


def test_sizes_that_differ_in_one_communicator(tmp_path: Path, written: dict[str, dict[str, bytes]]) -> None:
    for rank, size in ((0, 2), (1, 3)):
        write_timeline(tmp_path / f"{rank}.a2atrace", rank, size, [8] * 2 * size)
    for line in ("trace X", "replay X"):
        assert "1.a2atrace is of one of 3 ranks, and" in judge(line, tmp_path)
    first = dump.read(put(tmp_path / "dump", written["dump"]) / min(written["dump"]))
    other = max((tmp_path / "dump").iterdir())
    facts = list(dump._HEADER.unpack_from(other.read_bytes()))
    facts[1], facts[2], facts[4] = dump._ENTRY.size + 48, 1, 3
    other.write_bytes(dump._HEADER.pack(*facts).ljust(4096, b"\0") + bytes(dump._ENTRY.size + 48))
    assert first.size == 2 and re.search("of one of 3(,| ranks)", judge("explain X/dump", tmp_path))


def test_control_characters_are_not_printed(tmp_path: Path) -> None:
    for rank in range(2):
        write_timeline(tmp_path / f"{rank}.a2atrace", rank, 2, [8] * 4, label=b"\x1b]0;owned\x07wor\xc2\x9bld\n$x_$")
    (tmp_path / "\x1b[2Jbad.a2atrace").write_bytes(b"nothing")
    said = judge("trace X", tmp_path)
    assert "\ufffd]0;owned\ufffdwor\ufffdld $x_$, 2 ranks" in said and "\ufffd[2Jbad.a2atrace is no timeline" in said
    if pytest.importorskip("matplotlib"):
        judge(f"trace X --plot {tmp_path / 'out.svg'}", tmp_path)


# ---- what is no regular file, or too large ---------------------------------------------------------------------------

READERS: dict[str, Callable[[Path], Any]] = {
    "x.a2atrace": trace.read,
    "x.a2a": dump.read,
    "x.csv": traffic.read,
    "x.json": traffic.read,
    "cluster.json": _files.read_json,
}


@pytest.mark.parametrize("name", READERS)
def test_what_is_no_regular_file(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    os.mkfifo(path)
    with time_limit(), pytest.raises(a2a.InvalidArgumentError, match=f"{name} is no regular file"):
        READERS[name](path)
    path.unlink()
    for target in ("/dev/zero", "/proc/self/mem", str(tmp_path / "loop")):
        (tmp_path / "loop").unlink(missing_ok=True)
        path.symlink_to(target)
        (tmp_path / "loop").symlink_to(path)
        with time_limit(), pytest.raises((a2a.InvalidArgumentError, OSError)):
            READERS[name](path)
        path.unlink()


@pytest.mark.parametrize("name", READERS)
def test_files_that_are_large_and_empty(name: str, tmp_path: Path, written: dict[str, dict[str, bytes]]) -> None:
    """Sparse files cost whoever makes them nothing."""
    path = tmp_path / name
    begin = {"x.a2atrace": written["trace"], "x.a2a": written["dump"]}.get(name, {"": b""})
    for content in (b"", min(begin.values())):
        path.write_bytes(content)
        os.truncate(path, 1 << 40)
        started = time.process_time()
        with time_limit(), contextlib.suppress(a2a.InvalidArgumentError):
            assert trace.read(path).incomplete if name == "x.a2atrace" else READERS[name](path)
        assert time.process_time() - started < 5


# ---- what is written -------------------------------------------------------------------------------------------------


def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    folder = tmp_path / "folder"
    folder.mkdir()
    for rank in range(2):
        write_timeline(folder / f"{rank}.a2atrace", rank, 2, [8] * 4)
    lines = {
        "trace.json": "trace X",
        "out.csv": "replay X -o X/out.csv",
        "rank-1.json": "replay X -o X",
        "results.json": "replay X --simulate -J X/results.json",
        "simulated.json": "simulate -n 4 -J X/simulated.json",
        "bench.json": "bench -n 2 -b 4K -J X/bench.json",
    }
    if importlib.util.find_spec("matplotlib"):
        lines["out.svg"] = "simulate -n 4 --plot X/out.svg"
    for name, line in lines.items():
        for make, words in ((os.symlink, "symbolic link"), (os.link, "another name")):
            make(victim, folder / name)
            assert re.search(words, judge(line, folder)), line
            (folder / name).unlink()
        os.mkfifo(folder / name)
        assert "no regular file" in judge(line, folder)
        (folder / name).unlink()
    assert victim.read_text() == "precious"


def test_whole_files_are_written(tmp_path: Path) -> None:
    path = tmp_path / "file"
    _files.check_writable(path)
    assert not path.exists()
    _files.write(path, "long before")
    _files.check_writable(path)
    assert path.read_text() == "long before"
    _files.write(path, "\ud800 after")
    assert path.read_bytes() == b"\\ud800 after"
    read, write = os.pipe()
    _files.write(f"/dev/fd/{write}", json.dumps([1]))
    assert os.read(read, 100) == b"[1]"
    os.close(read)
    os.close(write)
    full = os.open("/dev/full", os.O_WRONLY)
    with pytest.raises(OSError, match=r"No space left on device: ./dev/fd/"):
        _files.write(f"/dev/fd/{full}", "x")
    os.close(full)
    with pytest.raises(OSError, match="Is a directory"):
        _files.write(tmp_path, "x")
