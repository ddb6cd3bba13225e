#include "transport/shm/protocol/chunks.h"

#include <algorithm>
#include <bit>

#include "transport/shm/protocol/protocol.h"

namespace a2a::shm {

// The shares let a sender run ahead of a receiver that has no CPU just now, and stay in the caches. Two ranks have
// large chunks: the first chunk comes with the line, so the receiver does not wait for another. More ranks share CPUs
// more often; with small chunks they take the first ones while the sender fills the next.
ChunkShape ChunkShape::of(int size) {
  if (size <= 2) return {size_t{256} << 10, kLeastShare};
  constexpr size_t kAllShares = size_t{15} << 16;  // of a rank: with its other shared memory at most 1 MiB
  constexpr size_t kSmallestChunk = 4096, kLargestChunk = size_t{32} << 10;
  constexpr unsigned kChunks = 8;
  static_assert(kChunks >= kLeastShare);
  const size_t share = kAllShares / static_cast<size_t>(size - 1);
  return {std::clamp(std::bit_floor(share / kChunks), kSmallestChunk, kLargestChunk), kChunks};
}

void Chunks::bring(std::byte* share) {
  own_ = share;
  for (unsigned i = 0; i < shape_.share; ++i) own(static_cast<uint8_t>(first_own_ + i));
}

std::byte* Chunks::share_of(uint8_t chunk) const {
  return chunk / shape_.share == first_own_ / shape_.share ? own_ : theirs_;
}

std::byte* Chunks::data(uint8_t chunk) const { return share_of(chunk) + kAside + chunk % shape_.share * shape_.bytes; }

void Chunks::own(uint8_t chunk) {
  owned_ |= uint64_t{1} << chunk;
  free_[free_count_++] = chunk;
}

uint8_t Chunks::disown() {
  const uint8_t chunk = free_[--free_count_];
  owned_ &= ~(uint64_t{1} << chunk);
  read_[chunk] = 0;
  return chunk;
}

bool Chunks::collect(const Flow& returned) {
  const uint64_t count = count_of(returned);
  if (count - collected_ > all()) return false;
  for (; collected_ < count; ++collected_) {
    const uint8_t chunk = listed(returned, collected_);
    if (!is_theirs(chunk)) return false;
    own(chunk);
  }
  return true;
}

void Chunks::hand_over(Flow& handed) { enlist(handed, handed_++, disown()); }

bool Chunks::is_theirs(uint8_t chunk) const {
  return chunk < all() && (owned_ >> chunk & 1) == 0 && share_of(chunk) != nullptr;
}

void Chunks::take(uint8_t chunk, size_t bytes) {
  own(chunk);
  read_[chunk] = static_cast<uint32_t>(bytes);
  ++taken_;
  taken_since_ = true;
}

void Chunks::give_back_last(Flow& to_peer) {
  enlist(to_peer, returned_++, disown());
  publish_count(to_peer, returned_);
}

bool Chunks::skip_to(uint64_t number) {
  if (number < taken_) return false;
  taken_ = number;
  return true;
}

void Chunks::take_back(const Flow& handed, uint64_t number, uint64_t count) {
  for (uint64_t end = number + count; number < end; ++number) {
    const uint8_t chunk = listed(handed, number);
    if (is_theirs(chunk)) own(chunk);  // a peer that follows the protocol has not touched it
  }
}

// Counts the chunks that the peer has returned, too. Otherwise both ranks could hold back chunks until one has none to
// fill.
bool Chunks::give_back_surplus(const Flow& from_peer, Flow& to_peer) {
  taken_since_ = false;
  if (!collect(from_peer)) return false;
  const unsigned keep = own_ != nullptr ? shape_.share : 0;
  if (free_count_ <= keep) return true;
  while (free_count_ > keep) enlist(to_peer, returned_++, disown());
  publish_count(to_peer, returned_);
  return true;
}

}  // namespace a2a::shm
