# Converts the arguments of each operation to those of Communicator.start. Each function fills an Exchange and returns
# the objects that hold the memory.


cdef object view_pair(Exchange& x, object send, str send_name, object recv, str recv_name, bint keep,
                      View* sent, View* received):
    """View the two buffers of one operation. ``keep``: see view_of."""
    tensors = view_two(x, send, send_name, recv, recv_name, keep, sent, received)
    pair_up(x, sent, send_name, received, recv_name)
    return tensors


cdef int pair_up(Exchange& x, const View* sent, str send_name, const View* received, str recv_name) except -1:
    if x.call.op == Op.alltoall and same_layout(sent, received) and is_host(sent.device.device_type):
        require_alike(&x.call, sent, send_name, received, recv_name)
        x.call.in_place = True
    else:
        require_pair(&x.call, sent, send_name, received, recv_name)
    x.send, x.recv = sent.data, received.data
    return lay_out(x, sent, received)


cdef object view_two(Exchange& x, object send, str send_name, object recv, str recv_name, bint keep,
                     View* sent, View* received):
    """View a tensor to send and one to receive into. Call this after the conversion of counts and of all other
    arguments, which may run code of the program. The last such code is that of the tensors themselves."""
    cdef object sender, receiver
    sender = view_of(send, send_name, False, keep, sent, x.call.stream.handle)
    receiver = view_of(recv, recv_name, True, keep, received, stream_of(&x.call, sent))
    if received.held and not sent.held:
        sender = view_of(send, send_name, False, keep, sent, x.call.stream.handle)
    require_sendable(sent, send_name)
    require_output(received, recv_name, recv)
    return sender, receiver


cdef object prepare_alltoallv(Exchange& x, _CommunicatorBase comm, object send, object send_counts, object recv,
                              object recv_counts, object send_displs, object recv_displs, object split_axis,
                              object concat_axis, bint keep):
    """Returns None where the tensors themselves hold the memory."""
    cdef View sent, received
    cdef CallCounts counts
    cdef int rank = comm._rank, size = comm._size
    parse_rank_counts(send_counts, "send_counts", size, counts.to())
    parse_rank_counts(recv_counts, "recv_counts", size, counts.from_())
    parse_displs(send_displs, "send_displs", size, counts.to_displs())
    parse_displs(recv_displs, "recv_displs", size, counts.from_displs())
    if is_zero(split_axis) and is_zero(concat_axis):
        if comm.checked.view(x, send, recv, &sent, &received):
            x.plan = counts.plan(rank, size, sent.row_bytes, sent.rows, received.rows)
            return None
    else:
        return prepare_divided(x, comm, send, recv, split_axis, concat_axis, counts, keep)
    tensors = view_pair(x, send, "send", recv, "recv", keep, &sent, &received)
    require_rows(&sent, "send", &received, "recv")
    if sent.contiguous and received.contiguous:
        comm.checked.remember(x.call, send, &sent, recv, &received)
    x.plan = counts.plan(rank, size, sent.row_bytes, sent.rows, received.rows)
    return tensors


cdef inline bint is_zero(object axis):
    return type(axis) is int and axis == 0


cdef object prepare_divided(Exchange& x, _CommunicatorBase comm, object send, object recv, object split_axis,
                            object concat_axis, CallCounts& counts, bint keep):
    """Prepare an exchange along given axes, with counts of their entries; none: equal parts."""
    cdef View sent, received
    cdef int size = comm._size
    cdef int split = parse_int(split_axis, "split_axis"), concat = parse_int(concat_axis, "concat_axis")
    tensors = view_two(x, send, "send", recv, "recv", keep, &sent, &received)
    x.split_axis = axis_of(split, "split_axis", &sent, "send")
    x.concat_axis = axis_of(concat, "concat_axis", &received, "recv")
    pair_up(x, &sent, "send", &received, "recv")
    if counts.to().empty():
        for name, axis, entries in (("send", "split_axis", sent.shape[x.split_axis]),
                                    ("recv", "concat_axis", received.shape[x.concat_axis])):
            if entries % size != 0:
                raise InvalidArgumentError(f"{name} has {entries} entries along {axis}, which {size} ranks cannot "
                                           f"share equally")
        counts.to().assign(size, sent.shape[x.split_axis] // size)
        counts.from_().assign(size, received.shape[x.concat_axis] // size)
    plan_divided(x, comm._rank, size, &sent, &received, counts)
    return tensors


cdef object prepare_alltoall(Exchange& x, _CommunicatorBase comm, object send, object recv, object split_axis,
                             object concat_axis, bint keep):
    cdef View sent, received
    cdef CallCounts counts
    cdef int size = comm._size
    if not (is_zero(split_axis) and is_zero(concat_axis)):
        return prepare_divided(x, comm, send, recv, split_axis, concat_axis, counts, keep)
    tensors = view_pair(x, send, "send", recv, "recv", keep, &sent, &received)
    require_rows(&sent, "send", &received, "recv")
    if sent.rows != received.rows:
        raise InvalidArgumentError(f"send has {sent.rows} rows, but recv has {received.rows}; equal parts need equal "
                                   f"tensors")
    if sent.rows % size != 0:
        raise InvalidArgumentError(f"send has {sent.rows} rows, which {size} ranks cannot share equally")
    counts.to().assign(size, sent.rows // size)
    counts.from_().assign(size, sent.rows // size)
    x.plan = counts.plan(comm._rank, size, sent.row_bytes, sent.rows, received.rows)
    return tensors


cdef int finish_allgather(Exchange& x, int rank, int size, const View* sent, str send_name, const View* received,
                          str recv_name) except -1:
    """``sent`` may be this rank's part of ``received``: then it is in place and is not copied."""
    cdef int64_t total = 0
    if not multiply(sent.nbytes, size, total) or received.nbytes != total:
        raise InvalidArgumentError(f"{recv_name} {shape_text(received)} has {received.nbytes} bytes, but {size} ranks "
                                   f"send {sent.nbytes} bytes each, like {send_name} {shape_text(sent)}")
    if is_part(sent, received, rank * sent.nbytes):
        require_alike(&x.call, sent, send_name, received, recv_name)
    else:
        require_pair(&x.call, sent, send_name, received, recv_name)
    x.send, x.recv = sent.data, received.data
    lay_out(x, sent, received)
    x.plan = cpp_plan_allgather(rank, size, sent.nbytes)
    return 0


cdef object prepare_allgather(Exchange& x, _CommunicatorBase comm, object send, object recv, bint keep):
    cdef View sent, received
    tensors = view_two(x, send, "send", recv, "recv", keep, &sent, &received)
    finish_allgather(x, comm._rank, comm._size, &sent, "send", &received, "recv")
    return tensors


cdef int view_again(object tensor, str name, bint output, bint keep, View* view, list holders, int at) except -1:
    """View a tensor again after code of another tensor ran, which may have moved its memory."""
    if not view.held:
        holders[at] = view_of(tensor, name, output, keep, view, view.stream)
    return 0


cdef int require_disjoint(vector[View]& sends, list send_names, vector[View]& recvs, list recv_names,
                          size_t own=SIZE_MAX) except -1:
    """Raise if a receive buffer shares memory with another buffer. That of rank ``own`` may overlap its send buffer."""
    cdef size_t i, j
    for i in range(recvs.size()):
        for j in range(sends.size() if i != own else 0):
            if overlap(&recvs[i], &sends[j]):
                raise InvalidArgumentError(f"{recv_names[i]} and {send_names[j]} share memory; receive into a tensor "
                                           f"of its own")
        for j in range(i):
            if overlap(&recvs[i], &recvs[j]):
                raise InvalidArgumentError(f"{recv_names[i]} and {recv_names[j]} share memory; receive into a tensor "
                                           f"of its own")
    return 0


cdef list as_list(object items, str name, int size):
    try:
        result = list(items)
    except TypeError:
        raise InvalidArgumentError(f"{name} is {type_name(items)}; pass a list with one tensor per rank") from None
    if len(result) != size:
        raise InvalidArgumentError(f"{name} has {len(result)} tensors, but the group has {size} ranks")
    return result


# size -> the names of the entries of the two lists in messages. Cached, because formatting many names costs more than
# the exchange.
cdef dict entry_names = {}


cdef tuple names_of_entries(int size):
    if size not in entry_names:
        entry_names[size] = [f"sends[{i}]" for i in range(size)], [f"recvs[{i}]" for i in range(size)]
    return entry_names[size]


cdef object prepare_list(Exchange& x, _CommunicatorBase comm, list sends, list recvs, bint keep):
    cdef vector[View] sent, received
    cdef vector[size_t] send_bytes, recv_bytes
    cdef bint held = False
    cdef int i, size = comm._size
    send_names, recv_names = names_of_entries(size)
    sent.resize(size)
    received.resize(size)
    tensors = []
    for i in range(size):
        tensors.append(view_of(sends[i], send_names[i], False, keep, &sent[i], stream_of(&x.call, &sent[0])))
        tensors.append(view_of(recvs[i], recv_names[i], True, keep, &received[i], stream_of(&x.call, &sent[0])))
        held = held or sent[i].held or received[i].held
    for i in range(size):
        if held:
            view_again(sends[i], send_names[i], False, keep, &sent[i], tensors, 2 * i)
            view_again(recvs[i], recv_names[i], True, keep, &received[i], tensors, 2 * i + 1)
        require_sendable(&sent[i], send_names[i])
        require_output(&received[i], recv_names[i], recvs[i])
    for i in range(size):
        require_pair(&x.call, &sent[i], send_names[i], &received[i], recv_names[i])
        require_pair(&x.call, &sent[0], "sends[0]", &received[i], recv_names[i])
        send_bytes.push_back(sent[i].nbytes)
        recv_bytes.push_back(received[i].nbytes)
        x.sends.push_back(sent[i].data)
        x.recvs.push_back(received[i].data)
    require_disjoint(sent, send_names, received, recv_names)
    lay_out_list(x.send_layouts, sent)
    lay_out_list(x.recv_layouts, received)
    x.listed = True
    x.call.unit_bytes = sent[0].dtype.bits * sent[0].dtype.lanes // 8
    x.plan = cpp_plan_alltoall_list(comm._rank, size, send_bytes, recv_bytes)
    return tensors


cdef PlanPtr plan_nothing(int rank, int size) except *:
    """Return the plan of a barrier."""
    cdef vector[size_t] nothing
    nothing.assign(size, 0)
    return cpp_plan_alltoall_list(rank, size, nothing, nothing)


cdef int64_t total_of(const CountList& counts, str name) except -1:
    """Return the rows of a result. Requires that the plan has refused negative counts."""
    cdef int64_t total = 0
    cdef size_t i
    for i in range(counts.size()):
        if not add(total, counts[i], total):
            raise InvalidArgumentError(f"{name} sums to more than 64 bits can hold")
    return total


cdef int require_enough(const View* view, str name, size_t bytes, str counts_name) except -1:
    if <size_t> view.nbytes < bytes:
        raise InvalidArgumentError(f"{name} {shape_text(view)} has {view.rows} rows, but {counts_name} needs "
                                   f"{bytes // <size_t> view.row_bytes}")
    return 0


cdef object prepare_global(Exchange& x, _CommunicatorBase comm, object tensor, object local_count, object global_count,
                           object out, bint keep):
    """Returns (output, tensors). Without ``out`` the output is allocated."""
    cdef View sent, received
    cdef CountList local, global_
    cdef bint gather = x.call.op == Op.global_gather, made = out is None
    parse_counts(local_count, "local_count", local)
    parse_counts(global_count, "global_count", global_)
    names = ("global_count", "local_count") if gather else ("local_count", "global_count")
    if made:
        refuse_lost_gradient(tensor, "x")
        view_of(tensor, "x", False, False, &sent, x.call.stream.handle)
        set_global_plan(x, comm, &sent, names[0], local, global_)
        out = allocate_like(tensor, &sent, total_of(local if gather else global_, names[1]))
    tensors = view_pair(x, tensor, "x", out, "out", keep, &sent, &received)
    set_global_plan(x, comm, &sent, names[0], local, global_)
    require_rows(&sent, "x", &received, "out")
    require_enough(&received, "out", recv_extent(x.plan), names[1])
    if made:
        require_made(&received, &sent, total_of(local if gather else global_, names[1]))
    return out, tensors


cdef int set_global_plan(Exchange& x, _CommunicatorBase comm, const View* sent, str name, const CountList& local,
                         const CountList& global_) except -1:
    if sent.ndim == 0:
        raise InvalidArgumentError("x is 0-d and has no rows; pass a tensor with at least one dimension")
    require_sendable(sent, "x")
    x.plan = cpp_plan_global(x.call.op == Op.global_gather, comm._rank, comm._size, sent.row_bytes, local, global_)
    return require_enough(sent, "x", send_extent(x.plan), name)


cdef object prepare_counts(Exchange& x, _CommunicatorBase comm, object send, object send_counts):
    """Prepare the first half of exchange(): every rank tells every other how many rows it will send. Returns both
    arrays."""
    cdef View view
    cdef CallCounts counts
    cdef int size = comm._size
    parse_rank_counts(send_counts, "send_counts", size, counts.to())
    refuse_lost_gradient(send, "send")
    view_of(send, "send", False, False, &view)
    require_sendable(&view, "send")
    if view.ndim == 0:
        raise InvalidArgumentError("send is 0-d and has no rows; pass a tensor with at least one dimension")
    require_kept_like(send, view.dtype)
    memory_of(&view, "send")  # raises if no transport serves it
    # This plan is not run: it checks this rank's sends before any peer is told.
    counts.from_().assign(counts.to().begin(), counts.to().end())
    counts.plan(comm._rank, size, view.row_bytes, view.rows, view.rows)
    given, wanted = np.empty(size, np.int64), np.empty(size, np.int64)
    tensors = prepare_alltoall(x, comm, given, wanted, 0, 0, True)
    memcpy(<void*> x.send, counts.to().data(), size * sizeof(int64_t))
    set_call_dtype(&x.call, &view)  # so that ranks with different dtypes disagree here, before they allocate
    x.call.unit_bytes = sizeof(int64_t)
    return tensors


cdef object prepare_exchange(Exchange& x, _CommunicatorBase comm, object send, object given, object wanted):
    """Prepare the second half of exchange(). Returns (output, tensors)."""
    cdef View sent, received
    cdef CallCounts counts
    cdef int rank = comm._rank, size = comm._size
    append_tensor(given, "send_counts", counts.to())
    append_tensor(wanted, "recv_counts", counts.from_())
    total = total_of(counts.from_(), "recv_counts")
    view_of(send, "send", False, False, &sent, x.call.stream.handle)
    counts.plan(rank, size, sent.row_bytes, sent.rows, total)  # checks the peers' counts before memory is allocated
    recv = allocate_like(send, &sent, total)
    tensors = view_pair(x, send, "send", recv, "recv", False, &sent, &received)
    require_made(&received, &sent, total)
    x.plan = counts.plan(rank, size, sent.row_bytes, sent.rows, total)
    return recv, tensors


cdef int prepare_global_plan(Exchange& x, _CommunicatorBase comm, object tensor, object local_count,
                             object global_count) except -1:
    cdef View view
    cdef CountList local, global_
    parse_counts(local_count, "local_count", local)
    parse_counts(global_count, "global_count", global_)
    view_of(tensor, "x", False, False, &view)
    if view.ndim == 0:
        raise InvalidArgumentError("x is 0-d and has no rows; pass a tensor with at least one dimension")
    set_call_memory(&x.call, &view, "x")
    set_call_dtype(&x.call, &view)
    x.plan = cpp_plan_global(x.call.op == Op.global_gather, comm._rank, comm._size, view.row_bytes, local, global_)
    return 0
