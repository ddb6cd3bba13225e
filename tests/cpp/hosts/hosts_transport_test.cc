// Properties of ranks on several hosts: the ways of bytes between them, the number of messages, and operations on
// devices. communicator_test.cc has the tests that do not depend on the hosts of the ranks.
#include <algorithm>
#include <array>
#include <barrier>
#include <chrono>
#include <deque>
#include <numeric>
#include <thread>

#include "core/connect.h"
#include "hosts.h"
#include "transport/hosts/messages.h"
#include "transport/hosts/operation.h"

namespace {

using namespace a2a;
using hosts_test::in_turn;
using hosts_test::on_hosts;
using hosts_test::Setting;

constexpr int kExperts = 3;

// Returns the number of rows from one rank to an expert of another in a round: none, a few, or many.
int64_t rows(Rank from, Rank to, int expert, int round) {
  const int k = from * 7 + to * 3 + expert * 5 + round;
  return k % 4 == 0 ? 0 : k % 5 == 0 ? 40 : k % 7;
}

struct Mixture {
  std::vector<int64_t> local, global;
  Mixture(const Communicator& comm, int round) {
    for (Rank p = 0; p < comm.size(); ++p) {
      for (int e = 0; e < kExperts; ++e) {
        local.push_back(rows(comm.rank(), p, e, round));
        global.push_back(rows(p, comm.rank(), e, round));
      }
    }
  }
};

// Appends the elements from one rank to an expert of another.
void append_segment(std::vector<int32_t>& elements, Rank from, Rank to, int expert, size_t n) {
  const size_t at = elements.size();
  elements.resize(at + n);
  std::iota(elements.begin() + static_cast<ptrdiff_t>(at), elements.end(), ((from * 16 + to) * 16 + expert) * 200'000);
}

// Scatters rows of `row` elements to experts and gathers them back.
void scatter_and_gather(Communicator& comm, size_t row, int round) {
  const Mixture m(comm, round);
  std::vector<int32_t> input, output, back, expected;
  for (Rank p = 0; p < comm.size(); ++p) {
    for (int e = 0; e < kExperts; ++e) {
      append_segment(input, comm.rank(), p, e,
                     static_cast<size_t>(m.local[static_cast<size_t>(p * kExperts + e)]) * row);
    }
  }
  const auto total = static_cast<size_t>(std::accumulate(m.global.begin(), m.global.end(), int64_t{0})) * row;
  output.assign(total, -1);
  back.assign(input.size(), -1);
  Call call;
  call.op = Op::global_scatter;
  call.unit_bytes = row * sizeof(int32_t);
  const auto plan = Plan::global_scatter(comm.rank(), comm.size(), call.unit_bytes, m.local, m.global);
  const void* from = input.data();
  void* to = output.data();
  comm.start(plan, {&from, 1}, {&to, 1}, call)->wait();
  for (int e = 0; e < kExperts; ++e) {
    for (Rank p = 0; p < comm.size(); ++p) {
      append_segment(expected, p, comm.rank(), e,
                     static_cast<size_t>(m.global[static_cast<size_t>(p * kExperts + e)]) * row);
    }
  }
  CHECK(output == expected);
  call.op = Op::global_gather;
  from = output.data();
  to = back.data();
  comm.start(plan.transpose(), {&from, 1}, {&to, 1}, call)->wait();
  CHECK(back == input);
}

std::shared_ptr<Work> allreduce(Communicator& comm, std::vector<int64_t>& tensor) {
  Call call;
  call.op = Op::allreduce, call.fold = Fold::sum;
  call.dtype = {0, 64, 1}, call.unit_bytes = sizeof(int64_t);
  const void* from = tensor.data();
  void* to = tensor.data();
  return comm.start(comm.plan_allreduce(sizeof(int64_t), tensor.size()), {&from, 1}, {&to, 1}, call);
}

void equal_exchange(Communicator& comm, size_t elems) {
  const auto n = static_cast<size_t>(comm.size());
  std::vector<int64_t> send(n * elems), recv(n * elems, -1);
  for (size_t p = 0; p < n; ++p) {
    for (size_t i = 0; i < elems; ++i) {
      send[p * elems + i] = comm.rank() * 1'000'000 + static_cast<int64_t>(p * 10'000 + i);
    }
  }
  alltoall<int64_t>(comm, send, recv);
  for (size_t p = 0; p < n; ++p) {
    for (size_t i = 0; i < elems; ++i) {
      CHECK_EQ(recv[p * elems + i],
               static_cast<int64_t>(p) * 1'000'000 + comm.rank() * 10'000 + static_cast<int64_t>(i));
    }
  }
}

// Ranks whose bit is set send 16 KiB to every rank, the others 8 bytes. When `wrong`, rank 5 expects another size from
// rank 0.
void uneven_exchange(Communicator& comm, unsigned large, bool wrong) {
  const auto n = static_cast<size_t>(comm.size());
  const auto elems = [&](size_t rank) { return large >> rank & 1 ? int64_t{2048} : int64_t{1}; };
  const auto from = [&](Rank rank) { return int64_t{1000} * rank + static_cast<int64_t>(large); };
  std::vector<int64_t> sent(n, elems(static_cast<size_t>(comm.rank()))), received, expected;
  for (size_t p = 0; p < n; ++p) {
    received.push_back(wrong && comm.rank() == 5 && p == 0 ? 7 : elems(p));
    expected.insert(expected.end(), static_cast<size_t>(received.back()), from(static_cast<Rank>(p)));
  }
  const std::vector<int64_t> send(n * static_cast<size_t>(sent[0]), from(comm.rank()));
  std::vector<int64_t> recv(expected.size(), -1);
  alltoallv<int64_t>(comm, send, sent, recv, received);
  CHECK(recv == expected);
}

// Returns the sum over all ranks of the messages that `body` sends.
template <class Body>
uint64_t messages(Communicator& comm, Body&& body) {
  const uint64_t before = comm.host_facts().messages;
  body();
  const uint64_t mine = comm.host_facts().messages - before;
  uint64_t sum = 0;
  for (const auto& text : comm.allgather_bytes(std::to_string(mine), Op::allgather)) sum += std::stoull(text);
  return sum;
}

std::unique_ptr<Transport> transport_of(Rank rank, int n, const hosts_test::MeetingPlace& place) {
  return a2a::connect(rank, n, *place.join(rank), Deadline::after_seconds(60));
}

// Runs transports, without communicators, of ranks on two hosts, in turn.
void transports(int n, const std::function<void(Rank, Transport&)>& body) {
  const Setting assigned("A2A_HOSTS", n == 4 ? "0,1,0,1" : "0,1,0");
  const hosts_test::MeetingPlace place(n);
  const auto done = thread_bootstraps(n);
  check::threads(n, [&](int rank) {
    const auto transport = transport_of(rank, n, place);
    body(rank, *transport);
    done[static_cast<size_t>(rank)]->allgather("", Deadline::after_seconds(60));  // no rank leaves before
  });
}

Signature on_device(uint64_t number, Op op = Op::alltoallv) { return {op, Memory::cuda, DType{}, number, 0}; }

// Compares 8 bytes with every rank; rank 0 may expect more from rank 1.
std::shared_ptr<Work> compare(Transport& transport, Rank rank, int n, uint64_t number, bool wrong = false) {
  static std::byte nowhere[16];
  Batch batch;
  batch.signature = on_device(number);
  batch.way = Way::compare;
  batch.deadline = Deadline::after_seconds(60);
  for (Rank p = 0; p < n; ++p) {
    batch.sends.push_back({p, nowhere, 8});
    batch.recvs.push_back({p, nowhere, wrong && rank == 0 && p == 1 ? size_t{16} : size_t{8}});
  }
  return transport.start(std::move(batch));
}

}  // namespace

// ThreadSanitizer takes ten times as long, and sees a race the first time.
#if defined(__SANITIZE_THREAD__)
constexpr std::array<const char*, 2> kAggregates{"0", "1024"};
constexpr int kReductions = 6;
#else
constexpr std::array<const char*, 4> kAggregates{"0", "100", "1024", "20000"};
constexpr int kReductions = 30;
#endif

TEST("segments of all lengths, by every way") {
  for (const char* aggregate : kAggregates) {
    const Setting limit("A2A_AGGREGATE_MAX", aggregate);
    on_hosts(4, [](Communicator& comm) {
      for (const size_t row : {size_t{1}, size_t{50}, size_t{700}, size_t{3000}, size_t{20'000}}) {
        for (int round = 0; round < 2; ++round) scatter_and_gather(comm, row, round);
      }
    });
  }
}

TEST("between parts of the library what a rank sends itself may be cut differently, around the room for it") {
  const auto transport = a2a::connect(0, 1, *thread_bootstraps(1)[0], Deadline::after_seconds(60));
  std::vector<std::byte> memory(400);
  for (size_t i = 0; i < memory.size(); ++i) memory[i] = static_cast<std::byte>(i % 251);
  const std::vector<std::byte> before = memory;
  Batch batch;
  batch.signature = {Op::exchange, Memory::host, DType{}, 1, 0};
  batch.at_most = true;
  batch.sends = {{0, memory.data(), 100}, {0, memory.data() + 300, 50}};
  batch.recvs = {{0, memory.data() + 100, 200}};
  transport->start(std::move(batch))->wait();
  CHECK(std::equal(before.begin(), before.begin() + 100, memory.begin() + 100));
  CHECK(std::equal(before.begin() + 300, before.begin() + 350, memory.begin() + 200));
  CHECK(std::equal(before.begin() + 250, before.begin() + 300, memory.begin() + 250));
}

TEST("few bytes between two hosts cost one message each way, whatever the number of ranks") {
  const char* halves = "a,a,a,a,b,b,b,b";
  on_hosts(halves, 8, [](Communicator& comm) {
    comm.barrier();
    CHECK_EQ(messages(comm, [&] { equal_exchange(comm, 1); }), uint64_t{2});
    CHECK_EQ(messages(comm, [&] { equal_exchange(comm, 1024); }), uint64_t{2});
    // Over the limit each pair of ranks has a message of its own, and two if the bytes do not fit into it, but only the
    // first time.
    CHECK_EQ(messages(comm, [&] { equal_exchange(comm, 1025); }), uint64_t{32});
    CHECK_EQ(messages(comm, [&] { equal_exchange(comm, 4096); }), uint64_t{32});
    CHECK_EQ(messages(comm, [&] { equal_exchange(comm, 4097); }), uint64_t{2 + 32});
    // On a slow machine the agreement of the ranks may be too old to be repeated. All ranks count the same.
    for (const size_t elems : {4097, 1025, 4096, 4097}) {
      uint64_t least = 64;
      for (int i = 0; i < 10 && least > 32; ++i) {
        least = std::min(least, messages(comm, [&] { equal_exchange(comm, elems); }));
      }
      CHECK_EQ(least, uint64_t{32});
    }
    CHECK_EQ(messages(comm, [&] { equal_exchange(comm, 1); }), uint64_t{2});
    comm.close();
  });
  const Setting never("A2A_AGGREGATE_MAX", "0");
  on_hosts(halves, 8, [](Communicator& comm) {
    CHECK_EQ(messages(comm, [&] { equal_exchange(comm, 1); }), uint64_t{32});
    comm.close();
  });
}

TEST("the ranks of a host take turns to send for it") {
  for (const auto& [assigned, n] : {std::pair{"a,a,a,a,b,b,b,b", 8}, {"a,b,a,b,a", 5}}) {
    on_hosts(assigned, n, [n = n](Communicator& comm) {
      constexpr uint64_t kRounds = 12;  // a multiple of the number of ranks on each host
      const uint64_t neighbours = n == 8 ? 4 : comm.rank() % 2 == 0 ? 3 : 2;
      const uint64_t before = comm.host_facts().messages;
      for (uint64_t round = 0; round < kRounds; ++round) equal_exchange(comm, 1);
      CHECK_EQ(comm.host_facts().messages - before, kRounds / neighbours);
      comm.close();
    });
  }
}

TEST("ranks that tell the others themselves, beside ranks of their host that relay") {
  on_hosts("a,a,a,a,b,b,b,b", 8, [](Communicator& comm) {
    for (unsigned large : {0x02u, 0x42u, 0x01u, 0x80u, 0x0fu, 0xf0u, 0x7fu, 0xfeu, 0x5au, 0xffu, 0x00u, 0x10u}) {
      uneven_exchange(comm, large, false);
    }
    // An error of one pair does not concern the others.
    for (unsigned large : {0x01u, 0x20u, 0xdeu, 0xffu, 0x00u}) {
      const auto wrong = [&] { uneven_exchange(comm, large, true); };
      if (comm.rank() == 0 || comm.rank() == 5) CHECK_THROWS(Code::mismatch, "to rank 5, which expects 7", wrong());
      if (comm.rank() != 0 && comm.rank() != 5) wrong();
      uneven_exchange(comm, ~large & 0xff, false);
    }
    comm.barrier();
    CHECK_EQ(messages(comm, [&] { uneven_exchange(comm, 0x02, false); }), uint64_t{4 + 2});
    comm.close();
  });
}

TEST("a rank that leaves when it has all it wants breaks nothing for those that still relay") {
  for (int time = 0; time < 20; ++time) {
    on_hosts("a,a,a,a,b,b,b,b", 8, [](Communicator& comm) {
      for (int64_t round = 0; round < 3; ++round) {  // rank 1 repeats, the others make a new exchange
        std::vector<int64_t> counts(8, 5000 + (comm.rank() == 1 ? 0 : round));
        counts[1] = 5000;
        const auto total = static_cast<size_t>(std::accumulate(counts.begin(), counts.end(), int64_t{0}));
        std::vector<int64_t> send(total, round), recv(total, -1);
        alltoallv<int64_t>(comm, send, counts, recv, counts);
        CHECK(recv == send);
      }
    });
  }
}

TEST("what one relays needs no rank that has all it wants") {
  // There are two hosts. A rank disagrees with a rank of the other host. The two have to learn of all messages that it
  // relays between them, although the other ranks, among them those that receive for their hosts, do nothing until they
  // have learned of the error. The receivers rotate with the operations, so the two have every role.
  constexpr int kRanks = 6;
  for (int which = 0; which < 9; ++which) {
    const int earlier = which / 3, other = 1 + 2 * (which % 3);
    const int wrong = which % 2 == 0 ? 0 : other, about = which % 2 == 0 ? other : 0;
    std::barrier facts(kRanks);
    on_hosts(
        "a,b,a,b,a,b", kRanks,
        [&](Communicator& comm) {
          const auto exchange = [&](int64_t more) {
            std::vector<int64_t> counts(kRanks, 5000), expected(kRanks, 5000);
            if (comm.rank() == wrong) expected[static_cast<size_t>(about)] += more;
            std::vector<int64_t> send(kRanks * 5000, 7), recv(static_cast<size_t>(kRanks * 5000 + more), 7);
            alltoallv<int64_t>(comm, send, counts, recv, expected);
            CHECK(recv == std::vector<int64_t>(recv.size(), 7));
          };
          for (int i = 0; i < earlier; ++i) comm.barrier();
          exchange(0);
          const bool concerned = comm.rank() == wrong || comm.rank() == about;
          if (concerned) CHECK_THROWS(Code::mismatch, "which expects 5001", exchange(1));
          if (!concerned) exchange(0);
          facts.arrive_and_wait();
          exchange(0);
        },
        20);
  }
}

TEST("a rank that is late repeats what the others say they repeat") {
  on_hosts("a,b,a,b", 4, [](Communicator& comm) {
    uint64_t least = 1000;
    // A busy machine makes other ranks late as well, so one try of several has to be right.
    for (int time = 0; time < 3 || (time < 20 && least > 8 + 2); ++time) {
      equal_exchange(comm, 5000);
      equal_exchange(comm, 5000);
      comm.barrier();
      least = std::min(least, messages(comm, [&] {
                         if (comm.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(400));
                         equal_exchange(comm, 5000);
                       }));
    }
    CHECK_EQ(least, uint64_t{8 + 2});  // 8 with bytes, and what the two of the other host say when rank 1 does not come
    comm.close();
  });
}

TEST("a wrong count of long segments: both say so, neither is written, the next exchange is right") {
  on_hosts(3, [](Communicator& comm) {
    constexpr int64_t kLong = 20'000;
    std::vector<int64_t> counts(3, kLong), expected(3, kLong), send(3 * kLong, comm.rank()), recv(3 * kLong + 1, -1);
    if (comm.rank() == 2) expected[1] += 1;
    const auto call = [&] { alltoallv<int64_t>(comm, send, counts, recv, expected); };
    const std::string text = "alltoallv #1: rank 1 sends 20000 elements to rank 2, which expects 20001";
    if (comm.rank() == 0) call();
    if (comm.rank() != 0) CHECK_THROWS(Code::mismatch, text, call());
    if (comm.rank() == 2) CHECK(std::count(recv.begin() + kLong, recv.begin() + 2 * kLong + 1, -1) == kLong + 1);
    equal_exchange(comm, 20'000);
  });
}

TEST("what was agreed on is repeated without a word, also with hosts of one rank, and is found out to be wrong") {
  const auto body = [](Communicator& comm) {
    const Rank me = comm.rank();
    constexpr size_t kLong = 20'000;
    // Every rank sends every other `base` elements, but rank 1 sends rank 2 `more` more, and rank 2 expects `expected`
    // more.
    const auto exchange = [&](size_t base, size_t more, size_t expected) {
      std::vector<int64_t> counts(4, static_cast<int64_t>(base)), from(4, static_cast<int64_t>(base));
      if (me == 1) counts[2] += static_cast<int64_t>(more);
      if (me == 2) from[1] += static_cast<int64_t>(expected);
      std::vector<int64_t> send, recv(4 * base + expected, -1);
      for (Rank to = 0; to < 4; ++to) {
        for (int64_t i = 0; i < counts[static_cast<size_t>(to)]; ++i) send.push_back(me * 1'000'000 + to * 100'000 + i);
      }
      alltoallv<int64_t>(comm, send, counts, recv, from);
      const int64_t* at = recv.data();
      for (Rank source = 0; source < 4; ++source) {
        for (int64_t i = 0; i < from[static_cast<size_t>(source)]; ++i) {
          if (*at++ != source * 1'000'000 + me * 100'000 + i) return CHECK(!"wrong element"), void();
        }
      }
    };
    for (const size_t base : {kLong, size_t{1}, kLong, size_t{3000}}) {
      for (int round = 0; round < 3; ++round) exchange(base, 0, 0);
      for (const auto& [more, expected] : {std::pair{7, 0}, {0, 7}, {5, 9}, {0, 0}, {4, 4}, {4, 4}, {4, 0}}) {
        const bool concerned = more != expected && (me == 1 || me == 2);
        const auto call = [&] { exchange(base, static_cast<size_t>(more), static_cast<size_t>(expected)); };
        if (concerned) CHECK_THROWS(Code::mismatch, "to rank 2, which expects", call());
        if (!concerned) call();
      }
    }
    // A rank that is refused, beside others that repeat.
    for (int round = 0; round < 3; ++round) {
      exchange(kLong, 0, 0);
      const auto refused = [&] {
        std::vector<int64_t> few(3);
        const std::vector<int64_t> counts(4, kLong);
        alltoallv<int64_t>(comm, few, counts, few, counts);
      };
      const auto repeat = [&] { exchange(kLong, 0, 0); };
      if (me == 3) CHECK_THROWS(Code::invalid_argument, "send", refused());
      if (me != 3) CHECK_THROWS(Code::mismatch, "rank 3 does not take part", repeat());
    }
    exchange(kLong, 0, 0);
    comm.close();
  };
  on_hosts(4, body, 10);
}

TEST("who repeats and hears late that the other one does not takes no bytes of a later operation for the answer") {
  on_hosts("a,b", 2, [](Communicator& comm) {
    using std::chrono::milliseconds;
    constexpr int64_t kLong = 20'000;
    const auto exchange = [&](int64_t value, int64_t too_many) {
      const std::vector<int64_t> counts(2, kLong), expected{kLong + too_many, kLong}, send(2 * kLong, value);
      std::vector<int64_t> recv(2 * kLong + 1, -1);
      alltoallv<int64_t>(comm, send, counts, recv, expected);
      CHECK(std::count(recv.begin(), recv.end(), value) == 2 * kLong);
    };
    exchange(1, 0);
    exchange(2, 0);
    if (comm.rank() == 0) {
      std::this_thread::sleep_for(milliseconds(50));
      hosts_test::deaf = 0;
      CHECK_THROWS(Code::mismatch, "which expects 20001", exchange(3, 0));
      exchange(4, 0);
    } else {
      std::this_thread::sleep_for(milliseconds(400));  // rank 0 announces its repeated exchange meanwhile
      CHECK_THROWS(Code::mismatch, "which expects 20001", exchange(3, 1));
      const std::jthread later([] {
        std::this_thread::sleep_for(milliseconds(200));
        hosts_test::deaf = -1;
      });
      exchange(4, 0);
    }
    exchange(5, 0);
    comm.close();
  });
}

// Whether `call` completes rather than being aborted.
template <class Call>
static bool completes(const Call& call) {
  try {
    call();
    return true;
  } catch (const a2a::Error& error) {
    CHECK_EQ(error.code(), Code::aborted);
    return false;
  }
}

TEST("nobody takes what a rank that has given up writes to memory that is still on its way") {
  using std::chrono::milliseconds;
  constexpr int64_t kLong = 20'000;
  for (const auto late : {milliseconds(1), milliseconds(30), milliseconds(60), milliseconds(300)}) {
    const bool tcp = check::option("network", "") == "tcp";
    const bool deaf = late < milliseconds(100) && !tcp;
    hosts_test::clings = true;
    std::barrier together(2);
    const auto body = [&](Communicator& comm) {
      const Rank me = comm.rank();
      const std::vector<int64_t> counts(2, kLong);
      std::vector<int64_t> send(2 * kLong, me), recv(2 * kLong, -1);
      const auto begin = [&] {
        const void* from = send.data();
        void* to = recv.data();
        const Plan plan = Plan::alltoallv(me, 2, 8, {counts, {}}, send.size(), {counts, {}}, recv.size());
        return comm.start(plan, {&from, 1}, {&to, 1}, {});
      };
      begin()->wait();
      const auto since = Deadline::Clock::now();
      begin()->wait();
      together.arrive_and_wait();
      if (deaf) hosts_test::deaf = 1;
      if (me == 0) {
        (void)begin();
        comm.abort("enough");
        std::ranges::fill(send, 99);
      } else {
        std::this_thread::sleep_for(late);
        const auto exchange = [&] { begin()->wait(); };
        if (deaf) exchange();
        if (!deaf && !tcp) CHECK_THROWS(Code::aborted, "enough", exchange());
        // TCP may have had room for everything before the abort.
        if (tcp && completes(exchange)) CHECK_EQ(std::count(recv.begin(), recv.end(), 0), kLong);
        const bool in_time = Deadline::Clock::now() - since < milliseconds(100);  // it asks otherwise, and is deaf
        if (deaf && in_time) CHECK_EQ(std::count(recv.begin(), recv.end(), 0), kLong);
      }
      together.arrive_and_wait();
    };
    on_hosts("a,b", 2, body, 10);
    hosts_test::deaf = -1;
    hosts_test::clings = false;
  }
}

TEST("operations that begin while earlier ones wait for their turn") {
  on_hosts("a,a,b,b", 4, [](Communicator& comm) {
    struct Exchange {
      std::vector<int64_t> send, recv;
      std::shared_ptr<Work> work;
    };
    std::deque<Exchange> flying;
    const auto finish_first = [&] {
      flying.front().work->wait();
      CHECK(flying.front().recv == flying.front().send);  // all ranks send the same
      flying.pop_front();
    };
    for (int64_t i = 0; i < 300; ++i) {
      const size_t elems = i % 7 == 0 ? 700 : i % 11 < 3 ? 5000 : i % 11 == 3 ? 2000 : 1;
      auto& [send, recv, work] = flying.emplace_back(
          Exchange{std::vector<int64_t>(4 * elems, i), std::vector<int64_t>(4 * elems, -1), nullptr});
      const std::vector<int64_t> counts(4, static_cast<int64_t>(elems));
      Call call;
      call.op = Op::alltoallv;
      const void* from = send.data();
      void* to = recv.data();
      const Plan plan = Plan::alltoallv(comm.rank(), 4, 8, {counts, {}}, send.size(), {counts, {}}, recv.size());
      work = comm.start(plan, {&from, 1}, {&to, 1}, call);
      while (flying.size() > static_cast<size_t>(i / 3 % 5)) finish_first();
    }
    while (!flying.empty()) finish_first();
  });
}

TEST("long segments for more peers than are served at a time") {
  constexpr int kRanks = 20;  // each on a host of its own; eight are served at a time
  const auto body = [](Communicator& comm) {
    for (int i = 0; i < 3; ++i) equal_exchange(comm, 5000);
  };
  on_hosts(in_turn(kRanks, kRanks), kRanks, body, 20);
}

TEST("a rank's own part that waits for what the network moves") {
  on_hosts(3, [](Communicator& comm) {
    for (int i = 0; i < 3; ++i) equal_exchange(comm, 300'000);  // 2.4 MB
    equal_exchange(comm, 10);
  });
}

TEST("reductions, several at once, whatever overtakes what") {
  for (const char* where : {"0,1,0,1", "0,0,1,2,1", "0,1,2"}) {
    const auto n = static_cast<int>(std::string_view(where).size() / 2 + 1);
    on_hosts(where, n, [n](Communicator& comm) {
      for (int round = 0; round < kReductions; ++round) {
        std::vector<std::vector<int64_t>> tensors;
        std::vector<std::shared_ptr<Work>> works;
        for (const size_t elems : {size_t{1} + static_cast<size_t>(round % 7), size_t{40'000}, size_t{3000}}) {
          auto& tensor = tensors.emplace_back(elems);
          std::iota(tensor.begin(), tensor.end(), comm.rank());
          works.push_back(allreduce(comm, tensor));
        }
        equal_exchange(comm, round % 2 == 0 ? 10 : 3000);
        for (size_t i = works.size(); i-- > 0;) {
          works[i]->wait();
          for (size_t at = 0; at < tensors[i].size(); ++at) {
            const int64_t sum = n * static_cast<int64_t>(at) + n * (n - 1) / 2;
            if (tensors[i][at] != sum) return void(CHECK_EQ(tensors[i][at], sum));
          }
        }
      }
    });
  }
}

TEST("an operation on a device passes while one waits for its turn, and others follow") {
  for (const bool reduces : {true, false}) {
    transports(4, [reduces](Rank, Transport& transport) {
      constexpr size_t kMany = 120'000;
      struct Buffers {
        std::vector<std::byte> memory = std::vector<std::byte>(4 * kMany), output = memory;
      };
      Buffers buffers[3];  // operations in flight at the same time have memory of their own
      const auto start = [&](uint64_t number, Op op, Fold fold, size_t bytes) {
        auto& [memory, output] = buffers[number / 2];
        Batch batch;
        batch.signature = {op, Memory::host, DType{0, 64, 1}, number, 0, fold};
        batch.deadline = Deadline::after_seconds(20);
        for (Rank p = 0; p < 4; ++p) {
          const size_t part = static_cast<size_t>(p) * bytes;
          batch.sends.push_back({p, memory.data() + (op == Op::allgather ? 0 : part), bytes});
          batch.recvs.push_back({p, output.data() + (fold == Fold::none ? part : 0), bytes});
        }
        return transport.start(std::move(batch));
      };
      const auto turns =
          reduces ? start(1, Op::reduce_scatter, Fold::sum, kMany) : start(1, Op::allgather, Fold::none, kMany);
      CHECK(!transport.pass(on_device(2)));
      const auto few = start(3, Op::alltoall, Fold::none, 8);
      CHECK(!transport.pass(on_device(4)));
      turns->wait();
      few->wait();
      start(5, Op::alltoall, Fold::none, 8)->wait();
    });
  }
}

TEST("groups of one host and of several") {
  on_hosts("x,x,y,y", 4, [](Communicator& comm) {
    const auto same = comm.split(comm.rank() / 2, 0), across = comm.split(comm.rank() % 2, -comm.rank());
    CHECK_EQ(same->host_facts().hosts, 1);
    CHECK_EQ(across->host_facts().hosts, 2);
    equal_exchange(*same, 100);
    equal_exchange(*across, 10'000);
    const auto three = comm.group(std::vector<Rank>{3, 0, 2});
    CHECK_EQ(three == nullptr, comm.rank() == 1);
    if (three != nullptr) equal_exchange(*three, 700);
    if (three != nullptr) three->close();
    same->close(), across->close(), comm.close();
  });
}

TEST("a message to oneself, and one to another") {
  const hosts_test::MeetingPlace place(2);
  const auto done = thread_bootstraps(2);
  check::threads(2, [&](int rank) {
    const auto meeting = place.join(rank);  // a rank that leaves it is lost to ranks that still connect
    const auto network = meeting->network(Deadline::after_seconds(60));
    const std::string to_itself = hosts::message({5, hosts::MessageKind::text, 0, rank, 1}, "to itself");
    network->post(rank, to_itself);
    const auto message = network->take(5);
    CHECK(message && message->from == rank && message->bytes == to_itself);
    network->post(1 - rank, hosts::message({6, hosts::MessageKind::text, 0, rank, 1}, "to the other"));
    std::optional<hosts::Message> other;
    const auto until = Deadline::after_seconds(20);
    // This rank's message may not be sent yet when the other's arrives, and only calls of the network advance it.
    while (!until.passed() && !(other && network->flushed())) {
      if (auto next = network->take(6)) other = std::move(next);
    }
    CHECK(other && other->from == 1 - rank);
    done[static_cast<size_t>(rank)]->allgather("", Deadline::after_seconds(60));
    CHECK(!network->lost(1 - rank) && network->flushed());
  });
}

TEST("what is impossible between hosts, and settings that make no sense") {
  on_hosts(2, [](Communicator& comm) {
    if (check::option("network", "") != "tcp") {
      CHECK_THROWS(Code::unsupported, "does not go on after the death of a rank", comm.shrink());
    }
    comm.barrier();
  });
  const auto refused = [](const char* setting, const char* value, const char* why) {
    const Setting wrong(setting, value);
    const hosts_test::MeetingPlace place(2);
    check::threads(2, [&](int rank) { CHECK_THROWS(Code::invalid_argument, why, transport_of(rank, 2, place)); });
  };
  refused("A2A_HOSTS", "0,1,1", "names the hosts of 3 ranks, there are 2");
  refused("A2A_HOSTS", "0,", "has an empty name");
  refused("A2A_AGGREGATE_MAX", "many", "=many in the environment is not a number of bytes from 0 to 268435456");
}

TEST("ranks that compare an operation all hear of a disagreement of two") {
  transports(4, [](Rank rank, Transport& transport) {
    compare(transport, rank, 4, 1)->wait();
    CHECK_THROWS(Code::mismatch, "rank 1 sends 8 elements to rank 0, which expects 16",
                 compare(transport, rank, 4, 2, true)->wait());
    compare(transport, rank, 4, 3)->wait();
    CHECK(!transport.broken());
  });
}

TEST("who passes an operation learns that others compare it, and they that it agrees") {
  transports(3, [](Rank rank, Transport& transport) {
    if (rank == 1) {
      CHECK(!transport.pass(on_device(1)));
    } else {
      const auto work = compare(transport, rank, 3, 1);
      while (!work->done()) std::this_thread::yield();
      work->wait();
    }
    if (rank == 1) {
      // Only a later message contradicts it; the others go on once it is answered.
      const auto until = Deadline::after_seconds(1);
      while (!until.passed()) CHECK(!transport.contradiction(on_device(1)));
    }
  });
}

TEST("who passes an operation is found out by ranks that tell and by ranks that relay") {
  for (const bool both : {true, false}) {
    transports(4, [both](Rank rank, Transport& transport) {
      const auto until = Deadline::after_seconds(20);
      std::optional<Error> error;
      if (rank % 2 == 1) {
        error = transport.pass(on_device(1));
        while (!error && !until.passed()) error = transport.contradiction(on_device(1));
        CHECK(error && error->code() == Code::mismatch);
        const auto longer = Deadline::after_seconds(1);  // others may still ask
        while (!longer.passed()) transport.contradiction(on_device(1));
        return;
      }
      std::vector<std::byte> memory(32'768);
      const size_t bytes = both || rank == 0 ? 8192 : 8;
      Batch batch;
      batch.signature = {Op::alltoallv, Memory::host, DType{}, 1, 0};
      batch.deadline = until;
      for (const Rank p : {1, 3}) {
        batch.sends.push_back({p, memory.data(), bytes});
        batch.recvs.push_back({p, memory.data() + 16'384, bytes});
      }
      const auto work = transport.start(std::move(batch));
      CHECK_THROWS(Code::mismatch, "runs it on a device without comparing", work->wait());
    });
  }
}

TEST("who passes what others repeat keeps none of them") {
  transports(4, [](Rank rank, Transport& transport) {
    constexpr size_t kBytes = 20'000;
    std::vector<std::byte> memory(8 * kBytes);
    const auto exchange = [&](uint64_t number) {
      Batch batch;
      batch.signature = {Op::alltoallv, Memory::host, DType{}, number, 0};
      batch.deadline = Deadline::after_seconds(20);
      for (Rank p = 0; p < 4; ++p) {
        batch.sends.push_back({p, memory.data() + static_cast<size_t>(p) * kBytes, kBytes});
        batch.recvs.push_back({p, memory.data() + static_cast<size_t>(4 + p) * kBytes, kBytes});
      }
      return transport.start(std::move(batch));
    };
    exchange(1)->wait();
    exchange(2)->wait();
    if (rank != 1) {
      CHECK_THROWS(Code::mismatch, "runs it on a device without comparing", exchange(3)->wait());
      return;
    }
    const auto until = Deadline::after_seconds(20);
    std::optional<Error> error = transport.pass(on_device(3));
    while (!error && !until.passed()) error = transport.contradiction(on_device(3));
    CHECK(error && error->code() == Code::mismatch);
    const auto longer = Deadline::after_seconds(1);  // others may still ask
    while (!longer.passed()) transport.refusal(on_device(4));
  });
}

TEST("who passes an operation hears of a rank that has given up or left, on this host or another") {
  for (const Rank gone : {1, 2}) {  // rank 3 shares its host with the first of them
    for (const bool aborts : {true, false}) {
      std::barrier agreed(4);
      transports(4, [&](Rank rank, Transport& transport) {
        compare(transport, rank, 4, 1)->wait();
        agreed.arrive_and_wait();
        if (rank == gone) return aborts ? transport.abort("enough") : transport.leave(Left::dropped);
        if (rank != 3) return std::this_thread::sleep_for(std::chrono::milliseconds(500));
        std::this_thread::sleep_for(std::chrono::milliseconds(200));
        const auto error = transport.pass(on_device(2));
        const std::string name = "rank " + std::to_string(gone);
        CHECK(error && error->code() == (aborts ? Code::aborted : Code::peer_lost));
        if (error) {
          const std::string text = error->what();
          CHECK(text.find(aborts ? name + " aborted: enough" : "waits for a rank that has left") != std::string::npos);
          CHECK(text.find(name) != std::string::npos);
        }
        CHECK_EQ(transport.broken().has_value(), aborts);
      });
    }
  }
}

TEST("a refusal on another host is seen before an operation on a device, and after it") {
  transports(4, [](Rank rank, Transport& transport) {
    const auto seen = [&](auto&& look) {
      std::optional<Error> error;
      const auto until = Deadline::after_seconds(20);
      while (!error && !until.passed()) error = look();
      return error && error->code() == Code::mismatch &&
             std::string(error->what()).find("rank 3 does not take part, its arguments were refused there: no good") !=
                 std::string::npos;
    };
    if (rank == 3) {
      Batch batch;
      batch.signature = {Op::alltoallv, Memory::host, DType{}, 1, 0};
      batch.refusal = "no good";
      batch.deadline = Deadline::after_seconds(2);
      transport.start(std::move(batch));
    } else if (rank == 1) {  // of the same host
      CHECK(seen([&] { return transport.refusal(on_device(1)); }));
    }
  });
}
