#include "transport/shm/messages/letters.h"

#include <cstring>
#include <new>
#include <type_traits>

#include "transport/shm/protocol/protocol.h"

namespace a2a::shm {

template <class Box>
auto* Letters::letter(Box* box, uint64_t n) {
  using Byte = std::conditional_t<std::is_const_v<Box>, const std::byte, std::byte>;
  using Found = std::conditional_t<std::is_const_v<Box>, const OwnLetter, OwnLetter>;
  return reinterpret_cast<Found*>(reinterpret_cast<Byte*>(box) + kCacheLine + n % kLetters * kLetterBytes);
}

Mailbox<StdAtomics>* Letters::own() {
  if (own_ != nullptr) return own_;
  std::byte* const memory = m_.lend(kMailboxBytes);
  own_ = new (memory) Mailbox<StdAtomics>{};
  for (uint64_t n = 0; n < kLetters; ++n) new (letter(own_, n)) OwnLetter{};
  publish_mailbox(m_.block().pipe(peer_), m_.arena().offset(memory));
  return own_;
}

const Mailbox<StdAtomics>* Letters::theirs() {
  if (theirs_ != nullptr) return theirs_;
  Peer& peer = m_.peer(peer_);
  const uint64_t where = mailbox_of(peer.block.pipe(m_.rank()));
  if (where == 0) return nullptr;
  const uint64_t offset = where - 1;
  if (offset % kCacheLine != 0 || !peer.host->reach(offset, kMailboxBytes)) m_.nonsense(peer_, "mailbox");
  return theirs_ = reinterpret_cast<const Mailbox<StdAtomics>*>(peer.host->base + offset);
}

bool Letters::may_write() {
  own();
  if (written_ < kLetters) return true;
  const Mailbox<StdAtomics>* const reader = theirs();
  const uint64_t taken = reader == nullptr ? 0 : taken_of(*reader);
  if (taken > written_) m_.nonsense(peer_, "count of letters");
  return written_ - taken < kLetters;
}

void Letters::write(const LetterHead& head, const void* payload) {
  OwnLetter* const next = letter(own(), ++written_);
  next->head = head;
  if (payload != nullptr) std::memcpy(reinterpret_cast<std::byte*>(next) + kCacheLine, payload, head.length);
  publish_letter(*next, written_);
}

void Letters::count_matched() { publish_matched(*own(), ++matched_); }

bool Letters::crowded() {
  constexpr uint64_t kMostUnmatched = 256;
  if (inlined_ - met_ < kMostUnmatched) return false;
  if (const Mailbox<StdAtomics>* const reader = theirs()) met_ = matched_of(*reader);
  if (met_ > inlined_) m_.nonsense(peer_, "count of messages");
  return inlined_ - met_ >= kMostUnmatched;
}

std::optional<Letters::Read> Letters::next() {
  const Mailbox<StdAtomics>* const box = theirs();
  if (box == nullptr) return std::nullopt;
  const OwnLetter* const next = letter(box, taken_ + 1);
  Read read{{}, reinterpret_cast<const std::byte*>(next) + kCacheLine};
  if (!observe_letter(*next, taken_ + 1, &read.head)) return std::nullopt;
  return read;
}

void Letters::take() { publish_taken(*own(), ++taken_); }

}  // namespace a2a::shm
