# Calls that allocate the received tensors need their shapes first. In one more exchange before, each rank sends every
# other the shape of the tensor for it.


cdef tuple prepare_shapes(Exchange& x, _CommunicatorBase comm, const vector[View]& sent):
    """Prepare the exchange of shapes. ``sent[p]`` is the tensor for rank p. Returns the arrays to send and to receive:
    a row for each rank, the number of dimensions first."""
    cdef size_t peer
    cdef int axis, size = comm._size
    given, wanted = np.zeros((size, 1 + MAX_NDIM), np.int64), np.empty((size, 1 + MAX_NDIM), np.int64)
    for peer in range(sent.size()):
        given[peer, 0] = sent[peer].ndim
        for axis in range(sent[peer].ndim):
            given[peer, 1 + axis] = sent[peer].shape[axis]
    prepare_alltoall(x, comm, given, wanted, 0, 0, True)
    set_call_dtype(&x.call, &sent[0])  # so that ranks with different dtypes disagree here, before they allocate
    x.call.unit_bytes = sizeof(int64_t)
    return given, wanted


cdef list allocate_shapes(object like, View* view, object shapes):
    """Allocate a tensor for each of those rows in the framework of ``like``, with the dtype and on the device of the
    view. Changes the shape of the view."""
    made = []
    for ndim, *shape in shapes.tolist():
        view.ndim = ndim
        for axis in range(ndim):
            view.shape[axis] = shape[axis]
        made.append(allocate_like(like, view, shape[0]))
    return made
