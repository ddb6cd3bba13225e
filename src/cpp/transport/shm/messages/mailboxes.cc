#include "transport/shm/messages/mailboxes.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <type_traits>

#include "transport/shm/protocol/protocol.h"
#include "transport/shm/protocol/texts.h"

namespace a2a::shm {
namespace {

template <class Box>
auto& packet(Box* box, uint64_t n) {
  using Byte = std::conditional_t<std::is_const_v<Box>, const std::byte, std::byte>;
  using Found = std::conditional_t<std::is_const_v<Box>, const Packet<StdAtomics>, Packet<StdAtomics>>;
  return *reinterpret_cast<Found*>(reinterpret_cast<Byte*>(box) + kCacheLine + n % kPackets * kPacketBytes);
}

std::byte* payload_of(Packet<StdAtomics>& packet) { return reinterpret_cast<std::byte*>(&packet) + kCacheLine; }

}  // namespace

Mailbox<StdAtomics>* Mailboxes::own() {
  if (own_ != nullptr) return own_;
  std::byte* const memory = m_.allocate(kMailboxBytes);
  own_ = new (memory) Mailbox<StdAtomics>{};
  for (uint64_t n = 0; n < kPackets; ++n) new (&packet(own_, n)) OwnPacket{};
  publish_mailbox(m_.block().pipe(peer_), m_.arena().offset(memory));
  return own_;
}

const Mailbox<StdAtomics>* Mailboxes::theirs() {
  if (theirs_ != nullptr) return theirs_;
  Peer& peer = m_.peer(peer_);
  const uint64_t where = mailbox_of(peer.block.pipe(m_.rank()));
  if (where == 0) return nullptr;
  const uint64_t offset = where - 1;
  if (offset % kCacheLine != 0 || !peer.host->reach(offset, kMailboxBytes)) m_.nonsense(peer_, "mailbox");
  return theirs_ = reinterpret_cast<const Mailbox<StdAtomics>*>(peer.host->base + offset);
}

bool Mailboxes::may_write() {
  own();
  if (written_ < kPackets) return true;
  const Mailbox<StdAtomics>* const reader = theirs();
  const uint64_t taken = reader == nullptr ? 0 : taken_of(*reader);
  if (taken > written_) m_.nonsense(peer_, "count of packets");
  return written_ - taken < kPackets;
}

Mailboxes::OwnPacket& Mailboxes::begin(const PacketHeader& head) {
  OwnPacket& next = packet(own(), ++written_);
  next.head = head;
  return next;
}

void Mailboxes::write(const PacketHeader& head, Cursor payload) {
  OwnPacket& next = begin(head);
  if (!payload.at_end() && head.length > 0) gather(payload, payload_of(next), head.length);
  publish_packet(next, written_);
}

void Mailboxes::write(PacketHeader head, std::string_view text) {
  head.length = static_cast<uint32_t>(std::min(text.size(), kPacketPayload));
  OwnPacket& next = begin(head);
  std::memcpy(payload_of(next), text.data(), head.length);
  publish_packet(next, written_);
}

void Mailboxes::count_matched() { publish_matched(*own(), ++matched_); }

bool Mailboxes::crowded() {
  constexpr uint64_t kMostUnmatched = 256;
  if (inlined_ - known_matched_ < kMostUnmatched) return false;
  if (const Mailbox<StdAtomics>* const reader = theirs()) known_matched_ = matched_of(*reader);
  if (known_matched_ > inlined_) m_.nonsense(peer_, "count of messages");
  return inlined_ - known_matched_ >= kMostUnmatched;
}

std::string Mailboxes::Received::text() const {
  const size_t length = std::min<size_t>(head.length, payload.size());
  return peer_text(std::string(reinterpret_cast<const char*>(payload.data()), length).c_str());
}

std::optional<Mailboxes::Received> Mailboxes::next() {
  const Mailbox<StdAtomics>* const box = theirs();
  if (box == nullptr) return std::nullopt;
  const auto& next = packet(box, taken_ + 1);
  Received received{{}, {reinterpret_cast<const std::byte*>(&next) + kCacheLine, kPacketPayload}};
  if (!observe_packet(next, taken_ + 1, &received.head)) return std::nullopt;
  return received;
}

void Mailboxes::take() { publish_taken(*own(), ++taken_); }

}  // namespace a2a::shm
