# Makes communicators, and waits for calls in the background.


cdef int wait_task(const Task& task) except -1:
    """Wait for a call in the background, and check for signals in between."""
    cdef cbool done = False
    while not done:
        with nogil:
            done = dereference(task).wait_slice()
        PyErr_CheckSignals()
    return 0


cdef Outcome finish_task(Task task) except *:
    dereference(task).start()
    wait_task(task)
    return dereference(task).result()


cdef Communicator wrap(const CommPtr& comm):
    """Return the Python object of a communicator; None for NULL."""
    cdef Communicator made
    if comm.get() == NULL:
        return None
    made = Communicator.__new__(Communicator)
    made.comm, made.flights = comm, []
    made._rank, made._size = dereference(comm).rank(), dereference(comm).size()
    show_frameworks()
    if os.environ.get("A2A_METRICS"):
        from a2a import _metrics
        _metrics.publish(made._rank)
    return made


@cython.final
cdef class CoreBootstrap:
    """A bootstrap of the core; satisfies SupportsAllgather."""

    cdef BootstrapPtr bootstrap
    cdef readonly int rank
    cdef readonly int size

    def allgather(self, bytes mine, /, *, timeout=None):
        """Every rank's bytes in rank order. Blocks until every rank has called it, or for ``timeout`` seconds."""
        return self.gather(mine, deadline_after(-1 if timeout is None else parse_timeout(timeout)))

    cdef vector[string] gather(self, string mine, When until) except *:
        cdef vector[string] strings
        with nogil:
            strings = allgather_here(dereference(self.bootstrap), mine, until)
        return strings


cdef CoreBootstrap make_bootstrap(const BootstrapPtr& bootstrap, int rank, int size):
    cdef CoreBootstrap made = CoreBootstrap.__new__(CoreBootstrap)
    made.bootstrap, made.rank, made.size = bootstrap, rank, size
    return made


def thread_bootstraps(int size):
    """Return one bootstrap for each of ``size`` ranks that are threads of this process."""
    cdef vector[BootstrapPtr] made
    if size < 1:
        raise InvalidArgumentError(f"size is {size}; a group has at least one rank")
    made = cpp_thread_bootstraps(size)
    return [make_bootstrap(made[i], i, size) for i in range(size)]


def job_bootstrap(int rank, int size, str job not None, *, timeout):
    """Return the bootstrap of the ranks of this host and user that give the same name, once all are there."""
    cdef BootstrapPtr made
    cdef string name = os.fsencode(job)
    cdef When until = deadline_after(parse_timeout(timeout))
    with nogil:
        made = join_job(rank, size, name, until)
    return make_bootstrap(made, rank, size)


def ended_rank(str job not None, int size):
    """Return the launcher's notice of a rank of the job that has ended and will not be started again, such as "rank 2
    exited with code 0"; None if there is none."""
    cdef optional[string] notice = cpp_ended_rank(os.fsencode(job), size)
    return notice.value().decode("utf-8", "replace") if notice.has_value() else None


def secret_of_environment():
    """Return the secret of A2A_SECRET_FILE or A2A_SECRET. Raises InvalidArgumentError when there is none, or when the
    file may belong to somebody else, or be read by others. No message shows the secret."""
    return <bytes> secret_from_environment()


@cython.final
cdef class TcpBootstrap:
    """A bootstrap of ranks on any hosts, over TCP; satisfies SupportsAllgather.

    Rank 0 listens at ``address``, "host:port" or "[IPv6]:port", on the interface of that address alone and only until
    all ranks have connected; ":port" is 127.0.0.1. The others connect, and try again for ``timeout`` seconds, which is
    also the deadline of each allgather. The ranks of a meeting give the same ``job`` and the same ``secret``, at least
    16 bytes; None is the secret of A2A_SECRET_FILE or A2A_SECRET. Both ends of a connection prove that they know it,
    and every message is authenticated; nothing is encrypted (docs/guide/security.md). The connections last as long as
    the object. A communicator of ranks on several hosts has connections of its own, between all of them.

    Raises InvalidArgumentError when the secrets, jobs or sizes differ, a rank joins twice, or rank 0 cannot have the
    address; UnsupportedError when a rank runs another version; TimeoutError naming the missing ranks. A missing or
    malformed secret or address is an InvalidArgumentError before anything is sent."""

    cdef BootstrapPtr bootstrap
    cdef double timeout

    def __cinit__(self, rank, size, str address not None, *, job="", secret=None, timeout=600.0):
        cdef int own = parse_int(rank, "rank"), ranks = parse_int(size, "size")
        cdef string name = os.fsencode(str(job)), place = os.fsencode(address), key
        self.timeout = parse_timeout(timeout)
        key = secret_from_environment() if secret is None else secret.encode() if isinstance(secret, str) else secret
        find_wheels()  # for UCX
        with nogil:
            self.bootstrap = join_tcp(own, ranks, name, place, key, deadline_after(self.timeout))

    def allgather(self, bytes mine not None, /):
        """Every rank's bytes in rank order: at most 16 MiB of one, 256 MiB of all. Blocks until every rank has called
        it. Raises PeerLostError naming a rank that died; after an error every later call on any rank raises, too."""
        return self.gather(mine, deadline_after(self.timeout))

    cdef vector[string] gather(self, string mine, When until) except *:
        cdef vector[string] strings
        with nogil:
            strings = allgather_here(dereference(self.bootstrap), mine, until)
        return strings


cdef int fortran_integer(value) except? -1:
    if not -2**31 <= value < 2**31:
        raise InvalidArgumentError(f"{value} is not a Fortran handle: it does not fit into 32 bits")
    return value


def mpi_bootstrap(fortran_handle=None, *, bytes name=b"", timeout=600.0):
    """Return the bootstrap of the ranks of ``MPI_COMM_WORLD``, or of the communicator with this Fortran handle (mpi4py:
    ``comm.py2f()``), which may be on several hosts. Loads MPI, and initialises it unless it is initialised; then it is
    finalised when the process ends. Collective: after ``timeout`` seconds of waiting for the others TimeoutError is
    raised, and the next call for the same processes goes on. The communicator is duplicated, once for each group of
    processes and each ``name``, and may be freed at any time. Raises UnsupportedError when there is no usable MPI,
    naming every place where it was looked for, InvalidArgumentError when the handle is not that of an
    intracommunicator, as far as MPI can tell."""
    cdef double seconds = parse_timeout(timeout)
    cdef cbool given = fortran_handle is not None
    cdef int handle = fortran_integer(fortran_handle) if given else 0
    cdef string meeting = name
    cdef BootstrapPtr made
    cdef GroupRank members
    find_wheels()
    with nogil:
        made = cpp_mpi_bootstrap(given, handle, meeting, deadline_after(seconds))
    members = dereference(made).group_rank().value()
    return make_bootstrap(made, members.rank, members.size)


# The state that connect() shares with the core's calls back.
cdef class _Meeting:
    cdef object bootstrap
    cdef int size
    cdef When until
    cdef object failure     # the exception of the bootstrap

    cdef vector[string] allgather(self, bytes mine) except *:
        if isinstance(self.bootstrap, CoreBootstrap):
            return (<CoreBootstrap> self.bootstrap).gather(mine, self.until)
        if isinstance(self.bootstrap, TcpBootstrap):
            return (<TcpBootstrap> self.bootstrap).gather(mine, self.until)
        items = [bytes(memoryview(item)) for item in self.bootstrap.allgather(mine)]
        if len(items) != self.size:
            raise InvalidArgumentError(f"bootstrap.allgather returned {len(items)} items for {self.size} ranks")
        return items


cdef cbool call_bootstrap(PyObject* context, const string& mine, vector[string]& all_) noexcept with gil:
    meeting = <_Meeting> context
    try:
        (&all_)[0] = meeting.allgather(mine)
    except BaseException as error:
        meeting.failure = error
        return False
    return True


cdef cbool look_for_signals(PyObject* context) noexcept with gil:
    try:
        PyErr_CheckSignals()
    except BaseException as error:
        (<_Meeting> context).failure = error
        return False
    return True


def connect(int rank, int size, *, job=None, bootstrap=None, timeout=600.0, waited=0.0, check=None, network=None,
            processes=(), str host not None=""):
    """Make a communicator from explicit facts. ``a2a.init`` finds these facts in the environment.

    Args:
        rank, size: this rank's number and how many ranks there are; 0 <= rank < size.
        job: a name; the ranks of this host and user that give the same one meet.
        bootstrap: any object with ``allgather(bytes) -> list[bytes]``, called in this thread. A single rank needs
            neither.
        timeout: the default deadline of every operation in seconds, and the time to wait for the other ranks.
        waited: seconds of that wait that have already passed.
        check: when ranks compare operations on devices before they start them: "off", "first" (the first run of each
            plan and the first 16 other operations) or "always". None: the value of A2A_CHECK, otherwise "first".
        network: a bootstrap of the core, perhaps of more ranks, whose network connects the hosts of these, beside a
            ``bootstrap`` that has none; ``processes`` has each rank's number there, ``host`` the name of this rank's
            host, "" for the one that the kernel gives.

    Raises TimeoutError naming the missing ranks. Exceptions of ``bootstrap.allgather`` are raised unchanged.
    """
    cdef _Meeting meeting = _Meeting.__new__(_Meeting)
    cdef double seconds = parse_timeout(timeout)
    cdef When until = deadline_after(max(0, seconds - waited))
    cdef Check when = parse_check(check)
    cdef CommPtr comm
    cdef BootstrapPtr inner
    cdef Between between
    cdef string name
    if not 0 <= rank < size:
        raise InvalidArgumentError(f"rank = {rank} and size = {size} do not satisfy 0 <= rank < size")
    if job is not None and bootstrap is not None:
        raise InvalidArgumentError("job and bootstrap are two ways to meet; pass one of them")
    if job is not None:
        name = os.fsencode(str(job))
        with nogil:
            inner = join_job(rank, size, name, until)
        bootstrap = make_bootstrap(inner, rank, size)
    elif bootstrap is None:
        if size > 1:
            raise InvalidArgumentError(f"rank {rank} of {size} has no way to meet the others; pass job or bootstrap")
        bootstrap = thread_bootstraps(1)[0]
    meeting.bootstrap, meeting.size, meeting.until = bootstrap, size, until
    if isinstance(bootstrap, CoreBootstrap):
        if (rank, size) != (bootstrap.rank, bootstrap.size):
            raise InvalidArgumentError(f"rank = {rank} and size = {size}, but the bootstrap is that of rank "
                                       f"{bootstrap.rank} of {bootstrap.size}")
        between.network = (<CoreBootstrap> bootstrap).bootstrap
    elif isinstance(bootstrap, TcpBootstrap):
        between.network = (<TcpBootstrap> bootstrap).bootstrap
    elif network is not None:
        between.network = (<CoreBootstrap?> network).bootstrap
        between.processes, between.host = processes, os.fsencode(host)
    try:
        with nogil:
            comm = create_communicator(
                rank, size, seconds, when, until, call_bootstrap, look_for_signals, <PyObject*> meeting, between)
    except Error:
        if meeting.failure is not None:
            raise meeting.failure from None
        raise
    return wrap(comm)


def host_facts(Communicator comm not None):
    """Return {"ranks", "cpus", "oversubscribed", "cma"} of the communicator's ranks on this host, "hosts" of all its
    ranks, "messages": how many this process has sent to other hosts, "direct_min", "cma_min", "stream_min": the sizes
    in bytes from which host memory takes another way (docs/guide/variables.md), None for never."""
    facts = dereference(comm.live()).host_facts()
    return {"ranks": facts.ranks, "cpus": facts.cpus, "oversubscribed": facts.oversubscribed,
            "cma": facts.cma, "hosts": facts.hosts, "messages": facts.messages,
            "direct_min": bytes_or_never(facts.direct_min), "cma_min": bytes_or_never(facts.cma_min),
            "stream_min": bytes_or_never(facts.stream_min)}


def host_of_ranks(Communicator comm not None):
    """Return for each rank of the communicator the number of its host: ranks of one host have the same."""
    return list(dereference(comm.live()).hosts())


def host_ways(Communicator comm not None, size_t nbytes):
    """Return [(memory, way, reason), ...]: for each kind of host memory how ``nbytes`` bytes go to a peer in an
    exchange in which every pair of ranks has as many."""
    return [(way.memory.decode(), way.way.decode(), way.reason.decode())
            for way in dereference(comm.live()).host_ways(nbytes)]


cdef bytes_or_never(size_t threshold):
    return None if threshold == SIZE_MAX else threshold


cdef list choices_in_python(vector[StageChoice] choices):
    return [(one.collective.decode(), one.stages.decode(), one.from_, one.reason.decode()) for one in choices]


def stage_choices(Communicator comm not None):
    """Return [(collective, stages, from, reason), ...]: the stages in which this group runs a collective on host memory
    from so many bytes on, of each collective in the order of ``from``. The last one that holds is chosen. The bytes are
    those of the tensor, in reduce_scatter and allgather those of one rank's part."""
    return choices_in_python(dereference(comm.live()).stage_choices())


def stage_choices_between(hosts):
    """Return stage_choices() of a group whose rank r is on host ``hosts[r]``, any number. Raises InvalidArgumentError
    for fewer than two hosts."""
    return choices_in_python(cpp_stage_choices(<vector[int]> hosts))


def metrics_text():
    """Return the counts of this process's communicators in Prometheus's text format, those that were made while
    A2A_METRICS was set."""
    return cpp_metrics_text().decode("utf-8", "replace")


def cpu_quota():
    """Return the CPU time per second that the control groups of this process allow; None without a quota."""
    cdef optional[double] quota = cpp_cpu_quota()
    return quota.value() if quota.has_value() else None


def network_choice():
    """Return which network ranks on several hosts would use, and why: A2A_NETWORK, or the devices of this host. Raises
    InvalidArgumentError for another value of that variable."""
    return cpp_network_choice().decode("utf-8", "replace")


def progress_thread_choice(int ranks, int cpus, int hosts):
    """Return whether each of so many ranks on each of these hosts, which may use so many CPUs, gets a progress thread,
    and why. Raises InvalidArgumentError for a wrong A2A_PROGRESS_THREAD."""
    return cpp_progress_thread_choice(ranks, cpus, hosts).decode("utf-8", "replace")


def library_of(transport):
    """Return the library that serves "nccl", "hccl", "mpi" or "ucx" here, with its version. Raises UnsupportedError
    that lists where it was looked for."""
    find_wheels()
    if transport == "mpi":
        return mpi_library().decode("utf-8", "replace")
    if transport == "ucx":
        return ucx_library().decode("utf-8", "replace")
    return library_for(Memory.cuda if transport == "nccl" else Memory.npu).decode("utf-8", "replace")
