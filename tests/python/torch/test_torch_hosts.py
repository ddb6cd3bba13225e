"""Torch on hosts that share nothing but a network."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from commands import environment
from mpi import INSTALLED, Mpi, command_on_hosts
from network_hosts import namespace, remote_shell

pytest.importorskip("torch")
pytestmark = pytest.mark.timeout(110)
PROGRAM = str(Path(__file__).parents[1] / "support" / "torch_host_ranks.py")
SECRET = "0123456789abcdef0123456789abcdef"
TRUST = {"A2A_TRUST_STORE": "1"}
PORT = 29700


def start(
    addresses: list[str], each: int, function: str, *, of: dict[int, dict[str, str]] | None = None, **variables: str
) -> list[subprocess.Popen[str]]:
    """So many ranks on each host, with the variables of torchrun; ``of`` has those of single ranks."""
    size = each * len(addresses)
    env = environment(MASTER_ADDR=addresses[0], MASTER_PORT=str(PORT), WORLD_SIZE=str(size), LOCAL_WORLD_SIZE=str(each))
    env |= {"OMP_NUM_THREADS": "1"} | variables
    return [
        subprocess.Popen(
            ["ip", "netns", "exec", namespace(rank // each), sys.executable, PROGRAM, function],
            env=env | {"RANK": str(rank)} | (of or {}).get(rank, {}),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]


def finish(ranks: list[subprocess.Popen[str]]) -> tuple[list[str], str]:
    """The lines that they printed, sorted, and what went wrong in words."""
    try:
        said = [rank.communicate(timeout=90) for rank in ranks]
    finally:
        for one in ranks:
            one.kill()
    return sorted(line for out, _ in said for line in out.splitlines()), "".join(err for _, err in said)


def outcomes(addresses: list[str], cases: list[dict[int, dict[str, str]]], seconds: float) -> list[list[str]]:
    """How ranks, one on each host, end in each case, in which single ranks have variables. Those that fail do so
    before their deadline, or soon after it."""
    size = len(addresses)
    ranks = start(addresses, 1, "meet", SECONDS=str(seconds))
    for one in ranks:
        assert one.stdin is not None
        one.stdin.write(json.dumps([[case.get(rank, {}) for rank in range(size)] for case in cases]))
        one.stdin.close()
        one.stdin = None
    lines, errors = finish(ranks)
    assert len(lines) == size, errors
    told = [json.loads(line)[1] for line in lines]
    assert all(took < seconds + 2 for said in told for took, _ in said), told
    return [[told[rank][number][1] for rank in range(size)] for number in range(len(cases))]


def fine(size: int) -> list[str]:
    return [f"rank {rank} of {size} is fine" for rank in range(size)]


@pytest.mark.skipif(not INSTALLED, reason="no MPI")
def test_everything_over_mpi() -> None:
    """On assigned hosts. Groups of some of the ranks use the network of all."""
    mpi = INSTALLED[0]
    env = mpi.environment(A2A_HOSTS="a,a,b,b", OMP_NUM_THREADS="1")
    command = mpi.command(4, PROGRAM, "everything")
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=90, check=False)
    assert (done.returncode, sorted(done.stdout.splitlines())) == (0, fine(4)), done.stdout + done.stderr


@pytest.mark.full
@pytest.mark.parametrize("function", ["everything", "of_gloo"])
@pytest.mark.parametrize("mpi", INSTALLED, ids=lambda mpi: mpi.name)
def test_under_mpiexec(mpi: Mpi, function: str, addresses: list[str], tmp_path: Path) -> None:
    """Without a secret: MPI connects the hosts, and the store of the default group is found from another host."""
    shell = remote_shell(tmp_path / "shell", addresses)
    command = command_on_hosts(mpi, shell, addresses[:2], 2, PROGRAM, function)
    env = mpi.environment(GLOO_SOCKET_IFNAME="eth0")
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=90, check=False)
    assert (done.returncode, sorted(done.stdout.splitlines())) == (0, fine(4)), done.stdout + done.stderr


def test_everything_with_a_secret_file(addresses: list[str], tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text(SECRET)
    file.chmod(0o600)
    lines, errors = finish(start(addresses[:2], 2, "everything", A2A_SECRET_FILE=str(file)))
    assert lines == fine(4), errors


@pytest.mark.parametrize("function", [pytest.param("everything", marks=pytest.mark.full), "of_gloo"])
def test_a_store_that_is_trusted(function: str, addresses: list[str]) -> None:
    """Gloo takes the interface of the host's name unless told, which stands for another host here."""
    lines, errors = finish(start(addresses[:2], 2, function, GLOO_SOCKET_IFNAME="eth0", **TRUST))
    assert lines == fine(4), errors


def everywhere(variables: dict[str, str]) -> dict[int, dict[str, str]]:
    return {rank: variables for rank in range(3)}


def test_what_ranks_have_to_agree_about(addresses: list[str], tmp_path: Path) -> None:
    """One clear error on each rank. The next attempt is not disturbed by it."""
    for name, mode in (("open", 0o644), ("short", 0o600), ("good", 0o600)):
        (tmp_path / name).write_text("short" if name == "short" else SECRET)
        (tmp_path / name).chmod(mode)
    files = {name: {"A2A_SECRET_FILE": str(tmp_path / name)} for name in ("open", "short", "good", "missing")}
    good = everywhere(files["good"])
    disagree = "MismatchError: ranks of a process group disagree: "
    missing = "InvalidArgumentError: rank 0 and rank 1 are on different hosts, and have no common secret"
    joins = "MismatchError: rank 2 cannot join the process group: "
    refused = "InvalidArgumentError: "
    # case, how the error of ranks 0 and 1 begins, how that of rank 2 does, and words of both
    cases: list[tuple[dict[int, dict[str, str]], str, str, str]] = [
        ({}, missing, missing, "\n  A2A_SECRET_FILE=path "),
        ({}, missing, missing, "\n  A2A_TRUST_STORE=1 "),
        (good, "met on 3", "met on 3", " hosts"),
        (everywhere(TRUST), "met on 3", "met on 3", " hosts"),
        (good | {1: files["good"] | {"RANK": "x"}}, "met on 3", "met on 3", " hosts"),  # of no launcher
        (
            good | {2: {}},
            disagree,
            disagree,
            "a secret (A2A_SECRET_FILE or A2A_SECRET) on ranks 0, 1, none on rank 2",
        ),
        (
            good | {1: {"A2A_SECRET": SECRET + "x"}},
            disagree,
            disagree,
            "one secret on ranks 0, 2, another on rank 1",
        ),
        ({1: TRUST, 2: TRUST}, disagree, disagree, "A2A_TRUST_STORE=1 on ranks 1, 2, not on rank 0"),
        (
            everywhere(TRUST) | {0: TRUST | files["good"]},
            disagree,
            disagree,
            "A2A_SECRET) on rank 0, none on ranks 1, 2",
        ),
        (good | {2: files["open"]}, joins, refused, "others may open it; chmod 600"),
        (good | {2: files["missing"]}, joins, refused, "No such file or directory"),
        (everywhere(files["short"]), refused, refused, "the secret has 5 bytes; 16 to 4096 are accepted"),
        (good | {2: {"A2A_TRUST_STORE": "perhaps"}}, joins, refused, "A2A_TRUST_STORE=perhaps in the environment is"),
        (good | {2: {"A2A_BOOTSTRAP": "h:1"}}, joins, refused, "A2A_BOOTSTRAP=h:1 in the environment is not tcp://"),
        (good, "met on 3", "met on 3", " hosts"),
    ]
    for (_, others, last, words), said in zip(
        cases, outcomes(addresses, [case for case, *_ in cases], 30), strict=True
    ):
        for rank, text in enumerate(said):
            assert text.startswith(last if rank == 2 else others) and words in text, said
            assert SECRET not in text


def test_a_firewall(addresses: list[str]) -> None:
    """Rank 0 is reached, but what two others send each other is lost."""
    wrong = ["ip", "-n", namespace(1), "neigh", "replace", addresses[2], "lladdr", "02:00:00:00:00:01", "dev", "eth0"]
    subprocess.run(wrong, check=True, timeout=20)
    try:
        (said,) = outcomes(addresses, [everywhere(TRUST)], 3)
    finally:
        subprocess.run([*wrong[:4], "del", addresses[2], "dev", "eth0"], check=True, timeout=20)
    for text in said:
        assert text.startswith("TimeoutError: generation 0: rank ") and "timed out waiting for rank " in text, text
        assert ", on any port: is it one that the other hosts reach, and does no firewall drop" in text, text
