# Finds the place in the program of each call, for the records of A2A_DUMP.

# Modules whose frames lie between the program and its call.
cdef tuple BETWEEN = ("a2a.", "torch.distributed.", "paddle.distributed.", "typing_extensions.", "warnings.")


cdef int note_call_site() except -1:
    """Record the place of the call for the next operations of this thread."""
    if not recording():
        return 0
    frame = sys._getframe()
    while frame.f_back is not None and f"{frame.f_globals.get('__name__')}.".startswith(BETWEEN):
        frame = frame.f_back
    code = frame.f_code
    set_call_site(f"{code.co_filename}:{frame.f_lineno} in {code.co_name}".encode("utf-8", "backslashreplace"))
    return 0
