// The comparison of ranks before an operation on Ascend memory, and the refusals of a single rank.
#include "device_ranks.h"

namespace {

using namespace device_ranks;
using a2a::Memory;

// Runs ranks as threads, each with options of its own.
void with_checks(std::vector<a2a::Check> checks, const ranks::Body& body, const Environment::List& variables = {}) {
  const Environment environment(variables);
  apart([&] {
    const auto n = static_cast<int>(checks.size());
    const auto bootstraps = a2a::thread_bootstraps(n);
    check::threads(n, [&](int rank) {
      const auto i = static_cast<size_t>(rank);
      on_device(body)(*Communicator::create(rank, n, *bootstraps[i], {60, checks[i]}));
    });
  });
}

}  // namespace

TEST("a disagreement is an error on both ranks before anything is enqueued, and the next exchange is right") {
  everywhere(2, [](Communicator& comm) {
    const Swap swap(comm);
    CHECK_THROWS(Code::mismatch, "rank 0 sends 2 elements to rank 1, which expects 1", swap.start(1));
    exchange(comm, 4, 0);
    const std::vector<int64_t> one(2, 1);
    const auto plan = Plan::alltoallv(comm.rank(), 2, 4, {one, {}}, 2, {one, {}}, 2);
    const Op op = comm.rank() == 0 ? Op::alltoall : Op::alltoallv;
    CHECK_THROWS(Code::mismatch, "calls alltoall, rank 1 calls alltoallv",
                 start(comm, plan, swap.send, swap.recv, call_of(comm, op)));
    exchange(comm, 2, 1);
    Call host = call_of(comm, Op::allgather);
    if (comm.rank() == 1) host.memory = Memory::host;
    Bytes bytes(64);
    const void* from = comm.rank() == 0 ? swap.send.get() : bytes.data();
    void* to = comm.rank() == 0 ? swap.recv.get() : bytes.data() + 32;
    CHECK_THROWS(Code::mismatch, "uses memory of kind npu, rank 1 uses memory of kind host",
                 comm.start(plan, {&from, 1}, {&to, 1}, host)->wait());
    exchange(comm, 8, 2);
    comm.close();
  });
}

TEST("a disagreement of two ranks is an error on all, because the others would run the operation without them") {
  everywhere(4, [](Communicator& comm) {
    const Swap swap(comm);
    for (int i = 0; i < 3; ++i) {
      CHECK_THROWS(Code::mismatch, "rank 0 sends 2 elements to rank 1, which expects 1", swap.start(1));
      exchange(comm, 4, i);
    }
    comm.close();
  });
}

TEST("a rank that refuses its own arguments is named by its peers") {
  everywhere(2, [](Communicator& comm) {
    const Swap swap(comm);
    exchange(comm, 4, 0);
    const auto refused = [&](Code code, const std::string& reason, const auto& call) {
      if (comm.rank() == 1) {
        CHECK_THROWS(code, reason, call());
      } else {
        CHECK_THROWS(Code::mismatch, "rank 1 does not take part, its arguments were refused there: ", swap.start());
        CHECK_EQ(comm.broken(), false);
      }
      exchange(comm, 4, 1);
    };
    const Plan gather = Plan::allgather(comm.rank(), 2, 8);
    refused(Code::invalid_argument, "the tensors are on npu:5, but this communicator uses npu:1", [&] {
      Call other = call_of(comm, Op::alltoallv);
      other.device = 5;
      start(comm, gather, swap.send, swap.recv, other);
    });
    refused(Code::invalid_argument, "8 bytes sent to rank 0 are not in the memory of npu:1", [&] {
      Bytes host(64);
      const void* from = host.data();
      void* to = swap.recv.get();
      comm.start(gather, {&from, 1}, {&to, 1}, call_of(comm, Op::allgather));
    });
    refused(Code::invalid_argument, "8 bytes received from rank 0 are not aligned to elements of 4 bytes", [&] {
      const void* from = swap.send.get();
      void* to = swap.recv.bytes() + 2;
      comm.start(gather, {&from, 1}, {&to, 1}, call_of(comm, Op::allgather));
    });
    refused(Code::invalid_argument, "HCCL does not exchange in place", [&] {
      const void* from = swap.send.get();
      void* to = swap.send.get();
      const std::vector<int64_t> one(2, 1);
      comm.start(Plan::alltoallv(1, 2, 4, {one, {}}, 2, {one, {}}, 2), {&from, 1}, {&to, 1},
                 call_of(comm, Op::alltoallv));
    });
    const int64_t most = 0x7FFFFFFFF;
    refused(Code::unsupported, "34359738368 bytes sent to rank 0 are more than the 34359738367 elements of 1 bytes",
            [&] {
              const std::vector<int64_t> to = {most + 1, 0}, from(2, 0);
              start(comm, Plan::alltoallv(1, 2, 1, {to, {}}, most + 1, {from, {}}, 0), swap.send, swap.recv,
                    call_of(comm, Op::alltoallv, 1));
            });
    comm.close();
  });
}

TEST("reductions that are not of elements, or in parts, are refused before any peer is involved") {
  everywhere(2, [](Communicator& comm) {
    ascend::Memory send(32), recv(32);
    Call call = call_of(comm, Op::allreduce);
    call.fold = a2a::Fold::sum;
    const auto plan = [&](size_t bytes, bool in_parts) {
      return Plan::allreduce(comm.rank(), comm.size(), bytes, 1, in_parts);
    };
    CHECK_THROWS(Code::invalid_argument, "are not aligned to elements of 4 bytes",
                 start(comm, plan(6, false), send, recv, call));
    CHECK_THROWS(Code::invalid_argument, "the plan is in parts, which is for host memory",
                 start(comm, plan(8, true), send, recv, call));
    Call scan = call_of(comm, a2a::Op::scan);
    scan.fold = a2a::Fold::sum;
    CHECK_THROWS(Code::unsupported, "scan is for host memory",
                 start(comm, Plan::scan(comm.rank(), comm.size(), 4, 2, false), send, recv, scan));
    CHECK(comm.plan_allreduce(4, 1 << 20, kMemory).stages().size() == 1);
    start(comm, plan(8, false), send, recv, call)->wait();
    comm.close();
  });
}

TEST("refusals before the ranks are connected leave them in step, those of plans too") {
  everywhere(2, [](Communicator& comm) {
    const Swap swap(comm);
    const uint64_t plan = comm.next_plan();
    for (const uint64_t number : {uint64_t{0}, plan}) {
      if (comm.rank() == 1) {
        Call call = call_of(comm, Op::alltoallv);
        call.plan = number;
        comm.refuse(call, "the counts are bad");
      } else {
        CHECK_THROWS(Code::mismatch, "rank 1 does not take part, its arguments were refused there: the counts are bad",
                     swap.start());
      }
    }
    const std::vector<int64_t> one(2, 1), two = {1, 2};
    Call call = call_of(comm, Op::alltoallv);
    call.plan = plan;
    CHECK_THROWS(Code::mismatch,
                 "rank 0 sends 2 elements to rank 1, which expects 1",  // compared, although refused once
                 start(comm, Plan::alltoallv(comm.rank(), 2, 4, {comm.rank() == 0 ? two : one, {}}, 3, {one, {}}, 3),
                       swap.send, swap.recv, call));
    for (int i = 0; i < 3; ++i) exchange(comm, 4, i, plan);
    for (int i = 0; i < 20; ++i) exchange(comm, 4, i);
    comm.close();
  });
}

TEST("ranks that compare different operations after a disagreement go on") {
  everywhere(2, [](Communicator& comm) {
    const Swap swap(comm);
    exchange(comm, 4, 0);
    const uint64_t first = comm.next_plan(), second = comm.next_plan();
    const std::vector<int64_t> one(2, 1);
    Call call = call_of(comm, Op::alltoallv);
    call.plan = comm.rank() == 0 ? first : second;
    CHECK_THROWS(
        Code::mismatch, "rank 0 runs plan 1, rank 1 runs plan 2",
        start(comm, Plan::alltoallv(comm.rank(), 2, 4, {one, {}}, 2, {one, {}}, 2), swap.send, swap.recv, call));
    for (const uint64_t plan : {first, second, first, second}) exchange(comm, 4, 0, plan);
    comm.close();
  });
}

TEST("check: always finds a disagreement at any time, first in the first operations") {
  for (const auto check : {a2a::Check::always, a2a::Check::first}) {
    with_checks({check, check}, [check](Communicator& comm) {
      const Swap swap(comm);
      CHECK_THROWS(Code::mismatch, "rank 0 sends 2 elements to rank 1, which expects 1", swap.start(1));
      for (int i = 0; i < 30; ++i) exchange(comm, 4, i);
      if (check != a2a::Check::always) return comm.close();
      CHECK_THROWS(Code::mismatch, "rank 0 sends 2 elements to rank 1, which expects 1", swap.start(1));
      exchange(comm, 4, 0);
      comm.close();
    });
  }
}

TEST("check: without it HCCL's own diagnosis comes out, from every rank, and the communicator is broken") {
  with_checks({a2a::Check::off, a2a::Check::off}, [](Communicator& comm) {
    const Swap swap(comm);
    const auto error = failure_of([&] { swap.start(1)->wait(); });
    CHECK(says(error, Code::backend,
               {"alltoallv #5", "rank 0 sends HcclAlltoAllV #1 of 2 elements", "to rank 1, which"}));
    CHECK(comm.broken());
    CHECK_THROWS(Code::backend, "the communicator is broken", swap.start());
    CHECK_THROWS(Code::backend, "the communicator is broken", comm.barrier());
  });
}

TEST("check: ranks that differ in it are told") {
  with_checks({a2a::Check::first, a2a::Check::always}, [](Communicator& comm) {
    CHECK_THROWS(Code::mismatch, "rank 0 has HCCL, check=first, rank 1 has HCCL, check=always",
                 comm.connect(Memory::npu, comm.rank()));
    CHECK_EQ(comm.broken(), false);
    comm.barrier();
    comm.close();
  });
}

TEST("check: A2A_CHECK is the default, and another word is refused") {
  for (const std::string word : {"off", "first", "always"}) {
    const Environment environment(Environment::List{{"A2A_CHECK", word}});
    CHECK_EQ(std::string(to_string(a2a::default_check())), word);
  }
  const Environment environment(Environment::List{{"A2A_CHECK", "sometimes"}});
  CHECK_THROWS(Code::invalid_argument, "A2A_CHECK=sometimes in the environment is none of off, first, always",
               a2a::default_check());
}

TEST("a refusal that comes too late breaks the communicator on every rank") {
  everywhere(2, [](Communicator& comm) {
    reach_unchecked(comm);
    const Swap swap(comm);
    if (comm.rank() == 0) {
      comm.refuse(call_of(comm, Op::alltoallv), "counts are bad");
      CHECK_THROWS(Code::aborted, "counts are bad", comm.barrier());
    } else {
      const auto error = failure_of([&] { swap.start()->wait(); });
      CHECK(says(error, error.code(), {"counts are bad"}));
    }
    CHECK(comm.broken());
    comm.close();
  });
}

TEST("ranks in different operations, none of them compared, are told") {
  everywhere(2, [](Communicator& comm) {
    reach_unchecked(comm);
    const Swap swap(comm);
    if (comm.rank() == 0) {
      const auto error = failure_of([&] { swap.start()->wait(); });
      CHECK(says(error, Code::mismatch, {"rank 1 calls barrier in host memory, rank 0 runs it in npu memory"}));
    } else {
      const auto error = failure_of([&] { comm.barrier(), comm.barrier(); });
      CHECK(says(error, error.code(), {"#25: rank", "memory"}));  // either rank may see it first
    }
    failure_of([&] { comm.barrier(); });
    CHECK(comm.broken());
  });
}
