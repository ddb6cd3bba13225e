# Frameworks that record operations for a backward pass do not see the core's writes. These functions tell them of a
# write, and refuse a call that would silently lose a gradient.


cdef _Recorder recorder_of(object obj):
    cdef _ExchangeType kind
    if type(obj) is ndarray:
        return None
    kind = exchange_type_of(obj)
    return kind.recorder if kind is not None else kind_of(type(obj)).recorder


cdef int claim(object tensor, str name) except -1:
    """Tell the framework that the tensor is about to be written, without a gradient. Call it after all other checks."""
    cdef _Recorder recorder = recorder_of(tensor)
    if recorder is not None:
        refuse_recorded(recorder, tensor, name)
        recorder.note_write(tensor)
    return 0


cdef int mark_written(object tensor) except -1:
    """As claim(), where the caller handles the gradient. The framework then finds stale a tensor that was saved for a
    backward pass before."""
    cdef _Recorder recorder = recorder_of(tensor)
    if recorder is not None:
        recorder.note_write(tensor)
    return 0


cdef int claim_either(object send, object recv) except -1:
    """Claim the tensor with the result: ``recv``, or ``send`` where that is None."""
    return claim(send, "send") if recv is None else claim(recv, "recv")


cdef int claim_all(list tensors, list names) except -1:
    cdef Py_ssize_t i
    for i in range(len(tensors)):
        claim(tensors[i], names[i])
    return 0


cdef int refuse_recorded(_Recorder recorder, object tensor, str name) except -1:
    if recorder is not None and recorder.wants_gradient(tensor):
        raise InvalidArgumentError(f"{name} requires a gradient, and values received into it would have none; receive "
                                   f"into {name}.detach(), or use the differentiable call of {recorder.calls}")
    return 0


cdef int refuse_lost_gradient(object tensor, str name) except -1:
    """Raise if a call that allocates its result would lose a gradient."""
    cdef _Recorder recorder = recorder_of(tensor)
    if recorder is not None and recorder.wants_gradient(tensor):
        raise InvalidArgumentError(f"{name} requires a gradient, and the result of this call would have none; use the "
                                   f"differentiable call of {recorder.calls}, or pass {name}.detach()")
    return 0
