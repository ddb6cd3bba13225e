"""A2A_METRICS: counts of ranks for Prometheus, at a port and in files."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from commands import environment, free_port

PROGRAM = """
import sys, time
import numpy as np
import a2a

comm = a2a.init(timeout=60)
x, y = np.ones(4 * comm.size), np.empty(4 * comm.size)
if comm.rank == 1:
    time.sleep(0.5)
for _ in range(3):
    comm.alltoall(x, y)
(comm.send if comm.rank == 0 else comm.recv)(x, 1 - comm.rank)
try:
    comm.allreduce(x, y[: 1 + comm.rank])
except a2a.Error:
    pass
comm.split(0).barrier()
print("ready", flush=True)
sys.stdin.readline()
"""


def start(metrics: str, job: str) -> list[subprocess.Popen[str]]:
    return [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM],
            env=environment(A2A_JOB=job, A2A_RANK=str(r), A2A_SIZE="2", A2A_METRICS=metrics),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for r in range(2)
    ]


def finish(ranks: list[subprocess.Popen[str]]) -> list[str]:
    """What the ranks wrote on standard error."""
    return [one.communicate("\n", timeout=60)[1] for one in ranks]


def ready(ranks: list[subprocess.Popen[str]]) -> None:
    for one in ranks:
        assert one.stdout is not None and one.stdout.readline() == "ready\n", one.communicate()


def counts(text: str) -> dict[str, float]:
    """The samples, each in its exact form: Prometheus's parser takes no other."""
    found = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            match = re.fullmatch(r'([a-z0-9_]+\{(?:[a-z]+="[^"\\]*",?)+\}) ([0-9.]+)', line)
            assert match is not None, line
            found[match[1]] = float(match[2])
    return found


def check(text: str, rank: int) -> None:
    found = counts(text)
    world, other = f'{{communicator="world",rank="{rank}",', 1 - rank
    assert found[f'a2a_operations_total{world}operation="alltoall"}}'] == 3
    assert found[f'a2a_operation_failures_total{world}operation="alltoall"}}'] == 0
    assert found[f'a2a_operation_failures_total{world}operation="allreduce"}}'] == 1
    assert found[f'a2a_operations_total{world}operation="{"recv" if rank else "send"}"}}'] == 1
    assert found[f'a2a_operation_seconds_total{world}operation="alltoall"}}'] > (0 if rank else 0.3)
    assert found[f'a2a_sent_bytes_total{world}peer="{other}"}}'] >= 3 * 32
    if rank == 0:
        assert 0.1 < found[f'a2a_wait_seconds_total{world}peer="1"}}'] < 20
    assert any(name.startswith('a2a_operations_total{communicator="split #') for name in found)
    assert text.count("# TYPE ") == 6 and text.endswith("\n")


def test_at_a_port(tmp_path: Path) -> None:
    port = free_port()
    ranks = start(str(port), str(tmp_path))
    try:
        ready(ranks)
        silent = socket.create_connection(("127.0.0.1", port))  # keeps nobody out for long
        for rank in range(2):
            with urllib.request.urlopen(f"http://127.0.0.1:{port + rank}/metrics", timeout=20) as answer:
                assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
                check(answer.read().decode(), rank)
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/other", timeout=20)
        silent.close()
    finally:
        assert finish(ranks) == ["", ""]


def test_in_files(tmp_path: Path) -> None:
    ranks = start(str(tmp_path / "a2a.prom"), str(tmp_path))
    ready(ranks)
    assert finish(ranks) == ["", ""]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a2a.0.prom", "a2a.1.prom"]
    for rank in range(2):
        check((tmp_path / f"a2a.{rank}.prom").read_text(), rank)


@pytest.mark.parametrize("metrics", ["/no/such/folder/a2a.prom", "65536", "no host at all:1"])
def test_what_cannot_be_published_is_said_and_stops_nobody(tmp_path: Path, metrics: str) -> None:
    ranks = start(metrics, str(tmp_path))
    ready(ranks)
    for error in finish(ranks):
        assert error.startswith(f"a2a: A2A_METRICS={metrics}: no metrics are published: ") and error.count("\n") == 1


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ranks = start(str(taken.getsockname()[1]), str(tmp_path))
        ready(ranks)
        assert "no metrics are published" in finish(ranks)[0]


def test_a_file_is_not_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("precious")
    (tmp_path / "a2a.0.prom").symlink_to("precious")
    began = time.monotonic()
    ranks = start(str(tmp_path / "a2a.prom"), str(tmp_path))
    ready(ranks)
    assert finish(ranks) == ["", ""] and time.monotonic() - began < 60
    assert (tmp_path / "precious").read_text() == "precious" and not (tmp_path / "a2a.0.prom").is_symlink()
