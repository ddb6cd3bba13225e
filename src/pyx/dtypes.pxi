# Dtypes by name. The names are those of the C++ core, so that messages and arguments use the same words.


cdef str dtype_name(DLDataType dtype):
    cdef DType core
    core.code, core.bits, core.lanes = dtype.code, dtype.bits, dtype.lanes
    return dtype_string(core).decode()


cdef DLDataType make_dtype(tuple triple) except *:
    """Make a dtype of (code, bits, lanes)."""
    cdef DLDataType dtype
    dtype.code, dtype.bits, dtype.lanes = triple
    return dtype


cdef dict name_dtypes():
    """Return every whole-byte dtype that has a name, by that name."""
    triples = [(kDLBool, 8, 1), (kDLBfloat, 16, 1), (17, 4, 2)]
    triples += [(kDLInt, bits, 1) for bits in (8, 16, 32, 64)]
    triples += [(kDLUInt, bits, 1) for bits in (8, 16, 32, 64)]
    triples += [(kDLFloat, bits, 1) for bits in (16, 32, 64)]
    triples += [(kDLComplex, bits, 1) for bits in (32, 64, 128)]
    triples += [(code, 8, 1) for code in range(7, 15)]  # the float8 kinds
    return {dtype_name(make_dtype(triple)): triple for triple in triples}


dtype_names = name_dtypes()


cdef inline bint same_dtype(DLDataType a, DLDataType b) noexcept:
    return a.code == b.code and a.bits == b.bits and a.lanes == b.lanes


cdef inline bint is_dtype(DLDataType a, const DType& b) noexcept:
    return a.code == b.code and a.bits == b.bits and a.lanes == b.lanes


cdef DLDataType parse_dtype(object dtype) except *:
    """Convert a name or a framework's dtype object to a dtype."""
    name = dtype
    if not isinstance(dtype, str):
        try:
            name = str(dtype).rpartition(".")[2]  # torch.bfloat16, paddle.bfloat16, dtype('float32') prints float32
            if name not in dtype_names:
                name = np.dtype(dtype).name
        except Exception:  # of str() or NumPy, which may raise anything
            name = None
    triple = dtype_names.get(name)
    if triple is None:
        raise InvalidArgumentError(f"dtype {shown(dtype)} is none of {', '.join(dtype_names)}")
    return make_dtype(triple)


cdef object numpy_dtype(DLDataType dtype):
    """Return the NumPy dtype; bfloat16 and the float8 kinds come from ml_dtypes."""
    name = dtype_name(dtype)
    if dtype.code <= kDLFloat or dtype.code == kDLBool or (dtype.code == kDLComplex and dtype.bits >= 64):
        return np.dtype(name)
    try:
        import ml_dtypes
    except ImportError as error:
        raise UnsupportedError(f"a NumPy array of {name} needs the package ml_dtypes: pip install ml_dtypes") from error
    found = getattr(ml_dtypes, name, None)
    if found is None:
        raise UnsupportedError(f"NumPy and ml_dtypes have no dtype {name}; ask for like=\"torch\", or for uint8")
    return np.dtype(found)


cdef const char* buffer_format(DLDataType dtype) noexcept:
    """Return the struct format of a dtype, NULL when it has none."""
    if dtype.lanes != 1:
        return NULL
    if dtype.code == kDLBool:
        return b"?"
    if dtype.code == kDLInt:
        return b"b" if dtype.bits == 8 else b"h" if dtype.bits == 16 else b"i" if dtype.bits == 32 else b"q"
    if dtype.code == kDLUInt:
        return b"B" if dtype.bits == 8 else b"H" if dtype.bits == 16 else b"I" if dtype.bits == 32 else b"Q"
    if dtype.code == kDLFloat:
        return b"e" if dtype.bits == 16 else b"f" if dtype.bits == 32 else b"d"
    if dtype.code == kDLComplex and dtype.bits >= 64:
        return b"Zf" if dtype.bits == 64 else b"Zd"
    return NULL
