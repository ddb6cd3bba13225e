"""What the kit makes of a library that is wrong: every kind of failure is told as what it is, and the tasks after it
are run."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from a2a import conformance
from a2a.conformance import cases, groups, rank, signatures
from a2a.conformance.signatures import Call, Signature

Run = Callable[[Call], Any]


def exchange(c: Call) -> None:
    c.group.alltoallv(c.send, c.send_counts, c.recv, c.recv_counts)


def around(array: Any) -> Any:
    """All of the memory that the kit has made for a tensor."""
    while array.base is not None:
        array = array.base
    return array


def one_bit_off(c: Call) -> None:
    exchange(c)
    if c.rank == 1:
        c.recv.reshape(-1).view(np.uint8)[-1] ^= 1


def one_byte_before(c: Call) -> None:
    exchange(c)
    outside(c.recv, -1)


def one_byte_behind(c: Call) -> None:
    exchange(c)
    outside(c.recv, c.recv.nbytes)


def one_byte_before_the_input(c: Call) -> None:
    exchange(c)
    outside(c.send, -1)


def outside(array: Any, at: int) -> None:
    whole = around(array)
    whole[array.ctypes.data - whole.ctypes.data + at] ^= 1


def into_the_input(c: Call) -> None:
    exchange(c)
    c.send.reshape(-1).view(np.uint8)[:1] += 1


def does_nothing(c: Call) -> None:
    pass


def into_a_gap(c: Call) -> None:
    c.group.alltoallv(c.send, c.send_counts, c.recv, c.recv_counts, *c.displs)
    if c.rank == 0:
        c.recv[0, 0] ^= 1  # which no rank sends to


def dies(c: Call) -> None:
    if c.rank == 1:
        os.kill(os.getpid(), signal.SIGSEGV)
        time.sleep(60)  # another thread may get the signal, a little later
    c.group.barrier()


def leaves(c: Call) -> None:
    if c.rank == 1:
        os._exit(0)
    c.group.barrier()


def hangs(c: Call) -> None:
    if c.rank == 1:
        time.sleep(60)
    c.group.barrier(timeout=60)


def raises(c: Call) -> None:
    if c.rank == 1:
        raise ValueError("no\nsecond line")
    c.group.barrier()


def refuses(c: Call) -> None:
    raise NotImplementedError("not here")


OUTPUTS: dict[str, tuple[Run, str]] = {
    "one bit off": (one_bit_off, "wrong: output: byte 639 is 0x"),
    "one byte before the output": (one_byte_before, "wrong: output: 1 bytes around the tensor were written"),
    "one byte behind the output": (one_byte_behind, "wrong: output: 1 bytes around the tensor were written"),
    "one byte before the input": (one_byte_before_the_input, "wrong: input after the call: 1 bytes around the tensor"),
    "into the input": (into_the_input, "wrong: input after the call: byte 0 is"),
    "does nothing": (does_nothing, "wrong: output: byte 0 is 0xa5"),
    "dies": (dies, "crash: SIGSEGV"),
    "leaves": (leaves, "crash: exit code 0"),
    "hangs": (hangs, "hang"),
    "raises": (raises, "raises: ValueError: no"),
    "refuses": (refuses, "unsupported: NotImplementedError: not here"),
}
RESULTS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "another shape": (np.ravel, "wrong: result is int32 of shape (160,) instead of int32 of shape (10, 16)"),
    "another dtype": (lambda x: x.view(np.uint32), "wrong: result is uint32 of shape (10, 16) instead of int32"),
    "another framework": (memoryview, "wrong: result is of python, not of numpy as the input"),
    "another value": (lambda x: x ^ (np.arange(x.size).reshape(x.shape) == 1), "wrong: result: byte 4 is 0x"),
}


def verdicts(case_name: str, run: Run, patch: pytest.MonkeyPatch, how: str = "shm", **more: Any) -> list[Any]:
    """The results of a broken call, and of a good one after it."""
    broken = Signature("core.broken", "alltoallv", lambda case: True, run, **more)
    patch.setattr(signatures, "SIGNATURES", [broken, *signatures.SIGNATURES])
    case = next(case for case in conformance.load() if case.name == f"{case_name}, 2 ranks")
    tasks = [conformance.Task(case, "int32", (name,) * 2, ("numpy",) * 2) for name in ("core.broken", "core.alltoallv")]
    return list(conformance.run(how, 2, tasks, seconds=2))


@pytest.mark.parametrize("how", ["shm", "threads"])
@pytest.mark.parametrize("name", OUTPUTS)
def test_failures(name: str, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run, verdict = OUTPUTS[name]
    first, second = verdicts("five rows each", run, monkeypatch, how)
    assert first.verdict.startswith(verdict), first
    assert first.failed == (name != "refuses")
    assert second.verdict == conformance.PASS  # by ranks of its own


@pytest.mark.parametrize("name", RESULTS)
def test_results_that_a_call_allocates(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    change, verdict = RESULTS[name]

    def run(c: Call) -> list[Any]:
        return [change(c.group.exchange(c.send, c.send_counts)[0])]

    first, second = verdicts("five rows each", run, monkeypatch, out=False)
    assert first.verdict.startswith(verdict), first
    assert second.verdict == conformance.PASS


def test_bytes_of_a_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    first, _ = verdicts("gaps and any order on both sides", into_a_gap, monkeypatch)
    assert first.verdict.startswith("wrong: output: byte 0 is 0xa4 instead of 0xa5; 1 of "), first


def test_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    """That stay where they are, instead of going back."""

    def run(c: Call) -> list[Any]:
        return [*c.group.exchange(c.send, c.send_counts)[:1], c.cotangents[0]]

    first, second = verdicts("five rows each", run, monkeypatch, out=False, gradient=True)
    assert first.verdict.startswith("wrong: result 1: byte "), first
    assert second.verdict == conformance.PASS


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("no\nsecond line", "no"),
        ("\n  late", "late"),
        ("", ""),
        ("(External) \n{\n  ==== Error ====\n  ValueError: no\n}", "ValueError: no"),
    ],
)
def test_the_line_that_tells(text: str, first: str) -> None:
    assert rank.verdict_of(OSError(text), groups.WAYS["shm"]) == f"raises: OSError: {first}"


def test_ranks_that_meet_nobody_are_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def join(rank: int, place: groups.Place) -> Any:
        raise OSError(str(place.job))

    monkeypatch.setitem(groups.WAYS, "shm", groups.Way(join, groups.OWN))
    case = next(case for case in conformance.load() if case.name == "five rows each, 2 ranks")
    tasks = [conformance.Task(case, "int8", ("core.alltoallv",) * 2, ("numpy",) * 2)] * 50
    told = [result.verdict for result in conformance.run("shm", 2, tasks)]
    assert len(told) == 50 and len(set(told)) == 3 and set(told[2:]) == {told[2]}


def test_ranks_that_cannot_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    def join(rank: int, place: groups.Place) -> Any:
        raise OSError("the network is down")

    monkeypatch.setitem(groups.WAYS, "shm", groups.Way(join, groups.OWN))
    first, second = verdicts("five rows each", exchange, monkeypatch)
    assert first.verdict == second.verdict == "raises: OSError: the network is down"


def test_a_failure_in_the_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    matrix = conformance.Matrix({"a2a": "0"})
    for run in (one_bit_off, dies, refuses):
        for result in verdicts("five rows each", run, monkeypatch)[:1]:
            matrix.add(result)
    cells = json.loads(matrix.json())["cells"]["numpy"]["core.broken"]
    assert cells == {"int32": {"wrong": 1, "crash": 1, "unsupported": 1}}
    lines = matrix.text().splitlines()
    assert "numpy:       int  all" in lines and "core.broken  WC-  WC-" in lines
    assert "1 crash, 1 unsupported, 1 wrong" == lines[-1]
    assert any("core.broken: wrong: output: byte 639" in line for line in lines)
    page = matrix.html()
    title = "numpy, core.broken, int32: 1 crash, 1 unsupported, 1 wrong"
    assert f'<td class="bad" title="{title}"><a href="#failure0">WC-</a></td>' in page
    assert re.search(r'<tr id="failure0" title="2 ranks; .*?<td>wrong: output: byte 639', page)
    assert '<a href="#numpy">' in page and '<a href="#failures">' in page and "position:sticky" in page


def test_the_matrix_is_narrow() -> None:
    """Whatever fails: what has no room goes below. Each dtype is in a column."""
    matrix = conformance.Matrix({"a2a": "0", "frameworks": ", ".join(["a framework 1.2.3"] * 9)})
    case = next(case for case in conformance.load() if case.name == "five rows each, 2 ranks")
    every = ["pass", "wrong: x", "raises: x", "crash: x", "hang", "unsupported: x"]
    for dtype in cases.DTYPES:
        task = conformance.Task(case, dtype, ("paddle.stream.alltoall_single calc stream",) * 2, ("paddle",) * 2)
        for verdict in every * 20:
            matrix.add(conformance.Result(task, {0: verdict, 1: verdict}))
    table = matrix.text().partition("what failed")[0].splitlines()
    assert max(map(len, table)) <= 100
    heads = [word for line in table if line.startswith("paddle:") for word in line.split()[1:]]
    assert heads == ["bool", "int", "uint", "float", "complex", "float8", "float4", "all"]
    cells = [cell for line in table if line.startswith("paddle.stream") for cell in re.findall(r"\d+/\d+ WRCH-", line)]
    assert cells[:4] == ["20/120 WRCH-", *["80/480 WRCH-"] * 3] and cells[-1] == f"{20 * 25}/{120 * 25} WRCH-"
