# Makes the routing of a batch: the ranks tell each other which tokens go to which expert, before any row moves. See
# a2a/experts.h.


cdef tuple homes_of(object entry, int64_t expert):
    """Return the ranks of an entry of expert_to_rank."""
    cdef list found = []
    for rank in (entry if isinstance(entry, (list, tuple)) else [entry]):
        found.append(parse_int(rank, f"expert_to_rank[{expert}]"))
    return tuple(found)


@cython.final
cdef class ExpertPlacement:
    """The ranks on which each expert is: the same number on each rank, in blocks, or ``expert_to_rank[e]``, a rank or a
    list of ranks. ``hosts``: of each rank the number of its host; None: all on one. ``active``: the ranks that take
    part; None: all. ``may_lack``: lists may be empty."""

    cdef PlacementPtr placement
    cdef int size
    cdef readonly tuple homes   # of each expert its ranks, of those that take no part, too

    def __cinit__(self, int size, num_experts, expert_to_rank=None, hosts=None, active=None, bint may_lack=False):
        cdef vector[vector[int]] ranks
        cdef vector[int] of_hosts
        cdef vector[uint8_t] marks
        cdef int64_t experts = parse_int(num_experts, "num_experts")
        cdef int64_t e
        cdef list entries
        self.size = size
        if expert_to_rank is None:
            self.placement = place_blocks(size, experts)
            entries = [e // (experts // size) for e in range(experts)]
        else:
            entries = list(expert_to_rank)
        if len(entries) != experts:
            raise InvalidArgumentError(f"expert_to_rank has {len(entries)} entries for {experts} experts")
        self.homes = tuple([homes_of(entry, e) for e, entry in enumerate(entries)])
        for several in self.homes:
            ranks.push_back(several)
        if hosts is not None:
            of_hosts = hosts
        if active is not None:
            marks.assign(size, 0)
            for given in active:
                rank = parse_int(given, "active")
                if not 0 <= rank < size:
                    raise InvalidArgumentError(f"active has rank {rank}, but the group has size {size}")
                marks[rank] = 1
        self.placement = place(size, ranks, of_hosts, marks, may_lack)

    @property
    def experts(self):
        """The number of experts."""
        return dereference(self.placement).experts()

    def experts_on(self, int rank):
        """Return the number of experts on that rank."""
        if not 0 <= rank < self.size:
            raise InvalidArgumentError(f"rank {rank} is not in a group of {self.size} ranks")
        return dereference(self.placement).experts_on(rank)


# The values that ranks tell each other about a routing and the operation after it. The first two may differ, all others
# must be equal. `field_names` has their names for messages. After them stand those that the caller has named.
cdef enum:
    FIELD_COUNT     # the number of tokens to that rank
    FIELD_NUMBER    # of the next operation; the highest of all ranks becomes that of the routing
    FIELD_TOP_K
    FIELD_WEIGHTED
    FIELD_ORDER
    FIELD_PLACEMENT
    FIELD_DTYPE
    FIELD_ROW
    FIELD_SCALE_DTYPE
    FIELD_SCALE_ROW
    FIELDS

cdef tuple field_names = ("", "", "columns of topk_idx", "topk_weights", "layout", "placement of experts", "dtype of x",
                          "bytes of a row of x", "dtype of scales", "bytes of a row of scales")


cdef str field_text(int field, int64_t value):
    cdef DLDataType dtype
    if field == FIELD_WEIGHTED:
        return "given" if value else "none"
    if field == FIELD_ORDER:
        return '"expert"' if value else '"rank"'
    if field == FIELD_PLACEMENT:
        return f"{<uint64_t> value:x}"
    if field in (FIELD_DTYPE, FIELD_SCALE_DTYPE):
        dtype.code, dtype.bits, dtype.lanes = <uint8_t> value, <uint8_t> (value >> 8), <uint16_t> (value >> 16)
        return dtype_name(dtype) if value else "none"
    return str(value)


cdef int64_t packed_dtype(DLDataType dtype) noexcept:
    return dtype.code | <int64_t> dtype.bits << 8 | <int64_t> dtype.lanes << 16


cdef object matrix_of(object tensor, str name, View* view, int64_t rows, int64_t columns):
    """Fill in the view of a host tensor that has two dimensions of these lengths; -1: any length."""
    holder = view_of(tensor, name, False, False, view)
    if memory_of(view, name) != Memory.host:
        raise UnsupportedError(f"{name} is on a device, where a2a.moe does not look; pass host tensors, or use "
                               f"a2a.torch.moe, which has the calls for devices")
    if view.ndim != 2 or (rows >= 0 and view.shape[0] != rows) or (columns >= 0 and view.shape[1] != columns):
        wanted = "a matrix [tokens, top_k]" if rows < 0 else f"[{rows}, {columns}]"
        raise InvalidArgumentError(f"{name} has shape {shape_text(view)}, but {wanted} is wanted")
    return holder


cdef int64_t stride_of(const View* view, int axis) noexcept:
    if not view.contiguous:
        return view.strides[axis]
    return view.stride if axis == 0 else view.elem_bytes


cdef int read_choices(object topk_idx, View* view, vector[int64_t]& experts) except -1:
    cdef int64_t i, k
    holder = matrix_of(topk_idx, "topk_idx", view, -1, -1)
    if view.dtype.code != kDLInt or view.dtype.bits not in (32, 64) or view.dtype.lanes != 1:
        raise InvalidArgumentError(f"topk_idx has dtype {dtype_name(view.dtype)}; pass int32 or int64")
    experts.resize(view.shape[0] * view.shape[1])
    for i in range(view.shape[0]):
        for k in range(view.shape[1]):
            experts[i * view.shape[1] + k] = load_integer(
                view.data + i * stride_of(view, 0) + k * stride_of(view, 1), view.dtype)
    del holder
    return 0


cdef int read_weights(object tensor, str name, int64_t rows, int64_t columns, View* view,
                      vector[float]& weights) except -1:
    cdef int64_t i, k
    holder = matrix_of(tensor, name, view, rows, columns)
    if view.dtype.code != kDLFloat or view.dtype.bits != 32 or view.dtype.lanes != 1:
        raise InvalidArgumentError(f"{name} has dtype {dtype_name(view.dtype)}; weights are float32")
    weights.resize(rows * columns)
    for i in range(rows):
        for k in range(columns):
            memcpy(&weights[i * columns + k], view.data + i * stride_of(view, 0) + k * stride_of(view, 1),
                   sizeof(float))
    del holder
    return 0


# The buffers of the two halves of a routing.
cdef class _RouteBuffers:
    cdef tuple names    # of the values in `row`
    cdef vector[int64_t] experts, sent, counts, row
    cdef vector[float] weights
    cdef vector[char] messages, answers


cdef int fill_fields(Communicator comm, ExpertPlacement placement, ExpertRouting made, _RouteBuffers buffers, object x,
                     object scales, object equal) except -1:
    """Fill in the values that this rank tells every other, except the number of tokens."""
    cdef View view
    buffers.row.assign(<int> FIELDS, 0)
    buffers.row[<int> FIELD_NUMBER] = <int64_t> dereference(comm.live()).last_number() + 1
    buffers.row[<int> FIELD_TOP_K] = made.top_k
    buffers.row[<int> FIELD_WEIGHTED] = made.weighted
    buffers.row[<int> FIELD_ORDER] = made.by_expert
    buffers.row[<int> FIELD_PLACEMENT] = <int64_t> dereference(placement.placement).hash()
    for tensor, name, at in ((x, "x", <int> FIELD_DTYPE), (scales, "scales", <int> FIELD_SCALE_DTYPE)):
        if tensor is None:
            continue
        refuse_lost_gradient(tensor, name)
        view_of(tensor, name, False, False, &view)
        made.require_tensor(&view, name, made.tokens, "tokens")
        require_kept_like(tensor, view.dtype)
        buffers.row[at], buffers.row[at + 1] = packed_dtype(view.dtype), view.row_bytes
    buffers.names = field_names
    for name, value in equal:
        buffers.names += (name,)
        buffers.row.push_back(value)
    return 0


@collective
def route(Communicator comm, ExpertPlacement placement, topk_idx, topk_weights=None, *, bint by_expert=True, align=1,
          x=None, scales=None, equal=(), ExpertRouting after=None, bint count=False, timeout=None):
    """Collective. Every rank tells every other which of its tokens come, and the ranks compare the values that must be
    equal: for dispatch() also those of x and scales. ``equal``: more of them, pairs of a name and an integer, as many
    on all ranks. ``after``: the routing of an earlier dispatch to which the call belongs; it has to be the same.
    ``count``: keep how often this rank's tokens choose each expert."""
    cdef Exchange ex
    cdef ExpertRouting made = ExpertRouting.__new__(ExpertRouting)
    cdef _RouteBuffers buffers = _RouteBuffers.__new__(_RouteBuffers)
    cdef _Choices given = _Choices.__new__(_Choices)
    cdef int64_t align_
    cdef int rank = comm._rank
    takes_operations(2, False)
    try:
        if after is not None:
            ex.call.plan = number_of_routing(after.number)
        parse_call(&ex.call, Op.route, None, timeout)
        align_ = parse_int(align, "align")
        made.comm, made.plans, made.by_expert = comm, {}, by_expert
        made.choices = given
        given.topk_idx, given.topk_weights = topk_idx, topk_weights
        wait_to_read(comm, (topk_idx,) if topk_weights is None else (topk_idx, topk_weights))
        read_choices(topk_idx, &given.indices, buffers.experts)
        made.tokens, made.top_k = given.indices.shape[0], given.indices.shape[1]
        if topk_weights is not None:
            refuse_lost_gradient(topk_weights, "topk_weights")
            read_weights(topk_weights, "topk_weights", made.tokens, made.top_k, &given.weights, buffers.weights)
        fill_fields(comm, placement, made, buffers, x, scales, equal)
        with nogil:
            made.routing = make_routing(placement.placement, rank, buffers.experts, made.tokens, made.top_k, by_expert,
                                        align_)
        if count:
            made.chosen = counts_of(buffers.experts, dereference(placement.placement).experts())
        tensors = prepare_fields(ex, comm, made, buffers)
    except BaseException as error:
        raise comm.refused(ex.call, error)
    comm.enter(Op.route)  # one entry for all steps, so that no other thread's call comes between them
    try:
        comm.launch(ex, False, tensors, None, None)
        compare_fields(comm, made, buffers, tensors[1])
        exchange_routes(comm, ex.call, made, buffers)
        finish_routing(made, buffers)
    finally:
        comm.leave()
    return made


cdef object counts_of(const vector[int64_t]& chosen, int64_t experts):
    cdef int64_t[::1] counts
    cdef size_t i
    found = np.zeros(experts, np.int64)
    counts = found
    for i in range(chosen.size()):
        if chosen[i] >= 0:
            counts[chosen[i]] += 1
    return found


cdef object prepare_fields(Exchange& ex, Communicator comm, ExpertRouting made, _RouteBuffers buffers):
    cdef int peer, size = comm._size
    cdef int64_t[:, ::1] rows
    buffers.sent = sent_counts(dereference(made.routing))
    given, received = np.empty((size, buffers.row.size()), np.int64), np.empty((size, buffers.row.size()), np.int64)
    rows = given
    for peer in range(size):
        buffers.row[<int> FIELD_COUNT] = buffers.sent[peer]
        memcpy(&rows[peer, 0], buffers.row.data(), buffers.row.size() * sizeof(int64_t))
    prepare_alltoall(ex, comm, given, received, 0, 0, True)
    return given, received


cdef int compare_fields(Communicator comm, ExpertRouting made, _RouteBuffers buffers, object received) except -1:
    """Raise if a rank differs from this one. Each rank compares itself with all others, so either all raise or none
    does. Set the number of the routing, which no later one gets: every rank's number of operations rises."""
    cdef int64_t[:, ::1] rows = received
    cdef int peer, field
    for peer in range(comm._size):
        for field in range(<int> FIELD_TOP_K, <int> buffers.row.size()):
            if rows[peer, field] != buffers.row[field]:
                raise everywhere(MismatchError(
                    f"dispatch: {buffers.names[field]}: rank {comm._rank} has "
                    f"{field_text(field, buffers.row[field])}, rank {peer} has {field_text(field, rows[peer, field])}"))
        buffers.counts.push_back(rows[peer, <int> FIELD_COUNT])
        made.number = max(made.number, <uint64_t> rows[peer, <int> FIELD_NUMBER])
    return 0


cdef int exchange_routes(Communicator comm, const Call& call, ExpertRouting made, _RouteBuffers buffers) except -1:
    """Exchange the messages that tell which tokens come."""
    cdef Exchange ex
    cdef CallCounts counts
    cdef vector[int64_t] bytes_to
    cdef int peer, size = comm._size
    cdef cbool weighted = made.weighted
    ex.call = call
    try:
        with nogil:
            write_routes(dereference(made.routing), size, buffers.weights, bytes_to, buffers.messages)
        for peer in range(comm._size):
            counts.to().push_back(bytes_to[peer])
            if not 0 <= buffers.counts[peer] < 1 << 31:
                raise BackendError(f"rank {peer} announces {buffers.counts[peer]} tokens")
            counts.from_().push_back(dereference(made.routing).told_bytes(buffers.counts[peer], weighted))
        buffers.answers.resize(total_of(counts.from_(), "the routes of the peers"))
        ex.plan = counts.plan(comm._rank, comm._size, 1, buffers.messages.size(), buffers.answers.size())
        ex.call.dtype.code, ex.call.dtype.bits, ex.call.dtype.lanes = kDLUInt, 8, 1
        ex.call.unit_bytes = 1
        ex.send, ex.recv = buffers.messages.data(), buffers.answers.data()
    except BaseException as error:
        raise comm.refused(ex.call, error)
    comm.launch(ex, False, buffers, None, None)
    return 0


cdef int finish_routing(ExpertRouting made, _RouteBuffers buffers) except -1:
    """Make the rows from the messages of all ranks."""
    cdef cbool weighted = made.weighted
    with nogil:
        read_routes(dereference(made.routing), buffers.counts, weighted, buffers.answers)
    made.weights.swap(buffers.weights)
    made.rows = dereference(made.routing).rows()
    made.counts = np.array(row_counts(dereference(made.routing)), np.int64)
    if made.by_expert:
        made.offsets = np.array(row_begins(dereference(made.routing)), np.int64)
    return 0
