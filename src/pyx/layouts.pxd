# The declarations of cpp/layouts.h.
from libc.stdint cimport int64_t
from libcpp cimport bool as cbool


cdef extern from "cpp/layouts.h":
    cdef cppclass KeptLayout "a2a_py::KeptLayout":
        KeptLayout()
        KeptLayout(int, const int64_t*, const int64_t*, int64_t, int, cbool)

    cdef cppclass KeptLayouts "a2a_py::KeptLayouts":
        void push_back(const KeptLayout&) except +
        void clear()
        cbool empty()

    cbool are_apart "a2a_py::are_apart"(const KeptLayout&) except +
