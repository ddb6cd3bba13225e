# Makes a View of any object. It tries in this order: the DLPack C exchange API of its type, NumPy's array structure,
# __dlpack__, a DLPack capsule, the buffer protocol. Nothing here copies a byte.

# Whether it is memory of the CPU, whose producers have no streams.
cdef inline bint is_host(int device_type) noexcept:
    return device_type == kDLCPU or device_type == kDLCUDAHost or device_type == kDLROCMHost


# The C exchange API of one type, and the recorder of its framework.
@cython.final
cdef class _ExchangeType:
    cdef const DLPackExchangeAPI* api
    cdef _Recorder recorder


# type -> _ExchangeType. Holds the types, so that no other type can take a cached address.
cdef dict exchange_types = {}


cdef _ExchangeType find_exchange_type(object kind):
    """Return the exchange API of a type that is not cached yet, or None."""
    cdef DLPackExchangeAPIHeader* header
    cdef _ExchangeType found
    capsule = getattr(kind, "__dlpack_c_exchange_api__", None)
    if capsule is None or not PyCapsule_IsValid(capsule, "dlpack_exchange_api"):
        return None
    header = <DLPackExchangeAPIHeader*> PyCapsule_GetPointer(capsule, "dlpack_exchange_api")
    while header != NULL and header.version.major != 1:
        header = header.prev_api
    if header == NULL:
        return None
    found = _ExchangeType.__new__(_ExchangeType)
    found.api = <const DLPackExchangeAPI*> header
    found.recorder = kind_of(kind).recorder
    exchange_types[kind] = found
    return found


cdef inline _ExchangeType exchange_type_of(object obj):
    cdef PyObject* cached = PyDict_GetItem(exchange_types, type(obj))
    return <_ExchangeType> cached if cached != NULL else find_exchange_type(type(obj))


cdef int refuse_lazy_sign(object obj, str name, DLDataType dtype, _Recorder recorder) except -1:
    """Raise for a lazily negated or conjugated tensor: its bytes are not its values, and no export says so."""
    if recorder is None or recorder.is_neg is None or dtype.code == kDLUInt or dtype.code >= kDLBool:
        return 0
    if dtype.code == kDLComplex and recorder.ask(recorder.is_conj, obj):
        raise InvalidArgumentError(f"{name} is a lazily conjugated tensor; pass {name}.resolve_conj()")
    if recorder.ask(recorder.is_neg, obj):
        raise InvalidArgumentError(f"{name} is a lazily negated tensor; pass {name}.resolve_neg()")
    return 0


cdef int refuse_sparse(object obj, str name, _Recorder recorder) except -1:
    if recorder is not None and recorder.is_dense is not None and not recorder.is_dense(obj):
        raise InvalidArgumentError(f"{name} is not a dense tensor; pass {name}.to_dense()")
    return 0


cdef int set_layout(View* view, str name, const int64_t* shape, const int64_t* strides, int64_t unit) except -1:
    """Fill in everything that follows from dtype, ndim, shape and strides. Strides count pieces of ``unit`` bytes;
    NULL means packed in C order."""
    cdef int i
    cdef int64_t total = view.dtype.bits * view.dtype.lanes // 8
    view.stream = NULL
    if total == 0 or (view.dtype.bits * view.dtype.lanes) % 8 != 0:
        raise InvalidArgumentError(f"{name} has dtype {dtype_name(view.dtype)}, whose elements are not whole bytes; "
                                   f"pass a uint8 view of its memory")
    view.rows, view.row_bytes, view.stride, view.contiguous, view.elem_bytes = 1, total, total, True, total
    for i in range(view.ndim - 1, -1, -1):
        view.shape[i], view.rows, view.row_bytes = shape[i], shape[i], total
        view.stride = total if strides == NULL else strides[i] * unit
        # The stride of a dimension of one entry has no meaning, and producers put any value there.
        if strides != NULL and shape[i] != 1 and strides[i] != total // unit:
            view.contiguous = False
        if shape[i] < 0 or not multiply(total, shape[i], total):
            raise InvalidArgumentError(f"{name} has a dimension of {shape[i]} entries of {view.row_bytes} bytes")
    view.nbytes = total
    if total == 0:
        view.contiguous = True
    if not view.contiguous:
        for i in range(view.ndim):
            view.strides[i] = strides[i] * unit
    set_extent(view)
    return require_memory(view, name)


cdef inline int require_memory(const View* view, str name) except -1:
    if view.data == NULL and view.nbytes > 0:
        raise InvalidArgumentError(f"{name} has {view.nbytes} bytes but no memory")
    return 0


cdef int set_dltensor(View* view, str name, const DLTensor* tensor) except -1:
    if tensor.ndim < 0 or tensor.ndim > MAX_NDIM or (tensor.ndim > 0 and tensor.shape == NULL):
        raise InvalidArgumentError(f"{name} has {tensor.ndim} dimensions; 0 to {MAX_NDIM} can be exchanged")
    view.data = <char*> NULL if tensor.data == NULL else <char*> tensor.data + tensor.byte_offset
    view.ndim = tensor.ndim
    view.dtype = tensor.dtype
    view.device = tensor.device
    return set_layout(view, name, tensor.shape, tensor.strides,
                      tensor.dtype.bits * tensor.dtype.lanes // 8)


cdef int set_managed(View* view, str name, const DLManagedTensorVersioned* managed) except -1:
    if managed.version.major != 1:
        raise InvalidArgumentError(f"{name} comes as DLPack {managed.version.major}.{managed.version.minor}; "
                                   f"this build reads version 1")
    # A write into a copy that the producer made would be lost.
    view.access = READ_ONLY if managed.flags & (
        DLPACK_FLAG_BITMASK_READ_ONLY | DLPACK_FLAG_BITMASK_IS_COPIED) else WRITABLE
    return set_dltensor(view, name, &managed.dl_tensor)


cdef object view_exchange(object obj, _ExchangeType kind, str name, bint output, bint keep, View* view):
    """View by the C exchange API. Borrows the tensor if that is enough. Only a managed tensor says whether it may be
    written, and outlives this call."""
    cdef DLTensor tensor
    cdef DLManagedTensorVersioned* managed = NULL
    cdef object holder = obj
    if kind.recorder is not None and kind.recorder.dispatches:
        if kind.recorder.values is not None:
            values = kind.recorder.values(obj)
            return view_exchange(values, exchange_type_of(values), name, output, keep, view)
        raise InvalidArgumentError(f"{name} ({type_name(obj)}) has its values in other tensors, or nowhere; pass a "
                                   f"plain tensor, such as {name}.to_local() of a DTensor")
    refuse_sparse(obj, name, kind.recorder)
    view.held = False
    try:
        if output or keep or kind.api.dltensor_from_py_object_no_sync == NULL:
            kind.api.managed_tensor_from_py_object_no_sync(<PyObject*> obj, &managed)
        else:
            kind.api.dltensor_from_py_object_no_sync(<PyObject*> obj, &tensor)
    except MemoryError:
        raise
    except Exception as error:
        raise InvalidArgumentError(f"{name} ({type_name(obj)}) has no plain memory: {first_line(error)}") from error
    if managed == NULL:
        view.access = UNKNOWN
        set_dltensor(view, name, &tensor)
    elif keep:  # the object may get other memory meanwhile, as by Tensor.set_()
        holder = to_capsule(managed)
        set_managed(view, name, managed)
    else:
        try:
            set_managed(view, name, managed)
        finally:
            release(managed)
    if not is_host(view.device.device_type):
        set_stream(obj, kind, view)
    refuse_lazy_sign(obj, name, view.dtype, kind.recorder)
    return holder


cdef int set_stream(object obj, _ExchangeType kind, View* view) except -1:
    """Enter the current stream of the tensor's framework on its device."""
    if view.device.device_type == kDLExtDev:  # the exchange API has no streams for it
        current = current_stream_of(kind_of(type(obj)).framework, "npu", view.device.device_id)
        view.stream = <void*> <uintptr_t> (current or 0)
    elif kind.api.current_work_stream != NULL:
        kind.api.current_work_stream(view.device.device_type, view.device.device_id, &view.stream)
    return 0


cdef object view_capsule(object capsule, str name, bint own, bint known_producer, View* view):
    """View a DLPack capsule. It stays unconsumed, and its destructor frees the tensor; with ``own`` it is consumed."""
    cdef DLManagedTensorVersioned* managed
    cdef DLManagedTensor* legacy
    view.held = True
    if PyCapsule_IsValid(capsule, "dltensor_versioned"):
        managed = <DLManagedTensorVersioned*> PyCapsule_GetPointer(capsule, "dltensor_versioned")
        set_managed(view, name, managed)
        if own:
            PyCapsule_SetName(capsule, "used_dltensor_versioned")
            return to_capsule(managed)
    elif PyCapsule_IsValid(capsule, "dltensor"):
        legacy = <DLManagedTensor*> PyCapsule_GetPointer(capsule, "dltensor")
        view.access = WRITABLE if known_producer else UNKNOWN
        set_dltensor(view, name, &legacy.dl_tensor)
        if own:
            PyCapsule_SetName(capsule, "used_dltensor")
            return legacy_to_capsule(legacy)
    else:
        raise InvalidArgumentError(f"{name} is a capsule without an unused DLPack tensor: {capsule!r}")
    return capsule


cdef object call_dlpack(object obj, object stream):
    """Call obj.__dlpack__(). Ask for no copy and a versioned capsule if the method has these options."""
    options = {"max_version": (1, 3), "copy": False}
    first = None
    if stream is not None:  # host producers refuse streams
        options["stream"] = stream
    for dropped in ("copy", "max_version", None):
        try:
            return obj.__dlpack__(**options)
        except TypeError as error:
            # An error about an unknown argument; another error would be hidden by a second call.
            if dropped is None or "argument" not in str(error):
                raise
            del options[dropped]
            first = error
        except Warning:  # a missing option, where warnings are errors
            if first is None:
                raise
            raise first


cdef object current_stream_of(object framework, str memory, int device):
    """Return the handle of the stream on which a framework works; None if the framework does not say."""
    return None if framework is None else framework.current_stream(memory, device)


cdef tuple settle_stream(object framework, object device, void* stream):
    """Return the stream argument for the producer of a tensor on ``device``, and the stream on which the tensor may
    then be used.

    A producer that has a current stream gets -1, which means no ordering, because the operation runs on that stream.
    All others make ``stream`` wait for the work they have enqueued. They do not get -1 even where nothing is moved,
    because JAX takes it for the address of a stream. Only CUDA's stream numbers are known, so producers for other
    devices get -1, too."""
    cdef int kind = int(device[0])
    if is_host(kind):
        return None, 0
    if kind != kDLCUDA and kind != kDLCUDAManaged:
        return -1, 0
    current = current_stream_of(framework, "cuda", device[1])
    if current is not None:
        return -1, current
    told = <uintptr_t> stream or 1  # DLPack has no stream 0; 1 is the default stream
    return told, told


cdef object view_protocol(object obj, str name, View* view, void* stream):
    """View a tensor that has __dlpack__ but no C exchange API."""
    cdef _Kind kind = kind_of(type(obj))
    framework = kind.framework
    try:
        told, usable = settle_stream(framework, obj.__dlpack_device__(), stream)
        capsule = call_dlpack(obj, told)
    except MemoryError:
        raise
    except Exception as error:
        raise InvalidArgumentError(f"{name} ({type_name(obj)}) cannot be exported: {first_line(error)}") from error
    # A legacy capsule cannot say whether it may be written.
    view_capsule(capsule, name, False, framework is not None or type(obj) is _NewArray, view)
    view.stream = <void*> <uintptr_t> usable
    if framework is not None and framework.immutable:
        view.access = READ_ONLY
    refuse_lazy_sign(obj, name, view.dtype, kind.recorder)
    return capsule


cdef bint is_tensor(object obj):
    """Whether view_of supports this type."""
    return (cnp.PyArray_Check(obj) or exchange_type_of(obj) is not None or hasattr(obj, "__dlpack__")
            or PyCapsule_CheckExact(obj) or PyObject_CheckBuffer(obj))


cdef object view_of(object obj, str name, bint output, bint keep, View* view, void* stream=NULL):
    """Fill in the view of a tensor and return the object that keeps its memory.

    Args:
        obj: any tensor.
        name: its name in messages.
        output: whether it will be written; only then ``view.access`` is sure to be known.
        keep: whether the memory must outlive the call. Otherwise the caller's reference to ``obj`` may be the result.
        stream: the stream on which a device tensor will be used, if it is known; NULL is the default stream. For
            producers that have no current stream of their own.
    """
    cdef _ExchangeType kind
    if type(obj) is ndarray:
        return view_numpy(obj, name, view)
    kind = exchange_type_of(obj)
    if kind is not None:
        return view_exchange(obj, kind, name, output, keep, view)
    if cnp.PyArray_Check(obj):
        refuse_more_than_bytes(obj, name)
        return view_numpy(obj, name, view)
    if hasattr(obj, "__dlpack__") and hasattr(obj, "__dlpack_device__"):
        return view_protocol(obj, name, view, stream)
    if PyCapsule_CheckExact(obj):
        return view_capsule(obj, name, keep, False, view)
    if PyObject_CheckBuffer(obj):
        return view_buffer(obj, name, view)
    raise InvalidArgumentError(
        f"{name} is not a tensor: {type_name(obj)} has no DLPack, no buffer and is no NumPy array; "
        f"{advice_for(obj, output)}")


cdef str advice_for(object obj, bint output):
    """What to pass in place of an object that is not a tensor. What asarray() makes of it is a copy, which nobody would
    have after it was written."""
    if output:
        return "pass an array to write into, such as numpy.empty(shape, dtype)"
    convertible = isinstance(obj, (list, tuple, range, int, float, complex)) or hasattr(obj, "__array__")
    if convertible or hasattr(obj, "__array_interface__"):
        return "pass numpy.asarray(x)"
    return "pass an array or a tensor"
