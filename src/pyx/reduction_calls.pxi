# Methods of Communicator: reductions and rooted operations.


cdef class _Collectives(_Messages):

    @collective
    def allreduce(self, send, recv=None, op="sum", *, bint async_op=False, stream=None, timeout=None):
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
        cdef Exchange x
        try:
            parse_reduction(&x.call, Op.allreduce, op, stream, timeout)
            tensors = prepare_allreduce(x, dereference(self.live()), send, recv, async_op)
            output, name = (send, "send") if recv is None else (recv, "recv")
            claim(output, name)
        except BaseException as error:
            raise self.refused(x.call, error)
        return self.launch(x, async_op, tensors, output, None)

    @collective
    def scan(self, send, recv=None, op="sum", *, bint async_op=False, stream=None, timeout=None):
        """Rank p gets x0 op x1 op ... op xp, element by element in rank order: the inclusive prefix. Without ``recv``
        the result is written into ``send``. ``op`` and the order between hosts are those of allreduce; "avg" divides by
        p + 1. For host memory."""
        return self.prefix(Op.scan, send, recv, op, async_op, stream, timeout)

    @collective
    def exscan(self, send, recv=None, op="sum", *, bint async_op=False, stream=None, timeout=None):
        """As scan, but without the rank's own elements: rank p gets x0 op ... op x(p-1), the exclusive prefix; "avg"
        divides by p. At rank 0, which has none before it, the output stays as it is."""
        return self.prefix(Op.exscan, send, recv, op, async_op, stream, timeout)

    cdef object prefix(self, Op which, object send, object recv, object op, bint async_op, object stream,
                       object timeout):
        cdef Exchange x
        try:
            parse_reduction(&x.call, which, op, stream, timeout)
            tensors = prepare_scan(x, self._rank, self._size, send, recv, async_op)
            output, name = (send, "send") if recv is None else (recv, "recv")
            claim(output, name)
        except BaseException as error:
            raise self.refused(x.call, error)
        return self.launch(x, async_op, tensors, output, None)

    @collective
    def reduce_scatter(self, send, recv, op="sum", *, bint async_op=False, stream=None, timeout=None):
        """``send`` is divided into ``size`` equal parts; part p of all ranks, folded as by allreduce, becomes ``recv``
        of rank p. ``recv`` may be this rank's part of ``send``."""
        return self.scatter_reduced(send, None, recv, op, async_op, stream, timeout)

    @collective
    def reduce_scatterv(self, send, counts, recv, op="sum", *, bint async_op=False, stream=None, timeout=None):
        """reduce_scatter with ``counts[p]`` rows for rank p, the same list on all ranks. If ``send`` has one dimension,
        ``recv`` may have any shape of ``counts[rank]`` elements."""
        return self.scatter_reduced(send, counts, recv, op, async_op, stream, timeout, True)

    cdef object scatter_reduced(self, object send, object counts, object recv, object op, bint async_op, object stream,
                                object timeout, bint uneven=False):
        cdef Exchange x
        try:
            parse_reduction(&x.call, Op.reduce_scatter, op, stream, timeout)
            if uneven:
                require_counts(counts)
            tensors = prepare_reduce_scatter(x, self._rank, self._size, send, counts, recv, async_op)
            claim(recv, "recv")
        except BaseException as error:
            raise self.refused(x.call, error)
        return self.launch(x, async_op, tensors, recv, None)

    @collective
    def reduce(self, send, recv=None, root=0, op="sum", *, bint async_op=False, stream=None, timeout=None):
        """As allreduce, but only rank ``root`` gets the result: in ``recv``, which is None on the others, or in
        ``send`` where it is None there, too."""
        cdef Exchange x
        try:
            parse_reduction(&x.call, Op.reduce, op, stream, timeout)
            tensors = prepare_reduce(x, self._rank, self._size, send, recv, self.parse_rank(root, "root"), async_op)
            output, name = (send, "send") if recv is None else (recv, "recv")
            if self._rank == root:
                claim(output, name)
        except BaseException as error:
            raise self.refused(x.call, error)
        return self.launch(x, async_op, tensors, output, None)

    @collective
    def broadcast(self, tensor, root=0, *, bint async_op=False, stream=None, timeout=None):
        """``tensor`` of rank ``root``, into ``tensor`` of all others, which has the same dtype and as many elements."""
        cdef Exchange x
        try:
            parse_call(&x.call, Op.broadcast, stream, timeout)
            tensors = prepare_broadcast(x, self._rank, self._size, tensor, self.parse_rank(root, "root"), async_op)
            if self._rank != root:
                claim(tensor, "tensor")
        except BaseException as error:
            raise self.refused(x.call, error)
        return self.launch(x, async_op, tensors, tensor, None)

    @collective
    def gather(self, send, recv=None, root=0, *, bint async_op=False, stream=None, timeout=None):
        """Every rank's ``send`` in rank order, in ``recv`` of rank ``root``; None on the others. ``send`` may be the
        root's part of ``recv``."""
        cdef Exchange x
        try:
            parse_call(&x.call, Op.gather, stream, timeout)
            tensors = prepare_gather(x, self._rank, self._size, send, recv, self.parse_rank(root, "root"), async_op)
            if self._rank == root:
                claim(recv, "recv")
        except BaseException as error:
            raise self.refused(x.call, error)
        return self.launch(x, async_op, tensors, recv, None)

    @collective
    def scatter(self, send, recv, root=0, *, bint async_op=False, stream=None, timeout=None):
        """``send`` of rank ``root``, None on the others, is divided into ``size`` equal parts; part p becomes ``recv``
        of rank p. ``recv`` may be the root's part of ``send``."""
        cdef Exchange x
        try:
            parse_call(&x.call, Op.scatter, stream, timeout)
            tensors = prepare_scatter(x, self._rank, self._size, send, recv, self.parse_rank(root, "root"), async_op)
            claim(recv, "recv")
        except BaseException as error:
            raise self.refused(x.call, error)
        return self.launch(x, async_op, tensors, recv, None)

    @collective
    def allgatherv(self, send, recv, recv_counts, recv_displs=None, *, bint async_op=False, stream=None, timeout=None):
        """Every rank's ``send``, of ``recv_counts[p]`` rows, from row ``recv_displs[p]`` of ``recv`` on; packed in rank
        order by default. ``send`` may be this rank's part of ``recv``."""
        cdef Exchange x
        try:
            parse_call(&x.call, Op.allgatherv, stream, timeout)
            tensors = prepare_allgatherv(x, self._rank, self._size, send, recv, recv_counts, recv_displs, async_op)
            claim(recv, "recv")
        except BaseException as error:
            raise self.refused(x.call, error)
        return self.launch(x, async_op, tensors, recv, None)
