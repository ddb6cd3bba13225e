#include "core/message.h"

#include <algorithm>

#include "core/facts.h"

namespace a2a {
namespace {

bool fits(const Message& receive, const Incoming& incoming) {
  return receive.tag == incoming.tag && (receive.peer == kAnySource || receive.peer == incoming.source);
}

std::string size_of(uint64_t bytes, const DType& dtype) {
  const size_t elem_bytes = std::max<size_t>(1, dtype.bytes());
  return std::to_string(bytes / elem_bytes) + " elements of " + to_string(dtype);
}

}  // namespace

std::string name_of(const Message& message) {
  const std::string peer = message.peer == kAnySource ? "any rank" : "rank " + std::to_string(message.peer);
  return (message.sends ? "send to " : "recv from ") + peer + " with tag " + std::to_string(message.tag);
}

Run run_of(const Message& message) {
  const auto* const packed = message.packed.get();
  if (packed == nullptr) return {0, message.data, message.bytes};
  return {0, packed->data, message.bytes, &packed->strides};
}

bool MessageWork::done() {
  progress_->refuse_if_inherited();
  if (!finished()) progress_->poll();
  return finished();
}

bool MessageWork::wait_until(Deadline deadline) {
  progress_->refuse_if_inherited();
  if (!finished() && !progress_->wait([this] { return finished(); }, deadline)) return false;
  if (error_) throw *error_;
  return true;
}

bool MessageWork::wait_briefly() {
  progress_->refuse_if_inherited();
  if (!finished() && !progress_->wait_briefly([this] { return finished(); })) return false;
  if (error_) throw *error_;
  return true;
}

Rank MessageWork::source() { return finished() ? source_ : kAnySource; }

bool MessageWork::let_go() {
  if (progress_->inherited() || !finished()) return finished();
  try {
    return let_go_ == nullptr || let_go_();
  } catch (const std::exception&) {  // then the network may still use the memory
    return false;
  }
}

void MessageWork::begin() {
  const auto& packed = message_.packed;
  if (packed == nullptr || !message_.sends) return;
  gather(packed->data, packed->strides, 0, message_.bytes, packed->packed.get());
}

std::span<const Run> MessageWork::run() {
  if (!run_) run_.emplace(run_of(message_));
  return {&*run_, 1};
}

void MessageWork::finish(Rank source) {
  if (finished()) return;
  const auto& packed = message_.packed;
  if (packed != nullptr && !message_.sends && !run_) {
    scatter(packed->data, packed->strides, 0, message_.bytes, packed->packed.get());
  }
  source_ = source;
  finished_.store(true, std::memory_order_release);
}

void MessageWork::fail(const Error& error) {
  if (finished()) return;
  predecessors_.clear();
  error_.emplace(error);
  finished_.store(true, std::memory_order_release);
}

void Matching::post(const std::shared_ptr<MessageWork>& receive) {
  const auto found = std::ranges::find_if(arrived_, [&](const auto& in) { return fits(receive->message(), *in); });
  if (found == arrived_.end()) return receives_.push_back(receive);
  const auto incoming = *found;
  arrived_.erase(found);
  incoming->receive = receive;
  incoming->meet();
}

void Matching::arrive(const std::shared_ptr<Incoming>& incoming) {
  const auto found = std::ranges::find_if(receives_, [&](const auto& r) { return fits(r->message(), *incoming); });
  if (found == receives_.end()) return arrived_.push_back(incoming);
  incoming->receive = *found;
  receives_.erase(found);
  incoming->meet();
}

void Matching::prune() {
  receives_.remove_if([](const auto& receive) { return receive->finished(); });
}

const Footprint& MessageWork::footprint() {
  if (!footprint_) footprint_.emplace(footprint_of(message_));
  return *footprint_;
}

void HeldMessages::begin(const std::shared_ptr<MessageWork>& work, Begin begin) {
  if (!waits(*work, held_.end())) return begin(work);
  held_.push_back({work, std::move(begin)});
}

bool HeldMessages::release() {
  bool any = false;
  for (auto next = held_.begin(); next != held_.end();) {
    if (!next->work->finished() && waits(*next->work, next)) {
      ++next;
      continue;
    }
    const auto [work, begin] = std::move(*next);
    next = held_.erase(next);
    if (work->finished()) continue;  // it has failed
    begin(work);
    any = true;
  }
  return any;
}

bool HeldMessages::waits(MessageWork& work, std::list<Held>::const_iterator end) const {
  if (!work.predecessors().finished()) return true;
  const Message& message = work.message();
  return std::any_of(held_.begin(), end, [&](const Held& earlier) {
    const Message& other = earlier.work->message();
    const bool same_peer = other.peer == message.peer || other.peer == kAnySource || message.peer == kAnySource;
    return !earlier.work->finished() && other.sends == message.sends && other.tag == message.tag && same_peer;
  });
}

std::string first_send(std::span<const std::shared_ptr<MessageWork>> works) {
  const auto goes_on = [](const auto& work) { return work->message().sends && !work->finished(); };
  const auto found = std::ranges::find_if(works, goes_on);
  return found == works.end() ? "" : (*found)->name();
}

std::string refused_there(Rank rank, const std::string& reason) {
  return "rank " + std::to_string(rank) + " does not take part, its arguments were refused there: " + reason;
}

std::optional<std::string> disagreement(const Incoming& incoming, Rank source, Rank receiver) {
  const Message& wanted = incoming.receive->message();
  if (!wanted.refusal.empty()) {
    return name_of(wanted) + ": " + refused_there(receiver, wanted.refusal);
  }
  if (incoming.bytes == wanted.bytes && incoming.dtype == pack(wanted.dtype)) return std::nullopt;
  return "message with tag " + std::to_string(incoming.tag) + ": rank " + std::to_string(source) + " sends " +
         size_of(incoming.bytes, unpack(incoming.dtype)) + ", rank " + std::to_string(receiver) + " receives " +
         size_of(wanted.bytes, wanted.dtype);
}

}  // namespace a2a
