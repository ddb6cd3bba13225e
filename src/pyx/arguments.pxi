# Converts the caller's arguments to those of the core: counts, timeouts, streams, and pairs of tensors that fit.


cdef int64_t count_of(object item, str name, Py_ssize_t index) except? -1:
    """Convert one entry of a list of counts that is not a plain int: a NumPy integer or any object with
    ``__index__``."""
    if isinstance(item, bool) or "bool" in str(getattr(item, "dtype", "")):
        raise InvalidArgumentError(f"{name}[{index}] is {shown(item)}, a bool; counts are integers")
    try:
        return item.__index__()
    except OverflowError:
        raise InvalidArgumentError(f"{name}[{index}] = {shown(item)} does not fit in 64 bits") from None
    except (AttributeError, TypeError, AssertionError):  # the last: Paddle's tensors of several elements
        raise InvalidArgumentError(f"{name}[{index}] is {shown(item)}; counts are integers") from None


cdef int append_sequence(object items, str name, CountList& counts) except -1:
    """Append the integers of a list or tuple."""
    cdef Py_ssize_t i
    cdef int overflow = 0
    cdef int64_t value
    if append_plain_ints(items, counts):
        return 0
    counts.clear()
    counts.reserve(len(items))
    for i, item in enumerate(items):
        if type(item) is int:
            value = PyLong_AsLongLongAndOverflow(item, &overflow)
            if overflow:
                raise InvalidArgumentError(f"{name}[{i}] = {shown(item)} does not fit in 64 bits")
        else:
            value = count_of(item, name, i)
        counts.push_back(value)
    return 0


cdef int64_t load_integer(const char* where, DLDataType dtype) noexcept nogil:
    """Load one integer of any width. A uint64 above the range of int64 becomes negative."""
    cdef bint signed_ = dtype.code == kDLInt
    cdef int64_t value = 0
    memcpy(&value, where, dtype.bits // 8)  # little-endian
    if signed_ and dtype.bits < 64:
        value = (value ^ (<int64_t> 1 << (dtype.bits - 1))) - (<int64_t> 1 << (dtype.bits - 1))
    return value


cdef int append_tensor(object tensor, str name, CountList& counts) except -1:
    """Append the integers of a 1-D tensor on the host, strided or not."""
    cdef View view
    cdef int64_t i
    cdef object holder = view_of(tensor, name, False, False, &view)
    if view.ndim != 1:
        raise InvalidArgumentError(f"{name} has {view.ndim} dimensions; counts are a list of integers or a 1-D tensor")
    if view.dtype.lanes != 1 or (view.dtype.code != kDLInt and view.dtype.code != kDLUInt):
        raise InvalidArgumentError(f"{name} has dtype {dtype_name(view.dtype)}; counts are integers")
    if memory_of(&view, name) != Memory.host:
        raise InvalidArgumentError(f"{name} is on a device, but counts are needed on the host; pass {name}.tolist()")
    counts.resize(view.rows)
    if view.contiguous and view.dtype.code == kDLInt and view.dtype.bits == 64:  # as in most programs
        if view.rows > 0:
            memcpy(counts.data(), view.data, view.rows * sizeof(int64_t))
        return 0
    for i in range(view.rows):
        counts[i] = load_integer(view.data + i * view.stride, view.dtype)
        if counts[i] < 0 and view.dtype.code == kDLUInt:
            raise InvalidArgumentError(f"{name}[{i}] = {<uint64_t> counts[i]} does not fit in 64 bits")
    del holder  # The memory was needed until here.
    return 0


cdef bint append_numpy(object obj, CountList& counts) except -1:
    """Append the 64-bit integers of a plain NumPy array, as in most programs. Returns False for anything else."""
    cdef cnp.ndarray array
    cdef const int64_t* first
    if type(obj) is not ndarray:
        return False
    array = <cnp.ndarray> obj
    if cnp.PyArray_NDIM(array) != 1 or not cnp.PyArray_ISCARRAY_RO(array):
        return False
    if array.descr.kind != c"i" or cnp.PyArray_ITEMSIZE(array) != sizeof(int64_t):
        return False
    first = <const int64_t*> cnp.PyArray_DATA(array)
    counts.assign(first, first + cnp.PyArray_DIMS(array)[0])
    return True


cdef int parse_counts(object obj, str name, CountList& counts) except -1:
    """Append the integers of a sequence or tensor. Does not check how many there are."""
    if type(obj) is list or type(obj) is tuple:
        return append_sequence(obj, name, counts)
    if append_numpy(obj, counts):
        return 0
    if is_tensor(obj):
        return append_tensor(obj, name, counts)
    try:
        items = list(obj)
    except TypeError:
        raise InvalidArgumentError(f"{name} is {shown(obj)}; counts are a list of integers or a 1-D tensor") from None
    return append_sequence(items, name, counts)


cdef int parse_rank_counts(object obj, str name, int size, CountList& counts) except -1:
    """Append the integers of a sequence or tensor. Raises unless there is exactly one per rank."""
    parse_counts(obj, name, counts)
    if counts.size() != <size_t> size:
        raise InvalidArgumentError(f"{name} has {counts.size()} entries, but the group has {size} ranks")
    return 0


cdef int parse_displs(object obj, str name, int size, CountList& displs) except -1:
    """None means packed in rank order, which is an empty list in the core."""
    return 0 if obj is None else parse_rank_counts(obj, name, size, displs)


cdef int parse_int(object value, str name) except? -1:
    """Convert to a 32-bit integer."""
    try:
        return value.__index__()
    except OverflowError:
        raise InvalidArgumentError(f"{name} = {shown(value)} does not fit in 32 bits") from None
    except (AttributeError, TypeError, AssertionError):
        raise InvalidArgumentError(f"{name} is {shown(value)}; pass an integer") from None


cdef vector[int] parse_ranks(object obj, int size) except *:
    """Convert a list of ranks of a group of this size."""
    cdef CountList ranks
    cdef vector[int] result
    cdef int64_t rank
    parse_counts(obj, "ranks", ranks)
    for rank in ranks:
        if not 0 <= rank < size:
            raise InvalidArgumentError(f"ranks contains {rank}, but the group has {size} ranks")
        result.push_back(<int> rank)
    return result


cdef double parse_timeout(object timeout) except *:
    try:
        seconds = float(timeout)
    except (TypeError, ValueError, OverflowError, AssertionError):
        raise InvalidArgumentError(f"timeout is {shown(timeout)}; pass seconds, or None for the default") from None
    if not seconds >= 0:
        raise InvalidArgumentError(f"timeout is {seconds} seconds; it cannot be negative or NaN")
    return seconds


cdef void* parse_stream(object stream) except NULL:
    """Return the raw handle of a stream. 0 is CUDA's default stream, which also has the handle 1."""
    handle = stream
    if hasattr(stream, "__cuda_stream__"):
        version, handle = stream.__cuda_stream__()
        if version != 0:
            raise InvalidArgumentError(f"stream speaks version {version} of __cuda_stream__; this build reads 0")
    else:
        for attribute in ("cuda_stream", "npu_stream", "ptr"):  # of Torch, torch_npu, CuPy
            handle = getattr(handle, attribute, handle)
    if not isinstance(handle, int) or isinstance(handle, bool) or not 0 <= handle < 2**64:
        raise InvalidArgumentError(f"stream is {shown(stream)}; pass a handle, an object with __cuda_stream__, or None")
    return <void*> <uintptr_t> (handle or 1)


cdef int require_stream(Memory memory, CppStream stream) except -1:
    """Raise unless this kind of memory can be used on the stream."""
    if memory == Memory.npu and stream.handle == <void*> 1:
        raise InvalidArgumentError("stream is 0, the default stream, which HCCL does not take; pass a stream of yours")
    return 0


cdef int parse_call(Call* call, Op op, object stream, object timeout) except -1:
    if op in (Op.split, Op.group, Op.shrink, Op.connect, Op.close):
        find_call_site()  # they take long anyway
    else:
        note_call_site()
    call.op = op
    if stream is not None:
        call.stream.handle = parse_stream(stream)
    if timeout is not None:
        call.deadline = deadline_after(parse_timeout(timeout))
    return 0


cdef Memory memory_of(const View* view, str name) except *:
    """Return the kind of memory of a tensor, which selects the transport."""
    cdef int kind = view.device.device_type
    if is_host(kind):
        return Memory.host
    if kind == kDLCUDA or kind == kDLCUDAManaged:
        return Memory.cuda
    if kind == kDLExtDev or kind == 21:  # Torch's type for Ascend; DLPack's after version 1.3
        return Memory.npu
    raise UnsupportedError(f"{name} is in the memory of DLPack device type {kind}, which no transport serves")


cdef str place_of(const View* view, str name):
    """"host", "cuda:1", ..."""
    memory = memory_of(view, name)
    where = memory_string(memory).decode()
    return where if memory == Memory.host else f"{where}:{view.device.device_id}"


cdef bint wheels_found = False


cdef int find_wheels() except -1:
    """Add the directories in which wheels install libraries and which the loader does not search: NVIDIA's NCCL and UCX
    beside the other packages, MPI and its UCX in the environment's ``lib``."""
    global wheels_found
    if wheels_found:
        return 0
    prefixes = {os.path.join(prefix, "lib"): None for prefix in (sys.prefix, site.getuserbase())}
    for path in sys.path:
        installed = os.path.basename(path) in ("site-packages", "dist-packages")
        if installed:
            prefixes[os.path.dirname(os.path.dirname(path))] = None
        for directory in (os.path.join(path, "nvidia", "nccl", "lib"), os.path.join(path, "libucx", "lib")):
            # Directories of installed packages are always added, so that the error names them.
            if installed or os.path.isdir(directory):
                add_library_directory(os.fsencode(directory))
    for prefix in prefixes:
        add_library_directory(os.fsencode(prefix))
        add_library_directory(os.fsencode(os.path.join(prefix, "mpich")))
    wheels_found = True
    return 0


cdef inline void* stream_of(const Call* call, const View* first) noexcept:
    """Return the stream that orders the operation: the caller's, otherwise the first tensor's."""
    return call.stream.handle if call.stream.handle != NULL else first.stream


cdef int set_call_memory(Call* call, const View* view, str name) except -1:
    """Enter the memory of the tensor into the call, and the stream of its framework unless the caller gave one."""
    call.memory = memory_of(view, name)
    if call.memory == Memory.host:
        return 0
    require_stream(call.memory, call.stream)
    if call.memory == Memory.cuda:
        find_wheels()
    call.device = view.device.device_id
    call.stream.handle = stream_of(call, view)
    return 0


cdef Memory parse_memory(object memory) except *:
    if memory == "cuda":
        find_wheels()
        return Memory.cuda
    if memory == "npu":
        return Memory.npu
    raise InvalidArgumentError(f"memory is {shown(memory)}; pass \"cuda\" or \"npu\"")


cdef Memory parse_device(object device, int* index) except *:
    """Parse the name of a device, such as "cuda:1"."""
    memory, colon, number = str(device).partition(":")
    if not number.isdecimal():
        raise InvalidArgumentError(f"device is {shown(device)}; pass a name such as \"cuda:0\" or \"npu:1\"")
    index[0] = parse_int(int(number), "device")
    return parse_memory(memory)


cdef Check parse_check(object check) except *:
    names = {"off": Check.off, "first": Check.first, "always": Check.always}
    if check is None:
        return default_check()
    if not isinstance(check, str) or check not in names:
        raise InvalidArgumentError(f"check is {shown(check)}; pass \"off\", \"first\" or \"always\"")
    return names[check]


cdef str shape_text(const View* view):
    return str(tuple([view.shape[i] for i in range(view.ndim)]))


cdef int require_contiguous(const View* view, str name) except -1:
    if not view.contiguous:
        raise InvalidArgumentError(f"{name} of shape {shape_text(view)} is not contiguous, and tensors are never "
                                   f"copied silently; pass {name}.contiguous() or numpy.ascontiguousarray({name})")
    return 0


cdef int require_output(const View* view, str name, object obj) except -1:
    """Raise unless the tensor may be written, as far as its framework says."""
    require_writable_layout(view, name)
    if view.access == READ_ONLY:
        framework = kind_of(type(obj)).framework
        why = framework.immutable if framework is not None and framework.immutable else "it is read-only"
        raise InvalidArgumentError(f"{name} ({type_name(obj)}) cannot be written: {why}; receive into a writable "
                                   f"array, or use a call that allocates its output")
    if view.access == UNKNOWN:
        raise InvalidArgumentError(f"{name} ({type_name(obj)}) exports only legacy DLPack, which cannot say whether it "
                                   f"may be written; receive into a NumPy array")
    return 0


cdef int require_alike(Call* call, const View* a, str a_name, const View* b, str b_name) except -1:
    """Raise unless two tensors of one operation share dtype and memory. Enter these into the call."""
    if not same_dtype(a.dtype, b.dtype):
        raise InvalidArgumentError(f"{a_name} is {dtype_name(a.dtype)}, but {b_name} is {dtype_name(b.dtype)}; an "
                                   f"exchange converts nothing, so both need one dtype")
    set_call_memory(call, a, a_name)
    if memory_of(b, b_name) != call.memory or (call.memory != Memory.host
                                               and b.device.device_id != a.device.device_id):
        raise InvalidArgumentError(f"{a_name} is in {place_of(a, a_name)} memory, but {b_name} is in "
                                   f"{place_of(b, b_name)} memory")
    set_call_dtype(call, a)
    return 0


cdef int require_pair(Call* call, const View* send, str send_name, const View* recv, str recv_name) except -1:
    """Raise unless a tensor to send and one to receive into fit in one operation."""
    require_alike(call, send, send_name, recv, recv_name)
    if overlap(send, recv):
        raise InvalidArgumentError(f"{send_name} and {recv_name} share memory; receive into a tensor of its own")
    return 0


cdef void set_call_dtype(Call* call, const View* view) noexcept:
    call.dtype.code, call.dtype.bits, call.dtype.lanes = view.dtype.code, view.dtype.bits, view.dtype.lanes
    call.unit_bytes = <size_t> view.row_bytes


cdef int require_rows(const View* send, str send_name, const View* recv, str recv_name) except -1:
    """Raise unless rows, the unit of counts, have the same size on both sides."""
    if send.ndim == 0 or recv.ndim == 0:
        raise InvalidArgumentError(f"{send_name if send.ndim == 0 else recv_name} is 0-d and has no rows; pass a "
                                   f"tensor with at least one dimension")
    if send.row_bytes != recv.row_bytes:
        raise InvalidArgumentError(f"a row of {send_name} {shape_text(send)} is {send.row_bytes} bytes, but a row of "
                                   f"{recv_name} {shape_text(recv)} is {recv.row_bytes} bytes")
    return 0
