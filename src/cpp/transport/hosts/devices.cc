// The messages of ranks of several hosts about operations that run on devices.
#include "transport/hosts/hosts_transport.h"

namespace a2a::hosts {
namespace {

// The number of latest operations without comparison that this rank remembers, to answer ranks that compare them.
constexpr uint64_t kRemembered = 1024;

Error refusal_of_peer(const Signature& signature, Rank rank, std::string_view reason) {
  return Error(Code::mismatch, name_of(signature) + ": " + name_of_rank(rank) +
                                   " does not take part, its arguments were refused there: " + std::string(reason));
}

}  // namespace

std::optional<Error> HostsTransport::pass(const Signature& signature) {
  progress_->refuse_if_inherited();
  {
    std::lock_guard lock(progress_->mutex());
    if (broken_) return broken_for(signature);
    passing_here_.push_back(signature);
    begin_here();
    if (relay_ != nullptr) relay_->pass(signature);
    started_ = signature.number;
    passed_.push_back(started_);
    if (passed_.size() > kRemembered) passed_.pop_front();
    guarded([&] {
      if (const auto early = early_.find(step_of(signature.number)); early != early_.end()) {
        for (const Early& one : early->second)
          send(one.source, {channel_, MessageKind::passed, 0, rank_, signature.number}, {});
      }
      advance_relay();
      return true;
    });
    const uint64_t remembered = step_of(passed_.front());
    while (!early_.empty() && early_.begin()->first < remembered) early_.erase(early_.begin());
  }
  if (auto error = contradiction(signature)) return error;
  std::lock_guard lock(progress_->mutex());
  if (broken_) return broken_for(signature);
  const auto lost = find_lost(signature.number);
  return lost ? std::optional(Error(lost->code(), name_of(signature) + ": " + lost->what())) : std::nullopt;
}

std::span<const HostsTransport::Early> HostsTransport::early_messages(uint64_t number) {
  receive_aborts();
  const auto found = early_.find(step_of(number));
  return found == early_.end() ? std::span<const Early>() : found->second;
}

std::optional<Error> HostsTransport::contradiction(const Signature& signature) {
  if (auto error = local_->contradiction(signature)) return error;
  std::lock_guard lock(progress_->mutex());
  for (const Early& early : early_messages(signature.number)) {
    if (early.kind != MessageKind::facts) continue;
    if (early.facts.delivery == Delivery::refused) {
      return refusal_of_peer(signature, early.source, early.text);
    }
    const auto op = static_cast<Op>(early.facts.op);
    const auto memory = static_cast<Memory>(early.facts.memory);
    if (op == signature.op && memory == signature.memory) continue;
    return Error(Code::mismatch, name_of(signature) + ": " + name_of_rank(early.source) + " calls " + to_string(op) +
                                     " in " + to_string(memory) + " memory, " + name_of_rank(rank_) + " runs it in " +
                                     to_string(signature.memory) + " memory without comparing");
  }
  return std::nullopt;
}

std::optional<Error> HostsTransport::refusal(const Signature& next) {
  if (auto error = local_->refusal(next)) return error;
  std::lock_guard lock(progress_->mutex());
  for (const Early& early : early_messages(next.number)) {
    if (early.kind == MessageKind::facts && early.facts.delivery == Delivery::refused) {
      return refusal_of_peer(next, early.source, early.text);
    }
  }
  return std::nullopt;
}

}  // namespace a2a::hosts
