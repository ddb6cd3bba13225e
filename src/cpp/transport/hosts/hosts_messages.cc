// Messages (send, recv) of a group on several hosts: chooses the transport of each, and finds missing peers.
#include <limits>

#include "transport/hosts/hosts_transport.h"

namespace a2a::hosts {

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
  return messages_.advance();
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
  for (Rank rank = 0; rank < map_->size() && !broken_; ++rank) {
    if (map_->host_of(rank) == map_->host_of(rank_)) continue;
    const auto work = messages_.needing(rank);
    if (work == nullptr) continue;
    const auto& left = last_[static_cast<size_t>(rank)].left;
    // Messages that the rank sent before it left may come after the notice that it left.
    if (left && now - *left < kRepeatTimeout) continue;
    const auto why = missed(rank, std::numeric_limits<uint64_t>::max());
    if (!why || (left && work->message().peer == kAnySource)) continue;
    break_with(Error(Code::peer_lost, name_of(work->message()) + ": " + name_of_rank(rank_) + " " + *why), true);
  }
}

}  // namespace a2a::hosts
