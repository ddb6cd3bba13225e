"""Calls with an argument whose Python code frees the memory of the tensors beside it, each in a process of its own.
Run as a program: prints the cases that a signal ended."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import a2a

ROWS = 1 << 20  # so large that freeing it unmaps it
Harm = Callable[[], None]


class Number:
    """Frees whatever the case gave it, by any question that makes a number, a list or a tensor of it."""

    def __init__(self, harm: Harm, value: Any = ROWS, inner: Any = None) -> None:
        self.harm, self.value, self.inner = harm, value, inner

    def __index__(self) -> int:
        self.harm()
        return int(self.value)

    def __float__(self) -> float:
        self.harm()
        return 10.0

    def __bool__(self) -> bool:
        self.harm()
        return False

    def __len__(self) -> int:
        self.harm()
        return 1

    def __iter__(self) -> Iterator[Any]:
        self.harm()
        return iter([self.value])

    def __eq__(self, other: object) -> bool:
        self.harm()
        return NotImplemented

    def __hash__(self) -> int:
        self.harm()
        return 0

    def __str__(self) -> str:
        self.harm()
        return "numpy"

    def __cuda_stream__(self) -> tuple[int, int]:
        self.harm()
        return 0, 1


class Counts:
    """Counts that are listed, not indexed."""

    def __init__(self, harm: Harm) -> None:
        self.harm = harm

    def __len__(self) -> int:
        self.harm()
        return 1

    def __iter__(self) -> Iterator[int]:
        self.harm()
        return iter([ROWS])


class Tensor:
    """A tensor, or counts, by DLPack."""

    def __init__(self, harm: Harm, inner: Any) -> None:
        self.harm, self.inner = harm, inner

    def __dlpack_device__(self) -> Any:
        self.harm()
        return self.inner.__dlpack_device__()

    def __dlpack__(self, **options: Any) -> Any:
        self.harm()
        return self.inner.__dlpack__(**options)


def numpy_pair() -> tuple[Any, Any, Harm]:
    send, recv = np.ones(ROWS), np.ones(ROWS)

    def harm() -> None:
        send.resize(0, refcheck=False)
        recv.resize(0, refcheck=False)

    return send, recv, harm


def torch_pair() -> tuple[Any, Any, Harm]:
    import torch

    send, recv = torch.ones(ROWS, dtype=torch.float64), torch.ones(ROWS, dtype=torch.float64)

    def harm() -> None:
        send.untyped_storage().resize_(0)
        recv.untyped_storage().resize_(0)

    return send, recv, harm


def torch_child_pair() -> tuple[Any, Any, Harm]:
    """Of a subclass that answers questions itself."""
    import torch

    class Child(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            with torch._C.DisableTorchFunctionSubclass():
                send.untyped_storage().resize_(0)
                recv.untyped_storage().resize_(0)
                return func(*args, **(kwargs or {}))

    send, recv, harm = torch_pair()
    return send.as_subclass(Child), recv.as_subclass(Child), harm


Case = Callable[[a2a.Communicator, Any, Any, Harm], object]


def other() -> Any:
    return np.zeros(ROWS)


ALL = {0: (slice(None),)}  # a sharding


def many(comm: a2a.Communicator) -> a2a.ReshardPlan:
    return comm.plan_reshard_all([((ROWS,), ALL, ALL, "float64")])


CASES: dict[str, Case] = {
    "alltoallv plain": lambda c, s, r, h: c.alltoallv(s, [ROWS], r, [ROWS]),
    "alltoallv entry of send_counts": lambda c, s, r, h: c.alltoallv(s, [Number(h)], r, [ROWS]),
    "alltoallv entry of recv_counts": lambda c, s, r, h: c.alltoallv(s, [ROWS], r, [Number(h)]),
    "alltoallv counts": lambda c, s, r, h: c.alltoallv(s, [ROWS], r, Counts(h)),  # type: ignore[arg-type]
    "alltoallv counts by DLPack": lambda c, s, r, h: c.alltoallv(s, [ROWS], r, Tensor(h, np.array([ROWS]))),
    "alltoallv send_displs": lambda c, s, r, h: c.alltoallv(s, [ROWS], r, [ROWS], [Number(h, 0)]),
    "alltoallv recv_displs": lambda c, s, r, h: c.alltoallv(s, [ROWS], r, [ROWS], None, [Number(h, 0)]),
    "alltoallv timeout": lambda c, s, r, h: c.alltoallv(s, [ROWS], r, [ROWS], timeout=Number(h)),  # type: ignore[arg-type]
    "alltoallv stream": lambda c, s, r, h: c.alltoallv(s, [ROWS], r, [ROWS], stream=Number(h)),
    "alltoallv async_op": lambda c, s, r, h: c.alltoallv(s, [ROWS], r, [ROWS], async_op=Number(h)),  # type: ignore[call-overload]
    "alltoallv recv": lambda c, s, r, h: c.alltoallv(s, [ROWS], Tensor(h, other()), [ROWS]),
    "alltoallv send": lambda c, s, r, h: c.alltoallv(Tensor(h, other()), [ROWS], r, [ROWS]),
    "alltoall plain": lambda c, s, r, h: c.alltoall(s, r),
    "alltoall recv": lambda c, s, r, h: c.alltoall(s, Tensor(h, other())),
    "alltoall send": lambda c, s, r, h: c.alltoall(Tensor(h, other()), r),
    "alltoall timeout": lambda c, s, r, h: c.alltoall(s, r, timeout=Number(h)),  # type: ignore[arg-type]
    "alltoall async": lambda c, s, r, h: c.alltoall(s, Tensor(h, other()), async_op=True).wait(),
    "list plain": lambda c, s, r, h: c.alltoall_list([s], [r]),
    "list recv": lambda c, s, r, h: c.alltoall_list([s], [Tensor(h, other())]),
    "list send": lambda c, s, r, h: c.alltoall_list([Tensor(h, other())], [r]),
    "list sends": lambda c, s, r, h: c.alltoall_list(Number(h, s), [r]),  # type: ignore[arg-type]
    "list timeout": lambda c, s, r, h: c.alltoall_list([s], [r], timeout=Number(h)),  # type: ignore[arg-type]
    "allgather plain": lambda c, s, r, h: c.allgather(s, r),
    "allgather recv": lambda c, s, r, h: c.allgather(s, Tensor(h, other())),
    "allgather stream": lambda c, s, r, h: c.allgather(s, r, stream=Number(h)),
    "scatter local": lambda c, s, r, h: c.global_scatter(s, [Number(h)], [ROWS]),
    "scatter global": lambda c, s, r, h: c.global_scatter(s, [ROWS], [Number(h)]),
    "scatter counts": lambda c, s, r, h: c.global_scatter(s, [ROWS], Counts(h), out=r),  # type: ignore[arg-type]
    "scatter into": lambda c, s, r, h: c.global_scatter(s, [ROWS], [Number(h)], out=r),
    "scatter out": lambda c, s, r, h: c.global_scatter(s, [ROWS], [ROWS], out=Tensor(h, other())),
    "gather": lambda c, s, r, h: c.global_gather(s, [Number(h)], [ROWS], out=r),
    "exchange": lambda c, s, r, h: c.exchange(s, [Number(h)]),
    "exchange counts": lambda c, s, r, h: c.exchange(s, Counts(h)),  # type: ignore[arg-type]
    "exchange timeout": lambda c, s, r, h: c.exchange(s, [ROWS], timeout=Number(h)),  # type: ignore[arg-type]
    "plan made": lambda c, s, r, h: c.plan_alltoallv(s, [Number(h)], r, [ROWS]).run(s, r),
    "plan timeout": lambda c, s, r, h: c.plan_alltoall(s, r).run(s, r, timeout=Number(h)),  # type: ignore[arg-type]
    "plan recv": lambda c, s, r, h: c.plan_alltoall(s, r).run(s, Tensor(h, other())),
    "plan start": lambda c, s, r, h: c.plan_alltoall(s, r).start(s, Tensor(h, other())).wait(),
    "plan scatter": lambda c, s, r, h: c.plan_global_scatter(s, [ROWS], [Number(h)]).run(s, r),
    "views like": lambda c, s, r, h: c.allgather_views(s, like=Number(h)),
    "views timeout": lambda c, s, r, h: c.allgather_views(s, timeout=Number(h)),  # type: ignore[arg-type]
    "reshard plain": lambda c, s, r, h: c.reshard(s, r, [ROWS], ALL, ALL),
    "reshard shape": lambda c, s, r, h: c.reshard(s, r, [Number(h)], ALL, ALL),  # type: ignore[list-item]
    "reshard box": lambda c, s, r, h: c.reshard(s, r, [ROWS], {0: (slice(0, Number(h)),)}, ALL),
    "reshard step": lambda c, s, r, h: c.reshard(s, r, [ROWS], {0: (slice(0, ROWS, Number(h)),)}, ALL),
    "reshard rank": lambda c, s, r, h: c.reshard(s, r, [ROWS], ALL, {Number(h, 0): (slice(None),)}),  # type: ignore[dict-item]
    "reshard recv": lambda c, s, r, h: c.reshard(s, Tensor(h, other()), [ROWS], ALL, ALL),
    "reshard send": lambda c, s, r, h: c.reshard(Tensor(h, other()), r, [ROWS], ALL, ALL),
    "reshard timeout": lambda c, s, r, h: c.reshard(s, r, [ROWS], ALL, ALL, timeout=Number(h)),  # type: ignore[call-overload]
    "reshard plan": lambda c, s, r, h: c.plan_reshard([ROWS], ALL, ALL, "float64").run(s, Tensor(h, other())),
    "reshard sends": lambda c, s, r, h: many(c).run(Number(h, s), [r]),  # type: ignore[arg-type]
    "reshard recvs": lambda c, s, r, h: many(c).run([s], [Tensor(h, other())]),
    "quantized": lambda c, s, r, h: a2a.block_quantized_all_reduce(c, s, block=Number(h)),  # type: ignore[arg-type]
}


def views_released(comm: a2a.Communicator, *_: Any) -> None:
    views = comm.allgather_views(comm.empty(ROWS))
    print(views[Number(views.release, 0)].sum())


def atb(comm: a2a.Communicator, send: Any, recv: Any, harm: Harm) -> None:
    from a2a.atb import AllToAllVOperation, AllToAllVParam

    tensors = [Tensor(harm, send.reshape(1, -1))]
    fields = {"rank": 0, "rankSize": 1, "sendCounts": [ROWS], "sdispls": [0], "recvCounts": [ROWS], "rdispls": [0]}
    AllToAllVOperation(AllToAllVParam(**fields, commDomain=f"hostile-{os.getpid()}")).forward(tensors)


def torch_calls(comm: a2a.Communicator, send: Any, recv: Any, harm: Harm) -> None:
    import a2a.torch

    a2a.torch.all_to_all_single(recv, send, [Number(harm)], [ROWS], group=comm)


def torch_list(comm: a2a.Communicator, send: Any, recv: Any, harm: Harm) -> None:
    import a2a.torch

    a2a.torch.all_to_all([recv], [send], group=comm)


CASES |= {"released": views_released, "atb": atb}
PAIRS = {"numpy": numpy_pair}
if importlib.util.find_spec("torch"):
    PAIRS |= {"torch": torch_pair, "a child of torch's": torch_child_pair}
    CASES |= {"a2a.torch": torch_calls, "a2a.torch list": torch_list}


def ended_by(case: Case, pair: Callable[[], tuple[Any, Any, Harm]]) -> int:
    """The signal that ended the call, or 0."""
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        try:
            send, recv, harm = pair()
            case(a2a.init(rank=0, size=1), send, recv, harm)
        except BaseException:
            pass
        finally:
            os._exit(0)
    return max(0, -os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


def main() -> None:
    if "torch" in PAIRS:
        import a2a.torch  # noqa: F401
        import torch  # noqa: F401 (once, not in each child)
    crashed = {}
    for name, case in CASES.items():
        for framework, pair in PAIRS.items():
            if name.startswith("a2a.torch") and framework == "numpy":
                continue
            if code := ended_by(case, pair):
                crashed[f"{name}, {framework}"] = signal.Signals(code).name
    print(json.dumps(crashed), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
