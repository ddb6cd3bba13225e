# Makes the functions of this module that an error leaves one line in a traceback. A2A_TRACEBACK=full shows all of them.
# Not none: handlers that Cython compiles expect a traceback.
cdef extern from "cpp/python/tracebacks.h":
    pass
