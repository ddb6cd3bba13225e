// The chunks through which two ranks exchange bytes that neither reads from the other's memory.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "transport/shm/copy/staging.h"
#include "transport/shm/protocol/layout.h"

namespace a2a::shm {

// The least number of chunks that each rank of a pair brings. While a peer still sends operation n, this rank may have
// staged the first chunks of the next kSlots / 2 operations, which the peer reads later: its `done` is last_step(n) at
// most, and a line is written when every peer's `done` has come to kSlots steps before. If the peer has no chunk left,
// this rank then has at least 2 * share - kSlots / 2 of them. That is more than its share, so it gives the surplus
// back, and the peer goes on. With a smaller share both would wait for ever. tests/cpp/shm/chunks_in_flight_test.cc
// looks at every order of steps.
inline constexpr unsigned kLeastShare = kSlots / 2 + 1;

// The number and size of a pair's chunks. Both ends compute it, so it depends on the group's size only.
struct ChunkShape {
  size_t bytes;    // of a chunk
  unsigned share;  // how many chunks each rank of the pair brings

  static ChunkShape of(int size);
  size_t capacity() const { return share * bytes; }  // bytes of a share
  size_t share_bytes() const { return kAside + capacity(); }
};

// One rank's end of a pair's chunks.
//
// A chunk belongs to one of the two ranks at a time. Its owner fills it and hands it over; the peer reads it, owns it
// from then on, and fills it next. So a rank writes lines that it has just read, which are in its cache only. Each line
// moves between the caches once for the bytes it carries. In a ring with one writer it would move twice.
//
// A rank keeps as many chunks as it has brought, and gives the surplus back.
//
// The lower rank's chunks have the lower numbers. What a peer has written is checked here: the functions that read it
// return false for invalid values.
class Chunks {
 public:
  Chunks() = default;
  Chunks(const ChunkShape& shape, bool lower) : shape_(shape), first_own_(lower ? 0 : shape.share) {}

  const ChunkShape& shape() const { return shape_; }
  std::byte* share() const { return own_; }  // this rank's share, nullptr before bring()
  void bring(std::byte* share);
  // Tells where the peer's share is mapped.
  void find(std::byte* share) { theirs_ = share; }

  std::byte* data(uint8_t chunk) const;
  // The bytes of an owned chunk that this rank has read since it got it: those lines are in its cache. The peer, which
  // read the others last, has those.
  size_t read(uint8_t chunk) const { return read_[chunk]; }
  // The store policies for lines in this rank's cache, and for lines that have to come back from the peer's.
  StagingStores& stores() { return stores_; }
  StagingStores& far_stores() { return far_stores_; }

  // Takes back the chunks that the peer has returned.
  bool collect(const Flow& returned);
  bool none_free() const { return free_count_ == 0; }
  // Returns the chunk to fill next: the one read last, whose lines are most likely in the cache. It stays this rank's
  // until hand_over(). Requires !none_free().
  uint8_t next() const { return free_[free_count_ - 1]; }
  uint64_t handed() const { return handed_; }  // how many since the communicator was made
  // Hands over the chunk next(), which is full. The caller publishes that with publish_count(), or with the line.
  void hand_over(Flow& handed);

  uint64_t taken() const { return taken_; }  // how many of the peer's chunks, counted like handed()
  // Whether the peer can own this chunk, and its share is mapped.
  bool is_theirs(uint8_t chunk) const;
  // Takes over a chunk of which `bytes` bytes have been read.
  void take(uint8_t chunk, size_t bytes);
  // Gives back the chunk that was taken last.
  void give_back_last(Flow& to_peer);
  // Skips to chunk `number`. The peer takes those before it back: they belong to operations that both have given up.
  bool skip_to(uint64_t number);
  // Takes back `count` chunks from `number` on, which belong to an operation that both have given up.
  void take_back(const Flow& handed, uint64_t number, uint64_t count);
  // Whether a chunk was taken since the last give_back_surplus().
  bool taken_since() const { return taken_since_; }
  // Gives back the chunks that exceed this rank's share.
  bool give_back_surplus(const Flow& from_peer, Flow& to_peer);

 private:
  unsigned all() const { return 2 * shape_.share; }
  std::byte* share_of(uint8_t chunk) const;  // the share that holds it, nullptr before that is mapped
  void own(uint8_t chunk);
  uint8_t disown();

  ChunkShape shape_{};
  unsigned first_own_ = 0;
  std::byte* own_ = nullptr;
  std::byte* theirs_ = nullptr;
  std::array<uint8_t, kListed> free_{};  // chunks to fill, [0, free_count_), the one read last at the end
  size_t free_count_ = 0;
  uint64_t owned_ = 0;  // one bit per chunk
  bool taken_since_ = false;
  uint64_t handed_ = 0, taken_ = 0, returned_ = 0, collected_ = 0;
  std::array<uint32_t, kListed> read_{};  // bytes, by chunk; 0 for chunks of the peer
  StagingStores stores_, far_stores_{StagingStores::kSlowestFar};
};

}  // namespace a2a::shm
