# Plans that run many times.


@cython.final
cdef class Plan:
    """A checked exchange that can run many times, made by ``Communicator.plan_*``. Counts, dtype and row size are
    fixed; tensors may change from run to run if they are at least as large."""

    cdef Communicator comm
    cdef Exchange template      # the plan and the call, without buffers
    cdef int64_t row_bytes      # that every tensor's row must have; 0 where rows are not the unit
    cdef _LatestPair latest     # of a run
    cdef readonly uint64_t number
    cdef object __weakref__

    @collective
    def run(self, send, recv, *, stream=None, timeout=None):
        """Exchange and wait. Like ``start`` otherwise."""
        self.exchange(send, recv, False, stream, timeout)

    @collective
    def start(self, send, recv, *, stream=None, timeout=None):
        """Exchange without waiting. Raises InvalidArgumentError when a tensor is smaller than the plan needs or differs
        from it in dtype or row size; peers then get MismatchError."""
        return self.exchange(send, recv, True, stream, timeout)

    @collective
    def transpose(self):
        """Sends and receives swapped: the backward pass. Collective in the sense that every rank calls it in the same
        order as other ``plan_*`` calls; no communication. Raises InvalidArgumentError when send segments overlap."""
        cdef uint64_t number = self.comm.next_plan()
        cdef Exchange x
        x.plan = cpp_transpose(self.template.plan)
        x.call = self.template.call
        if x.call.op == Op.global_scatter:
            x.call.op = Op.global_gather
        elif x.call.op == Op.global_gather:
            x.call.op = Op.global_scatter
        return make_plan(self.comm, x, self.row_bytes, number)

    cdef object exchange(self, object send, object recv, bint async_op, object stream, object timeout):
        cdef Exchange x
        try:
            tensors = self.prepare(x, send, recv, async_op, stream, timeout)
            claim(recv, "recv")
        except BaseException as error:
            raise self.comm.refused(self.template.call, error)
        return self.comm.launch(x, async_op, tensors, recv, None, send)

    cdef object prepare(self, Exchange& x, object send, object recv, bint keep, object stream, object timeout):
        """What holds the memory; None: the tensors themselves."""
        cdef View sent, received
        x.plan = self.template.plan
        x.call = self.template.call
        x.call.stream.handle = NULL
        parse_call(&x.call, x.call.op, stream, timeout)
        if self.latest.view(x, send, recv, &sent, &received):
            return None
        tensors = view_pair(x, send, "send", recv, "recv", keep, &sent, &received)
        if x.call.memory != self.template.call.memory:
            raise InvalidArgumentError(f"send and recv are in {place_of(&sent, 'send')} memory, but plan {self.number} "
                                       f"was made for {memory_string(self.template.call.memory).decode()} memory")
        self.require(&sent, "send", send_extent(x.plan))
        self.require(&received, "recv", recv_extent(x.plan))
        self.latest.remember(x.call, send, &sent, recv, &received)
        return tensors

    cdef int require(self, const View* view, str name, size_t extent) except -1:
        if not is_dtype(view.dtype, self.template.call.dtype):
            raise InvalidArgumentError(f"{name} is {dtype_name(view.dtype)}, but plan {self.number} was made for "
                                       f"{dtype_string(self.template.call.dtype).decode()}")
        if self.row_bytes > 0 and view.row_bytes != self.row_bytes:
            raise InvalidArgumentError(f"a row of {name} {shape_text(view)} is {view.row_bytes} bytes, but plan "
                                       f"{self.number} was made for rows of {self.row_bytes} bytes")
        if <size_t> view.nbytes < extent:
            raise InvalidArgumentError(f"{name} {shape_text(view)} has {view.nbytes} bytes, but plan {self.number} "
                                       f"needs {extent}")
        return 0


cdef Plan make_plan(Communicator comm, const Exchange& x, int64_t row_bytes, uint64_t number):
    cdef Plan plan = Plan.__new__(Plan)
    plan.comm, plan.template, plan.row_bytes, plan.number = comm, x, row_bytes, number
    plan.template.call.plan = number
    plan.latest = _LatestPair.__new__(_LatestPair)
    return plan
