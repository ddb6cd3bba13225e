# The communicator: each method converts its arguments, then makes one call into the core. Those of most collectives are
# generated: collectives.pyi.


@cython.final
cdef class Communicator(_Collectives):
    """A rank's membership in a group of ranks. Every member makes the same sequence of calls. Use as a context manager
    or call close(). Counts and displacements are in dim-0 rows of the tensor (elements for 1-D tensors).

    Ctrl-C interrupts every call within 100 ms. An interrupted operation goes on: the communicator keeps its tensors,
    which must not be touched before a later barrier(), and stays usable."""

    @property
    def rank(self):
        """This rank's number in the group."""
        return self._rank

    @property
    def size(self):
        """The number of ranks in the group."""
        return self._size

    @property
    def endpoint(self):
        """The Endpoint that made this communicator by connect(); None for others."""
        return self._endpoint

    @property
    def generation(self):
        """The generation of the group of a communicator of Endpoint.connect(); None for others."""
        return self._generation

    @property
    def handles(self):
        """The handles of all ranks of a communicator of Endpoint.connect(), by rank; None for others."""
        return None if self._handles is None else list(self._handles)

    @property
    def joined(self):
        """The ranks that are new: those whose former group is not that of the lowest rank that had one. The same list
        on all ranks; empty in the first generation."""
        return list(self._joined or ())

    @property
    def timeout(self):
        """Default deadline of every operation in seconds. A new value is for the operations that this rank starts from
        then on, and for the communicators that it derives."""
        return dereference(self.live()).timeout_seconds()

    @timeout.setter
    def timeout(self, seconds):
        dereference(self.live()).set_timeout_seconds(parse_timeout(seconds))

    @property
    def closed(self):
        """Whether close() was called, or a ``with`` block was left by an exception."""
        return self.comm.get() == NULL or dereference(self.comm).closed()

    @property
    def broken(self):
        """Whether a rank was lost, a deadline passed or abort() was called, here or at a peer; see shrink(). Once the
        stream of a device operation without a Work is synchronised: whether something ended the operation."""
        return self.comm.get() != NULL and dereference(self.comm).broken()

    def __repr__(self):
        state = " closed" if self.closed else " broken" if self.broken else ""
        return f"<Communicator rank {self._rank} of {self._size}{state}>"

    @collective
    def allgather_views(self, tensor, like="numpy", *, timeout=None):
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
        cdef Call call
        cdef View view
        try:
            parse_call(&call, Op.allgather_views, None, timeout)
            framework = parse_like(like)
            holder = view_of(tensor, "tensor", False, False, &view)
            require_contiguous(&view, "tensor")
            if memory_of(&view, "tensor") != Memory.host:
                raise UnsupportedError(f"tensor is in {place_of(&view, 'tensor')} memory, which peers cannot look at; "
                                       f"pass a tensor of empty(), or use allgather()")
            set_call_dtype(&call, &view)
            require_kept(framework, view.dtype)  # before the peers get their views
        except BaseException as error:
            raise self.refused(call, error)
        views = self.look(call, view, framework)
        del holder  # the memory is needed until here
        return views

    cdef object look(self, const Call& call, const View& view, object framework):
        """Start the operation and wait for it. After Ctrl-C it goes on, and this rank releases its views."""
        cdef CommPtr comm
        cdef ViewsPtr started
        cdef shared_ptr[CppWork] work
        cdef When never
        cdef vector[int64_t] shape
        shape.assign(&view.shape[0], &view.shape[0] + view.ndim)
        self.enter(call.op)
        try:
            comm = self.live()
            count_operation()
            with nogil:
                started = start_views(dereference(comm), view.data, call.dtype, shape, call.deadline)
            views = make_views(started, view.dtype, framework, self)
            work = dereference(started).work()
            finish_of(self, work, never)
            return views
        except Error:
            note_failed()
            raise
        finally:
            self.leave()

    @collective
    def exchange(self, send, send_counts, *, stream=None, timeout=None):
        """alltoallv that negotiates the receive counts and allocates the output in the framework of ``send`` and on its
        device. Returns (recv, recv_counts). For JAX arrays on a device it waits until all data has arrived."""
        cdef Exchange first
        takes_operations(2, False)
        try:
            parse_call(&first.call, Op.exchange_counts, stream, timeout)
            given, wanted = prepare_counts(first, self, send, send_counts)
        except BaseException as error:
            raise self.refused(first.call, error)
        self.enter(Op.exchange)  # one entry for both halves, so that no other thread's call comes between them
        try:
            return self.exchange_halves(first, send, given, wanted), wanted
        finally:
            self.leave()

    cdef object exchange_halves(self, Exchange& first, object send, object given, object wanted):
        cdef Exchange second
        self.launch(first, False, (given, wanted), None, None)
        second.call = first.call
        second.call.op = Op.exchange
        try:
            recv, tensors = prepare_exchange(second, self, send, given, wanted)
            convert = convert_like(send)
        except BaseException as error:
            raise self.refused(second.call, error)
        return self.received(second, False, tensors, recv, convert)

    @collective
    def reshard(self, send, recv, shape, src, dst, *, bint async_op=False, stream=None, timeout=None):
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
        cdef Exchange x
        cdef _Tensors sent, received
        x.call.op = Op.reshard
        try:
            parse_call(&x.call, Op.reshard, stream, timeout)
            sent, received = side_of_tensors([send], "send", False), side_of_tensors([recv], "recv", False)
            prepare_reshard(x, self, sent, received, shape, src, dst, async_op)
            claim_parts(received)
        except BaseException as error:
            raise self.refused(x.call, error)
        return run_reshard(self, x, async_op, sent, received, recv)

    @collective
    def plan_reshard(self, shape, src, dst, dtype="float32"):
        """A reusable reshard(); see plan_alltoallv. Its runs get this rank's parts: ``plan.run(send, recv)``."""
        cdef uint64_t number = self.next_plan()
        cdef ReshardingList tensors
        cdef Numbers entries
        cdef DLDataType parsed = parse_dtype(dtype)
        parse_shape(shape, entries)
        tensors.add(entries, parse_sharding(src, "src", entries, self._size),
                    parse_sharding(dst, "dst", entries, self._size), core_dtype(parsed))
        return make_reshard_plan(self, tensors, [triple_of(dtype)], False, number)

    @collective
    def plan_reshard_all(self, tensors):
        """A reusable reshard() of many tensors at once: a list of (shape, src, dst, dtype), the same on all ranks. All
        of them are one operation, with one comparison of the ranks' arguments. Its runs get lists of this rank's parts,
        with None where it has none: ``plan.run(sends, recvs)``."""
        cdef uint64_t number = self.next_plan()
        cdef ReshardingList given
        tensors = list(tensors) if hasattr(tensors, "__iter__") else tensors
        add_reshardings(given, tensors, self._size)
        return make_reshard_plan(self, given, [triple_of(one[3]) for one in tensors], True, number)

    @collective
    def barrier(self, *, timeout=None):
        """Block until every rank has called it."""
        cdef Exchange x
        try:
            parse_call(&x.call, Op.barrier, None, timeout)
        except BaseException as error:
            raise self.refused(x.call, error)
        x.plan = plan_nothing(self._rank, self._size)
        self.launch(x, False, None, None, None)
        self.prune()  # rows of a dropped Work may still have to be copied, or summed

    @collective
    def split(self, color, key=0, *, timeout=None):
        """Collective. Ranks of one color form a group ordered by (key, rank); a negative color gives None."""
        cdef Call call
        cdef int color_, key_
        try:
            parse_call(&call, Op.split, None, timeout)
            color_, key_ = parse_int(color, "color"), parse_int(key, "key")
        except BaseException as error:
            raise self.refused(call, error)
        return wrap(self.run_control(Op.split, task_split(self.live(), color_, key_, call.deadline)).communicator)

    @collective
    def group(self, ranks, *, timeout=None):
        """Collective, with the same list on all ranks; rank i of the result is ``ranks[i]``. None for ranks not in the
        list."""
        cdef Call call
        cdef vector[int] members
        try:
            parse_call(&call, Op.group, None, timeout)
            members = parse_ranks(ranks, self._size)
        except BaseException as error:
            raise self.refused(call, error)
        return wrap(self.run_control(Op.group, task_group(self.live(), members, call.deadline)).communicator)

    def shrink(self, timeout=None):
        """Return a working communicator of the ranks that are alive. Collective among them; works on a broken
        communicator too."""
        cdef Call call
        parse_call(&call, Op.shrink, None, timeout)
        return wrap(self.run_control(Op.shrink, task_shrink(self.live(), call.deadline)).communicator)

    def recover(self, timeout=None):
        """Return the communicator of the next generation of an elastic job (``a2a.init(elastic=True)``): of all ranks,
        those that were started again included. Collective among them: the survivors call recover(), a rank that was
        started again calls init(). ``joined`` of the result lists the ranks that are new. This communicator is aborted.
        Raises PeerLostError when a rank has ended and will not be started again, TimeoutError naming the ranks that do
        not come, UnsupportedError for a communicator that is not of an elastic job."""
        if self._endpoint is None:
            raise UnsupportedError("recover: this communicator is not of an elastic job; make it by "
                                   "a2a.init(elastic=True), or connect its survivors by Endpoint.connect()")
        return self._endpoint.recover(self, timeout)

    @collective
    def allgather_bytes(self, mine, *, timeout=None):
        """Return every rank's byte string in rank order. For small control traffic."""
        cdef Call call
        try:
            parse_call(&call, Op.allgather_bytes, None, timeout)
            if not isinstance(mine, bytes):
                raise InvalidArgumentError(f"mine is {type_name(mine)}; pass bytes")
        except BaseException as error:
            raise self.refused(call, error)
        return self.run_control(Op.allgather_bytes, task_allgather_bytes(self.live(), mine, call.deadline)).strings

    def empty(self, shape, dtype="float32", like="numpy"):
        """Allocate an uninitialised tensor in shared memory. From such an input to any output bytes go with one copy.
        ``dtype`` is a name ("bfloat16", "float8_e4m3fn", ...) or a dtype of a framework; ``like`` is a framework's name
        or a tensor of it. The memory lives until the tensor is gone, also after close(). Raises AbortedError on a
        closed communicator."""
        if dereference(self.live()).closed():
            raise AbortedError("empty: the communicator is closed, or was inherited by a forked child")
        return empty_like(like, parse_dtype(dtype), shape)

    @collective
    def connect(self, device, *, timeout=None):
        """Collective. Connect to the peers for operations on tensors of ``device``, such as "cuda:0"; without it the
        first such operation does. Ranks may have different devices, but each has one for all its operations. Raises
        UnsupportedError when a vendor library is missing."""
        cdef Call call
        cdef Memory memory
        try:
            parse_call(&call, Op.connect, None, timeout)
            memory = parse_device(device, &call.device)
        except BaseException as error:
            raise self.refused(call, error)
        self.run_control(Op.connect, task_connect(self.live(), memory, call.device, call.deadline))

    def adopt(self, communicator, memory="cuda"):
        """Run operations on "cuda" or "npu" memory over ``communicator``, the address of an ncclComm_t or HcclComm of
        the same ranks. The caller keeps its ownership, and it must outlive this one. Every rank calls this, before the
        first such operation."""
        if not isinstance(communicator, int) or isinstance(communicator, bool) or not 0 < communicator < 2**64:
            raise InvalidArgumentError(f"communicator is {shown(communicator)}; pass the address of a communicator")
        dereference(self.live()).adopt(parse_memory(memory), <void*> <uintptr_t> communicator)

    @collective
    def abort(self, reason="abort() was called"):
        """Break the communicator everywhere: operations in flight and later ones raise AbortedError, with a reason that
        may be a text or any other object, such as an exception."""
        cdef string text = b"abort() was called"
        try:
            text = reason_of(reason)
        finally:
            if self.comm.get() != NULL:
                dereference(self.comm).abort(text)

    @collective
    def close(self, *, timeout=None):
        """Collective: wait for every rank, then release all resources. A broken communicator does not wait for ranks,
        but for a call that another thread is in, which fails at once. Raises AbortedError, or
        PeerLostError, on a rank whose ``send`` no rank has received; the communicator is closed all the same."""
        cdef Call call
        if self.comm.get() == NULL:
            return
        self.let_failing_call_end()
        try:
            parse_call(&call, Op.close, None, timeout)
        except BaseException as error:
            raise self.refused(call, error)
        self.run_control(Op.close, task_close(self.live(), call.deadline))
        self.prune()

    def __enter__(self):
        return self

    def __exit__(self, kind, value, traceback):
        """Close. After an exception leave without waiting, so that peers raise PeerLostError naming this rank."""
        if kind is None:
            self.close()
        else:
            self.comm.reset()


def refuse(Communicator comm not None, error):
    """For packages that check arguments before a call of ``comm``: take the number of the refused operation, and tell
    the peers why, so that their call raises MismatchError instead of waiting. Returns ``error``, the exception to
    raise; those of this package then name the rank."""
    cdef Call call
    return comm.refused(call, error)


def refuse_message(Communicator comm not None, error, peer, tag=0, *, bint sends):
    """As refuse(), for a send to ``peer``, or with ``sends=False`` a receive from it. ``peer=None`` is a receive from
    any rank; then no rank is told."""
    known = not (peer is None and sends)
    return comm.message_refused(sends, -1 if peer is None else comm.parse_rank(peer, "peer"), parse_tag(tag), known,
                                error)


cdef shared_ptr[CppCommunicator] communicator_of(object comm) except *:
    """Return the C++ object. Raises AbortedError for a communicator that this rank has left."""
    return (<Communicator?> comm).live()
