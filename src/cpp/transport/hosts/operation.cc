#include "transport/hosts/operation.h"

#include <algorithm>
#include <list>
#include <mutex>

#include "core/fan_out.h"
#include "transport/hosts/runs.h"

namespace a2a::hosts {
namespace {

// Returns the bytes that fill the caches besides the `here` bytes that each of `mates` ranks exchanges on its host.
// Bytes to and from other hosts are in the kernel's memory, too. Other hosts on the same machine fill its caches in the
// same way.
size_t besides(size_t here, size_t elsewhere, size_t mates, size_t on_machine) {
  return (here + 2 * elsewhere) * on_machine / mates - here;
}

}  // namespace

Operation::Operation(Batch batch, std::unique_ptr<Course> course, std::unique_ptr<ReceivedSum> sum,
                     std::shared_ptr<Progress> progress, Rank rank, std::shared_ptr<const Places> places,
                     std::shared_ptr<Network> network)
    : batch_(std::move(batch)),
      course_(std::move(course)),
      remote(course_ != nullptr ? course_->between : batch_, rank, places, *network),
      progress_(std::move(progress)),
      rank_(rank),
      places_(std::move(places)),
      network_(std::move(network)),
      next_(course_ == nullptr || course_->here ? Next::here : Next::here_again),
      sum_(std::move(sum)) {}

const Footprint& Operation::footprint() {
  if (!footprint_) footprint_.emplace(footprint_of(batch_));
  return *footprint_;
}

bool Operation::may_begin() {
  if (!predecessors_.finished()) return false;
  if (!packed_) batch_.pack();
  return packed_ = true;
}

bool Operation::done() {
  progress_->refuse_if_inherited();
  if (!finished()) progress_->poll();
  return finished();
}

bool Operation::wait_until(Deadline deadline) {
  progress_->refuse_if_inherited();
  if (!finished() && !progress_->wait([this] { return finished(); }, deadline)) return false;
  if (error_) throw *error_;
  return true;
}

bool Operation::arrived(Rank rank) {
  progress_->refuse_if_inherited();
  if (finished()) return !error_;
  if (course_ != nullptr || sum_ != nullptr) return done() && !error_;
  progress_->poll();
  std::shared_ptr<shm::Exchange> here;
  {
    std::lock_guard lock(progress_->mutex());
    if (finished()) return !error_;
    if (places_->host_of(rank) != places_->host_of(rank_)) {
      return remote.arrived(rank) && (batch_.fan_out == nullptr || batch_.fan_out->step(rank));
    }
    here = local;
  }
  if (here == nullptr || !here->arrived(static_cast<Rank>(places_->seat_of(rank)))) return false;
  if (batch_.fan_out == nullptr) return true;
  std::lock_guard lock(progress_->mutex());
  return batch_.fan_out->step(rank);
}

bool Operation::let_go() {
  if (progress_->inherited() || !finished()) return finished();
  std::lock_guard lock(progress_->mutex());
  return remote.let_go();
}

Batch Operation::batch_here() const {
  Batch batch;
  batch.sends = runs_here(batch_.sends, *places_, rank_);
  batch.recvs = runs_here(batch_.recvs, *places_, rank_);
  batch.strides = batch_.strides;
  batch.copy = batch_.copy;
  const size_t sent = bytes_of(batch.sends), sent_far = bytes_of(batch_.sends) - sent;
  const size_t received = bytes_of(batch.recvs), received_far = bytes_of(batch_.recvs) - received;
  const size_t mates = places_->ranks_of(places_->host_of(rank_)).size(), on_machine = places_->on_machine_of(rank_);
  batch.sent_elsewhere = besides(sent, sent_far, mates, on_machine);
  batch.received_elsewhere = besides(received, received_far, mates, on_machine);
  batch.own_last = sent_far + received_far > 0;
  batch.signature = batch_.signature;
  batch.unit_bytes = batch_.unit_bytes;
  batch.deadline = batch_.deadline;
  batch.refusal = batch_.refusal;
  batch.way = batch_.way;
  return batch;
}

std::optional<Batch> Operation::next_here() {
  if (next_ == Next::here) {
    Batch batch = course_ == nullptr ? batch_here() : std::move(*course_->here);
    batch.flag = relayed || !posted;  // the rank cannot say that it hands nothing to the relay
    return batch;
  }
  if (next_ == Next::here_again && all_here_) return std::move(course_->here_again);
  return std::nullopt;
}

void Operation::begun_here(std::shared_ptr<shm::Exchange> exchange) {
  const bool again = next_ == Next::here && course_ != nullptr && course_->here_again;
  next_ = again ? Next::here_again : Next::nothing;
  local = std::move(exchange);
  local_settled_ = false;
}

bool Operation::may_post() { return course_ == nullptr || !course_->here_first || settle_local(); }

bool Operation::conclude() {
  all_here_ = all_here_ || conclude_step();
  concluding_ = !all_here_;
  return all_here_ && next_ == Next::nothing;
}

bool Operation::conclude_step() {
  if (course_ != nullptr) return !course_->fold || course_->fold->step();
  if (sum_ != nullptr) return sum_->step();
  return batch_.fan_out == nullptr || fan_out();
}

bool Operation::fan_out() {
  for (Rank rank = 0; rank < places_->size(); ++rank) {
    if (!batch_.fan_out->done(rank)) return batch_.fan_out->step(rank) && rank + 1 == places_->size();
  }
  return true;
}

void Operation::finish(std::optional<Error> error) {
  error_ = std::move(error);
  finished_.store(true, std::memory_order_release);
}

void Operation::fail(const Error& error) {
  if (finished()) return;
  remote.abandon();
  predecessors_.clear();
  finish(error);
}

bool Operation::settle_local() {
  if (local == nullptr) return next_ != Next::here;
  if (local_settled_ || !local->finished()) return local_settled_;
  try {
    local->wait_until(Deadline::never());
  } catch (const Error& error) {
    if (error.code() != Code::mismatch) throw;
    local_disagreement_ = error.what();
  }
  return local_settled_ = true;
}

std::string Operation::disagreements() const {
  std::string text = local_disagreement_;
  constexpr size_t kMost = 4;
  std::vector<std::string> others = remote.disagreements();
  // A disagreement of two ranks of a host comes from both.
  std::ranges::sort(others);
  const auto [first, last] = std::ranges::unique(others);
  others.erase(first, last);
  for (size_t i = 0; i < std::min(others.size(), kMost); ++i) text += (text.empty() ? "" : "; ") + others[i];
  if (others.size() > kMost) text += "; and with " + std::to_string(others.size() - kMost) + " ranks more";
  return text;
}

void keep(std::shared_ptr<Operation> operation) {
  static auto& mutex = *new std::mutex;
  static auto& kept = *new std::list<std::shared_ptr<Operation>>;
  const std::lock_guard lock(mutex);
  kept.push_back(std::move(operation));
}

}  // namespace a2a::hosts
