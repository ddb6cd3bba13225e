# Keeps the dtype and shape of the NumPy arrays of the latest call that passed all checks. Programs often call with
# arrays of the same dtype and shape, and then most checks are skipped.


@cython.final
cdef class _CheckedArray:
    """The dtype and shape of a NumPy array that passed all checks which do not depend on its address."""

    cdef object dtype       # None before the first array
    cdef vector[int64_t] shape
    cdef int64_t nbytes, rows, row_bytes

    cdef void remember(self, cnp.ndarray array, const View* view) noexcept:
        self.dtype = array.dtype
        self.shape.assign(&view.shape[0], &view.shape[0] + view.ndim)
        self.nbytes, self.rows, self.row_bytes = view.nbytes, view.rows, view.row_bytes

    cdef bint view(self, object obj, bint output, View* view) noexcept:
        """Fill in data, nbytes, rows and row_bytes of an array like that one. False for anything else."""
        cdef cnp.ndarray array
        cdef size_t i
        if type(obj) is not ndarray:
            return False
        array = <cnp.ndarray> obj
        if not (cnp.PyArray_ISCARRAY(array) if output else cnp.PyArray_ISCARRAY_RO(array)):
            return False
        if <PyObject*> cnp.PyArray_DESCR(array) != <PyObject*> self.dtype:
            return False
        if <size_t> cnp.PyArray_NDIM(array) != self.shape.size():
            return False
        for i in range(self.shape.size()):
            if cnp.PyArray_DIMS(array)[i] != self.shape[i]:
                return False
        view.data = cnp.PyArray_BYTES(array)
        view.nbytes, view.rows, view.row_bytes = self.nbytes, self.rows, self.row_bytes
        view.begin, view.end = view.data, view.data + view.nbytes
        return view.data != NULL or view.nbytes == 0


@cython.final
cdef class _CheckedPair:
    """The latest pair of arrays for sending and receiving."""

    cdef _CheckedArray sent, received
    cdef DType dtype

    def __cinit__(self):
        self.sent, self.received = _CheckedArray.__new__(_CheckedArray), _CheckedArray.__new__(_CheckedArray)

    cdef void remember(self, const Call& call, object send, const View* sent, object recv,
                       const View* received) noexcept:
        """Store a pair that has passed all checks, and the values that these entered into the call. Only for NumPy
        arrays."""
        if type(send) is not ndarray or type(recv) is not ndarray:
            return
        with cython.critical_section(self):
            self.sent.remember(send, sent)
            self.received.remember(recv, received)
            self.dtype = call.dtype

    cdef bint view(self, Exchange& x, object send, object recv, View* sent, View* received) noexcept:
        """As view_pair, for arrays that differ from the latest pair in their addresses only. Fill in the fields of the
        views that _CheckedArray.view does. Returns False for all other arrays."""
        cdef bint alike
        with cython.critical_section(self):
            alike = self.sent.view(send, False, sent) and self.received.view(recv, True, received)
            if alike:
                x.call.dtype = self.dtype
        if not alike or meets(sent, received):
            return False
        x.call.unit_bytes = <size_t> sent.row_bytes
        x.send, x.recv = sent.data, received.data
        return True
