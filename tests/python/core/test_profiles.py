"""Traces of torch.profiler and JAX in the timeline of `a2a trace`: one event of each has to be where the clock says."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from commands import call, environment, needs

PROGRAM = """
import sys, time
import numpy as np
import a2a
from a2a._core import connect

comm = connect(0, 1)
x = np.ones(4)

def inside():
    print(time.time_ns())
    comm.alltoall(x, np.empty(4))
    print(time.time_ns())

if sys.argv[1] == "torch":
    import torch
    with torch.profiler.profile() as profile:
        with torch.profiler.record_function("mark"):
            inside()
    profile.export_chrome_trace(sys.argv[2] + "/one.json.gz")
else:
    import jax
    with jax.profiler.trace(sys.argv[2]):
        with jax.profiler.TraceAnnotation("mark"):
            inside()
comm.close()
"""


@pytest.mark.parametrize("library", ["torch", "jax"])
def test_an_operation_lies_in_the_range_around_it(tmp_path: Path, library: str) -> None:
    needs(library)
    (tmp_path / "profiles").mkdir()
    made = subprocess.run(
        [sys.executable, "-c", PROGRAM, library, str(tmp_path / "profiles")],
        env=environment(A2A_TRACE=str(tmp_path / "timeline"), JAX_PLATFORMS="cpu"),
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    done = call("trace", str(tmp_path / "timeline"), "--profile", str(tmp_path / "profiles"))
    assert done.returncode == 0, done.stderr
    events = json.loads((tmp_path / "timeline" / "trace.json").read_text())["traceEvents"]
    (mark,) = (one for one in events if one.get("name") == "mark" and one["ph"] == "X" and one.get("dur", 0) > 0)
    (operation,) = (one for one in events if one.get("name") == "alltoall #1")
    assert mark["ts"] <= operation["ts"]
    assert operation["ts"] + operation["dur"] <= mark["ts"] + mark["dur"]
    assert mark["pid"] != operation["pid"]


def test_two_profiles_keep_their_processes_and_flows_apart(tmp_path: Path) -> None:
    from a2a import _profiles

    flow = {"ph": "s", "id": 7, "pid": 1, "tid": 1, "ts": 2.5}
    name = {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "python"}}
    for number in range(2):
        content = {"baseTimeNanoseconds": 5000, "host_name": f"node{number}", "traceEvents": [name, flow]}
        (tmp_path / f"{number}.json").write_text(json.dumps(content))
    timeline: dict[str, Any] = {"traceEvents": [{"pid": 0, "ts": 0}]}
    profiles = [_profiles.read(path) for path in _profiles.find(tmp_path)]
    _profiles.add(timeline, 1000, profiles, {"node1": 2000})
    assert [one["pid"] for one in timeline["traceEvents"]] == [0, 1, 1, 2, 2]
    assert [one["id"] for one in timeline["traceEvents"] if "id" in one] == ["0.7", "1.7"]
    assert [one["ts"] for one in timeline["traceEvents"] if "id" in one] == [6.5, 8.5]
    assert timeline["traceEvents"][1]["args"] == {"name": "python (0.json)"}


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("x.json", b"{", "is no trace"),
        ("x.json", b'{"traceEvents": 3}', "is no trace"),
        ("x.json", b'{"traceEvents": []}', "does not say when it began"),
        ("x.json.gz", b"\x1f\x8b", "is no trace"),
        ("x.json.gz", b"text", "is no trace"),
        ("x.json.gz", gzip.compress(b"{}", mtime=0)[:-8] + b"\xff" * 8, "is no trace"),
        ("x.trace.json.gz", gzip.compress(b'{"traceEvents": []}', mtime=0), "x.xplane.pb does not say when"),
    ],
)
def test_what_is_no_profile(tmp_path: Path, name: str, content: bytes, why: str) -> None:
    import a2a
    from a2a import _profiles

    (tmp_path / name).write_bytes(content)
    (tmp_path / "x.xplane.pb").write_bytes(b"\x0a\xff\xff")
    with pytest.raises(a2a.InvalidArgumentError, match=why):
        _profiles.read(tmp_path / name)
