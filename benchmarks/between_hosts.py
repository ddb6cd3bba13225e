"""Collectives between hosts: a2a over TCP and over UCX, Gloo, and MPICH over UCX and over its own TCP, in turns.

    python benchmarks/between_hosts.py --seconds 900 --json between.json      # root; about a quarter of an hour
    python benchmarks/between_hosts.py --quick
    python benchmarks/between_hosts.py --ops ddp alone --contenders a2a a2a-thread gloo --layouts 2x1 --rates 1gbit

Hosts are network namespaces of this machine, joined by a bridge, with links limited by tbf or not at all. All
contenders of a layout are alive at once and take turns in a random order, round by round; whoever has no turn is
blocked in a read of a socket. Inputs are rewritten before each call and outputs checked after it (host_ranks.py). The
time of a call is that of its slowest rank; of a round the median; the table has the median of the rounds, the lowest
and the highest round, and the median over the bound: the time that the links need for the bytes that have to pass.
``!`` marks wrong results. The end compares all with a2a, round by round."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from contenders import clean_environment
from host_turns import await_ranks, bound, header, line, listen, measure, verdicts

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "python" / "support"))
from mpi import LIBRARIES, command_on_hosts
from network_hosts import hosts, namespace, remote_shell

RANK = str(Path(__file__).with_name("host_ranks.py"))
OVER_TCP = {"UCX_TLS": "tcp"}  # UCX would find that the hosts share a kernel, and use its memory
CONTENDERS: dict[str, dict[str, str]] = {
    "a2a": {"A2A_NETWORK": "tcp", "A2A_PROGRESS_THREAD": "auto"},
    "a2a-ucx": {"A2A_NETWORK": "ucx", "A2A_PROGRESS_THREAD": "auto", **OVER_TCP},
    "gloo": {"GLOO_SOCKET_IFNAME": "eth0"},
    "mpi-ucx": {"MPIR_CVAR_CH4_NETMOD": "ucx", **OVER_TCP},
    "mpi-ofi": {"MPIR_CVAR_CH4_NETMOD": "ofi", "FI_PROVIDER": "tcp"},
}
MORE = {
    "a2a-nothread": {"A2A_NETWORK": "tcp", "A2A_PROGRESS_THREAD": "0"},
    "a2a-thread": {"A2A_NETWORK": "tcp", "A2A_PROGRESS_THREAD": "1"},
}
BYTES_PER_SECOND = {"1gbit": 125e6, "10gbit": 1250e6, "none": None}
SIZES = [64, 4 << 10, 64 << 10, 1 << 20, 16 << 20]


def layout_of(text: str) -> tuple[int, int]:
    count, _, each = text.partition("x")
    return int(count), int(each)


def limit(count: int, rate: str) -> None:
    for host in range(count):
        device = ["ip", "netns", "exec", namespace(host), "tc", "qdisc"]
        subprocess.run([*device, "del", "dev", "eth0", "root"], check=False, capture_output=True)
        if rate != "none":
            tbf = ["add", "dev", "eth0", "root", "tbf", "rate", rate, "burst", "256kb", "latency", "50ms"]
            subprocess.run([*device, *tbf], check=True)


def commands(
    name: str, addresses: list[str], each: int, port: int, shell: Path
) -> list[tuple[list[str], dict[str, str]]]:
    """The processes of a contender: (arguments, variables). Each has a port of its own to meet at."""
    control = f"{addresses[0].rpartition('.')[0]}.1:{port}"
    env = clean_environment() | (CONTENDERS | MORE)[name]
    if name.startswith("mpi"):
        mpi = next(found for found in LIBRARIES if found.name == "mpich")
        return [(command_on_hosts(mpi, shell, addresses, each, RANK, name, control), env | mpi.for_mpi4py())]
    size, meeting = len(addresses) * each, 29500 + 10 * list(CONTENDERS | MORE).index(name)
    env |= {"MASTER_ADDR": addresses[0], "MASTER_PORT": str(meeting), "WORLD_SIZE": str(size)}
    env |= {"LOCAL_WORLD_SIZE": str(each), "A2A_SECRET": "0123456789abcdef0123456789abcdef"}
    enter = ["ip", "netns", "exec"]
    return [
        ([*enter, namespace(rank // each), sys.executable, RANK, name, control], env | {"RANK": str(rank)})
        for rank in range(size)
    ]


@contextlib.contextmanager
def started(names: list[str], addresses: list[str], each: int) -> Iterator[list[Any]]:
    """The contenders, whose ranks have met."""
    processes = []
    with listen() as door, tempfile.TemporaryDirectory() as folder:
        shell = remote_shell(Path(folder) / "shell", addresses)
        for name in names:
            for argv, env in commands(name, addresses, each, door.getsockname()[1], shell):
                quiet = subprocess.DEVNULL
                processes.append(subprocess.Popen(argv, env=env, stdin=quiet, stdout=quiet, stderr=quiet))
        contenders = []
        try:
            contenders = await_ranks(door, {name: len(addresses) * each for name in names}, 90.0)
            yield contenders
        finally:
            for one in contenders:
                one.dismiss()
            for process in processes:
                end(process)


def end(process: subprocess.Popen[bytes]) -> None:
    for last in (process.terminate, process.kill):
        try:
            process.wait(5)
            return
        except subprocess.TimeoutExpired:
            last()
    process.wait()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layouts", nargs="+", default=["2x1", "4x1", "2x2"], help="hosts x ranks of each")
    parser.add_argument("--rates", nargs="+", default=["1gbit", "none"], choices=BYTES_PER_SECOND)
    parser.add_argument("--ops", nargs="+", default=["allreduce", "alltoall"])
    parser.add_argument("--sizes", nargs="+", type=int, default=SIZES, help="bytes of each rank's tensor")
    parser.add_argument("--contenders", nargs="+", default=list(CONTENDERS), choices=[*CONTENDERS, *MORE])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=900.0, help="for all of it")
    parser.add_argument("--quick", action="store_true", help="90 seconds, three rounds")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.quick:
        options.seconds, options.rounds = min(options.seconds, 90.0), 3
    cases = [(op, size) for op in options.ops for size in (options.sizes if op.startswith("all") else [0])]
    places = [(layout, rate) for layout in options.layouts for rate in options.rates]
    share = options.seconds / len(places) / len(cases)
    results, failures = [], []
    most = max(layout_of(layout)[0] for layout in options.layouts)
    with hosts(most) as addresses:
        for layout in options.layouts:
            count, each = layout_of(layout)
            limit(count, "none")
            with started(options.contenders, addresses[:count], each) as contenders:
                for rate in options.rates:
                    limit(count, rate)
                    print(f"# {layout}, links: {rate}", header(options.contenders), sep="\n", flush=True)
                    points = []
                    for case in cases:
                        point = measure(contenders, case, share, options.rounds)
                        least = bound(*case, count, each, BYTES_PER_SECOND[rate])
                        points.append(point | {"bound": least})
                        print(line(point, options.contenders, least), flush=True)
                    print(*verdicts(points, options.contenders[0]), sep="\n", flush=True)
                    results.append({"layout": layout, "rate": rate, "points": points})
                print(*(f"# {one}" for one in contenders), sep="\n", flush=True)
                failures += [f"{layout}: {one.name}" for one in contenders if one.failed]
    if options.json:
        options.json.write_text(json.dumps({"load": os.getloadavg()[0], "results": results}, indent=1) + "\n")
    wrong = [point for result in results for point in result["points"] if any(point["wrong"].values())]
    return 1 if wrong or failures else 0


if __name__ == "__main__":
    sys.exit(main())
