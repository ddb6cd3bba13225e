// The messages of a rank whose only peer is the test: it reads the packets of the rank and writes its own.
#pragma once

#include <cstring>
#include <optional>

#include "../../fuzz/hostile_peer.h"
#include "core/facts.h"
#include "transport/shm/messages/messages.h"

namespace shm_test {

using namespace a2a;
using namespace a2a::shm;
using fuzz::HostilePeer;

inline constexpr DType kBytes{1, 8, 1};
inline constexpr int64_t kTag = 7;

class MessagePeer {
 public:
  explicit MessagePeer(HostilePeer& peer) : peer_(peer), messages_(peer.membership(), matching_, held_) {
    new (peer_.mailbox()) Mailbox<StdAtomics>{};
    publish_mailbox(peer_.block().pipe(HostilePeer::kMe), HostilePeer::kMailbox);
  }

  // The rank sends or receives.
  std::shared_ptr<MessageWork> start(const a2a::Message& message) {
    const auto work = std::make_shared<MessageWork>(peer_.progress(), message);
    messages_.start(work);
    return work;
  }
  std::shared_ptr<MessageWork> start(bool sends, std::byte* data, size_t bytes) {
    return start({sends, HostilePeer::kPeer, kTag, data, bytes, kBytes});
  }
  bool advance() { return messages_.advance(); }
  void fail(const Error& error) { messages_.fail_all(error); }
  Messages& messages() { return messages_; }

  // Returns the packet that the peer wrote last. The rank has often not read it yet.
  std::byte* last() { return place(peer_.mailbox(), written_); }

  // Sends a message of the peer: its header, and later fragments as the rank asks for them.
  void send(PacketKind kind, size_t bytes) {
    bytes_ = bytes;
    offset_ = 0;
    PacketHeader head{++sent_, kTag, bytes, 0, 0, 0, pack(kBytes), kind};
    if (kind == PacketKind::fragment) return send_fragment();
    if (kind == PacketKind::inlined || kind == PacketKind::declined) head.length = static_cast<uint32_t>(bytes);
    if (kind == PacketKind::shared) head.where = HostilePeer::kData;
    if (kind == PacketKind::cma) head.where = reinterpret_cast<uint64_t>(peer_.data());
    write(head);
  }

  // Takes the rank's next packet. Its payload stays valid until the rank writes its eighth packet after it.
  std::optional<Mailboxes::Received> next() {
    Membership& m = peer_.membership();
    const uint64_t where = mailbox_of(m.block().pipe(HostilePeer::kPeer));
    if (where == 0) return std::nullopt;
    const std::byte* const at = place(m.arena().base() + (where - 1), taken_ + 1);
    Mailboxes::Received received{{}, {at + kCacheLine, kPacketPayload}};
    const auto* packet = reinterpret_cast<const Packet<StdAtomics>*>(at);
    if (!observe_packet(*packet, taken_ + 1, &received.head)) return std::nullopt;
    publish_taken(*reinterpret_cast<Mailbox<StdAtomics>*>(peer_.mailbox()), ++taken_);
    return received;
  }
  void reply(PacketKind kind, uint64_t id, uint64_t where = 0) {
    PacketHeader head{};
    head.kind = kind;
    head.id = id;
    head.where = where;
    write(head);
  }
  // Reads one packet of the rank, and replies to it.
  void answer(bool reads_memory) {
    const auto packet = next();
    if (!packet) return;
    const PacketHeader& head = packet->head;
    switch (head.kind) {
      case PacketKind::ack:
        if (offset_ < bytes_) send_fragment();
        return;
      case PacketKind::nack:
        return send_fragment();
      case PacketKind::fragment:
        return reply(PacketKind::ack, head.id, head.length > 0 ? head.where + 1 : 0);
      case PacketKind::shared:
      case PacketKind::cma:
        return reply(reads_memory ? PacketKind::fin : PacketKind::nack, head.id);
      default:
        return;
    }
  }

 private:
  static constexpr size_t kFragment = 100000;  // bytes of the peer's fragments

  template <class Byte>
  static Byte* place(Byte* box, uint64_t n) {
    return box + kCacheLine + n % kPackets * kPacketBytes;
  }
  void write(const PacketHeader& head) {
    auto* packet = reinterpret_cast<Packet<StdAtomics>*>(place(peer_.mailbox(), ++written_));
    packet->head = head;
    publish_packet(*packet, written_);
  }
  void send_fragment() {
    const size_t length = std::min(kFragment, bytes_ - offset_);
    PacketHeader head{sent_, kTag, bytes_, HostilePeer::kData, offset_, 0, pack(kBytes), PacketKind::fragment};
    head.length = static_cast<uint32_t>(length);
    offset_ += length;
    write(head);
  }

  HostilePeer& peer_;
  Matching matching_;
  a2a::HeldMessages held_;
  Messages messages_;
  uint64_t written_ = 0, taken_ = 0, sent_ = 0;
  size_t bytes_ = 0, offset_ = 0;  // of the last message that the peer sends
};

}  // namespace shm_test
