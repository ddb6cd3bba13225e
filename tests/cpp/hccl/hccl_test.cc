// Exchanges of Ascend memory: HCCL's calls, and the comparison before them.
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <numeric>

#include "device_ranks.h"

namespace {

using namespace device_ranks;
using a2a::Memory;

// Returns how often each of the double's calls was logged.
std::map<std::string, int> calls_in(const std::string& log) {
  std::map<std::string, int> calls;
  std::ifstream file(log);
  for (std::string line; std::getline(file, line);) {
    const size_t at = line.find("call=") + 5;
    ++calls[line.substr(at, line.find(' ', at) - at)];
  }
  return calls;
}

// A random exchange that every rank draws alike: counts, and ranges in any order with gaps between them.
struct Case {
  int size;
  size_t unit;
  std::vector<int64_t> counts;  // [from * size + to]

  Case(check::Random& random, int size_) : size(size_), unit(size_t{1} << random.in(0, 4)) {
    for (int i = 0; i < size * size; ++i) counts.push_back(random.chance(0.3) ? 0 : random.in(int64_t{0}, int64_t{40}));
  }
  int64_t count(int from, int to) const { return counts[static_cast<size_t>(from * size + to)]; }
};

struct Side {
  std::vector<int64_t> counts, displs;
  size_t elems = 0;

  Side(std::vector<int64_t> counts_, check::Random& random) : counts(std::move(counts_)), displs(counts.size()) {
    std::vector<size_t> order(counts.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::shuffle(order.begin(), order.end(), random);
    for (const size_t peer : order) {
      elems += random.in(size_t{0}, size_t{3});
      displs[peer] = static_cast<int64_t>(elems);
      elems += static_cast<size_t>(counts[peer]);
    }
  }
};

void run_random(Communicator& comm, const Case& c, check::Random& own) {
  const int me = comm.rank();
  std::vector<int64_t> to, from;
  for (int peer = 0; peer < c.size; ++peer) to.push_back(c.count(me, peer)), from.push_back(c.count(peer, me));
  const Side out(to, own), in(from, own);
  Bytes sent(out.elems * c.unit, std::byte{0x11}), wanted(in.elems * c.unit, std::byte{0x5A});
  ascend::Memory send(sent.size()), recv(wanted.size());
  recv.upload(wanted);
  for (size_t peer = 0; peer < to.size(); ++peer) {
    const auto fill = [&](Bytes& bytes, const Side& side, int source, int target) {
      for (size_t i = 0; i < static_cast<size_t>(side.counts[peer]) * c.unit; ++i)
        bytes[static_cast<size_t>(side.displs[peer]) * c.unit + i] = value(source, target, i);
    };
    fill(sent, out, me, static_cast<int>(peer)), fill(wanted, in, static_cast<int>(peer), me);
  }
  send.upload(sent);
  start(comm,
        Plan::alltoallv(me, c.size, c.unit, {out.counts, out.displs}, out.elems, {in.counts, in.displs}, in.elems),
        send, recv, call_of(comm, Op::alltoallv, c.unit));
  CHECK(recv.download() == wanted);  // the gaps, too
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

TEST("random exchanges with gaps and ranges in any order leave every byte where it belongs") {
  for (const int n : {2, 3, 8}) {
    const check::Note note("ranks", static_cast<uint64_t>(n));
    everywhere(n, [](Communicator& comm) {
      check::Random all(check::seed()), own(check::seed() + 1 + static_cast<uint64_t>(comm.rank()));
      for (uint64_t round = 0; round < 30; ++round) {
        const check::Note in_round("round", round);
        run_random(comm, Case(all, comm.size()), own);
      }
      comm.close();
    });
  }
}

TEST("equal parts, allgather, lists and several segments per peer each have their call") {
  const auto log = std::filesystem::temp_directory_path() / ("a2a-hccl-" + std::to_string(getpid()));
  const auto body = [](Communicator& comm) {
    const int me = comm.rank(), n = comm.size();
    Bytes sent, wanted, gathered;
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
  };
  as_threads(3, body, {{"A2A_FAKE_LOG", log.string()}});
  auto calls = calls_in(log);
  CHECK_EQ(calls["HcclAlltoAll"], 3);
  CHECK_EQ(calls["HcclAllGather"], 3);
  CHECK_EQ(calls["HcclBatchSendRecv"], 3 + 2 * 3);  // one for the list, one for each expert
  CHECK_EQ(calls["HcclAlltoAllV"], 0);
  std::filesystem::remove(log);
  as_processes(3, body);
}

TEST("an allgather in place, and nothing at all") {
  everywhere(2, [](Communicator& comm) {
    const int me = comm.rank();
    ascend::Memory all(16);
    Bytes mine(16), wanted;
    for (size_t i = 0; i < 8; ++i) mine[static_cast<size_t>(me) * 8 + i] = value(me, 0, i);
    for (int peer = 0; peer < 2; ++peer) {
      for (size_t i = 0; i < 8; ++i) wanted.push_back(value(peer, 0, i));
    }
    all.upload(mine);
    const void* from = all.bytes() + me * 8;
    void* to = all.get();
    comm.start(Plan::allgather(me, 2, 8), {&from, 1}, {&to, 1}, call_of(comm, Op::allgather));
    CHECK(all.download() == wanted);

    ascend::Memory send(8), recv(8);
    const std::vector<int64_t> none(2, 0);
    for (const Op op : {Op::alltoallv, Op::alltoall}) {
      start(comm, Plan::alltoallv(me, 2, 4, {none, {}}, 2, {none, {}}, 2), send, recv, call_of(comm, op))->wait();
    }
    start(comm, Plan::allgather(me, 2, 0), send, recv, call_of(comm, Op::allgather))->wait();
    start(comm, Plan::global_gather(me, 2, 4, none, none), send, recv, call_of(comm, Op::global_gather))->wait();
    std::vector<int64_t> to_other(2), from_other(2);
    if (me == 0) to_other[1] = 2;
    if (me == 1) from_other[0] = 2;
    start(comm, Plan::alltoallv(me, 2, 4, {to_other, {}}, 2, {from_other, {}}, 2), send, recv,
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
    call.asynchronous = true;
    const auto work = start(comm, x.plan(), send, recv, call);
    work->order_before({ascend::stream});
    CHECK(recv.download() == x.wanted);  // download() waits for the caller's stream only
    CHECK(work->wait_until(Deadline::after_seconds(10)));
    call.asynchronous = false, call.stream = {};
    start(comm, x.plan(), send, recv, call)->wait();
    CHECK(recv.download() == x.wanted);
    comm.close();
  });
}

TEST("a thread that never chose a device may start operations and wait for them") {
  everywhere(2, [](Communicator& comm) {
    const Swap swap(comm);
    swap.start()->wait();
    Call call = call_of(comm, Op::allgather);
    call.stream = {};
    std::jthread([&] {
      check::guarded("thread",
                     [&] { start(comm, Plan::allgather(comm.rank(), 2, 8), swap.send, swap.recv, call)->wait(); });
    });
    comm.close();
  });
}

TEST("two communicators at once, with operations in another order on each rank") {
  // A comparison would need one order on all ranks, because each waits for all ranks.
  everywhere(3,
             [](Communicator& comm) {
               const auto first = comm.split(0, comm.rank()), second = comm.split(0, -comm.rank());
               first->connect(Memory::npu, comm.rank()), second->connect(Memory::npu, comm.rank());
               const Swap one(*first), other(*second);
               const auto on = [](const Swap& swap) {
                 Call call = call_of(swap.comm, Op::allgather);
                 call.device = ascend::device, call.asynchronous = true;
                 return start(swap.comm, Plan::allgather(swap.comm.rank(), 3, 8), swap.send, swap.recv, call);
               };
               for (int round = 0; round < 10; ++round) {
                 const bool swapped = (comm.rank() + round) % 2 == 0;
                 const auto early = on(swapped ? other : one), late = on(swapped ? one : other);
                 late->wait(), early->wait();
               }
               first->close(), second->close(), comm.close();
             },
             {{"A2A_CHECK", "off"}});
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
