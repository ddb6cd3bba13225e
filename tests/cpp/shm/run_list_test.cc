// Lists of runs: what one rank tells another of its memory, and what that one takes for it.
#include "transport/shm/ways/run_list.h"

#include <array>
#include <cstring>

#include "one_pair.h"

namespace {

using namespace shm_test;

class Lists : public OnePair {
 public:
  Lists() { begin({}); }
  template <class Entry>
  void write(std::span<const Entry> entries) {
    std::memcpy(peer.controlled() + HostilePeer::kList, entries.data(), entries.size_bytes());
  }
  const std::vector<Run>& found() { return operation.pair(kPeer).listed; }
};

constexpr uint64_t kList = HostilePeer::kList, kData = HostilePeer::kData;

TEST("runs of a peer are found in its segment, in the order of its list") {
  Lists lists;
  lists.write<ListedRun>(std::array<ListedRun, 2>{{{kData + 5, 3}, {kData, 4}}});
  find_runs(lists.link(), Kind::shared, kList, 2, 7);
  if (!CHECK_EQ(lists.found().size(), 2)) return;
  CHECK(lists.found()[0] == (Run{kPeer, lists.peer.data() + 5, 3}));
  CHECK(lists.found()[1] == (Run{kPeer, lists.peer.data(), 4}));
  find_run(lists.link(), Kind::shared, {kData, 9});
  CHECK(lists.found() == std::vector<Run>({{kPeer, lists.peer.data(), 9}}));
}

TEST("a list whose bytes differ from the line's, or outside of the segment, is invalid") {
  Lists lists;
  const auto refused = [&](uint64_t list, size_t count, uint64_t bytes) {
    CHECK_THROWS(Code::backend, "rank 1", find_runs(lists.link(), Kind::shared, list, count, bytes));
  };
  lists.write<ListedRun>(std::array<ListedRun, 2>{{{kData, 3}, {kData, 4}}});
  refused(kList, 2, 6);
  refused(kList, 2, 8);
  refused(kList, 0, 7);
  refused(kList, 8, 7);
  refused(kList + 1, 2, 7);
  refused(HostilePeer::kSegment - sizeof(ListedRun), 2, 7);
  refused(UINT64_MAX - 7, 2, 7);
  lists.write<ListedRun>(std::array<ListedRun, 2>{{{HostilePeer::kSegment - 2, 3}, {kData, 4}}});
  refused(kList, 2, 7);
  lists.write<ListedRun>(std::array<ListedRun, 2>{{{kData, 0}, {kData, 7}}});
  refused(kList, 2, 7);
}

TEST("blocks with gaps are listed by one rank and found by another") {
  Lists lists;
  const std::vector<int64_t> shape{3, 2}, strides{16, 4};
  const Strides block(TensorLayout{shape, strides, 2});
  std::vector<std::byte> memory(64);
  const std::array<Run, 2> runs{Run{kPeer, memory.data(), 8, &block, 4}, Run{kPeer, memory.data(), 5}};
  const uint64_t at = list_blocks(lists.link(), runs, Kind::pointer);
  std::array<ListedBlock, 2> listed;
  std::memcpy(listed.data(), lists.peer.membership().arena().base() + at, sizeof(listed));
  lists.write<ListedBlock>(listed);
  find_blocks(lists.link(), Kind::pointer, kList, 2, 13);
  if (!CHECK_EQ(lists.found().size(), 2)) return;
  for (size_t i = 0; i < 2; ++i) {
    const Run& found = lists.found()[i];
    CHECK_EQ(found.bytes, runs[i].bytes);
    for (size_t byte = 0; byte < runs[i].bytes; ++byte) CHECK(found.place(byte) == runs[i].place(byte));
  }
}

TEST("an invalid block, or one outside of the segment, is refused") {
  Lists lists;
  ListedBlock good{{kData, 8}, 0, 4, 1, {{2, 16}}};
  const auto found = [&](const ListedBlock& block) {
    lists.write<ListedBlock>({&block, 1});
    find_blocks(lists.link(), Kind::shared, kList, 1, 8);
  };
  found(good);
  CHECK(lists.found()[0].place(4) == lists.peer.data() + 16);
  const auto refused = [&](auto change) {
    ListedBlock bad = good;
    change(bad);
    CHECK_THROWS(Code::backend, "rank 1", found(bad));
  };
  refused([](ListedBlock& b) { b.dims = ListedBlock::kMostDims + 1; });
  refused([](ListedBlock& b) { b.begin = 1; });
  refused([](ListedBlock& b) { b.begin = UINT64_MAX; });
  refused([](ListedBlock& b) { b.run.where = 0, b.dim[0].stride = -16; });
  refused([](ListedBlock& b) { b.run.where = HostilePeer::kSegment - 19; });
}

TEST("runs are described by address for pointer and CMA, otherwise by offset") {
  Lists lists;
  Arena& arena = lists.peer.membership().arena();
  std::byte* const data = arena.allocate(64);
  const Run run{kPeer, data, 64};
  CHECK_EQ(place_of(lists.link(), run, Kind::shared), arena.offset(data));
  CHECK_EQ(place_of(lists.link(), run, Kind::cma), reinterpret_cast<uint64_t>(data));
  CHECK_EQ(place_of(lists.link(), run, Kind::pointer), reinterpret_cast<uint64_t>(data));
  arena.release(data);
}

}  // namespace
