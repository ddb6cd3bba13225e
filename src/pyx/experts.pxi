# Tokens to experts and back: what a2a.moe is made of. See a2a/experts.h.


@cython.final
cdef class ExpertPlacement:
    """Which ranks have which experts: the same number on each, in blocks, or ``expert_to_rank[e]``, a rank or a list of
    ranks."""

    cdef PlacementPtr placement
    cdef int size

    def __cinit__(self, int size, num_experts, expert_to_rank=None):
        cdef vector[vector[int]] ranks
        self.size = size
        cdef int64_t experts = parse_int(num_experts, "num_experts")
        if expert_to_rank is None:
            self.placement = place_blocks(size, experts)
            return
        entries = list(expert_to_rank)
        if len(entries) != experts:
            raise InvalidArgumentError(f"expert_to_rank has {len(entries)} entries for {experts} experts")
        for e, entry in enumerate(entries):
            several = entry if isinstance(entry, (list, tuple)) else [entry]
            ranks.push_back([parse_int(rank, f"expert_to_rank[{e}]") for rank in several])
        self.placement = place(size, ranks)

    @property
    def experts(self):
        """How many there are."""
        return dereference(self.placement).experts()

    def experts_on(self, int rank):
        """How many of them that rank has."""
        if not 0 <= rank < self.size:
            raise InvalidArgumentError(f"rank {rank} is not in a group of {self.size} ranks")
        return dereference(self.placement).experts_on(rank)


# What ranks tell each other of a routing and of what follows it, by the words of messages. All must be equal.
cdef enum:
    TOLD_COUNT      # of tokens that come: the only one that may differ
    TOLD_TOP_K
    TOLD_WEIGHTED
    TOLD_ORDER
    TOLD_PLACEMENT
    TOLD_DTYPE
    TOLD_ROW
    TOLD_SCALE_DTYPE
    TOLD_SCALE_ROW
    TOLD_FIELDS

cdef tuple told_names = ("", "columns of topk_idx", "topk_weights", "layout", "placement of experts", "dtype of x",
                         "bytes of a row of x", "dtype of scales", "bytes of a row of scales")


cdef str told_text(int field, int64_t value):
    cdef DLDataType dtype
    if field == TOLD_WEIGHTED:
        return "given" if value else "none"
    if field == TOLD_ORDER:
        return '"expert"' if value else '"rank"'
    if field == TOLD_PLACEMENT:
        return f"{<uint64_t> value:x}"
    if field in (TOLD_DTYPE, TOLD_SCALE_DTYPE):
        dtype.code, dtype.bits, dtype.lanes = <uint8_t> value, <uint8_t> (value >> 8), <uint16_t> (value >> 16)
        return dtype_name(dtype) if value else "none"
    return str(value)


cdef int64_t packed_dtype(DLDataType dtype) noexcept:
    return dtype.code | <int64_t> dtype.bits << 8 | <int64_t> dtype.lanes << 16


cdef object matrix_of(object tensor, str name, View* view, int64_t rows, int64_t columns):
    """A view of a tensor on the host with two dimensions; -1: of any length."""
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


cdef object make_like(object tensor, const View* like, tuple shape, View* made):
    """A new tensor of that shape in the framework of ``tensor``, with its dtype, to be written; and its view."""
    cdef View wanted = like[0]
    cdef int64_t rows = shape[0], entries = 1
    cdef int i
    wanted.ndim, wanted.rows, wanted.contiguous = len(shape), rows, True
    for i in range(wanted.ndim):
        wanted.shape[i] = shape[i]
        entries *= shape[i] if i > 0 else 1
    wanted.row_bytes = entries * like.elem_bytes
    wanted.nbytes = wanted.row_bytes * rows
    new = allocate_like(tensor, &wanted, rows)
    view_of(new, "result", True, False, made)
    require_made(made, &wanted, rows)
    return new


cdef object converted(object tensor, object made):
    convert = convert_like(tensor)
    return made if convert is None else convert(made)


cdef object integers_like(object topk_idx, const View* like, tuple shape, const vector[int64_t]& values):
    """The values as a tensor like topk_idx."""
    cdef View view
    cdef int64_t i
    cdef int32_t narrow
    made = make_like(topk_idx, like, shape, &view)
    for i in range(<int64_t> values.size()):
        if like.dtype.bits == 64:
            memcpy(view.data + 8 * i, &values[i], 8)
        else:
            narrow = <int32_t> values[i]
            memcpy(view.data + 4 * i, &narrow, 4)
    return converted(topk_idx, made)


# What the two halves of a routing need on both sides.
cdef class _Telling:
    cdef vector[int64_t] experts, sent, counts, row
    cdef vector[float] weights
    cdef vector[char] messages, answers
    cdef View choices, given    # of topk_idx, and of topk_weights


@cython.final
cdef class ExpertRouting:
    """What a2a.moe.Routing is made of."""

    cdef readonly Communicator comm
    cdef RoutingPtr routing
    cdef vector[float] weights      # of this rank's tokens
    cdef dict plans                 # what they move -> _Kept
    cdef readonly bint by_expert
    cdef readonly int64_t tokens, rows
    cdef readonly int top_k
    cdef readonly object counts, offsets, topk_idx, topk_weights, source
    cdef object __weakref__

    @property
    def weighted(self):
        """Whether it was made with weights."""
        return self.topk_weights is not None

    cdef PlanPtr dispatch_plan(self, const vector[size_t]& row_bytes) except *:
        cdef _Kept kept = self.plans.get(("dispatch", tuple(row_bytes)))
        if kept is None:
            kept = _Kept.__new__(_Kept)
            with nogil:
                kept.plan = plan_dispatch(dereference(self.routing), row_bytes)
            self.plans[("dispatch", tuple(row_bytes))] = kept
        return kept.plan

    cdef PlanPtr back_plan(self, str name, size_t row_bytes) except *:
        cdef _Kept kept = self.plans.get((name, row_bytes))
        if kept is None:
            kept = _Kept.__new__(_Kept)
            if name == "combine":
                with nogil:
                    kept.plan = plan_combine(dereference(self.routing), row_bytes)
            else:
                with nogil:
                    kept.plan = plan_give_back(dereference(self.routing), row_bytes)
            self.plans[(name, row_bytes)] = kept
        return kept.plan

    @collective
    def dispatch(self, x, scales=None, *, bint async_op=False, stream=None, timeout=None):
        """Rows of this rank's tokens to where they belong. Returns (the rows of x, and of scales where given; the Work,
        or None where it is over)."""
        cdef Exchange ex
        try:
            parse_call(&ex.call, Op.dispatch, stream, timeout)
            outputs, tensors = self.prepare_dispatch(ex, x, scales)
        except BaseException as error:
            raise self.comm.refused(ex.call, error)
        work = self.comm.launch(ex, async_op, tensors, outputs, None)
        if not async_op:
            outputs = [converted(tensor, made) for tensor, made in zip((x, scales), outputs)]
        return outputs, work

    cdef object prepare_dispatch(self, Exchange& ex, object x, object scales):
        cdef vector[View] sent, received
        cdef vector[size_t] row_bytes
        cdef size_t i
        given = [(x, "x")] if scales is None else [(x, "x"), (scales, "scales")]
        sent.resize(len(given))
        received.resize(len(given))
        tensors, outputs = [], []
        for i, (tensor, name) in enumerate(given):
            refuse_lost_gradient(tensor, name)
            tensors.append(view_of(tensor, name, False, True, &sent[i]))
            require_sendable(&sent[i], name)
            self.require_tensor(&sent[i], name, self.tokens, "tokens")
            outputs.append(allocate_like(tensor, &sent[i], self.rows))
            tensors.append(view_of(outputs[i], "the output", True, True, &received[i]))
            require_made(&received[i], &sent[i], self.rows)
            row_bytes.push_back(sent[i].row_bytes)
            ex.sends.push_back(sent[i].data)
            ex.recvs.push_back(received[i].data)
            clear_padding(dereference(self.routing), received[i].data, sent[i].row_bytes)
        set_call_dtype(&ex.call, &sent[0])
        ex.listed = True
        lay_out_list(ex.send_layouts, sent)
        ex.plan = self.dispatch_plan(row_bytes)
        return outputs, tensors

    cdef int require_tensor(self, const View* view, str name, int64_t rows, str of) except -1:
        if memory_of(view, name) != Memory.host:
            raise UnsupportedError(f"{name} is on a device, where a2a.moe does not look; pass host tensors, or use "
                                   f"a2a.torch.moe, which has the calls for devices")
        if view.ndim == 0 or view.rows != rows:
            raise InvalidArgumentError(f"{name} has shape {shape_text(view)}, but there are {rows} {of}")
        return 0

    @collective
    def combine(self, rows, *, bint weighted=True, weights=None, bias=None, bint async_op=False, stream=None,
                timeout=None):
        """The weighted sums of each token's rows, and the Work, or None where it is over. ``weights``, one for each
        row, replace those that the routing was made with."""
        cdef Exchange ex
        if weights is not None:
            weights = self.weights_of_terms(weights, timeout)
        try:
            parse_call(&ex.call, Op.combine, stream, timeout)
            output, tensors = self.prepare_combine(ex, rows, weights, bias)
            if weights is None and weighted and self.by_expert and self.weights.size() > 0:
                set_weights(ex.call, self.weights.data())
        except BaseException as error:
            raise self.comm.refused(ex.call, error)
        work = self.comm.launch(ex, async_op, tensors, output, None)
        return output if async_op else converted(rows, output), work

    cdef object weights_of_terms(self, object weights, object timeout):
        """Of weights of this rank's rows: those of the terms of its tokens."""
        cdef Exchange ex
        cdef View view
        try:
            parse_call(&ex.call, Op.give_back, None, timeout)
            view_of(weights, "weights", False, False, &view)
            if view.ndim != 1:
                raise InvalidArgumentError(f"weights have shape {shape_text(&view)}; pass one for each row")
        except BaseException as error:
            raise self.comm.refused(ex.call, error)
        return self.give_back(weights, timeout=timeout)

    cdef object prepare_combine(self, Exchange& ex, object rows, object weights, object bias):
        cdef View sent, received, other
        cdef size_t i
        refuse_lost_gradient(rows, "rows")
        tensors = [self, view_of(rows, "rows", False, True, &sent)]
        require_sendable(&sent, "rows")
        self.require_tensor(&sent, "rows", self.rows, "routed rows")
        output = allocate_like(rows, &sent, self.tokens)
        tensors.append(view_of(output, "the output", True, True, &received))
        require_made(&received, &sent, self.tokens)
        if weights is not None:
            tensors.append(view_of(weights, "weights", False, True, &other))
            set_weights(ex.call, <const float*> other.data)
        biases = [] if bias is None else list(bias) if isinstance(bias, (list, tuple)) else [bias]
        if len(biases) > 2:
            raise InvalidArgumentError(f"bias has {len(biases)} tensors; there are one or two")
        for i, tensor in enumerate(biases):
            tensors.append(view_of(tensor, "bias", False, True, &other))
            require_contiguous(&other, "bias")
            self.require_tensor(&other, "bias", self.tokens, "tokens")
            if not same_dtype(other.dtype, sent.dtype) or other.nbytes != received.nbytes:
                raise InvalidArgumentError(f"bias is {dtype_name(other.dtype)} {shape_text(&other)}, but the result is "
                                           f"{dtype_name(sent.dtype)} {shape_text(&received)}")
            set_bias(ex.call, i, other.data)
        set_call_dtype(&ex.call, &sent)
        ex.send, ex.recv = sent.data, received.data
        lay_out(ex, &sent, &received)
        ex.plan = self.back_plan("combine", sent.row_bytes)
        return output, tensors

    @collective
    def give_back(self, values, *, timeout=None):
        """One value or row of values for each routed row, back to the token and place in top-k that it came for: of
        shape [tokens, top_k, ...], 0 where there is no expert. Only in the layout "expert"."""
        cdef Exchange ex
        cdef View sent, received
        try:
            parse_call(&ex.call, Op.give_back, None, timeout)
            if not self.by_expert:
                raise InvalidArgumentError('weights of rows are those of the layout "expert"; in the layout "rank" a '
                                           "row has the weights of several experts: multiply by them first")
            holder = view_of(values, "weights", False, True, &sent)
            require_sendable(&sent, "weights")
            self.require_tensor(&sent, "weights", self.rows, "routed rows")
            if not same_dtype(sent.dtype, FLOAT32):
                raise InvalidArgumentError(f"weights have dtype {dtype_name(sent.dtype)}; pass float32")
            result = np.zeros((self.tokens, self.top_k, *[sent.shape[i] for i in range(1, sent.ndim)]), np.float32)
            kept = view_of(result, "result", True, True, &received)
            set_call_dtype(&ex.call, &sent)
            ex.send, ex.recv = sent.data, received.data
            lay_out(ex, &sent, &received)
            ex.plan = self.back_plan("give_back", sent.row_bytes)
        except BaseException as error:
            raise self.comm.refused(ex.call, error)
        self.comm.launch(ex, False, [holder, kept], result, None)
        return result


@cython.final
cdef class _Kept:
    cdef PlanPtr plan


cdef DLDataType FLOAT32
FLOAT32.code, FLOAT32.bits, FLOAT32.lanes = kDLFloat, 32, 1


cdef int fill_told(Communicator comm, ExpertPlacement placement, ExpertRouting made, _Telling told, object x,
                   object scales) except -1:
    """What this rank tells every other, but for the number of tokens."""
    cdef View view
    told.row.assign(<int> TOLD_FIELDS, 0)
    told.row[<int> TOLD_TOP_K] = made.top_k
    told.row[<int> TOLD_WEIGHTED] = made.weighted
    told.row[<int> TOLD_ORDER] = made.by_expert
    told.row[<int> TOLD_PLACEMENT] = <int64_t> dereference(placement.placement).hash()
    for tensor, name, at in ((x, "x", <int> TOLD_DTYPE), (scales, "scales", <int> TOLD_SCALE_DTYPE)):
        if tensor is None:
            continue
        refuse_lost_gradient(tensor, name)
        view_of(tensor, name, False, False, &view)
        made.require_tensor(&view, name, made.tokens, "tokens")
        require_kept_like(tensor, view.dtype)
        told.row[at], told.row[at + 1] = packed_dtype(view.dtype), view.row_bytes
    return 0


@collective
def route(Communicator comm, ExpertPlacement placement, topk_idx, topk_weights=None, *, bint by_expert=True, align=1,
          x=None, scales=None, timeout=None):
    """Collective. Every rank tells every other which of its tokens come, and compares what it has to agree on: for
    dispatch() also x and scales."""
    cdef Exchange ex
    cdef ExpertRouting made = ExpertRouting.__new__(ExpertRouting)
    cdef _Telling told = _Telling.__new__(_Telling)
    cdef int64_t align_
    cdef int rank = comm._rank
    try:
        parse_call(&ex.call, Op.route, None, timeout)
        align_ = parse_int(align, "align")
        made.comm, made.plans, made.by_expert = comm, {}, by_expert
        read_choices(topk_idx, &told.choices, told.experts)
        made.tokens, made.top_k = told.choices.shape[0], told.choices.shape[1]
        if topk_weights is not None:
            refuse_lost_gradient(topk_weights, "topk_weights")
            read_weights(topk_weights, "topk_weights", made.tokens, made.top_k, &told.given, told.weights)
            made.topk_weights = True
        fill_told(comm, placement, made, told, x, scales)
        with nogil:
            made.routing = make_routing(placement.placement, rank, told.experts, made.tokens, made.top_k, by_expert,
                                        align_)
        tensors = prepare_told(ex, comm, made, told)
    except BaseException as error:
        raise comm.refused(ex.call, error)
    comm.enter(Op.route)  # once for all that follows, so that no other thread's call comes between
    try:
        comm.run_first_half(ex, tensors)
        compare_told(comm, told, tensors[1])
        tell(comm, ex.call, made, told, x is not None)
        hear(comm, ex.call, made, told, topk_idx, topk_weights, x is not None)
    finally:
        comm.leave()
    return made


cdef object prepare_told(Exchange& ex, Communicator comm, ExpertRouting made, _Telling told):
    cdef int peer, size = comm._size
    cdef int64_t[:, ::1] rows
    told.sent = sent_counts(dereference(made.routing))
    given, heard = np.empty((size, <int> TOLD_FIELDS), np.int64), np.empty((size, <int> TOLD_FIELDS), np.int64)
    rows = given
    for peer in range(size):
        told.row[<int> TOLD_COUNT] = told.sent[peer]
        memcpy(&rows[peer, 0], told.row.data(), <int> TOLD_FIELDS * sizeof(int64_t))
    prepare_alltoall(ex, comm._rank, size, given, heard, 0, 0, True)
    return given, heard


cdef int compare_told(Communicator comm, _Telling told, object heard) except -1:
    """Every rank sees what it has otherwise than any other, so all raise or none."""
    cdef int64_t[:, ::1] rows = heard
    cdef int peer, field
    for peer in range(comm._size):
        for field in range(<int> TOLD_TOP_K, <int> TOLD_FIELDS):
            if rows[peer, field] != told.row[field]:
                raise MismatchError(
                    f"dispatch: {told_names[field]}: rank {comm._rank} has "
                    f"{told_text(field, told.row[field])}, rank {peer} has {told_text(field, rows[peer, field])}")
        told.counts.push_back(rows[peer, <int> TOLD_COUNT])
    return 0


cdef int tell(Communicator comm, const Call& call, ExpertRouting made, _Telling told, bint dispatches) except -1:
    """Which tokens come, to and from all ranks."""
    cdef Exchange ex
    cdef CallCounts counts
    cdef vector[int64_t] bytes_to
    cdef int peer, size = comm._size
    cdef cbool weighted = made.weighted
    ex.call = call
    try:
        with nogil:
            tell_all(dereference(made.routing), size, told.weights, bytes_to, told.messages)
        for peer in range(comm._size):
            counts.to().push_back(bytes_to[peer])
            if not 0 <= told.counts[peer] < 1 << 31:
                raise BackendError(f"rank {peer} announces {told.counts[peer]} tokens")
            counts.from_().push_back(dereference(made.routing).told_bytes(told.counts[peer], weighted))
        told.answers.resize(total_of(counts.from_(), "what peers tell"))
        ex.plan = counts.plan(comm._rank, comm._size, 1, told.messages.size(), told.answers.size())
        ex.call.dtype.code, ex.call.dtype.bits, ex.call.dtype.lanes = kDLUInt, 8, 1
        ex.call.unit_bytes = 1
        ex.send, ex.recv = told.messages.data(), told.answers.data()
    except BaseException as error:
        raise comm.refused(ex.call, error)
    if dispatches:
        comm.run_first_half(ex, told)
    else:
        comm.launch(ex, False, told, None, None)
    return 0


cdef int hear(Communicator comm, const Call& call, ExpertRouting made, _Telling told, object topk_idx,
              object topk_weights, bint dispatches) except -1:
    """What has come of all ranks is what the rows are. Where tokens follow, peers wait for this rank's."""
    cdef Call next = call
    cdef cbool weighted = made.weighted
    try:
        with nogil:
            hear_all(dereference(made.routing), told.counts, weighted, told.answers)
        made.weights.swap(told.weights)
        describe(made, told, topk_idx, topk_weights)
    except BaseException as error:
        if not dispatches:
            raise
        next.op = Op.dispatch
        raise comm.refused(next, error)
    return 0


cdef int describe(ExpertRouting made, _Telling told, object topk_idx, object topk_weights) except -1:
    """The attributes that tell of the rows."""
    cdef CppRouting* routing = made.routing.get()
    cdef vector[int64_t] values
    cdef int64_t count
    cdef View view
    cdef tuple shape
    made.rows = routing.rows()
    made.counts = np.array(row_counts(routing[0]), np.int64)
    if made.by_expert:
        made.offsets = np.array(row_begins(routing[0]), np.int64)
    values.resize(2 * made.rows)
    routing.sources(values.data())
    made.source = integers_like(topk_idx, &told.choices, (made.rows, 2), values)
    shape = (made.rows,)
    count = made.rows
    if not made.by_expert:
        shape, count = (made.rows, made.top_k), made.rows * made.top_k
    values.resize(count)
    routing.local_experts(values.data())
    made.topk_idx = integers_like(topk_idx, &told.choices, shape, values)
    made.topk_weights = None
    if topk_weights is not None:
        weights = make_like(topk_weights, &told.given, shape, &view)
        routing.weights(<float*> view.data)
        made.topk_weights = converted(topk_weights, weights)
    return 0


def set_result(Work work, result, like=None):
    """The work, with what its ``result`` is: a tensor in the framework of ``like``, or anything."""
    work.output, work.convert = result, None if like is None else convert_like(like)
    return work


def convert_result(like, made, work):
    """What was received into, in the framework of ``like``, once the operation is over; at once where the framework's
    tensors may be filled in later."""
    convert = convert_like(like)
    if convert is None:
        return made
    if work is not None:
        work.wait()
    return convert(made)


def to_numpy(tensor):
    """A copy of a host tensor of integers as int64."""
    cdef View view
    cdef int64_t i, entries = 1
    cdef int64_t[::1] flat
    holder = view_of(tensor, "tensor", False, False, &view)
    shape = tuple([view.shape[i] for i in range(view.ndim)])
    for i in range(view.ndim):
        entries *= view.shape[i]
    require_contiguous(&view, "tensor")
    result = np.empty(shape, np.int64)
    flat = result.reshape(-1)
    for i in range(entries):
        flat[i] = load_integer(view.data + i * view.elem_bytes, view.dtype)
    del holder
    return result
