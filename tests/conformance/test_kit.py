"""The conformance kit on this library, and the kit itself."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import make_families
import numpy as np
import pytest

from a2a import conformance
from a2a.conformance import frameworks, signatures
from a2a.conformance.signatures import Call


def command(*arguments: str, seconds: float = 170) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "a2a.cli", "conformance", *arguments],
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )


@pytest.mark.timeout(180)
def test_this_library_in_every_framework_and_mixed(tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    done = command("--quick", "--json", str(file), "--html", str(tmp_path / "matrix.html"))
    assert done.returncode == 0, done.stdout + done.stderr
    results = json.loads(file.read_text())
    installed = frameworks.installed()
    assert set(results["cells"]) == {*installed, "mixed"} if len(installed) > 1 else set(installed)
    assert results["counts"]["pass"] >= 400 * len(installed)
    assert "</table>" in (tmp_path / "matrix.html").read_text()


def test_threads() -> None:
    done = command("--ranks", "3", "--frameworks", "numpy", "--transport", "threads", "--sample", "300")
    assert done.returncode == 0, done.stdout + done.stderr


def test_command_line_mistakes() -> None:
    for arguments, part in (
        (["--ranks", "0-9"], "1 to 8"),
        (["--ranks", "x"], "2,4 or 1-8"),
        (["--frameworks", "numpy,nonsense"], "nonsense is not installed"),
        (["--transport", "nccl"], "no transport nccl"),
        (["--only", "no such case"], "nothing was run"),
    ):
        done = command(*arguments)
        assert done.returncode == 1 and part in done.stdout + done.stderr, (arguments, done)


def test_families_are_up_to_date() -> None:
    assert make_families.FILE.read_text(encoding="utf-8") == make_families.text()


def test_every_case_is_complete() -> None:
    cases = conformance.load()
    assert len({case.name for case in cases}) == len(cases)
    for case in cases:
        assert case.facts["source"] and 1 <= case.ranks <= 8
        for dtype in {"bool", "bfloat16", "complex128"} & set(case.dtypes):
            for rank in {0, case.ranks - 1}:
                expected = case.expected(dtype, rank)
                assert [part.shape for part in expected] == case.recv_shapes(rank)


def test_the_documents_agree_with_the_oracle() -> None:
    for case in conformance.load():
        if "expected" not in case.facts:
            continue
        derived = conformance.Case({key: value for key, value in case.facts.items() if key != "expected"})
        for dtype in case.dtypes:
            for rank in range(case.ranks):
                for given, found in zip(case.expected(dtype, rank), derived.expected(dtype, rank), strict=True):
                    assert given.tobytes() == found.tobytes(), (case.name, dtype, rank)


# ---- what the kit makes of a library that is wrong -------------------------------------------------------------------


def one_bit_off(c: Call) -> None:
    c.group.alltoallv(c.send, c.send_counts, c.recv, c.recv_counts)
    if c.rank == 1 and c.recv.size:
        c.recv.reshape(-1).view(np.uint8)[-1] ^= 1


def beside(c: Call) -> None:
    c.group.alltoallv(c.send, c.send_counts, c.recv, c.recv_counts)
    around = c.recv
    while around.base is not None:
        around = around.base
    around.view(np.uint8).reshape(-1)[0] += 1


def into_the_input(c: Call) -> None:
    c.group.alltoallv(c.send, c.send_counts, c.recv, c.recv_counts)
    c.send.reshape(-1).view(np.uint8)[:1] += 1


def does_nothing(c: Call) -> None:
    pass


def dies(c: Call) -> None:
    if c.rank == 1:
        os.kill(os.getpid(), signal.SIGSEGV)
    c.group.barrier()


def hangs(c: Call) -> None:
    time.sleep(60)


def raises(c: Call) -> None:
    raise ValueError("no\nsecond line")


WRONG: dict[str, tuple[Any, str]] = {
    "one bit off": (one_bit_off, "wrong: byte"),
    "beside": (beside, "wrong: 1 bytes around the tensor"),
    "into the input": (into_the_input, "wrong: the input was changed"),
    "does nothing": (does_nothing, "wrong: byte 0 is 0xa5"),
    "dies": (dies, "crash: SIGSEGV"),
    "hangs": (hangs, "hang"),
    "raises": (raises, "raises: ValueError: no"),
}


@pytest.mark.parametrize("name", WRONG)
def test_the_kit_notices(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run, verdict = WRONG[name]
    broken = signatures.Signature("core.broken", "", "alltoallv", lambda case: case.equal, run)
    monkeypatch.setattr(signatures, "SIGNATURES", [*signatures.SIGNATURES, broken])
    case = next(case for case in conformance.load() if case.name == "two rows each, 2 ranks")
    task = conformance.Task(case, "int32", ("core.broken",) * 2, ("numpy",) * 2)
    good = conformance.Task(case, "int32", ("core.alltoallv",) * 2, ("numpy",) * 2)
    first, second = conformance.run("shm", 2, [task, good], seconds=2)
    assert first.verdict.startswith(verdict), first
    assert second.verdict == conformance.PASS  # ranks of their own again
