# Tensors with gaps between their elements, and tensors that are divided along an axis.


cdef void set_extent(View* view) noexcept:
    """Set the begin and the end of a view's memory, gaps included."""
    cdef int64_t reach
    cdef int i
    view.begin, view.end = view.data, view.data + view.nbytes
    if view.contiguous or view.nbytes == 0:
        return
    view.end = view.data + view.elem_bytes
    for i in range(view.ndim):
        reach = (view.shape[i] - 1) * view.strides[i]
        if reach < 0:
            view.begin += reach
        else:
            view.end += reach


cdef bint meets(const View* a, const View* b) noexcept:
    """Whether the memory of one lies between the ends of the other."""
    return a.nbytes > 0 and b.nbytes > 0 and a.begin < b.end and b.begin < a.end


# The place in NumPy 2, and the one before 1.25.
cdef object too_hard = getattr(np, "exceptions", np).TooHardError


class _Bytes:
    """An object with the array interface of a view, for NumPy."""

    def __init__(self, interface):
        self.__array_interface__ = interface


cdef object bytes_of(const View* view):
    """Return a NumPy array over the memory of the view, with elements of the same size but no meaning."""
    cdef int64_t[MAX_NDIM] strides
    set_strides(view, strides)
    return np.asarray(_Bytes({
        "data": (<uintptr_t> view.data, True),
        "shape": tuple([view.shape[i] for i in range(view.ndim)]),
        "strides": tuple([strides[i] for i in range(view.ndim)]),
        "typestr": f"|V{view.elem_bytes}",
        "version": 3,
    }))


cdef bint overlap(const View* a, const View* b) except -1:
    """Whether two tensors share memory. True also where the answer would take long."""
    if not meets(a, b):
        return False
    if a.contiguous and b.contiguous:
        return True
    try:
        return np.shares_memory(bytes_of(a), bytes_of(b), max_work=100_000)
    except too_hard:
        return True


cdef void set_strides(const View* view, int64_t* strides) noexcept:
    """Write the strides of any view."""
    cdef int64_t total = view.elem_bytes
    cdef int i
    for i in range(view.ndim - 1, -1, -1):
        strides[i] = total if view.contiguous else view.strides[i]
        total *= view.shape[i]


cdef KeptLayout layout_of(const View* view, int axis=0, bint compares=False) except *:
    cdef int64_t[MAX_NDIM] strides
    set_strides(view, strides)
    return KeptLayout(view.ndim, view.shape, strides, view.elem_bytes, axis, compares)


cdef bint is_divided(const Exchange& x) noexcept:
    """Whether the tensors are divided along an axis other than the first."""
    return x.split_axis != 0 or x.concat_axis != 0


cdef int lay_out(Exchange& x, const View* sent, const View* received) except -1:
    """Enter the memory layouts of two tensors into the call. NULL: there is none on that side."""
    cdef bint divided = is_divided(x)
    x.send_layouts.clear()
    x.recv_layouts.clear()
    if sent != NULL and sent.nbytes > 0 and (divided or not sent.contiguous):
        x.send_layouts.push_back(layout_of(sent, x.split_axis, divided))
    if received != NULL and received.nbytes > 0 and (divided or not received.contiguous):
        x.recv_layouts.push_back(layout_of(received, x.concat_axis, divided))
    return 0


cdef int lay_out_list(KeptLayouts& layouts, const vector[View]& views) except -1:
    """Enter the memory layouts of the tensors of a list, if any of them has gaps."""
    cdef bint gaps = False
    cdef size_t i
    layouts.clear()
    for i in range(views.size()):
        gaps = gaps or not views[i].contiguous
    for i in range(views.size() if gaps else 0):
        layouts.push_back(layout_of(&views[i]))
    return 0


cdef int require_sendable(const View* view, str name) except -1:
    """Raise unless a transport can read the memory."""
    if view.contiguous or is_host(view.device.device_type):
        return 0
    return require_contiguous(view, name)


cdef int require_writable_layout(const View* view, str name) except -1:
    """Raise unless a transport can write the memory and no two elements share it."""
    if view.contiguous:
        return 0
    if not is_host(view.device.device_type):
        raise InvalidArgumentError(f"{name} of shape {shape_text(view)} is not contiguous, and gaps are for host "
                                   f"memory; receive into a contiguous tensor and copy from there")
    if not are_apart(layout_of(view)):
        raise InvalidArgumentError(f"{name} of shape {shape_text(view)} has elements that may share memory, as those "
                                   f"of broadcast_to() and expand() do; receive into a tensor of its own")
    return 0


cdef bint same_layout(const View* a, const View* b) noexcept:
    """Whether two views have the same elements at the same addresses."""
    cdef int64_t[MAX_NDIM] first, second
    cdef int i
    if a.data != b.data or a.ndim != b.ndim or a.elem_bytes != b.elem_bytes:
        return False
    set_strides(a, first)
    set_strides(b, second)
    for i in range(a.ndim):
        if a.shape[i] != b.shape[i] or (a.shape[i] > 1 and first[i] != second[i]):
            return False
    return True


cdef bint is_part(const View* part, const View* whole, int64_t offset) noexcept:
    """Whether ``part`` is in place: its elements are those of ``whole``, in C order, from byte ``offset`` on."""
    cdef int64_t[MAX_NDIM] of_part, of_whole
    cdef int64_t below = whole.elem_bytes, place = 0, entries, first = 0
    cdef int i, shared = min(part.ndim, whole.ndim)
    if part.contiguous and whole.contiguous:
        return part.data == whole.data + offset
    set_strides(part, of_part)
    set_strides(whole, of_whole)
    for i in range(whole.ndim - 1, -1, -1):
        entries = offset // below % whole.shape[i] if whole.shape[i] > 0 else 0
        if i == whole.ndim - shared:
            first = entries
        place += entries * of_whole[i]
        below *= whole.shape[i]
        if below == 0:
            return False
    for i in range(1, shared + 1):
        if part.shape[part.ndim - i] > 1 and of_part[part.ndim - i] != of_whole[whole.ndim - i]:
            return False
    for i in range(1, shared):  # the rest of the inner dimensions
        if part.shape[part.ndim - i] != whole.shape[whole.ndim - i]:
            return False
    for i in range(shared + 1, part.ndim + 1):
        if part.shape[part.ndim - i] != 1:
            return False
    if shared > 0 and part.shape[part.ndim - shared] > whole.shape[whole.ndim - shared] - first:
        return False  # it continues in the next entry of an outer dimension, which is not adjacent
    return part.data == whole.data + place


cdef int axis_of(int number, str name, const View* view, str tensor) except -1:
    """Return the number of a dimension of the view. A negative one counts from the last."""
    if not -view.ndim <= number < view.ndim:
        raise InvalidArgumentError(f"{name} is {number}, but {tensor} {shape_text(view)} has {view.ndim} dimensions")
    return number + view.ndim if number < 0 else number


# The division of a tensor along an axis. A row is one entry of the axis with all entries of the others.
cdef struct Side:
    const View* view
    int axis
    int64_t rows
    int64_t row_bytes


cdef Side side_of(const View* view, int axis) noexcept:
    cdef Side side
    cdef int i
    side.view, side.axis, side.rows, side.row_bytes = view, axis, view.shape[axis], view.elem_bytes
    for i in range(view.ndim):
        if i != axis:
            side.row_bytes *= view.shape[i]
    return side


cdef int64_t block_entries(const Side* side, int64_t rows, int i) noexcept:
    """Return the entries of dimension i of a block of ``rows`` rows."""
    return rows if i == side.axis else side.view.shape[i]


cdef int require_alike_blocks(const Side* sent, int64_t send_rows, const Side* received, int64_t recv_rows,
                              int rank) except -1:
    """Raise unless the blocks of both sides have one shape, that of this rank's own block."""
    cdef int i
    if sent.view.ndim != received.view.ndim:
        raise InvalidArgumentError(f"send {shape_text(sent.view)} and recv {shape_text(received.view)} have different "
                                   f"numbers of dimensions")
    for i in range(sent.view.ndim):
        if block_entries(sent, send_rows, i) != block_entries(received, recv_rows, i):
            raise InvalidArgumentError(
                f"rank {rank} would send itself a block of shape {block_text(sent, send_rows)} of send "
                f"{shape_text(sent.view)}, divided along axis {sent.axis}, and receive one of shape "
                f"{block_text(received, recv_rows)} into recv {shape_text(received.view)} along axis {received.axis}")
    return 0


cdef str block_text(const Side* side, int64_t rows):
    return str(tuple([block_entries(side, rows, i) for i in range(side.view.ndim)]))


cdef int rows_to_bytes(const Side* side, CountList& counts, str counts_name, CountList& displs,
                       str displs_name) except -1:
    """Check counts and displacements of rows, and convert them to bytes."""
    cdef int64_t packed = 0, displ
    cdef size_t i
    for i in range(counts.size()):
        displ = packed if displs.empty() else displs[i]
        if counts[i] < 0 or displ < 0:
            raise InvalidArgumentError(f"{counts_name}[{i}] = {counts[i]} at {displs_name}[{i}] = {displ} is negative")
        if counts[i] > 0 and (displ > side.rows or counts[i] > side.rows - displ):
            raise InvalidArgumentError(f"{counts_name}[{i}] = {counts[i]} at displacement {displ} leaves axis "
                                       f"{side.axis} of a tensor of shape {shape_text(side.view)}")
        packed = displ + counts[i] if counts[i] > 0 else packed
        counts[i] *= side.row_bytes
        if not displs.empty():
            displs[i] = displ * side.row_bytes if counts[i] > 0 else 0
    return 0


cdef int plan_divided(Exchange& x, int rank, int size, const View* sent, const View* received,
                      CallCounts& counts) except -1:
    """Make the plan of an exchange along the axes in ``x`` with counts of rows."""
    cdef Side to = side_of(sent, x.split_axis), from_ = side_of(received, x.concat_axis)
    if counts.to()[rank] != 0 or counts.from_()[rank] != 0:
        require_alike_blocks(&to, counts.to()[rank], &from_, counts.from_()[rank], rank)
    rows_to_bytes(&to, counts.to(), "send_counts", counts.to_displs(), "send_displs")
    rows_to_bytes(&from_, counts.from_(), "recv_counts", counts.from_displs(), "recv_displs")
    x.call.unit_bytes = sent.elem_bytes if is_divided(x) else sent.row_bytes
    x.send_shape.assign(&sent.shape[0], &sent.shape[0] + sent.ndim)
    x.recv_shape.assign(&received.shape[0], &received.shape[0] + received.ndim)
    x.plan = counts.plan(rank, size, 1, sent.nbytes, received.nbytes)
    return 0
