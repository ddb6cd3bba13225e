# Programs cannot instantiate the types below: their methods need C++ members that only the bindings set. A call of
# such a type, or of its __new__, raises TypeError. The bindings still make objects: Cython compiles their calls of
# __new__ to calls of C functions.

cdef extern from "cpp/python/disallow_instantiation.h":
    void disallow_instantiation "a2a_py::disallow_instantiation"(dict)


cdef str inside = "is a type of the library's own use"

disallow_instantiation({
    Communicator: "use a2a.init(), a2a.spawn() or a method of another communicator",
    CoreBootstrap: "use thread_bootstraps(size) or mpi_bootstrap()",
    ExpertRouting: "ExpertRouting is made by a2a.moe.ExpertParallel.plan() and dispatch()",
    Plan: "Plan is made by Communicator.plan_*()",
    ReshardPlan: "ReshardPlan is made by Communicator.plan_reshard() and plan_reshard_all()",
    SharedArray: "SharedArray is made by a2a.from_pointer() and Communicator.empty()",
    Views: "Views are made by Communicator.allgather_views()",
    Work: "Work is made by the calls of a communicator with async_op=True",
    _Choices: f"_Choices {inside}",
    _Collectives: f"_Collectives {inside}",
    _CommunicatorBase: f"_CommunicatorBase {inside}",
    _End: f"_End {inside}",
    _ExchangeType: f"_ExchangeType {inside}",
    _Exchanges: f"_Exchanges {inside}",
    _Flight: f"_Flight {inside}",
    _Kept: f"_Kept {inside}",
    _Kind: f"_Kind {inside}",
    _CheckedArray: f"_CheckedArray {inside}",
    _CheckedPair: f"_CheckedPair {inside}",
    _Meeting: f"_Meeting {inside}",
    _Messages: f"_Messages {inside}",
    _NewArray: f"_NewArray {inside}",
    _Recorder: f"_Recorder {inside}",
    _RouteBuffers: f"_RouteBuffers {inside}",
    _Tensors: f"_Tensors {inside}",
})
