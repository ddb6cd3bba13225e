#include "transport/shm/peers/known_peers.h"

#include "transport/shm/peers/local_peer.h"

namespace a2a::shm {

void KnownPeers::add(const Pair& pair, const std::shared_ptr<LocalPeer>& peer) {
  const std::lock_guard lock(mutex_);
  std::erase_if(peers_, [](const auto& entry) { return entry.second.expired(); });
  peers_.insert_or_assign(pair, peer);
}

std::shared_ptr<LocalPeer> KnownPeers::find(const Pair& pair) {
  std::shared_ptr<LocalPeer> peer;
  {
    const std::lock_guard lock(mutex_);
    const auto found = peers_.find(pair);
    if (found != peers_.end()) peer = found->second.lock();
  }
  return peer != nullptr && !peer->gone() ? peer : nullptr;
}

}  // namespace a2a::shm
