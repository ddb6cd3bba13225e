// A message from a rank of this host that this rank has not received completely.
#pragma once

#include <memory>
#include <vector>

#include "transport/shm/messages/messages.h"

namespace a2a::shm {

struct Messages::Arriving final : Incoming {
  explicit Arriving(Messages& messages) : messages_(messages) {}
  void meet() override { messages_.meet(*this); }

  Rank peer = 0;  // the source, by its rank on this host
  uint64_t id = 0;
  LetterKind kind = LetterKind::inlined;
  uint64_t where = 0;                // shared, pointer, cma: the bytes; piece: the current piece
  uint64_t copied = 0;               // bytes
  uint64_t there = 0;                // piece: bytes of the current piece, 0 when there is none
  std::vector<std::byte> kept;       // inlined, until a receive matches; declined: the reason
  std::shared_ptr<MessageWork> own;  // the send, of a message from this rank to itself

 private:
  Messages& messages_;
};

}  // namespace a2a::shm
