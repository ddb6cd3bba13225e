# Caches what a2a.frameworks knows about the framework of a tensor, by the type of the tensor.


@cython.final
cdef class _Recorder:
    """a2a.frameworks.Recorder, for one type."""

    cdef object requires_grad, grad_enabled, wrote
    cdef object is_neg, is_conj, is_dense, guard, values    # None where the framework has no such function
    cdef bint opposite, several, dispatches
    cdef str calls

    cdef object ask(self, object question, object tensor):
        if self.guard is None:
            return question(tensor)
        with self.guard():
            return question(tensor)

    cdef bint wants_gradient(self, object tensor) except -1:
        """Whether the framework records operations on the tensor now."""
        return bool(self.ask(self.requires_grad, tensor)) != self.opposite and self.grad_enabled()

    cdef int note_write(self, object tensor) except -1:
        """Tell the framework that the tensor is written."""
        self.wrote((tensor,) if self.several else tensor)
        return 0


cdef _Recorder make_recorder(object given):
    cdef _Recorder made = _Recorder.__new__(_Recorder)
    if given is None:
        return None
    made.requires_grad, made.grad_enabled, made.wrote = given.requires_grad, given.grad_enabled, given.wrote
    made.is_neg, made.is_conj, made.is_dense, made.guard = given.is_neg, given.is_conj, given.is_dense, given.guard
    made.values = given.values
    made.opposite, made.several = given.opposite, given.several
    made.dispatches, made.calls = given.dispatches, given.calls
    return made


# One type of tensors.
@cython.final
cdef class _Kind:
    cdef object framework       # None: a framework unknown to a2a
    cdef _Recorder recorder     # None: nothing is recorded of its tensors


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
        return unknown  # not cached: it may be registered later, and ctypes makes a type for every shape
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
    """Return the name of an object's framework, or the top-level package of its type."""
    framework = kind_of(type(obj)).framework
    if framework is not None:
        return framework.name
    root = type(obj).__module__.partition(".")[0]
    return "python" if root == "builtins" else root
