// The beginning of an exchange: chooses the way to each peer, and publishes the lines.
#include <algorithm>
#include <cstring>

#include "runtime/faultpoint.h"
#include "transport/shm/exchange.h"
#include "transport/shm/protocol/texts.h"
#include "transport/shm/ways/sent_memory.h"

namespace a2a::shm {
namespace {

// Whether every rank gets the same bytes, as in an allgather.
bool all_alike(std::span<const Run> sends, size_t ranks) {
  if (sends.size() != ranks) return false;
  for (size_t i = 0; i < ranks; ++i) {
    Run alike = sends[0];
    alike.peer = static_cast<Rank>(i);
    if (sends[i] != alike) return false;
  }
  return true;
}

}  // namespace

bool Exchange::post(Membership& m) {
  const Batch& batch = operation_.batch;
  if (batch.way == Way::pass) return posted_ = true;
  const uint64_t n = step();
  for (Rank peer = 0; peer < m.size(); ++peer) {
    if (peer != m.rank() && !m.slot_free(peer, n)) return false;
  }
  auto& words = m.block().words();
  words.started_op.store(static_cast<uint32_t>(batch.signature.op), std::memory_order_relaxed);
  words.unit_bytes[n % kSlots].store(batch.unit_bytes > UINT32_MAX ? 0 : static_cast<uint32_t>(batch.unit_bytes),
                                     std::memory_order_relaxed);
  words.started.store(n, std::memory_order_relaxed);
  operation_.load.alike = all_alike(batch.sends, operation_.pairs.size()) ? batch.sends[0].bytes : 0;
  operation_.stores = choose_stores(operation_.load, m.machine());
  const bool refused = !batch.refusal.empty();
  if (refused) write_text(words.refusal_text[n % kSlots], batch.refusal);
  const Head& own = operation_.own().mine;
  publish_notice(words, n, notice(batch.signature.number, own.op, refused ? 0 : own.memory));
  copy_for_all(m);
  awaited_.reserve(operation_.pairs.size());
  for (int step = 1; step < m.size(); ++step) {
    offer(Link(m, operation_, send_peer(m.rank(), m.size(), step)));
    awaited_.push_back(recv_peer(m.rank(), m.size(), step));
  }
  m.wake_sleepers();
  const bool later = own_waits_ || operation_.calculates() || (batch.asynchronous && m.progress().is_served());
  while (!later && !own_copied()) copy_own();
  posted_ = true;
  return true;
}

// Makes one copy of bytes that all peers get alike. This rank does not wait until they have read it: the copy stays
// valid until the slots of this operation are used again.
void Exchange::copy_for_all(Membership& m) {
  const size_t bytes = operation_.load.alike;
  if (bytes < direct_min(m.machine())) return;
  for (Rank peer = 0; peer < m.size(); ++peer) {
    if (peer == operation_.rank) continue;
    const Link link(m, operation_, peer);
    if (!copy_for_all_pays(choose(link).kind, bytes, operation_.pairs.size())) continue;
    Run& copy = operation_.for_all;
    if (copy.data == nullptr) {
      std::byte* room = m.room_for_all(step(), bytes);
      if (room == nullptr) return;
      Cursor all{{operation_.batch.sends.data(), 1}};
      gather(all, room, bytes);
      copy = {operation_.rank, room, bytes};
    }
    link.pair.source = {{&copy, 1}};
  }
}

Choice Exchange::choose(const Link& link) {
  if (!operation_.batch.refusal.empty()) return {Kind::refused, "this rank does not take part"};
  if (operation_.batch.way == Way::compare) return {Kind::none, "the bytes go another way"};
  const Route route{.bytes = link.pair.mine.sent,
                    .inline_bytes = link.m.block().inline_bytes(),
                    .chunk_bytes = ChunkShape::of(link.m.size()).capacity(),
                    .same_process = link.host().same_process,
                    .gaps = has_gaps(link.pair.source.runs),
                    .folds = operation_.calculates(),
                    .cma = link.host().cma_to};
  SentMemory probe(link.m, link.pair.source.runs, operation_.sent);
  return choose_way(route, operation_.load, link.m.machine(), probe);
}

void Exchange::offer(const Link& link) {
  Pair& p = link.pair;
  Line& line = link.own_line();
  const Kind kind = choose(link).kind;
  p.mine.kind = static_cast<uint8_t>(kind);
  const uint8_t flag = operation_.batch.flag ? kFlag : 0;
  p.mine.backlog = static_cast<uint8_t>(backlog(link.m.block().words(), step()) | flag);
  switch (kind) {
    case Kind::staged:
      staged::offer(link);
      break;
    case Kind::shared:
    case Kind::pointer:
    case Kind::cma:
      pull::offer(link, kind);
      break;
    case Kind::none:
    case Kind::inlined:  // inlined::offer() overwrites the last words of the head
    case Kind::refused:
      break;
  }
  std::memcpy(&line.head, &p.mine, sizeof(Head));
  if (kind == Kind::inlined) inlined::offer(link);
  faultpoint("publish");
  publish(line, step());
  if (p.out != Pair::Out::settled) unsettled_.push_back(link.peer);
}

}  // namespace a2a::shm
