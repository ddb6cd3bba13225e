# Arithmetic between the two exchanges of a quantised all-reduce (a2a.quantized), on flat NumPy arrays.


cdef object flat_view(object tensor, str name, tuple dtypes):
    """Return (flat array over the tensor's memory, its dtype's name). bfloat16 becomes uint16."""
    cdef View view
    cdef int64_t[1] shape
    holder = view_of(tensor, name, False, True, &view)
    require_contiguous(&view, name)
    if memory_of(&view, name) != Memory.host:
        raise UnsupportedError(f"{name} is in {place_of(&view, name)} memory; this one is for host memory")
    dtype = dtype_name(view.dtype)
    if dtype not in dtypes:
        raise InvalidArgumentError(f"{name} has dtype {dtype}; pass {' or '.join(dtypes)}")
    kind = np.dtype("uint16" if dtype == "bfloat16" else dtype)
    elems = view.nbytes // kind.itemsize
    if elems == 0:
        return np.empty(0, kind), dtype
    memory = from_pointer(<uintptr_t> view.data, elems, kind.name, (1, 0), holder, True)
    return np.asarray(memory), dtype


def flat_array(tensor, str name, *dtypes):
    """Return a contiguous host tensor as (flat array that shares its memory, name of its dtype). The dtype must be one
    of ``dtypes``. bfloat16 becomes uint16."""
    return flat_view(tensor, name, dtypes)


def new_like(tensor, str dtype):
    """Return (flat array, finish): memory for an uninitialised tensor of the shape and framework of ``tensor`` and of
    another dtype, and a function that makes the tensor once the array is filled. bfloat16 is written as uint16."""
    cdef View view, received
    cdef DLDataType kind = parse_dtype(dtype)
    view_of(tensor, "tensor", False, False, &view)
    view.dtype = kind
    if isinstance(tensor, ndarray):
        made = np.empty(tensor.shape, numpy_dtype(kind))
    else:
        made = allocate_like(tensor, &view, view.rows)
    convert = convert_like(tensor)
    view_of(made, "result", True, False, &received)
    unsigned = "uint16" if dtype == "bfloat16" else dtype
    elems = received.nbytes * 8 // kind.bits
    if elems == 0:
        flat = np.empty(0, unsigned)
    else:
        flat = np.asarray(from_pointer(<uintptr_t> received.data, elems, unsigned, (1, 0), made, False))
    return flat, (lambda: made) if convert is None else (lambda: convert(made))


cdef void* data_of(object array, object dtype, int64_t elems) except? NULL:
    """Return the memory of an array that this package made."""
    cdef View view
    if type(array) is not ndarray or array.dtype != dtype or array.size != elems:
        raise InvalidArgumentError(f"expected {elems} elements of {dtype}, got {shown(array)}")
    view_numpy(array, "array", &view)
    require_contiguous(&view, "array")
    return view.data


def to_float32(array, str dtype):
    """Return a float32 copy of a flat array of float16 or bfloat16 (as uint16); a float32 array is returned as it
    is."""
    if dtype == "float32":
        return array
    out = np.empty(array.size, np.float32)
    cdef size_t elems = array.size
    cdef bint half = dtype == "float16"
    cdef void* source = data_of(array, np.float16 if half else np.uint16, elems)
    cdef void* target = data_of(out, np.float32, elems)
    with nogil:
        if half:
            cpp_to_float(<const uint16_t*> source, elems, <float*> target)
        else:
            cpp_bfloat16_to_float(<const uint16_t*> source, elems, <float*> target)
    return out


def from_float32(array, str dtype, out):
    """Round a flat float32 array to float16 or bfloat16 (as uint16), or copy it."""
    cdef size_t elems = array.size
    cdef bint half = dtype == "float16"
    if dtype == "float32":
        out[...] = array
        return
    cdef void* source = data_of(array, np.float32, elems)
    cdef void* target = data_of(out, np.float16 if half else np.uint16, elems)
    with nogil:
        if half:
            cpp_to_half(<const float*> source, elems, <uint16_t*> target)
        else:
            cpp_to_bfloat16(<const float*> source, elems, <uint16_t*> target)


def dequantize_sum(parts, size_t ranks, scale, offset, size_t first):
    """The C++ function of this name on arrays: ``parts`` has the elements of every rank, one rank after another."""
    cdef size_t elems = parts.size // ranks
    out = np.empty(elems, np.float32)
    cdef void* q = data_of(parts, np.int8, ranks * elems)
    cdef void* s = data_of(scale, np.float32, scale.size)
    cdef void* o = data_of(offset, np.float32, offset.size)
    cdef void* y = data_of(out, np.float32, elems)
    cdef size_t scales = scale.size, offsets = offset.size
    with nogil:
        cpp_dequantize_sum(<const int8_t*> q, ranks, elems, <const float*> s, scales, <const float*> o, offsets, first,
                           <float*> y)
    return out


def quantize_blocks(array, size_t block):
    """Return (int8 array, float32 scale of each block) of a flat float32 array."""
    cdef size_t elems = array.size
    q, scales = np.empty(elems, np.int8), np.empty((elems + block - 1) // block, np.float32)
    cdef void* source = data_of(array, np.float32, elems)
    cdef void* target = data_of(q, np.int8, elems)
    cdef void* s = data_of(scales, np.float32, scales.size)
    with nogil:
        cpp_quantize_blocks(<const float*> source, elems, block, <int8_t*> target, <float*> s)
    return q, scales


def dequantize_blocks_sum(q, scales, size_t ranks, size_t block):
    """The C++ function of this name on arrays: both hold every rank's, one rank after another."""
    cdef size_t elems = q.size // ranks
    out = np.empty(elems, np.float32)
    cdef void* source = data_of(q, np.int8, ranks * elems)
    cdef void* s = data_of(scales, np.float32, ranks * ((elems + block - 1) // block))
    cdef void* y = data_of(out, np.float32, elems)
    with nogil:
        cpp_dequantize_blocks_sum(<const int8_t*> source, <const float*> s, ranks, elems, block, <float*> y)
    return out
