# The operations of programs that XLA has compiled, for a2a.jax.

def xla_handler():
    """Return a capsule of the handler that runs operations of compiled programs, for jax.ffi.register_ffi_target()."""
    return PyCapsule_New(xla_handler_address(), NULL, NULL)


def before_starvation(function):
    """Have ``function(waiting)`` say whether compiled programs are left for which XLA has no thread, once so many of
    its threads have waited for a second."""
    set_starvation_check(function)


def abort_programs(str reason, programs):
    """Abort the communicators of the compiled programs with these numbers."""
    cdef string text = reason_of(reason)
    cdef vector[uint64_t] numbers = programs
    with nogil:
        abort_xla_programs(text, numbers)


@cython.final
cdef class CompiledCalls:
    """The collectives of a communicator for a compiled program. Each takes the arguments of the communicator's own, and
    returns the number by which the program calls it on its buffers; nothing is run, and no number of an operation or a
    plan is taken. Tensors stand for those of the program, in C order. The calls live as long as the communicator.
    ``program`` is a number of the program."""

    cdef Communicator comm
    cdef uint64_t program

    def __cinit__(self, Communicator comm not None, program):
        self.comm, self.program = comm, program

    @property
    def rank(self):
        """The communicator's rank."""
        return self.comm._rank

    @property
    def size(self):
        """The communicator's size."""
        return self.comm._size

    def alltoallv(self, send, send_counts, recv, recv_counts, send_displs, recv_displs, *, split_axis=0,
                  concat_axis=0, agreement=0):
        """``agreement`` is a number that all ranks have alike, and others where an argument differs on one of them; 0:
        each pair of ranks exchanges as much as any other, so that every rank sees where one differs."""
        cdef XlaCall call
        parse_call(&call.exchange.call, Op.alltoallv, None, None)
        prepare_alltoallv(call.exchange, self.comm, send, send_counts, recv, recv_counts, send_displs, recv_displs,
                          split_axis, concat_axis, False)
        if agreement != 0:
            call.exchange.plan = compared_plan(call.exchange.plan, agreement)
        return self.kept(call, send, recv)

    def allgather(self, send, recv):
        cdef XlaCall call
        parse_call(&call.exchange.call, Op.allgather, None, None)
        prepare_allgather(call.exchange, self.comm, send, recv, False)
        return self.kept(call, send, recv)

    def allreduce(self, send, recv, op):
        cdef XlaCall call
        parse_reduction(&call.exchange.call, Op.allreduce, op, None, None)
        prepare_allreduce(call.exchange, self.comm, send, recv, False)
        return self.kept(call, send, recv)

    def reduce_scatter(self, send, recv, op):
        cdef XlaCall call
        parse_reduction(&call.exchange.call, Op.reduce_scatter, op, None, None)
        prepare_reduce_scatter(call.exchange, self.comm, send, recv, False)
        return self.kept(call, send, recv)

    def broadcast(self, tensor, root):
        """The tensor is the first result."""
        cdef XlaCall call
        call.compared_by_all = False
        call.kind = XlaKind.in_place
        parse_call(&call.exchange.call, Op.broadcast, None, None)
        prepare_broadcast(call.exchange, self.comm, tensor, self.comm.parse_rank(root, "root"), False)
        return self.kept(call, tensor, tensor)

    def send(self, tensor, peer, tag):
        return self.message(XlaKind.send, tensor, peer, tag)

    def recv(self, tensor, peer, tag):
        return self.message(XlaKind.recv, tensor, peer, tag)

    def barrier(self):
        cdef XlaCall call
        parse_call(&call.exchange.call, Op.barrier, None, None)
        call.exchange.plan = plan_nothing(self.comm._rank, self.comm._size)
        call.exchange.listed = True
        call.exchange.sends.assign(self.comm._size, NULL)
        call.exchange.recvs.assign(self.comm._size, NULL)
        nothing = np.empty(0, np.uint8)
        return self.kept(call, nothing, nothing)

    def ragged_alltoallv(self, send, recv, agreement):
        """alltoallv of rows, into the first result, which holds the second argument. Five more arguments, int32 or
        int64, have by rank: the first row to send, the rows to send, the first row of the result, the rows to receive,
        and the rows that the other rank has said it sends. ``agreement`` as in alltoallv."""
        cdef XlaCall call
        cdef View sent, received
        call.kind, call.agreement = XlaKind.ragged, agreement
        parse_call(&call.exchange.call, Op.alltoallv, None, None)
        view_pair(call.exchange, send, "operand", recv, "output", False, &sent, &received)
        require_rows(&sent, "operand", &received, "output")
        return self.kept(call, send, recv)

    cdef object message(self, XlaKind kind, object tensor, object peer, object tag):
        cdef XlaCall call
        cdef View view
        call.kind = kind
        call.compared_by_all = False
        if kind == XlaKind.send or peer is not None:
            call.peer = self.comm.parse_rank(peer, "peer")
        else:
            call.peer = -1
        call.tag = parse_tag(tag)
        parse_call(&call.exchange.call, Op.send if kind == XlaKind.send else Op.recv, None, None)
        view_of(tensor, "tensor", False, False, &view)
        set_call_memory(&call.exchange.call, &view, "tensor")
        set_call_dtype(&call.exchange.call, &view)
        return self.kept(call, tensor, tensor)

    cdef object kept(self, XlaCall& call, object send, object recv):
        call.send_bytes, call.recv_bytes = send.nbytes, recv.nbytes
        call.send_elems, call.recv_elems = send.size, recv.size
        call.exchange.send, call.exchange.recv = NULL, NULL
        call.program = self.program
        self.comm.compiled = wait_for_programs is not None
        return keep_call(self.comm.live(), call)
