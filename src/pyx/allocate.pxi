# New tensors in the framework of another: outputs of exchange() and out=None, and Communicator.empty().


cdef void keep_error(void* context, const char* kind, const char* message) noexcept with gil:
    (<list> context).append(message.decode(errors="replace"))


cdef object allocate_exchange(const DLPackExchangeAPI* api, const View* view, int64_t rows):
    """``rows`` rows shaped like those of the view, from the allocator of its framework."""
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
    Py_DECREF(result)  # the call gave us a reference of our own
    return result


cdef object allocate_like(object tensor, const View* view, int64_t rows):
    """An uninitialised tensor of ``rows`` rows shaped like those of the view, in the framework of ``tensor`` and on its
    device. For JAX it is something to write into, of which convert_like then makes an array."""
    cdef _ExchangeType kind
    cdef bint numpy = cnp.PyArray_Check(tensor)
    cdef int i
    require_kept(framework_of(tensor), view.dtype)
    if not numpy:
        kind = exchange_type_of(tensor)
        # Our own arrays lie on a device only where somebody else allocated them.
        if kind is not None and (type(tensor) is not SharedArray or is_host(view.device.device_type)):
            return allocate_exchange(kind.api, view, rows)
    shape = [view.shape[i] if i > 0 else rows for i in range(view.ndim)]
    if is_host(view.device.device_type):
        return np.empty(shape, tensor.dtype if numpy else numpy_dtype(view.dtype))
    framework = framework_of(tensor)
    if framework == "cupy":
        with tensor.device:
            return importlib.import_module("cupy").empty(shape, tensor.dtype)
    if framework == "jax":
        array = _NewJaxArray.__new__(_NewJaxArray)
        (<_NewJaxArray> array).array = like_jax(
            tensor, partial(importlib.import_module("jax.numpy").empty, shape, tensor.dtype))
        return array
    raise UnsupportedError(f"{type_name(tensor)} gives no way to make another one on a device; receive into a tensor "
                           f"of your own, with a call that takes one")


cdef int require_kept(str framework, DLDataType dtype) except -1:
    """Whether tensors of this dtype can be made for the framework, in which JAX's 32-bit mode would shorten others."""
    if framework == "numpy":
        numpy_dtype(dtype)  # a missing ml_dtypes
    if framework != "jax" or dtype.bits < 64:
        return 0
    import jax
    if jax.dtypes.canonicalize_dtype(numpy_dtype(dtype)) != numpy_dtype(dtype):
        raise InvalidArgumentError(f"JAX makes no arrays of {dtype_name(dtype)} in its 32-bit mode; call "
                                   f"jax.config.update(\"jax_enable_x64\", True), or ask for another framework")
    return 0


cdef int require_made(const View* made, const View* like, int64_t rows) except -1:
    """Whether a framework has made ``rows`` rows shaped like those of the view."""
    cdef int i
    cdef bint alike = same_dtype(made.dtype, like.dtype) and made.ndim == like.ndim and made.rows == rows
    for i in range(1, made.ndim):
        alike = alike and made.shape[i] == like.shape[i]
    if not alike:
        raise UnsupportedError(f"the framework made a tensor of {dtype_name(made.dtype)} {shape_text(made)} instead of "
                               f"{rows} rows of {dtype_name(like.dtype)} like those of {shape_text(like)}")
    return 0


@cython.final
cdef class _NewJaxArray:
    """A JAX array on a device that nobody has seen yet, so that it may still be written."""

    cdef object array

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)


def like_jax(tensor, make):
    """The JAX array that ``make`` returns, on the device of ``tensor``, also where JAX prefers another one, and bound
    to it as ``tensor`` is."""
    jax = importlib.import_module("jax")
    device = next(iter(tensor.devices()))
    with jax.default_device(device):
        array = make()
    return jax.device_put(array, device) if getattr(tensor, "committed", True) else array


def to_jax(tensor, made):
    if isinstance(made, _NewJaxArray):
        return (<_NewJaxArray> made).array
    array = like_jax(tensor, partial(importlib.import_module("jax.numpy").asarray, made))
    if array.dtype != made.dtype or array.shape != made.shape:
        raise UnsupportedError(f"JAX made an array of {array.dtype} {array.shape} of {made.dtype} {made.shape}")
    return array


cdef object convert_like(object tensor):
    """What turns the result of allocate_like(tensor) into the framework of ``tensor``, once the operation is over; None
    where it is already."""
    return partial(to_jax, tensor) if framework_of(tensor) == "jax" else None


cdef str parse_like(object like):
    """The framework that ``like`` names or comes from."""
    name = like if isinstance(like, str) else framework_of(like)
    if name not in ("numpy", "torch", "paddle", "jax", "a2a"):
        raise InvalidArgumentError(f"like is {shown(like)}; pass \"numpy\", \"torch\", \"paddle\", \"jax\" or one of "
                                   f"their tensors")
    return name


cdef object as_framework(SharedArray array, str framework, bint in_place):
    """The array as a tensor of that framework, over the same memory. Without ``in_place`` a copy will do, which JAX
    makes of memory that is not aligned as it likes."""
    cdef View ours, theirs
    if framework == "a2a":
        return array
    if framework == "numpy":
        return np.ndarray(array.shape, numpy_dtype(array.tensor.dtype), array)
    if framework == "jax":
        import jax.dlpack
        made = jax.dlpack.from_dlpack(writable_twin(array) if array.readonly else array)
    else:
        made = importlib.import_module(framework).from_dlpack(array)
    view_of(array, "array", False, False, &ours)
    view_of(made, "array", False, False, &theirs)
    require_made(&theirs, &ours, ours.rows)
    if in_place and ours.nbytes > 0 and ours.data != theirs.data:
        raise UnsupportedError(f"{framework} copied {array!r} instead of taking over its memory")
    return made


cdef object empty_like(object like, DLDataType dtype, object shape):
    """An array in shared memory as a tensor of the framework ``like`` names or comes from."""
    name = parse_like(like)
    require_kept(name, dtype)  # before memory is taken
    return as_framework(allocate_array(dtype, shape), name, True)
