// The HCCL double moves what was sent to where it belongs.
#include <filesystem>
#include <fstream>
#include <sstream>

#include "hccl_ranks.h"

using ascend::Array;
using ascend::Rank;
using ascend::value;
using isolated::contains;

namespace {

constexpr auto kInt = HCCL_DATA_TYPE_INT32;

using Counts = std::vector<uint64_t>;

// The counts of a random exchange, the same on all ranks, with gaps of random length before each part.
struct Exchange {
  Exchange(int ranks, uint64_t seed) : size(ranks) {
    check::Random random(seed);
    for (int i = 0; i < 4 * size * size; ++i) {
      numbers.push_back(random.chance(0.3) ? 0 : random.in(uint64_t{0}, uint64_t{300}));
    }
  }
  uint64_t count(int from, int to) const { return numbers[static_cast<size_t>(from * size + to)]; }
  uint64_t gap(int rank, int peer, int side) const {
    return numbers[static_cast<size_t>((1 + side) * size * size + rank * size + peer)] % 7;
  }

  struct Side {
    Counts counts, displs;
    uint64_t end = 0;
  };
  Side side(int rank, bool send) const {
    Side made;
    for (int peer = 0; peer < size; ++peer) {
      made.end += gap(rank, peer, send);
      made.displs.push_back(made.end);
      made.counts.push_back(send ? count(rank, peer) : count(peer, rank));
      made.end += made.counts.back();
    }
    made.end += 3;
    return made;
  }

  const int size;
  std::vector<uint64_t> numbers;
};

void random_alltoallv(Rank& rank, uint64_t seed) {
  const check::Note note("seed", seed);
  const Exchange all(rank.size, seed);
  const auto send = all.side(rank.rank, true), recv = all.side(rank.rank, false);
  std::vector<int> sent(send.end, -1), expected(recv.end, -2);
  for (int peer = 0; peer < rank.size; ++peer) {
    const auto p = static_cast<size_t>(peer);
    for (size_t i = 0; i < send.counts[p]; ++i) sent[send.displs[p] + i] = value(rank.rank, peer, i);
    for (size_t i = 0; i < recv.counts[p]; ++i) expected[recv.displs[p] + i] = value(peer, rank.rank, i);
  }
  const Array<int> from(sent), to(recv.end, -2);
  CHECK_EQ(HcclAlltoAllV(from.data, send.counts.data(), send.displs.data(), kInt, to.data, recv.counts.data(),
                         recv.displs.data(), kInt, rank.comm, *rank.stream),
           HCCL_SUCCESS);
  CHECK_EQ(rank.synchronize(), ACL_SUCCESS);
  CHECK_EQ(to.values(), expected);  // the gaps too
}

}  // namespace

TEST("HcclAlltoAllV: random counts and gaps") {
  for (const int n : {1, 2, 5}) {
    ascend::everywhere(n, [](Rank& rank) {
      for (uint64_t i = 0; i < 30; ++i) random_alltoallv(rank, check::seed() + i);
    });
  }
}

TEST("megabytes in all directions at once") {
  ascend::everywhere(3, [](Rank& rank) {
    const size_t each = 5 << 20;
    const Array<int> from(each, rank.rank), to(3 * each, -1);
    const Counts counts(3, each), same(3, 0), packed{0, each, 2 * each};
    CHECK_EQ(HcclAlltoAllV(from.data, counts.data(), same.data(), kInt, to.data, counts.data(), packed.data(), kInt,
                           rank.comm, *rank.stream),
             HCCL_SUCCESS);
    CHECK_EQ(rank.synchronize(), ACL_SUCCESS);
    const auto got = to.values();
    for (size_t i = 0; i < got.size(); i += 4099) CHECK_EQ(got[i], static_cast<int>(i / each));
  });
}

TEST("HcclAlltoAll, HcclAlltoAllVC, HcclAllGather, HcclAllGatherV, HcclBarrier") {
  ascend::everywhere(3, [](Rank& rank) {
    const int r = rank.rank;
    const Array<int> from({10 * r, 10 * r + 1, 10 * r + 2}), to(6, -1);
    CHECK_EQ(HcclAlltoAll(from.data, 1, kInt, to.data, 1, kInt, rank.comm, *rank.stream), HCCL_SUCCESS);
    CHECK_EQ(rank.synchronize(), ACL_SUCCESS);
    CHECK_EQ(to.values(), (std::vector{r, 10 + r, 20 + r, -1, -1, -1}));

    const Counts matrix{0, 1, 2, 1, 1, 1, 0, 0, 2};  // [from][to]
    CHECK_EQ(HcclAlltoAllVC(from.data, matrix.data(), kInt, to.data, kInt, rank.comm, *rank.stream), HCCL_SUCCESS);
    CHECK_EQ(rank.synchronize(), ACL_SUCCESS);
    const std::vector<std::vector<int>> got{{10}, {0, 11}, {1, 2, 12, 20, 21}};
    const auto values = to.values();
    const auto& wanted = got[static_cast<size_t>(r)];
    CHECK(std::equal(wanted.begin(), wanted.end(), values.begin()));

    CHECK_EQ(HcclAllGather(from.data, to.data, 2, kInt, rank.comm, *rank.stream), HCCL_SUCCESS);
    CHECK_EQ(HcclBarrier(rank.comm, *rank.stream), HCCL_SUCCESS);
    CHECK_EQ(rank.synchronize(), ACL_SUCCESS);
    CHECK_EQ(to.values(), (std::vector{0, 1, 10, 11, 20, 21}));

    // In place: what a rank contributes is where it will be.
    CHECK_EQ(HcclAllGather(to.data + 2 * r, to.data, 2, kInt, rank.comm, *rank.stream), HCCL_SUCCESS);
    CHECK_EQ(rank.synchronize(), ACL_SUCCESS);
    CHECK_EQ(to.values(), (std::vector{0, 1, 10, 11, 20, 21}));

    const Counts counts{1, 2, 3}, displs{5, 3, 0};
    CHECK_EQ(HcclAllGatherV(from.data, static_cast<uint64_t>(r) + 1, to.data, counts.data(), displs.data(), kInt,
                            rank.comm, *rank.stream),
             HCCL_SUCCESS);
    CHECK_EQ(rank.synchronize(), ACL_SUCCESS);
    CHECK_EQ(to.values(), (std::vector{20, 21, 22, 10, 11, 0}));
  });
}

TEST("HcclSend and HcclRecv in the right order, or in a group") {
  ascend::everywhere(2, [](Rank& rank) {
    const auto peer = static_cast<uint32_t>(1 - rank.rank);
    const Array<int> from(4, rank.rank), to(4, -1);
    const auto send = [&] { return HcclSend(from.data, 4, kInt, peer, rank.comm, *rank.stream); };
    const auto recv = [&] { return HcclRecv(to.data, 4, kInt, peer, rank.comm, *rank.stream); };
    CHECK_EQ(rank.rank == 0 ? send() : recv(), HCCL_SUCCESS);
    CHECK_EQ(rank.rank == 0 ? recv() : send(), HCCL_SUCCESS);
    CHECK_EQ(rank.synchronize(), ACL_SUCCESS);
    CHECK_EQ(to.values(), std::vector<int>(4, 1 - rank.rank));

    CHECK_EQ(HcclGroupStart(), HCCL_SUCCESS);
    CHECK_EQ(send(), HCCL_SUCCESS);
    CHECK_EQ(recv(), HCCL_SUCCESS);
    CHECK_EQ(HcclGroupEnd(), HCCL_SUCCESS);
    CHECK_EQ(rank.synchronize(), ACL_SUCCESS);
    CHECK_EQ(HcclGroupEnd(), HCCL_E_PARA);
  });
}

TEST("HcclBatchSendRecv: items in any order, with oneself too") {
  ascend::everywhere(3, [](Rank& rank) {
    const Array<int> from({value(rank.rank, 0, 0), value(rank.rank, 1, 0), value(rank.rank, 2, 0)}), to(3, -1);
    std::vector<HcclSendRecvItem> items;
    for (uint32_t peer = 0; peer < 3; ++peer) items.push_back({HCCL_SEND, from.data + peer, 1, kInt, peer});
    for (uint32_t peer = 0; peer < 3; ++peer) items.push_back({HCCL_RECV, to.data + peer, 1, kInt, peer});
    std::shuffle(items.begin(), items.end(), check::Random(check::seed() + static_cast<uint64_t>(rank.rank)));
    CHECK_EQ(HcclBatchSendRecv(items.data(), 6, rank.comm, *rank.stream), HCCL_SUCCESS);
    CHECK_EQ(rank.synchronize(), ACL_SUCCESS);
    for (int peer = 0; peer < 3; ++peer) CHECK_EQ(to.values()[static_cast<size_t>(peer)], value(peer, rank.rank, 0));
  });
}

TEST("operations of one communicator on two streams keep the order of the calls") {
  ascend::everywhere(2, [](Rank& rank) {
    const ascend::Stream other;
    const Array<int> from(8, rank.rank);
    const Array<int> to(8, -1);
    for (int i = 0; i < 20; ++i) {
      const aclrtStream stream = i % 2 ? other.handle : rank.stream->handle;
      CHECK_EQ(HcclAllGather(from.data, to.data, 4, kInt, rank.comm, stream), HCCL_SUCCESS);
    }
    CHECK_EQ(rank.synchronize(), ACL_SUCCESS);
    CHECK_EQ(aclrtSynchronizeStream(other), ACL_SUCCESS);
    CHECK_EQ(to.values(), (std::vector{0, 0, 0, 0, 1, 1, 1, 1}));
  });
}

TEST("a receive buffer is poison until the data are there") {
  if (!isolated::kCanFork) return;  // a data race on purpose, which ThreadSanitizer would find
  ascend::everywhere(2,
                     [](Rank& rank) {
                       const Array<int> from(4, 7), to(8, 7);
                       CHECK_EQ(HcclAllGather(from.data, to.data, 4, kInt, rank.comm, *rank.stream), HCCL_SUCCESS);
                       bool poisoned = false;
                       for (int i = 0; i < 10000 && !poisoned; ++i) {
                         poisoned =
                             to.values()[static_cast<size_t>(4 * (1 - rank.rank))] == static_cast<int>(0xDBDBDBDB);
                         usleep(100);
                       }
                       CHECK(poisoned);
                       CHECK_EQ(rank.synchronize(), ACL_SUCCESS);
                       CHECK_EQ(to.values(), std::vector<int>(8, 7));
                     },
                     {{"A2A_FAKE_DELAY_US", "300000"}});
}

TEST("several communicators, made in several ways") {
  isolated::run([] {
    ascend::start(0);
    int32_t devices[] = {3, 1};
    HcclComm comms[2];
    CHECK_EQ(HcclCommInitAll(2, devices, comms), HCCL_SUCCESS);
    check::threads(2, [&](int r) {
      ascend::start(devices[r]);
      const ascend::Stream stream;
      uint32_t rank = 9, size = 9;
      char name[128], sub_name[128];
      CHECK_EQ(HcclGetRankId(comms[r], &rank), HCCL_SUCCESS);
      CHECK_EQ(HcclGetRankSize(comms[r], &size), HCCL_SUCCESS);
      CHECK_EQ(rank, r);
      CHECK_EQ(size, 2);
      HcclCommConfig config{};
      const struct {
        size_t size = sizeof(HcclCommConfig);
        uint32_t magic = HCCL_COMM_CONFIG_MAGIC_WORD, version = HCCL_COMM_CONFIG_VERSION;
      } info;
      HcclComm sub = nullptr;
      uint32_t members[] = {1, 0};  // the other way round
      const auto sub_rank = static_cast<uint32_t>(1 - r);
      CHECK_EQ(HcclCreateSubCommConfig(&comms[r], 2, members, 5, sub_rank, &config, &sub), HCCL_E_PARA);  // no magic
      std::memcpy(config.reserved, &info, sizeof info);
      CHECK_EQ(HcclCreateSubCommConfig(&comms[r], 2, members, 5, 1 - sub_rank, &config, &sub), HCCL_E_PARA);
      CHECK_EQ(HcclCreateSubCommConfig(&comms[r], 2, members, 5, sub_rank, &config, &sub), HCCL_SUCCESS);
      CHECK_EQ(HcclGetCommName(comms[r], name), HCCL_SUCCESS);
      CHECK_EQ(HcclGetCommName(sub, sub_name), HCCL_SUCCESS);
      CHECK(std::strcmp(name, sub_name) != 0);
      const Array<int> from(1, r), to(2, -1);
      CHECK_EQ(HcclAllGather(from.data, to.data, 1, kInt, sub, stream), HCCL_SUCCESS);
      CHECK_EQ(aclrtSynchronizeStream(stream), ACL_SUCCESS);
      CHECK_EQ(to.values(), (std::vector{1, 0}));
      CHECK_EQ(HcclCommDestroy(sub), HCCL_SUCCESS);
      CHECK_EQ(HcclCommDestroy(comms[r]), HCCL_SUCCESS);
    });
  });
}

TEST("the log has a line for each call") {
  const std::string path = std::filesystem::temp_directory_path() / ("a2a-fake-log-" + std::to_string(getpid()));
  const auto call = [](Rank& rank) {
    const Array<int> from(4, 7), to(8, 7);
    CHECK_EQ(HcclAllGather(from.data, to.data, 4, kInt, rank.comm, *rank.stream), HCCL_SUCCESS);
    CHECK_EQ(rank.synchronize(), ACL_SUCCESS);
  };
  ascend::everywhere(2, call, {{"A2A_FAKE_LOG", path}});
  std::stringstream log;
  log << std::ifstream(path).rdbuf();
  CHECK(contains(log.str().c_str(), "rank=1 call=HcclAllGather stream=0x"));
  CHECK(contains(log.str().c_str(), " bytes=32 dtype=2 peers=0,1,0,1\n"));
  CHECK(contains(log.str().c_str(), "call=aclrtSynchronizeStream"));
  std::filesystem::remove(path);
}

TEST("reductions and what a root gives to all") {
  ascend::everywhere(3, [](Rank& rank) {
    const int me = rank.rank;
    const Array<int> from(std::vector<int>{me + 1, 2, -me}), to(3, -1), part(1, -1), given(3, me);
    const auto run = [&](HcclResult result) {
      CHECK_EQ(result, HCCL_SUCCESS);
      CHECK_EQ(rank.synchronize(), ACL_SUCCESS);
    };
    const auto type = HCCL_DATA_TYPE_INT32;
    run(HcclAllReduce(from.data, to.data, 3, type, HCCL_REDUCE_SUM, rank.comm, *rank.stream));
    CHECK_EQ(to.values(), (std::vector<int>{6, 6, -3}));
    run(HcclReduceScatter(from.data, part.data, 1, type, HCCL_REDUCE_MAX, rank.comm, *rank.stream));
    CHECK_EQ(part.values()[0], (std::vector<int>{3, 2, 0})[static_cast<size_t>(me)]);
    run(HcclReduce(from.data, to.data, 3, type, HCCL_REDUCE_PROD, 1, rank.comm, *rank.stream));
    CHECK_EQ(to.values(), (me == 1 ? std::vector<int>{6, 8, 0} : std::vector<int>{6, 6, -3}));
    run(HcclBroadcast(given.data, 3, type, 2, rank.comm, *rank.stream));
    CHECK_EQ(given.values(), std::vector<int>(3, 2));
    run(HcclScatter(me == 1 ? from.data : nullptr, part.data, 1, type, 1, rank.comm, *rank.stream));
    CHECK_EQ(part.values()[0], (std::vector<int>{2, 2, -1})[static_cast<size_t>(me)]);
  });
}
