// Operations on Ascend memory: HCCL's calls, what ranks compare before them, and every way in which they can fail. Runs
// on the double of tests/fakes, whose variables make it fail.
#include <numeric>

#include "ascend.h"
#include "ranks.h"

namespace {

using a2a::Call;
using a2a::Code;
using a2a::Communicator;
using a2a::Memory;
using a2a::Op;
using a2a::Plan;

using Environment = std::vector<std::pair<const char*, const char*>>;

// Ranks as threads of one process and as processes, all in forked children: drivers do not survive a fork().
void everywhere(int n, const ranks::Body& body, const Environment& environment = {}) {
  const auto on_device = [&](Communicator& comm) {
    ascend::use_device(comm.rank());
    body(comm);
  };
#if defined(__SANITIZE_THREAD__)
  if (environment.empty()) ranks::as_threads(n, on_device);
#else
  for (const auto& [name, value] : environment) setenv(name, value, 1);
  const pid_t child = fork();
  if (child == 0) {
    alarm(120);
    check::failures = 0;
    check::shown_until = 20;
    ranks::as_threads(n, on_device);
    std::cerr.flush();
    _exit(check::failures == 0 ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  CHECK_EQ(status, 0);
  ranks::as_processes(n, on_device);
  for (const auto& [name, value] : environment) unsetenv(name);
#endif
}

Call call_of(const Communicator& comm, Op op, size_t bytes = 4) {
  Call call;
  call.op = op, call.memory = Memory::npu, call.device = comm.rank();
  call.dtype = {0, static_cast<uint8_t>(8 * std::min<size_t>(bytes, 8)), 1};
  call.unit_bytes = bytes, call.stream = {ascend::stream};
  call.deadline = a2a::Deadline::after_seconds(30);
  return call;
}

std::shared_ptr<a2a::Work> start(Communicator& comm, const Plan& plan, const ascend::Memory& send,
                                 const ascend::Memory& recv, const Call& call) {
  const void* from = send.get();
  void* to = recv.get();
  return comm.start(plan, {&from, 1}, {&to, 1}, call);
}

std::byte value(int from, int to, size_t i) {
  return static_cast<std::byte>(from * 37 + to * 11 + static_cast<int>(i));
}

// Every rank sends `unit * (1 + (from + to + round) % 3)` bytes to every other, packed; `unit` bytes per element.
struct Uneven {
  int rank, size, round;
  size_t unit;
  std::vector<int64_t> to, from;
  std::vector<std::byte> sent, wanted;

  Uneven(const Communicator& comm, size_t unit_, int round_)
      : rank(comm.rank()), size(comm.size()), round(round_), unit(unit_) {
    for (int peer = 0; peer < size; ++peer) {
      to.push_back(count(rank, peer)), from.push_back(count(peer, rank));
      append(sent, rank, peer), append(wanted, peer, rank);
    }
  }
  int64_t count(int source, int target) const { return (source + target + round) % 4; }  // some are 0
  void append(std::vector<std::byte>& bytes, int source, int target) const {
    for (size_t i = 0; i < static_cast<size_t>(count(source, target)) * unit; ++i)
      bytes.push_back(value(source, target, i));
  }
  Plan plan() const {
    return Plan::alltoallv(rank, size, unit, {to, {}}, sent.size() / unit, {from, {}}, wanted.size() / unit);
  }
};

// An uneven exchange, right to the byte.
void exchange(Communicator& comm, size_t unit, int round, uint64_t plan = 0) {
  const Uneven x(comm, unit, round);
  ascend::Memory send(x.sent.size()), recv(x.wanted.size());
  send.upload(x.sent);
  Call call = call_of(comm, Op::alltoallv, unit);
  call.plan = plan;
  const auto work = start(comm, x.plan(), send, recv, call);
  CHECK(recv.download() == x.wanted);
  CHECK(work->wait_until(a2a::Deadline::after_seconds(10)));
  CHECK(send.download() == x.sent);
}

// One element from each rank to each.
std::shared_ptr<a2a::Work> swap(Communicator& comm, const ascend::Memory& send, const ascend::Memory& recv,
                                int64_t wrong = 0, double timeout = 30) {
  const auto n = static_cast<size_t>(comm.size());
  std::vector<int64_t> to(n, 1), from(n, 1);
  const auto other = static_cast<size_t>(1 - comm.rank());
  if (comm.rank() == 0) to[other] += wrong;
  Call call = call_of(comm, Op::alltoallv);
  call.deadline = a2a::Deadline::after_seconds(timeout);
  return start(comm, Plan::alltoallv(comm.rank(), comm.size(), 4, {to, {}}, 8, {from, {}}, 8), send, recv, call);
}

// Past the operations that are compared.
void reach_unchecked(Communicator& comm) {
  for (int i = 0; i < 20; ++i) exchange(comm, 4, i);
}

}  // namespace

TEST("uneven exchanges of elements of every size, from one rank to many") {
  for (const int n : {1, 2, 3, 8}) {
    const check::Note note("ranks", static_cast<uint64_t>(n));
    everywhere(n, [](Communicator& comm) {
      int round = 0;
      for (const size_t unit : {1, 2, 3, 4, 8, 16, 24}) exchange(comm, unit, round++);
      comm.close();
    });
  }
}

TEST("equal parts, allgather, lists and several segments per peer each have their call") {
  everywhere(3, [](Communicator& comm) {
    const int me = comm.rank(), n = comm.size();
    std::vector<std::byte> sent, wanted, gathered;
    for (int peer = 0; peer < n; ++peer) {
      for (size_t i = 0; i < 8; ++i) sent.push_back(value(me, peer, i)), wanted.push_back(value(peer, me, i));
      for (size_t i = 0; i < 8; ++i) gathered.push_back(value(peer, 0, i));
    }
    ascend::Memory send(24), recv(24);
    send.upload(sent);
    const std::vector<int64_t> two(3, 2);
    start(comm, Plan::alltoallv(me, n, 4, {two, {}}, 6, {two, {}}, 6), send, recv, call_of(comm, Op::alltoall));
    CHECK(recv.download() == wanted);

    start(comm, Plan::allgather(me, n, 8), send, recv, call_of(comm, Op::allgather));
    CHECK(recv.download() == gathered);

    const std::vector<size_t> bytes(3, 8);
    const void* from[] = {send.bytes(), send.bytes() + 8, send.bytes() + 16};
    void* to[] = {recv.bytes() + 16, recv.bytes() + 8, recv.bytes()};  // the list may be anywhere
    comm.start(Plan::alltoall_list(me, n, bytes, bytes), from, to, call_of(comm, Op::alltoall_list));
    const auto list = recv.download();
    for (size_t i = 0; i < 8; ++i) CHECK(list[16 + i] == wanted[i] && list[i] == wanted[16 + i]);

    // Two experts on each rank, one row of 4 bytes for each: rank r's rows for me are at 2 r and 2 r + 1.
    const std::vector<int64_t> ones(6, 1);
    start(comm, Plan::global_scatter(me, n, 4, ones, ones), send, recv, call_of(comm, Op::global_scatter));
    const auto scattered = recv.download();
    for (int expert = 0; expert < 2; ++expert) {
      for (int peer = 0; peer < n; ++peer) {
        const auto at = static_cast<size_t>(expert * n + peer) * 4;
        CHECK_EQ(scattered[at] == value(peer, me, static_cast<size_t>(expert) * 4), true);
      }
    }
    comm.close();
  });
}

TEST("nothing at all, and nothing on one side, are exchanges too") {
  everywhere(2, [](Communicator& comm) {
    ascend::Memory send(8), recv(8);
    const std::vector<int64_t> none(2, 0);
    start(comm, Plan::alltoallv(comm.rank(), 2, 4, {none, {}}, 2, {none, {}}, 2), send, recv,
          call_of(comm, Op::alltoallv))
        ->wait();
    start(comm, Plan::alltoallv(comm.rank(), 2, 4, {none, {}}, 2, {none, {}}, 2), send, recv,
          call_of(comm, Op::alltoall))
        ->wait();
    start(comm, Plan::allgather(comm.rank(), 2, 0), send, recv, call_of(comm, Op::allgather))->wait();
    start(comm, Plan::global_gather(comm.rank(), 2, 4, none, none), send, recv, call_of(comm, Op::global_gather))
        ->wait();
    std::vector<int64_t> to(2), from(2);
    if (comm.rank() == 0) to[1] = 2;
    if (comm.rank() == 1) from[0] = 2;
    start(comm, Plan::alltoallv(comm.rank(), 2, 4, {to, {}}, 2, {from, {}}, 2), send, recv,
          call_of(comm, Op::alltoallv))
        ->wait();
    comm.close();
  });
}

TEST("operations on streams: the caller's, the communicator's, and order between them") {
  everywhere(2, [](Communicator& comm) {
    const Uneven x(comm, 4, 0);
    ascend::Memory send(x.sent.size()), recv(x.wanted.size());
    send.upload(x.sent);
    Call call = call_of(comm, Op::alltoallv);
    call.own_stream = true;
    const auto work = start(comm, x.plan(), send, recv, call);
    work->order_before({ascend::stream});
    CHECK(recv.download() == x.wanted);  // which waits for the caller's stream alone
    CHECK(work->done());
    call.own_stream = false, call.stream = {};
    start(comm, x.plan(), send, recv, call)->wait();
    CHECK(recv.download() == x.wanted);
    comm.close();
  });
}

TEST("a disagreement is an error on both ranks before anything is enqueued, and the next exchange is right") {
  everywhere(2, [](Communicator& comm) {
    ascend::Memory send(64), recv(64);
    CHECK_THROWS(Code::mismatch, "rank 0 sends 2 elements to rank 1, which expects 1", swap(comm, send, recv, 1));
    exchange(comm, 4, 0);
    const std::vector<int64_t> one(2, 1);
    const auto plan = Plan::alltoallv(comm.rank(), 2, 4, {one, {}}, 2, {one, {}}, 2);
    const Op op = comm.rank() == 0 ? Op::alltoall : Op::alltoallv;
    CHECK_THROWS(Code::mismatch, "calls alltoall, rank 1 calls alltoallv",
                 start(comm, plan, send, recv, call_of(comm, op)));
    exchange(comm, 2, 1);
    Call host = call_of(comm, Op::allgather);
    if (comm.rank() == 1) host.memory = Memory::host;
    std::vector<std::byte> bytes(64);
    const void* from = comm.rank() == 0 ? send.get() : bytes.data();
    void* to = comm.rank() == 0 ? recv.get() : bytes.data() + 32;
    CHECK_THROWS(Code::mismatch, "uses memory of kind npu, rank 1 uses memory of kind host",
                 comm.start(plan, {&from, 1}, {&to, 1}, host)->wait());
    exchange(comm, 8, 2);
    comm.close();
  });
}

TEST("a rank that refuses its own arguments is named by its peers") {
  everywhere(2, [](Communicator& comm) {
    ascend::Memory send(64), recv(64);
    exchange(comm, 4, 0);
    if (comm.rank() == 0) {
      Call other = call_of(comm, Op::alltoallv);
      other.device = 5;
      const Plan plan = Plan::allgather(0, 2, 8);
      CHECK_THROWS(Code::invalid_argument, "the tensors are on npu:5, but this communicator uses npu:0",
                   start(comm, plan, send, recv, other));
    } else {
      CHECK_THROWS(Code::mismatch,
                   "rank 0 does not take part, its arguments were refused there: the tensors are on npu:5",
                   swap(comm, send, recv));
    }
    exchange(comm, 4, 1);
    std::vector<std::byte> host(64);
    const void* from = host.data();
    void* to = recv.get();
    if (comm.rank() == 1) {
      CHECK_THROWS(Code::invalid_argument, "8 bytes sent to rank 0 are not in the memory of npu:1",
                   comm.start(Plan::allgather(1, 2, 8), {&from, 1}, {&to, 1}, call_of(comm, Op::allgather)));
    } else {
      CHECK_THROWS(Code::mismatch, "are not in the memory of npu:1", swap(comm, send, recv));
    }
    exchange(comm, 4, 2);
    comm.close();
  });
}

TEST("after the operations that are compared, host operations and plans go on side by side") {
  everywhere(3, [](Communicator& comm) {
    reach_unchecked(comm);
    for (int i = 0; i < 50; ++i) {
      exchange(comm, 4, i);
      if (i % 7 == 0) comm.barrier();
      if (i % 5 == 0) CHECK_EQ(comm.allgather_bytes(std::string(5000, 'x'), Op::allgather)[2].size(), size_t{5000});
      if (i % 3 == 0) exchange(comm, 4, i, comm.next_plan());
    }
    comm.close();
  });
}

TEST("a refusal that comes too late breaks the communicator on every rank") {
  everywhere(2, [](Communicator& comm) {
    reach_unchecked(comm);
    ascend::Memory send(64), recv(64);
    if (comm.rank() == 0) {
      comm.refuse(call_of(comm, Op::alltoallv), "counts are bad");
      CHECK_THROWS(Code::aborted, "counts are bad", comm.barrier());
    } else {
      std::shared_ptr<a2a::Work> work;
      try {
        work = swap(comm, send, recv);
        work->wait();
        CHECK(false);
      } catch (const a2a::Error& error) {
        if (!CHECK(std::string(error.what()).find("counts are bad") != std::string::npos)) check::fail(error.what());
      }
    }
    CHECK(comm.broken());
    comm.close();
  });
}

TEST("a call that never comes is a timeout that says what the peer did last") {
  everywhere(2, [](Communicator& comm) {
    reach_unchecked(comm);
    ascend::Memory send(64), recv(64);
    if (comm.rank() == 0) {
      const auto work = swap(comm, send, recv, 0, 0.5);
      CHECK_THROWS(Code::timeout, "timed out on rank 0 (npu:0); peers: rank 1", work->wait());
    } else {
      std::this_thread::sleep_for(std::chrono::seconds(1));
      CHECK_THROWS(Code::timeout, "timed out on rank 0 (npu:0)", comm.barrier());
    }
    CHECK(comm.broken());
  });
}
