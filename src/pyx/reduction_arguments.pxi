# Converts the arguments of reductions and rooted operations to those of Communicator.start. Each function fills an
# Exchange and returns the objects that hold the memory.

cdef dict folds = {"sum": Fold.sum, "prod": Fold.prod, "min": Fold.min, "max": Fold.max, "avg": Fold.avg,
                   "band": Fold.band, "bor": Fold.bor, "bxor": Fold.bxor, "premul_sum": Fold.premul_sum}


cdef int parse_reduction(Call* call, Op operation, object op, object stream, object timeout) except -1:
    parse_call(call, operation, stream, timeout)
    found = folds.get(op) if isinstance(op, str) else None
    if found is None:
        raise InvalidArgumentError(f"op is {shown(op)}; pass one of {', '.join(map(repr, folds))}")
    call.fold = found
    return 0


cdef int64_t elem_bytes_of(const View* view) noexcept:
    return view.dtype.bits * view.dtype.lanes // 8


cdef int require_foldable(Call* call, const View* view) except -1:
    """Raise unless the operation is defined for these elements. From here on counts are in elements."""
    require_defined(call.fold, call.dtype)
    call.unit_bytes = elem_bytes_of(view)
    return 0


cdef int require_place(const View* part, str part_name, const View* whole, str whole_name, int64_t offset) except -1:
    """Raise unless ``part`` is memory of its own, or in place: at that byte of ``whole``."""
    if not is_part(part, whole, offset) and overlap(part, whole):
        raise InvalidArgumentError(f"{part_name} and {whole_name} share memory, but {part_name} is not this rank's "
                                   f"part of {whole_name}; pass that part, or a tensor of its own")
    return 0


cdef int require_times(const View* whole, str whole_name, const View* part, str part_name, int size) except -1:
    cdef int64_t total = 0
    if not multiply(part.nbytes, size, total) or whole.nbytes != total:
        raise InvalidArgumentError(f"{whole_name} {shape_text(whole)} has {whole.nbytes} bytes, but {size} ranks have "
                                   f"{part.nbytes} bytes each, like {part_name} {shape_text(part)}")
    return 0


cdef object view_in_place(Exchange& x, object tensor, str name, bint writes, bint keep, View* view):
    """View one tensor that is both sides of an operation."""
    holder = view_of(tensor, name, writes, keep, view, x.call.stream.handle)
    if writes:
        require_output(view, name, tensor)
    else:
        require_sendable(view, name)
    set_call_memory(&x.call, view, name)
    set_call_dtype(&x.call, view)
    x.send = x.recv = view.data
    lay_out(x, view, view)
    return holder


cdef object view_sides(Exchange& x, object send, object recv, bint keep, View* sent, View* received):
    tensors = view_two(x, send, "send", recv, "recv", keep, sent, received)
    require_alike(&x.call, sent, "send", received, "recv")
    x.send, x.recv = sent.data, received.data
    lay_out(x, sent, received)
    return tensors


cdef object view_alike(Exchange& x, object send, object recv, bint keep, View* sent):
    """View a tensor and the result of a reduction of the same size, which may be written in place."""
    cdef View received
    if recv is None:
        tensors = view_in_place(x, send, "send", True, keep, sent)
    else:
        tensors = view_sides(x, send, recv, keep, sent, &received)
        require_times(&received, "recv", sent, "send", 1)
        require_place(sent, "send", &received, "recv", 0)
    require_foldable(&x.call, sent)
    return tensors


cdef object prepare_allreduce(Exchange& x, _CommunicatorBase comm, object send, object recv, bint keep):
    cdef View sent
    cdef CommPtr cpp = comm.live()
    tensors = view_alike(x, send, recv, keep, &sent)
    x.plan = cpp_plan_allreduce(dereference(cpp), x.call.unit_bytes, sent.nbytes // elem_bytes_of(&sent), x.call.memory)
    return tensors


cdef object prepare_scan(Exchange& x, _CommunicatorBase comm, object send, object recv, bint keep):
    return prepare_prefix(x, comm, send, recv, False, keep)


cdef object prepare_exscan(Exchange& x, _CommunicatorBase comm, object send, object recv, bint keep):
    return prepare_prefix(x, comm, send, recv, True, keep)


cdef object prepare_prefix(Exchange& x, _CommunicatorBase comm, object send, object recv, bint exclusive, bint keep):
    cdef View sent
    tensors = view_alike(x, send, recv, keep, &sent)
    x.plan = cpp_plan_scan(comm._rank, comm._size, x.call.unit_bytes, sent.nbytes // elem_bytes_of(&sent), exclusive)
    return tensors


cdef object prepare_reduce_scatter(Exchange& x, _CommunicatorBase comm, object send, object recv, bint keep):
    return prepare_parts(x, comm, send, None, recv, keep)


cdef object prepare_reduce_scatterv(Exchange& x, _CommunicatorBase comm, object send, object counts, object recv,
                                    bint keep):
    if counts is None:
        raise InvalidArgumentError("counts is None; pass one number of rows for each rank")
    return prepare_parts(x, comm, send, counts, recv, keep)


cdef object prepare_parts(Exchange& x, _CommunicatorBase comm, object send, object counts, object recv, bint keep):
    """Prepare a reduction whose parts go to the ranks. ``counts`` of rows; None: equal parts."""
    cdef View sent, received
    cdef CallCounts parts
    cdef int64_t rows = 0, offset = 0, row_bytes, rows_here
    cdef str kind
    cdef int peer, rank = comm._rank, size = comm._size
    if counts is not None:
        parse_rank_counts(counts, "counts", size, parts.to())
    tensors = view_sides(x, send, recv, keep, &sent, &received)
    require_foldable(&x.call, &sent)
    if counts is None:
        require_times(&sent, "send", &received, "recv", size)
        parts.to().assign(size, received.nbytes)
        row_bytes = 1
    else:
        if sent.ndim != 1:
            require_rows(&sent, "send", &received, "recv")
        row_bytes = sent.row_bytes
        rows_here, kind = received.rows, "rows"
        if sent.ndim == 1 and received.ndim != 1:
            rows_here, kind = received.nbytes // elem_bytes_of(&sent), "elements"
        for count in parts.to():
            if count < 0 or not add(rows, count, rows):
                raise InvalidArgumentError(f"counts {list(parts.to())} are no numbers of rows")
        if rows != sent.rows:
            raise InvalidArgumentError(f"counts {list(parts.to())} sum to {rows}, but send {shape_text(&sent)} has "
                                       f"{sent.rows} rows")
        if parts.to()[rank] != rows_here:
            raise InvalidArgumentError(f"recv {shape_text(&received)} has {rows_here} {kind}, but counts[{rank}] is "
                                       f"{parts.to()[rank]}")
    for peer in range(rank):
        offset += parts.to()[peer] * row_bytes
    require_place(&received, "recv", &sent, "send", offset)
    x.plan = cpp_plan_reduce_scatter(rank, size, row_bytes, parts.to())
    return tensors


cdef object prepare_reduce(Exchange& x, _CommunicatorBase comm, object send, object recv, int root, bint keep):
    cdef View sent, received
    cdef int rank = comm._rank, size = comm._size
    if rank != root:
        require_none(recv, "recv", root)
        tensors = view_in_place(x, send, "send", False, keep, &sent)
    elif recv is None or recv is send:
        tensors = view_in_place(x, send, "send", True, keep, &sent)
    else:
        tensors = view_sides(x, send, recv, keep, &sent, &received)
        require_times(&received, "recv", &sent, "send", 1)
        require_place(&sent, "send", &received, "recv", 0)
    require_foldable(&x.call, &sent)
    x.plan = cpp_plan_reduce(rank, size, root, sent.nbytes)
    return tensors


cdef int require_none(object tensor, str name, int root) except -1:
    if tensor is not None:
        raise InvalidArgumentError(f"{name} is {type_name(tensor)}, but only the root, rank {root}, has one; pass None")
    return 0


cdef object prepare_broadcast(Exchange& x, _CommunicatorBase comm, object tensor, int root, bint keep):
    cdef View view
    holder = view_in_place(x, tensor, "tensor", comm._rank != root, keep, &view)
    x.plan = cpp_plan_broadcast(comm._rank, comm._size, root, view.nbytes)
    return holder


cdef object prepare_gather(Exchange& x, _CommunicatorBase comm, object send, object recv, int root, bint keep):
    cdef View sent, received
    cdef int rank = comm._rank, size = comm._size
    if rank != root:
        require_none(recv, "recv", root)
        tensors = view_in_place(x, send, "send", False, keep, &sent)
    else:
        tensors = view_sides(x, send, recv, keep, &sent, &received)
        require_times(&received, "recv", &sent, "send", size)
        require_place(&sent, "send", &received, "recv", rank * sent.nbytes)
    x.plan = cpp_plan_gather(rank, size, root, sent.nbytes)
    return tensors


cdef object prepare_scatter(Exchange& x, _CommunicatorBase comm, object send, object recv, int root, bint keep):
    cdef View sent, received
    cdef int rank = comm._rank, size = comm._size
    if rank != root:
        require_none(send, "send", root)
        tensors = view_in_place(x, recv, "recv", True, keep, &received)
    else:
        tensors = view_sides(x, send, recv, keep, &sent, &received)
        require_times(&sent, "send", &received, "recv", size)
        require_place(&received, "recv", &sent, "send", rank * received.nbytes)
    x.plan = cpp_plan_scatter(rank, size, root, received.nbytes)
    return tensors


cdef object prepare_allgatherv(Exchange& x, _CommunicatorBase comm, object send, object recv, object recv_counts,
                               object recv_displs, bint keep):
    cdef View sent, received
    cdef CallCounts counts
    cdef int64_t offset = 0
    cdef int peer, rank = comm._rank, size = comm._size
    parse_rank_counts(recv_counts, "recv_counts", size, counts.from_())
    parse_displs(recv_displs, "recv_displs", size, counts.from_displs())
    tensors = view_sides(x, send, recv, keep, &sent, &received)
    require_rows(&sent, "send", &received, "recv")
    if counts.from_()[rank] != sent.rows:
        raise InvalidArgumentError(f"send {shape_text(&sent)} has {sent.rows} rows, but recv_counts[{rank}] is "
                                   f"{counts.from_()[rank]}")
    counts.to().assign(size, sent.rows)
    counts.to_displs().assign(size, 0)
    x.plan = counts.plan(rank, size, sent.row_bytes, sent.rows, received.rows)  # this checks the counts
    if counts.from_displs().empty():
        for peer in range(rank):
            offset += counts.from_()[peer]
    else:
        offset = counts.from_displs()[rank]
    require_place(&sent, "send", &received, "recv", offset * sent.row_bytes)
    return tensors
