#include <algorithm>
#include <cstring>
#include <utility>

#include "runtime/faultpoint.h"
#include "transport/shm/ways/ways.h"

namespace a2a::shm::staged {
namespace {

void store(StagingStores& stores, Cursor& source, std::byte* to, size_t bytes) {
  constexpr size_t kMeasurable = size_t{8} << 10;  // fewer bytes fit into the CPU's store buffers
  if (bytes < kMeasurable) return gather(source, to, bytes);
  if (!stores.is_due()) return gather(source, to, bytes, stores.choose());
  const auto before = StagingStores::Clock::now();
  gather(source, to, bytes, stores.choose());
  stores.took(bytes, StagingStores::Clock::now() - before);
}

// Fills a chunk. A rank that sends more than it receives fills the rest of a chunk into lines that the peer has read
// last.
void fill(Chunks& chunks, Cursor& source, uint8_t chunk, size_t bytes) {
  const size_t near = std::min(bytes, chunks.read(chunk));
  if (near > 0) store(chunks.stores(), source, chunks.data(chunk), near);
  if (near < bytes) store(chunks.far_stores(), source, chunks.data(chunk) + near, bytes - near);
}

// Whether this rank has a chunk to fill.
bool has_free_chunk(const Link& link) {
  Chunks& chunks = link.other.chunks;
  // Loads the counter only when no chunk is left: its line changes hands with each chunk that comes back.
  if (chunks.none_free() && !chunks.collect(link.their_pipe().returned)) link.nonsense("chunk");
  return !chunks.none_free();
}

// Returns surplus chunks to the peer, unless this rank still has bytes to send in them.
void share_out(const Source& from) {
  Chunks& chunks = from.other.chunks;
  if (from.pair.out == Pair::Out::streaming || !chunks.taken_since()) return;
  if (!chunks.give_back_surplus(from.their_pipe().returned, from.own_pipe().returned)) from.nonsense("chunk");
}

// Hands over the next chunk, which is full.
void hand_over(const Link& link) {
  faultpoint("stage");
  Pair& p = link.pair;
  link.other.chunks.hand_over(link.own_pipe().handed);
  ++p.out_handed;
  if (--p.out_left == 0) {
    p.out = Pair::Out::settled;
    share_out(link);
  }
}

// Fills a chunk and hands it over, if one is free. Returns its number, for the caller to publish.
std::optional<uint8_t> stage_chunk(const Link& link) {
  if (!has_free_chunk(link)) return std::nullopt;
  Chunks& chunks = link.other.chunks;
  const uint8_t chunk = chunks.next();
  fill(chunks, link.pair.source, chunk, link.pair.next_out(chunks.shape().bytes));
  hand_over(link);
  return chunk;
}

}  // namespace

void offer(const Link& link) {
  Pair& p = link.pair;
  Chunks& chunks = link.m.chunks_to_fill(link.peer);
  p.mine.where = link.m.progress().memory().common().offset(chunks.share());
  p.mine.first = p.out_first = chunks.handed();
  p.out_left = (p.mine.sent + chunks.shape().bytes - 1) / chunks.shape().bytes;
  p.out = Pair::Out::streaming;
  const auto chunk = stage_chunk(link);  // the first chunk comes with the line
  p.mine.count = chunk ? 1 + *chunk : 0;
}

bool send(const Link& link) {
  if (!stage_chunk(link)) return false;
  publish_count(link.own_pipe().handed, link.other.chunks.handed());
  return true;
}

void replace_cma(const Link& link) {
  Pair& p = link.pair;
  pull::stop_cma(link.host(), p.source, link.name());
  // The chunks of a pair are one stream: none may be added once the next operation's chunks are published.
  const uint64_t number = link.operation.batch.signature.number;
  const Line& next = link.m.block().line(first_step(number + 1), link.peer);
  if (is_published(next, first_step(number + 1)) && static_cast<Kind>(next.head.kind) == Kind::staged) {
    throw Error(Code::backend, name_of(link.operation.batch.signature) + ": rank " +
                                   std::to_string(link.m.name(link.peer)) + " may no longer read the memory of rank " +
                                   std::to_string(link.m.name(link.m.rank())) +
                                   ", which changed while several operations were in flight");
  }
  p.mine.kind = static_cast<uint8_t>(Kind::staged);
  offer(link);
  std::memcpy(&link.own_line().head, &p.mine, sizeof(Head));
  publish_rewritten(link.own_pipe(), link.step());
}

void begin(const Link& link) {
  Pair& p = link.pair;
  LocalPeer& host = link.host();
  Chunks& chunks = link.other.chunks;
  if (!host.reach_common(p.theirs.where, chunks.shape().share_bytes())) link.nonsense("share of the chunks");
  chunks.find(host.common + p.theirs.where);
  if (p.theirs.count > kListed || !chunks.skip_to(p.theirs.first)) link.nonsense("count of chunks");
  p.in = Pair::In::streaming;
}

namespace {

// Returns the peer's next full chunk, if there is one.
std::optional<uint8_t> next_full(const Source& from) {
  const Pair& p = from.pair;
  Chunks& chunks = from.other.chunks;
  const Flow& handed = from.their_pipe().handed;
  const bool with_line = p.theirs.count > 0;
  if (chunks.taken() >= std::max(p.theirs.first + (with_line ? 1 : 0), count_of(handed))) return std::nullopt;
  const bool first = with_line && chunks.taken() == p.theirs.first;
  const auto chunk = first ? static_cast<uint8_t>(p.theirs.count - 1) : listed(handed, chunks.taken());
  if (!chunks.is_theirs(chunk)) from.nonsense("chunk");
  return chunk;
}

}  // namespace

// Takes the chunks that have come. Where ranks do not share CPUs, and this rank still sends, it takes one at a time: if
// it took several before it hands one over, the peer would be idle meanwhile.
void take(const Source& from) {
  Pair& p = from.pair;
  Chunks& chunks = from.other.chunks;
  while (p.in_left > 0) {
    const auto full = next_full(from);
    if (!full) break;
    const uint8_t chunk = *full;
    const size_t bytes = std::min(p.in_left, chunks.shape().bytes);
    scatter(p.target, chunks.data(chunk), bytes, from.transfer.stores);
    faultpoint("copy");
    p.in_left -= bytes;
    chunks.take(chunk, bytes);
    share_out(from);
    if (p.out == Pair::Out::streaming && !from.m.surroundings().oversubscribed()) break;
  }
  if (p.in_left == 0) p.in = Pair::In::arrived;
}

std::span<const std::byte> peek(const Source& from) {
  const Pair& p = from.pair;
  const auto chunk = next_full(from);
  if (!chunk) return {};
  const size_t full = from.other.chunks.shape().bytes, passed = (p.theirs.sent - p.in_left) % full;
  return {from.other.chunks.data(*chunk) + passed, std::min(p.in_left, full - passed)};
}

void consume(const Source& from, size_t bytes) {
  Pair& p = from.pair;
  Chunks& chunks = from.other.chunks;
  const auto chunk = next_full(from);
  if (!chunk) from.nonsense("count of chunks");  // peek() has seen it
  p.in_left -= bytes;
  const size_t passed = (p.theirs.sent - p.in_left) % chunks.shape().bytes;
  if (passed != 0 && p.in_left > 0) return;
  chunks.take(*chunk, passed != 0 ? passed : chunks.shape().bytes);
  // With a fixed order, as in a weighted sum, this rank's chunks may lie unread at a peer. So each rank fills only its
  // own chunks: a peer whose chunks all held unread rows of this rank would have none to fill.
  if (from.transfer.has_fixed_order()) {
    chunks.give_back_last(from.own_pipe().returned);
  } else {
    share_out(from);
  }
  if (p.in_left == 0) p.in = Pair::In::arrived;
}

bool holds_rest(const Pair& pair, const Chunks& chunks, const Flow& handed) {
  const size_t full = chunks.shape().bytes, passed = (pair.theirs.sent - pair.in_left) % full;
  const uint64_t there = std::max(pair.theirs.first + (pair.theirs.count > 0 ? 1 : 0), count_of(handed));
  return there >= chunks.taken() + (passed + pair.in_left + full - 1) / full;
}

void give_up(const Link& link) {
  Pair& p = link.pair;
  link.other.chunks.take_back(link.own_pipe().handed, p.out_first, std::exchange(p.out_handed, 0));
}

}  // namespace a2a::shm::staged
