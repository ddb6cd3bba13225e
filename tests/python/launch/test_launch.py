"""Launch variables as dictionaries, then init() with threads and under real launchers."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import environment, needs

import a2a
from a2a import _places, launch
from a2a.launch import Launch

A2A = {"A2A_RANK": "2", "A2A_SIZE": "4", "A2A_JOB": "job"}
TORCHRUN = {
    "RANK": "1",
    "WORLD_SIZE": "2",
    "LOCAL_RANK": "0",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "localhost",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "none",
    "TORCHELASTIC_RESTART_COUNT": "0",
}
PADDLE = {
    "PADDLE_TRAINER_ID": "1",
    "PADDLE_TRAINERS_NUM": "2",
    "PADDLE_TRAINER_ENDPOINTS": "127.0.0.1:61668,127.0.0.1:61669",
    "PADDLE_RANK_IN_NODE": "1",
}
RANK_TABLE = {"RANK_ID": "3", "RANK_TABLE_FILE": str(Path(__file__).parents[1] / "support" / "rank_table.json")}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "3",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
    "PMIX_NAMESPACE": "prterun-host-10598@1",
}
INTEL = {
    "PMI_RANK": "1",
    "PMI_SIZE": "2",
    "MPI_LOCALRANKID": "1",
    "MPI_LOCALNRANKS": "2",
    "I_MPI_HYDRA_UUID": "bb290000-8033",
}
# What programs set for torch by hand, in MPI's numbers.
BY_HAND = {"MASTER_ADDR": "a", "MASTER_PORT": "80"}
SRUN = {
    "SLURM_PROCID": "5",
    "SLURM_LOCALID": "5",
    "SLURM_NTASKS": "8",
    "SLURM_STEP_NUM_TASKS": "8",
    "SLURM_NNODES": "1",
    "SLURM_JOB_ID": "77",
    "SLURM_STEP_ID": "3",
}
# In the documented order of precedence.
ENVIRONMENTS = [A2A, TORCHRUN, PADDLE, RANK_TABLE, OPEN_MPI, INTEL, SRUN]
NAMES = ["a2a run", "torchrun", "paddle.distributed.launch", "a rank table", "Open MPI", "Intel MPI", "srun"]


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({}, Launch("none", 0, 1, 0, None)),
        (A2A, Launch("a2a run", 2, 4, 2, "job")),
        (A2A | {"A2A_LOCAL_RANK": "0"}, Launch("a2a run", 2, 4, 0, "job")),
        (TORCHRUN, Launch("torchrun", 1, 2, 0, "none/0/localhost/29500")),
        (PADDLE, Launch("paddle.distributed.launch", 1, 2, 1, "127.0.0.1:61668,127.0.0.1:61669")),
        (RANK_TABLE, Launch("a rank table", 3, 4, 3, "rank-table/c3fd71a92708341a")),
        (RANK_TABLE | {"A2A_JOB": "mine"}, Launch("a rank table", 3, 4, 3, "mine")),
        ({"RANK_ID": "3"}, Launch()),
        ({"RANK_ID": "3", "RANK_TABLE_FILE": ""}, Launch()),
        # The table alone says nothing about this process.
        (
            OPEN_MPI | {"RANK_TABLE_FILE": "/nowhere/table.json"},
            Launch("Open MPI", 3, 4, 3, "prterun-host-10598@1"),
        ),
        (OPEN_MPI, Launch("Open MPI", 3, 4, 3, "prterun-host-10598@1")),
        (INTEL, Launch("Intel MPI", 1, 2, 1, "bb290000-8033")),
        (SRUN, Launch("srun", 5, 8, 5, "77/3")),
        # The step may be smaller than the job.
        (
            SRUN | {"SLURM_NTASKS": "16", "SLURM_NNODES": "2", "SLURM_STEP_NUM_NODES": "1"},
            Launch("srun", 5, 8, 5, "77/3"),
        ),
        # A batch script is one process, in spite of its variables.
        ({name: SRUN[name] for name in ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_JOB_ID")}, Launch()),
        (OPEN_MPI | {"A2A_JOB": "mine"}, Launch("Open MPI", 3, 4, 3, "mine")),
        ({"A2A_JOB": "mine"}, Launch()),
    ],
)
def test_environment_of_each_launcher(env: dict[str, str], expected: Launch) -> None:
    assert Launch.from_environ(env) == expected


@pytest.mark.parametrize(("inner", "outer"), list(itertools.combinations(range(len(ENVIRONMENTS)), 2)))
def test_the_nearer_launcher_wins(inner: int, outer: int) -> None:
    assert Launch.from_environ(ENVIRONMENTS[outer] | ENVIRONMENTS[inner]).launcher == NAMES[inner]


@pytest.mark.parametrize(
    ("mpi", "same", "apart"),
    [
        (OPEN_MPI, {"RANK": "3", "WORLD_SIZE": "4"}, {"OMPI_COMM_WORLD_LOCAL_SIZE": "2"}),
        (INTEL, {"RANK": "1", "WORLD_SIZE": "2"}, {"MPI_LOCALNRANKS": "1"}),
    ],
    ids=["Open MPI", "Intel MPI"],
)
def test_mpiexec_wins_where_a_program_names_its_ranks_for_torch(
    mpi: dict[str, str], same: dict[str, str], apart: dict[str, str]
) -> None:
    """Torch's variables do not say where the ranks live."""
    env = mpi | BY_HAND | same
    assert Launch.from_environ(env) == Launch.from_environ(mpi)
    assert Launch.from_environ(env | apart).several_hosts
    assert Launch.from_environ(env | A2A).launcher == "a2a run"
    for other in ({"RANK": "0"}, {"WORLD_SIZE": "9"}, {"TORCHELASTIC_RUN_ID": "none"}):
        assert Launch.from_environ(env | apart | other).launcher == "torchrun"


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ({"A2A_RANK": "1"}, "A2A_RANK=1 is set in the environment, but A2A_SIZE is not"),
        ({"WORLD_SIZE": "4"}, "WORLD_SIZE=4 is set in the environment, but RANK is not"),
        (A2A | {"A2A_RANK": "4"}, "A2A_RANK=4 in the environment is not a rank below A2A_SIZE=4"),
        (A2A | {"A2A_RANK": "-1"}, "A2A_RANK=-1 in the environment is not a rank below A2A_SIZE=4"),
        (A2A | {"A2A_SIZE": "0"}, "A2A_SIZE=0 in the environment is not a number of ranks"),
        (TORCHRUN | {"RANK": "one"}, "RANK='one' in the environment is not an integer"),
        (PADDLE | {"PADDLE_NNODES": ""}, "PADDLE_NNODES='' in the environment is not an integer"),
        ({"RANK_TABLE_FILE": "t.json"}, "RANK_TABLE_FILE=t.json is set in the environment, but RANK_ID is not"),
        (RANK_TABLE | {"RANK_ID": "one"}, "RANK_ID='one' in the environment is not an integer"),
        (
            RANK_TABLE | {"RANK_ID": "4"},
            f"RANK_ID=4 in the environment is not one of the 4 ranks of {RANK_TABLE['RANK_TABLE_FILE']}",
        ),
        (
            RANK_TABLE | {"RANK_TABLE_FILE": "/nowhere/table.json"},
            "RANK_TABLE_FILE=/nowhere/table.json in the environment: rankTableFile path: /nowhere/table.json does not "
            "exist.",
        ),
        ({"PMI_RANK": "0"}, "PMI_RANK=0 is set in the environment, but PMI_SIZE is not"),
        (
            {"SLURM_STEP_ID": "0", "SLURM_PROCID": "1"},
            "SLURM_PROCID=1 is set in the environment, but SLURM_NTASKS is not",
        ),
    ],
)
def test_half_set_and_senseless_variables_are_named(env: dict[str, str], message: str) -> None:
    with pytest.raises(a2a.InvalidArgumentError) as info:
        Launch.from_environ(env)
    assert str(info.value) == message


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({name: value for name, value in TORCHRUN.items() if "MASTER" not in name}, "LOCAL_WORLD_SIZE=1, WORLD_SIZE=2"),
        (PADDLE | {"PADDLE_NNODES": "2"}, "PADDLE_NNODES=2"),
        (
            PADDLE | {"PADDLE_TRAINER_ENDPOINTS": "10.0.0.1:1,10.0.0.2:1"},
            "PADDLE_TRAINER_ENDPOINTS=10.0.0.1:1,10.0.0.2:1",
        ),
    ],
)
def test_several_hosts_without_a_place_to_meet(
    change: dict[str, str], names: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_environment(monkeypatch, change)
    if "WORLD_SIZE" in change:
        monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    with pytest.raises(a2a.UnsupportedError, match="start them with mpiexec") as info:
        a2a.init()
    assert f"({names})" in str(info.value)


@pytest.mark.parametrize(
    ("env", "place"),
    [
        (TORCHRUN | {"LOCAL_WORLD_SIZE": "1"}, "localhost:29501"),
        (TORCHRUN | {"LOCAL_WORLD_SIZE": "1", "A2A_PORT_OFFSET": "7"}, "localhost:29507"),
        (TORCHRUN | {"LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "fe80::1"}, "[fe80::1]:29501"),
        (PADDLE | {"PADDLE_NNODES": "2", "MASTER_ADDR": "a", "MASTER_PORT": "80"}, "a:81"),
        (TORCHRUN | {"LOCAL_WORLD_SIZE": "1", "A2A_BOOTSTRAP": "tcp://b:90"}, "b:90"),
        (A2A | {"A2A_BOOTSTRAP": "tcp://b:90"}, "b:90"),
        (SRUN | {"A2A_BOOTSTRAP": "tcp://b:90"}, "b:90"),
        (SRUN | {"SLURM_NNODES": "2", "MASTER_ADDR": "a", "MASTER_PORT": "80"}, None),  # through MPI
        (TORCHRUN, None),
        (A2A | {"MASTER_ADDR": "a", "MASTER_PORT": "80"}, None),
    ],
)
def test_where_ranks_meet(env: dict[str, str], place: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    set_environment(monkeypatch, env)
    assert _places.meeting_place(Launch.from_environ()) == place


def test_places_that_make_no_sense(monkeypatch: pytest.MonkeyPatch) -> None:
    for change, message in (
        ({"A2A_BOOTSTRAP": "host:80"}, "A2A_BOOTSTRAP=host:80 in the environment is not tcp://host:port"),
        ({"A2A_PORT_OFFSET": "40000"}, "MASTER_PORT=29500 + A2A_PORT_OFFSET in the environment is 69500, no port"),
        ({"A2A_PORT_OFFSET": "one"}, "A2A_PORT_OFFSET='one' in the environment is not an integer"),
    ):
        set_environment(monkeypatch, TORCHRUN | {"LOCAL_WORLD_SIZE": "1", "A2A_SECRET": "x" * 32} | change)
        with pytest.raises(a2a.InvalidArgumentError) as info:
            a2a.init()
        assert str(info.value) == message


def two_servers(tmp_path: Path) -> dict[str, str]:
    table = json.loads(Path(RANK_TABLE["RANK_TABLE_FILE"]).read_text())
    devices = table["server_list"][0]["device"]
    table["server_list"] = [
        {"server_id": "a", "device": devices[:1]},
        {"server_id": "b", "device": devices[1:]},
    ]
    table["server_count"] = "2"
    path = tmp_path / "table.json"
    path.write_text(json.dumps(table))
    return {"RANK_ID": "3", "RANK_TABLE_FILE": str(path)}


def test_a_rank_table_of_several_servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    env = two_servers(tmp_path)
    said = f"RANK_TABLE_FILE={env['RANK_TABLE_FILE']} has 2 servers"
    found = Launch.from_environ(env)
    assert (found.rank, found.size, found.local_rank, found.several_hosts) == (3, 4, 2, said)
    set_environment(monkeypatch, env)
    with pytest.raises(a2a.UnsupportedError, match="a rank table placed the ranks on several hosts") as info:
        a2a.init()
    assert f"({said})" in str(info.value)


def test_a_mistake_in_a_rank_table_is_named_by_its_path(tmp_path: Path) -> None:
    env = two_servers(tmp_path)
    path = Path(env["RANK_TABLE_FILE"])
    path.write_text(path.read_text().replace('"rank_id": "2"', '"rank_id": 2'))
    with pytest.raises(a2a.InvalidArgumentError) as info:
        Launch.from_environ(env)
    mistake = f"{path}: $.server_list[1].device[1].rank_id: is a number, not a string"
    assert str(info.value) == f"RANK_TABLE_FILE={path} in the environment: {mistake}"


def set_environment(monkeypatch: pytest.MonkeyPatch, env: dict[str, str]) -> None:
    ours = {name for name in os.environ if name.startswith("A2A_")}
    for name in set().union(*ENVIRONMENTS, {"PMI_FD"}, ours):
        monkeypatch.delenv(name, raising=False)
    for name, value in env.items():
        monkeypatch.setenv(name, value)


def test_jobs_differ_by_restart_and_by_port() -> None:
    jobs = {
        Launch.from_environ(TORCHRUN | change).job
        for change in ({}, {"TORCHELASTIC_RESTART_COUNT": "1"}, {"MASTER_PORT": "29501"}, {"TORCHELASTIC_RUN_ID": "x"})
    }
    assert len(jobs) == 4


def test_long_jobs_are_short_enough_for_a_socket_name() -> None:
    endpoints = ",".join(f"127.0.0.1:{6000 + rank}" for rank in range(64))
    job = Launch.from_environ(PADDLE | {"PADDLE_TRAINER_ENDPOINTS": endpoints}).job
    other = Launch.from_environ(PADDLE | {"PADDLE_TRAINER_ENDPOINTS": endpoints[:-1] + "9"}).job
    assert job is not None and len(job) <= 64 and job != other


def test_mpich_job_is_the_process_behind_pmi_fd() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        job = Launch.from_environ({"PMI_RANK": "0", "PMI_SIZE": "2", "PMI_FD": str(ours.fileno())}).job
        assert job is not None and job.split("/")[0] == str(os.getpid())
    with Path(__file__).open() as file:
        for closed in (str(file.fileno()), "99999", "none"):
            assert Launch.from_environ({"PMI_RANK": "0", "PMI_SIZE": "2", "PMI_FD": closed}).job is None


@pytest.mark.parametrize(
    "env", [{"A2A_RANK": "0", "A2A_SIZE": "2"}, {"RANK": "0", "WORLD_SIZE": "2"}, {"PMI_RANK": "0", "PMI_SIZE": "2"}]
)
def test_a_job_without_a_name_is_refused(env: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    set_environment(monkeypatch, env)
    with pytest.raises(a2a.InvalidArgumentError, match=r"gives rank 0 of 2 no name for its job: .*; set A2A_JOB"):
        a2a.init()


def test_explicit_arguments_win(monkeypatch: pytest.MonkeyPatch) -> None:
    set_environment(monkeypatch, A2A | {"A2A_RANK": "nonsense"})
    with a2a.init(rank=0, size=1) as comm:
        assert (comm.rank, comm.size) == (0, 1)
    with pytest.raises(a2a.InvalidArgumentError, match="rank=0, size=None"):
        a2a.init(rank=0)
    set_environment(monkeypatch, {})
    with pytest.raises(a2a.InvalidArgumentError, match="rank=0, size=2 need job="):
        a2a.init(rank=0, size=2)


@pytest.mark.parametrize(
    "value", ["0", "1", "[]", "[1, 2]", "[[], [1]]", '[["1"], [["a"]]]', '"x"', "null", "[" * 9999]
)
def test_a_mark_that_no_rank_sets_is_refused_in_words(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    set_environment(monkeypatch, {"A2A_JOINED": value})
    with pytest.raises(a2a.InvalidArgumentError, match=r"A2A_JOINED=.* is nothing that a rank sets"):
        a2a.init()


def test_a_blank_mark_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    set_environment(monkeypatch, {"A2A_JOINED": " "})
    with a2a.init(timeout=5) as comm:
        assert comm.size == 1


def test_without_a_launcher_there_is_one_rank(monkeypatch: pytest.MonkeyPatch, nothing_left: None) -> None:
    set_environment(monkeypatch, {})
    for _ in range(2):
        with a2a.init(timeout=5) as comm:
            assert (comm.rank, comm.size, comm.timeout) == (0, 1, 5)


def in_threads(n: int, fn: Callable[[int], Any]) -> list[Any]:
    results: list[Any] = [None] * n

    def body(rank: int) -> None:
        results[rank] = fn(rank)

    threads = [threading.Thread(target=body, args=(rank,)) for rank in range(n)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return results


def test_explicit_job_with_threads_as_ranks_meets_twice() -> None:
    def rank_of(rank: int) -> int:
        total = np.zeros(3, np.int64)
        for _ in range(2):
            with a2a.init(rank, 3, job=f"test-{os.getpid()}", timeout=20) as comm:
                comm.allgather(np.array([comm.rank]), total)
        return int(total.sum())

    assert in_threads(3, rank_of) == [3, 3, 3]


class Board:
    """A bootstrap made of a list and a barrier."""

    slots: list[bytes] = [b""] * 2
    barrier = threading.Barrier(2)

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def allgather(self, mine: bytes) -> list[bytes]:
        self.slots[self.rank] = mine
        self.barrier.wait(20)
        result = list(self.slots)
        self.barrier.wait(20)
        return result


def test_threads_of_a_rank_wait_for_each_other_no_longer_than_their_deadline() -> None:
    with launch._one_at_a_time("x", 0, 1.0):
        with launch._one_at_a_time("x", 1, 1.0), launch._one_at_a_time("y", 0, 1.0):
            pass
        with pytest.raises(a2a.TimeoutError, match="another thread of rank 0 waits for the ranks of job 'x'"):
            a2a.init(0, 2, job="x", timeout=0.1)


def test_any_object_with_allgather_is_a_bootstrap() -> None:
    def rank_of(rank: int) -> list[int]:
        with a2a.init(rank, 2, bootstrap=Board(rank), timeout=20) as comm:
            result = np.zeros(2, np.int64)
            comm.allgather(np.array([comm.rank + 7]), result)
        return result.tolist()

    assert in_threads(2, rank_of) == [[7, 8], [7, 8]]


RANK_PROGRAM = """
import numpy as np
import a2a
for _ in range(2):
    with a2a.init(timeout=60) as comm:
        result = np.zeros(comm.size, np.int64)
        comm.allgather(np.array([comm.rank + 1]), result)
if comm.rank == 0:
    print("sum", result.sum(), "of", comm.size, flush=True)
"""


def output_of(command: list[str], tmp_path: Path) -> str:
    (tmp_path / "rank.py").write_text(RANK_PROGRAM)
    done = subprocess.run(
        [*command, "rank.py"], cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=250, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.smoke
def test_under_a_rank_table(tmp_path: Path) -> None:
    """A script that starts each rank of a table, as Ascend's do."""
    (tmp_path / "rank.py").write_text(RANK_PROGRAM)
    ranks = [
        subprocess.Popen(
            [sys.executable, str(tmp_path / "rank.py")],
            env=environment(**RANK_TABLE | {"RANK_ID": str(rank)}),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(4)
    ]
    outputs = [rank.communicate(timeout=100)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * 4, outputs
    assert outputs[0] == "sum 10 of 4\n"


@pytest.mark.timeout(300)
def test_under_torchrun(tmp_path: Path) -> None:
    needs("torch")
    output = output_of([sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"], tmp_path)
    assert "sum 3 of 2" in output


@pytest.mark.full
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "backend", [[], pytest.param(["--backend", "gloo"], marks=pytest.mark.full)], ids=["new", "legacy"]
)
def test_under_paddle_launch(tmp_path: Path, backend: list[str]) -> None:
    needs("paddle")
    command = [sys.executable, "-m", "paddle.distributed.launch", *backend, "--nproc_per_node", "2"]
    output = output_of(command, tmp_path)
    logs = [path.read_text(errors="replace") for path in (tmp_path / "log").glob("*")]
    assert "sum 3 of 2" in output + "".join(logs)


@pytest.mark.timeout(300)
def test_under_mpiexec(tmp_path: Path) -> None:
    mpiexec = shutil.which("mpiexec")
    if mpiexec is None:
        pytest.skip("no mpiexec on PATH")
    version = subprocess.run([mpiexec, "--version"], capture_output=True, text=True, check=False).stdout
    more = ["--allow-run-as-root", "--oversubscribe"] if "Open" in version or "prterun" in version else []
    # The shell stands for the wrappers between mpiexec and Python that people use.
    output = output_of([mpiexec, *more, "-n", "2", "sh", "-c", f'{sys.executable} "$0"'], tmp_path)
    assert "sum 3 of 2" in output
