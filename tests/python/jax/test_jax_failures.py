"""What fails within a compiled program: the error with ranks and values on every rank, and no rank waits."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import command, environment, needs
from rank_pool import Pool
from tcp_peer import free_address

import a2a

needs("jax")

pytestmark = pytest.mark.timeout(110)


def failed(world: a2a.Communicator, how: str, slow: bool) -> list[str]:
    """The texts of the error and of the next program's. A slow program is dispatched, and fails later."""
    import time

    import jax
    import jax.numpy as jnp
    from a2a.jax import broadcast, psum

    comm = world.group(range(4))
    assert comm is not None

    def program(x: Any) -> Any:
        if slow:
            big = jnp.ones((400, 400)) * x[0]
            x = x + (big @ big @ big).sum() * 0
        x = psum(x, comm)
        return psum(x, comm)

    call = jax.jit(program)
    call(jnp.ones(3)).block_until_ready()
    if how == "deadline":
        comm.timeout = 0.3
        if world.rank == 1:
            time.sleep(1)
    if how == "closed":
        comm.close()
    if how == "broadcast":
        call = jax.jit(lambda x: psum(broadcast(x, comm), comm))
    if how == "aborted" and world.rank == 1:
        comm.abort("rank 1 has had enough")
    texts = []
    x = jnp.ones(4 if how == "broadcast" and world.rank == 1 else 3)
    for _ in range(2):
        with pytest.raises(jax.errors.JaxRuntimeError) as caught:
            call(x).block_until_ready()
        texts.append(str(caught.value))
    if how == "deadline":
        comm = comm.shrink(timeout=20)
        assert comm.size == 4
        assert (jax.jit(lambda x: psum(x, comm))(np.ones(3)) == 4).all()
    world.barrier()
    assert (psum(np.ones(2), world) == 4).all()
    assert (jax.jit(lambda x: psum(x, world))(np.ones(5)) == 4).all()
    return texts


FAILURES = {
    "broadcast": "",  # ranks 2 and 3 come through, and then hear of it
    "deadline": "which still waits for rank 1",
    "closed": "has closed this communicator",
    "aborted": "rank 1 has had enough",
}


@pytest.mark.parametrize("how", FAILURES)
@pytest.mark.parametrize("slow", [False, True])
def test_every_rank_gets_the_error(pool: Pool, how: str, slow: bool) -> None:
    for texts in pool.run(failed, how, slow):
        assert FAILURES[how] in texts[0] and "a2a." in texts[0]
        assert "a2a." in texts[1]


def refused(world: a2a.Communicator) -> str:
    """One rank's program is refused when it is traced, while the others run theirs."""
    import jax
    from a2a.jax import psum, psum_scatter

    comm = world.group(range(4))
    assert comm is not None
    rows = 3 if comm.rank == 2 else 4
    with pytest.raises((a2a.InvalidArgumentError, jax.errors.JaxRuntimeError)) as caught:
        call = jax.jit(lambda x: psum_scatter((psum(x, comm), x, x), comm))
        jax.block_until_ready(call(np.ones((rows, 2), np.float32)))
    assert (psum(np.ones(2), comm) == 4).all()
    assert (jax.jit(lambda x: psum(x, comm))(np.ones(5)) == 4).all()
    return str(caught.value)


def refused_when_compiled(world: a2a.Communicator) -> str:
    import jax
    from a2a.jax import pmax, psum

    comm = world.group(range(4))
    assert comm is not None
    x = np.ones(3, np.complex64 if comm.rank == 2 else np.float32)
    with pytest.raises((a2a.Error, jax.errors.JaxRuntimeError)) as caught:
        jax.jit(lambda x: pmax(psum(x * 0 + 1, comm).sum() + x, comm))(x).block_until_ready()
    assert (psum(np.ones(2), comm) == 4).all()
    return str(caught.value)


def test_an_operation_that_is_refused_when_one_rank_compiles_it(pool: Pool) -> None:
    """Its dtype has no maximum."""
    for text in pool.run(refused_when_compiled):
        assert "rank 2" in text and "complex" in text


def for_a_device(world: a2a.Communicator) -> str:
    """One rank compiles the program for a device, which needs none here."""
    import jax
    from a2a.jax import psum

    comm = world.group(range(4))
    assert comm is not None
    call = jax.jit(lambda x: psum(x, comm))
    x = np.ones(3, np.float32)
    with pytest.raises((a2a.Error, jax.errors.JaxRuntimeError)) as caught:
        if comm.rank == 1:
            call.trace(x).lower(lowering_platforms=("tpu",))
        call(x).block_until_ready()
    return str(caught.value)


def test_a_program_for_a_device_is_refused(pool: Pool) -> None:
    for text in pool.run(for_a_device):
        assert "rank 1" in text and "compiled for a device" in text


def test_a_program_that_is_refused_on_one_rank(pool: Pool) -> None:
    for text in pool.run(refused):
        assert "rank 2" in text and "has 3 entries along scatter_dimension 0" in text


PROGRAM = """
import os, signal, sys, threading, time
import jax, jax.numpy as jnp
import a2a
from a2a.jax import psum
comm = a2a.init()
def program(x):
    if sys.argv[2] == "slow":
        big = jnp.ones((400, 400)) * x[0]
        x = x + (big @ big @ big).sum() * 0
    return psum(x, comm)
call = jax.jit(program)
call(jnp.ones(3)).block_until_ready()
if comm.rank == 1:
    time.sleep(2)
    os._exit(0)
begin = time.monotonic()
if sys.argv[1] == "interrupt":
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    try:
        call(jnp.ones(3)).block_until_ready()
    finally:
        time.sleep(0.01)
except KeyboardInterrupt:
    print("interrupted after", time.monotonic() - begin < 1.5)
except jax.errors.JaxRuntimeError as error:
    print(error)
assert comm.broken
"""


@pytest.mark.parametrize("how, words", [("lost", "a2a.PeerLostError"), ("interrupt", "interrupted after True")])
@pytest.mark.parametrize("speed, hosts", [("quick", ""), ("slow", ""), ("slow", "a,b")])
def test_a_lost_rank_and_ctrl_c_end_the_wait(tmp_path: Path, how: str, words: str, speed: str, hosts: str) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = subprocess.run(
        command("run", "-n", "2", str(program), how, speed),
        env=environment(**(dict(A2A_HOSTS=hosts, A2A_BOOTSTRAP=f"tcp://{free_address()}") if hosts else {})),
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    assert words in done.stdout and (how != "lost" or "lost rank 1" in done.stdout)


def foreign(world: a2a.Communicator) -> None:
    """Calls of the handler that no program of this process has made."""
    import re

    import jax
    import jax.numpy as jnp
    from a2a.jax import psum

    comm = world.group(range(4))
    text = jax.jit(lambda x: psum(x, comm)).lower(jnp.ones(3)).as_text()
    found = re.search(r"call = (\d+) : ui64", text)
    assert found is not None

    def call(number: int, x: Any) -> Any:
        made = jax.ffi.ffi_call("a2a_call", jax.ShapeDtypeStruct(x.shape, x.dtype), has_side_effect=True)
        return jax.jit(lambda x: made(x, call=np.uint64(number)))(x).block_until_ready()

    assert (call(int(found[1]), jnp.ones(3)) == 4).all()
    with pytest.raises(jax.errors.JaxRuntimeError, match="compiled for a communicator that is gone"):
        call(2**40, jnp.ones(3))
    with pytest.raises(jax.errors.JaxRuntimeError, match="has not compiled the program, or not for these shapes"):
        call(int(found[1]), jnp.ones(300))
    world.barrier()


def test_calls_of_other_processes(pool: Pool) -> None:
    pool.run(foreign)


STARVED = """
import jax, jax.numpy as jnp
import a2a, a2a.jax

def rank(comm):
    @jax.jit
    def slow(x):
        big = jnp.ones((400, 400)) * x[0]
        return a2a.jax.psum(x + (big @ big @ big).sum() * 0, comm)
    try:
        for _ in range(3):
            y = slow(jnp.ones(3))
        return f"{y[0]:g}"
    except (a2a.Error, jax.errors.JaxRuntimeError) as error:
        return str(error)

print(*a2a.spawn(rank, 4, threads=True), sep="\\n")
"""


@pytest.mark.parametrize("threads", [2, 4])
def test_xla_with_fewer_threads_than_ranks_raises(threads: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", STARVED],
        env=environment(NPROC=str(threads), JAX_PLATFORMS="cpu", A2A_TIMEOUT="50"),
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    told = done.stdout.splitlines()
    assert told == ["4"] * 4 if threads == 4 else done.stdout.count("set the variable NPROC") == 4, done.stdout


def in_threads(comm: a2a.Communicator) -> None:
    import jax
    from a2a.jax import psum

    call = jax.jit(lambda x: psum(psum(x, comm) + comm.rank, comm))
    assert (call(np.ones(3, np.float32)) == 5).all()


def test_ranks_that_are_threads() -> None:
    with Pool(2, threads=True) as threads:
        threads.run(in_threads)
