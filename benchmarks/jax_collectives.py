"""psum in a compiled program of JAX: a2a against JAX's own Gloo collectives, and mpi4jax where it is installed.

``python benchmarks/jax_collectives.py [--ranks 2 4] [--sizes 64 16777216] [--rounds 9] [--json FILE]``

All contenders live in the same ranks, processes of this host that mpiexec has started, and take turns in every round,
in a random order. Before each call the rank writes a new input, float32, and all ranks meet in a barrier. The call is
timed until its result is ready, and the whole result is compared. A round's time is the slowest rank's median.

- a2a: ``jax.jit(lambda x: a2a.jax.psum(x, comm))``.
- gloo: ``jax.lax.psum`` in ``jax.shard_map`` over the processes of ``jax.distributed``, compiled.
- mpi4jax: its ``allreduce``, compiled.
- mpi: mpi4py's Allreduce on NumPy's arrays; a2a outside: ``comm.allreduce`` on them. No JAX takes part.
- jit alone: a compiled program that adds 1, without an exchange: what JAX itself takes for a call.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from mpi_ranks import Times, in_turns, ratios, run, slowest

import a2a

CALLS = {64: 100, 16 << 20: 4}  # of a round, by bytes
Contender = tuple[Callable[[Any], Any], Callable[[Any], Any]]  # makes an input of an array of NumPy; the call


def start_jax(comm: a2a.Communicator) -> None:
    import jax

    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    port = b""
    if comm.rank == 0:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = str(server.getsockname()[1]).encode()
    address = f"127.0.0.1:{int(comm.allgather_bytes(port)[0])}"
    jax.distributed.initialize(address, num_processes=comm.size, process_id=comm.rank)


def contenders(comm: a2a.Communicator) -> dict[str, Contender]:
    import jax
    from a2a.jax import psum
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    host = jax.local_devices()[0]

    def here(x: Any) -> Any:
        return jax.device_put(x, host).block_until_ready()

    mesh = Mesh(np.array(jax.devices()), ("ranks",))
    spread = NamedSharding(mesh, PartitionSpec("ranks"))

    def everywhere(x: Any) -> Any:
        return jax.make_array_from_process_local_data(spread, x).block_until_ready()

    def of_jax(x: Any) -> Any:
        return jax.lax.psum(x, "ranks")

    mapped = jax.shard_map(of_jax, mesh=mesh, in_specs=PartitionSpec("ranks"), out_specs=PartitionSpec())
    ours, theirs, alone = jax.jit(lambda x: psum(x, comm)), jax.jit(mapped), jax.jit(lambda x: x + 1)
    made: dict[str, Contender] = {
        "a2a": (here, lambda x: ours(x).block_until_ready()),
        "gloo": (everywhere, lambda x: theirs(x).block_until_ready()),
        "jit alone": (here, lambda x: alone(x).block_until_ready()),
        "a2a outside": (np.copy, lambda x: outside(comm, x)),
    }
    find_mpi()
    with contextlib.suppress(ImportError):
        made["mpi"] = (np.copy, with_mpi4py())
    with contextlib.suppress(ImportError):
        made["mpi4jax"] = (here, with_mpi4jax())
    return made


def outside(comm: a2a.Communicator, x: Any) -> Any:
    result = np.empty_like(x)
    comm.allreduce(x, result)
    return result


def find_mpi() -> None:
    """Have mpi4py take the library of the launcher, where that is not in its own environment."""
    libraries = Path(shutil.which("mpiexec") or "", "../../lib").resolve().glob("libmpi.so.*")
    found = min(libraries, default=None, key=lambda path: len(path.name))
    if found is not None:
        os.environ.setdefault("MPI4PY_LIBMPI", str(found))


def with_mpi4py() -> Callable[[Any], Any]:
    from mpi4py import MPI

    def call(x: Any) -> Any:
        result = np.empty_like(x)
        MPI.COMM_WORLD.Allreduce(x, result)
        return result

    return call


def with_mpi4jax() -> Callable[[Any], Any]:
    import jax
    import mpi4jax
    from mpi4py import MPI

    call = jax.jit(lambda x: mpi4jax.allreduce(x, op=MPI.SUM, comm=MPI.COMM_WORLD))
    return lambda x: call(x).block_until_ready()


def one_round(comm: a2a.Communicator, name: str, contender: Contender, size: int, turn: Iterator[int]) -> float:
    make, call = contender
    place = np.arange(size // 4, dtype=np.float32) % 1024
    times = []
    for _ in range(CALLS.get(size, max(3, min(100, (16 << 20) // size)))):
        number = next(turn) % 1024  # sums are exact
        x = make(place + (comm.rank + number))
        comm.barrier()
        started = time.perf_counter()
        y = call(x)
        times.append(time.perf_counter() - started)
        if name == "jit alone":
            wanted = place + (comm.rank + number + 1)
        else:
            wanted = comm.size * place + (comm.size * (comm.size - 1) // 2 + comm.size * number)
        if not np.array_equal(np.asarray(y), wanted):
            raise AssertionError(f"rank {comm.rank}: {name} is wrong")
    return slowest(comm, times)


def measure(comm: a2a.Communicator, made: dict[str, Contender], size: int, rounds: int) -> Times:
    turn = iter(range(1 << 30))
    return in_turns(list(made), rounds, lambda name: one_round(comm, name, made[name], size, turn))


def work(options: argparse.Namespace) -> None:
    with a2a.init() as comm:
        start_jax(comm)
        made = contenders(comm)
        points = [
            {"ranks": comm.size, "bytes": size, "times_us": measure(comm, made, size, options.rounds)}
            for size in options.sizes
        ]
        if comm.rank == 0:
            options.worker.write_text(json.dumps(points))
        comm.barrier()


def table(points: list[dict[str, Any]]) -> Iterator[str]:
    yield f"{'ranks':>5} {'bytes':>9} {'a2a, us':>9}   others / a2a, median [least, most]"
    for point in points:
        yield f"{point['ranks']:>5} {point['bytes']:>9} {ratios(point['times_us'])}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--sizes", type=int, nargs="+", default=[64, 16 << 20], metavar="BYTES")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.worker is not None:
        work(options)
    else:
        print(*table(run(__file__, options, ["--sizes", *map(str, options.sizes)])), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
