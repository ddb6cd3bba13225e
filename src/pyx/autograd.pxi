# Frameworks that record operations for a backward pass see nothing of what the core writes. So they are told, and a
# gradient that would be lost without a word is refused.


@cython.final
cdef class _Recorder:
    """How to ask and tell the framework of one type of tensors. Its own class answers, so that no Python code of a
    subclass runs where the memory of tensors has been taken already."""

    cdef object requires_grad   # of a tensor
    cdef bint opposite          # Paddle's says the opposite
    cdef object grad_enabled
    cdef object wrote
    cdef object is_neg, is_conj     # Torch's; None for others
    cdef object is_dense        # Paddle's, whose export takes every tensor for a dense one; None for others
    cdef object guard           # entered for a subclass, which could answer itself otherwise; None for none
    cdef str calls              # those that have a gradient

    cdef object ask(self, object question, object tensor):
        if self.guard is None:
            return question(tensor)
        with self.guard():
            return question(tensor)

    cdef bint wants_gradient(self, object tensor) except -1:
        """Whether what is done to the tensor now is recorded."""
        return bool(self.ask(self.requires_grad, tensor)) != self.opposite and self.grad_enabled()


cdef object base_of(object kind, str framework):
    """The framework's class of tensors, if it is loaded and ``kind`` is that or a child of it; otherwise None."""
    base = getattr(sys.modules.get(framework), "Tensor", None)
    return base if isinstance(base, type) and issubclass(kind, base) else None


cdef _Recorder find_recorder(object kind):
    """None for tensors that nothing is recorded of."""
    cdef _Recorder found = _Recorder.__new__(_Recorder)
    base = base_of(kind, "torch")
    if base is not None:
        torch = sys.modules["torch"]
        found.requires_grad, found.grad_enabled = base.requires_grad.__get__, torch.is_grad_enabled
        found.wrote, found.calls = torch._C._increment_version, "a2a.torch.nn"
        found.is_neg, found.is_conj, found.guard = base.is_neg, base.is_conj, guard_of(kind, torch)
        return found
    base = base_of(kind, "paddle")
    if base is not None:
        found.requires_grad, found.opposite = base.stop_gradient.__get__, True
        found.grad_enabled, found.calls = sys.modules["paddle"].is_grad_enabled, "a2a.paddle"
        found.is_dense = base.is_dense
        bump = base._bump_inplace_version
        found.wrote = lambda tensors: bump(tensors[0])
        return found
    return None


cdef object guard_of(object kind, object torch):
    """A subclass of Torch's tensors answers every question itself, with __torch_function__."""
    if kind is torch.Tensor or kind.__torch_function__ is torch._C._disabled_torch_function_impl:
        return None
    return torch._C.DisableTorchFunctionSubclass


cdef _Recorder recorder_of(object obj):
    cdef _ExchangeType kind
    if type(obj) is ndarray:
        return None
    kind = exchange_type_of(obj)
    return kind.recorder if kind is not None else find_recorder(type(obj))


cdef int claim(object tensor, str name) except -1:
    """The tensor is about to be written, by a call that nothing else can refuse any more, and without a gradient."""
    cdef _Recorder recorder = recorder_of(tensor)
    if recorder is not None:
        refuse_recorded(recorder, tensor, name)
        recorder.wrote((tensor,))
    return 0


cdef int mark_written(object tensor) except -1:
    """As claim(), where somebody else sees to the gradient. A tensor that was saved for a backward pass before is then
    found to be stale."""
    cdef _Recorder recorder = recorder_of(tensor)
    if recorder is not None:
        recorder.wrote((tensor,))
    return 0


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
    """Of a call that makes its own result."""
    cdef _Recorder recorder = recorder_of(tensor)
    if recorder is not None and recorder.wants_gradient(tensor):
        raise InvalidArgumentError(f"{name} requires a gradient, and the result of this call would have none; use the "
                                   f"differentiable call of {recorder.calls}, or pass {name}.detach()")
    return 0
