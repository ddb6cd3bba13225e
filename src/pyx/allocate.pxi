# New tensors in the framework of another: outputs of exchange() and out=None, and Communicator.empty().


cdef void keep_error(void* context, const char* kind, const char* message) noexcept with gil:
    (<list> context).append(message.decode(errors="replace"))


cdef object allocate_exchange(const DLPackExchangeAPI* api, const View* view, int64_t rows):
    """Allocate ``rows`` rows shaped like those of the view, by the allocator of its framework."""
    cdef DLTensor prototype
    cdef DLManagedTensorVersioned* managed = NULL
    cdef int64_t[MAX_NDIM] shape
    cdef int64_t[MAX_NDIM] strides
    cdef int64_t stride = 1
    cdef void* made = NULL
    cdef list errors = []
    cdef int i
    for i in range(view.ndim - 1, -1, -1):
        shape[i] = view.shape[i] if i > 0 else rows
        strides[i] = stride
        stride *= shape[i]
    prototype.data, prototype.shape, prototype.strides, prototype.byte_offset = NULL, shape, strides, 0
    prototype.device, prototype.dtype, prototype.ndim = view.device, view.dtype, view.ndim
    if api.managed_tensor_allocator(&prototype, &managed, <void*> errors, keep_error) != 0:
        raise MemoryError(f"cannot allocate {rows} rows of {view.row_bytes} bytes: {'; '.join(errors)}")
    api.managed_tensor_to_py_object_no_sync(managed, &made)
    result = <object> made
    Py_DECREF(result)  # the call has returned a reference of its own
    return result


cdef object allocate_like(object tensor, const View* view, int64_t rows):
    """Return an uninitialised tensor of ``rows`` rows shaped like those of the view, in the framework of ``tensor`` and
    on its device. Where convert_like(tensor) is not None, the result is a buffer, which that function turns into the
    tensor."""
    cdef _ExchangeType kind
    cdef bint numpy = cnp.PyArray_Check(tensor)
    cdef int i
    require_kept_like(tensor, view.dtype)
    if not numpy:
        kind = exchange_type_of(tensor)
        # A SharedArray is on a device only if another package allocated its memory.
        if kind is not None and (type(tensor) is not SharedArray or is_host(view.device.device_type)):
            return allocate_exchange(kind.api, view, rows)
    shape = [view.shape[i] if i > 0 else rows for i in range(view.ndim)]
    if is_host(view.device.device_type):
        return np.empty(shape, tensor.dtype if numpy else numpy_dtype(view.dtype))
    framework = kind_of(type(tensor)).framework
    made = None if framework is None else framework.empty_like(tensor, shape)
    if made is None:
        raise UnsupportedError(f"{type_name(tensor)} gives no way to make another one on a device; receive into a "
                               f"tensor of your own, with a call that takes one")
    if not framework.immutable:
        return made
    array = _NewArray.__new__(_NewArray)
    (<_NewArray> array).array = made
    return array


cdef int require_kept(object framework, DLDataType dtype) except -1:
    """Raise unless the framework can make tensors of this dtype. None: this package."""
    if framework is None:
        return 0
    if framework.name == "numpy":
        numpy_dtype(dtype)  # raises where ml_dtypes is missing
    framework.require_dtype(dtype_name(dtype))
    return 0


cdef int require_kept_like(object tensor, DLDataType dtype) except -1:
    """The same for the framework of a tensor. Those with the exchange API raise when they allocate."""
    if cnp.PyArray_Check(tensor):
        numpy_dtype(dtype)
    elif exchange_type_of(tensor) is None:
        require_kept(kind_of(type(tensor)).framework, dtype)
    return 0


cdef int require_made(const View* made, const View* like, int64_t rows) except -1:
    """Raise unless a framework has made ``rows`` rows shaped like those of the view."""
    cdef int i
    cdef bint alike = same_dtype(made.dtype, like.dtype) and made.ndim == like.ndim and made.rows == rows
    for i in range(1, made.ndim):
        alike = alike and made.shape[i] == like.shape[i]
    if not alike:
        raise UnsupportedError(f"the framework made a tensor of {dtype_name(made.dtype)} {shape_text(made)} instead of "
                               f"{rows} rows of {dtype_name(like.dtype)} like those of {shape_text(like)}")
    return 0


@cython.final
cdef class _NewArray:
    """An array of a framework whose arrays are immutable. The program has no reference to it yet, so it may be
    written."""

    cdef object array

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)


def convert_to(framework, like, made):
    """Convert the buffer that was received into to a tensor of the framework of ``like``."""
    return framework.convert(like, (<_NewArray> made).array if type(made) is _NewArray else made)


cdef object convert_like(object tensor):
    """Return the function that turns the result of allocate_like(tensor) into the framework of ``tensor`` once the
    operation is done; None where it is already of that framework."""
    if type(tensor) is ndarray or exchange_type_of(tensor) is not None:
        return None
    framework = kind_of(type(tensor)).framework
    return None if framework is None or framework.convert is None else partial(convert_to, framework, tensor)


cdef object parse_like(object like):
    """Return the framework that ``like`` names or comes from. None: this package, whose tensors are SharedArrays."""
    if type(like) is SharedArray or (isinstance(like, str) and like == "a2a"):
        return None
    framework = frameworks().named(like) if isinstance(like, str) else kind_of(type(like)).framework
    if framework is None or "host" not in framework.memories:
        names = [f'"{name}"' for name in (*frameworks().known("host"), "a2a")]
        raise InvalidArgumentError(f"like is {shown(like)}; pass {', '.join(names)}, or a tensor of one of them")
    return framework


cdef object as_framework(SharedArray array, object framework, bint in_place):
    """Return the array as a tensor of that framework, over the same memory; see parse_like. Without ``in_place`` it may
    be a copy, which JAX makes of memory whose alignment it does not support."""
    cdef View ours, theirs
    if framework is None:
        return array
    if framework.name == "numpy":
        return np.ndarray(array.shape, numpy_dtype(array.tensor.dtype), array)
    made = framework.from_dlpack(writable_twin(array) if array.readonly and framework.immutable else array)
    view_of(array, "array", False, False, &ours)
    view_of(made, "array", False, False, &theirs)
    require_made(&theirs, &ours, ours.rows)
    if in_place and ours.nbytes > 0 and ours.data != theirs.data:
        raise UnsupportedError(f"{framework.name} copied {array!r} instead of taking over its memory")
    return made


cdef object empty_like(object like, DLDataType dtype, object shape):
    """Allocate an array in shared memory as a tensor of the framework that ``like`` names or comes from."""
    framework = parse_like(like)
    require_kept(framework, dtype)  # before memory is allocated
    return as_framework(allocate_array(dtype, shape), framework, True)
