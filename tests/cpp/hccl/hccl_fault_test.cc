// Operations on Ascend memory that fail, hang, lose a rank or are aborted: every rank gets an error, and no rank hangs.
#include <thread>

#include "device_ranks.h"

namespace {

using namespace device_ranks;
using a2a::Memory;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

// Makes valid exchanges until HCCL has been called `calls` times; the double counts from 1.
void reach_call(Communicator& comm, int calls) {
  for (int i = 0; i < calls; ++i) exchange(comm, 4, i);
}

// Checks that the survivors of a failure can go on with a new communicator, on a new stream.
void go_on(Communicator& comm) {
  const auto smaller = comm.shrink();
  CHECK_EQ(ascend::Acl::get().destroy_stream_force(ascend::stream), 0);
  ascend::stream = nullptr;
  ascend::use_device(ascend::device);
  const Swap swap(*smaller);
  Call call = call_of(*smaller, Op::allgather);
  call.device = ascend::device;
  start(*smaller, Plan::allgather(smaller->rank(), smaller->size(), 8), swap.send, swap.recv, call)->wait();
  swap.recv.download();
  smaller->close();
}

bool forked_child = false;

}  // namespace

// A forked child has no pointers to the objects on the stacks of its parent's threads: LeakSanitizer would report them
// as leaks.
extern "C" __attribute__((visibility("default"))) int __lsan_is_turned_off() { return forked_child ? 1 : 0; }

TEST("an error that HCCL reports later is one on every rank") {
  everywhere(3,
             [](Communicator& comm) {
               reach_call(comm, 2);
               const Swap swap(comm);
               const auto work = swap.start();
               const auto error = failure_of([&] { work->wait(); });
               CHECK(says(error, Code::backend,
                          {"on rank 1 (npu:1): HCCL reports error 4 (HCCL_E_INTERNAL)", "operation 3 fails"}));
               CHECK(work->done());
               CHECK_THROWS(Code::backend, "operation 3 fails", work->order_before({ascend::stream}));
               CHECK(comm.broken());
               CHECK_THROWS(Code::backend, "the communicator is broken", swap.start());
               go_on(comm);
               comm.close();
             },
             {{"A2A_FAKE_ASYNC_ERROR", "3@1"}});
}

TEST("an operation that never ends is a timeout on every rank, that names it and the peers") {
  everywhere(3,
             [](Communicator& comm) {
               reach_call(comm, 1);
               comm.barrier();
               const Swap swap(comm);
               constexpr double kSeconds = 2;
               const auto begin = steady_clock::now();
               const auto error = failure_of([&] { swap.start(0, kSeconds)->wait(); });
               const double took = seconds_since(begin);
               CHECK(says(error, Code::timeout, {"alltoallv #", ": timeout on rank ", "; peers: rank "}));
               if (!CHECK(took > 0.9 * kSeconds && took < 1.1 * kSeconds + 0.2)) check::fail(std::to_string(took));
               CHECK(comm.broken());
               go_on(comm);
             },
             {{"A2A_FAKE_STALL", "2@0"}});
}

TEST("a call that HCCL refuses breaks the communicator on every rank") {
  everywhere(
      3,
      [](Communicator& comm) {
        reach_call(comm, 1);
        const Swap swap(comm);
        const auto error = failure_of([&] { swap.start()->wait(); });
        CHECK(says(error, Code::backend, {"on rank 2 (npu:2): HcclAlltoAllV failed with error 4", "is refused"}));
        CHECK(comm.broken());
        go_on(comm);
      },
      {{"A2A_FAKE_REFUSE", "2@2"}});
}

TEST("the second of several calls is refused: what the first enqueued has ended when the error is told") {
  everywhere(2,
             [](Communicator& comm) {
               const Swap swap(comm);
               const std::vector<int64_t> ones(4, 1);
               const auto plan = Plan::global_scatter(comm.rank(), 2, 4, ones, ones);  // two calls
               const auto call = call_of(comm, Op::global_scatter);
               const auto error = failure_of([&] { start(comm, plan, swap.send, swap.recv, call)->wait(); });
               CHECK(says(error, Code::backend, {"on rank 1 (npu:1): HcclBatchSendRecv failed with error 4"}));
               go_on(comm);
             },
             {{"A2A_FAKE_REFUSE", "2@1"}});
}

TEST("a disagreement that nobody compares and HCCL does not see ends by the deadline") {
  everywhere(2,
             [](Communicator& comm) {
               const Swap swap(comm);
               const auto error = failure_of([&] { swap.start(1, 1)->wait(); });
               CHECK(says(error, Code::timeout, {"timeout on rank"}));
               go_on(comm);
             },
             {{"A2A_CHECK", "off"}, {"A2A_FAKE_MISMATCH", "hang"}});
}

TEST("a call that never comes is a timeout that says what the peer did last") {
  everywhere(2, [](Communicator& comm) {
    reach_unchecked(comm);
    const Swap swap(comm);
    if (comm.rank() == 0) {
      const auto work = swap.start(0, 0.5);
      CHECK_THROWS(Code::timeout, "timeout on rank 0 (npu:0); peers: rank 1", work->wait());
    } else {
      std::this_thread::sleep_for(std::chrono::seconds(1));
      CHECK_THROWS(Code::timeout, "timeout on rank 0 (npu:0)", comm.barrier());
    }
    CHECK(comm.broken());
  });
}

TEST("a rank that is killed between operations is a lost peer to the next one, compared or not") {
  for (const bool compared : {true, false}) {
    const check::Note note("compared", compared);
    with_a_victim(3, 1, [compared](Communicator& comm) {
      compared ? reach_call(comm, 2) : reach_unchecked(comm);
      comm.barrier();  // no rank is still in one of those
      if (comm.rank() == 1) raise(SIGKILL);
      const auto begin = steady_clock::now();
      const Swap swap(comm);
      const auto error = failure_of([&] { swap.start()->wait(); });
      CHECK(says(error, Code::peer_lost, {"alltoallv #", "lost rank 1 (pid "}));
      CHECK(seconds_since(begin) < 1);
      go_on(comm);
    });
  }
}

TEST("a rank that is killed during an operation is a lost peer to all others") {
  with_a_victim(3, 1,
                [](Communicator& comm) {
                  reach_call(comm, 1);
                  const Swap swap(comm);
                  const auto work = swap.start();
                  if (comm.rank() == 1) {
                    std::this_thread::sleep_for(milliseconds(100));
                    raise(SIGKILL);
                  }
                  const auto begin = steady_clock::now();
                  CHECK(says(failure_of([&] { work->wait(); }), Code::peer_lost, {"lost rank 1 (pid "}));
                  CHECK(seconds_since(begin) < 1.1);  // including the time before rank 1 ends
                  go_on(comm);
                },
                {{"A2A_FAKE_STALL", "2@1"}});
}

TEST("abort from another thread ends an operation in flight, here and at the peers") {
  everywhere(2,
             [](Communicator& comm) {
               const Swap swap(comm);
               const auto work = swap.start();
               std::jthread other;
               if (comm.rank() == 0) {
                 other = std::jthread([&] {
                   std::this_thread::sleep_for(milliseconds(100));
                   comm.abort("enough");
                 });
               }
               CHECK_THROWS(Code::aborted, "rank 0 aborted: enough", work->wait());
               CHECK_THROWS(Code::aborted, "rank 0 aborted: enough", swap.start());
             },
             {{"A2A_FAKE_STALL", "1"}});
}

TEST("close waits for what is in flight; with a deadline it gives up") {
  everywhere(2,
             [](Communicator& comm) {
               const Swap swap(comm);
               const auto work = swap.start();
               comm.close();
               CHECK(work->done());
               work->wait();
             },
             {{"A2A_FAKE_DELAY_US", "200000"}});
  everywhere(2,
             [](Communicator& comm) {
               const Swap swap(comm);
               const auto work = swap.start();
               const auto error = failure_of([&] { comm.close(Deadline::after_seconds(0.3)); });
               CHECK(error.code() == Code::timeout || error.code() == Code::peer_lost);  // a peer that has left already
               CHECK(comm.closed());
               const auto ended = failure_of([&] { work->wait(); });
               CHECK(ended.code() == Code::aborted || ended.code() == Code::peer_lost);
             },
             {{"A2A_FAKE_STALL", "1"}});
}

TEST("a rank that lets go of its communicator is a lost peer to those that need it, and to no others") {
  everywhere(2,
             [](Communicator& comm) {
               auto inner = comm.split(0, 0);
               auto swap = std::make_unique<Swap>(*inner);
               const auto work = swap->start();
               if (comm.rank() == 1) {
                 inner.reset();  // the work outlives it, and so does the memory
                 CHECK_THROWS(Code::aborted, "rank 1 has let go of this communicator", work->wait());
                 CHECK(work->done());
               } else {
                 const auto begin = steady_clock::now();
                 CHECK_THROWS(Code::peer_lost, "waits for a rank that has left: rank 1", work->wait());
                 CHECK(seconds_since(begin) < 1);
               }
               comm.barrier();
             },
             {{"A2A_FAKE_STALL", "1"}});
  everywhere(2, [](Communicator& comm) {
    auto inner = comm.split(0, 0);
    exchange(*inner, 4, 0);
    if (comm.rank() == 1) inner.reset();
    comm.barrier();
    if (comm.rank() == 0) {
      std::this_thread::sleep_for(milliseconds(50));
      CHECK_EQ(inner->broken(), false);  // no operation in flight needed rank 1
      CHECK_THROWS(Code::peer_lost, "that has left this communicator: rank 1", exchange(*inner, 4, 0));
    }
    comm.barrier();
  });
}

TEST("a work that is done outlives its communicator") {
  everywhere(2, [](Communicator& comm) {
    WorkPtr work;
    {
      const auto inner = comm.split(0, 0);
      const Swap swap(*inner);
      work = swap.start();
      inner->close();
    }
    CHECK(work->done());
    work->wait();
    work->order_before({ascend::stream});
  });
}

TEST("a stream that failed before the operation is reported, not waited for") {
  everywhere(2, [](Communicator& comm) {
    reach_call(comm, 1);
    comm.barrier();
    const Swap swap(comm);
    if (comm.rank() == 0) CHECK_EQ(ascend::Acl::get().stream_abort(ascend::stream), 0);
    const auto begin = steady_clock::now();
    const auto error = failure_of([&] { swap.start()->wait(); });
    CHECK(says(error, Code::backend, {"on rank 0 (npu:0): "}));
    CHECK(seconds_since(begin) < 5);
    go_on(comm);
  });
}

TEST("a forked child leaves the parent's operations alone") {
  as_processes(2,
               [](Communicator& comm) {
                 auto inner = comm.split(0, 0);
                 const Swap swap(*inner);
                 auto work = swap.start();
                 const pid_t child = fork();
                 if (child == 0) {
                   forked_child = true;
                   check::failures = 0;
                   CHECK_THROWS(Code::aborted, "before fork()", work->wait());
                   CHECK_THROWS(Code::aborted, "before fork()", work->order_before({ascend::stream}));
                   CHECK_THROWS(Code::aborted, "before fork()", swap.start());
                   CHECK_THROWS(Code::aborted, "before fork()", inner->connect(Memory::npu, 0));
                   CHECK_THROWS(Code::aborted, "before fork()", inner->adopt(Memory::npu, &comm));
                   work.reset(), inner.reset();
                   std::exit(check::failures == 0 ? 0 : 1);
                 }
                 int status = -1;
                 waitpid(child, &status, 0);
                 CHECK_EQ(status, 0);
                 work->wait();
                 exchange(*inner, 4, 0);
                 inner->close();
                 comm.close();
               },
               {{"A2A_FAKE_DELAY_US", "200000"}});
}
