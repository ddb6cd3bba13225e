# Torch exchanges a complex tensor with a real one of twice as many elements. The functions below give both sides the
# real dtype then.


cdef bint is_half_of(DLDataType part, DLDataType whole) noexcept:
    """Whether ``whole`` is complex and made of two of ``part``."""
    return (whole.code == kDLComplex and part.code == kDLFloat and 2 * part.bits == whole.bits
            and whole.lanes == 1 and part.lanes == 1)


cdef void settle_complex(View* a, View* b) noexcept:
    """Where one side is real and the other one complex, view the complex one as real, too."""
    if is_half_of(a.dtype, b.dtype):
        b.dtype = a.dtype
    elif is_half_of(b.dtype, a.dtype):
        a.dtype = b.dtype


cdef void settle_complex_lists(vector[View]& sent, vector[View]& received) noexcept:
    """The same for all tensors of two lists: all become real if any is."""
    cdef View* real = NULL
    cdef size_t i
    for i in range(sent.size()):
        if sent[i].dtype.code == kDLFloat:
            real = &sent[i]
        elif received[i].dtype.code == kDLFloat:
            real = &received[i]
    if real == NULL:
        return
    for i in range(sent.size()):
        settle_complex(real, &sent[i])
        settle_complex(real, &received[i])
