"""Tensors that a framework records: what the core writes counts as a change in place, so that a tensor saved for a
backward pass is found to be stale, and a gradient that would be lost is refused."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import a2a
from a2a import _core

pytestmark = pytest.mark.timeout(100)

ROWS = 4
Write = Callable[[a2a.Communicator, Any, Any], object]
WRITES: dict[str, Write] = {
    "alltoall": lambda c, s, r: c.alltoall(s, r),
    "alltoall async": lambda c, s, r: c.alltoall(s, r, async_op=True).wait(),
    "alltoallv": lambda c, s, r: c.alltoallv(s, [ROWS], r, [ROWS]),
    "alltoallv async": lambda c, s, r: c.alltoallv(s, [ROWS], r, [ROWS], async_op=True).wait(),
    "alltoall_list": lambda c, s, r: c.alltoall_list([s], [r]),
    "alltoall_list of a generator": lambda c, s, r: c.alltoall_list([s], (t for t in [r])),  # type: ignore[arg-type]
    "allgather": lambda c, s, r: c.allgather(s, r),
    "global_scatter": lambda c, s, r: c.global_scatter(s, [ROWS], [ROWS], out=r),
    "global_gather": lambda c, s, r: c.global_gather(s, [ROWS], [ROWS], out=r),
    "plan.run": lambda c, s, r: c.plan_alltoall(s, r).run(s, r),
    "plan.start": lambda c, s, r: c.plan_alltoallv(s, [ROWS], r, [ROWS]).start(s, r).wait(),
    "plan of a gather": lambda c, s, r: c.plan_allgather(s, r).run(s, r),
    "plan of a scatter": lambda c, s, r: c.plan_global_scatter(s, [ROWS], [ROWS]).run(s, r),
}
MAKES: dict[str, Callable[[a2a.Communicator, Any], object]] = {
    "exchange": lambda c, x: c.exchange(x, [ROWS]),
    "global_scatter": lambda c, x: c.global_scatter(x, [ROWS], [ROWS]),
    "global_gather": lambda c, x: c.global_gather(x, [ROWS], [ROWS]),
    "global_scatter async": lambda c, x: c.global_scatter(x, [ROWS], [ROWS], async_op=True).result,
}


@pytest.fixture
def comm() -> Iterator[a2a.Communicator]:
    with a2a.init(rank=0, size=1) as made:
        yield made


@pytest.mark.parametrize("name", WRITES)
def test_torch_finds_a_stale_tensor(name: str, comm: a2a.Communicator) -> None:
    torch = pytest.importorskip("torch")
    source = torch.full((ROWS,), 7.0)
    leaf = torch.ones(ROWS, requires_grad=True)
    out = leaf * 2
    squared = out * out
    with torch.no_grad():
        WRITES[name](comm, source, out)
    assert out.tolist() == [7] * ROWS and out._version == 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        squared.sum().backward()


@pytest.mark.parametrize("name", WRITES)
def test_paddle_finds_a_stale_tensor(name: str, comm: a2a.Communicator) -> None:
    paddle = pytest.importorskip("paddle")
    source = paddle.full([ROWS], 7.0)
    leaf = paddle.ones([ROWS])
    leaf.stop_gradient = False
    out = leaf * 2
    squared = out * out
    with paddle.no_grad():
        WRITES[name](comm, source, out)
    assert out.tolist() == [7] * ROWS and out.inplace_version == 1
    with pytest.raises(RuntimeError, match="inplace"):
        squared.sum().backward()


def recorded(framework: str) -> tuple[Any, Any, Any]:
    """A tensor that requires a gradient, another one, and what turns recording off."""
    module = pytest.importorskip(framework)
    tensor = module.ones([ROWS])
    if framework == "torch":
        tensor.requires_grad_()
    else:
        tensor.stop_gradient = False
    return tensor, module.full([ROWS], 7.0), module.no_grad


@pytest.mark.parametrize("framework", ["torch", "paddle"])
@pytest.mark.parametrize("name", WRITES)
def test_an_output_that_requires_a_gradient(name: str, framework: str, comm: a2a.Communicator) -> None:
    tensor, source, no_grad = recorded(framework)
    for refused in (tensor, tensor * 1):
        with pytest.raises(a2a.InvalidArgumentError, match=r"requires a gradient.*detach\(\).*a2a\." + framework):
            WRITES[name](comm, source, refused)
        assert refused.tolist() == [1] * ROWS
    WRITES[name](comm, source, tensor.detach())
    with no_grad():
        WRITES[name](comm, source, tensor)
    assert tensor.tolist() == [7] * ROWS


@pytest.mark.parametrize("framework", ["torch", "paddle"])
@pytest.mark.parametrize("name", MAKES)
def test_a_result_that_would_have_no_gradient(name: str, framework: str, comm: a2a.Communicator) -> None:
    tensor, _, no_grad = recorded(framework)
    with pytest.raises(a2a.InvalidArgumentError, match=r"requires a gradient.*would have none.*a2a\." + framework):
        MAKES[name](comm, tensor)
    MAKES[name](comm, tensor.detach())
    with no_grad():
        MAKES[name](comm, tensor)


@pytest.mark.parametrize("framework", ["torch", "paddle"])
def test_an_input_beside_an_output(framework: str, comm: a2a.Communicator) -> None:
    """As everywhere in torch.distributed, values may be sent without their gradient."""
    tensor, received, _ = recorded(framework)
    comm.alltoall(tensor, received)
    assert received.tolist() == [1] * ROWS


def test_peers_hear_of_the_refusal() -> None:
    torch = pytest.importorskip("torch")
    bootstraps, told = _core.thread_bootstraps(2), []

    def peer() -> None:
        with _core.connect(1, 2, bootstrap=bootstraps[1]) as other, pytest.raises(a2a.MismatchError) as caught:
            other.exchange(torch.ones(2), [1, 1])
        told.append(str(caught.value))

    thread = threading.Thread(target=peer)
    thread.start()
    with _core.connect(0, 2, bootstrap=bootstraps[0]) as comm, pytest.raises(a2a.InvalidArgumentError):
        comm.exchange(torch.ones(2, requires_grad=True), [1, 1])
    thread.join(20)
    assert "rank 0: send requires a gradient" in told[0]


def test_torch_tensors_of_all_kinds(comm: a2a.Communicator) -> None:
    torch = pytest.importorskip("torch")
    source = torch.full((ROWS,), 7.0)
    with torch.inference_mode():
        without_version = torch.zeros(ROWS)
    comm.alltoall(source, without_version)
    original = torch.zeros(ROWS)
    clone = torch._lazy_clone(original)
    comm.alltoall(source, clone)
    assert original.tolist() == [0] * ROWS and clone.tolist() == without_version.tolist() == [7] * ROWS

    class Child(torch.Tensor):  # type: ignore[misc, name-defined]
        @classmethod
        def __torch_function__(cls, *_: Any) -> Any:
            raise AssertionError("a question to the subclass")

    child = torch.zeros(ROWS).as_subclass(Child)
    comm.alltoall(source, child)
    with torch._C.DisableTorchFunctionSubclass():
        assert child._version == 1 and child.tolist() == [7] * ROWS


def test_a2a_torch_counts_a_write_once(comm: a2a.Communicator) -> None:
    torch = pytest.importorskip("torch")
    import a2a.torch as dist

    out = torch.zeros(ROWS)
    dist.all_to_all_single(out, torch.ones(ROWS), group=comm)
    dist.all_to_all([out], [torch.ones(ROWS)], group=comm)
    dist.all_gather([out], torch.ones(ROWS), group=comm)
    dist.all_gather_single(out, torch.ones(ROWS), group=comm)
    assert out._version == 4


def test_a2a_paddle_counts_a_write_once(comm: a2a.Communicator) -> None:
    paddle = pytest.importorskip("paddle")
    import a2a.paddle as dist

    out, ones = paddle.zeros([ROWS]), paddle.ones([ROWS])
    out.stop_gradient = False  # with inputs that have no gradient this is no obstacle
    dist.alltoall_single(out, ones, group=comm)
    dist.alltoall([out], [ones], group=comm)
    dist.all_gather([out], ones, group=comm)
    dist.stream.all_gather(out, ones, group=comm)
    assert out.inplace_version == 4 and out.is_leaf and not out.stop_gradient


def test_what_has_no_memory_of_its_own() -> None:
    torch = pytest.importorskip("torch")
    from torch._subclasses import FakeTensorMode
    from torch.masked import masked_tensor

    with FakeTensorMode():
        fake = torch.zeros(ROWS)
    mask = torch.tensor([True, False])
    for tensor in (fake, masked_tensor(torch.zeros(2), mask)):
        with pytest.raises(a2a.InvalidArgumentError, match="values in other tensors, or nowhere"):
            _core.describe_tensor(tensor)
    lazy = torch.zeros(ROWS, dtype=torch.complex64).conj()
    sparse = torch.zeros(ROWS).to_sparse()
    for tensor in (lazy, lazy.imag, sparse, torch.zeros(ROWS, device="meta")):
        with pytest.raises(a2a.InvalidArgumentError, match=r"lazily|no plain memory"):
            _core.describe_tensor(tensor)


def test_paddle_tensors_that_are_not_dense(comm: a2a.Communicator) -> None:
    """Paddle's own export reads them as if they were, and so memory that is none."""
    paddle = pytest.importorskip("paddle")
    sparse = paddle.sparse.sparse_coo_tensor([[0, 1], [1, 0]], [1.0, 2.0], [ROWS, 2])
    for send, recv in ((sparse, paddle.zeros([ROWS, 2])), (paddle.zeros([ROWS, 2]), sparse)):
        with pytest.raises(a2a.InvalidArgumentError, match=r"is not a dense tensor; pass .*to_dense"):
            comm.alltoall(send, recv)
