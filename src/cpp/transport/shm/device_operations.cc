// Operations on devices whose arguments the ranks do not compare: publishes their numbers, and reads what the peers
// publish about theirs.
#include "runtime/last_tick.h"
#include "transport/shm/protocol/protocol.h"
#include "transport/shm/protocol/texts.h"
#include "transport/shm/shm_transport.h"

namespace a2a::shm {

std::optional<Error> ShmTransport::pass(const Signature& signature) {
  membership_.progress().refuse_if_inherited();
  std::lock_guard lock(membership_.progress().mutex());
  if (auto error = find_end(signature)) return error;
  if (queue_.empty()) {
    membership_.publish_finished(signature);
  } else {  // after the operations in flight
    Batch batch;
    batch.signature = signature;
    batch.way = Way::pass;
    queue_.push_back(new_exchange(std::move(batch)));
    advance();
  }
  return find_contradiction(signature);
}

// Returns the error of a communicator that is broken or has lost a peer. A peer that gives up or leaves rings the bell,
// so this looks for one only after a ring. A peer that dies does not ring, so the kernel is asked from time to time.
std::optional<Error> ShmTransport::find_end(const Signature& signature) {
  const uint32_t rings = membership_.progress().rings();
  if (!broken_ && rings_seen_ == rings && last_tick() - asked_ < kFresh) return std::nullopt;
  rings_seen_ = rings;
  break_if_aborted();
  if (broken_) return broken_for(signature);
  const auto lost = find_lost(first_step(signature.number));
  return lost ? std::optional(Error(lost->code(), name_of(signature) + ": " + lost->what())) : std::nullopt;
}

std::optional<Error> ShmTransport::contradiction(const Signature& signature) {
  std::lock_guard lock(membership_.progress().mutex());
  return find_contradiction(signature);
}

std::optional<Error> ShmTransport::refusal(const Signature& next) {
  std::lock_guard lock(membership_.progress().mutex());
  for (Rank peer = 0; peer < size(); ++peer) {
    if (peer == membership_.rank()) continue;
    if (auto error = find_refusal(peer, next)) return error;
  }
  return std::nullopt;
}

std::optional<Error> ShmTransport::find_refusal(Rank peer, const Signature& signature) {
  const auto& words = membership_.peer(peer).block.words();
  const uint64_t step = first_step(signature.number), published = notice_of(words, step);
  if (published != notice(signature.number, static_cast<uint8_t>(published >> 8), 0)) return std::nullopt;
  return Error(Code::mismatch, name_of(signature) + ": rank " + std::to_string(membership_.name(peer)) +
                                   " does not take part, its arguments were refused there: " +
                                   peer_text(words.refusal_text[step % kSlots]));
}

std::optional<Error> ShmTransport::find_contradiction(const Signature& signature) {
  const auto op = static_cast<uint8_t>(signature.op), memory = static_cast<uint8_t>(signature.memory);
  for (Rank peer = 0; peer < size(); ++peer) {
    if (peer == membership_.rank()) continue;
    if (auto error = find_refusal(peer, signature)) return error;
    const uint64_t published = notice_of(membership_.peer(peer).block.words(), first_step(signature.number));
    if (published >> 16 != signature.number || published == notice(signature.number, op, memory)) continue;
    return Error(Code::mismatch, name_of(signature) + ": rank " + std::to_string(membership_.name(peer)) + " calls " +
                                     to_string(static_cast<Op>(static_cast<uint8_t>(published >> 8))) + " in " +
                                     to_string(static_cast<Memory>(static_cast<uint8_t>(published))) +
                                     " memory, rank " + std::to_string(membership_.name(membership_.rank())) +
                                     " runs it in " + to_string(signature.memory) + " memory without comparing");
  }
  return std::nullopt;
}

}  // namespace a2a::shm
