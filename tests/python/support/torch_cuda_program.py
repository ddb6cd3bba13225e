"""What a program does with CUDA tensors and a2a.torch, in ranks of `a2a run`, on the doubles of CUDA and NCCL."""

from __future__ import annotations

from typing import Any
from unittest import mock

import a2a.torch as dist
import cudart
import numpy as np
import pytest
import torch
from device_tensors import EXCHANGE_API
from device_tensors import Tensor as Described

import a2a


class Tensor(torch.Tensor):
    """One of Torch's tensors that says it lies on a GPU, and whose memory does."""

    __dlpack_c_exchange_api__ = EXCHANGE_API
    is_cuda = True  # type: ignore[assignment]
    array: cudart.Array
    describe: Any


def tensor(*values: int) -> Tensor:
    made: Tensor = torch.zeros(len(values), dtype=torch.uint8).as_subclass(Tensor)  # Torch looks at the shape alone
    made.array = cudart.Array(np.array(values, np.uint8), dist.get_rank())
    made.describe = Described(made.array, made.array.shape, (1, 8, 1)).describe
    return made


def exchange(group: Any) -> None:
    """Every call, on a2a's NCCL, which has none for a gather into several tensors."""
    rank = dist.get_rank(group)
    out = tensor(9, 9)
    dist.all_to_all_single(out, tensor(10 * rank, 10 * rank + 1), group=group)
    assert out.array.read().tolist() == [rank, 10 + rank]
    dist.all_gather_into_tensor(out, tensor(rank + 5), group=group)
    assert out.array.read().tolist() == [5, 6]
    outs = [tensor(9), tensor(9)]
    dist.all_to_all(outs, [tensor(20 + rank), tensor(30 + rank)], group=group)
    assert [int(one.array.read()[0]) for one in outs] == [20 + 10 * rank, 21 + 10 * rank]
    with pytest.raises(a2a.InvalidArgumentError, match="one part per rank, all of one size and packed"):
        dist.all_gather(outs, tensor(rank + 7), group=group)


def main() -> None:
    cudart.use(dist.get_rank())
    exchange(None)  # the ranks of the launcher
    comm = dist.new_group()
    exchange(comm)
    dist.destroy_process_group()
    dist.init_process_group("gloo")
    exchange(comm)
    for group in (None, torch.distributed.group.WORLD):  # now the same, and Torch's
        out, given = tensor(9, 9), tensor(1, 2)
        with mock.patch.object(torch.distributed, "all_to_all_single") as theirs:
            dist.all_to_all_single(out, given, group=group)
        assert theirs.call_args.args == (out, given, None, None, group, False)
    comm.close()
    print("done")


if __name__ == "__main__":
    main()
