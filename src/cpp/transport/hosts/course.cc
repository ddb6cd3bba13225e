#include "transport/hosts/course.h"

#include <utility>

#include "transport/hosts/runs.h"
#include "transport/hosts/turns.h"

namespace a2a::hosts {
namespace {

// Turns pay off when they save at least this many bytes between hosts: they cost one more exchange.
constexpr size_t kWorthTurns = size_t{128} << 10;
// The limit for an allreduce of two ranks on two hosts. Parts save folds there, but no bytes between hosts.
constexpr size_t kMostToFold = size_t{512} << 10;

size_t elsewhere(const Places& places, Rank rank) {
  return static_cast<size_t>(places.size()) - places.ranks_of(places.host_of(rank)).size();
}

// Returns the bytes that turns save: each part would go once to each host, rather than once to each rank of other
// hosts.
size_t saved(const Places& places, std::span<const size_t> parts) {
  size_t bytes = 0;
  for (Rank rank = 0; rank < places.size(); ++rank) {
    const size_t once = static_cast<size_t>(places.hosts()) - 1;
    bytes += parts[static_cast<size_t>(rank)] * (elsewhere(places, rank) - once);
  }
  return bytes;
}

bool goes_to_all(Op op) { return op == Op::broadcast || op == Op::allgather || op == Op::allgatherv; }

// Returns every rank's part, in bytes: of a reduction the bytes that each rank has for it, otherwise the bytes that it
// sends to all.
std::vector<size_t> parts_of(const Batch& batch, Rank rank, const Places& places) {
  const bool folds = batch.signature.fold != Fold::none;
  std::vector<size_t> parts;
  for (Rank peer = 0; peer < places.size(); ++peer) {
    parts.push_back(bytes_of(runs_with(folds ? batch.sends : batch.recvs, peer)));
  }
  if (!folds) parts[static_cast<size_t>(rank)] = bytes_of(sent_to_all(batch, rank, places));
  return parts;
}

// An allreduce of many bytes comes in halves. In a scan each rank has parts of its own for each other.
bool have_turns(Op op) { return op != Op::allreduce && op != Op::scan && op != Op::exscan; }

bool take_turns(const Batch& batch, const Places& places, std::span<const size_t> parts) {
  if (batch.half != Half::whole) return true;
  return have_turns(batch.signature.op) && saved(places, parts) >= kWorthTurns;
}

// Folds everything in one exchange: ranks of other hosts send their parts one by one. The parts are those of all ranks,
// or in a scan of some.
std::unique_ptr<Course> fold_at_once(const Batch& batch, Rank rank, const Places& places, Scratch& scratch) {
  auto course = std::make_unique<Course>();
  course->between = batch;
  course->between.recvs.clear();
  Batch& here = course->here.emplace();
  static_cast<Terms&>(here) = batch;
  here.strides = batch.strides;
  here.copy = batch.copy;
  here.sends = runs_here(batch.sends, places, rank);
  if (batch.recvs.empty()) return course;
  const auto output = runs_with(batch.recvs, batch.recvs.front().peer);
  const size_t bytes = bytes_of(output);
  course->memory = scratch.take(bytes * static_cast<size_t>(places.size()));
  std::byte* const folded_here = course->memory.get();
  std::vector<HostFold::From> hosts(static_cast<size_t>(places.hosts()));
  for (Rank peer = 0, others = 0; peer < places.size(); ++peer) {
    if (runs_with(batch.recvs, peer).empty()) continue;
    HostFold::From& from = hosts[static_cast<size_t>(places.host_of(peer))];
    ++from.ranks;
    if (places.host_of(peer) == places.host_of(rank)) {
      from.parts = {folded_here};
      here.recvs.push_back({static_cast<Rank>(places.seat_of(peer)), folded_here, bytes});
    } else {
      from.parts.push_back(folded_here + static_cast<size_t>(++others) * bytes);
      course->between.recvs.push_back({peer, from.parts.back(), bytes});
    }
  }
  std::erase_if(hosts, [](const HostFold::From& host) { return host.ranks == 0; });
  course->fold.emplace(batch.signature, output, std::move(hosts));
  return course;
}

}  // namespace

std::shared_ptr<std::byte[]> Scratch::take(size_t bytes) {
  if (latest_.use_count() != 1 || bytes_ < bytes) {
    latest_.reset(new std::byte[bytes]);
    bytes_ = bytes;
  }
  return latest_;
}

size_t most_at_once(const Places& places) {
  size_t times = 0;  // the number of times that all bytes go between hosts
  for (Rank rank = 0; rank < places.size(); ++rank) times += elsewhere(places, rank);
  const size_t in_parts = 2 * (static_cast<size_t>(places.hosts()) - 1);
  return times > in_parts ? kWorthTurns / (times - in_parts) : kMostToFold;
}

std::unique_ptr<Course> course_of(const Batch& batch, Rank rank, const Places& places, Scratch& scratch) {
  const bool folds = batch.signature.fold != Fold::none;
  const bool plain = !folds && batch.half == Half::whole && !goes_to_all(batch.signature.op);
  if (plain || batch.way != Way::exchange || !batch.refusal.empty()) return nullptr;
  const auto parts = parts_of(batch, rank, places);
  if (!take_turns(batch, places, parts)) return folds ? fold_at_once(batch, rank, places, scratch) : nullptr;
  const Turns turns(batch, rank, places, parts);
  return folds ? turns.fold(scratch) : turns.hand_on();
}

}  // namespace a2a::hosts
