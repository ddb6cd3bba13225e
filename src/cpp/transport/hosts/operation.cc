#include "transport/hosts/operation.h"

#include <algorithm>
#include <list>
#include <mutex>

#include "core/fan_out.h"
#include "transport/hosts/runs.h"

namespace a2a::hosts {
Operation::Operation(Batch batch, std::vector<StageRun> stages, std::unique_ptr<ReceivedSum> sum,
                     std::shared_ptr<Progress> progress, Rank rank, std::shared_ptr<const HostMap> map,
                     std::shared_ptr<Network> network)
    : batch_(std::move(batch)),
      stages_(std::move(stages)),
      progress_(std::move(progress)),
      rank_(rank),
      map_(std::move(map)),
      network_(std::move(network)),
      left_here_(static_cast<size_t>(std::ranges::count_if(stages_, &StageRun::on_host))),
      sum_(std::move(sum)) {
  make_remote();
}

// Leaves the last one if no further stage has an exchange between hosts.
void Operation::make_remote() {
  const auto next = std::find_if(stages_.begin() + static_cast<ptrdiff_t>(stage_), stages_.end(),
                                 [](const StageRun& run) { return run.on_network; });
  if (next == stages_.end()) return;
  remote_stage_ = next->between.stage;
  posted = false;
  remote.emplace(next->as_batch ? batch_ : next->between, rank_, map_, *network_);
}

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
  if (stages_.size() > 1 || batch_.folds || sum_ != nullptr) return done() && !error_;
  progress_->poll();
  std::shared_ptr<shm::Exchange> here;
  {
    std::lock_guard lock(progress_->mutex());
    if (finished()) return !error_;
    if (map_->host_of(rank) != map_->host_of(rank_)) {
      return remote->arrived(rank) && (batch_.fan_out == nullptr || batch_.fan_out->step(rank));
    }
    here = local;
  }
  if (here == nullptr || !here->arrived(static_cast<Rank>(map_->local_rank_of(rank)))) return false;
  if (batch_.fan_out == nullptr) return true;
  std::lock_guard lock(progress_->mutex());
  return batch_.fan_out->step(rank);
}

bool Operation::let_go() {
  if (progress_->inherited() || !finished()) return finished();
  std::lock_guard lock(progress_->mutex());
  return remote->let_go();
}

std::optional<Batch> Operation::next_here() {
  if (!stage().on_host || begun_) return std::nullopt;
  Batch batch = std::move(stage().here);
  batch.flag = batch.stage == 0 && (relayed || !posted);  // the rank cannot say that it hands nothing to the relay
  return batch;
}

void Operation::begun_here(std::shared_ptr<shm::Exchange> exchange) {
  begun_ = true;
  --left_here_;
  local = std::move(exchange);
  local_settled_ = false;
}

bool Operation::compared() const {
  const auto done = stages_.begin() + static_cast<ptrdiff_t>(stage_) + 1;
  return std::any_of(stages_.begin(), done, [](const StageRun& run) { return run.on_host; }) &&
         std::any_of(stages_.begin(), done, [](const StageRun& run) { return run.on_network; });
}

bool Operation::conclude() {
  const bool done = conclude_step();
  concluding_ = !done;
  return done;
}

bool Operation::conclude_step() {
  if (!stage().folds.empty()) return std::ranges::all_of(stage().folds, [](HostFold& fold) { return fold.step(); });
  if (sum_ != nullptr) return sum_->step();
  return batch_.fan_out == nullptr || fan_out();
}

bool Operation::begin_next_stage() {
  if (stage_ + 1 == stages_.size()) return false;
  const bool had_network = on_network();
  ++stage_;
  begun_ = false;
  if (had_network) make_remote();
  return true;
}

bool Operation::fan_out() {
  for (Rank rank = 0; rank < map_->size(); ++rank) {
    if (!batch_.fan_out->done(rank)) return batch_.fan_out->step(rank) && rank + 1 == map_->size();
  }
  return true;
}

void Operation::finish(std::optional<Error> error) {
  error_ = std::move(error);
  finished_.store(true, std::memory_order_release);
}

void Operation::fail(const Error& error) {
  if (finished()) return;
  remote->abandon();
  predecessors_.clear();
  finish(error);
}

bool Operation::settle_local() {
  if (stage().on_host && !begun_) return false;
  if (local == nullptr) return true;
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
  std::vector<std::string> others = remote->disagreements();
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
