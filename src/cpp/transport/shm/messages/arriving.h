// A message on its way to this rank, within its host.
#pragma once

#include <memory>
#include <vector>

#include "transport/shm/messages/messages.h"

namespace a2a::shm {

struct Messages::Arriving final : Incoming {
  explicit Arriving(Messages& messages) : messages_(messages) {}
  void meet() override { messages_.meet(*this); }

  Rank peer = 0;  // the source, by its place on this host
  uint64_t id = 0;
  LetterKind kind = LetterKind::inlined;
  uint64_t where = 0;                // shared, pointer, cma: the bytes; piece: those that are there
  uint64_t copied = 0;               // bytes
  uint64_t there = 0;                // piece: bytes of the one that is there
  std::vector<std::byte> kept;       // inlined, while no receive wants it
  std::shared_ptr<MessageWork> own;  // from this rank to itself: the send

 private:
  Messages& messages_;
};

}  // namespace a2a::shm
