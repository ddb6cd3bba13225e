# Methods of Communicator: the plan_* calls.


cdef class _Planning(_Collectives):
    cdef _LatestPair latest     # of alltoallv

    def __cinit__(self):
        self.latest = _LatestPair.__new__(_LatestPair)

    @collective
    def plan_alltoallv(self, send, send_counts, recv, recv_counts, send_displs=None, recv_displs=None, *, split_axis=0,
                       concat_axis=0):
        """A reusable plan. The tensors give dtype, row size and bounds, with axes their shapes; they are not kept.
        Every rank makes its plans in the same order; nothing is sent. A call that raises takes its number, too."""
        cdef Exchange x
        cdef uint64_t number = self.next_plan()
        parse_call(&x.call, Op.alltoallv, None, None)
        prepare_alltoallv(x, self._rank, self._size, send, send_counts, recv, recv_counts, send_displs, recv_displs,
                          split_axis, concat_axis, False, self.latest)
        return make_plan(self, x, 0 if is_divided(x) else x.call.unit_bytes, number)

    @collective
    def plan_alltoall(self, send, recv, split_axis=0, concat_axis=0):
        """A reusable alltoall; see plan_alltoallv."""
        cdef Exchange x
        cdef uint64_t number = self.next_plan()
        parse_call(&x.call, Op.alltoall, None, None)
        prepare_alltoall(x, self._rank, self._size, send, recv, split_axis, concat_axis, False)
        return make_plan(self, x, 0 if is_divided(x) else x.call.unit_bytes, number)

    @collective
    def plan_allgather(self, send, recv):
        """A reusable allgather; see plan_alltoallv."""
        cdef Exchange x
        cdef uint64_t number = self.next_plan()
        parse_call(&x.call, Op.allgather, None, None)
        prepare_allgather(x, self._rank, self._size, send, recv, False)
        return make_plan(self, x, 0, number)

    @collective
    def plan_global_scatter(self, x, local_count, global_count):
        """A reusable global_scatter; see plan_alltoallv. ``x`` gives dtype and row size."""
        return self.plan_global(False, x, local_count, global_count)

    @collective
    def plan_global_gather(self, x, local_count, global_count):
        """A reusable global_gather; see plan_alltoallv. ``x`` gives dtype and row size."""
        return self.plan_global(True, x, local_count, global_count)

    cdef object plan_global(self, bint gather, object tensor, object local_count, object global_count):
        cdef Exchange x
        cdef uint64_t number = self.next_plan()
        parse_call(&x.call, Op.global_gather if gather else Op.global_scatter, None, None)
        prepare_global_plan(x, self._rank, self._size, gather, tensor, local_count, global_count)
        return make_plan(self, x, x.call.unit_bytes, number)

    @collective
    def plan_allreduce(self, send, recv=None, op="sum"):
        """A reusable allreduce; see plan_alltoallv. Its runs may be given ``recv`` or not."""
        cdef Exchange x
        cdef uint64_t number = self.next_plan()
        parse_reduction(&x.call, Op.allreduce, op, None, None)
        prepare_allreduce(x, dereference(self.live()), send, recv, False)
        return make_plan(self, x, 0, number, Sides.one_or_both)

    @collective
    def plan_scan(self, send, recv=None, op="sum"):
        """A reusable scan; see plan_alltoallv. Its runs may be given ``recv`` or not."""
        return self.plan_prefix(Op.scan, send, recv, op)

    @collective
    def plan_exscan(self, send, recv=None, op="sum"):
        """A reusable exscan; see plan_alltoallv. Its runs may be given ``recv`` or not."""
        return self.plan_prefix(Op.exscan, send, recv, op)

    cdef object plan_prefix(self, Op which, object send, object recv, object op):
        cdef Exchange x
        cdef uint64_t number = self.next_plan()
        parse_reduction(&x.call, which, op, None, None)
        prepare_scan(x, self._rank, self._size, send, recv, False)
        return make_plan(self, x, 0, number, Sides.one_or_both)

    @collective
    def plan_reduce_scatter(self, send, recv, op="sum"):
        """A reusable reduce_scatter; see plan_alltoallv."""
        return self.plan_scatter_reduced(send, None, recv, op)

    @collective
    def plan_reduce_scatterv(self, send, counts, recv, op="sum"):
        """A reusable reduce_scatterv; see plan_alltoallv."""
        return self.plan_scatter_reduced(send, counts, recv, op, True)

    cdef object plan_scatter_reduced(self, object send, object counts, object recv, object op, bint uneven=False):
        cdef Exchange x
        cdef uint64_t number = self.next_plan()
        parse_reduction(&x.call, Op.reduce_scatter, op, None, None)
        if uneven:
            require_counts(counts)
        prepare_reduce_scatter(x, self._rank, self._size, send, counts, recv, False)
        return make_plan(self, x, 0, number)

    @collective
    def plan_reduce(self, send, recv=None, root=0, op="sum"):
        """A reusable reduce; see plan_alltoallv. Its runs get None for ``recv`` on all ranks but the root."""
        cdef Exchange x
        cdef uint64_t number = self.next_plan()
        cdef int to = self.parse_rank(root, "root")
        parse_reduction(&x.call, Op.reduce, op, None, None)
        prepare_reduce(x, self._rank, self._size, send, recv, to, False)
        return make_plan(self, x, 0, number, Sides.one_or_both if self._rank == to else Sides.only_send)

    @collective
    def plan_broadcast(self, tensor, root=0):
        """A reusable broadcast; see plan_alltoallv. Its runs get the tensor alone: ``plan.run(tensor)``."""
        cdef Exchange x
        cdef uint64_t number = self.next_plan()
        cdef int source = self.parse_rank(root, "root")
        parse_call(&x.call, Op.broadcast, None, None)
        prepare_broadcast(x, self._rank, self._size, tensor, source, False)
        return make_plan(self, x, 0, number, Sides.only_send if self._rank == source else Sides.only_recv)

    @collective
    def plan_gather(self, send, recv=None, root=0):
        """A reusable gather; see plan_alltoallv. Its runs get None for ``recv`` on all ranks but the root."""
        cdef Exchange x
        cdef uint64_t number = self.next_plan()
        cdef int to = self.parse_rank(root, "root")
        parse_call(&x.call, Op.gather, None, None)
        prepare_gather(x, self._rank, self._size, send, recv, to, False)
        return make_plan(self, x, 0, number, Sides.both if self._rank == to else Sides.only_send)

    @collective
    def plan_scatter(self, send, recv, root=0):
        """A reusable scatter; see plan_alltoallv. Its runs get None for ``send`` on all ranks but the root."""
        cdef Exchange x
        cdef uint64_t number = self.next_plan()
        cdef int source = self.parse_rank(root, "root")
        parse_call(&x.call, Op.scatter, None, None)
        prepare_scatter(x, self._rank, self._size, send, recv, source, False)
        return make_plan(self, x, 0, number, Sides.both if self._rank == source else Sides.only_recv)

    @collective
    def plan_allgatherv(self, send, recv, recv_counts, recv_displs=None):
        """A reusable allgatherv; see plan_alltoallv."""
        cdef Exchange x
        cdef uint64_t number = self.next_plan()
        parse_call(&x.call, Op.allgatherv, None, None)
        prepare_allgatherv(x, self._rank, self._size, send, recv, recv_counts, recv_displs, False)
        return make_plan(self, x, 0, number)
