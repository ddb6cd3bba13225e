// The NCCL double moves what was sent to where it belongs, in groups.
#include <dlfcn.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "nccl_ranks.h"

using isolated::contains;
using nvidia::Array;
using nvidia::Rank;
using nvidia::value;

namespace {

// A group of one message for each ordered pair, with random counts, zero among them.
void random_group(Rank& rank, uint64_t seed) {
  const check::Note note("seed", seed);
  check::Random random(seed);
  std::vector<std::vector<size_t>> counts(static_cast<size_t>(rank.size));
  for (auto& row : counts) {
    for (int peer = 0; peer < rank.size; ++peer) row.push_back(random.chance(0.3) ? 0 : random.in(0, 500));
  }
  const auto me = static_cast<size_t>(rank.rank);
  std::vector<int> sent, expected;
  std::vector<size_t> send_at, recv_at;
  for (size_t peer = 0; peer < counts.size(); ++peer) {
    send_at.push_back(sent.size());
    recv_at.push_back(expected.size());
    for (size_t i = 0; i < counts[me][peer]; ++i) sent.push_back(value(rank.rank, static_cast<int>(peer), i));
    for (size_t i = 0; i < counts[peer][me]; ++i) expected.push_back(value(static_cast<int>(peer), rank.rank, i));
  }
  sent.push_back(-1);
  expected.push_back(-2);
  const Array<int> from(sent), to(expected.size(), -2);
  CHECK_EQ(ncclGroupStart(), ncclSuccess);
  for (size_t peer = 0; peer < counts.size(); ++peer) {
    const int p = static_cast<int>(peer);
    const void* const empty = nullptr;  // no bytes need no address
    const void* const source = counts[me][peer] ? from.at(send_at[peer]) : empty;
    CHECK_EQ(ncclSend(source, counts[me][peer], ncclInt32, p, rank.comm, *rank.stream), ncclSuccess);
    CHECK_EQ(ncclRecv(to.at(recv_at[peer]), 4 * counts[peer][me], ncclUint8, p, rank.comm, *rank.stream), ncclSuccess);
  }
  const ncclResult_t ended = ncclGroupEnd();
  CHECK_EQ(ended, rank.blocking ? ncclSuccess : ncclInProgress);
  CHECK_EQ(nvidia::settled(rank.comm), ncclSuccess);
  CHECK_EQ(rank.synchronize(), CUDA_SUCCESS);
  CHECK_EQ(to.values(), expected);
}

void random_groups(Rank& rank) {
  for (uint64_t i = 0; i < 20; ++i) random_group(rank, check::seed() + i);
}

}  // namespace

TEST("groups of random messages") {
  for (const int n : {1, 2, 5}) nvidia::everywhere(n, random_groups);
}

TEST("... of communicators that do not block") { isolated::everywhere(3, nvidia::with_ranks(3, random_groups, false)); }

TEST("reductions and a broadcast, alone and in a group, in and out of place") {
  nvidia::everywhere(3, [](Rank& rank) {
    const int me = rank.rank;
    const Array<int> from(std::vector<int>{me + 1, 2, -me}), to(3, -1), part(1, -1), given(3, me);
    const auto run = [&](ncclResult_t result) {
      CHECK_EQ(result, ncclSuccess);
      CHECK_EQ(rank.synchronize(), CUDA_SUCCESS);
    };
    run(ncclAllReduce(from.at(), to.at(), 3, ncclInt32, ncclSum, rank.comm, *rank.stream));
    CHECK_EQ(to.values(), (std::vector<int>{6, 6, -3}));
    run(ncclAllReduce(to.at(), to.at(), 3, ncclInt32, ncclProd, rank.comm, *rank.stream));
    CHECK_EQ(to.values(), (std::vector<int>{216, 216, -27}));
    run(ncclReduceScatter(from.at(), part.at(), 1, ncclInt32, ncclMax, rank.comm, *rank.stream));
    CHECK_EQ(part.values()[0], (std::vector<int>{3, 2, 0})[static_cast<size_t>(me)]);
    CHECK_EQ(ncclGroupStart(), ncclSuccess);
    for (int root = 0; root < 3; ++root) {
      const void* const mine = from.at(static_cast<size_t>(root));
      void* const output = root == me ? part.at() : nullptr;
      CHECK_EQ(ncclReduce(mine, output, 1, ncclInt32, ncclMin, root, rank.comm, *rank.stream), ncclSuccess);
    }
    CHECK_EQ(ncclBroadcast(given.at(), given.at(), 3, ncclInt32, 1, rank.comm, *rank.stream), ncclSuccess);
    run(ncclGroupEnd());
    CHECK_EQ(part.values()[0], (std::vector<int>{1, 2, -2})[static_cast<size_t>(me)]);
    CHECK_EQ(given.values(), std::vector<int>(3, 1));
  });
}

TEST("small numbers are folded as float and rounded once, to even") {
  nvidia::as_threads(3, [](Rank& rank) {
    const auto sum = [&](ncclDataType_t type, std::vector<uint16_t> each) {
      const Array<uint16_t> from(1, each[static_cast<size_t>(rank.rank)]), to(1, 0);
      CHECK_EQ(ncclAllReduce(from.at(), to.at(), 1, type, ncclSum, rank.comm, *rank.stream), ncclSuccess);
      CHECK_EQ(rank.synchronize(), CUDA_SUCCESS);
      return to.values()[0];
    };
    CHECK_EQ(sum(ncclFloat16, {0x3c00, 0x1000, 0}), 0x3c00);           // 1 + 2^-11, halfway to 1 + 2^-10
    CHECK_EQ(sum(ncclFloat16, {0x3c00, 0x1000, 0x0c00}), 0x3c01);      // ... and some more
    CHECK_EQ(sum(ncclFloat16, {0x7bff, 0x7bff, 0}), 0x7c00);           // too large
    CHECK_EQ(sum(ncclFloat16, {0x0001, 0x0002, 0x8001}), 0x0002);      // denormal
    CHECK_EQ(sum(ncclBfloat16, {0x3f80, 0x3b80, 0x3b80}), 0x3f81);     // 1 + 2^-8 + 2^-8
    CHECK_EQ(sum(ncclFloat16, {0x7e00, 0x3c00, 0}) & 0x7fff, 0x7e00);  // NaN
  });
}

TEST("several messages of a pair keep their order") {
  nvidia::everywhere(2, [](Rank& rank) {
    const Array<int> from(std::vector<int>{1, 2, 3, 4, 5, 6}), to(6, 0);
    const int peer = 1 - rank.rank;
    CHECK_EQ(ncclGroupStart(), ncclSuccess);
    CHECK_EQ(ncclGroupStart(), ncclSuccess);  // groups nest
    for (size_t i = 0; i < 3; ++i) {
      CHECK_EQ(ncclRecv(to.at(2 * i), 2, ncclInt32, peer, rank.comm, *rank.stream), ncclSuccess);
      CHECK_EQ(ncclGroupEnd(), ncclSuccess);
      CHECK_EQ(cuStreamQuery(*rank.stream), CUDA_SUCCESS);  // nothing happened yet
      CHECK_EQ(ncclGroupStart(), ncclSuccess);
    }
    for (size_t i = 0; i < 3; ++i) {
      CHECK_EQ(ncclSend(from.at(2 * i), 2, ncclInt32, peer, rank.comm, *rank.stream), ncclSuccess);
    }
    CHECK_EQ(ncclGroupEnd(), ncclSuccess);
    CHECK_EQ(to.values()[0], 0);
    CHECK_EQ(ncclGroupEnd(), ncclSuccess);
    CHECK_EQ(rank.synchronize(), CUDA_SUCCESS);
    CHECK_EQ(to.values(), (std::vector{1, 2, 3, 4, 5, 6}));
  });
}

TEST("ncclAlltoAll, ncclAllGather, in place too, and both in one group") {
  nvidia::everywhere(3, [](Rank& rank) {
    const int r = rank.rank;
    const Array<int> from(std::vector<int>{10 * r, 10 * r + 1, 10 * r + 2}), to(3, -1), all(6, -1);
    CHECK_EQ(ncclGroupStart(), ncclSuccess);
    CHECK_EQ(ncclAlltoAll(from.at(), to.at(), 1, ncclInt32, rank.comm, *rank.stream), ncclSuccess);
    CHECK_EQ(ncclAllGather(from.at(), all.at(), 2, ncclInt32, rank.comm, *rank.stream), ncclSuccess);
    CHECK_EQ(ncclGroupEnd(), ncclSuccess);
    CHECK_EQ(ncclAllGather(all.at(static_cast<size_t>(2 * r)), all.at(), 2, ncclInt32, rank.comm, *rank.stream),
             ncclSuccess);
    CHECK_EQ(rank.synchronize(), CUDA_SUCCESS);
    CHECK_EQ(to.values(), (std::vector{r, 10 + r, 20 + r}));
    CHECK_EQ(all.values(), (std::vector{0, 1, 10, 11, 20, 21}));
  });
}

TEST("a group on two streams is over when both are") {
  nvidia::everywhere(2,
                     [](Rank& rank) {
                       const nvidia::Stream other;
                       const Array<int> from(4, rank.rank), to(4, -1);
                       const int peer = 1 - rank.rank;
                       CHECK_EQ(ncclGroupStart(), ncclSuccess);
                       CHECK_EQ(ncclSend(from.at(), 4, ncclInt32, peer, rank.comm, *rank.stream), ncclSuccess);
                       CHECK_EQ(ncclRecv(to.at(), 4, ncclInt32, peer, rank.comm, other), ncclSuccess);
                       CHECK_EQ(ncclGroupEnd(), ncclSuccess);
                       CHECK_EQ(cuStreamSynchronize(other), CUDA_SUCCESS);
                       CHECK_EQ(to.values(), std::vector<int>(4, peer));
                       CHECK_EQ(rank.synchronize(), CUDA_SUCCESS);
                     },
                     {{"A2A_FAKE_DELAY_US", "5000"}});
}

TEST("several communicators of one thread, in one group") {
  isolated::run([] {
    ncclUniqueId id;
    ncclComm_t comms[2];
    CUcontext contexts[2];
    CHECK_EQ(ncclGetUniqueId(&id), ncclSuccess);
    CHECK_EQ(ncclGroupStart(), ncclSuccess);
    for (int r = 0; r < 2; ++r) {
      contexts[r] = nvidia::start(r);
      CHECK_EQ(ncclCommInitRank(&comms[r], 2, id, r), ncclSuccess);
    }
    CHECK_EQ(ncclGroupEnd(), ncclSuccess);
    std::vector<std::unique_ptr<Array<int>>> from, to;
    std::vector<std::unique_ptr<nvidia::Stream>> streams;
    CHECK_EQ(ncclGroupStart(), ncclSuccess);
    for (int r = 0; r < 2; ++r) {
      CHECK_EQ(cuCtxSetCurrent(contexts[r]), CUDA_SUCCESS);
      from.push_back(std::make_unique<Array<int>>(2, r));
      to.push_back(std::make_unique<Array<int>>(2, -1));
      streams.push_back(std::make_unique<nvidia::Stream>());
      CHECK_EQ(ncclAlltoAll(from[static_cast<size_t>(r)]->at(), to[static_cast<size_t>(r)]->at(), 1, ncclInt32,
                            comms[r], *streams.back()),
               ncclSuccess);
    }
    CHECK_EQ(ncclGroupEnd(), ncclSuccess);
    for (size_t r = 0; r < 2; ++r) {
      CHECK_EQ(cuStreamSynchronize(*streams[r]), CUDA_SUCCESS);
      CHECK_EQ(to[r]->values(), (std::vector{0, 1}));
      CHECK_EQ(ncclCommAbort(comms[r]), ncclSuccess);
    }
  });
}

TEST("a captured group moves data at each launch") {
  nvidia::everywhere(2, [](Rank& rank) {
    const Array<int> from(2, rank.rank), to(2, -1);
    const auto exchange = [&] { return ncclAlltoAll(from.at(), to.at(), 1, ncclInt32, rank.comm, *rank.stream); };
    CUgraph graph;
    CUgraphExec executable;
    CHECK_EQ(cuStreamBeginCapture_v2(*rank.stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), CUDA_SUCCESS);
    CHECK_EQ(exchange(), ncclSuccess);
    CHECK_EQ(cuStreamEndCapture(*rank.stream, &graph), CUDA_SUCCESS);
    CHECK_EQ(cuGraphInstantiateWithFlags(&executable, graph, 0), CUDA_SUCCESS);
    CHECK_EQ(to.values()[1], -1);
    for (const int round : {10, 20}) {
      const std::vector<int> values(2, round + rank.rank);
      CHECK_EQ(cuMemcpyHtoD_v2(from.address, values.data(), 8), CUDA_SUCCESS);
      CHECK_EQ(cuGraphLaunch(executable, *rank.stream), CUDA_SUCCESS);
      CHECK_EQ(rank.synchronize(), CUDA_SUCCESS);
      CHECK_EQ(to.values(), (std::vector{round, round + 1}));
      CHECK_EQ(exchange(), ncclSuccess);  // as usual in between
      CHECK_EQ(rank.synchronize(), CUDA_SUCCESS);
    }
    CHECK_EQ(cuGraphExecDestroy(executable), CUDA_SUCCESS);  // which destroying the communicator waits for
    CHECK_EQ(cuGraphDestroy(graph), CUDA_SUCCESS);
    const nvidia::Stream other;
    CHECK_EQ(cuStreamBeginCapture_v2(*rank.stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), CUDA_SUCCESS);
    CHECK_EQ(ncclGroupStart(), ncclSuccess);
    CHECK_EQ(ncclSend(from.at(), 1, ncclInt32, 1 - rank.rank, rank.comm, *rank.stream), ncclSuccess);
    CHECK_EQ(ncclRecv(to.at(), 1, ncclInt32, 1 - rank.rank, rank.comm, other), ncclSuccess);
    CHECK_EQ(ncclGroupEnd(), ncclInvalidUsage);
    CHECK(contains(ncclGetLastError(rank.comm), "all captured by the same graph"));
    CHECK_EQ(cuStreamEndCapture(*rank.stream, &graph), CUDA_SUCCESS);
  });
}

TEST("communicators are split and shrunk") {
  nvidia::everywhere(4, [](Rank& rank) {
    ncclComm_t half = nullptr, none = nullptr, fewer = nullptr;
    int r = -1, size = -1, device = -1;
    CHECK_EQ(ncclCommSplit(rank.comm, rank.rank % 2, -rank.rank, &half, nullptr), ncclSuccess);
    CHECK_EQ(ncclCommCount(half, &size), ncclSuccess);
    CHECK_EQ(ncclCommUserRank(half, &r), ncclSuccess);
    CHECK_EQ(ncclCommCuDevice(half, &device), ncclSuccess);
    CHECK_EQ(size, 2);
    CHECK_EQ(r, rank.rank < 2 ? 1 : 0);
    CHECK_EQ(device, rank.rank);
    const Array<int> from(1, rank.rank), to(3, -1);
    CHECK_EQ(ncclAllGather(from.at(), to.at(), 1, ncclInt32, half, *rank.stream), ncclSuccess);
    CHECK_EQ(rank.synchronize(), CUDA_SUCCESS);
    CHECK_EQ(to.values(), (std::vector{rank.rank % 2 + 2, rank.rank % 2, -1}));
    CHECK_EQ(ncclCommDestroy(half), ncclSuccess);
    CHECK_EQ(ncclCommSplit(rank.comm, NCCL_SPLIT_NOCOLOR, 0, &none, nullptr), ncclSuccess);
    CHECK(none == nullptr);
    rank.meet();
    if (rank.rank == 1) return rank.abort();
    int excluded[] = {1};
    CHECK_EQ(ncclCommShrink(rank.comm, excluded, 1, &fewer, nullptr, NCCL_SHRINK_ABORT), ncclSuccess);
    CHECK_EQ(ncclAllGather(from.at(), to.at(), 1, ncclInt32, fewer, *rank.stream), ncclSuccess);
    CHECK_EQ(rank.synchronize(), CUDA_SUCCESS);
    CHECK_EQ(to.values(), (std::vector{0, 2, 3}));
    CHECK_EQ(ncclCommDestroy(fewer), ncclSuccess);
    rank.abort();
  });
}

TEST("memory of NCCL's own, and the log") {
  const std::string path = std::filesystem::temp_directory_path() / ("a2a-fake-log-" + std::to_string(getpid()));
  const auto call = [](Rank& rank) {
    void *from, *to, *handle;
    ncclWindow_t window;
    CHECK_EQ(ncclMemAlloc(&from, 4096), ncclSuccess);
    CHECK_EQ(ncclMemAlloc(&to, 4096), ncclSuccess);
    CHECK_EQ(ncclCommRegister(rank.comm, from, 4096, &handle), ncclSuccess);
    CHECK_EQ(ncclCommWindowRegister(rank.comm, from, 4096, &window, 1), ncclSuccess);
    CHECK(window == nullptr);
    CHECK_EQ(ncclAlltoAll(from, to, 100, ncclInt32, rank.comm, *rank.stream), ncclSuccess);
    CHECK_EQ(rank.synchronize(), CUDA_SUCCESS);
    CHECK_EQ(ncclCommDeregister(rank.comm, handle), ncclSuccess);
    CHECK_EQ(ncclMemFree(from), ncclSuccess);
    CHECK_EQ(ncclMemFree(from), ncclInvalidArgument);
    CHECK_EQ(ncclMemFree(to), ncclSuccess);
  };
  nvidia::everywhere(2, call, {{"A2A_FAKE_LOG", path}});
  std::stringstream log;
  log << std::ifstream(path).rdbuf();
  CHECK(contains(log.str().c_str(), "rank=1 call=AlltoAll stream=0x"));
  CHECK(contains(log.str().c_str(), " bytes=1600 dtype=2 peers=0,1,0,1\n"));
  CHECK(contains(log.str().c_str(), "call=ncclCommDestroy"));
  std::filesystem::remove(path);
}

TEST("communicators that a program forgets are in the log") {
  if (!isolated::kCanFork) return;
  const std::string path = std::filesystem::temp_directory_path() / ("a2a-fake-log-" + std::to_string(getpid()));
  const auto forget = [] {
    isolated::Board board;
    Rank rank(0, 1, board);
    exit(0);
  };
  CHECK_EQ(isolated::wait(isolated::start(forget, {{"A2A_FAKE_LOG", path}})), 0);
  std::stringstream log;
  log << std::ifstream(path).rdbuf();
  CHECK(contains(log.str().c_str(), "leaked communicators: 1\n"));
  std::filesystem::remove(path);
}

TEST("an old version lacks what is new") {
  isolated::run([] {
    void* const old = dlopen(A2A_FAKES "/nccl-2.18/libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (!CHECK(old)) return;
    for (const char* name : {"ncclAlltoAll", "ncclMemAlloc", "ncclCommShrink", "ncclCommWindowRegister",
                             "ncclCommInitRankScalable", "ncclCommRevoke", "ncclCommRegister"}) {
      CHECK(!dlsym(old, name));
    }
    CHECK(dlsym(old, "ncclCommSplit") && dlsym(old, "a2a_test_double"));
    const auto version_of_old = reinterpret_cast<decltype(&ncclGetVersion)>(dlsym(old, "ncclGetVersion"));
    int version = 0;
    CHECK_EQ(ncclGetVersion(&version), ncclSuccess);
    CHECK_EQ(version, 23203);
    setenv("A2A_FAKE_NCCL_VERSION", "22304", 1);
    CHECK_EQ(ncclGetVersion(&version), ncclSuccess);
    CHECK_EQ(version, 22304);
    unsetenv("A2A_FAKE_NCCL_VERSION");
    if (!CHECK(version_of_old)) return;
    CHECK_EQ(version_of_old(&version), ncclSuccess);
  });
}
