# The base class of Dialect: it checks arguments, with the names and the classes of errors of the other library.


# See Dialect for the meaning of the arguments.
cdef class _DialectArguments:
    cdef object tensor, type_error, counts_error, tensor_error, sequence
    cdef str send, recv, send_counts, recv_counts, order
    cdef bint complex_as_real, differentiable, fills, equal
    cdef dict names     # argument -> the names of its entries

    def __cinit__(self, tensor, str send not None, str recv not None, str send_counts not None="",
                  str recv_counts not None="", *, type_error, counts_error, tensor_error, sequence=list,
                  str order not None="", bint complex_as_real=False, bint differentiable=False, bint fills=False,
                  bint equal=False):
        self.tensor = tensor
        self.send, self.recv, self.send_counts, self.recv_counts = send, recv, send_counts, recv_counts
        self.type_error, self.counts_error, self.tensor_error = type_error, counts_error, tensor_error
        self.sequence, self.order, self.complex_as_real = sequence, order, complex_as_real
        self.differentiable, self.fills, self.equal = differentiable, fills, equal
        self.names = {}

    cdef object view_two(self, object recv, object send, bint keep, View* received, View* sent):
        """As view_two in operation_arguments.pxi."""
        receiver = self.output_view(recv, self.recv, keep, received)
        sender = self.input_view(send, self.send, keep, sent)
        if sent.held and not received.held:
            receiver = self.output_view(recv, self.recv, keep, received)
        return sender, receiver

    cdef object input_view(self, object obj, str name, bint keep, View* view):
        """Fill in the view of a tensor to send. Returns the object that holds its memory."""
        self.require_tensor(obj, name)
        try:
            holder = view_of(obj, name, False, keep, view)
        except InvalidArgumentError as error:
            raise self.tensor_error(str(error)) from error
        require_sendable(view, name)
        return holder

    cdef object output_view(self, object obj, str name, bint keep, View* view):
        self.require_tensor(obj, name)
        try:
            if not self.differentiable:
                refuse_recorded(recorder_of(obj), obj, name)
            holder = view_of(obj, name, True, keep, view)
        except InvalidArgumentError as error:
            raise self.tensor_error(str(error)) from error
        require_output(view, name, obj)
        return holder

    cdef int claim(self, object tensor, str name) except -1:
        return mark_written(tensor) if self.differentiable else claim(tensor, name)

    cdef object misfit(self, str text):
        """Return the error for counts and tensors that do not fit each other."""
        return self.counts_error(f"{text} (the order of this call is {self.order})" if self.order else text)

    cdef int parse_given(self, object given, str name, CountList& counts) except -1:
        if given is None:
            return 0
        try:
            return parse_counts(given, name, counts)
        except InvalidArgumentError as error:
            raise self.type_error(str(error)) from None

    cdef int divide(self, const View* view, str name, str counts_name, int size, CountList& counts) except -1:
        """Divide the rows of dim 0 among the ranks, by the counts or equally."""
        cdef int64_t total = 0, count
        if view.ndim == 0:
            raise self.misfit(f"{name} is 0-d and cannot be divided; pass {name}.reshape(1)")
        if counts.empty():
            if view.rows % size != 0:
                raise self.misfit(f"{name} {shape_text(view)} has {view.rows} rows, which {size} ranks cannot share "
                                  f"equally")
            counts.assign(size, view.rows // size)
            return 0
        if counts.size() != <size_t> size:
            raise self.misfit(f"{counts_name} has {counts.size()} entries, but the group has {size} ranks")
        for count in counts:
            if count < 0:
                raise self.misfit(f"{counts_name} {list(counts)} has a negative entry")
            if not add(total, count, total):
                break
        if total != view.rows:
            raise self.misfit(f"{counts_name} {list(counts)} sums to {sum(counts)}, but {name} {shape_text(view)} has "
                              f"{view.rows} rows")
        return 0

    cdef int require_tensor(self, object obj, str name) except -1:
        if not isinstance(obj, self.tensor):
            raise self.type_error(f"{name} is {type_name(obj)}, not {type_name_of(self.tensor)}")
        return 0

    cdef int require_list(self, object items, str name, int size) except -1:
        if not isinstance(items, self.sequence):
            raise self.type_error(f"{name} is {type_name(items)}, not a list of {type_name_of(self.tensor)}")
        for i, item in enumerate(items):
            if not isinstance(item, self.tensor):
                raise self.type_error(f"{name}[{i}] is {type_name(item)}, not {type_name_of(self.tensor)}")
        if len(items) != size:
            raise self.misfit(f"{name} has {len(items)} tensors, but the group has {size} ranks")
        return 0

    cdef list entry_names(self, str name, int size):
        """Return the names of the entries of a list. They are cached, because formatting many names costs more than the
        exchange."""
        if len(self.names.get(name, ())) != size:
            self.names[name] = [f"{name}[{i}]" for i in range(size)]
        return self.names[name]

    cdef bint is_to_fill(self, object recvs):
        return self.fills and isinstance(recvs, list) and len(recvs) == 0


cdef str type_name_of(object kind):
    return f"{kind.__module__}.{kind.__qualname__}"
