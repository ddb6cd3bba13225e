#include "transport/shm/messages/messages.h"

#include <algorithm>
#include <utility>

#include "core/facts.h"
#include "transport/shm/messages/arriving.h"

namespace a2a::shm {

Messages::Messages(Membership& membership, Matching& matching, HeldMessages& held)
    : m_(membership), channels_(static_cast<size_t>(membership.size())), matching_(matching), held_(held) {}
Messages::~Messages() = default;

Messages::Channel& Messages::channel(Rank peer) {
  auto& channel = channels_[static_cast<size_t>(peer)];
  if (channel == nullptr) channel = std::make_unique<Channel>(m_, peer);
  return *channel;
}

// ---- start, progress and end --------------------------------------------------------------------------------------

void Messages::start(const std::shared_ptr<MessageWork>& work) {
  const Message& message = work->message();
  const Rank peer = message.peer == kAnySource ? kAnySource : m_.rank_named(message.peer);
  for (Rank other = 0; other < m_.size() && peer == kAnySource; ++other) {
    if (other != m_.rank()) channel(other);
  }
  if (peer != kAnySource && peer != m_.rank()) {
    Channel& with = channel(peer);
    if (read_packets(peer, with)) m_.wake_sleeper(peer);
    if (auto refusal = std::exchange(with.late_refusal, std::nullopt)) return work->fail(*refusal);
  }
  if (message.refusal.empty() || message.sends) pending_.push_back(work);
  held_.begin(work, [this](const auto& free) { begin(free); });
  advance();
}

void Messages::begin(const std::shared_ptr<MessageWork>& work) {
  const Message& message = work->message();
  if (!message.sends) return matching_.post(work);
  const Rank peer = m_.rank_named(message.peer);
  if (peer == m_.rank()) return send_to_self(work);
  Channel& to = channel(peer);
  to.queued.push_back({work, ++to.sent, {work->run()}, message.bytes});
}

void Messages::fail_all(const Error& error) {
  for (const auto& work : pending_) work->fail(error);
  pending_.clear();
}

std::shared_ptr<MessageWork> Messages::expired(Deadline::Clock::time_point now) const {
  const auto late = [now](const auto& work) { return !work->finished() && work->message().deadline.passed(now); };
  const auto found = std::ranges::find_if(pending_, late);
  return found == pending_.end() ? nullptr : *found;
}

std::shared_ptr<MessageWork> Messages::needing(Rank peer, bool anybody) const {
  const auto needs = [&](const auto& work) {
    const Rank other = work->message().peer;
    return !work->finished() && (other == m_.name(peer) || (anybody && other == kAnySource));
  };
  const auto found = std::ranges::find_if(pending_, needs);
  return found == pending_.end() ? nullptr : *found;
}

// Returns the first unfinished operation. A receive from any rank may have been finished by another host's message.
std::vector<std::shared_ptr<MessageWork>>::const_iterator Messages::unfinished() const {
  return std::ranges::find_if(pending_, [](const auto& work) { return !work->finished(); });
}

bool Messages::active() const {
  const auto writes = [](const auto& to) { return to != nullptr && !to->replies.empty(); };
  return busy() || matching_.waits() || std::ranges::any_of(channels_, writes);
}

bool Messages::advance() {
  bool moved = held_.release();
  for (Rank peer = 0; peer < m_.size(); ++peer) {
    if (channels_[static_cast<size_t>(peer)] == nullptr) continue;
    Channel& with = *channels_[static_cast<size_t>(peer)];
    const bool news = read_packets(peer, with) | pull(with) | write_packets(peer, with);
    if (news) m_.wake_sleeper(peer);
    moved |= news;
  }
  if (!pending_.empty() && std::erase_if(pending_, [](const auto& work) { return work->finished(); }) > 0) {
    matching_.prune();
    moved = true;
  }
  return moved;
}

// Bytes that are not kept are copied when a receive is matched; until then the sender waits.
void Messages::send_to_self(const std::shared_ptr<MessageWork>& work) {
  const Message& message = work->message();
  if (!message.refusal.empty()) return work->finish(m_.rank());  // no other rank has to know
  PacketHeader head{};
  head.tag = message.tag;
  head.bytes = message.bytes;
  head.dtype = pack(message.dtype);
  head.kind = PacketKind::inlined;
  const auto arriving = std::make_shared<Arriving>(*this, m_.rank(), head);
  arriving->own = work;
  if (message.bytes <= kMostEager && kept_ < kMostBuffered) {
    ++kept_;
    Cursor source{work->run()};
    arriving->kept.resize(message.bytes);
    if (message.bytes > 0) gather(source, arriving->kept.data(), message.bytes);
    work->finish(m_.rank());
  }
  matching_.arrive(arriving);
}

}  // namespace a2a::shm
