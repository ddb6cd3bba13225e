# Finds the place in the program of a call, for the records of A2A_DUMP and for `a2a status`.

# Modules whose frames lie between the program and its call.
cdef tuple BETWEEN = ("a2a.", "torch.distributed.", "paddle.distributed.", "typing_extensions.", "warnings.")


# Frameworks whose programs a rank may run, as `a2a status` names them.
cdef tuple FRAMEWORKS = ("torch", "paddle", "jax", "tensorflow", "mindspore", "cupy")


cdef int note_call_site() except -1:
    """Record the place of the call for the next operations of this thread, if it is wanted."""
    return find_call_site() if recording() else 0


cdef int show_wait(_CommunicatorBase comm) except -1:
    """Show `a2a status` the place of a call that waits."""
    find_call_site()
    dereference(comm.comm).show_call_site()
    show_frameworks()
    return 0


cdef int show_frameworks() except -1:
    cpp_describe_process(b"", ", ".join([name for name in FRAMEWORKS if name in sys.modules]).encode())
    return 0


def describe_process(str job not None):
    """Tell ``a2a status`` the name of the job of this process."""
    cpp_describe_process(job.encode("utf-8", "backslashreplace"), b"")


cdef class ShownMeeting:
    """Shows ``a2a status`` that a rank waits for the others to meet, in a ``with`` block. ``hosts`` is 0 where it
    is not known on how many hosts they are, or whether they have one name of their job."""

    cdef int rank, size, hosts
    cdef shared_ptr[void] shown

    def __init__(self, int rank, int size, int hosts=0):
        self.rank, self.size, self.hosts = rank, size, hosts

    def __enter__(self):
        self.shown = cpp_show_meeting(self.rank, self.size, self.hosts)

    def __exit__(self, *_):
        self.shown.reset()


def operation_in_words(int operation, uint32_t dtype):
    """Return (operation, memory, dtype) of the numbers in a status page."""
    cdef DType of
    of.code, of.bits, of.lanes = dtype & 0xff, dtype >> 8 & 0xff, dtype >> 16
    return (op_string(<Op> (operation & 0xff)).decode(), memory_string(<Memory> (operation >> 8)).decode(),
            dtype_string(of).decode())


cdef int find_call_site() except -1:
    frame = sys._getframe()
    while frame.f_back is not None and f"{frame.f_globals.get('__name__')}.".startswith(BETWEEN):
        frame = frame.f_back
    code = frame.f_code
    set_call_site(f"{code.co_filename}:{frame.f_lineno} in {code.co_name}".encode("utf-8", "backslashreplace"))
    return 0
