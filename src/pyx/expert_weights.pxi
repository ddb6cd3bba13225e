# The weights of experts, which move from rank to rank.


def rows_of(tensor, str name, bint writable=False):
    """Return a tensor over the memory of each entry of the first dimension. The tensor is on the host and packed."""
    cdef View view
    cdef int64_t i
    holder = view_of(tensor, name, writable, False, &view)
    if memory_of(&view, name) != Memory.host:
        raise UnsupportedError(f"{name} is on a device; pass a copy on the host")
    if view.ndim == 0 or not view.contiguous:
        raise InvalidArgumentError(f"{name} has shape {shape_text(&view)} and is not packed, or has no dimension; "
                                   f"pass a contiguous tensor [experts, ...]")
    shape = tuple([view.shape[i] for i in range(1, view.ndim)])
    dtype = dtype_name(view.dtype)
    rows = [from_pointer(<uintptr_t> (view.data + i * view.row_bytes), shape, dtype, owner=tensor,
                         readonly=not writable) for i in range(view.rows)]
    del holder
    return rows


def rows_like(tensor, int64_t count):
    """Return a new tensor of the framework and dtype of this one with so many entries, or the buffer from which
    convert_result() makes one."""
    cdef View view, made
    cdef int i
    refuse_lost_gradient(tensor, "weights")
    holder = view_of(tensor, "weights", False, False, &view)
    new = make_like(tensor, &view, (count, *[view.shape[i] for i in range(1, view.ndim)]), &made)
    del holder
    return new
