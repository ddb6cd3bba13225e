# The simulator of exchanges, for a2a.simulator.

def run_simulator(bytes_, str schedule not None, *, int ranks_per_host, double link, double memory, double latency,
                  double message, double start, bint single, size_t kept):
    """Return (seconds, bound, times of ranks, times of the hosts' out ports, of their in ports, messages) of an
    exchange with this square matrix of uint64. A message is (from, to, bytes, begin, end)."""
    cdef Cluster cluster
    cdef SimulatedOutcome outcome
    cdef SimulatedMessage one
    cdef int which = ("rotation", "longest", "hierarchical").index(schedule)
    cdef cnp.ndarray matrix = np.ascontiguousarray(bytes_, np.uint64)
    cdef const uint64_t* data = <const uint64_t*> cnp.PyArray_DATA(matrix)
    cdef size_t count = matrix.size
    cluster.ranks = len(matrix)
    cluster.ranks_per_host = ranks_per_host
    cluster.link, cluster.memory, cluster.latency = link, memory, latency
    cluster.message, cluster.start = message, start
    cluster.ports = Ports.single if single else Ports.shared
    with nogil:
        outcome = cpp_simulate(cluster, which, data, count, kept)
    messages = [(one.sender, one.to, one.bytes, one.begin, one.end) for one in outcome.messages]
    return (outcome.seconds, outcome.bound, np.array(outcome.rank), np.array(outcome.sends),
            np.array(outcome.receives), messages)
