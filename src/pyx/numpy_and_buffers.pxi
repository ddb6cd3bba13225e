# Makes a View of a NumPy array, and of an object with the buffer protocol.

# Advice for NumPy dtypes that have no meaning outside NumPy, by typekind.
cdef dict numpy_advice = {
    "m": 'pass array.view("int64")',
    "M": 'pass array.view("int64")',
    "O": "objects cannot be exchanged",
    "S": "pass a uint8 view",
    "U": "pass a uint32 view",
    "V": "pass a uint8 view",
}


cdef bint parse_typekind(int typekind, int itemsize, DLDataType* dtype) noexcept:
    """Convert NumPy's kind letter to a dtype; false when DLPack has none."""
    dtype.lanes = 1
    dtype.bits = <uint8_t> (8 * itemsize)
    if itemsize not in (1, 2, 4, 8, 16):
        return False
    if typekind == c"f" and 2 <= itemsize <= 8:  # long double differs from machine to machine
        dtype.code = kDLFloat
    elif typekind == c"i":
        dtype.code = kDLInt
    elif typekind == c"u":
        dtype.code = kDLUInt
    elif typekind == c"b" and itemsize == 1:
        dtype.code = kDLBool
    elif typekind == c"c":
        dtype.code = kDLComplex
    else:
        return False
    return True


cdef int refuse_numpy(object array, str name) except -1:
    dtype = array.dtype
    advice = numpy_advice.get(dtype.kind, "convert it with astype()")
    if dtype.byteorder == ">":
        advice = "pass array.astype(array.dtype.newbyteorder('='))"
    raise InvalidArgumentError(f"{name} has the NumPy dtype {dtype}, which other frameworks do not have; {advice}")


# Subclasses whose arrays consist of their bytes only. Others have more, such as a mask or a unit, which an exchange
# would lose.
cdef frozenset array_types = frozenset((np.ndarray, np.memmap, np.matrix))


cdef int refuse_more_than_bytes(object array, str name) except -1:
    if type(array) in array_types:
        return 0
    advice = f"{name}.filled() or {name}.data" if isinstance(array, np.ma.MaskedArray) else f"numpy.asarray({name})"
    raise InvalidArgumentError(f"{name} is {type_name(array)}, which may carry more than its elements, and an exchange "
                               f"would lose that; pass {advice}")


cdef object view_numpy(cnp.ndarray array, str name, View* view):
    """Fill in the view from the array structure, which is much cheaper than the buffer protocol and also has the dtypes
    of ml_dtypes."""
    cdef int itemsize = <int> cnp.PyArray_ITEMSIZE(array)
    if not cnp.PyArray_ISNOTSWAPPED(array) and itemsize > 1:
        refuse_numpy(array, name)
    if not parse_typekind(array.descr.kind, itemsize, &view.dtype):
        triple = dtype_names.get(array.dtype.name)
        if triple is None or triple[1] != 8 * itemsize:
            refuse_numpy(array, name)
        view.dtype = make_dtype(triple)
    view.data = cnp.PyArray_BYTES(array)
    view.ndim = cnp.PyArray_NDIM(array)
    view.device.device_type = kDLCPU
    view.device.device_id = 0
    view.access = WRITABLE if cnp.PyArray_ISWRITEABLE(array) else READ_ONLY
    view.held = False
    set_numpy_layout(array, name, itemsize, view)
    return array


cdef int set_numpy_layout(cnp.ndarray array, str name, int64_t itemsize, View* view) except -1:
    """As set_layout, for a layout that NumPy has checked."""
    cdef const cnp.npy_intp* shape = cnp.PyArray_DIMS(array)
    cdef int i
    view.stream = NULL
    view.rows, view.row_bytes, view.stride, view.elem_bytes = 1, itemsize, itemsize, itemsize
    if view.ndim > 0:
        view.rows, view.stride = shape[0], cnp.PyArray_STRIDES(array)[0]
    for i in range(view.ndim):
        view.shape[i] = shape[i]
        if i > 0:
            view.row_bytes *= shape[i]
    view.nbytes = view.rows * view.row_bytes
    view.contiguous = cnp.PyArray_IS_C_CONTIGUOUS(array)
    if not view.contiguous:
        for i in range(view.ndim):
            view.strides[i] = cnp.PyArray_STRIDES(array)[i]
    set_extent(view)
    return require_memory(view, name)


cdef bint parse_format(const char* format, int itemsize, DLDataType* dtype) noexcept:
    """Convert a struct format of one element to a dtype; false for other formats, and for another byte order."""
    cdef int typekind
    if format == NULL:  # plain bytes
        format = b"B"
    if format[0] in b"@=<|":
        format += 1
    if format[0] == c"Z":
        format += 1
        typekind = c"c" if format[0] in b"fd" else 0
    elif format[0] == c"?":
        typekind = c"b"
    elif format[0] in b"efd":
        typekind = c"f"
    elif format[0] in b"bhilqn":
        typekind = c"i"
    else:
        typekind = c"u" if format[0] in b"BcHILQN" else 0
    return format[0] != 0 and format[1] == 0 and parse_typekind(typekind, itemsize, dtype)


cdef object view_buffer(object obj, str name, View* view):
    """bytes, bytearray, memoryview, array.array, mmap, ... The memoryview holds the buffer, so it cannot be resized."""
    cdef object holder
    cdef Py_buffer* buffer
    try:
        holder = PyMemoryView_FromObject(obj)
    except (BufferError, ValueError, TypeError) as error:
        raise InvalidArgumentError(f"{name} ({type_name(obj)}) gives no buffer: {error}") from error
    buffer = PyMemoryView_GET_BUFFER(holder)
    if not parse_format(buffer.format, <int> buffer.itemsize, &view.dtype):
        raise InvalidArgumentError(f"{name} has the buffer format {holder.format!r}; pass memoryview(x).cast('B')")
    if buffer.ndim > MAX_NDIM or buffer.suboffsets != NULL:
        raise InvalidArgumentError(f"{name} is a buffer of {buffer.ndim} dimensions with pointers inside")
    view.data = <char*> buffer.buf
    view.ndim = buffer.ndim
    view.device.device_type = kDLCPU
    view.device.device_id = 0
    view.access = READ_ONLY if buffer.readonly else WRITABLE
    view.held = True
    set_layout(view, name, <const int64_t*> buffer.shape, <const int64_t*> buffer.strides, 1)
    return holder
