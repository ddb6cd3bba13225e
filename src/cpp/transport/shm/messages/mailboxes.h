// One rank's end of the two mailboxes that it shares with a peer of its host.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "core/message.h"
#include "transport/shm/copy/copy.h"
#include "transport/shm/peers/membership.h"
#include "transport/shm/protocol/mailbox.h"

namespace a2a::shm {

class Mailboxes {
 public:
  Mailboxes(Membership& membership, Rank peer) : m_(membership), peer_(peer) {}

  // Whether there is room for a packet. Throws Error(backend) when there is no memory for the mailbox.
  bool may_write();
  // Write the next packet, with the next `head.length` bytes of `payload`, or with as much of a text as fits. Require
  // may_write(). Do not wake the peer.
  void write(const PacketHeader& head, Cursor payload = {});
  void write(PacketHeader head, std::string_view text);

  // Counts a message that was written in one packet, and one of the peer that was matched with a receive.
  void count_inlined() { ++inlined_; }
  void count_matched();
  // Whether so many messages of this rank in single packets wait for receives that the next one had better go another
  // way: the peer keeps each of them.
  bool crowded();

  struct Received {
    PacketHeader head;
    std::span<const std::byte> payload;  // kPacketPayload bytes, valid until take()

    // A reason that the peer wrote.
    std::string text() const;
  };
  // Returns the peer's next packet, if it has come.
  std::optional<Received> next();
  // Frees the packet's place. Call when its contents were copied.
  void take();

 private:
  using OwnPacket = Packet<StdAtomics>;

  Mailbox<StdAtomics>* own();
  const Mailbox<StdAtomics>* theirs();
  OwnPacket& begin(const PacketHeader& head);

  Membership& m_;
  const Rank peer_;
  Mailbox<StdAtomics>* own_ = nullptr;
  const Mailbox<StdAtomics>* theirs_ = nullptr;
  uint64_t written_ = 0, taken_ = 0;
  uint64_t inlined_ = 0, known_matched_ = 0;  // of this rank's messages in single packets
  uint64_t matched_ = 0;                      // of the peer's
};

}  // namespace a2a::shm
