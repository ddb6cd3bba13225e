# The declarations of a2a._core for other extension modules of this package. They cimport them from here, and Cython
# connects the functions when they are imported. Each is documented at its definition, in the file that is named above
# it.
from libc.stdint cimport int64_t
from libcpp.memory cimport shared_ptr

from a2a cimport CountList, CppCommunicator, CppWork, Memory, When
from dlpack cimport DLDataType, DLDevice


# errors.pxi
cdef tuple error_classes    # in the order of a2a::Code, which starts at 1
cdef str type_name(object obj)
cdef str shown(object value)

# dtypes.pxi
cdef str dtype_name(DLDataType dtype)

# tensor.pxi
cdef enum:
    MAX_NDIM = 64

cdef enum Access:
    WRITABLE
    READ_ONLY
    UNKNOWN     # a legacy DLPack capsule does not say


# The properties of a tensor that an exchange needs. It owns nothing: view_of returns the object that does.
cdef struct View:
    char* data
    int64_t nbytes
    int64_t rows            # dim 0; 1 for 0-d
    int64_t row_bytes
    int64_t stride          # bytes from one row to the next
    int64_t elem_bytes
    int ndim
    int64_t[MAX_NDIM] shape
    int64_t[MAX_NDIM] strides   # bytes; only set where the tensor is not contiguous
    char* begin                 # the begin of its memory, and one past its end, gaps included
    char* end
    DLDataType dtype
    DLDevice device
    void* stream            # device memory: the stream on which its framework works, or which it made to wait
    bint contiguous
    bint held               # the object that view_of returns keeps this memory alive, whatever code runs meanwhile
    Access access

cdef object view_of(object obj, str name, bint output, bint keep, View* view, void* stream=*)

# autograd.pxi
cdef int refuse_lost_gradient(object tensor, str name) except -1

# allocate.pxi
cdef object allocate_like(object tensor, const View* view, int64_t rows)
cdef int require_made(const View* made, const View* like, int64_t rows) except -1
cdef object convert_like(object tensor)

# arguments.pxi
cdef int parse_int(object value, str name) except? -1
cdef int parse_counts(object obj, str name, CountList& counts) except -1
cdef double parse_timeout(object timeout) except *
cdef Memory memory_of(const View* view, str name) except *
cdef int require_contiguous(const View* view, str name) except -1
cdef int require_output(const View* view, str name, object obj) except -1
cdef int find_wheels() except -1

# call_site.pxi
cdef int note_call_site() except -1

# communicator_base.pxi
cdef bytes reason_of(object error)

# work.pxi
cdef int finish(shared_ptr[CppWork]& work, const When& until) except -1
cdef int hold_until_done(const shared_ptr[CppWork]& work, object tensors) except -1
cdef int prune_unfinished() except -1

# communicator.pxi
cdef shared_ptr[CppCommunicator] communicator_of(object comm) except *
