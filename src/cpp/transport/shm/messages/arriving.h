// A message from a rank of this host that this rank has not received completely.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "transport/shm/messages/messages.h"
#include "transport/shm/ways/ways.h"

namespace a2a::shm {

struct Messages::Arriving final : Incoming, Transfer {
  Arriving(Messages& all, Rank from, const PacketHeader& head);
  void meet() override { messages.meet(*this); }

  std::string name(const Membership& m) const override;
  void acknowledge(const Source& from) override;
  void ask_for_copies(const Source& from) override;

  Source pair_source() { return {messages.m_, *this, peer, pair}; }
  // Whether the receiver copies from the sender's memory.
  bool rendezvous() const;

  Messages& messages;
  const Rank peer;  // the source, by its rank on this host
  const uint64_t id;
  PacketKind kind;
  Pair pair{};
  uint64_t fragment = 0;             // 1 + the place of a fragment that the sender has not got back; 0: none
  std::vector<std::byte> kept;       // eager bytes, until a receive is matched
  std::string reason;                // declined: why
  std::shared_ptr<MessageWork> own;  // the send, of a message from this rank to itself
};

}  // namespace a2a::shm
