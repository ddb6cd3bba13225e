#include "transport/hosts/remote_messages.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "core/facts.h"
#include "runtime/object_bytes.h"
#include "transport/hosts/messages.h"

namespace a2a::hosts {

// How the announcement of a message carries it.
enum class Form : uint32_t { whole = 1, memory, declined, confirmed };

namespace {

// The most bytes that travel with the announcement of a message (eager).
constexpr size_t kWithWord = size_t{16} << 10;
// The most such messages of a rank that may wait for receives, because the receiver keeps each of them. A send beyond
// them is finished when the receiver says that a receive has taken it. The receiver says after every few messages how
// many of the others were taken.
constexpr uint64_t kMostUnmatched = 256, kPerCount = 64;

struct SentHead {
  int64_t tag = 0;
  uint64_t bytes = 0;
  uint32_t dtype = 0;
  Form form = Form::whole;
  uint32_t transfer = 0;  // memory: its tag on the network
  uint32_t unused = 0;
};

enum class Reply : uint32_t { wanted = 1, refused, taken, count };

}  // namespace

struct RemoteMessages::Arriving final : Incoming {
  explicit Arriving(RemoteMessages& messages) : messages_(messages) {}
  void meet() override { messages_.meet(*this); }

  uint64_t number = 0;
  Form form = Form::whole;
  uint32_t transfer = 0;
  std::string text;  // whole: the bytes; declined: the reason

 private:
  RemoteMessages& messages_;
};

RemoteMessages::RemoteMessages(Rank rank, const HostMap& map, std::shared_ptr<Network> network, Matching& matching,
                               HeldMessages& held, Tell tell)
    : rank_(rank),
      map_(map),
      network_(std::move(network)),
      matching_(matching),
      held_(held),
      tell_(std::move(tell)),
      lanes_(static_cast<size_t>(map.size())) {}
RemoteMessages::~RemoteMessages() = default;

void RemoteMessages::start(const std::shared_ptr<MessageWork>& work) {
  const a2a::Message& message = work->message();
  if (message.peer != kAnySource) {
    auto& complaint = lanes_[static_cast<size_t>(message.peer)].complaint;
    if (complaint) return work->fail(*std::exchange(complaint, std::nullopt));
  }
  if (message.refusal.empty()) pending_.push_back(work);
  if (message.peer == kAnySource) return;  // this host's messages begin it
  held_.begin(work, [this](const auto& free) { begin(free); });
}

void RemoteMessages::begin(const std::shared_ptr<MessageWork>& work) {
  work->begin();
  if (work->message().sends) return send(work);
  matching_.post(work);
}

void RemoteMessages::send(const std::shared_ptr<MessageWork>& work) {
  const a2a::Message& message = work->message();
  Lane& to = lanes_[static_cast<size_t>(message.peer)];
  SentHead head{message.tag, message.bytes, pack(message.dtype), Form::whole, 0, 0};
  std::string_view rest(reinterpret_cast<const char*>(message.data), message.bytes);
  if (!message.refusal.empty()) {
    head.form = Form::declined;
    rest = message.refusal;
  } else if (message.bytes > kWithWord) {
    head.form = Form::memory;
    head.transfer = network_->next_tag(map_.process_of(message.peer));
    rest = {};
  } else if (to.whole - to.met >= kMostUnmatched) {
    head.form = Form::confirmed;
  } else {
    ++to.whole;
  }
  std::string text(object_bytes(head));
  text += rest;
  const uint64_t number = ++to.sent;
  const bool waits = head.form == Form::memory || head.form == Form::confirmed;
  if (waits) to.unanswered.emplace(number, Unanswered{work, head.transfer, head.form});
  tell_(message.peer, false, number, text);
  if (!waits) leaving_.push_back(work);
}

// Sorts messages by number, because messages between two processes may overtake each other on the network.
bool RemoteMessages::handle_sent(Rank source, uint64_t number, std::string_view rest) {
  Lane& from = lanes_[static_cast<size_t>(source)];
  if (number <= from.received_facts) return false;
  if (number != from.received_facts + 1) return from.early.emplace(number, rest).second;
  if (!take(source, number, rest)) return false;
  while (!from.early.empty() && from.early.begin()->first == from.received_facts + 1) {
    const auto next = from.early.extract(from.early.begin());
    if (!take(source, next.key(), next.mapped())) return false;
  }
  return true;
}

bool RemoteMessages::take(Rank source, uint64_t number, std::string_view rest) {
  SentHead head;
  if (rest.size() < sizeof(head)) return false;
  std::memcpy(&head, rest.data(), sizeof(head));
  rest.remove_prefix(sizeof(head));
  if (head.form < Form::whole || head.form > Form::confirmed) return false;
  const bool comes_along = head.form == Form::whole || head.form == Form::confirmed;
  if (comes_along && rest.size() != head.bytes) return false;
  const auto message = std::make_shared<Arriving>(*this);
  message->source = source;
  message->tag = head.tag;
  message->bytes = head.bytes;
  message->dtype = head.dtype;
  message->number = number;
  message->form = head.form;
  message->transfer = head.transfer;
  message->text = rest;
  lanes_[static_cast<size_t>(source)].received_facts = number;
  matching_.arrive(message);
  return true;
}

void RemoteMessages::meet(Arriving& in) {
  const a2a::Message& wanted = in.receive->message();
  if (in.form == Form::whole) count_matched(in.source);
  if (in.form == Form::declined) {
    return in.receive->fail(Error(Code::mismatch, name_of(wanted) + ": " + refused_there(in.source, in.text)));
  }
  if (const auto why = disagreement(in, in.source, rank_)) {
    in.receive->fail(Error(Code::mismatch, *why));
    std::string reply(object_bytes(Reply::refused));
    return tell_(in.source, true, in.number, reply += *why);
  }
  if (in.form == Form::whole || in.form == Form::confirmed) {
    if (in.bytes > 0) std::memcpy(wanted.data, in.text.data(), in.bytes);
    if (in.form == Form::confirmed) tell_(in.source, true, in.number, std::string(object_bytes(Reply::taken)));
    return in.receive->finish(in.source);
  }
  move(in.receive, in.source, in.source, in.transfer);  // so that the receive is posted before the bytes are sent
  tell_(in.source, true, in.number, std::string(object_bytes(Reply::wanted)));
}

void RemoteMessages::count_matched(Rank source) {
  Lane& from = lanes_[static_cast<size_t>(source)];
  if (++from.matched % kPerCount == 0) {
    tell_(source, true, from.matched, std::string(object_bytes(Reply::count)));
  }
}

bool RemoteMessages::handle_answer(Rank source, uint64_t number, std::string_view rest) {
  Reply reply;
  if (rest.size() < sizeof(reply)) return false;
  std::memcpy(&reply, rest.data(), sizeof(reply));
  rest.remove_prefix(sizeof(reply));
  Lane& lane = lanes_[static_cast<size_t>(source)];
  if (reply == Reply::count) {
    lane.met = std::max(lane.met, number);  // answers may overtake each other
    return number <= lane.whole;
  }
  const auto found = lane.unanswered.extract(number);
  if (reply == Reply::refused) {
    const Error error(Code::mismatch, std::string(rest));
    if (found.empty()) return lane.complaint.emplace(error), true;
    return found.mapped().work->fail(error), true;
  }
  if (found.empty()) return false;
  if (reply == Reply::taken && found.mapped().form == Form::confirmed) {
    found.mapped().work->finish(rank_);
    return true;
  }
  if (reply != Reply::wanted || found.mapped().form != Form::memory) return false;
  move(found.mapped().work, source, rank_, found.mapped().tag);
  return true;
}

void RemoteMessages::move(const std::shared_ptr<MessageWork>& work, Rank peer, Rank source, uint32_t tag) {
  const a2a::Message& message = work->message();
  auto lent = std::make_shared<LentMemory>(Run{peer, message.data, message.bytes}, nullptr);
  const Process there = map_.process_of(peer);
  const std::span<const Run> runs(&lent->run, 1);
  lent->transfer = message.sends ? network_->send(there, tag, runs) : network_->receive(there, tag, runs);
  moving_.push_back({work, source, std::move(lent)});
}

// A receive from any rank may have been finished by a message of this host.
bool RemoteMessages::active() const {
  const auto goes_on = [](const auto& work) { return !work->finished(); };
  return std::ranges::any_of(pending_, goes_on) || !moving_.empty() || !leaving_.empty();
}

bool RemoteMessages::advance() {
  const auto is_done = [](const Moving& moving) {
    if (!moving.lent->transfer->done()) return false;
    moving.work->finish(moving.source);
    return true;
  };
  bool moved = held_.release();
  moved |= std::erase_if(moving_, is_done) > 0;
  if (!leaving_.empty() && network_->flushed()) {
    for (const auto& work : leaving_) work->finish(rank_);
    leaving_.clear();
  }
  return std::erase_if(pending_, [](const auto& work) { return work->finished(); }) > 0 || moved;
}

std::shared_ptr<MessageWork> RemoteMessages::expired(Deadline::Clock::time_point now) const {
  const auto late = [now](const auto& work) { return !work->finished() && work->message().deadline.passed(now); };
  const auto found = std::ranges::find_if(pending_, late);
  return found == pending_.end() ? nullptr : *found;
}

const a2a::Message* RemoteMessages::oldest() const {
  const auto found = std::ranges::find_if(pending_, [](const auto& work) { return !work->finished(); });
  return found == pending_.end() ? nullptr : &(*found)->message();
}

std::shared_ptr<MessageWork> RemoteMessages::needing(Rank rank, bool anybody) const {
  const auto needs = [=](const auto& work) {
    const Rank peer = work->message().peer;
    return !work->finished() && (peer == rank || (anybody && peer == kAnySource));
  };
  const auto found = std::ranges::find_if(pending_, needs);
  return found == pending_.end() ? nullptr : *found;
}

void RemoteMessages::fail_all(const Error& error) {
  for (auto& moving : moving_) {
    moving.lent->transfer->abandon();
    moving.work->lend([lent = std::move(moving.lent), network = network_] {
      network->advance();
      return lent->transfer->done();
    });
  }
  moving_.clear();
  leaving_.clear();
  for (const auto& work : pending_) work->fail(error);
  pending_.clear();
}

}  // namespace a2a::hosts
