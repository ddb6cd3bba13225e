// The peers that a rank has connected to, as long as anybody holds them. Ranks that meet again use their connection and
// their mappings again.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

namespace a2a::shm {

struct LocalPeer;

// Thread-safe.
class KnownPeers {
 public:
  // A rank of this process and one of another: their seats, and the nonce of the other's process.
  struct Pair {
    uint64_t own_seat = 0, nonce = 0, seat = 0;
    auto operator<=>(const Pair&) const = default;
  };

  void add(const Pair& pair, const std::shared_ptr<LocalPeer>& peer);
  // Returns the peer; nullptr when nobody holds it any more, or it is gone.
  std::shared_ptr<LocalPeer> find(const Pair& pair);

 private:
  std::mutex mutex_;
  std::map<Pair, std::weak_ptr<LocalPeer>> peers_;
};

}  // namespace a2a::shm
