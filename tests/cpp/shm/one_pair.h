// One operation of this rank and a peer whose line the test writes, without an Exchange.
#pragma once

#include <numeric>

#include "../../fuzz/hostile_peer.h"
#include "check.h"
#include "transport/shm/ways/ways.h"

namespace shm_test {

using namespace a2a;
using namespace a2a::shm;
using fuzz::HostilePeer;
using Bytes = std::vector<std::byte>;

inline constexpr Rank kMe = HostilePeer::kMe, kPeer = HostilePeer::kPeer;

class OnePair {
 public:
  OnePair() { peer.allow_cma(true); }

  Link link() { return {peer.membership(), operation, kPeer}; }

  // Starts the next operation. Its signature has the number.
  void begin(Batch&& batch) {
    batch.signature.number = ++number_;
    operation.begin(std::move(batch));
  }

  // The peer publishes its line: it sends this rank `bytes` in that way, out of so many runs. Returns what they are.
  Bytes send(Kind kind, size_t bytes, size_t runs, check::Random& random) {
    Bytes content(std::max(bytes, size_t{1}));
    for (std::byte& b : content) b = static_cast<std::byte>(random());
    Head head = operation.pair(kPeer).mine;
    std::swap(head.sent, head.expected);
    std::swap(head.sent_hash, head.expected_hash);
    head.sent = bytes;
    LocalPeer& host = *peer.membership().peer(kPeer).host;
    const ChunkShape shape = ChunkShape::of(2);
    for (unsigned chunk = 0; kind == Kind::staged && chunk < shape.share; ++chunk) {
      std::copy_n(content.begin(), std::min(bytes, shape.bytes),
                  host.common + shape.share_bytes() + kAside + chunk * shape.bytes);
    }
    std::ranges::copy(content, peer.data());
    peer.publish_line(number_, head, kind, runs);
    if (kind == Kind::inlined) {
      auto* const line = reinterpret_cast<std::byte*>(&peer.block().line(first_step(number_), kMe));
      std::copy_n(content.begin(), bytes, line + kInlineOffset);
    }
    content.resize(bytes);
    if (kind == Kind::staged) {
      for (size_t i = shape.bytes; i < bytes; ++i) content[i] = content[i - shape.bytes];
    } else if (runs > 1) {  // HostilePeer lists some single bytes, and then the rest from the beginning again
      const size_t before = runs - 1;
      Bytes stream(content.begin(), content.begin() + static_cast<ptrdiff_t>(before));
      stream.insert(stream.end(), content.begin(), content.end() - static_cast<ptrdiff_t>(before));
      return stream;
    }
    return content;
  }

  // This rank reads the line and prepares to take the bytes.
  void open() {
    Pair& p = operation.pair(kPeer);
    CHECK(observe(link().their_line(), operation.step(), &p.theirs));
    if (p.their_kind() == Kind::inlined) return inlined::begin(link());
    if (p.their_kind() == Kind::staged) return staged::begin(link());
    pull::begin(link(), p.their_kind());
  }

  HostilePeer peer;
  Operation operation{kMe, 2};

 private:
  uint64_t number_ = 0;
};

}  // namespace shm_test
