// Operations on NVIDIA memory: NCCL's calls, graphs, and their failures. Runs on the double of tests/fakes, whose
// variables make it fail.
#include <chrono>
#include <optional>
#include <thread>

#define A2A_TEST_NVIDIA
#include "device_ranks.h"

namespace {

using namespace device_ranks;
using nvidia::Memory;

// Exchanges one element of 4 bytes from each rank to each; rank 0 sends `wrong` more to rank 1.
WorkPtr swap(Communicator& comm, const Memory& send, const Memory& recv, int64_t wrong = 0, double timeout = 30) {
  const auto n = static_cast<size_t>(comm.size());
  std::vector<int64_t> to(n, 1);
  const std::vector<int64_t> from(n, 1);
  if (comm.rank() == 0) to[1] += wrong;
  return start(comm, Plan::alltoallv(comm.rank(), comm.size(), 4, {to, {}}, 8, {from, {}}, 8), send, recv,
               call_of(comm, Op::alltoallv, 4, timeout));
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

TEST("equal parts, allgather, lists and several segments per peer, with and without NCCL's own call") {
  const auto body = [](Communicator& comm) {
    const int me = comm.rank(), n = comm.size();
    std::vector<std::byte> sent, wanted, gathered;
    for (int peer = 0; peer < n; ++peer) {
      for (size_t i = 0; i < 8; ++i) sent.push_back(value(me, peer, i)), wanted.push_back(value(peer, me, i));
      for (size_t i = 0; i < 8; ++i) gathered.push_back(value(peer, 0, i));
    }
    Memory send(24), recv(24);
    send.upload(sent);
    const std::vector<int64_t> two(3, 2);
    start(comm, Plan::alltoallv(me, n, 4, {two, {}}, 6, {two, {}}, 6), send, recv, call_of(comm, Op::alltoall));
    CHECK(recv.download() == wanted);
    start(comm, Plan::allgather(me, n, 8), send, recv, call_of(comm, Op::allgather));
    CHECK(recv.download() == gathered);

    // In place: this rank's part is already at its place in the output.
    const void* own = recv.bytes() + 8 * me;
    void* all = recv.get();
    comm.start(Plan::allgather(me, n, 8), {&own, 1}, {&all, 1}, call_of(comm, Op::allgather));
    CHECK(recv.download() == gathered);

    const std::vector<size_t> bytes(3, 8);
    const void* from[] = {send.bytes(), send.bytes() + 8, send.bytes() + 16};
    void* to[] = {recv.bytes() + 16, recv.bytes() + 8, recv.bytes()};
    comm.start(Plan::alltoall_list(me, n, bytes, bytes), from, to, call_of(comm, Op::alltoall_list));
    const auto list = recv.download();
    for (size_t i = 0; i < 8; ++i) CHECK(list[16 + i] == wanted[i] && list[i] == wanted[16 + i]);

    const std::vector<int64_t> ones(6, 1);  // two experts on each rank, a row of 4 bytes for each
    start(comm, Plan::global_scatter(me, n, 4, ones, ones), send, recv, call_of(comm, Op::global_scatter));
    const auto scattered = recv.download();
    for (int expert = 0; expert < 2; ++expert) {
      for (int peer = 0; peer < n; ++peer) {
        const auto at = static_cast<size_t>(expert * n + peer) * 4;
        CHECK(scattered[at] == value(peer, me, static_cast<size_t>(expert) * 4));
      }
    }
    comm.close();
  };
  everywhere(3, body);
#if !defined(__SANITIZE_THREAD__)
  const std::string old = std::string(std::getenv("A2A_FAKES")) + "/nccl-2.18/libnccl.so.2";
  everywhere(3, body, {{"A2A_NCCL_LIBRARY", old}});
#endif
}

TEST("nothing at all, and nothing on one side, are exchanges too") {
  everywhere(2, [](Communicator& comm) {
    Memory send(8), recv(8);
    const std::vector<int64_t> none(2, 0);
    const auto nothing = Plan::alltoallv(comm.rank(), 2, 4, {none, {}}, 2, {none, {}}, 2);
    start(comm, nothing, send, recv, call_of(comm, Op::alltoallv))->wait();
    start(comm, nothing, send, recv, call_of(comm, Op::alltoall))->wait();
    start(comm, Plan::allgather(comm.rank(), 2, 0), send, recv, call_of(comm, Op::allgather))->wait();
    std::vector<int64_t> to(2), from(2);
    if (comm.rank() == 0) to[1] = 2;
    if (comm.rank() == 1) from[0] = 2;
    const auto one_way = Plan::alltoallv(comm.rank(), 2, 4, {to, {}}, 2, {from, {}}, 2);
    start(comm, one_way, send, recv, call_of(comm, Op::alltoallv))->wait();
    comm.close();
  });
}

TEST("reductions that are not of elements, or in parts, are refused before any peer is involved") {
  everywhere(2, [](Communicator& comm) {
    Memory send(32), recv(32);
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

TEST("operations on streams: the caller's, the communicator's, the default one") {
  everywhere(2, [](Communicator& comm) {
    const Uneven x(comm, 4, 0);
    Memory send(x.sent.size()), recv(x.wanted.size());
    send.upload(x.sent);
    Call call = call_of(comm, Op::alltoallv);
    call.asynchronous = true;
    const auto work = start(comm, x.plan(), send, recv, call);
    work->order_before({nvidia::stream});
    CHECK(recv.download() == x.wanted);  // download() waits for the caller's stream only
    CHECK(work->done());
    call.asynchronous = false, call.stream = {};
    start(comm, x.plan(), send, recv, call)->wait();
    CHECK(recv.download() == x.wanted);
    comm.close();
  });
}

TEST("a planned exchange is captured into a graph and replayed") {
  everywhere(2, [](Communicator& comm) {
    const Uneven x(comm, 4, 1);
    Memory send(x.sent.size()), recv(x.wanted.size());
    send.upload(x.sent);
    Call call = call_of(comm, Op::alltoallv);
    call.plan = comm.next_plan();
    start(comm, x.plan(), send, recv, call)->wait();
    comm.barrier();  // while one thread captures, the other threads may not make calls that a capture forbids
    const nvidia::Graph graph([&] { CHECK(start(comm, x.plan(), send, recv, call)->done()); });
    comm.barrier();
    for (int i = 0; i < 5; ++i) {
      recv.upload(std::vector<std::byte>(x.wanted.size()));
      graph.launch();
      CHECK(recv.download() == x.wanted);
    }
    exchange(comm, 4, 2);
    comm.barrier();
    comm.close();
  });
}

TEST("nobody waits for the graphs that NCCL waits for when it gives up a communicator") {
  for (const bool aborts : {false, true}) {
    everywhere(2, [aborts](Communicator& comm) {
      const Uneven x(comm, 4, 1);
      Memory send(x.sent.size()), recv(x.wanted.size());
      send.upload(x.sent);
      Call call = call_of(comm, Op::alltoallv);
      call.plan = comm.next_plan();
      start(comm, x.plan(), send, recv, call)->wait();
      comm.barrier();
      std::optional<nvidia::Graph> graph;
      graph.emplace([&] { start(comm, x.plan(), send, recv, call); });
      comm.barrier();
      graph->launch();
      CHECK(recv.download() == x.wanted);
      comm.barrier();
      std::this_thread::sleep_for(std::chrono::milliseconds(200));  // the other rank has left the barrier, too
      const auto before = std::chrono::steady_clock::now();
      aborts ? comm.abort("enough") : comm.close();
      CHECK(seconds_since(before) < 5);
      graph.reset();
    });
  }
}

TEST("a stream of another device, and one whose capture is spoilt, are refused before NCCL is called") {
  everywhere(2, [](Communicator& comm) {
    const Swap swap(comm);
    exchange(comm, 4, 0);
    const nvidia::OtherDevice other(comm.rank() + 2);
    Call call = call_of(comm, Op::allgather);
    if (comm.rank() == 1) call.stream = {other.stream};
    const auto gather = [&] { start(comm, Plan::allgather(comm.rank(), 2, 8), swap.send, swap.recv, call); };
    CHECK_THROWS(comm.rank() == 1 ? Code::invalid_argument : Code::mismatch, "none of cuda:1's primary context",
                 gather());
    if (comm.rank() == 1) {
      CHECK_EQ(nvidia::Cuda::get().stream_destroy(other.stream), 0);
    }
    CHECK_THROWS(comm.rank() == 1 ? Code::invalid_argument : Code::mismatch, "the stream does not exist", gather());
    exchange(comm, 4, 1);
    comm.close();
  });
  everywhere(1, [](Communicator& comm) {
    const Swap swap(comm);
    swap.start()->wait();
    const nvidia::Cuda& cuda = nvidia::Cuda::get();
    constexpr int kThreadLocal = 1;
    CHECK_EQ(cuda.begin_capture(nvidia::stream, kThreadLocal), 0);
    CHECK(cuda.stream_synchronize(nvidia::stream) != 0);
    CHECK_THROWS(Code::invalid_argument, "capture was invalidated", swap.start());
    void* graph = nullptr;
    CHECK(cuda.end_capture(nvidia::stream, &graph) != 0);
    swap.start()->wait();
    comm.close();
  });
}

TEST("a communicator of the program's own: used, told from another rank's, and left to the program") {
  const auto body = [](Communicator& comm) {
    const nvidia::Nccl& nccl = nvidia::Nccl::get();
    void* const own = nccl.join(comm);
    {
      const auto wrong = comm.split(0, -comm.rank());  // the ranks in reverse order
      wrong->adopt(kMemory, own);
      const Swap swap(*wrong);
      CHECK_THROWS(Code::invalid_argument, "the ncclComm_t is that of rank", swap.start());
      comm.barrier();  // the other rank has its error, too
    }
    comm.adopt(kMemory, own);
    for (int i = 0; i < 3; ++i) exchange(comm, 4, i);
    comm.close();
    int size = 0;
    CHECK_EQ(nccl.comm_count(own, &size), 0);
    CHECK_EQ(size, 2);
    CHECK_EQ(nccl.comm_destroy(own), 0);
  };
  everywhere(2, body);
}

TEST("a deadline ends a call of NCCL that waits for a peer, also over a communicator of the program's") {
  for (const char* const version : {"22203", "23203"}) {  // without ncclCommRevoke, and with it
    for (const bool adopted : {false, true}) {
      everywhere(2,
                 [adopted](Communicator& comm) {
                   const nvidia::Nccl& nccl = nvidia::Nccl::get();
                   void* const own = adopted ? nccl.join(comm) : nullptr;
                   if (adopted) comm.adopt(kMemory, own);
                   comm.connect(kMemory, comm.rank());
                   const Swap swap(comm);
                   const auto before = std::chrono::steady_clock::now();
                   // Rank 1 does not come, and NCCL connects two ranks with their first message.
                   if (comm.rank() == 0) {
                     CHECK_THROWS(Code::timeout, "timeout on rank", swap.start(0, 0.5)->wait());
                     CHECK(seconds_since(before) < 1.9);
                   } else {
                     std::this_thread::sleep_for(std::chrono::seconds(2));
                   }
                   if (adopted) nccl.comm_abort(own);
                 },
                 {{"A2A_CHECK", "off"}, {"A2A_FAKE_NCCL_VERSION", version}});
    }
  }
}

TEST("a disagreement is an error on both ranks before anything is enqueued, and the next exchange is right") {
  everywhere(2, [](Communicator& comm) {
    Memory send(64), recv(64);
    CHECK_THROWS(Code::mismatch, "rank 0 sends 2 elements to rank 1, which expects 1", swap(comm, send, recv, 1));
    exchange(comm, 4, 0);
    if (comm.rank() == 0) {
      Call other = call_of(comm, Op::alltoallv);
      other.device = 5;
      CHECK_THROWS(Code::invalid_argument, "the tensors are on cuda:5, but this communicator uses cuda:0",
                   start(comm, Plan::allgather(0, 2, 8), send, recv, other));
    } else {
      CHECK_THROWS(Code::mismatch, "its arguments were refused there: the tensors are on cuda:5",
                   swap(comm, send, recv));
    }
    exchange(comm, 4, 1);
    comm.close();
  });
}

TEST("a mismatch that nobody compares is a timeout on every rank, and ends what NCCL would wait for") {
  everywhere(2, [](Communicator& comm) {
    reach_unchecked(comm);
    Memory send(64), recv(64);
    const auto before = std::chrono::steady_clock::now();
    try {
      swap(comm, send, recv, 1, 0.5)->wait();
      CHECK(false);
    } catch (const a2a::Error& error) {
      CHECK(error.code() == Code::timeout || error.code() == Code::aborted);
    }
    CHECK(std::chrono::steady_clock::now() - before < std::chrono::seconds(2));
    CHECK(comm.broken());
    recv.download();  // the stream is free again
    comm.close();
  });
}

TEST("NCCL's errors break the communicator on every rank, without a hang") {
  for (const char* const fault : {"A2A_FAKE_ASYNC_ERROR", "A2A_FAKE_REFUSE"}) {
    everywhere(2,
               [&](Communicator& comm) {
                 Memory send(64), recv(64);
                 bool failed = false;
                 for (int i = 0; i < 30 && !failed; ++i) {
                   try {
                     swap(comm, send, recv, 0, 5)->wait();
                   } catch (const a2a::Error& error) {
                     failed = true;
                     if (error.code() != Code::aborted && error.code() != Code::peer_lost) {
                       if (!CHECK(std::string(error.what()).find(fault) != std::string::npos))
                         check::fail(error.what());
                     }
                   }
                 }
                 CHECK(failed && comm.broken());
               },
               {{fault, "3@1"}});
  }
}

TEST("a rank that does not come to NCCL's meeting: the deadline ends it for all") {
  for (const char* const blocking : {"0", "1"}) {
    everywhere(
        3,
        [](Communicator& comm) {
          const auto begin = std::chrono::steady_clock::now();
          if (comm.rank() == 1) {
            pretend_to_connect(comm, "NCCL 2.32.3, check=first");
            CHECK_THROWS(Code::timeout, "timed out", comm.barrier(Deadline::after_seconds(30)));
          } else {
            const auto error = failure_of([&] { comm.connect(kMemory, comm.rank(), Deadline::after_seconds(1)); });
            CHECK(says(error, Code::timeout, {"connecting the ranks for cuda memory: ", "timed out; peers: rank "}));
          }
          CHECK(seconds_since(begin) < 3);
          CHECK(comm.broken());
        },
        {{"NCCL_COMM_BLOCKING", blocking}, {"A2A_FAKE_CONNECT_TIMEOUT", "5"}});
  }
}

TEST("communicators that NCCL was told not to let block") {
  everywhere(3,
             [](Communicator& comm) {
               for (int i = 0; i < 20; ++i) exchange(comm, 4, i);
               const auto half = comm.split(comm.rank() == 2 ? -1 : 0, 0);
               if (half != nullptr) exchange(*half, 8, 0), half->close();
               comm.close();
             },
             {{"NCCL_COMM_BLOCKING", "0"}});
}

TEST("ranks without the library say so on every rank") {
#if !defined(__SANITIZE_THREAD__)
  ranks::as_processes(2, [](Communicator& comm) {
    nvidia::use_device(comm.rank());
    if (comm.rank() == 1) setenv("A2A_NCCL_LIBRARY", "/nowhere/libnccl.so.2", 1);
    Memory send(64), recv(64);
    CHECK_THROWS(Code::unsupported, comm.rank() == 1 ? "cannot find NCCL" : "rank 1: cannot find NCCL",
                 swap(comm, send, recv));
    comm.barrier();
    comm.close();
  });
#endif
}

TEST("versions: from 2.18 on, and the same on all ranks") {
  const auto works = [](Communicator& comm) {
    exchange(comm, 4, 0);
    comm.close();
  };
  const auto refused = [](const char* reason, Code code) {
    return [=](Communicator& comm) {
      const Swap swap(comm);
      CHECK_THROWS(code, reason, swap.start());
      comm.close();
    };
  };
  for (const char* const version : {"21800", "22203", "22705", "23003", "23203"}) {
    as_processes(2, works, {{"A2A_FAKE_NCCL_VERSION", version}});
  }
  as_processes(2, refused("is version 2.17.6, and 2.18 is the oldest", Code::unsupported),
               {{"A2A_FAKE_NCCL_VERSION", "21706"}});
  as_processes(2, [&](Communicator& comm) {
    setenv("A2A_FAKE_NCCL_VERSION", comm.rank() == 1 ? "22907" : "23003", 1);
    refused("rank 0 has NCCL 2.30.3, check=first, rank 1 has NCCL 2.29.7", Code::mismatch)(comm);
  });
}

TEST("split groups, each with a communicator of its own") {
  everywhere(4, [](Communicator& comm) {
    exchange(comm, 4, 0);
    const auto half = comm.split(comm.rank() % 2, 0);
    const Uneven x(*half, 4, 1);
    Memory send(x.sent.size()), recv(x.wanted.size());
    send.upload(x.sent);
    for (int i = 0; i < 3; ++i) {
      Call call = call_of(*half, Op::alltoallv);
      call.device = comm.rank();
      start(*half, x.plan(), send, recv, call);
      CHECK(recv.download() == x.wanted);
      exchange(comm, 4, i);
    }
    half->close();
    comm.close();
  });
}

TEST("a rank that dies is a lost peer to the others") {
#if !defined(__SANITIZE_THREAD__)
  auto processes = ranks::start_processes(3, [](Communicator& comm) {
    nvidia::use_device(comm.rank());
    reach_unchecked(comm);
    comm.barrier();  // no rank is still in one of those
    if (comm.rank() == 2) raise(SIGKILL);
    Memory send(64), recv(64);
    const auto before = std::chrono::steady_clock::now();
    try {
      swap(comm, send, recv)->wait();
      CHECK(false);
    } catch (const a2a::Error& error) {
      CHECK(error.code() == Code::peer_lost && std::string(error.what()).find("rank 2") != std::string::npos);
    }
    CHECK(std::chrono::steady_clock::now() - before < std::chrono::seconds(2));
  });
  const auto statuses = processes.wait();
  CHECK_EQ(statuses[0], 0);
  CHECK_EQ(statuses[1], 0);
#endif
}
