# What send and recv of a communicator do: messages between two ranks.


cdef class _Messages(_CommunicatorBase):
    cdef object message(self, Op op, object tensor, object peer, object tag, bint async_op, object stream,
                        object timeout):
        cdef Call call
        cdef View view
        cdef int other = -1
        cdef int64_t label = 0
        cdef bint known = False, sends = op == Op.send
        try:
            if sends or peer is not None:
                other = self.parse_rank(peer, "peer")
            label = parse_tag(tag)
            known = True
            parse_call(&call, op, stream, timeout)
            if operation_listener is not None:
                operation_listener(self, op_string(op).decode())
            holder = view_of(tensor, "tensor", not sends, async_op, &view, call.stream.handle)
            if sends:
                require_sendable(&view, "tensor")
            else:
                require_output(&view, "tensor", tensor)
            set_call_memory(&call, &view, "tensor")
            set_call_dtype(&call, &view)
            if not sends:
                claim(tensor, "tensor")
        except BaseException as error:
            raise self.message_refused(sends, other, label, known, error)
        return self.start_message(sends, view, other, label, call, async_op, holder, tensor)

    cdef object start_message(self, bint sends, const View& view, int peer, int64_t tag, Call& call, bint async_op,
                              object holder, object tensor):
        cdef CommPtr comm = self.live()
        cdef shared_ptr[CppWork] work
        cdef KeptLayouts layouts
        cdef When never
        cdef cbool done = False
        if self.compiled:
            wait_for_programs()
        call.asynchronous = async_op
        if not view.contiguous:
            layouts.push_back(layout_of(&view))
        try:
            with nogil:
                work = cpp_start_message(dereference(comm), sends, view.data, view.nbytes, peer, tag, call, layouts)
                if not async_op:
                    done = wait_slice(dereference(work), never)
            if not done and not async_op:
                PyErr_CheckSignals()
                finish_of(self, work, never)
        except BaseException:  # the message goes on
            if work.get() != NULL:
                self.keep_message(work, holder)
            raise
        if not async_op:
            return None if sends else dereference(work).source()
        self.keep_message(work, holder)
        return make_work(self, call, work, tensor, None)

    cdef int keep_message(self, const shared_ptr[CppWork]& work, object holder) except -1:
        flight = make_flight(work, holder)
        if self.messages:
            self.prune_messages()
        with cython.critical_section(self):
            if self.messages is None:
                self.messages = []
            self.messages.append(flight)
        return 0

    cdef object message_refused(self, bint sends, int peer, int64_t tag, bint known, object error):
        """Tell the other rank, if it is known, that this one does not take part. Returns the error to raise."""
        self.name_rank(error)
        cdef CommPtr comm = self.comm
        cdef string reason = reason_of(error)
        if known and comm.get() != NULL:
            try:
                with nogil:
                    dereference(comm).refuse_message(sends, peer, tag, reason)
            except Error:
                pass  # The communicator is broken or closed, so the peer raises anyway.
        return error

    cdef int parse_rank(self, object rank, str name) except -1:
        cdef int number = parse_int(rank, name)
        if number < 0 or number >= self._size:
            raise InvalidArgumentError(f"{name} is {number}, but the group has {self._size} ranks")
        return number


def wait_to_read(comm, tensors):
    """Wait until nothing in flight on the communicator writes these tensors. Calls that read tensors outside of the
    core need it, such as those that pack a list, because the core orders only its own reads and writes. It returns at
    once if nothing is in flight, and for tensors on a device, where streams order the reads. It skips a tensor that it
    cannot view, and does nothing for an object that is no communicator: the call itself refuses these."""
    cdef _CommunicatorBase base = comm if isinstance(comm, _CommunicatorBase) else None
    cdef CommPtr cpp
    cdef KeptLayouts layouts
    cdef View view
    if base is None or not (base.flights or base.messages):
        return
    cpp = base.comm
    if cpp.get() == NULL:
        return
    for tensor in tensors:
        try:
            holder = view_of(tensor, "tensor", False, False, &view)
            if memory_of(&view, "tensor") != Memory.host:
                continue
        except Exception:
            continue
        layouts.clear()
        if not view.contiguous:
            layouts.push_back(layout_of(&view))
        with nogil:
            cpp_wait_to_read(dereference(cpp), view.data, view.nbytes, layouts)
        del holder


cdef int64_t parse_tag(object tag) except? -1:
    try:
        return tag.__index__()
    except OverflowError:
        raise InvalidArgumentError(f"tag = {shown(tag)} does not fit in 64 bits") from None
    except (AttributeError, TypeError, AssertionError):
        raise InvalidArgumentError(f"tag is {shown(tag)}; pass an integer") from None
