// Connects ranks that have met over TCP. Each listens at the address where it can be reached, sends that to the others
// over the bootstrap, connects to the lower ranks and accepts the higher ones. Rank 0 waits only for ranks that
// connect, rank 1 also for rank 0, and so on: no order of arrival can block.
#include "transport/tcp/meeting.h"

#include <arpa/inet.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "bootstrap/cards.h"
#include "bootstrap/tcp/door.h"
#include "bootstrap/tcp/session.h"
#include "bootstrap/tcp/visit.h"
#include "runtime/object_bytes.h"
#include "transport/tcp/tcp_network.h"

namespace a2a::tcp {
namespace {

std::string name_of_rank(Rank rank) { return "rank " + std::to_string(rank); }

// The message of a rank to the others: where it listens.
struct Card {
  sa_family_t family = 0;
  in_port_t port = 0;  // in network byte order
  uint32_t pid = 0;
  uint8_t address[16] = {};
  wire::Nonce nonce{};  // so that the cards of each meeting differ
};

sockaddr_in& v4(Place& place) { return reinterpret_cast<sockaddr_in&>(place.raw); }
sockaddr_in6& v6(Place& place) { return reinterpret_cast<sockaddr_in6&>(place.raw); }

void set_port(Place& place, in_port_t port) {
  (place.raw.ss_family == AF_INET6 ? v6(place).sin6_port : v4(place).sin_port) = port;
}

Card card_of(Place place) {
  Card card;
  card.family = place.raw.ss_family;
  card.pid = static_cast<uint32_t>(::getpid());
  card.nonce = new_nonce();
  if (card.family == AF_INET6) {
    card.port = v6(place).sin6_port;
    std::memcpy(card.address, &v6(place).sin6_addr, sizeof(in6_addr));
  } else {
    card.port = v4(place).sin_port;
    std::memcpy(card.address, &v4(place).sin_addr, sizeof(in_addr));
  }
  return card;
}

// Returns the place of a card. `here` is this rank's own place: a link-local address needs this end's interface.
Place place_of(const Card& card, Place here) {
  Place place;
  place.raw.ss_family = card.family;
  if (card.family == AF_INET6) {
    place.length = sizeof(sockaddr_in6);
    std::memcpy(&v6(place).sin6_addr, card.address, sizeof(in6_addr));
    v6(place).sin6_scope_id = v6(here).sin6_scope_id;
  } else {
    place.length = sizeof(sockaddr_in);
    std::memcpy(&v4(place).sin_addr, card.address, sizeof(in_addr));
  }
  set_port(place, card.port);
  return place;
}

// One rank's side of a meeting.
class Meeting {
 public:
  Meeting(Rank rank, std::string job, const Place& here, const Digest& key, std::function<void()> meanwhile,
          Deadline deadline)
      : rank_(rank),
        job_(std::move(job)),
        here_(here),
        key_(key),
        meanwhile_(std::move(meanwhile)),
        deadline_(deadline) {}

  // Begins to listen.
  Card open() {
    Place place = here_;
    set_port(place, 0);
    listener_ = listen_at({place}, place.host());
    return card_of(local_place(listener_.fd()));
  }

  std::vector<Link> connect(const std::vector<Card>& cards) {
    cards_ = cards;
    links_.resize(cards.size());
    Sha256 all;
    for (const Card& card : cards) all.add(object_bytes(card));
    meeting_ = all.digest();
    Door door(std::move(listener_), door_key(rank_));
    for (Rank peer = 0; peer < rank_; ++peer) visit(peer);
    while (!missing().empty()) {
      if (deadline_.passed()) {
        throw error(Code::timeout, name_of_rank(rank_) + " timed out waiting for a connection of rank " +
                                       list(missing()) + door.account());
      }
      receive(door);
      if (!missing().empty()) meanwhile_();  // once complete, the last rank to come may have left
    }
    return std::move(links_);
  }

 private:
  Error error(Code code, const std::string& what) const { return {code, "job '" + job_ + "': " + what}; }
  int size() const { return static_cast<int>(cards_.size()); }
  Link& link(Rank peer) { return links_[static_cast<size_t>(peer)]; }
  const Card& card(Rank peer) const { return cards_[static_cast<size_t>(peer)]; }
  Place place(Rank peer) const { return place_of(card(peer), here_); }

  // Returns the key that proves the right to connect to a rank, in this meeting only.
  std::string door_key(Rank rank) const {
    std::string text = "a2a door of " + name_of_rank(rank) + " ";
    text += as_text(meeting_);
    return std::string(as_text(hmac_sha256(as_text(key_), text)));
  }

  std::string who(Rank peer) const { return "pid " + std::to_string(card(peer).pid) + " at " + place(peer).host(); }

  void visit(Rank peer) {
    const Visit visit{.whom = name_of_rank(peer),
                      .address = place(peer).host() + " port " + std::to_string(ntohs(card(peer).port)),
                      .places = {place(peer)},
                      .secret = door_key(peer),
                      .job = job_,
                      .rank = rank_,
                      .size = size(),
                      .meanwhile = meanwhile_};
    Channel channel = knock(visit, deadline_);
    link(peer).socket = channel.release(link(peer).heard);
    link(peer).who = who(peer);
  }

  std::vector<Rank> missing() {
    std::vector<Rank> ranks;
    for (Rank peer = rank_ + 1; peer < size(); ++peer) {
      if (!link(peer).socket.open()) ranks.push_back(peer);
    }
    return ranks;
  }

  // Accepts ranks for a short while. A rank that connects again has given up its first connection.
  void receive(Door& door) {
    std::vector<pollfd> fds;
    door.watch(fds);
    if (poll_slice(fds, deadline_) <= 0) {
      for (pollfd& fd : fds) fd.revents = 0;
    }
    for (Newcomer& newcomer : door.serve(fds)) {
      const Rank peer = newcomer.who.rank;
      if (peer <= rank_ || peer >= size() || newcomer.who.size != size()) continue;
      newcomer.channel.put(wire::piece(wire::PieceKind::welcome, ""));
      if (!newcomer.channel.write() || !newcomer.channel.idle()) continue;
      link(peer).socket = newcomer.channel.release(link(peer).heard);
      link(peer).who = who(peer);
    }
  }

  const Rank rank_;
  const std::string job_;
  const Place here_;
  const Digest key_;
  const std::function<void()> meanwhile_;
  const Deadline deadline_;
  Socket listener_;
  std::vector<Card> cards_;
  Digest meeting_{};
  std::vector<Link> links_;
};

}  // namespace
}  // namespace a2a::tcp

std::shared_ptr<a2a::hosts::Network> a2a::TcpBootstrap::network(Deadline deadline) {
  tcp::Meeting meeting(rank_, job_, here_, network_key_, [this] { look_after_others(); }, deadline);
  const auto cards = exchange_cards(*this, deadline, [&] { return meeting.open(); }, tcp::name_of_rank);
  return alone([&] { return std::make_shared<tcp::TcpNetwork>(rank_, meeting.connect(cards)); });
}
