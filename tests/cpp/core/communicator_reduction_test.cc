// Reductions and messages as a C++ program can make them although the bindings refuse that, and peers that give up.
#include <chrono>
#include <numeric>
#include <thread>
#include <vector>

#include "a2a/communicator.h"
#include "check.h"
#include "ranks.h"

namespace {

using a2a::Code;
using a2a::Communicator;
using a2a::Fold;
using a2a::Plan;

constexpr a2a::DType kInt32{0, 32, 1};

a2a::Call sum_of(a2a::DType dtype, a2a::Op op) {
  a2a::Call call;
  call.op = op;
  call.dtype = dtype;
  call.fold = Fold::sum;
  return call;
}

std::shared_ptr<a2a::Work> start(Communicator& comm, const Plan& plan, const void* send, void* recv,
                                 const a2a::Call& call) {
  return comm.start(plan, {&send, 1}, {&recv, 1}, call);
}

TEST("what a peer sent before it gave up is folded") {
  for (const size_t elems : {size_t{1}, size_t{10'000}}) {  // in the line, and staged
    ranks::everywhere(2, [elems](Communicator& comm) {
      const std::vector<int32_t> send(elems, comm.rank() + 1);
      std::vector<int32_t> recv(elems);
      const Plan plan = Plan::allreduce(comm.rank(), 2, 4, elems, false);
      const auto sleep = [](int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); };
      if (comm.rank() == 0) sleep(100);
      const auto work = start(comm, plan, send.data(), recv.data(), sum_of(kInt32, a2a::Op::allreduce));
      if (comm.rank() == 1) sleep(300);  // rank 0 has given up by then
      work->wait();
      CHECK_EQ(recv, std::vector<int32_t>(elems, 3));
      if (comm.rank() == 0) comm.abort("enough");
      CHECK_THROWS(Code::aborted, "rank 0 aborted: enough", comm.barrier());
    });
  }
}

TEST("the output overlaps this rank's own part of the input") {
  ranks::everywhere(2, [](Communicator& comm) {
    constexpr size_t kElems = 50'000, kShift = 3;
    std::vector<int32_t> memory(2 * kElems + kShift), other(kElems);
    std::iota(memory.begin(), memory.end(), 0);
    std::iota(other.begin(), other.end(), 0);
    const std::vector<int32_t> before = memory;
    const Plan plan = Plan::reduce(comm.rank(), 2, 0, kElems * 4);
    const a2a::Call call = sum_of(kInt32, a2a::Op::reduce);
    if (comm.rank() == 1) return start(comm, plan, other.data(), nullptr, call)->wait();
    start(comm, plan, memory.data(), memory.data() + kShift, call)->wait();
    bool right = true;
    for (size_t i = 0; i < kElems; ++i) right &= memory[kShift + i] == 2 * before[i];
    CHECK(right);
  });
}

TEST("an undefined reduction raises invalid_argument, and the peers a mismatch") {
  ranks::everywhere(2, [](Communicator& comm) {
    std::vector<int32_t> x(4), y(4);
    const auto refused = [&](const a2a::Call& wrong, size_t bytes, const char* why) {
      const size_t rows = comm.rank() == 0 ? bytes : 16;
      const Plan plan = Plan::allreduce(comm.rank(), 2, 1, rows, false);
      if (comm.rank() == 0) {
        CHECK_THROWS(Code::invalid_argument, why, start(comm, plan, x.data(), y.data(), wrong)->wait());
      } else {
        CHECK_THROWS(Code::mismatch, why,
                     start(comm, plan, x.data(), y.data(), sum_of(kInt32, a2a::Op::allreduce))->wait());
      }
    };
    a2a::Call average = sum_of(kInt32, a2a::Op::allreduce);
    average.fold = Fold::avg;
    refused(average, 16, "not defined for int32");
    refused(sum_of(kInt32, a2a::Op::allreduce), 7, "7 bytes are no whole number of int32");
    comm.barrier();
  });
}

TEST("a plan has at most two stages") {
  ranks::everywhere(2, [](Communicator& comm) {
    std::vector<int32_t> values(4, comm.rank());
    const Plan plan = Plan::allreduce(comm.rank(), 2, 4, 4, true);
    std::vector<a2a::Stage> stages(plan.stages().begin(), plan.stages().end());
    stages.push_back(stages.back());
    const Plan longer = plan.with_stages(stages, 0, 0);
    CHECK_THROWS(Code::invalid_argument, "the plan has 3 stages",
                 start(comm, longer, values.data(), values.data(), sum_of(kInt32, a2a::Op::allreduce)));
    start(comm, plan, values.data(), values.data(), sum_of(kInt32, a2a::Op::allreduce))->wait();
    CHECK_EQ(values[3], 1);
  });
}

TEST("a message to an invalid rank raises on this rank alone") {
  ranks::everywhere(2, [](Communicator& comm) {
    comm.refuse_message(true, -1, 0, "no such rank");
    comm.refuse_message(true, 2, 0, "no such rank");
    comm.refuse_message(false, 7, 0, "no such rank");
    int32_t x = comm.rank();
    if (comm.rank() == 0) {
      comm.send(&x, 4, 1, 0, {})->wait();
    } else {
      comm.recv(&x, 4, -1, 0, {})->wait();
    }
    CHECK_EQ(x, 0);
  });
}

}  // namespace
