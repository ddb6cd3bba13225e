# What collectives of another form do: lists of tensors, and outputs that the call allocates.


cdef class _Exchanges(_Messages):
    cdef object exchange_lists(self, Op op, object sends, object recvs, bint async_op, object stream, object timeout):
        cdef Exchange x
        try:
            parse_call(&x.call, op, stream, timeout)
            inputs, outputs = as_list(sends, "sends", self._size), as_list(recvs, "recvs", self._size)
            tensors = prepare_list(x, self, inputs, outputs, async_op)
            claim_all(outputs, names_of_entries(self._size)[1])
        except BaseException as error:
            raise self.refused(x.call, error)
        return self.launch(x, async_op, tensors, recvs, None)

    cdef object global_exchange(self, Op op, object tensor, object local_count, object global_count, object out,
                                bint async_op, object stream, object timeout):
        cdef Exchange x
        try:
            parse_call(&x.call, op, stream, timeout)
            convert = convert_like(tensor) if out is None else None
            recv, tensors = prepare_global(x, self, tensor, local_count, global_count, out, async_op)
            claim(recv, "out")
        except BaseException as error:
            raise self.refused(x.call, error)
        return self.received(x, async_op, tensors, recv, convert)

    cdef object plan_global_exchange(self, Op op, object tensor, object local_count, object global_count):
        cdef Exchange x
        cdef uint64_t number = self.next_plan()
        parse_call(&x.call, op, None, None)
        prepare_global_plan(x, self, tensor, local_count, global_count)
        return make_plan(self, x, x.call.unit_bytes, number, Sides.both)

    cdef object received(self, Exchange& x, bint async_op, object tensors, object recv, object convert):
        """Run an operation that has allocated ``recv``. Returns its Work, or the received tensor."""
        # JAX has no stream that could wait for a device.
        cdef bint waits = convert is not None and x.call.memory != Memory.host
        work = self.launch(x, async_op or waits, tensors, recv, convert)
        if async_op:
            return work
        if waits:
            return (<Work> work).result
        return recv if convert is None else convert(recv)
