// Peers are found again as long as somebody holds them.
#include "transport/shm/peers/known_peers.h"

#include <sys/socket.h>

#include "check.h"
#include "transport/shm/peers/local_peer.h"

namespace {

using namespace a2a;
using namespace a2a::shm;

TEST("a peer is found while it is held, and of its own pair alone") {
  KnownPeers known;
  const KnownPeers::Pair pair{.own_seat = 1, .nonce = 2, .seat = 3};
  auto peer = std::make_shared<LocalPeer>();
  peer->same_process = true;
  known.add(pair, peer);
  CHECK(known.find(pair) == peer);
  CHECK(known.find({.own_seat = 1, .nonce = 2, .seat = 4}) == nullptr);
  CHECK(known.find({.own_seat = 0, .nonce = 2, .seat = 3}) == nullptr);
  auto later = std::make_shared<LocalPeer>();
  later->same_process = true;
  known.add(pair, later);
  CHECK(known.find(pair) == later);
  later.reset();
  CHECK(known.find(pair) == nullptr);
}

TEST("a peer that is gone is not found") {
  int ends[2];
  CHECK_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
  KnownPeers known;
  const auto peer = std::make_shared<LocalPeer>();
  peer->socket = Descriptor(ends[0]);
  Descriptor other(ends[1]);
  known.add({}, peer);
  CHECK(known.find({}) == peer);
  other = Descriptor();
  CHECK(known.find({}) == nullptr);
}

}  // namespace
