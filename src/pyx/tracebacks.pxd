# Keeps the functions of this module out of tracebacks: a program's call and its error are next to each other there.
# A2A_TRACEBACK=full leaves them in.
cdef extern from *:
    """
    #include <Python.h>
    #include <frameobject.h>

    #include <cstdlib>
    #include <string_view>

    namespace a2a_py {

    inline bool full_tracebacks() {
      static const bool full = [] {
        const char* const word = std::getenv("A2A_TRACEBACK");
        return word != nullptr && std::string_view(word) == "full";
      }();
      return full;
    }

    // Called by Cython for each function that an error leaves.
    inline int trace_back(PyFrameObject* frame) { return full_tracebacks() ? PyTraceBack_Here(frame) : 0; }

    }  // namespace a2a_py

    #define PyTraceBack_Here a2a_py::trace_back
    """
