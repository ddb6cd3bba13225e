# Where a program calls, for the records that A2A_DUMP asks for.

# Modules whose frames stand between the program and its call.
cdef tuple BETWEEN = ("a2a.", "torch.distributed.", "paddle.distributed.", "typing_extensions.", "warnings.")


cdef int note_call_site() except -1:
    """For the operations of this thread that follow."""
    if not recording():
        return 0
    frame = sys._getframe()
    while frame.f_back is not None and f"{frame.f_globals.get('__name__')}.".startswith(BETWEEN):
        frame = frame.f_back
    code = frame.f_code
    set_call_site(f"{code.co_filename}:{frame.f_lineno} in {code.co_name}".encode("utf-8", "backslashreplace"))
    return 0
