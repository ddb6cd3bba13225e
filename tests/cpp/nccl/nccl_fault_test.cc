// Operations that end while no thread waits: calls on NVIDIA memory that are not compared return once they are
// enqueued. Runs on the double of tests/fakes.
#include <chrono>
#include <thread>

#define A2A_TEST_NVIDIA
#include "device_ranks.h"

namespace {

using namespace device_ranks;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

// Runs two ranks after the operations that they compare, with a plan or without. Rank 1 learns afterwards what rank 0
// did.
template <class Body>
void past_comparison(const Body& body) {
  for (const bool planned : {true, false}) {
    everywhere(2, [&](Communicator& comm) {
      auto inner = comm.split(0, 0);
      const uint64_t plan = planned ? inner->next_plan() : 0;
      for (int i = 0; i < 20; ++i) exchange(*inner, 4, i, plan);
      body(comm, inner, plan);
      comm.barrier();
    });
  }
}

// Starts one exchange and does not wait for it.
WorkPtr start_one(Communicator& comm, const Swap& swap, uint64_t plan, double timeout = 30) {
  const auto n = static_cast<size_t>(comm.size());
  const std::vector<int64_t> one(n, 1);
  Call call = call_of(comm, Op::alltoallv, 4, timeout);
  call.plan = plan;
  return start(comm, Plan::alltoallv(comm.rank(), comm.size(), 4, {one, {}}, 64, {one, {}}, 64), swap.send, swap.recv,
               call);
}

}  // namespace

TEST("a peer that has given up: the next call raises, and the communicator says so before it") {
  for (const bool asks : {false, true}) {
    past_comparison([asks](Communicator& comm, std::shared_ptr<Communicator>& inner, uint64_t plan) {
      const Swap swap(*inner);
      comm.barrier();
      if (comm.rank() == 0) inner->abort("enough");
      comm.barrier();
      if (comm.rank() == 0) return;
      if (asks) CHECK(inner->broken());
      CHECK_THROWS(Code::aborted, "rank 0 aborted: enough", start_one(*inner, swap, plan));
      CHECK(inner->broken());
    });
  }
}

TEST("a peer that has left: the next call raises, and what was done before stays done") {
  past_comparison([](Communicator& comm, std::shared_ptr<Communicator>& inner, uint64_t plan) {
    {
      const Swap swap(*inner);
      const auto last = start_one(*inner, swap, plan);
      last->wait();
      comm.barrier();
      if (comm.rank() == 1) {
        comm.barrier();
        CHECK_EQ(inner->broken(), false);
        CHECK_THROWS(Code::peer_lost, "waits for a rank that has left: rank 0", start_one(*inner, swap, plan));
        CHECK(inner->broken());
        return;
      }
    }
    inner.reset();
    comm.barrier();
  });
}

TEST("a peer that has died: the next call raises, and the communicator says so before it") {
  for (const bool asks : {false, true}) {
    for (const bool planned : {true, false}) {
      with_a_victim(3, 0, [=](Communicator& comm) {
        const uint64_t plan = planned ? comm.next_plan() : 0;
        for (int i = 0; i < 20; ++i) exchange(comm, 4, i, plan);
        const Swap swap(comm);
        comm.barrier();
        if (comm.rank() == 0) raise(SIGKILL);
        std::this_thread::sleep_for(milliseconds(300));
        if (asks) CHECK(comm.broken());
        const auto error = failure_of([&] { start_one(comm, swap, plan); });
        CHECK(says(error, Code::peer_lost, {"lost rank 0", "alltoallv"}));
        CHECK(comm.broken());
      });
    }
  }
}

TEST("a deadline that nobody waits for: the stream is free, the communicator broken, the next call raises") {
  past_comparison([](Communicator& comm, std::shared_ptr<Communicator>& inner, uint64_t plan) {
    const Swap swap(*inner);
    comm.barrier();
    if (comm.rank() == 1) {
      const auto begin = steady_clock::now();
      start_one(*inner, swap, plan, 0.5);
      CHECK(seconds_since(begin) < 0.4);
      swap.recv.download();  // after all work on the stream
      CHECK(inner->broken());
      CHECK(seconds_since(begin) < 2);
    }
    comm.barrier();
    const auto error = failure_of([&] { start_one(*inner, swap, plan); });
    CHECK(says(error, Code::timeout, {"the communicator is broken", "timeout on rank 1 (cuda:1)"}));
  });
}

TEST("a rank that never comes to NCCL's meeting: the deadline ends it, and another communicator connects") {
  everywhere(3, [](Communicator& comm) {
    const auto inner = comm.split(0, 0);
    if (comm.rank() == 1) {
      pretend_to_connect(*inner, "NCCL 2.32.3, check=first");
    } else {
      const auto error = failure_of([&] { inner->connect(kMemory, comm.rank(), Deadline::after_seconds(0.5)); });
      CHECK(says(error, Code::timeout, {"connecting the ranks for cuda memory: ", "timed out"}));
      CHECK(inner->broken());
    }
    for (int i = 0; i < 3; ++i) exchange(comm, 4, i);  // a thread of the others still waits inside NCCL
    comm.close();
  });
}

TEST("two ranks on one GPU: all say which, beside what NCCL says, and may connect again") {
  const auto refused = [](const char* words) {
    return [words](Communicator& comm) {
      const auto error = failure_of([&] { comm.connect(kMemory, comm.rank() / 2); });
      const std::string text = error.what();
      CHECK(error.code() == Code::backend || error.code() == Code::mismatch);
      CHECK(text.find(words) != std::string::npos);
      CHECK(text.find("; rank 0 (cuda:0) and rank 1 (cuda:0) are on the same device") != std::string::npos);
      CHECK_EQ(comm.broken(), false);
      exchange(comm, 4, 0);
      comm.close();
    };
  };
  everywhere(3, refused("Multiple Ranks are using the same GPU"));
  everywhere(3, refused("Duplicate GPU detected : rank 0 and rank 1"), {{"A2A_FAKE_NCCL_VERSION", "22907"}});
  everywhere(3,
             [](Communicator& comm) {
               comm.connect(kMemory, 0);
               comm.close();
             },
             {{"NCCL_MULTI_RANK_GPU_ENABLE", "1"}});
}
