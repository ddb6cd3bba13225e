# Plans that run many times.


# The tensors that this rank has in a run.
cdef enum class Sides:
    both
    one_or_both     # recv is None: the result goes into send
    only_send       # it is read
    only_recv       # it is written; a broadcast gets it as the first argument


@cython.final
cdef class Plan:
    """A checked exchange that can run many times, made by ``Communicator.plan_*``. Counts, dtype and row size are
    fixed; tensors may change from run to run if they are at least as large. ``recv`` is None where the planned call
    takes none, and so is ``send``."""

    cdef Communicator comm
    cdef Exchange template      # the plan and the call, without buffers
    cdef int64_t row_bytes      # the bytes of a row of every tensor; 0 where rows are not the unit
    cdef Sides sides
    cdef _CheckedPair checked     # of the runs
    cdef readonly uint64_t number
    cdef object __weakref__

    def __repr__(self):
        return (f"<Plan {self.number}: {op_string(self.template.call.op).decode()} of "
                f"{dtype_string(self.template.call.dtype).decode()}, sends {send_extent(self.template.plan)} bytes, "
                f"receives {recv_extent(self.template.plan)}, rank {self.comm._rank} of {self.comm._size}>")

    @collective
    def run(self, send, recv=None, *, stream=None, timeout=None):
        """Exchange and wait. Otherwise as ``start``."""
        self.exchange(send, recv, False, stream, timeout)

    @collective
    def start(self, send, recv=None, *, stream=None, timeout=None):
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
        elif x.call.op == Op.gather:
            x.call.op = Op.scatter
        elif x.call.op == Op.scatter:
            x.call.op = Op.gather
        x.split_axis, x.concat_axis = self.template.concat_axis, self.template.split_axis
        x.send_shape, x.recv_shape = self.template.recv_shape, self.template.send_shape
        return make_plan(self.comm, x, self.row_bytes, number, transposed(self.sides))

    cdef object exchange(self, object send, object recv, bint async_op, object stream, object timeout):
        cdef Exchange x
        try:
            if self.sides == Sides.both:
                tensors = self.prepare(x, send, recv, async_op, stream, timeout)
            else:
                send, recv, tensors = self.prepare_one(x, send, recv, async_op, stream, timeout)
            if recv is not None:
                claim(recv, "recv")
        except BaseException as error:
            raise self.comm.refused(self.template.call, error)
        return self.comm.launch(x, async_op, tensors, recv, None, send)

    cdef object prepare_one(self, Exchange& x, object send, object recv, bint keep, object stream, object timeout):
        """Prepare a run in which this rank may have one tensor only. Returns the tensor to read, the one to write, and
        the objects that hold the memory."""
        cdef View view
        cdef bint writes = self.sides != Sides.only_send
        if self.sides == Sides.one_or_both and recv is not None and recv is not send:
            return send, recv, self.prepare(x, send, recv, keep, stream, timeout)
        if send is not None and recv is not None and recv is not send:
            raise InvalidArgumentError("both send and recv are given, but this rank has only one of them")
        tensor, name = (recv, "recv") if send is None else (send, "send")
        x.plan = self.template.plan
        x.call = self.template.call
        x.call.stream.handle = NULL
        parse_call(&x.call, x.call.op, stream, timeout)
        holder = view_in_place(x, tensor, name, writes, keep, &view)
        self.require_memory(x, &view, name, f"{name} is")
        self.require(&view, name, max(send_extent(x.plan), recv_extent(x.plan)))
        return tensor, tensor if writes else None, holder

    cdef object prepare(self, Exchange& x, object send, object recv, bint keep, object stream, object timeout):
        """Prepare a run. Returns the objects that hold the memory; None: the tensors themselves."""
        cdef View sent, received
        x.plan = self.template.plan
        x.call = self.template.call
        x.call.stream.handle = NULL
        x.call.in_place = False
        x.split_axis, x.concat_axis = self.template.split_axis, self.template.concat_axis
        parse_call(&x.call, x.call.op, stream, timeout)
        if not is_divided(x) and self.checked.view(x, send, recv, &sent, &received):
            return None
        tensors = view_pair(x, send, "send", recv, "recv", keep, &sent, &received)
        self.require_memory(x, &sent, "send", "send and recv are")
        self.require(&sent, "send", send_extent(x.plan))
        self.require(&received, "recv", recv_extent(x.plan))
        if is_divided(x):
            self.require_shape(&sent, "send", self.template.send_shape)
            self.require_shape(&received, "recv", self.template.recv_shape)
        self.checked.remember(x.call, send, &sent, recv, &received)
        return tensors

    cdef int require_memory(self, const Exchange& x, const View* view, str name, str which) except -1:
        if x.call.memory != self.template.call.memory:
            raise InvalidArgumentError(f"{which} in {place_of(view, name)} memory, but plan {self.number} was made "
                                       f"for {memory_string(self.template.call.memory).decode()} memory")
        return 0

    cdef int require_shape(self, const View* view, str name, const vector[int64_t]& shape) except -1:
        cdef size_t i
        cdef bint alike = <size_t> view.ndim == shape.size()
        for i in range(shape.size() if alike else 0):
            alike = alike and view.shape[i] == shape[i]
        if not alike:
            raise InvalidArgumentError(f"{name} is of shape {shape_text(view)}, but plan {self.number}, which divides "
                                       f"tensors along an axis, was made for {tuple(shape)}")
        return 0

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


cdef Sides transposed(Sides sides):
    return Sides.only_recv if sides == Sides.only_send else Sides.only_send if sides == Sides.only_recv else sides


cdef Plan make_plan(_CommunicatorBase comm, const Exchange& x, int64_t row_bytes, uint64_t number, Sides sides):
    cdef Plan plan = Plan.__new__(Plan)
    plan.comm, plan.template, plan.row_bytes, plan.number = <Communicator> comm, x, row_bytes, number
    plan.sides = sides
    plan.template.call.plan = number
    plan.checked = _CheckedPair.__new__(_CheckedPair)
    return plan
