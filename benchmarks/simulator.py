"""The simulator beside measured exchanges: hosts are network namespaces of this machine, which root may make, and their
links are limited by tc, so that the network and not the CPU decides.

    python benchmarks/simulator.py                              # 4 hosts with one rank each, 400 Mbit/s
    python benchmarks/simulator.py --hosts 4 --each 12 --bytes 2M --rate 100

The rates and costs of the model are fitted to exchanges in which every pair has equally many bytes. The other traffic
is then compared with what the model says of it. Every byte is checked.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

SUPPORT = Path(__file__).resolve().parents[1] / "tests" / "python" / "support"
sys.path.insert(0, str(SUPPORT))

from network_hosts import hosts, namespace  # noqa: E402

import a2a  # noqa: E402
from a2a import traffic  # noqa: E402
from a2a.cli._replay_rank import run_steps  # noqa: E402
from a2a.simulator import Cluster, simulate  # noqa: E402

UNIFORM = 4  # sizes that the model is fitted to, each half of the last
SECRET = b"benchmarks of the simulator, on this machine"


def rank_main(rank: int, ranks: int, address: str, file: str, rounds: int) -> None:
    matrices = [np.array(matrix, np.uint64) for matrix in json.loads(Path(file).read_text(encoding="utf-8"))]
    meeting = a2a.TcpBootstrap(rank, ranks, address, job="simulator", secret=SECRET, timeout=60)
    with a2a.init(rank, ranks, bootstrap=meeting, timeout=120) as comm:
        run_steps(comm, matrices)
        times = [run_steps(comm, matrices) for _ in range(rounds)]
    if rank == 0:
        print(json.dumps([[list(map(float, seconds)), wrong] for seconds, wrong in times]))


def limit(number: int, megabits: float) -> None:
    """Limit both directions of a host's link."""
    words = f"root tbf rate {megabits}mbit burst 64kb latency 3s".split()
    own = ["ip", "netns", "exec", namespace(number), "tc", "qdisc", "add", "dev", "eth0", *words]
    there = ["tc", "qdisc", "add", "dev", f"a2av{os.getpid() % 100_000:x}{number}", *words]
    for command in (own, there):
        subprocess.run(command, check=True, capture_output=True)


def measure(options: argparse.Namespace, matrices: Sequence[traffic.Matrix]) -> np.ndarray:
    """Return [rounds, matrices]: the time of the slowest rank."""
    ranks = options.hosts * options.each
    with hosts(options.hosts) as addresses, tempfile.TemporaryDirectory() as folder:
        for number in range(options.hosts):
            limit(number, options.rate)
        file = Path(folder) / "matrices.json"
        file.write_text(json.dumps([matrix.tolist() for matrix in matrices]), encoding="utf-8")
        line = [sys.executable, __file__, "--rank"]
        started = [
            subprocess.Popen(
                ["ip", "netns", "exec", namespace(rank // options.each), *line, str(rank), str(ranks),
                 f"{addresses[0]}:4711", str(file), str(options.rounds)],
                stdout=subprocess.PIPE if rank == 0 else None,
                env=os.environ | {"A2A_HOSTS": ",".join(f"h{one // options.each}" for one in range(ranks))},
                text=True,
            )
            for rank in range(ranks)
        ]  # fmt: skip
        told = started[0].communicate()[0]
        if any([process.wait() for process in started]):
            sys.exit("a rank failed")
    results = json.loads(told)
    if any(wrong for _, wrong in results):
        sys.exit("bytes arrived that were not sent")
    return np.array([seconds for seconds, _ in results])


def fitted(matrices: Sequence[traffic.Matrix], times: np.ndarray, each: int) -> Cluster:
    """The rate and the fixed cost that fit the uniform exchanges best."""
    ports = np.array([float(simulate(matrix, Cluster(each, 1.0, 1e12, 0, 0, 0)).bound) for matrix in matrices])
    slope, start = np.polyfit(ports, times, 1, w=1 / times)
    return Cluster(ranks_per_host=each, link=1 / slope, memory=5e9, latency=0, message=0, start=max(start, 0.0))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--each", type=int, default=1, help="ranks of a host")
    parser.add_argument("--rate", type=float, default=400, help="of a link, Mbit/s")
    parser.add_argument("--bytes", default="16M", help="that a rank sends in the mean")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json")
    options = parser.parse_args()
    unit = {"K": 1 << 10, "M": 1 << 20}[options.bytes[-1]]
    mean, ranks = int(options.bytes[:-1]) * unit, options.hosts * options.each
    named = [
        (f"uniform / {1 << half}", traffic.made("uniform", ranks, bytes_per_rank=mean >> half))
        for half in range(UNIFORM)
    ]
    for name in traffic.NAMES[1:]:
        for seed in (1, 2):
            named.append((f"{name} {seed}", traffic.made(name, ranks, bytes_per_rank=mean, seed=seed)))
    matrices = [matrix for _, matrix in named]
    times = measure(options, matrices)
    middle = np.median(times, axis=0)
    cluster = fitted(matrices[:UNIFORM], middle[:UNIFORM], options.each)
    print(f"{ranks} ranks on {options.hosts} hosts; links of {options.rate:g} Mbit/s")
    print(f"fitted: {cluster.link * 8e-6:.1f} Mbit/s, {cluster.start * 1e3:.2f} ms")
    print(f"{'traffic':<14} {'measured ms':>12} {'spread':>17} {'model ms':>9} {'error':>7} {'/ bound':>8}")
    rows = []
    for number, (name, matrix) in enumerate(named):
        outcome = simulate(matrix, cluster)
        seconds, error = float(middle[number]), outcome.seconds / float(middle[number]) - 1
        spread = f"[{times[:, number].min() * 1e3:.1f}, {times[:, number].max() * 1e3:.1f}]"
        over = (seconds - cluster.start) / outcome.bound
        print(f"{name:<14} {seconds * 1e3:12.1f} {spread:>17} {outcome.seconds * 1e3:9.1f} {error:+7.1%} {over:8.3f}")
        rows.append({"traffic": name, "measured": times[:, number].tolist(), "model": outcome.seconds, "error": error})
    if options.json:
        Path(options.json).write_text(json.dumps({"cluster": vars(cluster), "rows": rows}, indent=1), encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        rank_main(int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], sys.argv[5], int(sys.argv[6]))
    else:
        main()
