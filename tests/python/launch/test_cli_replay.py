"""``a2a replay`` and ``a2a simulate``: programs are recorded, run again and simulated; wrong command lines."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from commands import call_here, command, environment

from a2a import traffic
from a2a._balance import smallest

PROGRAM = """
import numpy as np, a2a
with a2a.init() as comm:
    counts = np.arange(comm.size) * 1000 + comm.rank
    for _ in range(3):
        comm.exchange(np.ones(counts.sum(), np.int32), counts)
    comm.alltoall(np.zeros(8 * comm.size, np.float64), np.empty(8 * comm.size, np.float64))
    comm.barrier()
"""


def call(*arguments: str | Path, **changes: str) -> subprocess.CompletedProcess[str]:
    line = command(*map(str, arguments))
    return subprocess.run(line, env=environment(**changes), capture_output=True, text=True, timeout=100, check=False)


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recorded")
    program, recording = folder / "program.py", folder / "recording"
    program.write_text(PROGRAM)
    done = call("run", "-n", "4", program, A2A_RECORD=str(recording))
    assert done.returncode == 0, done.stderr
    return recording


def test_what_is_recorded(recording: Path) -> None:
    """Sizes and times, and never a byte of the program."""
    steps = traffic.read(recording)
    sent = np.array([[4 * (1000 * to + rank) for to in range(4)] for rank in range(4)])
    exchanged = [step for step in steps if step.dtype == "int32" and step.matrix.sum() > 1000]  # not their counts
    assert len(exchanged) == 3 and all((step.matrix == sent).all() and step.seconds > 0 for step in exchanged)
    assert [step.matrix.tolist() for step in steps if step.dtype == "float64"] == [[[64] * 4] * 4]
    assert sum(file.stat().st_size for file in recording.iterdir()) < 20_000


@pytest.mark.parametrize(
    "options", [[], ["--transport", "threads"], ["--transport", "tcp"], ["-n", "2", "--repeat", "2"], ["-n", "5"]]
)
def test_replay(recording: Path, options: list[str], tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    done = call("replay", recording, *options, "-J", file)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^all: [\d.]+ ms, recorded [\d.]+ ms; 0 wrong bytes$", done.stdout, re.MULTILINE), done.stdout
    results = json.loads(file.read_text())
    assert results["wrong"] == 0 and all(result["seconds"] > 0 for result in results["results"])
    assert len(results["results"]) == len(traffic.read(recording)) * (2 if "--repeat" in options else 1)


def test_under_a_launcher(recording: Path) -> None:
    done = call("run", "-n", "4", "--no-prefix", "--no-python", sys.executable, "-m", "a2a", "replay", recording)
    assert done.returncode == 0 and done.stdout.count("0 wrong bytes") == 1, done.stdout + done.stderr


def test_written_for_others(recording: Path, tmp_path: Path) -> None:
    assert call("replay", recording, "-o", tmp_path / "sum.csv").stdout == f"{tmp_path / 'sum.csv'}\n"
    (total,) = traffic.read(tmp_path / "sum.csv")
    assert (total.matrix == sum(step.matrix for step in traffic.read(recording))).all()
    done = call("replay", recording, "-o", tmp_path / "param")
    assert done.stdout.count("rank-") == 4
    assert call("replay", tmp_path / "param").returncode == 0


def test_simulated(recording: Path, tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    done = call("replay", recording, "--simulate", "-n", "64", "--link", "400G", "-J", file)
    assert done.returncode == 0 and "64 ranks on 8 hosts; ports of 400 Gbit/s, shared" in done.stdout, done.stdout
    results = json.loads(file.read_text())
    assert [result["schedule"] for result in results["results"]] == ["rotation", "longest", "hierarchical"]
    assert all(result["seconds"] >= result["bound"] > 0 for result in results["results"])
    done = call("simulate", "--traffic", recording, "--schedule", "longest")
    assert done.returncode == 0 and re.search(r"^  longest ", done.stdout, re.MULTILINE), done.stdout + done.stderr


def test_a_cluster_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "cluster.json"
    file.write_text('{"ranks_per_host": 4, "link": 1e9, "ports": "single"}')
    done = call("simulate", "-n", "8", "--cluster", file, "--latency", "3us")
    assert "8 ranks on 2 hosts; ports of 8 Gbit/s, single; memory 5 GB/s; latency 3 us" in done.stdout, done.stderr
    file.write_text('{"speed": 4}')
    done = call("simulate", "-n", "8", "--cluster", file)
    assert done.returncode == 1 and "ranks_per_host" in done.stderr


SPEC = """{"dtype": "bfloat16", "src": {"mesh": {"shape": [2, 4]}, "placements": ["replicate", "shard(0)"]},
 "tensors": [{"shape": [512, 256], "count": 3,
              "dst": {"mesh": [[8, 9], [10, 11]], "placements": ["replicate", "shard(1)"]}},
             {"shape": [512], "dst": {"mesh": {"first": 8, "shape": [4]}, "placements": ["replicate"]},
              "src": {"mesh": [0, 1], "placements": ["partial(sum)"]}}]}"""


def test_a_resharding_beside_gather_and_cut(tmp_path: Path) -> None:
    spec, file = tmp_path / "spec.json", tmp_path / "out.json"
    spec.write_text(SPEC)
    done = call("simulate", "--reshard", spec, "--ranks-per-host", "4", "-J", file)
    assert done.returncode == 0, done.stderr
    assert "12 ranks on 3 hosts" in done.stdout and "4 tensors of 0.0007875 GB" in done.stdout, done.stdout
    found = re.search(r"^gather and cut: [\d.]+ (us|ms), ([\d.]+) times as long$", done.stdout, re.MULTILINE)
    assert found is not None and float(found[2]) > 1, done.stdout
    results = json.loads(file.read_text())
    assert [one["schedule"] for one in results["gather_and_cut"]] == ["rotation", "longest", "hierarchical"]
    assert min(one["seconds"] for one in results["gather_and_cut"]) > min(one["seconds"] for one in results["results"])
    one = {"shape": [64, 64], "src": {"mesh": [0, 1], "placements": ["Shard(0)"]}}
    spec.write_text(json.dumps({**one, "dst": {"mesh": [[2], [3]], "placements": ["Replicate()", "Shard(-1)"]}}))
    assert "1 tensor of 1.638e-05 GB" in call("simulate", "--reshard", spec).stdout
    spec.write_text(SPEC.replace("partial(sum)", "Partial('max')"))
    done = call("simulate", "--reshard", spec, "-n", "16", "--schedule", "longest")
    assert done.returncode == 0 and "16 ranks on 2 hosts" in done.stdout, done.stderr


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (('"tensors"', '"tensor"'), "tensors"),
        (('"shape": [512]', '"shape": 5'), "tensors[1]: shape"),
        (('"count": 3', '"count": true'), "count"),
        (('"bfloat16"', '"bfloat"'), "dtype"),
        (('"replicate", "shard(0)"', '"replicate", "chard(0)"'), "chard(0)"),
        (('"replicate", "shard(0)"', '"shard(0)"'), "1 placements for 2 axes"),
        (("[8, 9]", "[8, 8]"), "names rank 8 twice"),
        (('"shape": [2, 4]', '"shape": [2, 99999]'), "1 to 16384"),
        (('["partial(sum)"]', '["partial(sun)"]'), "sun"),
        (('"shape": [512],', '"shape": [],'), ""),
        (("{", ""), "no JSON"),
    ],
)
def test_a_resharding_that_is_none(change: tuple[str, str], words: str, tmp_path: Path) -> None:
    spec = tmp_path / "spec.json"
    spec.write_text(SPEC.replace(*change, 1))
    done = call_here("simulate", "--reshard", str(spec))
    if words:
        assert done.returncode == 1 and words in done.stderr, (done.stdout, done.stderr)
    else:  # a tensor without dimensions
        assert done.returncode == 0, done.stderr


def test_a_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    for ranks in ("1", "40"):
        file = tmp_path / f"{ranks}.svg"
        done = call("simulate", "-n", ranks, "--traffic", "log-normal", "--plot", file)
        assert done.returncode == 0, done.stderr
        assert "lower bound" in file.read_text() and "host, out" in file.read_text()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("simulate --link fast", "100G"),
        ("simulate --link 0G", "100G"),
        ("simulate --latency 5", "10us"),
        ("simulate -n 0", "at least one rank"),
        ("simulate --traffic nothing", "log-normal"),
        ("simulate --reshard nowhere", "No such file"),
        ("simulate --plot out.xyz", "ends? in|end in"),
        ("replay nowhere", "A2A_RECORD=folder"),
        ("replay . --repeat 0", "at least 1"),
        ("replay .", "no timelines"),
        ("replay", "required"),
    ],
)
def test_refused(line: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if "--plot" in line:
        pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    done = call_here(*line.split())
    assert done.returncode in (1, 2) and re.search(words, done.stderr), done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("content", "line", "words"),
    [
        (bytes(range(256)), "replay FILE", "is no text"),
        (b"0,9000000000000000000\n0,0\n", "replay FILE", "2 ranks need 16777216 TiB|2 ranks need .* TiB .* are free"),
        (b'{"link": "fast"}', "simulate -n 4 --cluster FILE", "link is 'fast'"),
        (b'{"ranks_per_host": 1.5}', "simulate -n 4 --cluster FILE", "ranks_per_host is 1.5"),
        (b"", "simulate -n 4 --ranks-per-host 99999999999", "ranks_per_host is 99999999999"),
        (b"", "simulate -n 4 --traffic hot-rank --ratio -3", "ratio is -3.0"),
        (b"", "simulate -n 4 --traffic zipf --alpha nan", "alpha is nan"),
        (b"", "simulate -n 9999999", "9999999 ranks, where there are at least one and 16384"),
        (b"", "simulate -n 4 -J FILE/out.json", "cannot write"),
        (b"1,2\n3,4\n", "replay FILE -o FILE/out", "Not a directory"),
        (b"", "simulate --seed -1", "--seed: -1: at least 0"),
        (b"", "demo --seed -1", "--seed: -1: at least 0"),
        (b"", "simulate -n 4 -b 99999999999999999999", "more than a process can address"),
        (b"", "simulate -n 4 --traffic log-normal --sigma 1e308", "sigma 1e.308"),
        (b"", "simulate -n 4 --traffic hot-rank --ratio 1e308", "ratio 1e.308"),
        (b"1,2\n3,4\n", "replay FILE --repeat 99999999999999", "1000000 are the most"),
        (b"1,2\n3,4\n", "replay FILE -n 99999", "16384 at most"),
        (b"[" * 100_000, "simulate -n 4 --cluster FILE", "nested too deeply"),
        (b'{"link": 1' + b"0" * 5000 + b"}", "simulate -n 4 --cluster FILE", "digits"),
        (b'{"link": NaN}', "simulate -n 4 --cluster FILE", "link is nan; it is positive"),
        (b'{"latency": 1' + b"0" * 400 + b"}", "simulate -n 4 --cluster FILE", "latency is 10+[.]{3};"),
    ],
)
def test_nonsense_is_told_in_a_line(content: bytes, line: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "given").write_bytes(content)
    done = call_here(*line.replace("FILE", str(tmp_path / "given")).split())
    assert done.returncode in (1, 2) and re.search(words, done.stderr), done.stderr
    assert "Traceback" not in done.stderr and done.stdout == ""


def test_nothing_and_a_replay_is_not_recorded(tmp_path: Path) -> None:
    (tmp_path / "none.csv").write_text("0,0\n0,0\n")
    done = call("replay", tmp_path / "none.csv", A2A_RECORD=str(tmp_path / "recording"))
    assert done.returncode == 0 and "0 wrong bytes" in done.stdout, done.stderr
    assert not (tmp_path / "recording").exists()


EXPERTS = """
import numpy as np, a2a
from a2a import moe
with a2a.init() as comm:
    ep = moe.ExpertParallel(comm, 6)
    topk_idx = np.repeat([0, 1, 4], [30, 10, 2])[:, None]
    for _ in range(2):
        routed = ep.dispatch(np.zeros((42, 3), np.float32), topk_idx)
        ep.combine(routed.x, routed)
    ep.dispatch(np.zeros((1, 3), np.float32), np.array([[-1]]))
"""


def test_experts_are_balanced_by_a_recording(tmp_path: Path) -> None:
    program, folder, homes, told = (tmp_path / name for name in ("program.py", "recording", "homes.json", "told.json"))
    program.write_text(EXPERTS)
    assert call("run", "-n", "3", program, A2A_RECORD=str(folder)).returncode == 0
    assert len(list(folder.glob("experts-*.json"))) == 3
    done = call("replay", folder, "--balance", "-o", homes, "--json", told)
    assert done.returncode == 0 and "busiest now" in done.stdout, done.stderr
    (result,) = json.loads(told.read_text())
    assert result["tokens"] == [180, 60, 0, 0, 12, 0] and result["slots"] == 2
    assert result["before"] == pytest.approx(240 / 84)
    assert json.loads(homes.read_text()) == [result["expert_to_rank"]]
    done = call("replay", folder, "--balance", "--slots", "4", "-n", "3", "--json", told)
    assert done.returncode == 0, done.stderr
    (result,) = json.loads(told.read_text())
    assert result["after"] <= 1.1 * smallest(result["tokens"], 3, 4) / 84


def test_recordings_without_experts_and_other_files(recording: Path, tmp_path: Path) -> None:
    done = call("replay", recording, "--balance")
    assert done.returncode != 0 and "no tokens of experts" in done.stderr
    for text in ('{"experts": 1}', "[]", '{"experts": 1, "layers": [{"ranks": 2, "homes": [[3]], "tokens": [1]}]}'):
        (tmp_path / "experts-0-1.json").write_text(text)
        done = call("replay", tmp_path, "--balance")
        assert done.returncode != 0 and "is no recording of experts" in done.stderr, text
