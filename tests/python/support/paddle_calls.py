"""Call by call: what Paddle on Gloo does on the CPU, and what a2a.paddle does. Prints the table of
docs/frameworks/paddle.md:

    python tests/python/support/paddle_calls.py

Every call is made by two ranks, with the functions of one package or the other, and its result compared. A call that
ends the process or does not come back costs the ranks their lives; new ones go on after it.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import paddle
import paddle.distributed

# Longest time of one launch, and of all calls that are left, before a call counts as hanging.
SECONDS = 60

Call = Callable[[Any, int], Any]


def alltoall_single(dist: Any, rank: int, **options: Any) -> None:
    out = paddle.empty([2], "int64")
    task = dist.stream.alltoall_single(out, paddle.arange(2) + 2 * rank, **options)
    task.wait()
    same(out, [rank, rank + 2])


def uneven(dist: Any, rank: int, form: str = "stream", dtype: str = "float32") -> None:
    given = paddle.full([3, 2], rank).astype(dtype)
    out = paddle.empty([2 * (rank + 1), 2], dtype)
    sizes = {"out_split_sizes": [rank + 1] * 2, "in_split_sizes": [1, 2]}
    (dist.stream if form == "stream" else dist).alltoall_single(out, given, **sizes)
    same(out.astype("int64"), [[0, 0]] * (rank + 1) + [[1, 1]] * (rank + 1))


def lists(dist: Any, rank: int, empty: bool = True, even: bool = True) -> None:
    shapes = [[2], [2]] if even else [[1], [2, 3]]
    given = [paddle.full(shape, 10 * rank + peer) for peer, shape in enumerate(shapes)]
    out = [] if empty else [paddle.empty(shapes[rank]) for _ in range(2)]
    dist.alltoall(out, given)
    for peer, tensor in enumerate(out):
        assert tensor.shape == shapes[rank], f"shape {tensor.shape} instead of {shapes[rank]}"
        assert bool((tensor == 10 * peer + rank).all())


def alltoall_tensor(dist: Any, rank: int) -> None:
    out = paddle.empty([2, 1])
    dist.stream.alltoall(out, paddle.to_tensor([[0.0], [1.0]]) + 10 * rank)
    same(out, [[rank], [10 + rank]])


def gradient(dist: Any, rank: int) -> None:
    given = paddle.full([2], rank + 1.0)
    given.stop_gradient = False
    out = paddle.empty([2])
    dist.alltoall_single(out, given)
    (out * out).sum().backward()
    same(given.grad, [2.0 * (rank + 1)] * 2)


def experts(dist: Any, rank: int, name: str = "global_scatter", dtype: str = "float32", back: bool = False) -> None:
    call = getattr(dist.utils, name, None) or getattr(dist.utils.moe_utils, name)
    x = paddle.to_tensor([[1, 2], [3, 4], [5, 6], [7, 8], [9, 10]]).astype(dtype)
    x.stop_gradient = not back
    counts = paddle.to_tensor([[2, 1, 1, 1], [1, 1, 2, 1]][rank])
    out = call(x, counts, counts)
    rows = {"global_scatter": [[0, 1, 0, 2, 1], [3, 2, 3, 4, 4]], "global_gather": [[0, 1, 3, 0, 3], [2, 4, 1, 2, 4]]}
    same(out.astype("int64"), [[2 * row + 1, 2 * row + 2] for row in rows[name][rank]])
    if back:
        (out * out).backward()
        same(x.grad, (2 * x.detach()).tolist())


def all_gather(dist: Any, rank: int, dtype: str = "float32", into: bool = False) -> None:
    given = paddle.full([2], rank).astype(dtype)
    out = paddle.empty([4], dtype) if into else []
    dist.stream.all_gather(out, given)
    same((out if into else paddle.concat(out)).astype("int64"), [0, 0, 1, 1])


def one_rank_group(dist: Any, rank: int) -> None:
    group = dist.new_group([0])
    out = paddle.zeros([2])
    dist.alltoall_single(out, paddle.ones([2]), group=group)
    same(out, [1.0, 1.0] if rank == 0 else [0.0, 0.0])


def all_reduce(dist: Any, rank: int, dtype: str = "float32", op: str = "SUM", result: int = 4) -> None:
    tensor = paddle.full([2], 2 * rank + 1).astype(dtype)
    dist.all_reduce(tensor, getattr(dist.ReduceOp, op))
    same(tensor.astype("int64"), [result, result])


def reduce(dist: Any, rank: int) -> None:
    tensor = paddle.full([2], rank + 1.0)
    dist.reduce(tensor, 1)
    same(tensor, [3.0, 3.0] if rank == 1 else [1.0, 1.0])


def reduce_scatter(dist: Any, rank: int) -> None:
    tensor = paddle.zeros([1])
    dist.reduce_scatter(tensor, [paddle.full([1], 10.0 * peer + rank) for peer in range(2)])
    same(tensor, [20.0 * rank + 1])


def broadcast(dist: Any, rank: int) -> None:
    tensor = paddle.full([2], rank + 1.0)
    dist.broadcast(tensor, 1)
    same(tensor, [2.0, 2.0])


def scatter(dist: Any, rank: int) -> None:
    tensor = paddle.zeros([2])
    dist.scatter(tensor, [paddle.full([2], peer + 5.0) for peer in range(2)] if rank == 1 else None, 1)
    same(tensor, [rank + 5.0] * 2)


def gather(dist: Any, rank: int) -> None:
    gathered: list[Any] = []
    dist.gather(paddle.full([2], rank + 1.0), gathered if rank == 0 else None, 0)
    assert [tensor.tolist() for tensor in gathered] == ([[1.0, 1.0], [2.0, 2.0]] if rank == 0 else [])


def message(dist: Any, rank: int, dtype: str = "float32") -> None:
    tensor = paddle.full([2], rank).astype(dtype)
    dist.send(tensor, 1) if rank == 0 else dist.recv(tensor, 0)
    same(tensor.astype("int64"), [0, 0])


def messages(dist: Any, rank: int, batch: bool = False) -> None:
    tensor, out = paddle.full([2], float(rank)), paddle.zeros([2])
    if batch:
        tasks = dist.batch_isend_irecv(
            [dist.P2POp(dist.isend, tensor, 1 - rank), dist.P2POp(dist.irecv, out, 1 - rank)]
        )
    else:
        tasks = [dist.isend(tensor, 1 - rank), dist.irecv(out, 1 - rank)]
    for task in tasks:
        task.wait()
    same(out, [1.0 - rank] * 2)


def objects(dist: Any, rank: int) -> None:
    gathered: list[Any] = []
    dist.all_gather_object(gathered, {"rank": rank})
    assert gathered == [{"rank": 0}, {"rank": 1}]
    dist.broadcast_object_list(gathered, 1)
    out: list[Any] = []
    dist.scatter_object_list(out, ["for 0", "for 1"] if rank == 0 else None, 0)
    assert out == [f"for {rank}"]


def with_(call: Callable[..., None], **options: Any) -> Call:
    return lambda dist, rank: call(dist, rank, **options)


CALLS: dict[str, Call] = {
    "`stream.alltoall_single`": alltoall_single,
    "`stream.alltoall_single(sync_op=False)`": with_(alltoall_single, sync_op=False),
    "`stream.alltoall_single(use_calc_stream=True)`": with_(alltoall_single, use_calc_stream=True),
    "`stream.alltoall_single`, uneven": uneven,
    "`alltoall_single`, uneven": with_(uneven, form="plain"),
    "`alltoall_single`, bfloat16": with_(uneven, dtype="bfloat16"),
    "`alltoall_single`, int16": with_(uneven, dtype="int16"),
    "`alltoall_single`, gradient": gradient,
    "`alltoall` of tensors": alltoall_tensor,
    "`alltoall` of lists": with_(lists, empty=False),
    "`alltoall` of lists, uneven": with_(lists, empty=False, even=False),
    "`alltoall` into `[]`": lists,
    "`alltoall` into `[]`, uneven": with_(lists, even=False),
    "`global_scatter`": experts,
    "`global_scatter`, bfloat16": with_(experts, dtype="bfloat16"),
    "`global_scatter`, gradient": with_(experts, back=True),
    "`global_gather`": with_(experts, name="global_gather"),
    "`global_gather`, gradient": with_(experts, name="global_gather", back=True),
    "`all_gather` into `[]`": all_gather,
    "`all_gather` into `[]`, bfloat16": with_(all_gather, dtype="bfloat16"),
    "`all_gather` into `[]`, int16": with_(all_gather, dtype="int16"),
    "`stream.all_gather` into a tensor": with_(all_gather, into=True),
    "`barrier`": lambda dist, rank: dist.barrier(),
    "`alltoall_single` in a group of one rank": one_rank_group,
    "`all_reduce`": all_reduce,
    "`all_reduce`, `ReduceOp.AVG`": with_(all_reduce, op="AVG", result=2),
    "`all_reduce`, bfloat16": with_(all_reduce, dtype="bfloat16"),
    "`all_reduce`, int16": with_(all_reduce, dtype="int16"),
    "`all_reduce`, complex64": with_(all_reduce, dtype="complex64"),
    "`reduce`": reduce,
    "`reduce_scatter`": reduce_scatter,
    "`broadcast`": broadcast,
    "`scatter`": scatter,
    "`gather`": gather,
    "`send`, `recv`": message,
    "`send`, `recv`, bool": with_(message, dtype="bool"),
    "`all_gather_object`, `broadcast_object_list`, `scatter_object_list`": objects,
    "`batch_isend_irecv`": with_(messages, batch=True),
    "`isend`, then `irecv`, on both ranks": messages,
}


def same(tensor: Any, wanted: Any) -> None:
    assert tensor.tolist() == wanted, f"{tensor.tolist()} instead of {wanted}"


def verdict(call: Call, dist: Any, rank: int) -> str:
    """What one rank sees of one call."""
    try:
        call(dist, rank)
    except AssertionError:
        return "wrong"
    except Exception as error:
        return f"raises {type(error).__name__}"
    return "works"


def run_rank(package: str, first: int) -> None:
    """In each of the ranks: the calls from number ``first`` on, each announced before it is made."""
    import a2a.paddle

    a2a.paddle.init_parallel_env()
    comm = a2a.paddle.get_communicator()
    dist = a2a.paddle if package == "a2a" else paddle.distributed
    for number, call in list(enumerate(CALLS.values()))[first:]:
        if comm.rank == 0:
            print(f"call {number}", flush=True)
        seen = [text.decode() for text in comm.allgather_bytes(verdict(call, dist, comm.rank).encode())]
        if comm.rank == 0:
            print(f"seen {number} {' / '.join(dict.fromkeys(seen))}", flush=True)


def column(package: str) -> list[str]:
    """What all ranks see of every call with one package's functions."""
    seen: list[str] = []
    while len(seen) < len(CALLS):
        command = [sys.executable, "-m", "a2a.cli", "run", "-n", "2", __file__, "--package", package]
        try:
            done = subprocess.run(
                [*command, "--first", str(len(seen))], capture_output=True, text=True, timeout=SECONDS, check=False
            )
            output, ended = done.stdout, f"ends the process (exit {done.returncode})"
        except subprocess.TimeoutExpired as late:
            output, ended = (late.stdout or b"").decode(), "hangs"
        lines = [line.partition("] ")[2].split(" ", 2) for line in output.splitlines()]
        seen += [words[2] for words in lines if words[0] == "seen"]
        if len(seen) < len(CALLS):
            seen.append(ended)
    return seen


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--package", choices=("paddle", "a2a"))
    parser.add_argument("--first", type=int, default=0)
    options = parser.parse_args()
    if options.package:
        run_rank(options.package, options.first)
        return
    print("| call | Paddle on Gloo | a2a.paddle |\n|---|---|---|")
    for row in zip(CALLS, column("paddle"), column("a2a"), strict=True):
        print(f"| {' | '.join(row)} |")


if __name__ == "__main__":
    main()
