"""Bad arguments to the differentiable calls: the error is a2a's and torch's, the peers learn of it, and the group goes
on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from rank_pool import Pool

import a2a

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.timeout(110)

COUNTS = [1, 1, 1, 1]


def calls(comm: a2a.Communicator) -> dict[str, tuple[Callable[[], Any], Callable[[], Any], type[BaseException], str]]:
    """Name -> (the call of rank 0, that of the others, the class torch raises there, what the message says)."""
    import a2a.torch.nn.functional as f

    x, out = torch.ones(4, 3), torch.empty(4, 3)

    def scatter() -> Any:
        return f.global_scatter(x, COUNTS, COUNTS, comm)

    def single() -> Any:
        return f.all_to_all_single(out, x, group=comm)

    def single_of(*arguments: Any) -> Callable[[], Any]:
        return lambda: f.all_to_all_single(*arguments, group=comm)

    return {
        "no counts": (lambda: f.global_scatter(x, None, COUNTS, comm), scatter, TypeError, "local_count is NoneType"),
        "text": (lambda: f.global_scatter(x, "ab", COUNTS, comm), scatter, TypeError, "local_count is str"),
        "floats": (lambda: f.global_scatter(x, [1.5, 1, 1, 1], COUNTS, comm), scatter, TypeError, "local_count[0]"),
        "surplus": (lambda: f.global_scatter(torch.ones(6, 3), COUNTS, COUNTS, comm), scatter, RuntimeError, "6 rows"),
        "gather surplus": (
            lambda: f.global_gather(torch.ones(6, 3), COUNTS, COUNTS, comm),
            lambda: f.global_gather(x, COUNTS, COUNTS, comm),
            RuntimeError,
            "global_count [1, 1, 1, 1] sums to 4",
        ),
        "no tensor": (single_of(None, x), single, TypeError, "output is NoneType, not torch.Tensor"),
        "dtype": (single_of(out.int(), x), single, ValueError, "input is torch.float32, but output is torch.int32"),
        "float splits": (single_of(out, x, [2.0, 2.0]), single, TypeError, "output_split_sizes[0] is 2.0"),
        "meta": (single_of(out, x.to("meta")), single, RuntimeError, "input is a meta tensor"),
        "sparse": (single_of(out, x.to_sparse()), single, RuntimeError, "input is a sparse_coo tensor"),
        "leaf": (single_of(out.clone().requires_grad_(), x), single, RuntimeError, "leaf that requires a gradient"),
        "one element for all": (
            single_of(torch.empty(1).expand(4, 3), x),
            single,
            ValueError,
            "output of shape (4, 3) has elements that share",
        ),
        "inference": (
            single_of(torch.inference_mode()(torch.empty)(4, 3), x),
            single,
            RuntimeError,
            "inference_mode()",
        ),
        "list": (
            lambda: f.all_to_all([out, out.int()], [x, x], comm),
            lambda: f.all_to_all([torch.empty(4, 3), torch.empty(4, 3)], [x, x], comm),
            ValueError,
            "output_tensor_list[1] is torch.int32",
        ),
        "gather dtype": (
            lambda: f.all_gather_into_tensor(torch.empty(8, 3, dtype=torch.int32), x, comm),
            lambda: f.all_gather_into_tensor(torch.empty(8, 3), x, comm),
            ValueError,
            "output_tensor is torch.int32",
        ),
    }


def refused(world: a2a.Communicator) -> list[str]:
    comm = world.group([0, 1])
    if comm is None:
        return []
    problems = []
    for name, (bad, good, kind, words) in calls(comm).items():
        try:
            (bad if comm.rank == 0 else good)()
        except a2a.InvalidArgumentError as error:
            if comm.rank != 0 or not isinstance(error, kind) or words not in str(error):
                problems.append(f"{name}: {error!r}")
        except a2a.MismatchError as error:
            if comm.rank == 0 or words not in str(error):
                problems.append(f"{name}: {error!r}")
        else:
            problems.append(f"{name}: rank {comm.rank} raised nothing")
    comm.barrier()
    return problems


def test_refused(ranks: Pool) -> None:
    assert not any(ranks.run(refused))
