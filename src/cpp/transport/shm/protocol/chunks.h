// The memory through which two ranks move what neither reads from the other: chunks that they hand to and fro.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "transport/shm/copy/staging.h"
#include "transport/shm/protocol/layout.h"

namespace a2a::shm {

// How the chunks of each pair of a group are cut. Both ends must know it, so it depends on the group's size only.
struct ChunkShape {
  size_t bytes;    // of a chunk
  unsigned share;  // how many each rank of the pair brings

  static ChunkShape of(int size);
  size_t capacity() const { return share * bytes; }  // of a share
  size_t share_bytes() const { return kAside + capacity(); }
};

// A chunk belongs to one of the two ranks at a time. Its owner fills it and hands it over; the other empties it, owns
// it now, and fills it next. So the lines that a rank writes are those that it has just read, which are in its cache
// and in no other: each line makes one journey between the caches for what it carries, and not two, as in a ring that
// only one rank writes, where it has to come back empty.
//
// A rank keeps as many as it has brought. What it has more, because it gets more than it sends, it gives back.
//
// One end of it. Numbers of chunks: those that the lower rank has brought, then those of the higher. What a peer has
// written is checked here; the functions that meet it return false for nonsense.
class Chunks {
 public:
  Chunks() = default;
  Chunks(const ChunkShape& shape, bool lower) : shape_(shape), first_own_(lower ? 0 : shape.share) {}

  const ChunkShape& shape() const { return shape_; }
  std::byte* share() const { return own_; }  // what this rank has brought, nullptr before it has
  void bring(std::byte* share);
  // The peer has brought its share, and maps it there.
  void find(std::byte* share) { theirs_ = share; }

  std::byte* data(uint8_t chunk) const;
  // How much of a chunk of this rank's it has read since it got it: those lines it has in its cache. The others are
  // with the peer, who has read them last.
  size_t read(uint8_t chunk) const { return read_[chunk]; }
  // For lines that this rank has, and for those that it has to get back.
  StagingStores& stores() { return stores_; }
  StagingStores& far_stores() { return far_stores_; }

  // Takes back what the peer has returned.
  bool collect(const Flow& returned);
  bool none_free() const { return free_count_ == 0; }
  // The chunk to fill next: the one that was emptied last, whose lines are nearest. Stays this rank's until it is
  // handed over. Requires !none_free().
  uint8_t next() const { return free_[free_count_ - 1]; }
  uint64_t handed() const { return handed_; }  // how many since the communicator was made
  // What next() has told, now full. Published with publish_count(), or with the line that speaks of it.
  void hand_over(Flow& handed);

  uint64_t taken() const { return taken_; }  // how many of the peer's, as handed()
  // Whether a chunk can be the peer's to hand over, and is at hand.
  bool is_theirs(uint8_t chunk) const;
  // So many bytes of it have been read: it is empty and this rank's now.
  void take(uint8_t chunk, size_t bytes);
  // Gives the chunk that was taken last back.
  void give_back_last(Flow& to_peer);
  // The peer takes those before that number back: they belong to operations that the two have given up.
  bool skip_to(uint64_t number);
  // Takes back `count` chunks from that number on, of an operation that the two have given up.
  void take_back(const Flow& handed, uint64_t number, uint64_t count);
  // Whether it has taken something since it last gave something back.
  bool taken_since() const { return taken_since_; }
  // Gives back what is more than this rank has brought.
  bool give_back_surplus(const Flow& from_peer, Flow& to_peer);

 private:
  unsigned all() const { return 2 * shape_.share; }
  std::byte* share_of(uint8_t chunk) const;  // to which it belongs, nullptr before that is there
  void own(uint8_t chunk);
  uint8_t disown();

  ChunkShape shape_{};
  unsigned first_own_ = 0;
  std::byte* own_ = nullptr;
  std::byte* theirs_ = nullptr;
  std::array<uint8_t, kListed> free_{};  // what this rank may fill, [0, free_count_), emptied last at the end
  size_t free_count_ = 0;
  uint64_t owned_ = 0;  // by number, a bit
  bool taken_since_ = false;
  uint64_t handed_ = 0, taken_ = 0, returned_ = 0, collected_ = 0;
  std::array<uint32_t, kListed> read_{};  // bytes, by number; 0 for those that are not this rank's
  StagingStores stores_, far_stores_{StagingStores::kSlowestFar};
};

}  // namespace a2a::shm
