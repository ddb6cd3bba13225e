"""A whole training step on backend "a2a" against Gloo: a small transformer, under DDP and under FSDP2.

``python benchmarks/ddp_step.py [--ranks 2 4] [--rounds 9] [--json FILE]``

Ranks are processes of this host. Both backends live in the same ranks and train models of their own from the same
weights; they take turns in every round, in a random order, and so does the same model without a group, on the rank's
own part of the batch. A step is forward, backward and the optimizer; its time is the slowest rank's median over a
round's steps. Whatever a step takes longer than alone is its communication. At the end all weights are compared: those
of the two backends, and of DDP those of all ranks.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import a2a

WIDTH, HEADS, LAYERS, VOCABULARY, TOKENS, BATCH = 256, 4, 4, 1024, 32, 8
STEPS = 4  # of a round
KINDS = ("ddp", "fsdp2")


def make_model(seed: int = 0) -> Any:
    import torch
    from torch import nn

    torch.manual_seed(seed)
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 2 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
    blocks = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
    return nn.Sequential(nn.Embedding(VOCABULARY, WIDTH), blocks, nn.Linear(WIDTH, VOCABULARY))


def join_world(comm: a2a.Communicator) -> dict[str, Any]:
    """The group of each backend."""
    import a2a.torch  # noqa: F401
    import torch.distributed as dist

    if comm.rank == 0:
        store = dist.TCPStore("127.0.0.1", 0, comm.size, is_master=True, wait_for_workers=False)
        comm.allgather_bytes(str(store.port).encode())
    else:
        port = int(comm.allgather_bytes(b"")[0])
        store = dist.TCPStore("127.0.0.1", port, comm.size, is_master=False, wait_for_workers=False)
    dist.init_process_group("gloo", store=store, rank=comm.rank, world_size=comm.size, timeout=timedelta(seconds=120))
    return {name: dist.new_group(list(range(comm.size)), backend=name) for name in ("a2a", "gloo")}


def shared(model: Any, kind: str, group: Any) -> Any:
    if kind == "ddp":
        from torch.nn.parallel import DistributedDataParallel

        return DistributedDataParallel(model, process_group=group)
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard

    mesh = DeviceMesh.from_group(group, "cpu")
    for block in model[1].layers:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def stepper(model: Any, rank: int) -> Callable[[], None]:
    import torch

    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(rank)

    def step() -> None:
        tokens = torch.randint(VOCABULARY, (BATCH, TOKENS + 1), generator=generator)
        loss = torch.nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def weights(model: Any) -> Any:
    import torch

    whole = [w.full_tensor() if hasattr(w, "full_tensor") else w for w in model.parameters()]
    return torch.cat([w.detach().flatten() for w in whole])


def one_round(comm: a2a.Communicator, step: Callable[[], None]) -> float:
    times = []
    for _ in range(STEPS):
        comm.barrier()
        started = time.perf_counter()
        step()
        times.append(time.perf_counter() - started)
    return statistics.median(times) * 1e3


def measure(comm: a2a.Communicator, rounds: int) -> dict[str, dict[str, list[float]]]:
    """Milliseconds of a step in every round, by kind and contender: the slowest rank's."""
    import numpy as np
    import torch

    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module")  # nobody writes into what it returns
    groups = join_world(comm)
    order, figures = random.Random(1), {}
    for kind in KINDS:
        models = {name: shared(make_model(), kind, group) for name, group in groups.items()}
        steps = {name: stepper(model, comm.rank) for name, model in models.items()}
        steps["alone"] = stepper(make_model(), comm.rank)
        times: dict[str, list[float]] = {name: [] for name in steps}
        for turn in range(rounds + 1):
            for name in order.sample(list(steps), len(steps)):
                everyone = np.empty(comm.size)
                comm.allgather(np.array([one_round(comm, steps[name])]), everyone)
                if turn > 0:  # the first one warms up
                    times[name].append(float(everyone.max()))
        ours, theirs = weights(models["a2a"]), weights(models["gloo"])
        torch.testing.assert_close(ours, theirs)
        of_all = torch.empty(comm.size * ours.numel())
        comm.allgather(ours, of_all)
        if not all(torch.equal(part, ours) for part in of_all.chunk(comm.size)):
            raise AssertionError(f"{kind}: the ranks' weights differ")
        figures[kind] = times
    return figures


def table(ranks: int, figures: dict[str, dict[str, list[float]]]) -> list[str]:
    lines = []
    for kind, times in figures.items():
        medians = {name: statistics.median(of) for name, of in times.items()}
        ratios = [theirs / ours for theirs, ours in zip(times["gloo"], times["a2a"], strict=True)]
        shares = {name: max(0.0, 1 - medians["alone"] / medians[name]) for name in ("a2a", "gloo")}
        lines.append(
            f"{kind:>6} {ranks:>5} {medians['alone']:>10.1f}"
            + "".join(f" {medians[name]:>10.1f} {shares[name]:>8.0%}" for name in ("a2a", "gloo"))
            + f"   {statistics.median(ratios):.2f} [{min(ratios):.2f}, {max(ratios):.2f}]"
        )
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    columns = "".join(f" {name + ', ms':>10} {'waiting':>8}" for name in ("a2a", "gloo"))
    print(f"{'':>6} {'ranks':>5} {'alone, ms':>10}{columns}   gloo / a2a")
    results = {}
    for ranks in options.ranks:
        results[ranks] = a2a.spawn(measure, ranks, options.rounds, timeout=900)[0]
        print(*table(ranks, results[ranks]), sep="\n", flush=True)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
