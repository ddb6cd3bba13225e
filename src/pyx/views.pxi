# Views of the peers' tensors.


@cython.final
@cython.no_gc_clear
cdef class Views:
    """One read-only tensor for each rank, in rank order; ``Communicator.allgather_views`` makes it. A sequence, and a
    context manager that releases at its end.

    The memory of every rank's tensor is kept until every rank has called release() or has dropped this object and all
    tensors made from it, or has died. Closing or breaking the communicator, or the end of an owner's process, does not
    change that."""

    cdef ViewsPtr views
    cdef DLDataType dtype
    cdef object framework   # the result of parse_like
    cdef int _rank
    cdef double seconds     # default timeout
    cdef list tensors
    cdef object __weakref__

    def __len__(self):
        return dereference(self.views).size()

    def __getitem__(self, rank):
        cdef int size = dereference(self.views).size(), index = parse_int(rank, "rank")
        if dereference(self.views).released():
            raise InvalidArgumentError(f"rank {self._rank} has released these views")
        if not -size <= index < size:
            raise IndexError(f"rank {index} is not in a group of {size} ranks")
        if index < 0:
            index += size
        tensor = self.tensors[index]
        if tensor is None:
            tensor = self.tensors[index] = as_framework(self.array(index), self.framework, False)
        return tensor

    def __iter__(self):
        return iter([self[rank] for rank in range(len(self))])

    cdef SharedArray array(self, int rank):
        cdef DLDevice host
        cdef CppView view = dereference(self.views).view(rank)
        cdef size_t i
        host.device_type, host.device_id = kDLCPU, 0
        array = make_shared_array(self.dtype, host, [view.shape[i] for i in range(view.shape.size())])
        array.memory = memory_of_view(self.views, view)
        array.tensor.data = array.memory.get()
        array.readonly = True
        return array

    def __repr__(self):
        state = " released" if self.released else ""
        return f"<Views rank {self._rank} of {len(self)}{state}>"

    @property
    def released(self):
        """Whether release() was called on this rank."""
        return dereference(self.views).released()

    def release(self):
        """End this rank's views. Does not wait; a second call does nothing. Tensors made from the views must not be
        used afterwards: that never crashes, but their contents are arbitrary."""
        cdef ViewsPtr views = self.views
        self.tensors = [None] * len(self)
        with nogil:
            dereference(views).release()

    def wait_released(self, timeout=None):
        """Release, then block until every other rank has released too, so that this rank may write into its own tensor
        again. Raises TimeoutError after ``timeout`` seconds, by default those of the communicator; that does not break
        the communicator, and it may be called again."""
        cdef double seconds = self.seconds if timeout is None else parse_timeout(timeout)
        cdef When until = deadline_after(seconds)
        cdef ViewsPtr views = self.views
        cdef cbool done
        self.tensors = [None] * len(self)
        while True:
            with nogil:
                done = wait_released_slice(dereference(views), until)
            if done:
                return
            PyErr_CheckSignals()
            if has_passed(until):
                raise TimeoutError(f"rank {self._rank}: after {seconds:g} seconds another rank still looks at this "
                                   f"rank's tensor")

    def __enter__(self):
        return self

    def __exit__(self, kind, value, traceback):
        self.release()


cdef Views make_views(ViewsPtr& views, DLDataType dtype, object framework, _CommunicatorBase comm):
    cdef Views made = Views.__new__(Views)
    made.views, made.dtype, made.framework, made._rank = views, dtype, framework, comm._rank
    made.seconds = dereference(comm.live()).timeout_seconds()
    made.tensors = [None] * dereference(views).size()
    return made
