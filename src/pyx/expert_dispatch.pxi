# Dispatch and combine: moves the rows of tokens to their experts and back, by the plans of a routing. See
# a2a/experts.h.


# The tensors from which a routing was made. Results come in their frameworks.
@cython.final
cdef class _Choices:
    cdef object topk_idx, topk_weights
    cdef View indices, weights


cdef object make_like(object tensor, const View* like, tuple shape, View* made):
    """Return a new writable tensor of that shape in the framework of ``tensor``, with its dtype. Fill in its view."""
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
    """Return the values as a tensor like topk_idx."""
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


@cython.final
cdef class ExpertRouting:
    """The core's part of an a2a.moe.Routing."""

    cdef readonly Communicator comm
    cdef readonly uint64_t number   # on which the ranks have agreed. They compare it in every exchange by this routing.
    cdef RoutingPtr routing
    cdef vector[float] weights      # of this rank's tokens
    cdef dict plans                 # operation, row sizes and what else the ranks compare -> _Kept
    cdef readonly bint by_expert
    cdef readonly int64_t tokens, rows
    cdef readonly int top_k
    cdef readonly object counts, offsets
    cdef readonly object chosen     # how often this rank's tokens chose each expert, if that was to be counted
    cdef _Choices choices
    cdef object topk_idx_, topk_weights_, source_, dropped_     # made at the first access
    cdef object __weakref__

    @property
    def weighted(self):
        """Whether it was made with weights."""
        return self.choices.topk_weights is not None

    @property
    def source(self):
        """See a2a.moe.Routed."""
        cdef vector[int64_t] values
        if self.source_ is None:
            values.resize(2 * self.rows)
            dereference(self.routing).sources(values.data())
            self.source_ = integers_like(self.choices.topk_idx, &self.choices.indices, (self.rows, 2), values)
        return self.source_

    @property
    def dropped(self):
        """See a2a.moe.Routed."""
        if self.dropped_ is None:
            flat = np.array(dropped_choices(dereference(self.routing)), np.int64)
            self.dropped_ = np.stack(np.divmod(flat, max(self.top_k, 1)), 1)
        return self.dropped_

    @property
    def topk_idx(self):
        """See a2a.moe.Routed."""
        cdef vector[int64_t] values
        if self.topk_idx_ is None:
            values.resize(self.rows if self.by_expert else self.rows * self.top_k)
            dereference(self.routing).local_experts(values.data())
            self.topk_idx_ = integers_like(self.choices.topk_idx, &self.choices.indices, self.shape(), values)
        return self.topk_idx_

    @property
    def topk_weights(self):
        """See a2a.moe.Routed."""
        cdef View view
        if self.topk_weights_ is None and self.choices.topk_weights is not None:
            made = make_like(self.choices.topk_weights, &self.choices.weights, self.shape(), &view)
            dereference(self.routing).weights(<float*> view.data)
            self.topk_weights_ = converted(self.choices.topk_weights, made)
        return self.topk_weights_

    cdef tuple shape(self):
        """Return the shape of results that have an entry for each row, or for each row and choice."""
        return (self.rows,) if self.by_expert else <tuple> (<object> self.rows, self.top_k)

    def source_ranks(self):
        """Return the rank from which each row comes, -1 for padding (NumPy, int64)."""
        cdef vector[int64_t] values
        values.resize(2 * self.rows)
        dereference(self.routing).sources(values.data())
        return np.array(values, np.int64)[::2]

    cdef PlanPtr dispatch_plan(self, const vector[size_t]& row_bytes, const vector[uint32_t]& dtypes) except *:
        key = ("dispatch", tuple(row_bytes), tuple(dtypes))
        cdef _Kept kept = self.plans.get(key)
        if kept is None:
            kept = _Kept.__new__(_Kept)
            with nogil:
                kept.plan = plan_dispatch(dereference(self.routing), row_bytes, dtypes)
            self.plans[key] = kept
        return kept.plan

    cdef PlanPtr back_plan(self, str name, size_t row_bytes, cbool weighted=False) except *:
        key = (name, row_bytes, weighted)
        cdef _Kept kept = self.plans.get(key)
        if kept is None:
            kept = _Kept.__new__(_Kept)
            if name == "combine":
                with nogil:
                    kept.plan = plan_combine(dereference(self.routing), row_bytes, weighted)
            else:
                with nogil:
                    kept.plan = plan_give_back(dereference(self.routing), row_bytes)
            self.plans[key] = kept
        return kept.plan

    @collective
    def dispatch(self, x, scales=None, *, bint async_op=False, stream=None, timeout=None):
        """Send the rows of this rank's tokens to their experts. Returns (the received rows of x, and of scales if
        given; the Work, or None if it is done)."""
        cdef Exchange ex
        try:
            ex.call.plan = number_of_routing(self.number)
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
        cdef vector[uint32_t] dtypes
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
            dtypes.push_back(<uint32_t> packed_dtype(sent[i].dtype) if i > 0 else 0)  # x's is that of the call
            ex.sends.push_back(sent[i].data)
            ex.recvs.push_back(received[i].data)
            clear_padding(dereference(self.routing), received[i].data, sent[i].row_bytes)
        set_call_dtype(&ex.call, &sent[0])
        ex.listed = True
        lay_out_list(ex.send_layouts, sent)
        ex.plan = self.dispatch_plan(row_bytes, dtypes)
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
        """Return the weighted sums of each token's rows, and the Work, or None if it is done. ``weights``, one for each
        row, replace those of the routing."""
        cdef Exchange ex
        if weights is not None:
            takes_operations(2, False)
            weights = self.weights_of_terms(weights, timeout)
        try:
            ex.call.plan = number_of_routing(self.number)
            parse_call(&ex.call, Op.combine, stream, timeout)
            weighted = weighted and self.by_expert and self.weighted
            output, tensors = self.prepare_combine(ex, rows, weights, bias, weighted)
            if weights is None and weighted and self.weights.size() > 0:
                set_weights(ex.call, self.weights.data())
        except BaseException as error:
            raise self.comm.refused(ex.call, error)
        work = self.comm.launch(ex, async_op, tensors, output, None)
        return output if async_op else converted(rows, output), work

    cdef object weights_of_terms(self, object weights, object timeout):
        """Exchange the weights of this rank's rows for those of the terms of its tokens."""
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

    cdef object prepare_combine(self, Exchange& ex, object rows, object weights, object bias, bint weighted):
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
        ex.plan = self.back_plan("combine", sent.row_bytes, weighted or weights is not None)
        return output, tensors

    @collective
    def give_back(self, values, *, timeout=None):
        """Send one value or row of values for each routed row back to its token and place in top-k. The result has the
        shape [tokens, top_k, ...], 0 where there is no expert. Only in the layout "expert"."""
        cdef Exchange ex
        cdef View sent, received
        try:
            ex.call.plan = number_of_routing(self.number)
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

    @collective
    def alltoallv(self, send, send_counts, recv, recv_counts, *, timeout=None):
        """Communicator.alltoallv() of rows that others have put in the order of this routing."""
        cdef Communicator comm = self.comm
        cdef Exchange ex
        try:
            ex.call.plan = number_of_routing(self.number)
            parse_call(&ex.call, Op.alltoallv, None, timeout)
            tensors = prepare_alltoallv(ex, comm, send, send_counts, recv, recv_counts, None, None, 0, 0, False)
            claim(recv, "recv")
        except BaseException as error:
            raise comm.refused(ex.call, error)
        comm.launch(ex, False, tensors, recv, None, send)


@cython.final
cdef class _Kept:
    cdef PlanPtr plan


cdef DLDataType FLOAT32
FLOAT32.code, FLOAT32.bits, FLOAT32.lanes = kDLFloat, 32, 1


def set_result(Work work, result, like=None):
    """Set the ``result`` of a work: a tensor in the framework of ``like``, or any object. Returns the work."""
    work.output, work.convert = result, None if like is None else convert_like(like)
    return work


def convert_result(like, made, work):
    """Convert the buffer that was received into to the framework of ``like``. It waits for the operation unless the
    framework's tensors may be filled in later."""
    convert = convert_like(like)
    if convert is None:
        return made
    if work is not None:
        work.wait()
    return convert(made)
