# The tensor type of this package: a typed view of memory that every framework can use without a copy.


@cython.final
@cython.no_gc_clear
cdef class SharedArray:
    """A typed view of memory: DLPack producer and (writable) buffer. Made by ``from_pointer`` and
    ``Communicator.empty``."""

    cdef SharedMemory memory
    cdef DLTensor tensor
    cdef vector[int64_t] dims       # shape, then strides in elements
    cdef vector[Py_ssize_t] strides  # in bytes, for buffers
    cdef Py_ssize_t nbytes
    cdef bint readonly
    cdef object __weakref__

    # The C exchange API of this type, see DLPack.
    __dlpack_c_exchange_api__ = PyCapsule_New(shared_array_api(), "dlpack_exchange_api", NULL)

    @property
    def shape(self):
        """The number of entries of each dimension."""
        return tuple([self.dims[i] for i in range(self.tensor.ndim)])

    @property
    def dtype(self):
        """The dtype's name, a key of ``dtype_names``."""
        return dtype_name(self.tensor.dtype)

    def __repr__(self):
        return f"SharedArray(shape={self.shape}, dtype={self.dtype})"

    def __dlpack_device__(self):
        """Return (device type, device id) in DLPack's numbers."""
        return int(self.tensor.device.device_type), self.tensor.device.device_id

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        """Return a capsule that shares the memory: versioned when ``max_version`` allows it, otherwise legacy. Raises
        BufferError for a copy, another device, or a read-only view in a legacy capsule."""
        if copy:
            raise BufferError("copy=True is not supported; copy after the import")
        if dl_device is not None and (int(dl_device[0]), dl_device[1] or 0) != self.__dlpack_device__():
            raise BufferError(f"the memory is on device {self.__dlpack_device__()}, not on {dl_device}")
        if self.tensor.device.device_type == kDLCPU and stream is not None and stream != -1:
            raise BufferError(f"host memory has no stream, but stream={stream!r}")
        if max_version is not None and max_version[0] >= 1:
            return to_capsule(export_versioned(self.tensor, self.memory, self.readonly))
        if self.readonly:
            raise BufferError("read-only memory needs a versioned capsule; ask with max_version=(1, 0) or later")
        return legacy_to_capsule(export_legacy(self.tensor, self.memory))

    def __getbuffer__(self, Py_buffer* buffer, int flags):
        cdef const char* format = buffer_format(self.tensor.dtype)
        if not is_host(self.tensor.device.device_type):
            raise BufferError("device memory has no buffer; use DLPack")
        if flags & PyBUF_WRITABLE and self.readonly:
            raise BufferError("the memory is read-only")
        if flags & PyBUF_FORMAT and format == NULL:
            raise BufferError(f"{self.dtype} has no buffer format; use DLPack")
        buffer.buf = self.tensor.data
        buffer.obj = self
        buffer.len = self.nbytes
        buffer.readonly = self.readonly
        buffer.format = <char*> format if flags & PyBUF_FORMAT else NULL
        buffer.itemsize = self.tensor.dtype.bits * self.tensor.dtype.lanes // 8
        buffer.ndim = self.tensor.ndim
        buffer.shape = <Py_ssize_t*> self.dims.data() if flags & PyBUF_ND else NULL
        buffer.strides = self.strides.data() if flags & PyBUF_STRIDES == PyBUF_STRIDES else NULL
        buffer.suboffsets = NULL
        buffer.internal = NULL


cdef SharedArray make_shared_array(DLDataType dtype, DLDevice device, object shape):
    """Make an array of this shape that has no memory yet."""
    cdef SharedArray array = SharedArray.__new__(SharedArray)
    cdef int64_t total = dtype.bits * dtype.lanes // 8, stride = 1
    dims = list(shape) if hasattr(shape, "__iter__") else [shape]
    if len(dims) > MAX_NDIM:
        raise InvalidArgumentError(f"shape has {len(dims)} dimensions; at most {MAX_NDIM} are possible")
    append_sequence(dims, "shape", array.dims)
    array.dims.resize(2 * len(dims))
    array.strides.resize(len(dims))
    for i in range(len(dims) - 1, -1, -1):
        array.dims[len(dims) + i] = stride
        array.strides[i] = total
        if array.dims[i] < 0 or not multiply(total, array.dims[i], total):
            raise InvalidArgumentError(f"shape {tuple(dims)} of {dtype_name(dtype)} is no possible size")
        stride *= array.dims[i]
    array.tensor.ndim = <int32_t> len(dims)
    array.tensor.shape = array.dims.data()
    array.tensor.strides = array.dims.data() + len(dims)
    array.tensor.dtype, array.tensor.device, array.nbytes = dtype, device, total
    return array


cdef SharedArray writable_twin(SharedArray array):
    """Make an array over the same memory that is not marked read-only, for frameworks that never write: JAX takes
    legacy capsules only."""
    twin = make_shared_array(array.tensor.dtype, array.tensor.device, array.shape)
    twin.memory, twin.tensor.data = array.memory, array.tensor.data
    return twin


cdef SharedArray allocate_array(DLDataType dtype, object shape):
    """Allocate an array in memory that the peers can read."""
    cdef DLDevice host
    host.device_type, host.device_id = kDLCPU, 0
    array = make_shared_array(dtype, host, shape)
    with nogil:
        array.memory = allocate_shared(array.nbytes)
    array.tensor.data = array.memory.get()
    return array


def from_pointer(ptr, shape, dtype, device=(1, 0), owner=None, readonly=False):
    """Return a tensor over memory that no framework exports. It keeps ``owner`` alive. The pointer must stay valid for
    prod(shape) elements.

    Args:
        ptr: address of the first element.
        shape: an int or a sequence of ints; the memory is packed in C order.
        dtype: a name from ``dtype_names`` or a dtype of a framework.
        device: (DLPack device type, device id).
        owner: any object; released when the last tensor over the memory is gone.
        readonly: whether the memory must not be written.

    Raises InvalidArgumentError for an impossible shape, an unknown dtype, or NULL with a size.
    """
    cdef DLDevice where
    where.device_type, where.device_id = <DLDeviceType> <int> device[0], device[1] or 0
    array = make_shared_array(parse_dtype(dtype), where, shape)
    array.tensor.data = <void*> <uintptr_t> ptr
    array.readonly = readonly
    if array.nbytes > 0 and array.tensor.data == NULL:
        raise InvalidArgumentError(f"ptr is 0, but {array!r} has {array.nbytes} bytes")
    if owner is not None:
        array.memory = hold_object(owner)
    return array


# The functions of the C exchange API. Require the GIL, except for the allocator.

cdef int api_borrow(void* obj, DLTensor* out) except -1:
    out[0] = (<SharedArray?> <object> obj).tensor
    return 0


cdef int api_export(void* obj, DLManagedTensorVersioned** out) except -1:
    array = <SharedArray?> <object> obj
    out[0] = export_versioned(array.tensor, array.memory, array.readonly)
    return 0


cdef int api_import(DLManagedTensorVersioned* managed, void** out) except -1:
    """Take ownership of the managed tensor. It is packed, because it comes from the allocator below."""
    cdef SharedMemory memory = adopt(managed)
    cdef DLTensor* tensor = &managed.dl_tensor
    array = make_shared_array(tensor.dtype, tensor.device, [tensor.shape[i] for i in range(tensor.ndim)])
    array.memory = memory
    array.tensor.data = <char*> tensor.data + tensor.byte_offset
    array.readonly = managed.flags & DLPACK_FLAG_BITMASK_READ_ONLY
    Py_INCREF(array)
    out[0] = <void*> array
    return 0


cdef int api_allocate(DLTensor* prototype, DLManagedTensorVersioned** out, void* context,
                      SetError set_error) noexcept with gil:
    try:
        if not is_host(prototype.device.device_type):
            raise UnsupportedError("a2a allocates host memory only; receive into a tensor of your own")
        array = allocate_array(prototype.dtype, [prototype.shape[i] for i in range(prototype.ndim)])
        out[0] = export_versioned(array.tensor, array.memory, False)
    except Exception as error:
        text = str(error).encode()
        set_error(context, "MemoryError", text)
        return -1
    return 0


cdef int api_stream(DLDeviceType device, int32_t index, void** out) except -1:
    out[0] = NULL
    return 0


cdef DLPackExchangeAPI shared_array_table


cdef void* shared_array_api() noexcept:
    shared_array_table.header.version.major = 1
    shared_array_table.header.version.minor = 3
    shared_array_table.managed_tensor_allocator = api_allocate
    shared_array_table.managed_tensor_from_py_object_no_sync = api_export
    shared_array_table.managed_tensor_to_py_object_no_sync = api_import
    shared_array_table.dltensor_from_py_object_no_sync = api_borrow
    shared_array_table.current_work_stream = api_stream
    return &shared_array_table
