# cython: language_level=3, cdivision=True, boundscheck=False, wraparound=False, auto_pickle=False, autotestdict=False
# cython: freethreading_compatible=True
# distutils: language = c++
"""ATB's AllToAllV on tensors of any framework. All checks are those of the C++ operation."""

cimport cython
from libc.stdint cimport int64_t, uintptr_t
from libcpp.memory cimport shared_ptr
from libcpp.string cimport string
from libcpp.vector cimport vector

from a2a cimport CountList, CppCommunicator, CppWork, Memory, When, raise_pending, set_error_classes
from a2a._core cimport (
    View,
    allocate_like,
    communicator_of,
    convert_like,
    dtype_name,
    error_classes,
    find_wheels,
    finish,
    hold_until_done,
    memory_of,
    note_call_site,
    parse_counts,
    parse_int,
    parse_timeout,
    prune_unfinished,
    reason_of,
    refuse_lost_gradient,
    require_contiguous,
    require_made,
    require_output,
    shown,
    type_name,
    view_of,
)
from tracebacks cimport *
from atb cimport *
from dlpack cimport kDLBfloat, kDLBool, kDLComplex, kDLFloat, kDLInt, kDLUInt

import os
import threading
import time

from a2a._core import Error, InvalidArgumentError, connect, mpi_bootstrap

set_error_classes(error_classes)

# (DLPack code, bits) -> aclDataType. It includes those that ATB refuses, so that ATB's error names them.
cdef dict acl_dtypes = {
    (kDLFloat, 32): 0, (kDLFloat, 16): 1, (kDLFloat, 64): 11, (kDLBfloat, 16): 27,
    (kDLInt, 8): 2, (kDLInt, 16): 6, (kDLInt, 32): 3, (kDLInt, 64): 9,
    (kDLUInt, 8): 4, (kDLUInt, 16): 7, (kDLUInt, 32): 8, (kDLUInt, 64): 10,
    (kDLBool, 8): 12, (kDLComplex, 64): 16, (kDLComplex, 128): 17,
}
cdef enum:
    ERROR_INVALID_PARAM = 1
    ERROR_INVALID_TENSOR_INI_MATCH = 13
    ERROR_HCCL_FAIL = 25
    ERROR_COMM_EMPTY = 28


cdef object with_status(object error, int status):
    """Return the error with ATB's status in its text and as its attribute ``status``."""
    if isinstance(error, Error) and not hasattr(error, "status"):
        error.args = (f"{error} ({status_name(status).decode()})",)
        error.status = status
    return error


cdef int require(int status) except -1:
    """Raise the error with which a call of the C++ operation failed."""
    if status == 0:
        return 0
    raise_pending()  # the exception of a signal handler, which ended the call
    kind = error_classes[failure_code() - 1]
    raise with_status(kind(failure_text().decode("utf-8", "backslashreplace")), status)


cdef bytes text_of(object value, str name):
    """Return a string as UTF-8 in every locale, so that it is the same on all ranks."""
    if isinstance(value, bytes):
        return value
    try:
        return (<str?> value).encode()
    except (TypeError, UnicodeEncodeError):
        raise InvalidArgumentError(f"{name} is {shown(value)}; pass a string") from None


cdef bytes path_of(object value, str name):
    try:
        return os.fsencode(value)
    except (TypeError, ValueError):
        raise InvalidArgumentError(f"{name} is {shown(value)}; pass a path") from None


cdef void* pointer_of(object value, str name) except? NULL:
    if value is None:
        return NULL
    if not isinstance(value, int) or not 0 <= value < 2**64:
        raise InvalidArgumentError(f"{name} is {shown(value)}; pass the address of an HcclComm, or None")
    return <void*> <uintptr_t> value


cdef int append_dtype(const View* view, int* acl) except -1:
    found = acl_dtypes.get((view.dtype.code, view.dtype.bits)) if view.dtype.lanes == 1 else None
    if found is None:
        raise with_status(InvalidArgumentError(
            f"inTensor[0]: dtype {dtype_name(view.dtype)} is not one of float16, float, int8, int32, int16, int64, "
            f"bf16"), ERROR_INVALID_TENSOR_INI_MATCH)
    acl[0] = found
    return 0


cdef object describe_input(object tensor, View* view, AtbDesc* desc):
    """Fill in the view and the description. Returns the object that holds the memory."""
    cdef int acl = -1
    holder = view_of(tensor, "inTensor[0]", False, True, view)
    require_contiguous(view, "inTensor[0]")
    memory_of(view, "inTensor[0]")  # raises if no transport serves it
    append_dtype(view, &acl)
    desc[0] = atb_desc(acl, view.ndim, view.shape)
    return holder


# The locks of (rank, size, meeting place). A thread that makes a communicator holds its lock, so that each rank joins
# once.
cdef dict joining = {}


@cython.final
cdef class AtbOperation:
    """ATB's AllToAllV with its parameters; see a2a.atb.AllToAllVOperation. Errors have ATB's number as ``status``."""

    cdef Atb atb
    cdef double timeout

    def __cinit__(self, *, rank, rank_size, rank_root, send_counts, sdispls, recv_counts, rdispls, backend, hccl_comm,
                  comm_mode, rank_table_file, comm_domain, rsv, timeout):
        cdef AtbParam param
        cdef CountList reserved
        cdef size_t i
        try:
            param.rank, param.rankSize = parse_int(rank, "rank"), parse_int(rank_size, "rankSize")
            param.rankRoot = parse_int(rank_root, "rankRoot")
            parse_counts(send_counts, "sendCounts", param.sendCounts)
            parse_counts(sdispls, "sdispls", param.sdispls)
            parse_counts(recv_counts, "recvCounts", param.recvCounts)
            parse_counts(rdispls, "rdispls", param.rdispls)
            param.backend, param.hcclComm = text_of(backend, "backend"), pointer_of(hccl_comm, "hcclComm")
            find_wheels()
            set_comm_mode(param, parse_int(comm_mode, "commMode"))
            param.rankTableFile = path_of(rank_table_file, "rankTableFile")
            param.commDomain = text_of(comm_domain, "commDomain")
            parse_counts(rsv, "rsv", reserved)
            if reserved.size() > 64:
                raise InvalidArgumentError(f"rsv has {reserved.size()} bytes instead of 64")
            for i in range(reserved.size()):
                if not 0 <= reserved[i] <= 255:
                    raise InvalidArgumentError(f"rsv[{i}] is {reserved[i]}; it is a byte")
                param.rsv[i] = <unsigned char> reserved[i]
            self.timeout = parse_timeout(timeout)
            require(self.atb.create(param, self.timeout))
        except Error as error:
            raise with_status(error, ERROR_INVALID_PARAM)

    @property
    def name(self):
        """ATB's name of the operation."""
        return self.atb.name().decode()

    @property
    def input_num(self):
        """The number of tensors that ``forward`` takes."""
        return self.atb.inputs()

    @property
    def output_num(self):
        """The number of tensors that ``forward`` returns."""
        return self.atb.outputs()

    def forward(self, tensors):
        """Exchange. Returns a list with the output of shape [1, sum(recvCounts)] in the framework of the input. Ctrl-C
        interrupts the wait, not the exchange."""
        cdef shared_ptr[CppWork] work
        cdef When never
        cdef string reason
        cdef int status
        note_call_site()
        prune_unfinished()
        try:
            output, holders, convert = self.set_up(tensors)
        except BaseException as error:
            with_status(error, ERROR_INVALID_PARAM)
            reason = reason_of(error)
            with nogil:
                self.atb.refuse(reason)
            raise
        with nogil:
            status = self.atb.start(work)
        require(status)
        if self.atb.ordered_by_stream() and convert is None:
            hold_until_done(work, (holders, output))
            return [output]
        try:
            finish(work, never)
        except Error as error:
            raise with_status(error, ERROR_HCCL_FAIL)
        except BaseException:
            hold_until_done(work, (holders, output))
            raise
        return [output if convert is None else convert(output)]

    cdef tuple set_up(self, object tensors):
        """Do everything before the exchange. Returns (output, the objects that keep the memory of both, convert_like of
        the input)."""
        cdef View view, shape
        cdef View received
        cdef AtbDesc desc
        cdef vector[AtbDesc] descs
        cdef int64_t elems = 0
        cdef void* stream = NULL
        cdef int status
        if not isinstance(tensors, (list, tuple)):
            raise InvalidArgumentError(f"tensors is {type_name(tensors)}; pass a list with one tensor")
        items = list(tensors)[:2]  # two are enough to be refused
        for tensor in items:
            refuse_lost_gradient(tensor, "inTensor[0]")
            describe_input(tensor, &view, &desc)
            descs.push_back(desc)
        require(self.atb.infer(descs, elems))
        self.meet()
        shape = view
        shape.ndim, shape.rows, shape.shape[0], shape.shape[1] = 2, 1, 1, elems
        output = allocate_like(items[0], &shape, 1)
        receiver = view_of(output, "outTensor[0]", True, True, &received)
        require_output(&received, "outTensor[0]", output)
        require_made(&received, &shape, 1)
        holder = describe_input(items[0], &view, &desc)  # again: code of the program may have changed it or its memory
        stream = view.stream if memory_of(&view, "inTensor[0]") != Memory.host else NULL
        with nogil:
            status = self.atb.setup(desc, view.data, elems, received.data, stream)
        require(status)
        return output, (holder, receiver), convert_like(items[0])

    cdef int meet(self) except -1:
        """Make the communicator unless there is one. Setup could do that, but cannot be interrupted."""
        cdef AtbMeeting meeting = self.meeting()
        if meeting.needed:
            key = meeting.rank, meeting.size, meeting.job
            with joining.setdefault(key, threading.Lock()):
                self.join()
        return 0

    cdef AtbMeeting meeting(self) except *:
        cdef AtbMeeting meeting
        cdef int status
        with nogil:  # another thread may hold the meeting
            status = self.atb.meeting(meeting)
        require(status)
        return meeting

    cdef int join(self) except -1:
        """Wait for the other ranks, unless another thread of this rank has done so meanwhile."""
        cdef AtbMeeting meeting = self.meeting()
        cdef shared_ptr[CppCommunicator] comm
        cdef int status
        if not meeting.needed:
            return 0
        try:
            if meeting.over_mpi:
                began = time.monotonic()
                bootstrap = mpi_bootstrap(name=meeting.job, timeout=self.timeout)
                made = connect(meeting.rank, meeting.size, bootstrap=bootstrap, timeout=self.timeout,
                               waited=time.monotonic() - began)
            else:
                made = connect(meeting.rank, meeting.size, job=os.fsdecode(meeting.job), timeout=self.timeout)
        except Error as error:
            raise with_status(error, ERROR_COMM_EMPTY)
        comm = communicator_of(made)
        with nogil:
            status = self.atb.join(comm)
        return require(status)


def read_rank_table(file):
    """Return (version, identity, places): a dict of strings for each rank. Tables with the same contents have the same
    identity, whatever their spelling. See a2a.atb.read_rank_table."""
    cdef RankTable table
    cdef string path = path_of(file, "file")
    with nogil:
        table = cpp_read_rank_table(path)
    return table.version.decode(), table.identity().decode(), [
        {
            "server_id": table.ranks[i].server_id.decode(),
            "host_ip": table.ranks[i].host_ip.decode(),
            "device_id": table.ranks[i].device_id.decode(),
            "device_ip": table.ranks[i].device_ip.decode(),
            "super_device_id": table.ranks[i].super_device_id.decode(),
            "super_pod_id": table.ranks[i].super_pod_id.decode(),
        }
        for i in range(table.ranks.size())
    ]
