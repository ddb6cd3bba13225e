#include "transport/hosts/operation.h"

#include <algorithm>
#include <list>
#include <mutex>
#include <numeric>

namespace a2a::hosts {
namespace {

// The ranks of this host by their places on it, in the order of the runs.
std::vector<Run> local_runs(std::span<const Run> runs, const Places& places, Rank rank) {
  const auto& mates = places.ranks_of(places.host_of(rank));
  std::vector<Run> local;
  local.reserve(runs.size());
  for (size_t seat = 0; seat < mates.size(); ++seat) {
    for (const Run& run : runs_with(runs, mates[seat])) local.push_back({static_cast<Rank>(seat), run.data, run.bytes});
  }
  return local;
}

size_t bytes_of(std::span<const Run> runs) {
  return std::accumulate(runs.begin(), runs.end(), size_t{0},
                         [](size_t sum, const Run& run) { return sum + run.bytes; });
}

// What takes up the caches besides these bytes that each of `mates` ranks exchanges on its host. What goes to other
// hosts or comes from there lies in the kernel's memory, too; and other hosts on the same machine fill its caches just
// so.
size_t besides(size_t here, size_t elsewhere, size_t mates, size_t on_machine) {
  return (here + 2 * elsewhere) * on_machine / mates - here;
}

}  // namespace

Operation::Operation(Batch batch, std::shared_ptr<Progress> progress, Rank rank, std::shared_ptr<const Places> places,
                     std::shared_ptr<Network> network)
    : batch_(std::move(batch)),
      remote(batch_, rank, places, *network),
      progress_(std::move(progress)),
      rank_(rank),
      places_(std::move(places)),
      network_(std::move(network)) {}

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
  if (places_->host_of(rank) == places_->host_of(rank_))
    return local->arrived(static_cast<Rank>(places_->seat_of(rank)));
  progress_->poll();
  std::lock_guard lock(progress_->mutex());
  return finished() ? !error_ : remote.arrived(rank);
}

bool Operation::let_go() {
  if (progress_->inherited() || !finished()) return finished();
  std::lock_guard lock(progress_->mutex());
  return remote.let_go();
}

Batch Operation::local_batch() const {
  Batch batch;
  batch.sends = local_runs(batch_.sends, *places_, rank_);
  batch.recvs = local_runs(batch_.recvs, *places_, rank_);
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
  batch.remark = relayed || !posted;  // the rank cannot say that it hands nothing to the relay
  return batch;
}

void Operation::finish(std::optional<Error> error) {
  error_ = std::move(error);
  finished_.store(true, std::memory_order_release);
}

void Operation::fail(const Error& error) {
  if (finished()) return;
  remote.abandon();
  finish(error);
}

void Operation::settle_local() {
  if (local_settled_) return;
  try {
    local->wait_until(Deadline::never());
  } catch (const Error& error) {
    if (error.code() != Code::mismatch) throw;
    local_quarrel_ = error.what();
  }
  local_settled_ = true;
}

std::string Operation::quarrels() const {
  std::string text = local_quarrel_;
  constexpr size_t kMost = 4;
  const auto& others = remote.quarrels();
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
