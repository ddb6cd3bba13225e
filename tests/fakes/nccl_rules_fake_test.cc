// The NCCL double enforces the documented rules, and fails as the environment asks it to.
#include "nccl_ranks.h"

using isolated::contains;
using nvidia::Array;
using nvidia::Rank;

namespace {

bool said(const std::string& part) { return contains(ncclGetLastError(nullptr), part); }

// An exchange of equal parts with all ranks.
struct Call {
  explicit Call(Rank& of)
      : rank(of), from(static_cast<size_t>(4 * of.size), of.rank), to(static_cast<size_t>(4 * of.size), -1) {}
  ncclResult_t operator()(size_t sent = 4, size_t received = 4) {
    ncclGroupStart();
    for (int peer = 0; peer < rank.size; ++peer) {
      const auto at = static_cast<size_t>(4 * peer);
      const size_t bytes = peer == rank.rank ? 4 : received;
      ncclSend(from.at(at), peer == rank.rank ? 4 : sent, ncclInt32, peer, rank.comm, *rank.stream);
      ncclRecv(to.at(at), bytes, ncclInt32, peer, rank.comm, *rank.stream);
    }
    return ncclGroupEnd();
  }
  void works() {
    CHECK_EQ((*this)(), ncclSuccess);
    CHECK_EQ(rank.synchronize(), CUDA_SUCCESS);
    CHECK_EQ(to.values().back(), rank.size - 1);
  }
  Rank& rank;
  Array<int> from, to;
};

bool stuck(const Rank& rank) {
  usleep(200000);
  return cuStreamQuery(*rank.stream) == CUDA_ERROR_NOT_READY;
}

}  // namespace

TEST("arguments") {
  nvidia::as_threads(1, [](Rank& rank) {
    Call call(rank);
    const auto send = [&](const void* from, size_t count, int type, int peer, ncclComm_t comm) {
      return ncclSend(from, count, static_cast<ncclDataType_t>(type), peer, comm, *rank.stream);
    };
    CHECK_EQ(send(call.from.at(), 4, 2, 1, rank.comm), ncclInvalidArgument);
    CHECK(said("Send : invalid root 1 (root should be in the 0..0 range)"));
    CHECK_EQ(send(call.from.at(), 4, 2, -1, rank.comm), ncclInvalidArgument);
    CHECK_EQ(send(call.from.at(), 4, 12, 0, rank.comm), ncclInvalidArgument);
    CHECK(said("Send : invalid type 12"));
    CHECK_EQ(send(call.from.at(), 4, 2, 0, nullptr), ncclInvalidArgument);
    CHECK_EQ(send(&call, 4, 2, 0, rank.comm), ncclInvalidArgument);  // host memory
    CHECK_EQ(send(call.from.at(), 5, 2, 0, rank.comm), ncclInvalidArgument);
    CHECK(said("leaves its allocation"));
    CHECK_EQ(send(call.from.at(), 4, 2, 0, rank.comm), ncclInvalidUsage);
    CHECK(said("Trying to send to self without a matching recv"));
    CHECK_EQ(ncclRecv(call.to.at(), 4, ncclInt32, 0, rank.comm, *rank.stream), ncclInvalidUsage);
    CHECK(said("Trying to recv to self without a matching send"));
    CHECK_EQ(ncclGroupEnd(), ncclInvalidUsage);
    CHECK(said("ncclGroupEnd: not in a group call."));
    // The error of a call is the error of its group, in which nothing happens then.
    CHECK_EQ(ncclGroupStart(), ncclSuccess);
    CHECK_EQ(send(call.from.at(), 4, 12, 0, rank.comm), ncclInvalidArgument);
    CHECK_EQ(send(call.from.at(), 4, 2, 0, rank.comm), ncclSuccess);
    CHECK_EQ(ncclGroupEnd(), ncclInvalidArgument);
    CHECK(said("invalid type 12"));
    call.works();
  });
}

TEST("buffers of a group do not overlap") {
  nvidia::as_threads(1, [](Rank& rank) {
    const Array<int> a(8, 1), b(8, 2);
    const auto group = [&](std::vector<const int*> sends, std::vector<int*> recvs) {
      CHECK_EQ(ncclGroupStart(), ncclSuccess);
      for (const int* at : sends) CHECK_EQ(ncclSend(at, 4, ncclInt32, 0, rank.comm, *rank.stream), ncclSuccess);
      for (int* at : recvs) CHECK_EQ(ncclRecv(at, 4, ncclInt32, 0, rank.comm, *rank.stream), ncclSuccess);
      return ncclGroupEnd();
    };
    CHECK_EQ(group({a.at()}, {a.at(3)}), ncclInvalidArgument);
    CHECK_EQ(group({a.at(), a.at(4)}, {b.at(), b.at(1)}), ncclInvalidArgument);
    CHECK_EQ(group({a.at(), a.at()}, {b.at(), b.at(4)}), ncclSuccess);
    CHECK_EQ(group({a.at()}, {a.at()}), ncclSuccess);  // one address: nothing to do
    CHECK_EQ(ncclAlltoAll(a.at(), a.at(), 4, ncclInt32, rank.comm, *rank.stream), ncclSuccess);
    CHECK_EQ(rank.synchronize(), CUDA_SUCCESS);
    CHECK_EQ(b.values(), std::vector<int>(8, 1));
  });
}

TEST("reductions: their operations and types, and outputs that overlap") {
  nvidia::as_threads(1, [](Rank& rank) {
    const Array<int> a(8, 1), b(8, 2);
    const auto reduce = [&](const int* from, int* to, ncclDataType_t type, ncclRedOp_t op, int root = 0) {
      return ncclReduce(from, to, 4, type, op, root, rank.comm, *rank.stream);
    };
    CHECK_EQ(reduce(a.at(), b.at(), ncclInt32, ncclNumOps), ncclInvalidArgument);
    CHECK_EQ(reduce(a.at(), b.at(), ncclInt32, ncclSum, 1), ncclInvalidArgument);
    CHECK_EQ(reduce(a.at(), a.at(1), ncclInt32, ncclSum), ncclInvalidArgument);
    CHECK_EQ(reduce(a.at(), nullptr, ncclInt32, ncclSum), ncclInvalidArgument);
    CHECK_EQ(reduce(a.at(), a.at(), ncclInt32, ncclSum), ncclSuccess);
    CHECK_EQ(reduce(a.at(), b.at(), ncclFloat8e4m3, ncclSum), ncclSuccess);
    setenv("A2A_FAKE_CAPABILITY", "8", 1);
    CHECK_EQ(reduce(a.at(), b.at(), ncclFloat8e4m3, ncclSum), ncclInvalidArgument);
    CHECK(contains(ncclGetLastError(rank.comm), "FP8 reduction support begins with sm90"));
    unsetenv("A2A_FAKE_CAPABILITY");
    setenv("A2A_FAKE_NCCL_VERSION", "22305", 1);
    CHECK_EQ(reduce(a.at(), b.at(), ncclFloat8e4m3, ncclSum), ncclInvalidArgument);
    unsetenv("A2A_FAKE_NCCL_VERSION");
    CHECK_EQ(rank.synchronize(), CUDA_SUCCESS);
  });
}

TEST("the communicator's device has to be current") {
  nvidia::as_threads(1, [](Rank& rank) {
    Call call(rank);
    std::thread([&] { CHECK_EQ(call(), ncclUnhandledCudaError); }).join();
    nvidia::start(1);
    const nvidia::Stream elsewhere;
    CHECK_EQ(call(), ncclInvalidUsage);
    CHECK(said("device 1 is current"));
    nvidia::start(0);
    CHECK_EQ(ncclAlltoAll(call.from.at(), call.to.at(), 1, ncclInt32, rank.comm, elsewhere), ncclInvalidUsage);
    call.works();
  });
}

TEST("configurations") {
  isolated::run([] {
    nvidia::start(0);
    const auto init = [](ncclConfig_t config) {
      ncclUniqueId id;
      ncclComm_t comm;
      CHECK_EQ(ncclGetUniqueId(&id), ncclSuccess);
      const ncclResult_t result = ncclCommInitRankConfig(&comm, 1, id, 0, &config);
      if (result == ncclInProgress) CHECK_EQ(nvidia::settled(comm), ncclSuccess);
      if (result == ncclSuccess || result == ncclInProgress) CHECK_EQ(ncclCommDestroy(comm), ncclSuccess);
      return result;
    };
    const auto changed = [](auto change) {
      ncclConfig_t config = nvidia::config(1);
      change(config);
      return config;
    };
    CHECK_EQ(init(nvidia::config(1)), ncclSuccess);
    CHECK_EQ(init(nvidia::config(0)), ncclInProgress);
    CHECK_EQ(init(nvidia::config(INT_MIN)), ncclSuccess);
    CHECK_EQ(init(nvidia::config(2)), ncclInvalidArgument);
    CHECK_EQ(init(changed([](ncclConfig_t& c) { c.magic = 0; })), ncclInvalidArgument);
    CHECK(said("ncclConfig_t argument not initialized via NCCL_CONFIG_INITIALIZER"));
    CHECK_EQ(init(changed([](ncclConfig_t& c) { c.minCTAs = 2; })), ncclInvalidArgument);
    CHECK(said("Invalid config min/max channels attribute value"));
    CHECK_EQ(init(changed([](ncclConfig_t& c) { c.minCTAs = c.maxCTAs = 2; })), ncclSuccess);
    // A later library's struct is cut, an earlier program's fields are not looked at.
    CHECK_EQ(init(changed([](ncclConfig_t& c) { c.size = 1000, c.version = 29999; })), ncclSuccess);
    CHECK_EQ(init(changed([](ncclConfig_t& c) { c.size = 24, c.minCTAs = 2; })), ncclSuccess);
    CHECK_EQ(init(changed([](ncclConfig_t& c) { c.version = 21600, c.minCTAs = 2; })), ncclSuccess);
    setenv("A2A_FAKE_NCCL_VERSION", "21600", 1);
    CHECK_EQ(init(nvidia::config(INT_MIN, 21600)), ncclInvalidArgument);  // has to be set there
    CHECK_EQ(init(nvidia::config(1, 23203)), ncclSuccess);
    unsetenv("A2A_FAKE_NCCL_VERSION");
  });
}

TEST("ranks that do not find each other") {
  isolated::run(
      [] {
        nvidia::start(0);
        ncclUniqueId id;
        ncclComm_t comm;
        CHECK_EQ(ncclGetUniqueId(&id), ncclSuccess);
        CHECK_EQ(ncclCommInitRank(&comm, 2, id, 2), ncclInvalidArgument);
        CHECK(said("Invalid rank requested : 2/2"));
        CHECK_EQ(ncclCommInitRank(&comm, 2, id, 0), ncclSystemError);
        id.internal[100] = static_cast<char>(id.internal[100] + 1);
        CHECK_EQ(ncclCommInitRank(&comm, 1, id, 0), ncclInvalidArgument);
      },
      {{"A2A_FAKE_CONNECT_TIMEOUT", "0.2"}});
}

TEST("one device, one rank") {
  const auto join = [](ncclResult_t expected, const char* text) {
    return [=](int rank, isolated::Board& board) {
      nvidia::start(3);
      ncclUniqueId id;
      ncclComm_t comm;
      board.share(rank, &id, sizeof id, [&] { CHECK_EQ(ncclGetUniqueId(&id), ncclSuccess); });
      CHECK_EQ(ncclCommInitRank(&comm, 2, id, rank), expected);
      CHECK(said(text));
      if (!expected) CHECK_EQ(ncclCommDestroy(comm), ncclSuccess);
    };
  };
  isolated::everywhere(2, join(ncclInvalidUsage, "Multiple Ranks are using the same GPU/Partition."));
  isolated::everywhere(2, join(ncclSuccess, ""), {{"NCCL_MULTI_RANK_GPU_ENABLE", "1"}});
  isolated::everywhere(2, join(ncclInvalidUsage, "Duplicate GPU detected : rank 0 and rank 1 both on CUDA device"),
                       {{"A2A_FAKE_NCCL_VERSION", "22907"}, {"NCCL_MULTI_RANK_GPU_ENABLE", "1"}});
  isolated::as_processes(2, [&](int rank, isolated::Board& board) {
    setenv("NCCL_HOSTID", std::to_string(rank).c_str(), 1);  // "different hosts"
    join(ncclSuccess, "")(rank, board);
  });
  isolated::as_processes(2, [](int rank, isolated::Board& board) {
    nvidia::start(rank);
    if (rank == 1) setenv("A2A_FAKE_NCCL_VERSION", "22907", 1);
    ncclUniqueId id;
    ncclComm_t comm;
    board.share(rank, &id, sizeof id, [&] { CHECK_EQ(ncclGetUniqueId(&id), ncclSuccess); });
    CHECK_EQ(ncclCommInitRank(&comm, 2, id, rank), ncclInvalidUsage);
    CHECK(said("Mismatched NCCL version detected"));
  });
}

TEST("a communicator that does not block is not used before it is ready") {
  const auto body = [](int rank, isolated::Board& board) {
    nvidia::start(rank);
    ncclUniqueId id;
    ncclComm_t comm;
    ncclConfig_t config = nvidia::config(0);
    board.share(rank, &id, sizeof id, [&] { CHECK_EQ(ncclGetUniqueId(&id), ncclSuccess); });
    const nvidia::Stream stream;
    const Array<int> from(2, rank), to(2, -1);
    CHECK_EQ(ncclCommInitRankConfig(&comm, 2, id, rank, &config), ncclInProgress);
    int count;
    CHECK_EQ(ncclCommCount(comm, &count), ncclInvalidArgument);
    CHECK(said("Attempt to use communicator before the previous operation returned ncclSuccess"));
    CHECK_EQ(nvidia::settled(comm), ncclSuccess);
    CHECK_EQ(ncclAlltoAll(from.at(), to.at(), 1, ncclInt32, comm, stream), ncclInProgress);
    CHECK_EQ(ncclCommCount(comm, &count), ncclInvalidArgument);
    CHECK_EQ(nvidia::settled(comm), ncclSuccess);
    CHECK_EQ(cuStreamSynchronize(stream), CUDA_SUCCESS);
    CHECK_EQ(to.values(), (std::vector{0, 1}));
    CHECK_EQ(ncclCommFinalize(comm), ncclInProgress);
    CHECK_EQ(nvidia::settled(comm), ncclSuccess);
    CHECK_EQ(ncclAlltoAll(from.at(), to.at(), 1, ncclInt32, comm, stream), ncclInvalidUsage);  // finalised
    CHECK_EQ(ncclCommDestroy(comm), ncclSuccess);
    CHECK_EQ(ncclCommDestroy(comm), ncclInvalidArgument);
  };
  isolated::everywhere(2, body, {{"A2A_FAKE_DELAY_US", "50000"}});
}

TEST("both kinds of communicators are not in one group, nor are making and using") {
  isolated::run([] {
    nvidia::start(0);
    ncclUniqueId id[3];
    ncclComm_t comms[3];
    ncclConfig_t config = nvidia::config(0);
    const Array<int> from(4, 1), to(4, -1);
    for (ncclUniqueId& one : id) CHECK_EQ(ncclGetUniqueId(&one), ncclSuccess);
    CHECK_EQ(ncclCommInitRank(&comms[0], 1, id[0], 0), ncclSuccess);
    CHECK_EQ(ncclCommInitRankConfig(&comms[1], 1, id[1], 0, &config), ncclInProgress);
    CHECK_EQ(nvidia::settled(comms[1]), ncclSuccess);
    CHECK_EQ(ncclGroupStart(), ncclSuccess);
    CHECK_EQ(ncclAlltoAll(from.at(), to.at(), 1, ncclInt32, comms[0], nullptr), ncclSuccess);
    CHECK_EQ(ncclAlltoAll(from.at(1), to.at(1), 1, ncclInt32, comms[1], nullptr), ncclSuccess);
    CHECK_EQ(ncclGroupEnd(), ncclInvalidArgument);
    CHECK(said("Blocking and nonblocking communicators are not allowed in the same group."));
    CHECK_EQ(ncclGroupStart(), ncclSuccess);
    CHECK_EQ(ncclAlltoAll(from.at(), to.at(), 1, ncclInt32, comms[0], nullptr), ncclSuccess);
    CHECK_EQ(ncclCommInitRank(&comms[2], 1, id[2], 0), ncclSuccess);
    CHECK_EQ(ncclGroupEnd(), ncclInvalidUsage);
  });
}

TEST("the first group waits for its peers; an abort ends the wait") {
  nvidia::everywhere(2, [](Rank& rank) {
    Call call(rank);
    if (rank.rank == 0) {
      std::thread watchdog([&, comm = rank.comm] {
        usleep(200000);
        CHECK_EQ(ncclCommAbort(comm), ncclSuccess);
      });
      CHECK_EQ(call(), ncclInternalError);  // rank 1 never calls
      watchdog.join();
      rank.comm = nullptr;
    }
    rank.meet();
    if (rank.rank == 1) {
      CHECK_EQ(call(), ncclSuccess);  // rank 0 had said that it is there
      CHECK_EQ(rank.async_error_soon(), ncclRemoteError);
      rank.abort();
    }
  });
}

TEST("counts that differ hang until the communicator is aborted") {
  nvidia::everywhere(2, [](Rank& rank) {
    Call call(rank);
    CHECK_EQ(call(rank.rank ? 3 : 4, 4), ncclSuccess);
    CHECK(stuck(rank));
    CHECK_EQ(rank.async_error(), ncclSuccess);
    rank.meet();
    rank.abort();
    CHECK_EQ(rank.synchronize(), CUDA_SUCCESS);  // the stream is as good as ever
  });
}

TEST("counts that differ, with a diagnosis, or cut") {
  const auto diagnosed = [](Rank& rank) {
    Call call(rank);
    CHECK_EQ(call(rank.rank ? 3 : 4, 4), ncclSuccess);
    CHECK_EQ(rank.async_error_soon(), ncclInvalidUsage);
    CHECK(
        said("rank 1 sends 3 elements of type 2 (12 bytes) to rank 0, which expects 4 elements of type 2 (16 bytes)"));
    CHECK(stuck(rank));
    rank.meet();
    rank.abort();
    CHECK_EQ(rank.synchronize(), CUDA_SUCCESS);
  };
  nvidia::everywhere(2, diagnosed, {{"A2A_FAKE_MISMATCH", "diagnose"}});
  const auto cut = [](Rank& rank) {
    Call call(rank);
    CHECK_EQ(call(rank.rank ? 3 : 4, 4), ncclSuccess);
    CHECK_EQ(rank.synchronize(), CUDA_SUCCESS);
    if (rank.rank == 0) CHECK_EQ(call.to.values()[6], 1);
    if (rank.rank == 0) CHECK_EQ(call.to.values()[7], static_cast<int>(0xDBDBDBDB));
  };
  nvidia::everywhere(2, cut, {{"A2A_FAKE_MISMATCH", "truncate"}});
}

TEST("faults on demand") {
  const auto fails = [](Rank& rank) {
    Call call(rank);
    call.works();
    CHECK_EQ(call(), ncclSuccess);
    if (rank.rank == 0) CHECK_EQ(rank.async_error_soon(), ncclInternalError);
    CHECK(stuck(rank));
    rank.meet();
    rank.abort();
    CHECK_EQ(rank.synchronize(), CUDA_SUCCESS);
  };
  nvidia::everywhere(2, fails, {{"A2A_FAKE_ASYNC_ERROR", "2@0"}});
  const auto stalls = [](Rank& rank) {
    Call call(rank);
    CHECK_EQ(call(), ncclSuccess);
    CHECK(stuck(rank));
    CHECK_EQ(rank.async_error(), ncclSuccess);
    rank.meet();
    rank.abort();
    CHECK_EQ(rank.synchronize(), CUDA_SUCCESS);
  };
  nvidia::everywhere(2, stalls, {{"A2A_FAKE_STALL", "1"}});
  const auto refuses = [](Rank& rank) {
    Call call(rank);
    call.works();
    CHECK_EQ(call(), ncclInternalError);
    call.works();
  };
  nvidia::everywhere(2, refuses, {{"A2A_FAKE_REFUSE", "2"}});
}

TEST("ranks that wait for each other: for ever, or told what for") {
  const auto send_first = [](Rank& rank, bool told) {
    Call call(rank);
    call.works();
    const int peer = 1 - rank.rank;
    CHECK_EQ(ncclSend(call.from.at(), 4, ncclInt32, peer, rank.comm, *rank.stream), ncclSuccess);
    CHECK_EQ(ncclRecv(call.to.at(), 4, ncclInt32, peer, rank.comm, *rank.stream), ncclSuccess);
    if (told) {
      CHECK_EQ(rank.async_error_soon(), ncclSystemError);
      CHECK(said("ncclSend/ncclRecv: "));
      CHECK(said("rank " + std::to_string(peer)));
    } else {
      CHECK(stuck(rank));
      CHECK_EQ(rank.async_error(), ncclSuccess);
    }
    rank.meet();
    rank.abort();
  };
  nvidia::everywhere(2, [&](Rank& rank) { send_first(rank, false); });
  nvidia::everywhere(2, [&](Rank& rank) { send_first(rank, true); },
                     {{"A2A_FAKE_MISMATCH", "diagnose"}, {"A2A_FAKE_EXEC_TIMEOUT", "0.5"}});
}

TEST("a rank that dies is an error of the others, whose streams wait for the abort") {
  if (!isolated::kCanFork) return;
  const isolated::Shared<isolated::Board> board;
  const auto body = nvidia::with_ranks(2, [](Rank& rank) {
    Call call(rank);
    call.works();
    if (rank.rank == 1) raise(SIGKILL);
    CHECK_EQ(call(), ncclSuccess);
    CHECK_EQ(rank.async_error_soon(), ncclRemoteError);
    CHECK(said("rank 1 is dead"));
    CHECK(stuck(rank));
    rank.abort();
    CHECK_EQ(rank.synchronize(), CUDA_SUCCESS);
  });
  std::vector<pid_t> ranks;
  for (int rank = 0; rank < 2; ++rank) ranks.push_back(isolated::start([&] { body(rank, *board.value); }));
  CHECK_EQ(isolated::wait(ranks[0]), 0);
  CHECK_EQ(isolated::wait(ranks[1]), SIGKILL);
}

TEST("a child of fork() has no communicators, and does not disturb those of its parent") {
  if (!isolated::kCanFork) return;
  isolated::as_processes(2, nvidia::with_ranks(2, [](Rank& rank) {
                           Call call(rank);
                           call.works();
                           const pid_t child = isolated::start([&] {
                             ncclResult_t error;
                             CHECK_EQ(ncclCommGetAsyncError(rank.comm, &error), ncclSystemError);
                             CHECK_EQ(ncclCommAbort(rank.comm), ncclSystemError);
                             CHECK_EQ(call(), ncclSystemError);
                           });
                           CHECK_EQ(isolated::wait(child), 0);
                           call.works();
                         }));
}

TEST("a communicator is given up when no graph has its operations any more") {
  const auto body = [](Rank& rank, const std::function<void()>& give_up) {
    Call call(rank);
    call.works();
    rank.meet();
    CUgraph graph;
    CUgraphExec executable;
    CHECK_EQ(cuStreamBeginCapture_v2(*rank.stream, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
    CHECK_EQ(call(), ncclSuccess);
    CHECK_EQ(cuStreamEndCapture(*rank.stream, &graph), CUDA_SUCCESS);
    CHECK_EQ(cuGraphInstantiateWithFlags(&executable, graph, 0), CUDA_SUCCESS);
    CHECK_EQ(cuGraphDestroy(graph), CUDA_SUCCESS);
    std::atomic<bool> destroyed{false};
    std::thread later([&, context = nvidia::start(rank.rank)] {
      usleep(100000);
      CHECK_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
      destroyed = true;
      CHECK_EQ(cuGraphExecDestroy(executable), CUDA_SUCCESS);
    });
    give_up();
    CHECK(destroyed);
    later.join();
    rank.comm = nullptr;
  };
  nvidia::everywhere(2, [&](Rank& rank) { body(rank, [&] { CHECK_EQ(ncclCommDestroy(rank.comm), ncclSuccess); }); });
  nvidia::everywhere(2, [&](Rank& rank) { body(rank, [&] { CHECK_EQ(ncclCommAbort(rank.comm), ncclSuccess); }); });
  nvidia::everywhere(2, [&](Rank& rank) { body(rank, [&] { CHECK_EQ(ncclCommFinalize(rank.comm), ncclSuccess); }); });
}

TEST("destroying waits for all ranks, aborting for none; revoking ends what is in flight") {
  nvidia::everywhere(2, [](Rank& rank) {
    Call call(rank);
    call.works();
    if (rank.rank == 0) {
      const auto before = std::chrono::steady_clock::now();
      CHECK_EQ(ncclCommDestroy(rank.comm), ncclSuccess);
      CHECK(std::chrono::steady_clock::now() - before > std::chrono::milliseconds(150));
      rank.comm = nullptr;
    } else {
      usleep(200000);
    }
  });
  nvidia::everywhere(2, [](Rank& rank) {
    Call call(rank);
    call.works();
    if (rank.rank == 0) {
      CHECK_EQ(call(), ncclSuccess);
      CHECK(stuck(rank));  // rank 1 does not call
      CHECK_EQ(ncclCommRevoke(rank.comm, 0), ncclSuccess);
      CHECK_EQ(rank.synchronize(), CUDA_SUCCESS);
      CHECK_EQ(call(), ncclInvalidUsage);
    }
    rank.meet();
    rank.abort();
  });
}
