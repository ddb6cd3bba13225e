# The error classes, and functions that make the texts of messages.
import builtins


class Error(Exception):
    """Base class of all errors of this package. ``args[0]`` is the message."""
    __module__ = "a2a"


class InvalidArgumentError(Error, ValueError):
    """This rank's own arguments are wrong. Nothing was sent; peers get MismatchError. The communicator stays usable."""
    __module__ = "a2a"


class MismatchError(Error, ValueError):
    """Ranks disagree about the call. Nothing of the pair was written. The communicator stays usable."""
    __module__ = "a2a"


class PeerLostError(Error, ConnectionError):
    """A rank died or left. The communicator is broken: shrink() or close() it."""
    __module__ = "a2a"


class TimeoutError(Error, builtins.TimeoutError):
    """A deadline passed. After an operation's own deadline the communicator is broken; after wait(timeout=) it is
    not."""
    __module__ = "a2a"


class AbortedError(Error, RuntimeError):
    """A rank called abort(), or the communicator is already broken, closed, or inherited by fork()."""
    __module__ = "a2a"


class UnsupportedError(Error, NotImplementedError):
    """This build or this machine cannot do it, or nothing can."""
    __module__ = "a2a"


class BackendError(Error, RuntimeError):
    """The operating system or a vendor library failed."""
    __module__ = "a2a"


error_classes = (
    InvalidArgumentError, MismatchError, PeerLostError, TimeoutError, AbortedError, UnsupportedError, BackendError)
set_error_classes(error_classes)


cdef str type_name(object obj):
    """Return the name of an object's type as its framework's users know it, such as torch.Tensor."""
    kind = type(obj)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"


cdef str shown(object value):
    """Return a refused value for a message: its repr, shortened. Integers of more than 4300 digits have no repr, and
    neither have objects whose repr raises."""
    try:
        text = repr(value)
    except Exception:
        return f"a {type_name(value)}"
    return text if len(text) <= 200 else f"{text[:200]}..."


cdef str first_line(object error):
    """Return the message of an error without the trace of C++ functions that some frameworks add."""
    lines = str(error).splitlines()
    return lines[0].partition(" Exception raised from")[0].rstrip() if lines else type_name(error)
