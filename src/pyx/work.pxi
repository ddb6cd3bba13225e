# Operations in flight, and waits for them.


# Called with (communicator, seconds, ranks) during a wait that takes long; a2a._log sets it.
cdef object wait_listener = None


def set_wait_listener(listener):
    """Have ``listener(communicator, seconds, ranks)`` called while a call waits for these ranks: after 5 seconds, and
    each time twice as many have passed."""
    global wait_listener
    wait_listener = listener


cdef int finish(shared_ptr[CppWork]& work, const When& until) except -1:
    """Wait without the GIL until finished or ``until`` passes (TimeoutError). Check for signals in between."""
    return finish_of(None, work, until)


cdef int finish_of(_CommunicatorBase comm, shared_ptr[CppWork]& work, const When& until) except -1:
    """The same, and tell the listener if it takes long."""
    cdef cbool done
    cdef int slices = 0, next_report = 100  # 50 ms each
    while True:
        with nogil:
            done = wait_slice(dereference(work), until)
        if done:
            return 0
        PyErr_CheckSignals()
        slices += 1
        if slices == 1 and comm is not None:
            show_wait(comm)
        if slices == next_report and wait_listener is not None and comm is not None:
            next_report *= 2
            missing = [rank for rank in range(comm._size) if not dereference(work).arrived(rank)]
            wait_listener(comm, slices / 20, missing)


# An unfinished operation and the objects that hold its memory, kept by the communicator.
@cython.final
@cython.no_gc_clear
@cython.freelist(16)
cdef class _Flight:
    cdef shared_ptr[CppWork] work
    cdef object tensors


cdef _Flight make_flight(const shared_ptr[CppWork]& work, object tensors):
    cdef _Flight flight = _Flight.__new__(_Flight)
    flight.work, flight.tensors = work, tensors
    return flight


# Exchanges whose memory has no other owner: those that no communicator keeps, and those that failed while a network
# used their memory.
cdef list unfinished = []


cdef int hold_until_done(const shared_ptr[CppWork]& work, object tensors) except -1:
    """Hold the tensors of an exchange that no communicator keeps."""
    unfinished.append(make_flight(work, tensors))
    return 0


cdef int prune_unfinished() except -1:
    """Release the tensors of finished exchanges."""
    cdef _Flight flight
    if not unfinished:
        return 0
    for flight in list(unfinished):
        if let_go(dereference(flight.work)):
            unfinished.remove(flight)
    return 0


@cython.final
@cython.no_gc_clear
cdef class Work:
    """One operation in flight. It keeps both tensors alive until done. It may be dropped; the communicator then keeps
    them."""

    cdef shared_ptr[CppWork] work
    cdef _CommunicatorBase comm
    cdef Memory memory
    cdef object output      # the received tensor, or the buffer from which `convert` makes it
    cdef object convert
    cdef object __weakref__

    def __repr__(self):
        return f"<Work of rank {self.comm._rank} of {self.comm._size}, {'done' if self.done() else 'in flight'}>"

    def wait(self, timeout=None):
        """Block until done. Raises the operation's error, or TimeoutError after ``timeout`` seconds (the operation then
        goes on and may be waited for again). Ctrl-C interrupts the wait, not the operation."""
        cdef When until
        if timeout is not None:
            until = deadline_after(parse_timeout(timeout))
        try:
            finish_of(self.comm, self.work, until)
        except TimeoutError:  # the operation may go on
            raise
        except Error:
            note_failed()
            raise
        finally:
            self.comm.prune()

    def done(self):
        """Whether the operation is finished, with or without an error. Never blocks."""
        cdef cbool result
        with nogil:
            result = dereference(self.work).done()
        if result:
            self.comm.prune()
        return result

    def arrived(self, int rank):
        """Whether everything from ``rank`` has arrived and may be read."""
        cdef cbool result
        if not 0 <= rank < self.comm._size:
            raise InvalidArgumentError(f"rank {rank} is not in a group of {self.comm._size} ranks")
        with nogil:
            result = dereference(self.work).arrived(rank)
        return result

    def order_before(self, stream):
        """Make work enqueued on ``stream`` later see the result, without blocking this thread. ``stream`` is a handle
        or an object as in the calls. For host tensors, or None, the same as wait()."""
        cdef CppStream cpp
        if stream is not None:
            cpp.handle = parse_stream(stream)
        if stream is None or self.memory == Memory.host:
            return self.wait()
        require_stream(self.memory, cpp)
        with nogil:
            dereference(self.work).order_before(cpp)

    @property
    def result(self):
        """The received tensor of an operation that allocates its output, otherwise the ``recv`` argument. Its contents
        are valid once done. A JAX array cannot be filled in later, so for JAX this waits."""
        if self.convert is not None:
            self.wait()
            self.output, self.convert = self.convert(self.output), None
        return self.output

    @property
    def source(self):
        """For a finished recv(): the rank that sent the tensor. Otherwise None."""
        cdef int rank = dereference(self.work).source()
        return None if rank < 0 else rank

    def __await__(self):
        return _poll(self).__await__()


async def _poll(work):
    """Wait for a Work in asyncio. It polls: done() also advances the operation, and a blocking wait would need a thread
    for every Work."""
    import asyncio
    pause = 0.0
    while not work.done():
        await asyncio.sleep(pause)
        pause = min(pause * 2, 0.002) if pause else 1e-5
    work.wait()


@cython.final
cdef class _End:
    def __dealloc__(self):
        end_python()


_end = _End.__new__(_End)  # the interpreter drops it when it ends
