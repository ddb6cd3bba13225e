# Collective calls tell the peers when they raise before they have taken all of their numbers.

cdef object collective_type = make_collective_type()


def collective(function):
    """A function or method whose calls the ranks match, one of its arguments being the communicator. If a call raises
    on one rank before it has started all of its operations, whatever the reason, such as arguments that do not fit the
    signature or a signal handler that raises, the peers are told. They raise MismatchError in the next operation of the
    call, and the numbers of all ranks stay equal. A call has one operation unless it says so by takes()."""
    return make_collective(collective_type, function)


def takes(operations, *, bint together=False):
    """Say how many operations of the communicator the innermost ``collective`` call starts in all: the same number on
    all ranks. Calls of the communicator count, and ``refuse``; an inner ``collective`` function counts as those that it
    starts. Call it before the second operation, and again where the number is known later.

    Without ``together`` only the last operation may be asynchronous: where one fails, it fails on every rank, and none
    starts the next. With it every rank starts all of them, even if one fails, and the decorator refuses the rest."""
    takes_operations(operations, together)


def everywhere(error):
    """Return an error that every rank raises after this operation, because all have compared the same values. Then
    none starts the next one, and nobody has to be told."""
    note_failed()
    return error


cdef PyObject* tell_peers_of(PyObject* function, PyObject* const* arguments, Py_ssize_t count,
                             PyObject* error) noexcept:
    """Signal handlers may raise here, too, in code of the program that describes the error. Then the peers are told of
    that, and it is returned."""
    cdef uint64_t before = operations_so_far()
    interrupt = None
    try:
        tell_of_call(<object> function, arguments, count, <object> error)
    except Exception:
        pass  # The communicator is closed, or there is no memory. The call's own error says more.
    except BaseException as raised:
        interrupt = raised
    if interrupt is None:
        return NULL
    try:
        if operations_so_far() == before:
            tell_of_call(<object> function, arguments, count, interrupt)
    except BaseException:
        pass
    Py_INCREF(interrupt)
    return <PyObject*> interrupt


cdef int tell_of_call(object function, PyObject* const* arguments, Py_ssize_t count, object error) except -1:
    cdef Py_ssize_t i
    for i in range(count):
        argument = <object> arguments[i]
        if not isinstance(argument, (Communicator, Plan)):
            argument = getattr(argument, "comm", None)  # of a Routing, or an a2a.moe.ExpertParallel
        if isinstance(argument, (Communicator, Plan)):
            take_number(argument, function.__name__, error)
            break
    return 0


cdef int take_number(object argument, str name, object error) except -1:
    """Take the number of the call with this name, a method of ``argument`` or a function with that argument."""
    cdef Call call
    cdef Plan plan = argument if isinstance(argument, Plan) else None
    cdef Communicator comm = argument if plan is None else plan.comm
    if name.startswith("plan_") or name == "transpose":
        comm.next_plan()
    elif name == "abort":
        comm.abort(error)
    elif plan is not None:
        comm.refused(plan.template.call, error)
    else:
        call.op = operation_names.get(name, Op.alltoall_list)
        comm.refused(call, error)
    return 0


# The first operation of each call. Of two operations with the same text it is the one with the lower number.
cdef dict operation_names = {op_string(<Op> op).decode(): op for op in range(<int> LAST_OPERATION, 0, -1)}
operation_names |= {"gather_list": Op.gather, "route": Op.route, "plan": Op.route}

tell_peers = tell_peers_of
