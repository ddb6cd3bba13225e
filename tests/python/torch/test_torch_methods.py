"""The methods of a process group in every form that torch's own have, their timeouts, and those that other backends
have from C++."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from rank_pool import Pool
from torch_worlds import group, start, true_backends

import a2a

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.timeout(110)

SIZE = 3
WAIT = timedelta(seconds=20)


def of(rank: int, elems: int = 2) -> Any:
    return torch.arange(float(elems)) + 10 * (rank + 1)


def room(elems: int = 2) -> Any:
    return torch.zeros(elems)


def given(name: str, rank: int) -> tuple[list[Any], int]:
    """The tensors of a call, and how many of them are outputs."""
    rooms, parts = [room() for _ in range(SIZE)], [of(rank) + 100 * peer for peer in range(SIZE)]
    root = rank == 1
    return {
        "allreduce": ([of(rank)], 1),
        "reduce": ([of(rank)], 1 if root else 0),  # Gloo leaves others what it has folded
        "broadcast": ([of(rank)], 1),
        "allgather": ([rooms, of(rank)], 1),
        "allgather_coalesced": ([[[room(), room(1)] for _ in range(SIZE)], [of(rank), of(rank, 1)]], 1),
        "all_gather_single": ([room(2 * SIZE), of(rank)], 1),
        "all_gather_single_coalesced": ([[room(2 * SIZE)], [of(rank)]], 1),
        "gather": ([rooms if root else [], of(rank)], 1),
        "scatter": ([room(), parts if root else []], 1),
        "reduce_scatter": ([room(), parts], 1),
        "reduce_scatter_single": ([room(), of(rank, 2 * SIZE)], 1),
        "reduce_scatter_single_coalesced": ([[room()], [of(rank, 2 * SIZE)]], 1),
        "alltoall": ([rooms, parts], 1),
        "all_to_all_single": ([room(2 * SIZE), of(rank, 2 * SIZE)], 1),
        "allreduce_coalesced": ([[of(rank), of(rank, 1)]], 1),
        "barrier": ([], 0),
    }[_ALIASES.get(name, name)]


_ALIASES = {
    "_allgather_base": "all_gather_single",
    "_reduce_scatter_base": "reduce_scatter_single",
    "alltoall_base": "all_to_all_single",
    "allgather_into_tensor_coalesced": "all_gather_single_coalesced",
    "reduce_scatter_tensor_coalesced": "reduce_scatter_single_coalesced",
}
NAMES = [
    "allreduce", "reduce", "broadcast", "allgather", "allgather_coalesced", "all_gather_single",
    "all_gather_single_coalesced", "gather", "scatter", "reduce_scatter", "reduce_scatter_single",
    "reduce_scatter_single_coalesced", "alltoall", "all_to_all_single", "allreduce_coalesced", "barrier",
    "_allgather_base", "_reduce_scatter_base", "alltoall_base", "allgather_into_tensor_coalesced",
    "reduce_scatter_tensor_coalesced",
]  # fmt: skip


def forms_of(name: str) -> list[list[tuple[str, str]]]:
    """The parameters of each form of torch's own method, with their types, from its docstring."""
    import torch.distributed as dist

    lines = re.findall(
        rf"^(?:\d+\. )?{name}\(self: [^,)]*(.*)\) -> .*$", getattr(dist.ProcessGroup, name).__doc__, re.M
    )
    parameters = [re.findall(r", (\w+): ((?:\[.*?\]+|[^,\[])*)", line) for line in lines]
    return [[(word, kind.partition(" = ")[0]) for word, kind in form] for form in parameters]


def arguments_of(name: str, form: list[tuple[str, str]], rank: int) -> tuple[dict[str, Any], list[Any]]:
    """Arguments for each parameter that has no default or an interesting value, and the outputs."""
    import torch.distributed as dist

    tensors, outputs = given(name, rank)
    left, found = list(tensors), dict[str, Any]()
    for parameter, kind in form:
        if parameter == "op":
            found[parameter] = dist.ReduceOp.MAX
        elif parameter == "root":
            found[parameter] = 1
        elif parameter == "timeout":
            found[parameter] = WAIT
        elif parameter == "opts":
            options = getattr(torch._C._distributed_c10d, kind.strip().rpartition(".")[2])()
            if hasattr(options, "rootRank"):
                options.rootRank = 1
            found[parameter] = options
        elif "split_sizes" in parameter:
            found[parameter] = [2] * SIZE
        else:
            found[parameter] = nested(left.pop(0), kind)
    return found, tensors[:outputs]


def nested(one: Any, kind: str) -> Any:
    """In as many lists as the type of a parameter has."""
    depth, inner = 0, one
    while isinstance(inner, list):
        depth, inner = depth + 1, inner[0] if inner else None
    for _ in range(kind.count("Sequence[") - depth if one != [] else 0):
        one = [one]
    return one


def flat(one: Any) -> Iterator[Any]:
    if isinstance(one, list):
        for each in one:
            yield from flat(each)
    else:
        yield one.tolist()


def call_forms(comm: a2a.Communicator, backend: str, names: list[str]) -> list[Any]:
    at, results = group(comm, backend, SIZE, "forms"), []
    if comm.rank >= SIZE:
        return []
    warnings.simplefilter("ignore")
    for name in names:
        for form in forms_of(name):
            for by_name in (False, True):
                arguments, outputs = arguments_of(name, form, comm.rank)
                method = getattr(at, name)
                work = method(**arguments) if by_name else method(*arguments.values())
                assert work.wait()
                results.append((name, [one for one, _ in form], by_name, list(flat(outputs))))
    return results


def test_forms(ranks: Pool) -> None:
    ours, gloo = (ranks.run(call_forms, backend, NAMES) for backend in ("backend", "functions"))
    for mine, theirs in zip(ours, gloo, strict=True):
        assert len(mine) == len(theirs)
        for one, other in zip(mine, theirs, strict=True):
            assert one == other
    assert sum(len(forms_of(name)) for name in NAMES) >= 32


def gather_into_one(comm: a2a.Communicator) -> None:
    """A method of torch 2.14, which Gloo does not have."""
    from torch.distributed import distributed_c10d as c10d

    at, opts = group(comm, "backend", SIZE), c10d.GatherOptions()
    opts.rootRank = 1
    if comm.rank >= SIZE:
        return
    for shape in ((2 * SIZE,), (SIZE, 2)):
        output = torch.zeros(shape if comm.rank == 1 else 0)
        at.gather_single(output, of(comm.rank), opts).wait()
        assert comm.rank != 1 or torch.equal(output.view(SIZE, 2), torch.stack([of(rank) for rank in range(SIZE)]))
    with pytest.raises(RuntimeError if comm.rank == 1 else a2a.MismatchError, match="no contiguous tensor of 3 times"):
        at.gather_into_tensor(torch.zeros(5), of(comm.rank), opts).wait()


def test_gather_into_one_tensor(ranks: Pool) -> None:
    ranks.run(gather_into_one)


def misuse(comm: a2a.Communicator) -> None:
    at, x = group(comm, "backend", SIZE), torch.ones(2)
    if comm.rank >= SIZE:
        return
    for wrong in (
        lambda: at.allreduce(x, 3),
        lambda: at.allreduce(x, root=1),
        lambda: at.allreduce([x], op=None, opts=None, timeout=None),
        lambda: at.broadcast(x),
        lambda: at.broadcast(x, 0, root=0),
        lambda: at.broadcast(x, x),
        lambda: at.reduce(x, 0, timeout=3),
        lambda: at.allgather([x], [x, x]),
        lambda: at.send(x, 1, 0),
        lambda: at.barrier(3),
    ):
        with pytest.raises(TypeError, match="incompatible function arguments"):
            wrong()
    at.allreduce(x).wait()  # the group is as before
    assert x.tolist() == [SIZE] * 2


def test_what_is_no_form(ranks: Pool) -> None:
    ranks.run(misuse)


# ---- timeouts --------------------------------------------------------------------------------------------------------

_SHORT = timedelta(milliseconds=150)


def timed(call: Callable[[], Any]) -> None:
    began = time.monotonic()
    with pytest.raises(a2a.TimeoutError, match="timeout"):
        call()
    assert 0.1 < time.monotonic() - began < 8


def time_out(comm: a2a.Communicator, name: str) -> None:
    """Rank 0 calls an operation with a timeout of its own, and rank 1 never comes."""
    import torch.distributed as dist

    start(comm)
    at = dist.new_group([0, 1], backend="a2a", timeout=WAIT)
    if comm.rank == 0:
        tensors, _ = given(name, 1)
        tensors = [one[:2] if isinstance(one, list) else one for one in tensors]
        if name in ("all_gather_single", "all_to_all_single"):
            tensors[0] = room(tensors[1].numel() * 2 if name == "all_gather_single" else 2 * SIZE)
        if name == "reduce_scatter_single":
            tensors[1] = of(0, 4)
        form = next(form for form in forms_of(name) if form[-1][0] == "opts")
        options = getattr(torch._C._distributed_c10d, form[-1][1].strip().rpartition(".")[2])()
        options.timeout = _SHORT
        if hasattr(options, "rootRank"):
            options.rootRank = 0 if name in ("gather", "reduce") else 1
        if name in ("scatter",):
            tensors[1] = []
        tensors = [nested(one, kind) for one, (_, kind) in zip(tensors, form, strict=False)]
        splits = [[], []] if name == "all_to_all_single" else []
        timed(lambda: getattr(at, name)(*tensors, *splits, options).wait())
    comm.barrier()
    dist.destroy_process_group(at) if comm.rank < 2 else None


@pytest.mark.parametrize("name", [name for name in NAMES if "coalesced" not in name and name not in _ALIASES])
def test_timeout_of_one_operation(ranks: Pool, name: str) -> None:
    ranks.run(time_out, name)


def time_out_later(comm: a2a.Communicator, way: str) -> None:
    """The timeout of a group is changed after it was made."""
    import a2a.torch
    import torch.distributed as dist
    from torch.distributed import distributed_c10d as c10d

    start(comm)
    at = dist.new_group([0, 1], backend="a2a", timeout=WAIT)
    if comm.rank < 2:
        backend = at._get_backend(torch.device("cpu"))
        assert backend.options._timeout == WAIT and backend.options.backend == "a2a"
        change = {
            "_set_pg_timeout": lambda: c10d._set_pg_timeout(_SHORT, at),
            "set_timeout": lambda: at.set_timeout(_SHORT),
            "_set_default_timeout": lambda: at._get_backend(torch.device("cpu"))._set_default_timeout(_SHORT),
        }[way]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.simplefilter("ignore", FutureWarning)  # Torch 2.14 has another name
            change()
        assert backend.options._timeout == _SHORT
    if comm.rank == 0:
        call = a2a.torch.all_reduce if way == "set_timeout" else dist.all_reduce
        timed(lambda: call(torch.ones(2), group=at))
    comm.barrier()
    dist.destroy_process_group(at) if comm.rank < 2 else None
    c10d._set_pg_timeout(timedelta(seconds=30))  # torch's own for other backends


@pytest.mark.parametrize("way", ["_set_pg_timeout", "set_timeout", "_set_default_timeout"])
def test_timeout_of_the_group(ranks: Pool, way: str) -> None:
    ranks.run(time_out_later, way)


# ---- groups made of groups -------------------------------------------------------------------------------------------


def split_and_merge(comm: a2a.Communicator) -> None:
    import torch.distributed as dist

    at = group(comm, "backend", 4, "split")
    if comm.rank >= 4:
        return
    x = torch.full((2,), comm.rank + 1.0)
    ranks = [3, 1] if true_backends() else [1, 3]  # from Torch 2.14 on they keep their order
    for again in range(2):  # the same ranks, once more
        part = at.split_group([3, 1])
        assert (part is None) == (comm.rank in (0, 2))
        if part is not None:
            assert (part.rank(), part.size()) == (ranks.index(comm.rank), 2)
            assert part.group_desc == f"{at.group_desc}:split:{again}"
            assert part.group_name == f"{at.group_name}:split:{ranks}"
            y = x.clone()
            part.allreduce([y]).wait()
            assert y.tolist() == [6, 6]
            part.shutdown()
    named = at.split_group([0, 1, 2, 3], timeout=_SHORT, group_name=f"named {at.group_name}", group_desc="mine")
    assert named._get_backend(torch.device("cpu")).options._timeout == _SHORT and (named.group_desc, named.rank()) == (
        "mine",
        comm.rank,
    )
    named.shutdown()
    for wrong in ([], [0, 0], [4], [-1], [0, 1, 2, 3, 4]):
        with pytest.raises(RuntimeError, match=r"different ranks|cannot be empty|duplicates|no larger"):
            at.split_group(wrong)
    # Two groups of two become one of four.
    half = at.split_group([0, 1] if comm.rank < 2 else [2, 3])
    for again in range(2):
        key = f"merge {again}" if true_backends() else "merge"  # torch's own wants another store each time
        whole = half.merge_remote_group(dist.PrefixStore(key, at.get_group_store()), 4, WAIT, "whole")
        assert whole.size() == 4
        y, places = x.clone(), [torch.zeros(1) for _ in range(4)]
        whole.allreduce(y).wait()
        whole.allgather(places, torch.tensor([float(whole.rank())])).wait()
        assert y.tolist() == [10, 10] and [one.item() for one in places] == [0, 1, 2, 3]
        whole.shutdown()
    half.shutdown()


def test_split_and_merge(ranks: Pool) -> None:
    ranks.run(split_and_merge)


# ---- what comes from torch's class -----------------------------------------------------------------------------------

_PROGRAM = """
import sys, torch, torch.distributed as dist, a2a.torch
dist.init_process_group("a2a", rank=0, world_size=1, store=dist.HashStore())
pg, cpu = dist.group.WORLD, torch.device("cpu")
arguments = {
    "_backend_id": [dist.ProcessGroup.BackendType.GLOO], "_get_backend": [cpu], "_register_backend":
    [cpu, dist.ProcessGroup.BackendType.CUSTOM, None], "_register_on_completion_hook": [id],
    "_set_default_backend": [dist.ProcessGroup.BackendType.CUSTOM], "_set_group_desc": ["words"],
    "_set_group_name": [pg.group_name], "_start_coalescing": [cpu], "_end_coalescing": [cpu],
    "merge_remote_group": [dist.HashStore(), 1], "split_group": [[0]], "unbox": [],
    "set_timeout": [__import__("datetime").timedelta(seconds=9)],
    "_set_default_timeout": [__import__("datetime").timedelta(seconds=9)],
}
last = ["abort", "shutdown", "_register_backend", "_set_default_backend"]
order = lambda name: (last.index(name) + 1 if name in last else 0, name != "_start_coalescing", name)
for name in sorted(dir(dist.ProcessGroup), key=order):
    if name.startswith("__") or isinstance(getattr(dist.ProcessGroup, name), (type, dist.ProcessGroup.BackendType)):
        continue
    if name == "_register_backend" and type(pg) is dist.ProcessGroup:
        continue  # it ends the process for None
    print(name, end=" ", flush=True)
    try:
        member = getattr(pg, name)
        found = member(*arguments.get(name, [])) if callable(member) else member
        print("->", found, flush=True)
    except Exception as error:
        print("raises", type(error).__name__, str(error).splitlines()[0], flush=True)
print("end")
"""


def test_members_of_torchs_class() -> None:
    """None ends the process, and those that need a backend of C++ say so."""
    ran = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, timeout=90, env=os.environ)
    assert ran.returncode == 0 and ran.stdout.endswith("end\n"), ran.stdout + ran.stderr
    said = dict(line.split(" ", 1) for line in ran.stdout.splitlines()[:-1])
    group_of, name_of = ("-> <torch", "-> custom") if true_backends() else ("-> <a2a.torch", "-> a2a")
    for name, word in {
        "split_group": group_of,
        "merge_remote_group": group_of,
        "get_group_store": "-> <torch",
        "_get_backend": "-> <a2a.torch",
        "boxed": "-> ScriptObject",
        "name": name_of,
        "_get_backend_name": name_of,
        "group_desc": "-> words",
        "set_timeout": "-> None",
        "_has_hooks": "-> False",
        "abort": "-> None",
        "shutdown": "-> None",
        "allreduce": "raises TypeError",
    }.items():
        assert said[name].startswith(word), (name, said[name])
    assert all(text.startswith(("->", "raises")) for text in said.values())


def all_methods() -> list[str]:
    """The methods of torch's class by which tensors are exchanged."""
    import torch.distributed as dist

    taken = (
        name for name in dir(dist.ProcessGroup) if "c10d::Work" in (getattr(dist.ProcessGroup, name).__doc__ or "")
    )
    return [name for name in taken if name != "reconfigure"]


def test_every_operation_is_known() -> None:
    """A new one of torch's would look for a backend in C++."""
    from a2a.torch import ProcessGroupA2A

    assert {*NAMES, "send", "recv", "recv_anysource"} <= set(all_methods())
    ours = {name for one in ProcessGroupA2A.__mro__ if one.__module__.startswith("a2a.") for name in vars(one)}
    missing = [name for name in all_methods() if name not in ours]
    assert not missing
