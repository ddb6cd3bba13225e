"""The compiled core: errors, communicators, plans and work on any DLPack tensor."""

import builtins
import sys
from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any, ClassVar, Literal, NoReturn, Protocol, SupportsIndex, TypeAlias, TypeVar, final, overload

import numpy as np
import numpy.typing as npt
from typing_extensions import Buffer, CapsuleType, Self

class SupportsDLPack(Protocol):
    """Anything with ``__dlpack__`` and ``__dlpack_device__``: NumPy, Torch, Paddle, JAX, CuPy, ... arrays."""

    # Alone, because JAX's stubs leave the other one out.
    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any: ...

Tensor: TypeAlias = SupportsDLPack | Buffer | CapsuleType
"""A tensor: DLPack C exchange API, NumPy array, ``__dlpack__``, a DLPack capsule, or a buffer; tried in this order."""

Counts: TypeAlias = Sequence[SupportsIndex] | Tensor
"""One integer per rank (or per rank and expert), on the host: a sequence, a NumPy array or any integer tensor."""

ReduceOp: TypeAlias = Literal["sum", "prod", "min", "max", "avg", "band", "bor", "bxor", "premul_sum"]
"""How a reduction folds the ranks' elements; see Communicator.allreduce."""

StreamLike: TypeAlias = int | Any | None
"""A raw stream handle, an object with ``__cuda_stream__``, or None for the tensor's current stream."""

_T = TypeVar("_T", bound=Tensor)

class Error(Exception):
    """Base class of all errors of this package. ``args[0]`` is the message."""

class InvalidArgumentError(Error, ValueError):
    """This rank's own arguments are wrong. Nothing was sent; peers get MismatchError. The communicator stays usable."""

class MismatchError(Error, ValueError):
    """Ranks disagree about the call. Nothing of the pair was written. The communicator stays usable."""

class PeerLostError(Error, ConnectionError):
    """A rank died or left. The communicator is broken: shrink() or close() it."""

class TimeoutError(Error, builtins.TimeoutError):
    """A deadline passed. After an operation's own deadline the communicator is broken; after wait(timeout=) it is
    not."""

class AbortedError(Error, RuntimeError):
    """A rank called abort(), or the communicator is already broken, closed, or inherited by fork()."""

class UnsupportedError(Error, NotImplementedError):
    """This build or this machine cannot do it, or nothing can."""

class BackendError(Error, RuntimeError):
    """The operating system or a vendor library failed."""

@final
class Work(Awaitable[None]):
    """One operation in flight. It keeps both tensors alive until done. It may be dropped; the communicator then keeps
    them."""

    def __init__(self, *args: Any, **kwargs: Any) -> NoReturn: ...
    def wait(self, timeout: float | None = None) -> None:
        """Block until done. Raises the operation's error, or TimeoutError after ``timeout`` seconds (the operation then
        goes on and may be waited for again). Ctrl-C interrupts the wait, not the operation."""
    def done(self) -> bool:
        """Whether the operation is finished, with or without an error. Never blocks."""
    def arrived(self, rank: int) -> bool:
        """Whether everything from ``rank`` has arrived and may be read."""
    def order_before(self, stream: StreamLike) -> None:
        """Make work enqueued on ``stream`` later see the result, without blocking this thread. ``stream`` is a handle
        or an object as in the calls. For host tensors, or None, the same as wait()."""
    @property
    def result(self) -> Any:
        """The received tensor of an operation that allocates its output, otherwise the ``recv`` argument. Its contents
        are valid once done. A JAX array cannot be filled in later, so for JAX this waits."""
    @property
    def source(self) -> int | None:
        """For a finished recv(): the rank that sent the tensor. Otherwise None."""
    def __await__(self) -> Generator[Any]:
        """asyncio goes on meanwhile; it polls."""

@final
class Plan:
    """A checked exchange that can run many times, made by ``Communicator.plan_*``. Counts, dtype and row size are
    fixed; tensors may change from run to run if they are at least as large. ``recv`` is None where the planned call
    takes none, and so is ``send``."""

    def __init__(self, *args: Any, **kwargs: Any) -> NoReturn: ...
    def run(
        self,
        send: Tensor | None,
        recv: Tensor | None = None,
        *,
        stream: StreamLike = None,
        timeout: float | None = None,
    ) -> None:
        """Exchange and wait. Otherwise as ``start``."""
    def start(
        self,
        send: Tensor | None,
        recv: Tensor | None = None,
        *,
        stream: StreamLike = None,
        timeout: float | None = None,
    ) -> Work:
        """Exchange without waiting. Raises InvalidArgumentError when a tensor is smaller than the plan needs or differs
        from it in dtype or row size; peers then get MismatchError."""
    def transpose(self) -> Plan:
        """Sends and receives swapped: the backward pass. Collective in the sense that every rank calls it in the same
        order as other ``plan_*`` calls; no communication. Raises InvalidArgumentError when send segments overlap."""
    @property
    def number(self) -> int:
        """1 for the communicator's first plan; ranks compare it at every run."""

class Shard:
    """A placement: the ranks along an axis of a mesh divide dimension ``dim`` of the tensor; a negative one counts from
    the last. Parts are those of torch.chunk: of n entries among m ranks ceil(n / m) each, the last ones fewer or
    none."""

    dim: int
    def __init__(self, dim: int) -> None: ...
    def __eq__(self, other: object) -> bool: ...
    def __hash__(self) -> int: ...

class Replicate:
    """A placement: all ranks along an axis of a mesh have the same part."""

    def __eq__(self, other: object) -> bool: ...
    def __hash__(self) -> int: ...

class Partial:
    """A placement, of a source: each rank along an axis of a mesh has a term of the elements. ``op`` folds them, as in
    ``allreduce``, in the order of the ranks."""

    op: str
    def __init__(self, op: str = "sum") -> None: ...
    def __eq__(self, other: object) -> bool: ...
    def __hash__(self) -> int: ...

Placement: TypeAlias = Shard | Replicate | Partial
"""What an axis of a mesh does to a tensor."""

class Sharding:
    """Which part of a tensor each rank of a mesh has. ``mesh`` is an array of ranks of any number of dimensions, or
    nested lists; ``placements`` has a Shard, Replicate or Partial for each of its axes. Several axes may divide one
    dimension, in their order. A mesh that names a rank twice, and placements that do not fit it, are refused where the
    sharding is used, so that the peers are told."""

    def __init__(self, mesh: npt.ArrayLike, placements: Sequence[Placement] | Placement) -> None: ...
    @property
    def mesh(self) -> npt.NDArray[np.int64]:
        """The ranks, read-only."""
    @property
    def placements(self) -> tuple[Placement, ...]:
        """One for each axis of the mesh."""
    def box(self, rank: int, shape: Sequence[int]) -> tuple[slice, ...] | None:
        """Return the part of a tensor of this shape that ``rank`` has: a tuple of slices, one for each dimension; None
        where the rank is not in the mesh. Raises InvalidArgumentError where a placement divides a dimension that the
        tensor does not have."""
    def __eq__(self, other: object) -> bool: ...
    def __hash__(self) -> int: ...

ShardBox: TypeAlias = tuple[slice, ...] | slice | None
"""What a rank has of a tensor: a slice for each dimension. None: nothing."""

ShardingLike: TypeAlias = Sharding | dict[int, ShardBox] | Sequence[ShardBox]
"""A sharding, or boxes by rank."""

@final
class ReshardPlan:
    """A resharding that can run many times, made by ``Communicator.plan_reshard`` or ``plan_reshard_all``."""

    def __init__(self, *args: Any, **kwargs: Any) -> NoReturn: ...
    def run(
        self,
        send: Tensor | Sequence[Tensor | None] | None,
        recv: Tensor | Sequence[Tensor | None] | None,
        *,
        stream: StreamLike = None,
        timeout: float | None = None,
    ) -> None:
        """Reshard and wait. Otherwise as ``start``."""
    def start(
        self,
        send: Tensor | Sequence[Tensor | None] | None,
        recv: Tensor | Sequence[Tensor | None] | None,
        *,
        stream: StreamLike = None,
        timeout: float | None = None,
    ) -> Work:
        """Reshard without waiting: returns a Work. ``send`` and ``recv`` are this rank's parts, before and after, None
        where it has none; lists of them for a plan of several tensors. They may have any strides, and no output shares
        memory with another tensor. Raises InvalidArgumentError for tensors that do not fit; peers then get
        MismatchError, as they do where ranks have different shapes, shardings or dtypes."""
    @property
    def comm(self) -> Communicator:
        """The communicator that made it."""
    @property
    def number(self) -> int:
        """As ``Plan.number``."""
    @property
    def bytes_to(self) -> list[int]:
        """The bytes that this rank sends to each rank, by rank; those to itself are copied."""
    @property
    def operations(self) -> int:
        """How many operations of the communicator a run has: one, and one more for each dtype and op of partial sums
        beside others."""

@final
class Views:
    """One read-only tensor for each rank, in rank order; ``Communicator.allgather_views`` makes it. A sequence, and a
    context manager that releases at its end.

    The memory of every rank's tensor is kept until every rank has called release() or has dropped this object and all
    tensors made from it, or has died. Closing or breaking the communicator, or the end of an owner's process, does not
    change that."""

    def __init__(self, *args: Any, **kwargs: Any) -> NoReturn: ...
    def __len__(self) -> int: ...
    def __getitem__(self, rank: int) -> Any: ...
    def __iter__(self) -> Iterator[Any]: ...
    @property
    def released(self) -> bool:
        """Whether release() was called on this rank."""
    def release(self) -> None:
        """End this rank's views. Does not wait; a second call does nothing. Tensors made from the views must not be
        used afterwards: that never crashes, but their contents are arbitrary."""
    def wait_released(self, timeout: float | None = None) -> None:
        """Release, then block until every other rank has released too, so that this rank may write into its own tensor
        again. Raises TimeoutError after ``timeout`` seconds, by default those of the communicator; that does not break
        the communicator, and it may be called again."""
    def __enter__(self) -> Views: ...
    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

@final
class Communicator:
    """A rank's membership in a group of ranks. Every member makes the same sequence of calls. Use as a context manager
    or call close(). Counts and displacements are in dim-0 rows of the tensor (elements for 1-D tensors).

    Ctrl-C interrupts every call within 100 ms. An interrupted operation goes on: the communicator keeps its tensors,
    which must not be touched before a later barrier(), and stays usable."""

    def __init__(self, *args: Any, **kwargs: Any) -> NoReturn: ...
    @property
    def rank(self) -> int:
        """This rank's number in the group."""
    @property
    def size(self) -> int:
        """The number of ranks in the group."""
    @property
    def endpoint(self) -> CoreEndpoint | None:
        """The Endpoint that made this communicator by connect(); None for others."""
    @property
    def generation(self) -> int | None:
        """The generation of the group of a communicator of Endpoint.connect(); None for others."""
    @property
    def handles(self) -> list[str] | None:
        """The handles of all ranks of a communicator of Endpoint.connect(), by rank; None for others."""
    @property
    def joined(self) -> list[int]:
        """The ranks that are new: those whose former group is not that of the lowest rank that had one. The same list
        on all ranks; empty in the first generation."""
    @property
    def timeout(self) -> float:
        """Default deadline of every operation in seconds. A new value is for the operations that this rank starts from
        then on, and for the communicators that it derives."""
    @timeout.setter
    def timeout(self, seconds: float) -> None: ...
    @property
    def closed(self) -> bool:
        """Whether close() was called, or a ``with`` block was left by an exception."""
    @property
    def broken(self) -> bool:
        """Whether a rank was lost, a deadline passed or abort() was called, here or at a peer; see shrink(). Once the
        stream of a device operation without a Work is synchronised: whether something ended the operation."""
    # Here the methods of collectives.pyi.
    def allgather_views(
        self,
        tensor: Tensor,
        like: Literal["numpy", "torch", "paddle", "jax", "a2a"] | Any = "numpy",
        *,
        timeout: float | None = None,
    ) -> Views:
        """Collective. Give every rank read-only views of every rank's ``tensor``: no byte is copied, so it takes the
        same time for any size. Returns Views, whose entry p is rank p's tensor in the framework that ``like`` names
        (see a2a.frameworks, or "a2a" for a SharedArray).

        ``tensor`` has to be in shared memory of this process: one from ``empty``, or a contiguous part of one, of any
        framework and any age. All ranks have the same dtype; shapes may differ, and each view has its owner's.

        A rank must not write into its tensor before all others have released their views, for which ``wait_released``
        waits; it may drop it at any time. Torch, Paddle and JAX have no read-only tensors: a write into one of theirs
        is a write into read-only memory, which ends the process.

        Raises InvalidArgumentError for a tensor in other memory, UnsupportedError for one on a device and for ranks on
        several hosts."""
    def exchange(
        self, send: _T, send_counts: Counts, *, stream: StreamLike = None, timeout: float | None = None
    ) -> tuple[_T, npt.NDArray[np.int64]]:
        """alltoallv that negotiates the receive counts and allocates the output in the framework of ``send`` and on its
        device. Returns (recv, recv_counts). For JAX arrays on a device it waits until all data has arrived."""
    @overload
    def reshard(
        self,
        send: Tensor | None,
        recv: Tensor | None,
        shape: Sequence[int],
        src: ShardingLike,
        dst: ShardingLike,
        *,
        async_op: Literal[False] = False,
        stream: StreamLike = None,
        timeout: float | None = None,
    ) -> None: ...
    @overload
    def reshard(
        self,
        send: Tensor | None,
        recv: Tensor | None,
        shape: Sequence[int],
        src: ShardingLike,
        dst: ShardingLike,
        *,
        async_op: Literal[True],
        stream: StreamLike = None,
        timeout: float | None = None,
    ) -> Work: ...
    @overload
    def reshard(
        self,
        send: Tensor | None,
        recv: Tensor | None,
        shape: Sequence[int],
        src: ShardingLike,
        dst: ShardingLike,
        *,
        async_op: bool = False,
        stream: StreamLike = None,
        timeout: float | None = None,
    ) -> Work | None:
        """Bring a tensor of shape ``shape`` from the sharding ``src`` to ``dst``. ``send`` is this rank's part in
        ``src``, ``recv`` the one in ``dst``; None where it has none. A sharding is an a2a.sharding.Sharding, or boxes
        by rank: a dict, or a list with an entry for each rank, of tuples of slices; None where a rank has no part.

        A rank copies what it has, and receives each other byte once, from one rank that has it: of its host if there
        is one. Ranks that have the same part share the sending evenly. A part that several ranks of a host want comes
        to that host once. Partial sums are folded in rank order. Both tensors have the same dtype, and may have any
        strides. For host memory. Returns a Work with ``async_op=True``.

        Raises InvalidArgumentError for shardings that do not fit the shape or the group, a source that lacks elements,
        a partial destination, and tensors that are not this rank's parts. Ranks that differ in shape, shardings or
        dtype raise MismatchError, and so do the peers of a rank whose arguments are refused."""
    def plan_reshard(
        self, shape: Sequence[int], src: ShardingLike, dst: ShardingLike, dtype: Any = "float32"
    ) -> ReshardPlan:
        """A reusable reshard(); see plan_alltoallv. Its runs get this rank's parts: ``plan.run(send, recv)``."""
    def plan_reshard_all(self, tensors: Sequence[tuple[Sequence[int], ShardingLike, ShardingLike, Any]]) -> ReshardPlan:
        """A reusable reshard() of many tensors at once: a list of (shape, src, dst, dtype), the same on all ranks. All
        of them are one operation, with one comparison of the ranks' arguments. Its runs get lists of this rank's parts,
        with None where it has none: ``plan.run(sends, recvs)``."""
    def barrier(self, *, timeout: float | None = None) -> None:
        """Block until every rank has called it."""
    def split(self, color: int, key: int = 0, *, timeout: float | None = None) -> Communicator | None:
        """Collective. Ranks of one color form a group ordered by (key, rank); a negative color gives None."""
    def group(self, ranks: Sequence[int], *, timeout: float | None = None) -> Communicator | None:
        """Collective, with the same list on all ranks; rank i of the result is ``ranks[i]``. None for ranks not in the
        list."""
    def shrink(self, timeout: float | None = None) -> Communicator:
        """Return a working communicator of the ranks that are alive. Collective among them; works on a broken
        communicator too."""
    def recover(self, timeout: float | None = None) -> Communicator:
        """Return the communicator of the next generation of an elastic job (``a2a.init(elastic=True)``): of all ranks,
        those that were started again included. Collective among them: the survivors call recover(), a rank that was
        started again calls init(). ``joined`` of the result lists the ranks that are new. This communicator is aborted.
        Raises PeerLostError when a rank has ended and will not be started again, TimeoutError naming the ranks that do
        not come, UnsupportedError for a communicator that is not of an elastic job."""
    def allgather_bytes(self, mine: bytes, *, timeout: float | None = None) -> list[bytes]:
        """Return every rank's byte string in rank order. For small control traffic."""
    def empty(
        self,
        shape: int | Sequence[int],
        dtype: Any = "float32",
        like: Literal["numpy", "torch", "paddle", "jax"] | Any = "numpy",
    ) -> Any:
        """Allocate an uninitialised tensor in shared memory. From such an input to any output bytes go with one copy.
        ``dtype`` is a name ("bfloat16", "float8_e4m3fn", ...) or a dtype of a framework; ``like`` is a framework's name
        or a tensor of it. The memory lives until the tensor is gone, also after close(). Raises AbortedError on a
        closed communicator."""
    def connect(self, device: str, *, timeout: float | None = None) -> None:
        """Collective. Connect to the peers for operations on tensors of ``device``, such as "cuda:0"; without it the
        first such operation does. Ranks may have different devices, but each has one for all its operations. Raises
        UnsupportedError when a vendor library is missing."""
    def adopt(self, communicator: int, memory: Literal["cuda", "npu"] = "cuda") -> None:
        """Run operations on "cuda" or "npu" memory over ``communicator``, the address of an ncclComm_t or HcclComm of
        the same ranks. The caller keeps its ownership, and it must outlive this one. Every rank calls this, before the
        first such operation."""
    def abort(self, reason: object = "abort() was called") -> None:
        """Break the communicator everywhere: operations in flight and later ones raise AbortedError, with a reason that
        may be a text or any other object, such as an exception."""
    def close(self, *, timeout: float | None = None) -> None:
        """Collective: wait for every rank, then release all resources. A broken communicator does not wait for ranks,
        but for a call that another thread is in, which fails at once. Raises AbortedError, or
        PeerLostError, on a rank whose ``send`` no rank has received; the communicator is closed all the same."""
    def __enter__(self) -> Communicator: ...
    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close. After an exception leave without waiting, so that peers raise PeerLostError naming this rank."""

_F = TypeVar("_F", bound=Callable[..., Any])

def collective(function: _F) -> _F:
    """A function or method whose calls the ranks match, one of its arguments being the communicator. If a call raises
    on one rank before it has started all of its operations, whatever the reason, such as arguments that do not fit the
    signature or a signal handler that raises, the peers are told. They raise MismatchError in the next operation of the
    call, and the numbers of all ranks stay equal. A call has one operation unless it says so by takes()."""

def takes(operations: int, *, together: bool = False) -> None:
    """Say how many operations of the communicator the innermost ``collective`` call starts in all: the same number on
    all ranks. Calls of the communicator count, and ``refuse``; an inner ``collective`` function counts as those that it
    starts. Call it before the second operation, and again where the number is known later.

    Without ``together`` only the last operation may be asynchronous: where one fails, it fails on every rank, and none
    starts the next. With it every rank starts all of them, even if one fails, and the decorator refuses the rest."""

_E = TypeVar("_E", bound=BaseException)

def everywhere(error: _E) -> _E:
    """Return an error that every rank raises after this operation, because all have compared the same values. Then
    none starts the next one, and nobody has to be told."""

def wait_to_read(comm: Communicator, tensors: Iterable[Any]) -> None:
    """Wait until nothing in flight on the communicator writes these tensors. Calls that read tensors outside of the
    core need it, such as those that pack a list, because the core orders only its own reads and writes. It returns at
    once if nothing is in flight, and for tensors on a device, where streams order the reads. It skips a tensor that it
    cannot view, and does nothing for an object that is no communicator: the call itself refuses these."""

def refuse(comm: Communicator, error: _E) -> _E:
    """For packages that check arguments before a call of ``comm``: take the number of the refused operation, and tell
    the peers why, so that their call raises MismatchError instead of waiting. Returns ``error``, the exception to
    raise; those of this package then name the rank."""

def refuse_message(comm: Communicator, error: _E, peer: int | None, tag: int = 0, *, sends: bool) -> _E:
    """As refuse(), for a send to ``peer``, or with ``sends=False`` a receive from it. ``peer=None`` is a receive from
    any rank; then no rank is told."""

@final
class Dialect:
    """One function of another library, as its users know it.

    Args:
        tensor: the class of the library's tensors; other classes are refused.
        send, recv, send_counts, recv_counts: the library's names of the arguments.
        type_error, counts_error, tensor_error: classes to raise for an argument of a wrong type, for counts that do not
            fit, and for a tensor that cannot take part. InvalidArgumentError or children of it.
        sequence: the class, or classes, of its lists of tensors.
        order: the order of its arguments, for errors of counts and tensors that do not fit each other; "": not shown.
        complex_as_real: whether a complex tensor may be exchanged with a real one, as twice as many numbers.
        differentiable: whether outputs may require a gradient, because the library's call makes them results of the
            inputs. The library does that itself, and handles outputs that cannot become results.
        fills: whether an empty list of outputs is filled with new tensors.
        equal: whether the ranks of allgather_list all send the same number of bytes.
    """

    def __init__(
        self,
        tensor: type[Any],
        send: str,
        recv: str,
        send_counts: str = "",
        recv_counts: str = "",
        *,
        type_error: type[InvalidArgumentError],
        counts_error: type[InvalidArgumentError],
        tensor_error: type[InvalidArgumentError],
        sequence: type[Any] | tuple[type[Any], ...] = list,
        order: str = "",
        complex_as_real: bool = False,
        differentiable: bool = False,
        fills: bool = False,
        equal: bool = False,
    ) -> None: ...
    def alltoall(
        self,
        comm: Communicator,
        recv: Tensor,
        send: Tensor,
        recv_counts: Counts | None = None,
        send_counts: Counts | None = None,
        async_op: bool = False,
        timeout: float | None = None,
    ) -> Work | None:
        """Dim 0 of each tensor is divided by its counts, or equally where they are None or empty. The two sides may
        have rows of different sizes: only bytes have to match. Returns a Work with ``async_op``."""
    def alltoall_list(
        self,
        comm: Communicator,
        recvs: Sequence[Any],
        sends: Sequence[Any],
        async_op: bool = False,
        timeout: float | None = None,
    ) -> Work | None:
        """``sends[p]`` goes to rank p, ``recvs[p]`` comes from rank p. Empty ``recvs`` that are to be filled take one
        more round, in which the ranks tell each other the shapes; so they have to be empty on all ranks or on none."""
    def allgather_list(
        self,
        comm: Communicator,
        recvs: Sequence[Any],
        send: Tensor,
        async_op: bool = False,
        timeout: float | None = None,
    ) -> Work | None:
        """``recvs[p]`` comes from rank p; ``send`` may be this rank's own. Empty ``recvs`` that are to be filled become
        tensors like ``send``."""
    def gather_list(
        self,
        comm: Communicator,
        recvs: Sequence[Tensor] | None,
        send: Tensor,
        root: int,
        async_op: bool = False,
        timeout: float | None = None,
    ) -> Work | None:
        """``recvs[p]`` of rank ``root`` comes from rank p, and is like ``send``; the other ranks have None. ``send``
        may be one of them."""
    def allgather(
        self, comm: Communicator, recv: Tensor, send: Tensor, async_op: bool = False, timeout: float | None = None
    ) -> Work | None:
        """Gather every rank's ``send`` in rank order; ``send`` may be this rank's part of ``recv``."""
    def global_scatter(self, comm: Communicator, x: Tensor, local_count: Counts, global_count: Counts) -> Any:
        """As Communicator.global_scatter, into a new tensor. Requires that the counts cover all rows of ``x``. The
        names of the arguments are Paddle's."""
    def global_gather(self, comm: Communicator, x: Tensor, local_count: Counts, global_count: Counts) -> Any:
        """The inverse of global_scatter with the same counts."""
    def barrier(self, comm: Communicator, async_op: bool = False, timeout: float | None = None) -> Work | None:
        """Block until every rank has called it. Returns a Work with ``async_op``."""

@final
class SharedArray:
    """A typed view of memory: DLPack producer and (writable) buffer. Made by ``from_pointer`` and
    ``Communicator.empty``."""

    __dlpack_c_exchange_api__: ClassVar[Any]
    def __init__(self, *args: Any, **kwargs: Any) -> NoReturn: ...
    @property
    def shape(self) -> tuple[int, ...]:
        """The number of entries of each dimension."""
    @property
    def dtype(self) -> str:
        """The dtype's name, a key of ``dtype_names``."""
    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """Return a capsule that shares the memory: versioned when ``max_version`` allows it, otherwise legacy. Raises
        BufferError for a copy, another device, or a read-only view in a legacy capsule."""
    def __dlpack_device__(self) -> tuple[int, int]:
        """Return (device type, device id) in DLPack's numbers."""
    if sys.version_info >= (3, 12):
        def __buffer__(self, flags: int, /) -> memoryview: ...

def from_pointer(
    ptr: int,
    shape: int | Sequence[int],
    dtype: Any,
    device: tuple[int, int] = (1, 0),
    owner: object = None,
    readonly: bool = False,
) -> SharedArray:
    """Return a tensor over memory that no framework exports. It keeps ``owner`` alive. The pointer must stay valid for
    prod(shape) elements.

    Args:
        ptr: address of the first element.
        shape: an int or a sequence of ints; the memory is packed in C order.
        dtype: a name from ``dtype_names`` or a dtype of a framework.
        device: (DLPack device type, device id).
        owner: any object; released when the last tensor over the memory is gone.
        readonly: whether the memory must not be written.

    Raises InvalidArgumentError for an impossible shape, an unknown dtype, or NULL with a size.
    """

class SupportsAllgather(Protocol):
    """A way for ranks to meet: every rank calls it equally often and gets all ranks' bytes in rank order."""

    def allgather(self, mine: bytes, /) -> Sequence[bytes]: ...

def connect(
    rank: int,
    size: int,
    *,
    job: str | None = None,
    bootstrap: SupportsAllgather | None = None,
    timeout: float = 600.0,
    waited: float = 0.0,
    check: str | None = None,
    network: CoreBootstrap | None = None,
    processes: Sequence[int] = (),
    host: str = "",
) -> Communicator:
    """Make a communicator from explicit facts. ``a2a.init`` finds these facts in the environment.

    Args:
        rank, size: this rank's number and how many ranks there are; 0 <= rank < size.
        job: a name; the ranks of this host and user that give the same one meet.
        bootstrap: any object with ``allgather(bytes) -> list[bytes]``, called in this thread. A single rank needs
            neither.
        timeout: the default deadline of every operation in seconds, and the time to wait for the other ranks.
        waited: seconds of that wait that have already passed.
        check: when ranks compare operations on devices before they start them: "off", "first" (the first run of each
            plan and the first 16 other operations) or "always". None: the value of A2A_CHECK, otherwise "first".
        network: a bootstrap of the core, perhaps of more ranks, whose network connects the hosts of these, beside a
            ``bootstrap`` that has none; ``processes`` has each rank's number there, ``host`` the name of this rank's
            host, "" for the one that the kernel gives.

    Raises TimeoutError naming the missing ranks. Exceptions of ``bootstrap.allgather`` are raised unchanged.
    """

class CoreEndpoint:
    """What a2a.Endpoint is made of: all its arguments are given. ``secret`` None is the one of A2A_SECRET_FILE or
    A2A_SECRET."""

    def __new__(
        cls, address: str, secret: str | bytes | None, host: str, *, timeout: float = 600.0, check: str | None = None
    ) -> Self: ...
    @property
    def handle(self) -> str:
        """The text by which others reach this endpoint. It goes to them by any means: a store, a file, a launcher. It
        is valid as long as this object, and lets in nobody who has not got the secret, or is another user of this
        host."""
    @property
    def generation(self) -> int | None:
        """The last generation that this endpoint was in, None before the first."""
    def connect(self, handles: Iterable[str], generation: int, *, timeout: float | None = None) -> Communicator:
        """Collective over the endpoints listed, and nobody else: make the communicator of this generation, in which
        rank i is the endpoint of ``handles[i]``. All give the same list, which has their own handle, and the same
        number, which none of them has used before. ``timeout`` in seconds, by default 600, bounds this call; the
        communicator's own default is 600 seconds. Its ``generation``, ``handles`` and ``endpoint`` are those given, and
        ``joined`` lists the ranks whose former group is not that of the lowest rank that had one.

        The former communicator of this endpoint is aborted; its segments and connections are used again. Any thread may
        call it, one at a time.

        Raises InvalidArgumentError for a list without this endpoint's handle, an invalid handle, one twice, or one of
        another job, and for a generation that is negative or already used; the others then get MismatchError.
        MismatchError when lists or generations disagree, PeerLostError when a listed process is dead, TimeoutError
        naming those that do not come, UnsupportedError when one is on another host and has no address. The endpoint can
        be used again after each of them."""
    def recover(self, comm: Communicator, timeout: float | None = None) -> Communicator:
        """What Communicator.recover() calls."""

@final
class CoreBootstrap:
    """A bootstrap of the core; satisfies SupportsAllgather."""

    @property
    def rank(self) -> int:
        """The rank of the caller."""
    @property
    def size(self) -> int: ...
    def __init__(self, *args: Any, **kwargs: Any) -> NoReturn: ...
    def allgather(self, mine: bytes, /, *, timeout: float | None = None) -> list[bytes]:
        """Every rank's bytes in rank order. Blocks until every rank has called it, or for ``timeout`` seconds."""

def job_bootstrap(rank: int, size: int, job: str, *, timeout: float) -> CoreBootstrap:
    """Return the bootstrap of the ranks of this host and user that give the same name, once all are there."""

def ended_rank(job: str, size: int) -> str | None:
    """Return the launcher's notice of a rank of the job that has ended and will not be started again, such as "rank 2
    exited with code 0"; None if there is none."""

def secret_of_environment() -> bytes:
    """Return the secret of A2A_SECRET_FILE or A2A_SECRET. Raises InvalidArgumentError when there is none, or when the
    file may belong to somebody else, or be read by others. No message shows the secret."""

@final
class TcpBootstrap:
    """A bootstrap of ranks on any hosts, over TCP; satisfies SupportsAllgather.

    Rank 0 listens at ``address``, "host:port" or "[IPv6]:port", on the interface of that address alone and only until
    all ranks have connected; ":port" is 127.0.0.1. The others connect, and try again for ``timeout`` seconds, which is
    also the deadline of each allgather. The ranks of a meeting give the same ``job`` and the same ``secret``, at least
    16 bytes; None is the secret of A2A_SECRET_FILE or A2A_SECRET. Both ends of a connection prove that they know it,
    and every message is authenticated; nothing is encrypted (docs/guide/security.md). The connections last as long as
    the object. A communicator of ranks on several hosts has connections of its own, between all of them.

    Raises InvalidArgumentError when the secrets, jobs or sizes differ, a rank joins twice, or rank 0 cannot have the
    address; UnsupportedError when a rank runs another version; TimeoutError naming the missing ranks. A missing or
    malformed secret or address is an InvalidArgumentError before anything is sent."""

    def __new__(
        cls,
        rank: int,
        size: int,
        address: str,
        *,
        job: str = "",
        secret: bytes | str | None = None,
        timeout: float = 600.0,
    ) -> TcpBootstrap: ...
    def allgather(self, mine: bytes, /) -> list[bytes]:
        """Every rank's bytes in rank order: at most 16 MiB of one, 256 MiB of all. Blocks until every rank has called
        it. Raises PeerLostError naming a rank that died; after an error every later call on any rank raises, too."""

def thread_bootstraps(size: int) -> list[CoreBootstrap]:
    """Return one bootstrap for each of ``size`` ranks that are threads of this process."""

def mpi_bootstrap(fortran_handle: int | None = None, *, name: bytes = b"", timeout: float = 600.0) -> CoreBootstrap:
    """Return the bootstrap of the ranks of ``MPI_COMM_WORLD``, or of the communicator with this Fortran handle (mpi4py:
    ``comm.py2f()``), which may be on several hosts. Loads MPI, and initialises it unless it is initialised; then it is
    finalised when the process ends. Collective: after ``timeout`` seconds of waiting for the others TimeoutError is
    raised, and the next call for the same processes goes on. The communicator is duplicated, once for each group of
    processes and each ``name``, and may be freed at any time. Raises UnsupportedError when there is no usable MPI,
    naming every place where it was looked for, InvalidArgumentError when the handle is not that of an
    intracommunicator, as far as MPI can tell."""

@final
class ExpertPlacement:
    """The ranks on which each expert is: the same number on each rank, in blocks, or ``expert_to_rank[e]``, a rank or a
    list of ranks. ``hosts``: of each rank the number of its host; None: all on one. ``active``: the ranks that take
    part; None: all. ``may_lack``: lists may be empty."""

    def __init__(
        self,
        size: int,
        num_experts: int,
        expert_to_rank: Sequence[int | Sequence[int]] | None = None,
        hosts: Sequence[int] | None = None,
        active: Iterable[int] | None = None,
        may_lack: bool = False,
    ) -> None: ...
    @property
    def homes(self) -> tuple[tuple[int, ...], ...]:
        """The ranks of each expert, those that take no part included."""
    @property
    def experts(self) -> int:
        """The number of experts."""
    def experts_on(self, rank: int) -> int:
        """Return the number of experts on that rank."""

@final
class ExpertRouting:
    """The core's part of an a2a.moe.Routing."""

    def __init__(self, *args: Any, **kwargs: Any) -> NoReturn: ...
    @property
    def comm(self) -> Communicator: ...
    @property
    def number(self) -> int: ...
    @property
    def by_expert(self) -> bool: ...
    @property
    def tokens(self) -> int: ...
    @property
    def rows(self) -> int: ...
    @property
    def top_k(self) -> int: ...
    @property
    def weighted(self) -> bool:
        """Whether it was made with weights."""
    @property
    def counts(self) -> npt.NDArray[np.int64]: ...
    @property
    def offsets(self) -> npt.NDArray[np.int64] | None: ...
    @property
    def chosen(self) -> Any: ...
    @property
    def topk_idx(self) -> Any:
        """See a2a.moe.Routed."""
    @property
    def topk_weights(self) -> Any:
        """See a2a.moe.Routed."""
    @property
    def source(self) -> Any:
        """See a2a.moe.Routed."""
    @property
    def dropped(self) -> npt.NDArray[np.int64]:
        """See a2a.moe.Routed."""
    def source_ranks(self) -> npt.NDArray[np.int64]:
        """Return the rank from which each row comes, -1 for padding (NumPy, int64)."""
    def dispatch(
        self,
        x: Tensor,
        scales: Tensor | None = None,
        *,
        async_op: bool = False,
        stream: StreamLike = None,
        timeout: float | None = None,
    ) -> tuple[list[Any], Work | None]:
        """Send the rows of this rank's tokens to their experts. Returns (the received rows of x, and of scales if
        given; the Work, or None if it is done)."""
    def combine(
        self,
        rows: Tensor,
        *,
        weighted: bool = True,
        weights: Tensor | None = None,
        bias: Any = None,
        async_op: bool = False,
        stream: StreamLike = None,
        timeout: float | None = None,
    ) -> tuple[Any, Work | None]:
        """Return the weighted sums of each token's rows, and the Work, or None if it is done. ``weights``, one for each
        row, replace those of the routing."""
    def give_back(self, values: Tensor, *, timeout: float | None = None) -> npt.NDArray[np.float32]:
        """Send one value or row of values for each routed row back to its token and place in top-k. The result has the
        shape [tokens, top_k, ...], 0 where there is no expert. Only in the layout "expert"."""
    def alltoallv(
        self, send: Tensor, send_counts: Counts, recv: Tensor, recv_counts: Counts, *, timeout: float | None = None
    ) -> None:
        """Communicator.alltoallv() of rows that others have put in the order of this routing."""

def route(
    comm: Communicator,
    placement: ExpertPlacement,
    topk_idx: Tensor,
    topk_weights: Tensor | None = None,
    *,
    by_expert: bool = True,
    align: int = 1,
    x: Tensor | None = None,
    scales: Tensor | None = None,
    equal: Sequence[tuple[str, int]] = (),
    after: ExpertRouting | None = None,
    count: bool = False,
    timeout: float | None = None,
) -> ExpertRouting:
    """Collective. Every rank tells every other which of its tokens come, and the ranks compare the values that must be
    equal: for dispatch() also those of x and scales. ``equal``: more of them, pairs of a name and an integer, as many
    on all ranks. ``after``: the routing of an earlier dispatch to which the call belongs; it has to be the same.
    ``count``: keep how often this rank's tokens choose each expert."""

def rows_of(tensor: Any, name: str, writable: bool = False) -> list[Any]:
    """Return a tensor over the memory of each entry of the first dimension. The tensor is on the host and packed."""

def rows_like(tensor: Any, count: int) -> Any:
    """Return a new tensor of the framework and dtype of this one with so many entries, or the buffer from which
    convert_result() makes one."""

def set_result(work: Any, result: Any, like: Any = None) -> Work:
    """Set the ``result`` of a work: a tensor in the framework of ``like``, or any object. Returns the work."""

def convert_result(like: Any, made: Any, work: Work | None) -> Any:
    """Convert the buffer that was received into to the framework of ``like``. It waits for the operation unless the
    framework's tensors may be filled in later."""

def describe_process(job: str) -> None:
    """Tell ``a2a status`` the name of the job of this process."""

class ShownMeeting:
    """Shows ``a2a status`` that a rank waits for the others to meet, in a ``with`` block. ``hosts`` is 0 where it
    is not known on how many hosts they are, or whether they have one name of their job."""

    def __init__(self, rank: int, size: int, hosts: int = 0) -> None: ...
    def __enter__(self) -> None: ...
    def __exit__(self, *_: object) -> None: ...

def operation_in_words(operation: int, dtype: int) -> tuple[str, str, str]:
    """Return (operation, memory, dtype) of the numbers in a status page."""

def describe_tensor(obj: Tensor) -> dict[str, Any]:
    """Return the properties of a tensor as this package sees them: {"shape", "dtype", "device", "contiguous",
    "writable", "framework", "bytes"}. ``writable`` is None where the producer does not say. Raises InvalidArgumentError
    for an object that is not a tensor."""

def host_facts(comm: Communicator) -> dict[str, Any]:
    """Return {"ranks", "cpus", "oversubscribed", "cma"} of the communicator's ranks on this host, "hosts" of all its
    ranks, "messages": how many this process has sent to other hosts, "direct_min", "cma_min", "stream_min": the sizes
    in bytes from which host memory takes another way (docs/guide/variables.md), None for never."""

def host_of_ranks(comm: Communicator) -> list[int]:
    """Return for each rank of the communicator the number of its host: ranks of one host have the same."""

def host_ways(comm: Communicator, nbytes: int) -> list[tuple[str, str, str]]:
    """Return [(memory, way, reason), ...]: for each kind of host memory how ``nbytes`` bytes go to a peer in an
    exchange in which every pair of ranks has as many."""

def stage_choices(comm: Communicator) -> list[tuple[str, str, int, str]]:
    """Return [(collective, stages, from, reason), ...]: the stages in which this group runs a collective on host memory
    from so many bytes on, of each collective in the order of ``from``. The last one that holds is chosen. The bytes are
    those of the tensor, in reduce_scatter and allgather those of one rank's part."""

def stage_choices_between(hosts: Sequence[int]) -> list[tuple[str, str, int, str]]:
    """Return stage_choices() of a group whose rank r is on host ``hosts[r]``, any number. Raises InvalidArgumentError
    for fewer than two hosts."""

def set_wait_listener(listener: Callable[[Communicator, float, list[int]], None]) -> None:
    """Have ``listener(communicator, seconds, ranks)`` called while a call waits for these ranks: after 5 seconds, and
    each time twice as many have passed."""

def reshard_all(
    comm: Communicator,
    tensors: Sequence[tuple[Sequence[int], ShardingLike, ShardingLike, Any]],
    send: Sequence[Tensor | None],
    recv: Sequence[Tensor | None],
    *,
    async_op: bool = False,
    timeout: float | None = None,
) -> Any:
    """For packages that reshard many tensors once: what ``plan_reshard_all`` and a run of its plan do, without the
    number of a plan, which ranks could count differently where one of them fails between the two. Returns the Work of
    an asynchronous call."""

def reshard_matrices(
    tensors: Sequence[tuple[Sequence[int], ShardingLike, ShardingLike, Any]],
    size: int,
    hosts: Sequence[int] | None = None,
) -> npt.NDArray[np.uint64]:
    """For a2a.sharding: return the bytes that each rank sends each in each stage, an array of [stages, size, size]."""

def set_operation_listener(listener: Callable[[Communicator, str], None] | None) -> None:
    """Have ``listener(communicator, name)`` called before each operation of a communicator and each message starts, in
    the thread that calls; None: nobody. What it raises is raised by the call, as if its arguments were refused."""

def run_simulator(
    bytes_: npt.ArrayLike,
    schedule: str,
    *,
    ranks_per_host: int,
    link: float,
    memory: float,
    latency: float,
    message: float,
    start: float,
    single: bool,
    kept: int,
) -> tuple[
    float,
    float,
    npt.NDArray[np.float64],
    npt.NDArray[np.float64],
    npt.NDArray[np.float64],
    list[tuple[int, int, int, float, float]],
]:
    """Return (seconds, bound, times of ranks, times of the hosts' out ports, of their in ports, messages) of an
    exchange with this square matrix of uint64. A message is (from, to, bytes, begin, end)."""

def metrics_text() -> str:
    """Return the counts of this process's communicators in Prometheus's text format, those that were made while
    A2A_METRICS was set."""

def cpu_quota() -> float | None:
    """Return the CPU time per second that the control groups of this process allow; None without a quota."""

def network_choice() -> str:
    """Return which network ranks on several hosts would use, and why: A2A_NETWORK, or the devices of this host. Raises
    InvalidArgumentError for another value of that variable."""

def progress_thread_choice(ranks: int, cpus: int, hosts: int) -> str:
    """Return whether each of so many ranks on each of these hosts, which may use so many CPUs, gets a progress thread,
    and why. Raises InvalidArgumentError for a wrong A2A_PROGRESS_THREAD."""

def library_of(transport: Literal["nccl", "hccl", "mpi", "ucx"]) -> str:
    """Return the library that serves "nccl", "hccl", "mpi" or "ucx" here, with its version. Raises UnsupportedError
    that lists where it was looked for."""

core_version: str
dtype_names: dict[str, tuple[int, int, int]]
"""Name -> DLPack (code, bits, lanes) of every dtype with a name."""

def flat_array(tensor: Tensor, name: str, *dtypes: str) -> tuple[npt.NDArray[Any], str]:
    """Return a contiguous host tensor as (flat array that shares its memory, name of its dtype). The dtype must be one
    of ``dtypes``. bfloat16 becomes uint16."""

def new_like(tensor: Tensor, dtype: str) -> tuple[npt.NDArray[Any], Callable[[], Any]]:
    """Return (flat array, finish): memory for an uninitialised tensor of the shape and framework of ``tensor`` and of
    another dtype, and a function that makes the tensor once the array is filled. bfloat16 is written as uint16."""

def to_float32(array: npt.NDArray[Any], dtype: str) -> npt.NDArray[np.float32]:
    """Return a float32 copy of a flat array of float16 or bfloat16 (as uint16); a float32 array is returned as it
    is."""

def from_float32(array: npt.NDArray[np.float32], dtype: str, out: npt.NDArray[Any]) -> None:
    """Round a flat float32 array to float16 or bfloat16 (as uint16), or copy it."""

def dequantize_sum(
    parts: npt.NDArray[np.int8], ranks: int, scale: npt.NDArray[np.float32], offset: npt.NDArray[np.float32], first: int
) -> npt.NDArray[np.float32]:
    """The C++ function of this name on arrays: ``parts`` has the elements of every rank, one rank after another."""

def quantize_blocks(array: npt.NDArray[np.float32], block: int) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.float32]]:
    """Return (int8 array, float32 scale of each block) of a flat float32 array."""

def dequantize_blocks_sum(
    q: npt.NDArray[np.int8], scales: npt.NDArray[np.float32], ranks: int, block: int
) -> npt.NDArray[np.float32]:
    """The C++ function of this name on arrays: both hold every rank's, one rank after another."""

def before_operations(function: Callable[[], None]) -> None:
    """Let every call of a communicator that compiled programs use, too, call ``function`` first. It waits for the
    programs that this thread has started."""

def xla_handler() -> CapsuleType:
    """Return a capsule of the handler that runs operations of compiled programs, for jax.ffi.register_ffi_target()."""

def before_starvation(function: Callable[[int], bool]) -> None:
    """Have ``function(waiting)`` say whether compiled programs are left for which XLA has no thread, once so many of
    its threads have waited for a second."""

def abort_programs(reason: str, programs: Iterable[int]) -> None:
    """Abort the communicators of the compiled programs with these numbers."""

@final
class CompiledCalls:
    """The collectives of a communicator for a compiled program. Each takes the arguments of the communicator's own, and
    returns the number by which the program calls it on its buffers; nothing is run, and no number of an operation or a
    plan is taken. Tensors stand for those of the program, in C order. The calls live as long as the communicator.
    ``program`` is a number of the program."""

    def __init__(self, comm: Communicator, program: int) -> None: ...
    @property
    def rank(self) -> int:
        """The communicator's rank."""
    @property
    def size(self) -> int:
        """The communicator's size."""
    def alltoallv(
        self,
        send: npt.NDArray[Any],
        send_counts: Counts,
        recv: npt.NDArray[Any],
        recv_counts: Counts,
        send_displs: Counts,
        recv_displs: Counts,
        *,
        split_axis: int = 0,
        concat_axis: int = 0,
        agreement: int = 0,
    ) -> int:
        """``agreement`` is a number that all ranks have alike, and others where an argument differs on one of them; 0:
        each pair of ranks exchanges as much as any other, so that every rank sees where one differs."""
    def allgather(self, send: npt.NDArray[Any], recv: npt.NDArray[Any]) -> int: ...
    def allreduce(self, send: npt.NDArray[Any], recv: npt.NDArray[Any], op: ReduceOp) -> int: ...
    def reduce_scatter(self, send: npt.NDArray[Any], recv: npt.NDArray[Any], op: ReduceOp) -> int: ...
    def broadcast(self, tensor: npt.NDArray[Any], root: int) -> int:
        """The tensor is the first result."""
    def send(self, tensor: npt.NDArray[Any], peer: int, tag: int) -> int: ...
    def recv(self, tensor: npt.NDArray[Any], peer: int | None, tag: int) -> int: ...
    def barrier(self) -> int: ...
    def ragged_alltoallv(self, send: npt.NDArray[Any], recv: npt.NDArray[Any], agreement: int) -> int:
        """alltoallv of rows, into the first result, which holds the second argument. Five more arguments, int32 or
        int64, have by rank: the first row to send, the rows to send, the first row of the result, the rows to receive,
        and the rows that the other rank has said it sends. ``agreement`` as in alltoallv."""
