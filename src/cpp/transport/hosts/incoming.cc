// Messages from ranks of other hosts, and to them.
#include "transport/hosts/hosts_transport.h"

namespace a2a::hosts {
namespace {

// After this long without a call of the network, more calls are made at once. A call takes about as long as a small
// exchange, so not every step makes one.
constexpr auto kOften = std::chrono::microseconds(500);

}  // namespace

void HostsTransport::poll() {
  const auto now = Deadline::Clock::now();
  // A network that was not called for long may need several calls to return all that has arrived, such as an abort.
  constexpr int kAsksOfLateRank = 5;
  int asks = now - last_looked_ > kOften ? kAsksOfLateRank : 1;
  last_polled_ = last_looked_ = now;
  while (asks > 0) {
    auto message = network_->take(channel_);
    if (!message) {
      --asks;
      continue;
    }
    const auto prefix = prefix_of(message->bytes);
    if (!prefix || !map_->has(prefix->source) || map_->process_of(prefix->source) != message->from) {
      throw Error(Code::backend, network_->name() + ": a message makes no sense");
    }
    handle(*prefix, std::move(message->bytes));
    if (broken_) return;
  }
}

void HostsTransport::handle(const Prefix& prefix, std::string message) {
  const std::string_view text = rest_of(message);
  const auto no_sense = [&] {
    return Error(Code::backend, network_->name() + ": a message of " + name_of_rank(prefix.source) + " makes no sense");
  };
  switch (prefix.kind) {
    case MessageKind::bundle:
      if (relay_ == nullptr) throw no_sense();
      if (relay_->wants(prefix.number)) return relay_->take(prefix.number, prefix.source, std::move(message));
      send(relay_->receiver_on(map_->host_of(prefix.source), prefix.number),
           {channel_, MessageKind::no_bundle, 0, rank_, prefix.number}, {});
      [[fallthrough]];
    case MessageKind::facts: {
      if (prefix.stage >= kMostStages) throw no_sense();
      const uint64_t step = step_of(prefix.number, prefix.stage);
      const auto entries = entries_of(text);
      if (!entries) throw no_sense();
      for (const Entry& entry : *entries) {
        if (!map_->has(entry.source) || !map_->has(entry.target)) throw no_sense();
        if (entry.target == rank_) {
          handle_entry(step, entry);
        } else {
          send(step, entry);
        }
      }
      return;
    }
    case MessageKind::no_bundle:
      if (relay_ == nullptr) throw no_sense();
      if (relay_->wants(prefix.number)) relay_->take(prefix.number, prefix.source, std::move(message));
      return;
    case MessageKind::passed:
    case MessageKind::verdict:
      if (Operation* operation = find(step_of(prefix.number))) {
        give(*operation, {prefix.kind, prefix.source, {}, std::string(text)});
      } else if (step_of(prefix.number) > finished_) {
        early_[step_of(prefix.number)].push_back({prefix.kind, prefix.source, {}, std::string(text)});
      }
      return;
    case MessageKind::aborted: {
      Reason why;
      if (text.size() < sizeof(why)) throw no_sense();
      std::memcpy(&why, text.data(), sizeof(why));
      died_ |= why.died != 0;
      const bool known =
          why.code >= static_cast<uint32_t>(Code::peer_lost) && why.code <= static_cast<uint32_t>(Code::backend);
      return break_with(
          Error(known ? static_cast<Code>(why.code) : Code::aborted, std::string(text.substr(sizeof(why)))), false);
    }
    case MessageKind::sent:
      if (!messages_.handle_sent(prefix.source, prefix.number, text)) throw no_sense();
      return;
    case MessageKind::answered:
      if (!messages_.handle_answer(prefix.source, prefix.number, text)) throw no_sense();
      return;
    case MessageKind::left:
      last_[static_cast<size_t>(prefix.source)].left_after = prefix.number;
      last_[static_cast<size_t>(prefix.source)].left = Deadline::Clock::now();
      last_[static_cast<size_t>(prefix.source)].replaced = rest_of(message);
      return;
    default:
      throw no_sense();
  }
}

// Handles a bundle of an operation that this host does not relay.
void HostsTransport::handle_unexpected(uint64_t number, Rank source, std::string message) {
  if (prefix_of(message)->kind == MessageKind::bundle)
    handle({channel_, MessageKind::bundle, 0, source, number}, std::move(message));
}

void HostsTransport::handle_entry(uint64_t step, const Entry& entry) {
  const uint64_t number = number_of(step);
  Last& last = last_[static_cast<size_t>(entry.source)];
  if (number >= last.number) last.number = number, last.op = static_cast<Op>(entry.facts.op);
  if (Operation* operation = find(step)) return handle(*operation, entry);
  if (passed(number)) {
    send(entry.source, {channel_, MessageKind::passed, 0, rank_, number}, {});
  } else if (step <= finished_) {
    return;
  }
  early_[step].push_back({MessageKind::facts, entry.source, entry.facts, std::string(entry.payload)});
}

void HostsTransport::handle(Operation& operation, const Entry& entry) {
  const auto answer = operation.remote->handle(entry);
  if (!answer) return;
  patience_ = kLeastUnpolled;
  send(operation.step(), *answer);
}

void HostsTransport::give(Operation& operation, const Early& early) {
  switch (early.kind) {
    case MessageKind::facts:
      return handle(operation, {early.source, rank_, early.facts, early.text});
    case MessageKind::passed:
      operation.verdicts.insert(early.source);  // it sends none
      return operation.remote->handle_passed(early.source);
    default:
      operation.verdicts.insert(early.source);
      if (operation.their_disagreement.empty()) operation.their_disagreement = early.text;
  }
}

// Returns the operation of that step if its facts were sent to other hosts and it is not finished, or nullptr.
Operation* HostsTransport::find(uint64_t step) {
  const auto found = std::ranges::find_if(queue_, [&](const auto& o) { return o->step() == step && o->posted; });
  return found == queue_.end() ? nullptr : found->get();
}

void HostsTransport::send(Rank rank, const Prefix& prefix, std::string_view text) {
  network_->post(map_->process_of(rank), message(prefix, text));
}

void HostsTransport::send(uint64_t step, const Entry& entry) {
  const uint64_t number = number_of(step);
  const auto stage = static_cast<uint16_t>(step - step_of(number));
  std::string text =
      begin_message({channel_, MessageKind::facts, stage, rank_, number}, room_for(entry.payload.size()));
  append(text, entry);
  network_->post(map_->process_of(entry.target), std::move(text));
}

void HostsTransport::send_to_other_hosts(const Prefix& prefix, std::string_view text) {
  for (Rank r = 0; r < map_->size(); ++r) {
    if (map_->host_of(r) != map_->host_of(rank_)) send(r, prefix, text);
  }
}

}  // namespace a2a::hosts
