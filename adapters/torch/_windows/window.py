"""One-sided communication, with the calls of torch.distributed's windows (torch 2.14).

A put writes into the memory of a rank of the same host. To a rank of another host, or one whose memory cannot be
mapped, it is a message, which that rank takes when it waits for the sender's signal. So the messages of each pair of
ranks are a sequence of puts and signals, in which a put that was written at once is left out."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor

import a2a
from a2a import InvalidArgumentError, MismatchError, UnsupportedError

from .._errors import TensorError, in_torchs_words, not_a_tensor
from .._operations.work import FinishedWork
from .._process_group.communicators import communicator
from .._untraced import untraced
from .shared_tensor import Description, SharedTensor

__all__ = ["Window", "new_window"]

_SIGNAL = -1  # in the place of an offset
_TAG = 0


@untraced
def new_window(tensor: Tensor | None = None, group: Any = None) -> Window:
    """Return a new window on ``group``: torch's ``_new_window``. Collective: each rank registers its own ``tensor``,
    here or with Window.tensor_register()."""
    comm = communicator(group)
    if comm is None:
        raise UnsupportedError("new_window: this process is not a member of the group, or a2a does not serve it")
    window = Window(comm)
    if tensor is not None:
        window.tensor_register(tensor)
    return window


@untraced
class Window:
    """A tensor of each rank of a group, into which the other ranks put data.

    ``get_attr(peer).access_type`` says how. UNIFIED: that rank's memory is mapped here, and a put writes it at once.
    SEPARATE: the data arrives when that rank waits for this rank's signal. In both cases it is there after that wait.
    Ranks are those of the group."""

    def __init__(self, comm: a2a.Communicator) -> None:
        """Collective over the ranks of ``comm``."""
        self._comm: Any = comm.group(range(comm.size))  # its messages are apart from the program's
        self._own: Tensor | None = None
        self._remote: list[Tensor | None] = []  # the tensor of each rank, where it is mapped here
        self._described: list[Description] = []
        self._receives: dict[int, tuple[Any, Tensor]] = {}  # of the next put or signal of a rank
        self._sending = [threading.Lock() for _ in range(comm.size)]
        self._receiving = [threading.Lock() for _ in range(comm.size)]
        self._sent, self._taken = [0] * comm.size, [0] * comm.size  # messages to and from each rank
        self._signals = 0  # of this rank for itself

    # ---- the tensor

    def tensor_register(self, tensor: Tensor, owning: bool = True) -> None:
        """Make ``tensor`` this rank's part of the window: a contiguous host tensor of any shape. Collective; ranks may
        register tensors of different sizes, of one dtype. Its storage moves into shared memory, as
        tensor.share_memory_() has it, and the window keeps it alive; ``owning=False`` does not change that."""
        reason = self._refusal(tensor)
        shown = None if reason else SharedTensor(tensor)
        told = self._comm.allgather_bytes(f"!{reason}".encode() if shown is None else shown.description.text().encode())
        if shown is None:
            raise TensorError(reason) if isinstance(tensor, Tensor) else not_a_tensor("tensor", tensor)
        for rank, text in enumerate(told):
            if text.startswith(b"!"):
                raise MismatchError(f"tensor_register: rank {rank} does not take part: {text[1:].decode()}")
        described = [Description.of_text(text.decode()) for text in told]
        self._remote = [one.mapped() if rank != self._comm.rank else tensor for rank, one in enumerate(described)]
        self._comm.barrier()  # all have mapped it
        shown.close()
        if len({one.dtype for one in described}) > 1:
            listed = ", ".join(f"rank {rank} has {one.dtype}" for rank, one in enumerate(described))
            raise MismatchError(f"tensor_register: the tensors of a window have one dtype: {listed}")
        self._own, self._described = tensor, described

    def _refusal(self, tensor: Any) -> str:
        """Return why this rank cannot register the tensor; "" if it can."""
        if self._own is not None:
            return "tensor_register: a tensor is registered; call tensor_deregister() first"
        if not isinstance(tensor, Tensor):
            return f"tensor_register: tensor is {type(tensor).__name__}"
        if tensor.layout is not torch.strided or not tensor.is_cpu or not tensor.is_contiguous():
            return f"tensor_register: wants a contiguous tensor on the host, not {tensor.layout} on {tensor.device}"
        if tensor.requires_grad:
            return "tensor_register: the tensor requires a gradient; pass tensor.detach()"
        return ""

    def tensor_deregister(self) -> None:
        """End the registration. Collective. What others have put is in the tensor afterwards; signals that were not
        waited for are lost."""
        own = self._tensor("tensor_deregister")
        told = self._comm.allgather_bytes(" ".join(map(str, self._sent)).encode())
        for peer, text in enumerate(told):
            due = int(text.split()[self._comm.rank])
            with self._receiving[peer]:
                while self._taken[peer] < due:
                    self._take(peer, own, None)
        self._comm.barrier()  # nobody writes any more
        self._own, self._remote, self._described = None, [], []
        self._sent, self._taken = [0] * self._comm.size, [0] * self._comm.size
        self._signals = 0

    # ---- data

    def put(
        self, tensor: Tensor, dst_rank: int, target_offset_nelems: int, async_op: bool = False, opts: Any = None
    ) -> FinishedWork:
        """Write the elements of ``tensor``, of any strides, into the tensor of ``dst_rank``, from its element
        ``target_offset_nelems`` on. ``tensor`` may be written again when the call returns, with ``async_op``, too."""
        own, peer = self._tensor("put"), self._peer("put", dst_rank)
        if not isinstance(tensor, Tensor):
            raise not_a_tensor("tensor", tensor)
        there = self._described[peer].numel
        if tensor.dtype != own.dtype or not tensor.is_cpu:
            raise TensorError(
                f"put: tensor is {tensor.dtype} on {tensor.device}, the window is {own.dtype} on the host"
            )
        first, count = int(target_offset_nelems), tensor.numel()
        if first < 0 or first + count > there:
            raise InvalidArgumentError(
                f"put: elements {first} to {first + count} are not in the tensor of rank {peer}, which has {there}"
            )
        values, remote = tensor.detach(), self._remote[peer]
        if remote is not None:
            remote.view(-1)[first : first + count].view(values.shape).copy_(values)
        elif count:
            with self._sending[peer]:
                self._send(peer, torch.tensor([first, count]))
                self._send(peer, values.clone(memory_format=torch.contiguous_format))
                self._sent[peer] += 1
        return FinishedWork([tensor])

    def map_remote_tensor(self, rank: int) -> Tensor:
        """Return the tensor of a rank, in its own memory: what either process writes, both see. Raises UnsupportedError
        where get_attr() says SEPARATE."""
        self._tensor("map_remote_tensor")
        remote = self._remote[self._peer("map_remote_tensor", rank)]
        if remote is None:
            raise UnsupportedError(
                f"map_remote_tensor: the memory of rank {rank} cannot be mapped here; use put() and signal()"
            )
        return remote

    def get_attr(self, peer_rank: int) -> Any:
        """Return torch's WindowAttr of a rank, whose ``access_type`` is UNIFIED or SEPARATE."""
        self._tensor("get_attr")
        unified = self._remote[self._peer("get_attr", peer_rank)] is not None
        c10d = torch._C._distributed_c10d
        if not hasattr(c10d, "WindowAttr"):
            raise UnsupportedError(f"get_attr: torch {torch.__version__} has no WindowAttr; it is new in torch 2.14")
        attr = c10d.WindowAttr()
        attr.access_type = c10d.WindowAccessType.UNIFIED if unified else c10d.WindowAccessType.SEPARATE
        return attr

    # ---- signals

    def signal(self, peer_rank: int, async_op: bool = False, opts: Any = None) -> FinishedWork:
        """Tell a rank that all puts into its tensor so far are done. Never blocks."""
        self._tensor("signal")
        peer = self._peer("signal", peer_rank)
        with self._sending[peer]:
            if peer == self._comm.rank:
                self._signals += 1
            else:
                self._send(peer, torch.tensor([_SIGNAL, 0]))
                self._sent[peer] += 1
        return FinishedWork([])

    def wait_signal(self, peer_rank: int, async_op: bool = False, opts: Any = None) -> FinishedWork:
        """Wait for one signal of a rank; what it put before is there then. Each signal ends one wait. With ``async_op``
        the work's wait() does that. Raises TimeoutError, PeerLostError."""
        self._tensor("wait_signal")
        peer = self._peer("wait_signal", peer_rank)
        seconds = _seconds(opts)
        if async_op:
            return _Waiting(self, peer, seconds)
        self._wait_for_signal(peer, seconds)
        return FinishedWork([])

    def _wait_for_signal(self, peer: int, seconds: float | None) -> None:
        own = self._tensor("wait_signal")
        with self._receiving[peer]:
            if peer == self._comm.rank:
                if self._signals == 0:
                    raise InvalidArgumentError(
                        "wait_signal: this rank has not signalled itself, and now cannot any more"
                    )
                self._signals -= 1
                return
            while not self._take(peer, own, seconds):
                pass

    # ---- messages

    def _take(self, peer: int, own: Tensor, seconds: float | None) -> bool:
        """Receive the next put or signal of a rank. Return whether it is a signal."""
        if peer not in self._receives:  # a wait that timed out leaves it
            head = torch.empty(2, dtype=torch.int64)
            self._receives[peer] = self._comm.recv(head, peer, _TAG, async_op=True), head
        work, head = self._receives[peer]
        try:
            work.wait(seconds)
            first, count = head.tolist()
            if first != _SIGNAL:
                if not 0 <= first <= first + count <= own.numel():
                    raise MismatchError(f"put: rank {peer} puts elements {first} to {first + count} of {own.numel()}")
                self._comm.recv(own.view(-1)[first : first + count], peer, _TAG)
        except a2a.Error as error:
            in_torchs_words(error)
            raise
        del self._receives[peer]
        self._taken[peer] += 1
        return bool(first == _SIGNAL)

    def _send(self, peer: int, tensor: Tensor) -> None:
        self._comm.send(tensor, peer, _TAG, async_op=True)  # the communicator keeps the tensor

    def _tensor(self, call: str) -> Tensor:
        if self._own is None:
            raise InvalidArgumentError(f"{call}: no tensor is registered; call tensor_register() on all ranks first")
        return self._own

    def _peer(self, call: str, rank: Any) -> int:
        if not hasattr(rank, "__index__") or not 0 <= int(rank) < self._comm.size:
            raise InvalidArgumentError(f"{call}: rank is {rank!r}, the group has the ranks 0 to {self._comm.size - 1}")
        return int(rank)


@untraced
class _Waiting(FinishedWork):
    """A wait for a signal that begins when somebody waits for it."""

    def __init__(self, window: Window, peer: int, seconds: float | None) -> None:
        super().__init__([])
        self._window, self._peer, self._seconds, self._came = window, peer, seconds, False

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Wait for the signal, once."""
        if not self._came:
            self._window._wait_for_signal(self._peer, timeout.total_seconds() or self._seconds)
            self._came = True
        return True

    def synchronize(self) -> None:
        """The same as wait()."""
        self.wait()

    def is_completed(self) -> bool:
        """Whether somebody has waited for it."""
        return self._came


def _seconds(opts: Any) -> float | None:
    timeout = getattr(opts, "timeout", None)
    return None if timeout is None or timeout.days < 0 else float(timeout.total_seconds())
