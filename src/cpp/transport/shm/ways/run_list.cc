#include "transport/shm/ways/run_list.h"

#include <cstring>
#include <type_traits>

namespace a2a::shm {
namespace {

// Returns the address of a peer's run in this process. The place was checked.
std::byte* memory_at(const Source& from, Kind kind, uint64_t where) {
  const auto* data = kind == Kind::shared ? from.host().base + where : reinterpret_cast<const std::byte*>(where);
  return const_cast<std::byte*>(data);
}

void add_run(const Source& from, Kind kind, const ListedRun& run) {
  if (run.bytes == 0 || (kind == Kind::shared && !from.host().reach(run.where, run.bytes))) from.nonsense("run");
  from.pair.listed.push_back({from.peer, memory_at(from, kind, run.where), run.bytes});
}

}  // namespace

uint64_t place_of(const Link& link, const Run& run, Kind kind) {
  return kind == Kind::shared ? link.m.arena().offset(run.data) : reinterpret_cast<uint64_t>(run.data);
}

ListedRun* new_list(const Link& link, size_t entries) {
  const size_t bytes = entries * sizeof(ListedRun);
  return reinterpret_cast<ListedRun*>(link.m.room_for_list(link.step(), link.operation.lists++, bytes));
}

uint64_t place_of(const Link& link, const void* list) {
  return link.m.arena().offset(static_cast<const std::byte*>(list));
}

uint64_t list_blocks(const Link& link, std::span<const Run> runs, Kind kind) {
  std::byte* const list = link.m.room_for_list(link.step(), link.operation.lists++, runs.size() * sizeof(ListedBlock));
  for (size_t i = 0; i < runs.size(); ++i) {
    const Run& run = runs[i];
    ListedBlock block{{place_of(link, run, kind), run.bytes}, run.begin, run.bytes, 0, {}};
    if (run.strides != nullptr) {
      block.piece = run.strides->piece();
      block.dims = static_cast<uint64_t>(run.strides->dims());
    }
    for (size_t d = 0; d < block.dims; ++d) {
      const Strides::Dim& dim = run.strides->dim(static_cast<int>(d));
      block.dim[d] = {dim.count, dim.stride};
    }
    std::memcpy(list + i * sizeof block, &block, sizeof block);
  }
  return place_of(link, list);
}

void find_run(const Source& from, Kind kind, const ListedRun& run) {
  from.pair.listed.clear();
  add_run(from, kind, run);
  from.pair.remote = {from.pair.listed};
}

namespace {

// Whether the peer's segment holds all memory of the block.
bool reaches(LocalPeer& host, uint64_t where, const Strides& strides) {
  const uint64_t before = 0 - static_cast<uint64_t>(strides.begin()), after = static_cast<uint64_t>(strides.end());
  return where >= before && host.reach(where - before, before + after);
}

void add_run(const Source& from, Kind kind, const ListedBlock& block) {
  Pair& p = from.pair;
  LocalPeer& host = from.host();
  Strides::Dim dims[ListedBlock::kMostDims];
  if (block.dims > ListedBlock::kMostDims) from.nonsense("run");
  for (size_t d = 0; d < block.dims; ++d) dims[d] = {block.dim[d].count, block.dim[d].stride, 0};
  const auto strides = Strides::of(block.piece, {dims, block.dims});
  const auto& [where, bytes] = block.run;
  if (!strides || bytes == 0 || block.begin > strides->bytes() || bytes > strides->bytes() - block.begin ||
      (kind == Kind::shared && !reaches(host, where, *strides))) {
    from.nonsense("run");
  }
  p.listed_strides.push_back(*strides);
  p.listed.push_back({from.peer, memory_at(from, kind, where), bytes, &p.listed_strides.back(), block.begin});
}

uint64_t bytes_of(const ListedRun& run) { return run.bytes; }
uint64_t bytes_of(const ListedBlock& block) { return block.run.bytes; }

// Reads a peer's list of runs, and checks it.
template <class Entry>
void find(const Source& from, Kind kind, uint64_t list, size_t count, uint64_t bytes) {
  Pair& p = from.pair;
  LocalPeer& host = from.host();
  // No run is empty, so no valid list has more entries than bytes. A list without that limit could be as long as all
  // memory.
  if (count == 0 || count > bytes || list % alignof(Entry) != 0 || count > host.bytes / sizeof(Entry) ||
      !host.reach(list, count * sizeof(Entry))) {
    from.nonsense("list of runs");
  }
  uint64_t left = bytes;
  p.listed.clear();
  p.listed_strides.clear();
  if constexpr (std::is_same_v<Entry, ListedBlock>) p.listed_strides.reserve(count);  // the runs point to them
  for (size_t i = 0; i < count; ++i) {
    Entry entry;
    std::memcpy(&entry, host.base + list + i * sizeof entry, sizeof entry);
    if (bytes_of(entry) > left) from.nonsense("list of runs");
    left -= bytes_of(entry);
    add_run(from, kind, entry);
  }
  if (left != 0) from.nonsense("list of runs");
  p.remote = {p.listed};
}

}  // namespace

void find_runs(const Source& from, Kind kind, uint64_t list, size_t count, uint64_t bytes) {
  find<ListedRun>(from, kind, list, count, bytes);
}

void find_blocks(const Source& from, Kind kind, uint64_t list, size_t count, uint64_t bytes) {
  find<ListedBlock>(from, kind, list, count, bytes);
}

}  // namespace a2a::shm
