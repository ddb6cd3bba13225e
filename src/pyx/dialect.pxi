# The calls of other libraries. A Dialect has what differs from a communicator's own calls: names of arguments, classes
# of errors, the meaning of counts. It checks and starts in one call, so that an adapter adds hardly any time, and the
# peers are told of every refusal.


@cython.final
cdef class Dialect(_DialectArguments):
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

    @collective
    def alltoall(self, Communicator comm not None, recv, send, recv_counts=None, send_counts=None,
                 bint async_op=False, timeout=None):
        """Dim 0 of each tensor is divided by its counts, or equally where they are None or empty. The two sides may
        have rows of different sizes: only bytes have to match. Returns a Work with ``async_op``."""
        cdef Exchange x
        try:
            parse_call(&x.call, Op.alltoallv, None, timeout)
            tensors = self.prepare_alltoall(x, comm._rank, comm._size, recv, send, recv_counts, send_counts, async_op)
            self.claim(recv, self.recv)
        except BaseException as error:
            raise comm.refused(x.call, error)
        return comm.launch(x, async_op, tensors, recv, None)

    @collective
    def alltoall_list(self, Communicator comm not None, recvs, sends, bint async_op=False, timeout=None):
        """``sends[p]`` goes to rank p, ``recvs[p]`` comes from rank p. Empty ``recvs`` that are to be filled take one
        more round, in which the ranks tell each other the shapes; so they have to be empty on all ranks or on none."""
        cdef Exchange x
        if self.is_to_fill(recvs):
            return self.fill_list(comm, recvs, sends, async_op, timeout)
        try:
            parse_call(&x.call, Op.alltoall_list, None, timeout)
            self.require_list(recvs, self.recv, comm._size)
            self.require_list(sends, self.send, comm._size)
            tensors = self.prepare_list(x, comm._rank, comm._size, list(recvs), list(sends), async_op)
        except BaseException as error:
            raise comm.refused(x.call, error)
        return comm.launch(x, async_op, tensors, recvs, None)

    @collective
    def allgather_list(self, Communicator comm not None, recvs, send, bint async_op=False, timeout=None):
        """``recvs[p]`` comes from rank p; ``send`` may be this rank's own. Empty ``recvs`` that are to be filled become
        tensors like ``send``."""
        cdef Exchange x
        cdef list made = None
        try:
            parse_call(&x.call, Op.allgather, None, timeout)
            if self.is_to_fill(recvs):
                made = self.make_like(send, comm._size)
            else:
                self.require_list(recvs, self.recv, comm._size)
            outputs = list(recvs) if made is None else made
            tensors = self.prepare_gather(x, comm._rank, comm._size, outputs, send, async_op)
        except BaseException as error:
            raise comm.refused(x.call, error)
        work = comm.launch(x, async_op, tensors, recvs, None)
        if made is not None:
            recvs.extend(made)
        return work

    @collective
    def gather_list(self, Communicator comm not None, recvs, send, int root, bint async_op=False, timeout=None):
        """``recvs[p]`` of rank ``root`` comes from rank p, and is like ``send``; the other ranks have None. ``send``
        may be one of them."""
        cdef Exchange x
        try:
            parse_call(&x.call, Op.gather, None, timeout)
            outputs = None
            if comm._rank == root:
                self.require_list(recvs, self.recv, comm._size)
                outputs = list(recvs)
            tensors = self.prepare_gather_list(x, comm._rank, comm._size, outputs, send, root, async_op)
        except BaseException as error:
            raise comm.refused(x.call, error)
        return comm.launch(x, async_op, tensors, recvs, None)

    @collective
    def allgather(self, Communicator comm not None, recv, send, bint async_op=False, timeout=None):
        """Gather every rank's ``send`` in rank order; ``send`` may be this rank's part of ``recv``."""
        cdef Exchange x
        cdef View sent, received
        try:
            parse_call(&x.call, Op.allgather, None, timeout)
            tensors = self.view_two(recv, send, async_op, &received, &sent)
            if self.complex_as_real:
                settle_complex(&sent, &received)
            try:
                finish_allgather(x, comm._rank, comm._size, &sent, self.send, &received, self.recv)
            except InvalidArgumentError as error:
                raise self.counts_error(str(error)) from None
            self.claim(recv, self.recv)
        except BaseException as error:
            raise comm.refused(x.call, error)
        return comm.launch(x, async_op, tensors, recv, None)

    @collective
    def global_scatter(self, Communicator comm not None, x, local_count, global_count):
        """As Communicator.global_scatter, into a new tensor. Requires that the counts cover all rows of ``x``. The
        names of the arguments are Paddle's."""
        return self.global_exchange(comm, False, x, local_count, global_count)

    @collective
    def global_gather(self, Communicator comm not None, x, local_count, global_count):
        """The inverse of global_scatter with the same counts."""
        return self.global_exchange(comm, True, x, local_count, global_count)

    @collective
    def barrier(self, Communicator comm not None, bint async_op=False, timeout=None):
        """Block until every rank has called it. Returns a Work with ``async_op``."""
        cdef Exchange x
        try:
            parse_call(&x.call, Op.barrier, None, timeout)
        except BaseException as error:
            raise comm.refused(x.call, error)
        x.plan = plan_nothing(comm._rank, comm._size)
        return comm.launch(x, async_op, None, None, None)

    cdef object prepare_alltoall(self, Exchange& x, int rank, int size, object recv, object send, object recv_counts,
                                 object send_counts, bint keep):
        cdef View sent, received
        cdef CallCounts counts
        cdef int64_t unit
        self.parse_given(recv_counts, self.recv_counts, counts.from_())
        self.parse_given(send_counts, self.send_counts, counts.to())
        tensors = self.view_two(recv, send, keep, &received, &sent)
        if self.complex_as_real:
            settle_complex(&sent, &received)
        require_pair(&x.call, &sent, self.send, &received, self.recv)
        self.divide(&received, self.recv, self.recv_counts, size, counts.from_())
        self.divide(&sent, self.send, self.send_counts, size, counts.to())
        unit = sent.row_bytes
        if received.row_bytes != unit:  # then rows have two sizes, and both sides count in elements
            unit = sent.dtype.bits * sent.dtype.lanes // 8
            scale(counts.to(), sent.row_bytes // unit)
            scale(counts.from_(), received.row_bytes // unit)
        elif unit == 0:  # rows without bytes are the same, however many there are
            scale(counts.to(), 0)
            scale(counts.from_(), 0)
        if counts.to()[rank] != counts.from_()[rank]:
            raise self.misfit(f"{self.send} has {counts.to()[rank] * unit} bytes for this rank itself, but {self.recv} "
                              f"expects {counts.from_()[rank] * unit}")
        x.send, x.recv, x.call.unit_bytes = sent.data, received.data, unit
        lay_out(x, &sent, &received)
        x.plan = counts.plan(rank, size, unit, total_of(counts.to(), ""), total_of(counts.from_(), ""))
        return tensors

    cdef object prepare_list(self, Exchange& x, int rank, int size, list recvs, list sends, bint keep):
        cdef vector[View] sent, received
        cdef list send_names = self.entry_names(self.send, size), recv_names = self.entry_names(self.recv, size)
        tensors = self.view_lists(recvs, recv_names, sends, send_names, keep, received, sent)
        self.finish_list(x, rank, received, recv_names, sent, send_names)
        for i in range(size):
            self.claim(recvs[i], recv_names[i])
        return tensors

    cdef object prepare_gather(self, Exchange& x, int rank, int size, list recvs, object send, bint keep):
        cdef vector[View] sent, received
        cdef list recv_names = self.entry_names(self.recv, size)
        cdef size_t own = SIZE_MAX
        cdef int i
        tensors = self.view_lists(recvs, recv_names, [send], [self.send], keep, received, sent)
        if sent[0].nbytes == received[rank].nbytes and is_part(&sent[0], &received[rank], 0):
            own = rank  # it is in place already
        for i in range(size if self.equal else 0):
            if received[i].nbytes != sent[0].nbytes:
                raise self.misfit(f"{recv_names[i]} {shape_text(&received[i])} has {received[i].nbytes} bytes, but "
                                  f"every rank sends {sent[0].nbytes}, as much as {self.send} {shape_text(&sent[0])}")
        sent.resize(size, sent[0])
        self.finish_list(x, rank, received, recv_names, sent, [self.send] * size, own)
        for i in range(size):
            self.claim(recvs[i], recv_names[i])
        return tensors

    cdef object prepare_gather_list(self, Exchange& x, int rank, int size, list recvs, object send, int root,
                                    bint keep):
        cdef vector[View] sent, received
        cdef vector[size_t] send_bytes, recv_bytes
        cdef list names = self.entry_names(self.recv, size)
        cdef View one, nothing
        cdef int i, j
        tensors = self.view_lists(recvs or [], names, [send], [self.send], keep, received, sent)
        one = nothing = sent[0]
        nothing.nbytes = nothing.rows = nothing.shape[0] = 0
        nothing.ndim, nothing.contiguous = 1, True
        sent.assign(size, nothing)
        sent[root] = one
        received.resize(size, nothing)
        require_alike(&x.call, &one, self.send, &one, self.send)
        for i in range(size if rank == root else 0):
            require_alike(&x.call, &one, self.send, &received[i], names[i])
            if received[i].nbytes != one.nbytes:
                raise self.misfit(f"{names[i]} {shape_text(&received[i])} has {received[i].nbytes} bytes, but every "
                                  f"rank sends {one.nbytes}, as much as {self.send} {shape_text(&one)}")
            if overlap(&one, &received[i]) and not (i == rank and is_part(&one, &received[i], 0)):
                x.call.in_place = True  # it is copied before it is overwritten
            for j in range(i):
                if overlap(&received[i], &received[j]):
                    raise self.tensor_error(f"{names[j]} and {names[i]} share memory; receive into tensors of their "
                                            f"own")
            self.claim(recvs[i], names[i])
        for i in range(size):
            send_bytes.push_back(sent[i].nbytes)
            recv_bytes.push_back(received[i].nbytes)
            x.sends.push_back(sent[i].data)
            x.recvs.push_back(received[i].data)
        lay_out_list(x.send_layouts, sent)
        lay_out_list(x.recv_layouts, received)
        x.listed = True
        x.call.unit_bytes = one.dtype.bits * one.dtype.lanes // 8
        x.plan = cpp_plan_alltoall_list(rank, size, send_bytes, recv_bytes)
        return tensors

    cdef list view_lists(self, list recvs, list recv_names, list sends, list send_names, bint keep,
                         vector[View]& received, vector[View]& sent):
        """As view_two, for lists."""
        cdef size_t i
        cdef bint held = False
        received.resize(len(recvs))
        sent.resize(len(sends))
        tensors = []
        for i in range(received.size()):
            tensors.append(self.output_view(recvs[i], recv_names[i], keep, &received[i]))
            held = held or received[i].held
        for i in range(sent.size()):
            tensors.append(self.input_view(sends[i], send_names[i], keep, &sent[i]))
            held = held or sent[i].held
        for i in range(received.size() if held else 0):
            view_again(recvs[i], recv_names[i], True, keep, &received[i], tensors, i)
            require_output(&received[i], recv_names[i], recvs[i])
        for i in range(sent.size() if held else 0):
            view_again(sends[i], send_names[i], False, keep, &sent[i], tensors, received.size() + i)
            require_sendable(&sent[i], send_names[i])
        return tensors

    cdef int finish_list(self, Exchange& x, int rank, vector[View]& received, list recv_names, vector[View]& sent,
                         list send_names, size_t own=SIZE_MAX) except -1:
        """``own``: see require_disjoint."""
        cdef vector[size_t] send_bytes, recv_bytes
        cdef size_t i
        if self.complex_as_real:
            settle_complex_lists(sent, received)
        for i in range(sent.size()):
            require_alike(&x.call, &sent[0], send_names[0], &sent[i], send_names[i])
            require_alike(&x.call, &sent[0], send_names[0], &received[i], recv_names[i])
            send_bytes.push_back(sent[i].nbytes)
            recv_bytes.push_back(received[i].nbytes)
            x.sends.push_back(sent[i].data)
            x.recvs.push_back(received[i].data)
        require_disjoint(sent, send_names, received, recv_names, own)
        if send_bytes[rank] != recv_bytes[rank]:
            raise self.misfit(f"{send_names[rank]} has {send_bytes[rank]} bytes for this rank itself, but "
                              f"{recv_names[rank]} {shape_text(&received[rank])} expects {recv_bytes[rank]}")
        lay_out_list(x.send_layouts, sent)
        lay_out_list(x.recv_layouts, received)
        x.listed = True
        x.call.unit_bytes = sent[0].dtype.bits * sent[0].dtype.lanes // 8
        x.plan = cpp_plan_alltoall_list(rank, sent.size(), send_bytes, recv_bytes)
        return 0

    cdef list make_like(self, object send, int size):
        """Return ``size`` tensors of the shape, dtype and framework of ``send``."""
        cdef View like
        self.input_view(send, self.send, False, &like)
        made = []
        for _ in range(size):
            made.append(allocate_like(send, &like, like.rows))
        return made

    cdef int view_alike(self, list sends, vector[View]& sent) except -1:
        """Fill in the views of tensors that have one dtype and one memory."""
        cdef Call checked
        cdef list names = self.entry_names(self.send, len(sends))
        cdef size_t i
        sent.resize(len(sends))
        for i in range(sent.size()):
            self.input_view(sends[i], names[i], False, &sent[i])
            require_alike(&checked, &sent[0], names[0], &sent[i], names[i])
        return 0

    cdef object fill_list(self, Communicator comm, list recvs, object sends, bint async_op, object timeout):
        cdef Exchange first
        cdef vector[View] sent
        takes_operations(2, False)
        try:
            parse_call(&first.call, Op.exchange_counts, None, timeout)
            self.require_list(sends, self.send, comm._size)
            self.view_alike(list(sends), sent)
            given, wanted = prepare_shapes(first, comm, sent)
        except BaseException as error:
            raise comm.refused(first.call, error)
        comm.enter(Op.exchange)  # once for both halves, so that no other thread's call comes between them
        try:
            return self.fill_list_halves(comm, first, given, wanted, recvs, list(sends), async_op)
        finally:
            comm.leave()

    cdef object fill_list_halves(self, Communicator comm, Exchange& first, object given, object wanted, list recvs,
                                 list sends, bint async_op):
        cdef Exchange second
        cdef View like
        try:
            comm.launch(first, False, (given, wanted), None, None)
        except MismatchError as error:
            error.args = (f"{error} ({self.recv} is empty on rank {comm._rank}; it must be so on all or on none)",)
            raise
        second.call.op, second.call.deadline = Op.alltoall_list, first.call.deadline
        try:
            self.input_view(sends[0], self.send, False, &like)
            made = allocate_shapes(sends[0], &like, wanted)
            tensors = self.prepare_list(second, comm._rank, comm._size, made, sends, async_op)
        except BaseException as error:
            raise comm.refused(second.call, error)
        work = comm.launch(second, async_op, tensors, made, None)
        recvs.extend(made)
        return work

    cdef object global_exchange(self, Communicator comm, bint gather, object tensor, object local_count,
                                object global_count):
        cdef Exchange x
        cdef View sent
        cdef CountList counts
        cdef str name = "global_count" if gather else "local_count"
        try:
            parse_call(&x.call, Op.global_gather if gather else Op.global_scatter, None, None)
            self.parse_given(global_count if gather else local_count, name, counts)
            self.input_view(tensor, self.send, False, &sent)
            if total_of(counts, name) != sent.rows:
                raise self.misfit(f"{name} {list(counts)} sums to {sum(counts)}, but {self.send} {shape_text(&sent)} "
                                  f"has {sent.rows} rows")
            recv, tensors = prepare_global(x, comm, tensor, local_count, global_count, None, False)
        except BaseException as error:
            raise comm.refused(x.call, error)
        return comm.received(x, False, tensors, recv, None)


cdef void scale(CountList& counts, int64_t factor) noexcept:
    """Convert rows to elements. Their sum fits in 64 bits, because the tensor does."""
    cdef size_t i
    for i in range(counts.size()):
        counts[i] *= factor
