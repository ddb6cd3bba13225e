# The base class of Communicator: it starts operations, waits for them, and keeps their tensors until they are done.

cdef object wait_for_programs = None


def before_operations(function):
    """Let every call of a communicator that compiled programs use, too, call ``function`` first. It waits for the
    programs that this thread has started."""
    global wait_for_programs
    wait_for_programs = function


cdef str words_of(object error):
    """Return str(error), or another text where the object's own methods fail."""
    try:
        text = PyUnicode_FromObject(str(error))
        return text or type_name(error)
    except Exception:
        return "an error without words"


cdef bytes reason_of(object error):
    """Return the text for the peers. They keep a few hundred bytes of it, up to the first zero."""
    return words_of(error)[:2000].replace("\0", "\\0").encode("utf-8", "backslashreplace")


cdef object operation_listener = None


def set_operation_listener(listener):
    """Have ``listener(communicator, name)`` called before each operation of a communicator and each message starts, in
    the thread that calls; None: nobody. What it raises is raised by the call, as if its arguments were refused."""
    global operation_listener
    operation_listener = listener


# What every method of a communicator uses: the C++ communicator, the wait, and the tensors of operations in flight.
@cython.no_gc_clear
cdef class _CommunicatorBase:
    cdef CommPtr comm       # NULL after leaving
    cdef Task control       # a control call that Ctrl-C interrupted; it goes on, and the next call waits for it first
    cdef int _rank, _size
    cdef list flights       # unfinished operations whose memory may have no other owner
    cdef list messages      # the same of messages; None before the first
    cdef unsigned long caller   # the thread inside a call that takes operation numbers, 0 for none
    cdef int depth              # the number of its nested calls
    cdef bint compiled          # whether compiled programs have operations of it: see before_operations()
    cdef _CheckedPair checked     # of alltoallv
    cdef object _endpoint, _generation, _handles, _joined   # of a communicator of Endpoint.connect(), otherwise None
    cdef object __weakref__

    def __cinit__(self):
        self.checked = _CheckedPair.__new__(_CheckedPair)

    def __dealloc__(self):
        # The transport first, because it may still write into the tensors of the flights. This leaves without waiting.
        self.comm.reset()
        if self.flights is not None:
            unfinished.extend(self.flights)
            unfinished.extend(self.messages or ())
        prune_unfinished()

    cdef CommPtr live(self) except *:
        if self.control.get() != NULL and self.caller in (0, PyThread_get_thread_ident()):
            self.settle()
        if self.comm.get() == NULL:
            raise AbortedError(f"rank {self._rank} has left this communicator")
        return self.comm

    cdef int settle(self) except -1:
        """Wait for the control call in flight. A signal handler may call this too, and wait for it."""
        cdef Task control = self.pending()
        while control.get() != NULL:
            wait_task(control)
            self.forget(control)
            control = self.pending()
        return 0

    cdef Task pending(self) noexcept:
        cdef Task control
        with cython.critical_section(self):
            control = self.control
        return control

    cdef void forget(self, const Task& control) noexcept:
        with cython.critical_section(self):
            if self.control.get() == control.get():
                self.control.reset()

    cdef int enter(self, Op op) except -1:
        """Begin a call that takes operation numbers. Raises where two threads call at once: nothing orders them, and on
        another rank the order may differ, so that each would get the data of the other."""
        cdef unsigned long here = PyThread_get_thread_ident(), inside
        if self.compiled:
            wait_for_programs()
        with cython.critical_section(self):
            inside = self.caller
            if inside == 0 or inside == here:   # once more: a signal handler may call inside a call
                self.caller = here
                self.depth += 1
        if inside != 0 and inside != here:
            self.refuse_thread(op)
        if operation_listener is not None and self.depth == 1:
            self.announce(op)
        return 0

    cdef int announce(self, Op op) except -1:
        """Tell the listener of an operation. What it raises is refused on this rank, and the peers are told."""
        cdef Call call
        try:
            operation_listener(self, op_string(op).decode())
        except BaseException as error:
            self.leave()
            call.op = op
            raise self.refused(call, error)
        return 0

    cdef int let_failing_call_end(self) except -1:
        """Where the communicator is broken, wait until the call that another thread is in has raised."""
        cdef CommPtr comm = self.comm
        while self.caller not in (0, PyThread_get_thread_ident()) and dereference(comm).broken():
            sleep(0.0005)
        return 0

    cdef int refuse_thread(self, Op op) except -1:
        cdef Call call
        call.op = op
        error = InvalidArgumentError(
            f"{op_string(op).decode()}: another thread is inside a call of this communicator; let them take turns, or "
            f"give each thread a communicator of its own (split)")
        raise self.refused(call, error)

    cdef void leave(self) noexcept:
        with cython.critical_section(self):
            self.depth -= 1
            if self.depth == 0:
                self.caller = 0

    cdef object launch(self, Exchange& x, bint async_op, object tensors, object output, object convert,
                       object sent=None):
        """Start the operation, then wait for it or return its Work. ``tensors`` hold the memory until it is done; None:
        ``sent`` and ``output`` do."""
        self.enter(x.call.op)
        try:
            return self.run(x, async_op, tensors, output, convert, sent)
        finally:
            self.leave()

    cdef object run(self, Exchange& x, bint async_op, object tensors, object output, object convert, object sent):
        cdef CommPtr comm = self.live()
        cdef shared_ptr[CppWork] work
        cdef When never
        cdef cbool done = False
        x.call.asynchronous = async_op
        if tensors is None and (async_op or x.call.memory != Memory.host):
            tensors = sent, output
        if x.call.memory != Memory.host:
            return self.enqueue(comm, x, async_op, tensors, output, convert)
        if self.flights or self.messages:
            self.prune()
        count_operation()
        try:
            if not async_op:
                # If try_start() starts it, it usually takes less time than releasing the GIL and acquiring it again.
                work = try_start(dereference(comm), x)
                done = work.get() != NULL and wait_briefly(dereference(work))
            if not done:
                with nogil:
                    if work.get() == NULL:
                        work = start(dereference(comm), x)
                    if not async_op:
                        done = wait_slice(dereference(work), never)
            if not done and not async_op:
                PyErr_CheckSignals()
                finish_of(self, work, never)
        except BaseException as error:  # the operation goes on, or a network still uses its memory
            if isinstance(error, Error):
                note_failed()
            if work.get() != NULL:
                self.keep(work, (sent, output) if tensors is None else tensors)
            if isinstance(error, InvalidArgumentError) and f"rank {self._rank}" not in words_of(error):
                self.name_rank(error)  # of the core, which refused the arguments
            raise
        if not async_op:
            return None
        self.keep(work, tensors)
        return make_work(self, x.call, work, output, convert)

    cdef object enqueue(self, const CommPtr& comm, Exchange& x, bint async_op, object tensors, object output,
                        object convert):
        """Start the operation on a device. Its stream orders later work, so this does not wait; without a stream it has
        to."""
        cdef shared_ptr[CppWork] work
        cdef When never
        cdef _Flight before = self.oldest()
        cdef cbool done = False
        count_operation()
        try:
            with nogil:
                work = start(dereference(comm), x)  # this advances the operations before it
                if before is not None:
                    done = let_go(dereference(before.work))
        except Error:
            note_failed()
            raise
        if done:
            self.drop(before)
            self.prune()
        self.keep(work, tensors)
        if async_op:
            return make_work(self, x.call, work, output, convert)
        if x.call.memory == Memory.npu and x.call.stream.handle == NULL:
            finish_of(self, work, never)
        return None

    cdef int keep(self, const shared_ptr[CppWork]& work, object tensors) except -1:
        flight = make_flight(work, tensors)
        with cython.critical_section(self):
            self.flights.append(flight)
        return 0

    cdef _Flight oldest(self):
        with cython.critical_section(self):
            return self.flights[0] if self.flights else None

    cdef int prune(self) except -1:
        """Release the tensors of finished operations. Operations finish in the order of their start, so the first
        unfinished one ends the search."""
        cdef _Flight first
        cdef cbool done
        if self.messages:
            self.prune_messages()
        while True:
            first = self.oldest()
            if first is None:
                return 0
            with nogil:
                done = let_go(dereference(first.work))
            if not done:
                return 0
            self.drop(first)

    cdef int prune_messages(self) except -1:
        """Release the tensors of finished messages, which finish in any order. Other threads, and code that the garbage
        collector calls, may do the same meanwhile."""
        cdef _Flight flight
        for each in list(self.messages):
            flight = each
            if not let_go(dereference(flight.work)):
                continue
            with cython.critical_section(self):
                if flight in self.messages:
                    self.messages.remove(flight)
        return 0

    cdef int drop(self, _Flight first) except -1:
        with cython.critical_section(self):
            if self.flights and self.flights[0] is first:
                del self.flights[0]
        return 0

    cdef int name_rank(self, object error) except -1:
        """Begin the text of an error of this package with the rank. A MismatchError names the ranks in the same words
        on all of them."""
        text = words_of(error)
        if isinstance(error, Error) and not isinstance(error, MismatchError) and not text.startswith("rank "):
            error.args = (f"rank {self._rank}: {text}",)
        return 0

    cdef object refused(self, const Call& call, object error):
        """Take the next number and tell the peers that this rank's arguments were refused, so that they do not wait.
        Does not wait for a control call: the peers are told after it. Returns the error to raise."""
        cdef CommPtr comm = self.comm
        cdef Task control = self.pending()
        cdef string reason
        if self.compiled:
            wait_for_programs()
        self.name_rank(error)
        reason = reason_of(error)
        count_operation()
        note_failed()
        if comm.get() == NULL:
            return error
        try:
            if control.get() != NULL:
                with nogil:
                    dereference(control).refuse_afterwards(comm, call, reason)
            else:
                with nogil:
                    dereference(comm).refuse(call, reason)
        except Error:
            pass  # The communicator is broken or closed, so the peers raise anyway.
        return error

    cdef Outcome run_control(self, Op op, Task task) except *:
        """Run a control call. After Ctrl-C it goes on, and the next call waits for it first."""
        self.enter(op)
        try:
            dereference(task).start()
            count_operation()
            with cython.critical_section(self):
                self.control = task
            wait_task(task)
            self.forget(task)
            return dereference(task).result()
        except Error:
            note_failed()
            raise
        finally:
            self.leave()

    cdef uint64_t next_plan(self) except? 0:
        cdef CommPtr comm = self.live()
        cdef uint64_t number = dereference(comm).next_plan()
        count_operation()
        return number


cdef Work make_work(_CommunicatorBase comm, const Call& call, const shared_ptr[CppWork]& work, object output,
                    object convert):
    cdef Work made = Work.__new__(Work)
    made.work, made.comm, made.output, made.convert = work, comm, output, convert
    made.memory = call.memory
    return made
