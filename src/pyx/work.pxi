# Waiting, and operations in flight.


cdef int finish(shared_ptr[CppWork]& work, const When& until) except -1:
    """Wait without the GIL, looking for signals in between, until finished or ``until`` passes (TimeoutError)."""
    cdef cbool done
    while True:
        with nogil:
            done = wait_slice(dereference(work), until)
        if done:
            return 0
        PyErr_CheckSignals()


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


# Exchanges whose memory nobody else holds, whatever becomes of what started them: those that no communicator keeps, and
# those that failed while a network had their memory.
cdef list unfinished = []


cdef int hold_until_done(const shared_ptr[CppWork]& work, object tensors) except -1:
    """Of an exchange that no communicator keeps."""
    unfinished.append(make_flight(work, tensors))
    return 0


cdef int prune_unfinished() except -1:
    """Let go of what has finished."""
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
    """One operation in flight. Keeps both tensors alive until done; may be dropped, the communicator then keeps
    them."""

    cdef shared_ptr[CppWork] work
    cdef _Endpoint comm
    cdef Memory memory
    cdef object output      # the received tensor, or what `convert` makes it from
    cdef object convert
    cdef object __weakref__

    def wait(self, timeout=None):
        """Block until done. Raises the operation's error, or TimeoutError after ``timeout`` seconds (the operation then
        goes on and may be waited for again). Ctrl-C interrupts the wait, not the operation."""
        cdef When until
        if timeout is not None:
            until = deadline_after(parse_timeout(timeout))
        try:
            finish(self.work, until)
        finally:
            self.comm.prune()

    def done(self):
        """Whether the operation is finished, well or not. Never blocks."""
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
        or an object as in the calls. Host tensors, or None: the same as wait()."""
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
        """Of a recv() that is over: the rank that has sent the tensor. None otherwise."""
        cdef int rank = dereference(self.work).source()
        return None if rank < 0 else rank

    def __await__(self):
        return _poll(self).__await__()


async def _poll(work):
    """Wait for a Work in asyncio. Polling, because done() also moves the operation along, which a sleeping thread would
    have to do for every Work."""
    import asyncio
    pause = 0.0
    while not work.done():
        await asyncio.sleep(pause)
        pause = min(pause * 2, 0.002) if pause else 1e-5
    work.wait()
