"""The table of collectives. generate.py makes the methods of Communicator, their plan_* forms and their stubs of it.

An entry has the signature and the docstring of a method, without ``async_op``, ``stream`` and ``timeout``, which all
methods have. The arguments of ``collective`` are the columns of the table. A method parses its arguments, calls
``prepare_<name>``, and starts the operation; the plan_* form keeps what is prepared instead. An argument ``op`` is how
the ranks' elements are folded. An argument ``root`` is the rank that ``root_has`` is about, or whose ``tensor`` all
others receive into theirs. Otherwise ``recv`` is written."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from _core import _T, Counts, ReduceOp, Tensor

_F = TypeVar("_F", bound=Callable[..., object])

def collective(
    *,
    op: str = "",
    root_has: str = "",
    in_place: bool = False,
    rows: bool = False,
    by: str = "",
    plan: str = "",
) -> Callable[[_F], _F]:
    """All ranks take part.

    Args:
        op: the operation in records and errors, where it is not the name of the method.
        root_has: the tensor that only the root has; it is None on the others.
        in_place: whether the result is written into ``send`` where ``recv`` is None.
        rows: whether all tensors of a plan have rows of the same size.
        by: the hand-written methods ``<by>`` and ``plan_<by>`` that do it, for a call of another form. Lists of tensors
            have no plan, and the plan has no argument ``out``.
        plan: the docstring of the plan_* form, where it does not follow from the rest.
    """

def message(*, by: str) -> Callable[[_F], _F]:
    """Two ranks take part: a method, made by the hand-written ``<by>``, without a plan."""

@collective(
    rows=True,
    plan="""A reusable plan. The tensors give dtype, row size and bounds, with axes their shapes; they are not kept.
    Every rank makes its plans in the same order; nothing is sent. A call that raises takes its number, too.""",
)
def alltoallv(
    send: Tensor,
    send_counts: Counts,
    recv: Tensor,
    recv_counts: Counts,
    send_displs: Counts | None = None,
    recv_displs: Counts | None = None,
    *,
    split_axis: int = 0,
    concat_axis: int = 0,
) -> None:
    """Send ``send_counts[p]`` rows from row ``send_displs[p]`` of ``send`` to each rank p, and receive
    ``recv_counts[p]`` rows into row ``recv_displs[p]`` of ``recv``. Displacements default to packed in rank order.
    Rows outside the receive ranges are not written. Both tensors have the same dtype and row size in bytes. Returns
    a Work with ``async_op=True``.

    With axes, counts and displacements are in entries of ``split_axis`` of ``send`` and of ``concat_axis`` of
    ``recv``: block p, a slice of ``send``, arrives as a slice of ``recv``. Both slices have the same shape.

    On the host tensors may have any strides; memory between the elements is not touched. Elements of an output must
    not share memory."""

@collective(rows=True)
def alltoall(send: Tensor, recv: Tensor, split_axis: int = 0, concat_axis: int = 0) -> None:
    """Equal parts: ``split_axis`` of ``send`` and ``concat_axis`` of ``recv`` are divided into ``size`` pieces, as
    by jax.lax.all_to_all with ``tiled=True``. On the host ``recv`` may be ``send``, which is copied first. See
    alltoallv."""

@collective(by="exchange_lists")
def alltoall_list(sends: Sequence[Tensor], recvs: Sequence[Tensor]) -> None:
    """``sends[p]`` goes to rank p, ``recvs[p]`` comes from rank p. Shapes may differ from entry to entry."""

@collective()
def allgather(send: Tensor, recv: Tensor) -> None:
    """Gather every rank's ``send`` in rank order. ``recv`` has ``size`` times the elements, concatenated or
    stacked; ``send`` may be this rank's part of it."""

@collective(by="global_exchange")
def global_scatter(x: _T, local_count: Counts, global_count: Counts, out: Tensor | None = None) -> _T:
    """Mixture-of-experts dispatch (paddle.distributed.utils.global_scatter). ``x`` is [rows, ...] packed by (rank,
    expert): ``local_count[r * E + e]`` rows go to expert e of rank r; ``global_count[r * E + e]`` rows come from
    rank r for this rank's expert e. The result is packed by (expert, source rank), in ``out`` or allocated in the
    framework of ``x`` and on its device, where for JAX the call waits until all data has arrived. With
    ``async_op=True`` the Work's ``result`` is the output."""

@collective(by="global_exchange")
def global_gather(x: _T, local_count: Counts, global_count: Counts, out: Tensor | None = None) -> _T:
    """The inverse of global_scatter with the same counts: from (expert, source rank) order to (rank, expert)."""

@collective(in_place=True)
def allreduce(send: Tensor, recv: Tensor | None = None, op: ReduceOp = "sum") -> None:
    """Every rank gets x0 op x1 op x2 ..., element by element in rank order, and so the same bits. Without ``recv``
    the result is written into ``send``.

    ``op`` is "sum", "prod", "min", "max", "avg" (the sum divided by the size; floating and complex), "band", "bor",
    "bxor" (integers and bool) or "premul_sum". float16, bfloat16 and float8 are folded in float32 and rounded once;
    integers wrap; of bool, sum and max mean "or", prod and min "and"; min and max give NaN where a rank has one,
    and are not defined for complex numbers. "premul_sum" is "sum" of what each rank has multiplied by a factor of
    its own before the call (floating and complex); where another rank passes "sum", both raise MismatchError. Both
    tensors have the same dtype and as many elements.

    Between several hosts, the ranks of each host are folded first, and rounded, then the hosts in the order of
    their lowest ranks: docs/guide/reductions.md.

    On devices NCCL or HCCL folds, in an order of its own. Raises UnsupportedError for a dtype or an ``op`` that it
    does not have (docs/guide/reductions.md)."""

@collective(in_place=True)
def scan(send: Tensor, recv: Tensor | None = None, op: ReduceOp = "sum") -> None:
    """Rank p gets x0 op x1 op ... op xp, element by element in rank order: the inclusive prefix. Without ``recv``
    the result is written into ``send``. ``op`` and the order between hosts are those of allreduce; "avg" divides by
    p + 1. For host memory."""

@collective(in_place=True)
def exscan(send: Tensor, recv: Tensor | None = None, op: ReduceOp = "sum") -> None:
    """As scan, but without the rank's own elements: rank p gets x0 op ... op x(p-1), the exclusive prefix; "avg"
    divides by p. At rank 0, which has none before it, the output stays as it is."""

@collective()
def reduce_scatter(send: Tensor, recv: Tensor, op: ReduceOp = "sum") -> None:
    """``send`` is divided into ``size`` equal parts; part p of all ranks, folded as by allreduce, becomes ``recv``
    of rank p. ``recv`` may be this rank's part of ``send``."""

@collective(op="reduce_scatter")
def reduce_scatterv(send: Tensor, counts: Counts, recv: Tensor, op: ReduceOp = "sum") -> None:
    """reduce_scatter with ``counts[p]`` rows for rank p, the same list on all ranks. If ``send`` has one dimension,
    ``recv`` may have any shape of ``counts[rank]`` elements."""

@collective(in_place=True, root_has="recv")
def reduce(send: Tensor, recv: Tensor | None = None, root: int = 0, op: ReduceOp = "sum") -> None:
    """As allreduce, but only rank ``root`` gets the result: in ``recv``, which is None on the others, or in
    ``send`` where it is None there, too."""

@collective()
def broadcast(tensor: Tensor, root: int = 0) -> None:
    """``tensor`` of rank ``root``, into ``tensor`` of all others, which has the same dtype and as many elements."""

@collective(root_has="recv")
def gather(send: Tensor, recv: Tensor | None = None, root: int = 0) -> None:
    """Every rank's ``send`` in rank order, in ``recv`` of rank ``root``; None on the others. ``send`` may be the
    root's part of ``recv``."""

@collective(root_has="send")
def scatter(send: Tensor | None, recv: Tensor, root: int = 0) -> None:
    """``send`` of rank ``root``, None on the others, is divided into ``size`` equal parts; part p becomes ``recv``
    of rank p. ``recv`` may be the root's part of ``send``."""

@collective()
def allgatherv(send: Tensor, recv: Tensor, recv_counts: Counts, recv_displs: Counts | None = None) -> None:
    """Every rank's ``send``, of ``recv_counts[p]`` rows, from row ``recv_displs[p]`` of ``recv`` on; packed in rank
    order by default. ``send`` may be this rank's part of ``recv``."""

@message(by="message")
def send(tensor: Tensor, peer: int, tag: int = 0) -> None:
    """Send ``tensor`` to rank ``peer``, whose recv() has the same tag, dtype and number of elements. Only these two
    ranks take part. Messages of one tag arrive in the order in which they were sent; a receive of another tag may
    overtake them. A small tensor is copied, so that the call need not wait for the receiver. There is room for 256
    tensors of up to 576 bytes that no receive has taken, and for 16 of up to 64 KiB; between hosts for 256 of up to
    16 KiB. A send beyond them waits for its receive. If the two ranks disagree, the receiver raises MismatchError,
    and so does the sender, or its next message with that rank, which is then not started. For device memory both
    raise an error, this rank UnsupportedError. Returns a Work with ``async_op=True``."""

@message(by="message")
def recv(tensor: Tensor, peer: int | None = None, tag: int = 0) -> int:
    """Receive into ``tensor`` the message of rank ``peer`` with that tag; None: the first one of any rank. Returns
    the rank that has sent it, or with ``async_op=True`` a Work, whose ``source`` is that rank once it is done. See
    send()."""
