#include "transport/shm/ways/run_list.h"

#include <cstring>

namespace a2a::shm {
namespace {

void add_run(const Link& link, Kind kind, const ListedRun& run) {
  Neighbour& host = link.host();
  if (run.bytes == 0 || (kind == Kind::shared && !host.reach(run.where, run.bytes))) link.nonsense("run");
  const auto* data = kind == Kind::shared ? host.base + run.where : reinterpret_cast<const std::byte*>(run.where);
  link.pair.listed.push_back({link.peer, const_cast<std::byte*>(data), run.bytes});
}

}  // namespace

uint64_t place_of(const Link& link, const Run& run, Kind kind) {
  return kind == Kind::shared ? link.m.arena().offset(run.data) : reinterpret_cast<uint64_t>(run.data);
}

ListedRun* new_list(const Link& link, size_t entries) {
  const size_t bytes = entries * sizeof(ListedRun);
  return reinterpret_cast<ListedRun*>(link.m.room_for_list(link.number(), link.operation.lists++, bytes));
}

uint64_t place_of(const Link& link, const ListedRun* list) {
  return link.m.arena().offset(reinterpret_cast<const std::byte*>(list));
}

void find_run(const Link& link, Kind kind, const ListedRun& run) {
  link.pair.listed.clear();
  add_run(link, kind, run);
  link.pair.remote = {link.pair.listed};
}

void find_runs(const Link& link, Kind kind, uint64_t list, size_t count, uint64_t bytes) {
  Pair& p = link.pair;
  Neighbour& host = link.host();
  // No run is empty, so a list that is longer than the bytes is none; it could be as long as all memory.
  if (count == 0 || count > bytes || list % alignof(ListedRun) != 0 || count > host.bytes / sizeof(ListedRun) ||
      !host.reach(list, count * sizeof(ListedRun))) {
    link.nonsense("list of runs");
  }
  uint64_t left = bytes;
  p.listed.clear();
  for (size_t i = 0; i < count; ++i) {
    ListedRun run;
    std::memcpy(&run, host.base + list + i * sizeof run, sizeof run);
    if (run.bytes > left) link.nonsense("list of runs");
    left -= run.bytes;
    add_run(link, kind, run);
  }
  if (left != 0) link.nonsense("list of runs");
  p.remote = {p.listed};
}

}  // namespace a2a::shm
