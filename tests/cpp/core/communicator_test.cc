// The communicator, with ranks as threads and processes that share memory, and on several hosts.
#include "a2a/communicator.h"

#include <cstring>
#include <map>
#include <numeric>

#include "environment.h"
#include "hosts.h"
#include "ranks.h"

namespace {

using a2a::Code;
using a2a::Communicator;
using a2a::Rank;
using check::Variable;

// ThreadSanitizer makes each step much slower: fewer and smaller cases there.
#if defined(__SANITIZE_THREAD__)
constexpr int kSlow = 8;
#else
constexpr int kSlow = 1;
#endif

void everywhere(int n, const ranks::Body& body) {
  ranks::everywhere(n, body);
  if (n > 1) hosts_test::on_hosts(n, body);
}

// Writes the bytes that `from` sends to `to` in round `round`. A call for each byte would dominate the time of a test
// under a sanitizer, so these are single loops, or the C library's.
void fill(std::byte* bytes, size_t count, Rank from, Rank to, uint64_t round) {
  const size_t first = static_cast<size_t>(from) * 131 + static_cast<size_t>(to) * 31 + round * 17;
  for (size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::byte>((first + i * 7 + (i >> 8)) & 0xff);
}

bool equal(std::span<const std::byte> a, std::span<const std::byte> b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size()) == 0);
}

// One random alltoallv with gaps and permuted order; every rank draws the same matrix.
struct Case {
  int size;
  std::vector<int64_t> counts;  // [from * size + to]
  size_t elem;
  bool displaced;
  bool sends_shared, recvs_shared;  // lie in shared memory

  int64_t count(Rank from, Rank to) const { return counts[static_cast<size_t>(from * size + to)]; }
};

Case draw(check::Random& random, int size, int64_t most) {
  Case c{size, {}, random.in(size_t{1}, size_t{8}), random.chance(0.5), random.chance(0.4), random.chance(0.4)};
  for (int i = 0; i < size * size; ++i) {
    c.counts.push_back(random.chance(0.2)   ? 0
                       : random.chance(0.1) ? random.in(int64_t{0}, most)
                                            : random.in(int64_t{0}, int64_t{200}));
  }
  return c;
}

struct Side {
  std::vector<int64_t> counts, displs;
  int64_t rows = 0;
};

Side lay_out(std::vector<int64_t> counts, bool displaced, uint64_t salt) {
  Side side{std::move(counts), {}, 0};
  side.displs.resize(side.counts.size());
  std::vector<size_t> order(side.counts.size());
  std::iota(order.begin(), order.end(), size_t{0});
  check::Random random(salt);
  if (displaced) std::shuffle(order.begin(), order.end(), random);
  for (const size_t p : order) {
    if (displaced) side.rows += random.in(0, 3);
    side.displs[p] = side.rows;
    side.rows += side.counts[p];
  }
  return side;
}

class Tensor {
 public:
  Tensor(size_t bytes, bool shared)
      : private_(shared ? 0 : bytes), shared_(shared ? Communicator::allocate_shared(bytes) : nullptr), bytes_(bytes) {}
  std::byte* data() const { return shared_ ? shared_.get() : private_.data(); }
  std::span<std::byte> bytes() const { return {data(), bytes_}; }

 private:
  mutable std::vector<std::byte> private_;
  std::shared_ptr<std::byte> shared_;
  size_t bytes_;
};

void run_case(Communicator& comm, const Case& c, uint64_t round) {
  std::vector<int64_t> sent, received;
  for (Rank p = 0; p < c.size; ++p) {
    sent.push_back(c.count(comm.rank(), p));
    received.push_back(c.count(p, comm.rank()));
  }
  const Side out = lay_out(sent, c.displaced, round * 1000 + static_cast<uint64_t>(comm.rank()));
  const Side in = lay_out(received, c.displaced, round * 1000 + 500 + static_cast<uint64_t>(comm.rank()));
  const Tensor sent_from(static_cast<size_t>(out.rows) * c.elem, c.sends_shared);
  const Tensor received_into(static_cast<size_t>(in.rows) * c.elem, c.recvs_shared);
  std::byte* const send = sent_from.data();
  const std::span<std::byte> recv = received_into.bytes();
  if (!recv.empty()) std::memset(recv.data(), 0xee, recv.size());
  std::vector<std::byte> expected(recv.size(), std::byte{0xee});
  for (Rank p = 0; p < c.size; ++p) {
    const auto i = static_cast<size_t>(p);
    fill(send + static_cast<size_t>(out.displs[i]) * c.elem, static_cast<size_t>(out.counts[i]) * c.elem, comm.rank(),
         p, round);
    fill(expected.data() + static_cast<size_t>(in.displs[i]) * c.elem, static_cast<size_t>(in.counts[i]) * c.elem, p,
         comm.rank(), round);
  }
  const auto plan =
      a2a::Plan::alltoallv(comm.rank(), c.size, c.elem, {out.counts, out.displs}, static_cast<size_t>(out.rows),
                           {in.counts, in.displs}, static_cast<size_t>(in.rows));
  const void* from = send;
  void* to = recv.data();
  comm.start(plan, {&from, 1}, {&to, 1}, {})->wait();
  CHECK(equal(recv, expected));
}

void run_random_cases(Communicator& comm, int rounds, int64_t most) {
  check::Random random(check::seed());  // the same on every rank
  for (int round = 0; round < rounds / kSlow; ++round) {
    const check::Note note("round", static_cast<uint64_t>(round));
    run_case(comm, draw(random, comm.size(), most / kSlow), static_cast<uint64_t>(round));
  }
}

void exchange_ranks(Communicator& comm, size_t each = 1) {
  const auto n = static_cast<size_t>(comm.size()), rank = static_cast<size_t>(comm.rank());
  std::vector<int32_t> send(n * each), recv(n * each, -1), expected(n * each);
  for (size_t p = 0; p < n; ++p) {
    for (size_t i = 0; i < each; ++i) {
      send[p * each + i] = static_cast<int32_t>((rank * n + p) * each + i);
      expected[p * each + i] = static_cast<int32_t>((p * n + rank) * each + i);
    }
  }
  a2a::alltoall<int32_t>(comm, send, recv);
  CHECK(recv == expected);
}

}  // namespace

TEST("random exchanges, from one rank to more ranks than CPUs") {
  for (const int n : {1, 2, 3, 5, 8, 16}) {
    const check::Note note("ranks", static_cast<uint64_t>(n));
    everywhere(n, [n](Communicator& comm) { run_random_cases(comm, n > 5 ? 20 : 60, 300'000 / n); });
  }
}

TEST("64 ranks, and 65, whose lines are shorter") {
  for (const int n : {64, 65}) {
    everywhere(n, [](Communicator& comm) {
      for (const size_t each : {1, 20, 21, 148, 149}) exchange_ranks(comm, each);
      comm.barrier();
      comm.close();
    });
  }
}

// The settings of the shared-memory transport that make it take one path as far as it can.
struct Path {
  const char *name, *cma, *direct_min, *cma_min;
};

TEST("random exchanges on every path: chunks only, direct and process_vm_readv from the first byte") {
  constexpr const char* kNever = "1000000000000";
  for (const Path& path : {Path{"chunks", "0", kNever, kNever}, Path{"direct", "1", "1", kNever},
                           Path{"process_vm_readv", "1", kNever, "1"}}) {
    const Variable stream("A2A_SHM_STREAM_MIN", "1000"), cma("A2A_SHM_CMA", path.cma);
    const Variable direct("A2A_SHM_DIRECT_MIN", path.direct_min), cma_min("A2A_SHM_CMA_MIN", path.cma_min);
    const int before = check::failures;
    everywhere(3, [](Communicator& comm) {
      run_random_cases(comm, 40, 400'000);
      check::Random random(check::seed());
      for (uint64_t round = 0; round < 3; ++round) {  // large parts only, some in one direction
        Case c{comm.size(), {}, 1, false, true, true};
        for (int i = 0; i < c.size * c.size; ++i) c.counts.push_back(random.chance(0.3) ? 0 : random.in(4096, 800'000));
        run_case(comm, c, round);
      }
    });
    if (check::failures > before) std::cerr << "  the path is: " << path.name << '\n';
  }
}

TEST("what all ranks get alike: parts of any size, several operations in flight") {
  setenv("A2A_SHM_CMA", "0", 1);
  setenv("A2A_SHM_DIRECT_MIN", "1", 1);
  everywhere(7, [](Communicator& comm) {
    const auto n = static_cast<size_t>(comm.size());
    constexpr size_t kInFlight = 3;
    struct Operation {
      std::vector<std::byte> send, recv;
      std::shared_ptr<a2a::Work> work;
    };
    std::vector<Operation> operations;
    // The sizes go up and down, so that the resources of one operation do not suffice for the next, and have to grow.
    for (const size_t bytes : {100, 40'000, 50'000, 90'000, 0, 89'999, 7, 60'000, 20'000}) {
      auto& [send, recv, work] = operations.emplace_back();
      send.resize(bytes);
      fill(send.data(), bytes, comm.rank(), 0, bytes);
      recv.resize(n * bytes);
      const void* from = send.data();
      void* to = recv.data();
      work = comm.start(a2a::Plan::allgather(comm.rank(), comm.size(), bytes), {&from, 1}, {&to, 1}, {});
      if (operations.size() % kInFlight == 0) work->wait();
    }
    for (auto& [send, recv, work] : operations) {
      work->wait();
      const check::Note note("bytes", send.size());
      std::vector<std::byte> expected(n * send.size());
      for (Rank p = 0; p < comm.size(); ++p) {
        fill(expected.data() + static_cast<size_t>(p) * send.size(), send.size(), p, 0, send.size());
      }
      CHECK(recv == expected);
    }
    comm.close();
  });
  unsetenv("A2A_SHM_CMA");
  unsetenv("A2A_SHM_DIRECT_MIN");
}

TEST("what all ranks get alike, when tensors have taken the whole segment") {
  setenv("A2A_SHM_CMA", "0", 1);
  setenv("A2A_SHM_SEGMENT", "16777216", 1);
  ranks::as_processes(4, [](Communicator& comm) {
    std::vector<std::shared_ptr<std::byte>> tensors;
    for (size_t bytes = size_t{8} << 20; bytes >= 4096;) {
      try {
        tensors.push_back(Communicator::allocate_shared(bytes));
      } catch (const a2a::Error&) {
        bytes /= 2;
      }
    }
    const std::vector<int> send(50'000, comm.rank());
    std::vector<int> recv(4 * send.size());
    a2a::allgather<int>(comm, send, recv);
    for (size_t i = 0; i < recv.size(); ++i) CHECK_EQ(recv[i], static_cast<int>(i / send.size()));
    comm.close();
  });
  unsetenv("A2A_SHM_CMA");
  unsetenv("A2A_SHM_SEGMENT");
}

TEST("many operations in flight finish in order") {
  everywhere(3, [](Communicator& comm) {
    const auto n = static_cast<size_t>(comm.size());
    constexpr size_t kOps = 50;
    std::vector<std::vector<int64_t>> sends(kOps, std::vector<int64_t>(n * 300)), recvs = sends;
    std::vector<std::shared_ptr<a2a::Work>> works;
    const std::vector<int64_t> counts(n, 300);
    const auto plan = a2a::Plan::alltoallv(comm.rank(), comm.size(), 8, {counts, {}}, n * 300, {counts, {}}, n * 300);
    for (size_t i = 0; i < kOps; ++i) {
      std::ranges::fill(sends[i], static_cast<int64_t>(i) * 10 + comm.rank());
      const void* from = sends[i].data();
      void* to = recvs[i].data();
      works.push_back(comm.start(plan, {&from, 1}, {&to, 1}, {}));
    }
    works.back()->wait();
    for (size_t i = 0; i < kOps; ++i) {
      CHECK(works[i]->done());
      works[i]->wait();
      for (size_t p = 0; p < n; ++p)
        CHECK_EQ(recvs[i][p * 300 + 7], static_cast<int64_t>(i) * 10 + static_cast<int64_t>(p));
    }
  });
}

TEST("a progress thread moves what is in flight while its rank does something else") {
  setenv("A2A_PROGRESS_THREAD", "1", 1);
  everywhere(3, [](Communicator& comm) {
    check::Random random(7);  // the same sizes on all ranks
    for (int turn = 0; turn < 20; ++turn) {
      const size_t n = 3, in_flight = random.in(size_t{1}, size_t{4});
      std::vector<std::vector<int32_t>> sends(in_flight), recvs(in_flight);
      std::vector<std::shared_ptr<a2a::Work>> works;
      for (size_t i = 0; i < in_flight; ++i) {
        const size_t part = random.in(size_t{1}, size_t{200'000});
        sends[i].assign(n * part, turn * 100 + comm.rank());
        recvs[i].assign(n * part, -1);
        const std::vector<int64_t> counts(n, static_cast<int64_t>(part));
        const auto plan =
            a2a::Plan::alltoallv(comm.rank(), comm.size(), 4, {counts, {}}, n * part, {counts, {}}, n * part);
        a2a::Call call;
        call.asynchronous = true;
        const void* from = sends[i].data();
        void* to = recvs[i].data();
        works.push_back(comm.start(plan, {&from, 1}, {&to, 1}, call));
      }
      if (turn % 2 == 0) usleep(2000);
      for (auto& work : works) work->wait();
      for (const auto& recv : recvs) {
        for (size_t i = 0; i < recv.size(); ++i) {
          if (!CHECK_EQ(recv[i], turn * 100 + static_cast<int32_t>(i / (recv.size() / n)))) return;
        }
      }
    }
    comm.close();
  });
  unsetenv("A2A_PROGRESS_THREAD");
}

TEST("try_start() starts at once, or nothing") {
  const int64_t send[] = {7};
  int64_t recv[] = {-1};
  const void* from = send;
  void* to = recv;
  const std::vector<int64_t> one(1, 1);
  ranks::as_threads(1, [&](Communicator& comm) {
    const auto plan = a2a::Plan::alltoallv(0, 1, 8, {one, {}}, 1, {one, {}}, 1);
    const auto work = comm.try_start(plan, {&from, 1}, {&to, 1}, {});
    if (!CHECK(work != nullptr)) return;
    CHECK(work->wait_briefly());
    CHECK_EQ(recv[0], 7);
    CHECK_EQ(comm.last_number(), 1);
    const auto other = a2a::Plan::allgather(0, 2, 8);
    CHECK(comm.try_start(other, {&from, 1}, {&to, 1}, {}) == nullptr);  // start() throws the reason
    comm.close();
    CHECK_THROWS(Code::aborted, "closed", comm.try_start(plan, {&from, 1}, {&to, 1}, {}));
  });
  ranks::as_threads(2, [&](Communicator& comm) {  // ranks that are threads yield from the start
    const auto number = comm.last_number();
    const auto plan = a2a::Plan::allgather(comm.rank(), 2, 8);
    CHECK(comm.try_start(plan, {&from, 1}, {&to, 1}, {}) == nullptr);
    CHECK_EQ(comm.last_number(), number);
    exchange_ranks(comm);
  });
}

TEST("two communicators used in opposite order do not block each other") {
  everywhere(2, [](Communicator& comm) {
    const auto other = comm.split(0, 0);
    if (!CHECK(other != nullptr)) return;
    Communicator* order[2] = {&comm, other.get()};
    if (comm.rank() == 1) std::swap(order[0], order[1]);
    const std::vector<int64_t> counts(2, 40'000);
    const auto plan = a2a::Plan::alltoallv(comm.rank(), 2, 8, {counts, {}}, 80'000, {counts, {}}, 80'000);
    std::vector<int64_t> send(80'000, comm.rank()),
        recv[2] = {std::vector<int64_t>(80'000), std::vector<int64_t>(80'000)};
    std::shared_ptr<a2a::Work> works[2];
    for (int i = 0; i < 2; ++i) {
      const void* from = send.data();
      void* to = recv[i].data();
      works[i] = order[i]->start(plan, {&from, 1}, {&to, 1}, {});
    }
    for (auto& work : works) work->wait();
    for (const auto& r : recv) CHECK_EQ(r[79'999], 1);
  });
}

TEST("split and group, with ranks that are not members, and many communicators") {
  everywhere(5, [](Communicator& comm) {
    const auto parity = comm.split(comm.rank() % 2, -comm.rank());
    if (!CHECK(parity != nullptr)) return;
    CHECK_EQ(parity->size(), comm.rank() % 2 == 0 ? 3 : 2);
    CHECK_EQ(parity->rank(), comm.rank() % 2 == 0 ? 2 - comm.rank() / 2 : 1 - comm.rank() / 2);
    exchange_ranks(*parity);
    CHECK(comm.split(comm.rank() == 2 ? -1 : 0, 0) != nullptr || comm.rank() == 2);
    const std::vector<Rank> members{4, 0, 3};
    const auto some = comm.group(members);
    const auto at = std::ranges::find(members, comm.rank());
    CHECK_EQ(some != nullptr, at != members.end());
    if (some) CHECK_EQ(some->rank(), at - members.begin());
    if (some) exchange_ranks(*some);
    std::vector<std::shared_ptr<Communicator>> many;
    for (int i = 0; i < 64; ++i) many.push_back(comm.split(0, i % 2 == 0 ? comm.rank() : -comm.rank()));
    for (const auto& c : many) exchange_ranks(*c);
    for (const auto& c : many) c->close();
    comm.close();
    CHECK_THROWS(Code::aborted, "has closed this communicator", comm.barrier());
  });
}

TEST("wrong group lists are refused") {
  everywhere(3, [](Communicator& comm) {
    const std::vector<Rank> twice{0, 0}, outside{0, 3};
    CHECK_THROWS(Code::invalid_argument, "twice", comm.group(twice));
    CHECK_THROWS(Code::invalid_argument, "contains 3", comm.group(outside));
    const std::vector<Rank> different{0, comm.rank() == 1 ? 2 : 1};
    CHECK_THROWS(Code::mismatch, "different lists", comm.group(different));
    exchange_ranks(comm);
  });
}

TEST("allgather_bytes carries strings of any length") {
  everywhere(4, [](Communicator& comm) {
    const auto all = comm.allgather_bytes(
        std::string(static_cast<size_t>(comm.rank()) * 1000, static_cast<char>('a' + comm.rank())), a2a::Op::plan);
    for (size_t r = 0; r < 4; ++r) CHECK(all[r] == std::string(r * 1000, static_cast<char>('a' + r)));
  });
}

// ---- disagreement --------------------------------------------------------------------------------------------------

namespace {

// Starts an alltoallv of int32 in which this rank sends send_count elements to every rank and expects recv_count from
// every rank.
void attempt(Communicator& comm, std::vector<int64_t> sends, std::vector<int64_t> recvs, a2a::DType dtype = {0, 32, 1},
             a2a::Op op = a2a::Op::alltoallv, std::byte* out = nullptr) {
  const auto total = [](const auto& counts) {
    return static_cast<size_t>(std::accumulate(counts.begin(), counts.end(), int64_t{0}));
  };
  std::vector<int32_t> send(total(sends), comm.rank()), recv(total(recvs), -7);
  const auto plan =
      a2a::Plan::alltoallv(comm.rank(), comm.size(), 4, {sends, {}}, send.size(), {recvs, {}}, recv.size());
  const void* from = send.data();
  void* to = out != nullptr ? static_cast<void*>(out) : recv.data();
  a2a::Call call;
  call.op = op;
  call.dtype = dtype;
  call.unit_bytes = 4;
  comm.start(plan, {&from, 1}, {&to, 1}, call)->wait();
}

}  // namespace

TEST("a wrong count is an error on both ranks, the others and the next exchange are right") {
  everywhere(3, [](Communicator& comm) {
    for (const int64_t wrong : {int64_t{3}, int64_t{5}, int64_t{0}, int64_t{5000}, int64_t{500'000} / kSlow}) {
      for (const int64_t right : {int64_t{4}, int64_t{4000}, int64_t{400'000} / kSlow}) {
        const check::Note note("wrong", static_cast<uint64_t>(wrong));
        const check::Note note2("right", static_cast<uint64_t>(right));
        std::vector<int64_t> sends(3, right), recvs(3, right);
        if (comm.rank() == 0) sends[2] = wrong;  // rank 2 expects `right`
        std::vector<int32_t> recv(static_cast<size_t>(right) * 3, -7);
        auto* out = reinterpret_cast<std::byte*>(recv.data());
        const std::string text = "rank 0 sends " + std::to_string(wrong) + " elements to rank 2, which expects " +
                                 std::to_string(right) + " (element = 4 bytes, int32)";
        if (comm.rank() == 1) {
          attempt(comm, sends, recvs, {0, 32, 1}, a2a::Op::alltoallv, out);
        } else {
          CHECK_THROWS(Code::mismatch, text, attempt(comm, sends, recvs, {0, 32, 1}, a2a::Op::alltoallv, out));
        }
        const Rank bad = comm.rank() == 0 ? 2 : comm.rank() == 2 ? 0 : -1;
        for (Rank p = 0; p < 3; ++p) {
          const auto first = static_cast<size_t>(p * right), last = first + static_cast<size_t>(right) - 1;
          CHECK_EQ(recv[first], p == bad ? -7 : p);
          CHECK_EQ(recv[last], p == bad ? -7 : p);
        }
        exchange_ranks(comm);
      }
    }
    CHECK(!comm.broken());
  });
}

TEST("other disagreements: dtype, operation, refused arguments") {
  everywhere(3, [](Communicator& comm) {
    const std::vector<int64_t> counts(3, 2);
    CHECK_THROWS(Code::mismatch, "rank 1 uses dtype float32",
                 attempt(comm, counts, counts, comm.rank() == 1 ? a2a::DType{2, 32, 1} : a2a::DType{0, 32, 1}));
    exchange_ranks(comm);
    CHECK_THROWS(Code::mismatch, "rank 0 calls allgather",
                 attempt(comm, counts, counts, {0, 32, 1}, comm.rank() == 0 ? a2a::Op::allgather : a2a::Op::alltoallv));
    exchange_ranks(comm);
    a2a::Call call;
    if (comm.rank() == 2) {
      comm.refuse(call, "send_counts[1] = -3 is negative");
    } else {
      CHECK_THROWS(Code::mismatch, "rank 2 does not take part, its arguments were refused there: send_counts[1] = -3",
                   attempt(comm, counts, counts));
    }
    exchange_ranks(comm);
    const std::vector<int64_t> bad{0, -1, 0};
    CHECK_THROWS(Code::invalid_argument, "negative", a2a::alltoallv<int32_t>(comm, {}, bad, {}, bad));
    exchange_ranks(comm);
  });
}

// ---- death, deadlines, aborts --------------------------------------------------------------------------------------

#if !defined(__SANITIZE_THREAD__)
TEST("a killed rank is named by every survivor, who can shrink and go on") {
  for (int repeat = 0; repeat < 5; ++repeat) {
    auto processes = ranks::start_processes(4, [](Communicator& comm) {
      const std::vector<int64_t> counts(4, 500'000);
      if (comm.rank() == 2) {
        attempt(comm, counts, counts);
        raise(SIGKILL);
      }
      const auto go_on = [&] {
        for (int i = 0; i < 4; ++i) attempt(comm, counts, counts);
      };
      CHECK_THROWS(Code::peer_lost, "rank 2 (pid", go_on());
      CHECK(comm.broken());
      CHECK_THROWS(Code::peer_lost, "is broken", comm.barrier());
      const auto rest = comm.shrink();
      CHECK_EQ(rest->size(), 3);
      CHECK_EQ(rest->rank(), comm.rank() == 3 ? 2 : comm.rank());
      exchange_ranks(*rest);
      rest->close();
      comm.close();
    });
    const auto statuses = processes.wait();
    for (int r = 0; r < 4; ++r) CHECK_EQ(statuses[static_cast<size_t>(r)], r == 2 ? SIGKILL : 0);
  }
}
#endif

TEST("a rank that does not come: the deadline fails everywhere and names its last operation") {
  everywhere(3, [](Communicator& comm) {
    exchange_ranks(comm);
    if (comm.rank() != 1) {
      CHECK_THROWS(Code::timeout, "", comm.barrier(a2a::Deadline::after_seconds(0.2)));
      CHECK(comm.broken());
    } else {
      std::this_thread::sleep_for(std::chrono::milliseconds(400));
      CHECK_THROWS(Code::timeout, "which still waits for rank 1", comm.barrier());
      CHECK_THROWS(Code::timeout, " has come", comm.barrier());  // it stays broken, with the same error
    }
  });
}

TEST("abort fails every rank; a rank that drops its communicator is a lost peer") {
  everywhere(3, [](Communicator& comm) {
    const auto second = comm.split(0, comm.rank());
    exchange_ranks(comm);
    // A rank that is still in the first exchange would be aborted there.
    std::this_thread::sleep_for(std::chrono::milliseconds(comm.rank() == 0 ? 200 : 0));
    if (comm.rank() == 0) comm.abort("out of tokens");
    CHECK_THROWS(Code::aborted, "rank 0 aborted: out of tokens", comm.barrier());
    if (comm.rank() == 0) return;
    CHECK_THROWS(Code::peer_lost, "rank 0", second->barrier());
  });
}

TEST("bytes that arrived before a peer aborted are received") {
  ranks::everywhere(2, [](Communicator& comm) {
    const std::vector<int64_t> counts(2, 1);
    const auto plan = a2a::Plan::alltoallv(comm.rank(), 2, 4, {counts, {}}, 2, {counts, {}}, 2);
    const int32_t send[2] = {comm.rank(), comm.rank()};
    int32_t recv[2][2] = {{-1, -1}, {-1, -1}};
    const auto sleep = [](int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); };
    std::vector<std::shared_ptr<a2a::Work>> works;
    if (comm.rank() == 0) sleep(100);
    for (auto& received : recv) {
      const void* from = send;
      void* to = received;
      works.push_back(comm.start(plan, {&from, 1}, {&to, 1}, {}));
    }
    if (comm.rank() == 1) sleep(300);  // rank 0 has given up by then
    CHECK_EQ(comm.broken(), comm.rank() == 1);
    for (size_t i = 0; i < 2; ++i) {
      works[i]->wait();
      CHECK_EQ(recv[i], (std::vector<int32_t>{0, 1}));
    }
    if (comm.rank() == 0) comm.abort("enough");
    CHECK_THROWS(Code::aborted, "rank 0 aborted: enough", comm.barrier());
  });
}

TEST("a wait that times out leaves the operation going") {
  everywhere(2, [](Communicator& comm) {
    const std::vector<int64_t> counts(2, 1);
    const auto plan = a2a::Plan::alltoallv(comm.rank(), 2, 4, {counts, {}}, 2, {counts, {}}, 2);
    int32_t send[2] = {comm.rank(), comm.rank()}, recv[2] = {-1, -1};
    const void* from = send;
    void* to = recv;
    if (comm.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(300));
    const auto work = comm.start(plan, {&from, 1}, {&to, 1}, {});
    if (comm.rank() == 0) {
      CHECK_THROWS(Code::timeout, "goes on", work->wait(a2a::Deadline::after_seconds(0.05)));
      CHECK(!work->arrived(1));
    }
    work->wait();
    CHECK(work->arrived(1));
    CHECK_EQ(recv[1], 1);
    CHECK(!comm.broken());
  });
}

TEST("a forked child gets an error, its parent goes on") {
  ranks::as_processes(2, [](Communicator& comm) {
    exchange_ranks(comm);
    const pid_t child = fork();
    if (child == 0) {
      check::failures = 0;
      CHECK_THROWS(Code::aborted, "before fork()", comm.barrier());
      // A communicator of its own works.
      const auto bootstraps = a2a::thread_bootstraps(1);
      const auto own = Communicator::create(0, 1, *bootstraps[0], {});
      exchange_ranks(*own);
      _exit(check::failures == 0 ? 0 : 1);
    }
    exchange_ranks(comm);
    int status = -1;
    waitpid(child, &status, 0);
    CHECK_EQ(status, 0);
    exchange_ranks(comm);
  });
}

TEST("a forked child may drop a long chain of operations on one tensor") {
#if defined(__SANITIZE_THREAD__)
  return;  // it does not support fork() well
#endif
  ranks::as_processes(2, [](Communicator& comm) {
    auto both = comm.split(0, comm.rank());
    if (comm.rank() == 1) return comm.barrier();
    std::array<std::byte, 16> tensor{};
    const auto plan = a2a::Plan::allgather(0, 2, 8);
    const void* from = tensor.data();
    void* to = tensor.data();
    std::vector<std::shared_ptr<a2a::Work>> works;
    for (int i = 0; i < 200'000; ++i) works.push_back(both->start(plan, {&from, 1}, {&to, 1}, {}));
    const pid_t child = fork();
    if (child == 0) {
      works.clear();
      both.reset();
      _exit(0);
    }
    int status = -1;
    waitpid(child, &status, 0);
    CHECK_EQ(status, 0);
    both->abort("enough");
    comm.barrier();
  });
}

TEST("making and closing communicators leaves nothing behind") {
  ranks::as_processes(2, [](Communicator& comm) {
    for (int i = 0; i < 2000; ++i) comm.split(0, comm.rank())->close();
    // A leak of one block each would have filled more than this.
    const auto block = Communicator::allocate_shared(size_t{1} << 20);
    CHECK(block != nullptr);
  });
}
