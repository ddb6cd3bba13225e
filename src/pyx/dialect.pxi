# The calls of other libraries in one step: their names of the arguments, their classes of errors, their meaning of
# counts. What differs from a communicator's own calls is said here once, so that an adapter adds next to nothing to
# their time, and every refusal reaches the peers.


@cython.final
cdef class Dialect:
    """One function of another library, as its users know it.

    Args:
        tensor: the class of the library's tensors; nothing else is taken.
        send, recv, send_counts, recv_counts: what the library calls the arguments.
        type_error, counts_error, tensor_error: classes to raise for an argument of a wrong type, for counts that do not
            fit, and for a tensor that cannot take part. Children of InvalidArgumentError.
    """

    cdef object tensor, type_error, counts_error, tensor_error
    cdef str send, recv, send_counts, recv_counts
    cdef dict names     # argument -> the names of its entries

    def __cinit__(self, tensor, str send not None, str recv not None, str send_counts not None="",
                  str recv_counts not None="", *, type_error, counts_error, tensor_error):
        self.tensor = tensor
        self.send, self.recv, self.send_counts, self.recv_counts = send, recv, send_counts, recv_counts
        self.type_error, self.counts_error, self.tensor_error = type_error, counts_error, tensor_error
        self.names = {}

    @collective
    def alltoall(self, Communicator comm not None, recv, send, recv_counts=None, send_counts=None,
                 bint async_op=False, timeout=None):
        """Dim 0 of each tensor is divided by its counts, or equally where they are None or empty. The two sides may
        have rows of different sizes: only bytes have to match. Returns a Work with ``async_op``."""
        cdef Exchange x
        try:
            parse_call(&x.call, Op.alltoallv, None, timeout)
            tensors = self.prepare_alltoall(x, comm._rank, comm._size, recv, send, recv_counts, send_counts, async_op)
            claim(recv, self.recv)
        except BaseException as error:
            raise comm.refused(x.call, error)
        return comm.launch(x, async_op, tensors, recv, None)

    @collective
    def alltoall_list(self, Communicator comm not None, recvs, sends, bint async_op=False, timeout=None):
        """``sends[p]`` goes to rank p, ``recvs[p]`` comes from rank p. Both are lists."""
        cdef Exchange x
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
        """``recvs[p]`` comes from rank p; ranks may send different amounts."""
        cdef Exchange x
        try:
            parse_call(&x.call, Op.allgather, None, timeout)
            self.require_list(recvs, self.recv, comm._size)
            tensors = self.prepare_list(x, comm._rank, comm._size, list(recvs), [send] * comm._size, async_op)
        except BaseException as error:
            raise comm.refused(x.call, error)
        return comm.launch(x, async_op, tensors, recvs, None)

    @collective
    def allgather(self, Communicator comm not None, recv, send, bint async_op=False, timeout=None):
        """Every rank's ``send`` in rank order; ``send`` may be this rank's part of ``recv``."""
        cdef Exchange x
        cdef View sent, received
        try:
            parse_call(&x.call, Op.allgather, None, timeout)
            tensors = self.view_two(recv, send, async_op, &received, &sent)
            settle_complex(&sent, &received)
            try:
                finish_allgather(x, comm._rank, comm._size, &sent, self.send, &received, self.recv)
            except InvalidArgumentError as error:
                raise self.counts_error(str(error)) from None
            claim(recv, self.recv)
        except BaseException as error:
            raise comm.refused(x.call, error)
        return comm.launch(x, async_op, tensors, recv, None)

    @collective
    def barrier(self, Communicator comm not None, bint async_op=False, timeout=None):
        """Every rank has come here. Returns a Work with ``async_op``."""
        cdef Exchange x
        try:
            parse_call(&x.call, Op.barrier, None, timeout)
        except BaseException as error:
            raise comm.refused(x.call, error)
        x.plan = plan_nothing(comm._rank, comm._size)
        return comm.launch(x, async_op, None, None, None)

    cdef object view_two(self, object recv, object send, bint keep, View* received, View* sent):
        """As view_two of operations.pxi."""
        receiver = self.output_view(recv, self.recv, keep, received)
        sender = self.input_view(send, self.send, keep, sent)
        if sent.held and not received.held:
            receiver = self.output_view(recv, self.recv, keep, received)
        return sender, receiver

    cdef object input_view(self, object obj, str name, bint keep, View* view):
        """The view of a tensor to send, and the object that holds it."""
        if not isinstance(obj, self.tensor):
            raise self.type_error(f"{name} is {type_name(obj)}, not {type_name_of(self.tensor)}")
        try:
            holder = view_of(obj, name, False, keep, view)
        except InvalidArgumentError as error:
            raise self.tensor_error(str(error)) from error
        require_contiguous(view, name)
        return holder

    cdef object output_view(self, object obj, str name, bint keep, View* view):
        if not isinstance(obj, self.tensor):
            raise self.type_error(f"{name} is {type_name(obj)}, not {type_name_of(self.tensor)}")
        try:
            refuse_recorded(recorder_of(obj), obj, name)
            holder = view_of(obj, name, True, keep, view)
        except InvalidArgumentError as error:
            raise self.tensor_error(str(error)) from error
        require_output(view, name, obj)
        return holder

    cdef object prepare_alltoall(self, Exchange& x, int rank, int size, object recv, object send, object recv_counts,
                                 object send_counts, bint keep):
        cdef View sent, received
        cdef CallCounts counts
        cdef int64_t unit
        self.parse_given(recv_counts, self.recv_counts, counts.from_())
        self.parse_given(send_counts, self.send_counts, counts.to())
        tensors = self.view_two(recv, send, keep, &received, &sent)
        settle_complex(&sent, &received)
        require_pair(&x.call, &sent, self.send, &received, self.recv)
        self.divide(&received, self.recv, self.recv_counts, size, counts.from_())
        self.divide(&sent, self.send, self.send_counts, size, counts.to())
        unit = sent.row_bytes
        if received.row_bytes != unit:  # Then rows mean two things, and elements are what both sides count in.
            unit = sent.dtype.bits * sent.dtype.lanes // 8
            scale(counts.to(), sent.row_bytes // unit)
            scale(counts.from_(), received.row_bytes // unit)
        elif unit == 0:  # however many rows of nothing there are, they are the same
            scale(counts.to(), 0)
            scale(counts.from_(), 0)
        if counts.to()[rank] != counts.from_()[rank]:
            raise self.counts_error(f"{self.send} has {counts.to()[rank] * unit} bytes for this rank itself, but "
                                    f"{self.recv} expects {counts.from_()[rank] * unit}")
        x.send, x.recv, x.call.unit_bytes = sent.data, received.data, unit
        x.plan = counts.plan(rank, size, unit, total_of(counts.to(), ""), total_of(counts.from_(), ""))
        return tensors

    cdef int parse_given(self, object given, str name, CountList& counts) except -1:
        if given is None:
            return 0
        try:
            return parse_counts(given, name, counts)
        except InvalidArgumentError as error:
            raise self.type_error(str(error)) from None

    cdef int divide(self, const View* view, str name, str counts_name, int size, CountList& counts) except -1:
        """The rows of dim 0 for each rank."""
        cdef int64_t total = 0, count
        if view.ndim == 0:
            raise self.counts_error(f"{name} is 0-d and cannot be divided; pass {name}.reshape(1)")
        if counts.empty():
            if view.rows % size != 0:
                raise self.counts_error(f"{name} {shape_text(view)} has {view.rows} rows, which {size} ranks cannot "
                                        f"share equally")
            counts.assign(size, view.rows // size)
            return 0
        if counts.size() != <size_t> size:
            raise self.counts_error(f"{counts_name} has {counts.size()} entries, but the group has {size} ranks")
        for count in counts:
            if count < 0:
                raise self.counts_error(f"{counts_name} {list(counts)} has a negative entry")
            if not add(total, count, total):
                break
        if total != view.rows:
            raise self.counts_error(f"{counts_name} {list(counts)} sums to {sum(counts)}, but {name} "
                                    f"{shape_text(view)} has {view.rows} rows")
        return 0

    cdef int require_list(self, object items, str name, int size) except -1:
        if not isinstance(items, list):
            raise self.type_error(f"{name} is {type_name(items)}, not a list of {type_name_of(self.tensor)}")
        for i, item in enumerate(items):
            if not isinstance(item, self.tensor):
                raise self.type_error(f"{name}[{i}] is {type_name(item)}, not {type_name_of(self.tensor)}")
        if len(items) != size:
            raise self.counts_error(f"{name} has {len(items)} tensors, but the group has {size} ranks")
        return 0

    cdef list entry_names(self, str name, int size):
        """Made once: formatting 64 names costs more than the exchange."""
        if len(self.names.get(name, ())) != size:
            self.names[name] = [f"{name}[{i}]" for i in range(size)]
        return self.names[name]

    cdef object prepare_list(self, Exchange& x, int rank, int size, list recvs, list sends, bint keep):
        cdef vector[View] sent, received
        cdef vector[size_t] send_bytes, recv_bytes
        cdef bint held = False
        cdef int i
        cdef list send_names = self.entry_names(self.send, size), recv_names = self.entry_names(self.recv, size)
        sent.resize(size)
        received.resize(size)
        tensors = []
        for i in range(size):
            tensors.append(self.output_view(recvs[i], recv_names[i], keep, &received[i]))
            tensors.append(self.input_view(sends[i], send_names[i], keep, &sent[i]))
            held = held or received[i].held or sent[i].held
        for i in range(size if held else 0):
            view_again(recvs[i], recv_names[i], True, keep, &received[i], tensors, 2 * i)
            view_again(sends[i], send_names[i], False, keep, &sent[i], tensors, 2 * i + 1)
            require_contiguous(&sent[i], send_names[i])
            require_output(&received[i], recv_names[i], recvs[i])
        settle_complex_lists(sent, received)
        for i in range(size):
            require_alike(&x.call, &sent[0], send_names[0], &sent[i], send_names[i])
            require_alike(&x.call, &sent[0], send_names[0], &received[i], recv_names[i])
            send_bytes.push_back(sent[i].nbytes)
            recv_bytes.push_back(received[i].nbytes)
            x.sends.push_back(sent[i].data)
            x.recvs.push_back(received[i].data)
        require_disjoint(sent, self.send, received, self.recv)
        if send_bytes[rank] != recv_bytes[rank]:
            raise self.counts_error(f"{self.send} has {send_bytes[rank]} bytes for this rank itself, but "
                                    f"{self.recv}[{rank}] {shape_text(&received[rank])} expects {recv_bytes[rank]}")
        x.listed = True
        x.call.unit_bytes = sent[0].dtype.bits * sent[0].dtype.lanes // 8
        x.plan = cpp_plan_alltoall_list(rank, size, send_bytes, recv_bytes)
        claim_all(recvs, recv_names)
        return tensors


cdef str type_name_of(object kind):
    return f"{kind.__module__}.{kind.__qualname__}"


cdef void scale(CountList& counts, int64_t factor) noexcept:
    """Rows to elements. All of them together fit in 64 bits, because the tensor does."""
    cdef size_t i
    for i in range(counts.size()):
        counts[i] *= factor


cdef bint is_half_of(DLDataType part, DLDataType whole) noexcept:
    """Whether ``whole`` is complex and made of two of ``part``."""
    return (whole.code == kDLComplex and part.code == kDLFloat and 2 * part.bits == whole.bits
            and whole.lanes == 1 and part.lanes == 1)


cdef void settle_complex(View* a, View* b) noexcept:
    """A complex number is two real ones: where one side is real, both are."""
    if is_half_of(a.dtype, b.dtype):
        b.dtype = a.dtype
    elif is_half_of(b.dtype, a.dtype):
        a.dtype = b.dtype


cdef void settle_complex_lists(vector[View]& sent, vector[View]& received) noexcept:
    cdef View* real = NULL
    cdef size_t i
    for i in range(sent.size()):
        if sent[i].dtype.code == kDLFloat:
            real = &sent[i]
        elif received[i].dtype.code == kDLFloat:
            real = &received[i]
    if real == NULL:
        return
    for i in range(sent.size()):
        settle_complex(real, &sent[i])
        settle_complex(real, &received[i])
