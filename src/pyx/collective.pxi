# Collective calls take their number even if they raise on one rank.

cdef object collective_type = make_collective_type()


def collective(function):
    """Decorate a collective function or method that has the communicator among its arguments. If a call raises before
    it has taken the number of an operation or has told the peers why it does not take part, as for arguments that do
    not fit the signature, the decorator does both."""
    return make_collective(collective_type, function)


cdef void tell_peers_of(PyObject* function, PyObject* const* arguments, Py_ssize_t count, PyObject* error) noexcept:
    cdef Py_ssize_t i
    for i in range(count):
        argument = <object> arguments[i]
        argument = getattr(argument, "comm", argument)  # a Routing, or an a2a.moe.ExpertParallel
        if isinstance(argument, (Communicator, Plan)):
            try:
                take_number(argument, (<object> function).__name__, <object> error)
            except Exception:
                pass  # The communicator is closed, or there is no memory. The call's own error says more.
            return


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


cdef dict operation_names = {op_string(<Op> op).decode(): op
                             for op in (*range(<int> Op.allgather_views + 1),
                                        *range(<int> Op.allreduce, <int> Op.allgatherv + 1))}
operation_names |= {"reduce_scatterv": Op.reduce_scatter, "route": Op.route, "dispatch": Op.route, "plan": Op.route,
                    "combine": Op.combine, "give_back": Op.give_back}

tell_peers = tell_peers_of
