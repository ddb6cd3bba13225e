# What a2a.frameworks says of a tensor's framework. It is asked once for each type of tensors; exchanges find the
# answers here.


@cython.final
cdef class _Recorder:
    """a2a.frameworks.Recorder, for one type."""

    cdef object requires_grad, grad_enabled, wrote
    cdef object is_neg, is_conj, is_dense, guard    # None where there is nothing to ask, or to enter
    cdef bint opposite, several, dispatches
    cdef str calls

    cdef object ask(self, object question, object tensor):
        if self.guard is None:
            return question(tensor)
        with self.guard():
            return question(tensor)

    cdef bint wants_gradient(self, object tensor) except -1:
        """Whether what is done to the tensor now is recorded."""
        return bool(self.ask(self.requires_grad, tensor)) != self.opposite and self.grad_enabled()

    cdef int tell(self, object tensor) except -1:
        """That the tensor is written."""
        self.wrote((tensor,) if self.several else tensor)
        return 0


cdef _Recorder make_recorder(object told):
    cdef _Recorder made = _Recorder.__new__(_Recorder)
    if told is None:
        return None
    made.requires_grad, made.grad_enabled, made.wrote = told.requires_grad, told.grad_enabled, told.wrote
    made.is_neg, made.is_conj, made.is_dense, made.guard = told.is_neg, told.is_conj, told.is_dense, told.guard
    made.opposite, made.several, made.dispatches, made.calls = told.opposite, told.several, told.dispatches, told.calls
    return made


# One type of tensors.
@cython.final
cdef class _Kind:
    cdef object framework       # None for one that a2a does not know
    cdef _Recorder recorder     # None for tensors that nothing is recorded of


cdef _Kind unknown = _Kind.__new__(_Kind)

# type -> _Kind. Holds the types, so that no other type can take a cached address.
cdef dict kinds = {}


cdef object registry = None     # a2a.frameworks, which imports this module


cdef object frameworks():
    global registry
    if registry is None:
        registry = importlib.import_module("a2a.frameworks")
    return registry


cdef _Kind find_kind(object type_):
    cdef _Kind kind
    framework = frameworks().of(type_)
    if framework is None and type_.__module__ != "builtins":
        return unknown  # Not kept: it may be told yet, and ctypes makes a type for every shape.
    kind = _Kind.__new__(_Kind)
    kind.framework = framework
    if framework is not None:
        kind.recorder = make_recorder(framework.recorder(type_))
    kinds[type_] = kind
    return kind


cdef inline _Kind kind_of(object type_):
    cdef PyObject* cached = PyDict_GetItem(kinds, type_)
    return <_Kind> cached if cached != NULL else find_kind(type_)


cdef str framework_of(object obj):
    """The name of an object's framework, or the top-level package that its type comes from."""
    framework = kind_of(type(obj)).framework
    if framework is not None:
        return framework.name
    root = type(obj).__module__.partition(".")[0]
    return "python" if root == "builtins" else root
