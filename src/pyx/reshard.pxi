# Reshardings: calls and plans that bring tensors from one sharding to another.


cdef class _Tensors:
    """The local tensors of one side of a resharding."""
    cdef vector[View] views
    cdef list tensors, names, holders


cdef DType unknown_dtype() noexcept:
    """Of a rank without a part of the tensor."""
    cdef DType dtype
    dtype.code, dtype.bits, dtype.lanes = 0, 0, 1
    return dtype


cdef DType core_dtype(DLDataType given) noexcept:
    cdef DType dtype
    dtype.code, dtype.bits, dtype.lanes = given.code, given.bits, given.lanes
    return dtype


cdef list names_in_list(str name, Py_ssize_t count, bint listed):
    return [f"{name}[{i}]" for i in range(count)] if listed else [name]


cdef list tensors_in(object given, str name, Py_ssize_t count):
    try:
        tensors = list(given)
    except TypeError:
        raise InvalidArgumentError(f"{name} is {type_name(given)}; pass a list with an entry for each tensor of the "
                                   f"plan, None where this rank has no part") from None
    if len(tensors) != count:
        raise InvalidArgumentError(f"{name} has {len(tensors)} tensors, but the plan has {count}")
    return tensors


cdef int view_side(_Tensors side, bint output, bint keep) except -1:
    cdef size_t i
    side.views.resize(len(side.tensors))
    side.holders = []
    for i in range(side.views.size()):
        side.holders.append(None)
        if side.tensors[i] is not None:
            side.holders[i] = view_of(side.tensors[i], side.names[i], output, keep, &side.views[i])
    return 0


cdef int view_side_again(_Tensors side, bint output, bint keep) except -1:
    """View the tensors again whose memory code of other tensors may have moved."""
    cdef size_t i
    for i in range(side.views.size()):
        if side.tensors[i] is not None:
            view_again(side.tensors[i], side.names[i], output, keep, &side.views[i], side.holders, i)
            if output:
                require_output(&side.views[i], side.names[i], side.tensors[i])
            if memory_of(&side.views[i], side.names[i]) != Memory.host:
                raise UnsupportedError(f"{side.names[i]} is in {place_of(&side.views[i], side.names[i])} memory; "
                                       f"reshard is for host memory")
    return 0


cdef _Tensors side_of_tensors(list tensors, str name, bint listed):
    cdef _Tensors side = _Tensors.__new__(_Tensors)
    side.tensors, side.names = tensors, names_in_list(name, len(tensors), listed)
    return side


cdef int fit_part(const View* view, object tensor, str name, const optional[Numbers]& box, int rank) except -1:
    """Raise unless the tensor is this rank's part."""
    cdef Numbers numbers
    cdef size_t i, dims
    cdef int64_t elems = 1
    cdef bint fits
    if not box.has_value():
        if tensor is not None:
            raise InvalidArgumentError(f"{name} is {type_name(tensor)}, but rank {rank} has no part there; pass None")
        return 0
    numbers = box.value()
    dims = numbers.size() // 2
    shape = []
    for i in range(dims):
        shape.append(numbers[i + dims] - numbers[i])
        elems *= numbers[i + dims] - numbers[i]
    if tensor is None:
        if elems > 0:
            raise InvalidArgumentError(f"{name} is None, but rank {rank} has a part of shape {tuple(shape)} there")
        return 0
    fits = <size_t> view.ndim == dims
    for i in range(dims if fits else 0):
        fits = fits and view.shape[i] == shape[i]
    if not fits and not (elems == 0 and view.nbytes == 0):
        raise InvalidArgumentError(f"{name} is of shape {shape_text(view)}, but rank {rank} has a part of shape "
                                   f"{tuple(shape)} there")
    return 0


cdef int fit_dtype(const View* view, str name, const DType& dtype) except -1:
    if not is_dtype(view.dtype, dtype):
        raise InvalidArgumentError(f"{name} is {dtype_name(view.dtype)}, but the plan is of "
                                   f"{dtype_string(dtype).decode()}")
    return 0


cdef int enter_side(_Tensors side, vector[void*]& addresses, KeptLayouts& layouts) except -1:
    cdef size_t i
    cdef bint gaps = False
    layouts.clear()
    for i in range(side.views.size()):
        addresses.push_back(NULL if side.tensors[i] is None else <void*> side.views[i].data)
        gaps = gaps or (side.tensors[i] is not None and not side.views[i].contiguous)
    for i in range(side.views.size() if gaps else 0):
        layouts.push_back(KeptLayout() if side.tensors[i] is None else layout_of(&side.views[i]))
    return 0


cdef int require_apart(_Tensors sent, _Tensors received) except -1:
    """Raise if an output shares memory with another tensor."""
    cdef vector[View] sends, recvs
    cdef list send_names = [], recv_names = []
    cdef size_t i
    for i in range(sent.views.size()):
        if sent.tensors[i] is not None:
            sends.push_back(sent.views[i])
            send_names.append(sent.names[i])
        if received.tensors[i] is not None:
            recvs.push_back(received.views[i])
            recv_names.append(received.names[i])
    return require_disjoint(sends, send_names, recvs, recv_names)


cdef object claim_parts(_Tensors received):
    cdef size_t i
    for i in range(received.views.size()):
        if received.tensors[i] is not None:
            claim(received.tensors[i], received.names[i])


cdef int view_sides_of(_Tensors sent, _Tensors received, bint keep) except -1:
    view_side(sent, False, keep)
    view_side(received, True, keep)
    view_side_again(sent, False, keep)
    view_side_again(received, True, keep)
    return 0


cdef int finish_view(Exchange& x, _Tensors sent, _Tensors received, int rank) except -1:
    """Compare the tensors with the plan, and enter them."""
    cdef size_t i
    cdef vector[void*] sends
    for i in range(sent.views.size()):
        fit_part(&sent.views[i], sent.tensors[i], sent.names[i], src_box(x.reshard, i), rank)
        fit_part(&received.views[i], received.tensors[i], received.names[i], dst_box(x.reshard, i), rank)
    require_apart(sent, received)
    enter_side(sent, sends, x.send_layouts)
    enter_side(received, x.recvs, x.recv_layouts)
    x.sends.assign(sends.begin(), sends.end())
    x.listed = True
    return 0


cdef int prepare_reshard(Exchange& x, _CommunicatorBase comm, _Tensors sent, _Tensors received, object shape,
                         object src, object dst, bint keep) except -1:
    """Prepare the resharding of one tensor, whose dtype is that of its parts."""
    cdef CommPtr cpp = comm.live()
    cdef Numbers entries
    cdef ShardingPtr before, after
    cdef ReshardingList tensors
    cdef View* sender = NULL
    cdef View* receiver = NULL
    parse_shape(shape, entries)
    before = parse_sharding(src, "src", entries, comm._size)
    after = parse_sharding(dst, "dst", entries, comm._size)
    view_sides_of(sent, received, keep)
    x.call.dtype = unknown_dtype()
    if sent.tensors[0] is not None:
        sender = &sent.views[0]
        x.call.dtype = core_dtype(sender.dtype)
    if received.tensors[0] is not None:
        receiver = &received.views[0]
        if sender != NULL:
            require_alike(&x.call, sender, "send", receiver, "recv")
        x.call.dtype = core_dtype(receiver.dtype)
    tensors.add(entries, before, after, x.call.dtype)
    x.reshard = tensors.plan(dereference(cpp), False)
    return finish_view(x, sent, received, comm._rank)


cdef object tuple_of_resharding(object given, Py_ssize_t i):
    try:
        shape, src, dst, dtype = given
    except (TypeError, ValueError):
        raise InvalidArgumentError(f"tensors[{i}] is {shown(given)}; pass (shape, src, dst, dtype)") from None
    return shape, src, dst, dtype


cdef int add_reshardings(ReshardingList& tensors, object given, int size) except -1:
    """Convert a list of (shape, src, dst, dtype)."""
    cdef Numbers entries
    cdef Py_ssize_t i
    try:
        items = list(given)
    except TypeError:
        raise InvalidArgumentError(f"tensors is {shown(given)}; pass a list of (shape, src, dst, dtype)") from None
    for i, one in enumerate(items):
        shape, src, dst, dtype = tuple_of_resharding(one, i)
        entries.clear()
        try:
            parse_shape(shape, entries)
            tensors.add(entries, parse_sharding(src, "src", entries, size), parse_sharding(dst, "dst", entries, size),
                        core_dtype(parse_dtype(dtype)))
        except InvalidArgumentError as error:
            raise InvalidArgumentError(f"tensors[{i}]: {error}") from None
    return <int> len(items)


def reshard_matrices(tensors, int size, hosts=None):
    """For a2a.sharding: return the bytes that each rank sends each in each stage, an array of [stages, size, size]."""
    cdef ReshardingList list_
    cdef vector[int] places
    cdef vector[uint64_t] bytes_
    add_reshardings(list_, tensors, size)
    for host in hosts or ():
        places.push_back(parse_int(host, "a host"))
    with nogil:
        bytes_ = list_.matrices(size, places)
    return np.array(bytes_, np.uint64).reshape(-1, size, size)


@cython.final
cdef class ReshardPlan:
    """A resharding that can run many times, made by ``Communicator.plan_reshard`` or ``plan_reshard_all``."""

    cdef readonly Communicator comm
    cdef ReshardPtr reshard
    cdef list dtypes
    cdef bint listed
    cdef readonly uint64_t number
    cdef object __weakref__

    def __repr__(self):
        count = len(self.dtypes)
        return (f"<ReshardPlan {self.number}: {count} tensor{'' if count == 1 else 's'}, sends "
                f"{sum(self.bytes_to) - self.bytes_to[self.comm._rank]} bytes, rank {self.comm._rank} of "
                f"{self.comm._size}>")

    @property
    def bytes_to(self):
        """The bytes that this rank sends to each rank, by rank; those to itself are copied."""
        return list(bytes_to(self.reshard))

    @property
    def operations(self):
        """How many operations of the communicator a run has: one, and one more for each dtype and op of partial sums
        beside others."""
        return operations_of(self.reshard)

    @collective
    def run(self, send, recv, *, stream=None, timeout=None):
        """Reshard and wait. Otherwise as ``start``."""
        takes_operations(operations_of(self.reshard), False)
        self.exchange(send, recv, False, stream, timeout)

    @collective
    def start(self, send, recv, *, stream=None, timeout=None):
        """Reshard without waiting: returns a Work. ``send`` and ``recv`` are this rank's parts, before and after, None
        where it has none; lists of them for a plan of several tensors. They may have any strides, and no output shares
        memory with another tensor. Raises InvalidArgumentError for tensors that do not fit; peers then get
        MismatchError, as they do where ranks have different shapes, shardings or dtypes."""
        takes_operations(operations_of(self.reshard), False)
        return self.exchange(send, recv, True, stream, timeout)

    cdef object exchange(self, object send, object recv, bint async_op, object stream, object timeout):
        cdef Exchange x
        cdef _Tensors sent, received
        cdef Py_ssize_t i, count = len(self.dtypes)
        cdef DType dtype
        x.call.op = Op.reshard
        x.call.plan = self.number
        x.reshard = self.reshard
        try:
            parse_call(&x.call, Op.reshard, stream, timeout)
            sent = side_of_tensors(tensors_in(send, "send", count) if self.listed else [send], "send", self.listed)
            received = side_of_tensors(tensors_in(recv, "recv", count) if self.listed else [recv], "recv", self.listed)
            view_sides_of(sent, received, async_op)
            for i in range(count):
                dtype = core_dtype(make_dtype(self.dtypes[i]))
                if sent.tensors[i] is not None:
                    fit_dtype(&sent.views[i], sent.names[i], dtype)
                if received.tensors[i] is not None:
                    fit_dtype(&received.views[i], received.names[i], dtype)
            finish_view(x, sent, received, self.comm._rank)
            claim_parts(received)
        except BaseException as error:
            raise self.comm.refused(x.call, error)
        return run_reshard(self.comm, x, async_op, sent, received, recv)


cdef object run_reshard(_CommunicatorBase comm, Exchange& x, bint async_op, _Tensors sent, _Tensors received,
                        object output):
    """Run the operations of a resharding. Those before the last one are waited for: where one fails, it fails on all
    ranks, and none starts the next."""
    cdef size_t last = operations_of(x.reshard) - 1
    tensors = sent.holders, received.holders
    for x.operation in range(last):
        comm.launch(x, False, tensors, None, None)
    x.operation = last
    return comm.launch(x, async_op, tensors, output, None)


cdef ReshardPlan make_reshard_plan(_CommunicatorBase comm, const ReshardingList& tensors, list dtypes, bint listed,
                                   uint64_t number):
    cdef CommPtr cpp = comm.live()
    cdef ReshardPlan plan = ReshardPlan.__new__(ReshardPlan)
    with nogil:
        plan.reshard = tensors.plan(dereference(cpp), True)
    plan.comm, plan.dtypes, plan.listed, plan.number = <Communicator> comm, dtypes, listed, number
    return plan


cdef tuple triple_of(object dtype):
    cdef DLDataType parsed = parse_dtype(dtype)
    return parsed.code, parsed.bits, parsed.lanes


@collective
def reshard_all(Communicator comm not None, tensors, send, recv, *, bint async_op=False, timeout=None):
    """For packages that reshard many tensors once: what ``plan_reshard_all`` and a run of its plan do, without the
    number of a plan, which ranks could count differently where one of them fails between the two. Returns the Work of
    an asynchronous call."""
    cdef ReshardingList given
    cdef ReshardPlan plan
    tensors = list(tensors)
    add_reshardings(given, tensors, comm._size)
    plan = make_reshard_plan(comm, given, [triple_of(one[3]) for one in tensors], True, 0)
    takes_operations(operations_of(plan.reshard), False)
    return plan.exchange(send, recv, async_op, None, timeout)
