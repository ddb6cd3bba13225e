#include "transport/hosts/inbox.h"

#include <cstring>
#include <new>
#include <utility>

namespace a2a::hosts {

void Inbox::deliver(Message message) {
  uint64_t channel = 0;
  if (message.bytes.size() < sizeof(channel)) return;
  std::memcpy(&channel, message.bytes.data(), sizeof(channel));
  if (closed_.contains(channel)) return;
  Sender& sender = senders_[message.from];
  sender.untaken += message.bytes.size();
  sender.overrun |= sender.untaken > most_untaken_;
  if (!sender.overrun) arrived_[channel].push_back(std::move(message));
}

std::optional<Message> Inbox::take(uint64_t channel) {
  const auto found = arrived_.find(channel);
  if (found == arrived_.end()) return std::nullopt;
  Message message = std::move(found->second.front());
  found->second.pop_front();
  if (found->second.empty()) arrived_.erase(found);
  senders_[message.from].untaken -= message.bytes.size();
  return message;
}

void Inbox::close(uint64_t channel) noexcept {
  try {
    closed_.insert(channel);
  } catch (const std::bad_alloc&) {  // its later messages are kept until the network ends
  }
  const auto left = arrived_.extract(channel);
  if (left.empty()) return;
  for (const Message& message : left.mapped()) senders_[message.from].untaken -= message.bytes.size();
}

bool Inbox::overrun(Process from) const {
  const auto found = senders_.find(from);
  return found != senders_.end() && found->second.overrun;
}

}  // namespace a2a::hosts
