# Shortens tracebacks: see the header, which replaces two functions that Cython's code calls.
cdef extern from "cpp/python/tracebacks.h":
    pass
