// Messages (send, recv) of a group on several hosts: chooses the transport of each, and finds missing peers.
#include <limits>

#include "core/status_page.h"
#include "transport/hosts/hosts_transport.h"

namespace a2a::hosts {
namespace {

// How long messages that a rank sent before it left may take to come after the notice that it left.
constexpr auto kLate = kRepeatTimeout;

}  // namespace

std::shared_ptr<MessageWork> HostsTransport::post(const a2a::Message& message) {
  progress_->refuse_if_inherited();
  auto work = std::make_shared<MessageWork>(progress_, message);
  std::lock_guard lock(progress_->mutex());
  if (in_flight()) work->predecessors() = find_conflicting(work->footprint());
  if (!broken_) {
    guarded([&] {
      const bool anybody = message.peer == kAnySource;
      if (anybody || map_->host_of(message.peer) != map_->host_of(rank_)) messages_.start(work);
      if (anybody || map_->host_of(message.peer) == map_->host_of(rank_)) local_->start_message(work);
      if (messages_.active()) advance_messages();
      return true;
    });
  }
  if (broken_) {
    work->fail(Error(broken_->code(), name_of(message) + ": the communicator is broken: " + broken_->what()));
  }
  return work;
}

std::string HostsTransport::unreceived() {
  {
    const std::lock_guard lock(progress_->mutex());
    if (broken_) return "";
    advance();
    if (const std::string remote = first_send(messages_.pending()); !remote.empty()) return remote;
  }
  return local_->unreceived();
}

bool HostsTransport::advance_messages() {
  poll();
  if (broken_) return true;
  if (messages_.moves()) network_->advance();
  const bool moved = messages_.advance();
  if (status_ != nullptr && messages_.oldest() == nullptr) status_->no_message();
  return moved;
}

void HostsTransport::check_messages(Deadline::Clock::time_point now) {
  if (!messages_.active()) return;
  if (const auto late = messages_.expired(now)) {
    const Rank peer = late->message().peer;
    return break_with(Error(Code::timeout, name_of(late->message()) + ": timeout on " + name_of_rank(rank_) +
                                               ", which still waits for " +
                                               (peer == kAnySource ? "it" : describe(peer)) + advice_on_timeout()),
                      true);
  }
  const bool nobody = deserted(now);
  for (Rank rank = 0; rank < map_->size() && !broken_; ++rank) {
    if (map_->host_of(rank) == map_->host_of(rank_)) continue;
    const auto& left = last_[static_cast<size_t>(rank)].left;
    if (left && now - *left < kLate) continue;
    const auto work = messages_.needing(rank, !left || nobody);
    if (work == nullptr) continue;
    const auto absence = missed(rank, std::numeric_limits<uint64_t>::max());
    if (!absence) continue;
    break_with(Error(absence->code, name_of(work->message()) + ": " + name_of_rank(rank_) + " " + absence->why), true);
  }
}

// Whether all other ranks have left, so that nobody can send a message from any rank.
bool HostsTransport::deserted(Deadline::Clock::time_point now) {
  for (Rank rank = 0; rank < map_->size(); ++rank) {
    const auto& left = last_[static_cast<size_t>(rank)].left;
    if (map_->host_of(rank) != map_->host_of(rank_) && (!left || now - *left < kLate)) return false;
  }
  return local_->deserted();
}

}  // namespace a2a::hosts
