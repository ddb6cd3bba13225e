"""What a rank on one of several hosts does with torch: ``python torch_host_ranks.py``."""

from __future__ import annotations

import os
import warnings

import a2a.torch as dist
import torch


def main() -> str:
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for group in (None, dist.new_group(range(size)), dist.new_group(range(size))):
            output = torch.empty(size)
            dist.all_to_all_single(output, torch.full((size,), float(rank)), group=group)
            assert output.tolist() == [*map(float, range(size))]
    dist.destroy_process_group()
    told = sum("live on several hosts" in str(one.message) for one in caught)
    return f"rank {rank} of {size} is fine, warned {told}\n"


if __name__ == "__main__":
    os.write(1, main().encode())
