// Failures of ranks on several hosts: detection, notification, and leaving.
#include <algorithm>
#include <chrono>
#include <limits>
#include <thread>

#include "core/facts.h"
#include "core/status_page.h"
#include "runtime/object_bytes.h"
#include "transport/hosts/hosts_transport.h"

namespace a2a::hosts {
namespace {

// How long a relay may take to pass on entries of a rank that is gone.
constexpr auto kEcho = std::chrono::milliseconds(20);
// How often a waiting rank looks for messages about failures.
constexpr auto kRarely = std::chrono::milliseconds(5);

}  // namespace

Error HostsTransport::broken_for(const Signature& signature) const {
  return Error(broken_->code(), name_of(signature) + ": the communicator is broken: " + broken_->what());
}

std::string HostsTransport::describe(Rank rank) const {
  const Last& last = last_[static_cast<size_t>(rank)];
  if (map_->host_of(rank) == map_->host_of(rank_)) return name_of_rank(rank) + " (on this host)";
  return name_of_rank(rank) + " (on another host): last operation " +
         a2a::name_of(static_cast<uint32_t>(last.op), last.number);
}

bool HostsTransport::needs(const Operation& operation, Rank rank) const {
  if (rank == rank_) return false;
  return operation.remote->waits_for(rank) || (operation.judged && !operation.verdicts.contains(rank));
}

std::optional<HostsTransport::Absence> HostsTransport::missed(Rank rank, uint64_t number) const {
  const Last& last = last_[static_cast<size_t>(rank)];
  if (last.left_after && *last.left_after < number) {
    if (!last.replaced.empty()) return Absence{Code::aborted, "cannot finish it: " + last.replaced};
    return Absence{Code::peer_lost, "waits for a rank that has left this communicator: " + describe(rank)};
  }
  const auto loss = network_->lost(map_->process_of(rank));
  // Relays may still have entries of that rank to pass on.
  const bool all_received = loss && (relay_ == nullptr || Deadline::Clock::now() - loss->since >= kEcho);
  if (!all_received) return std::nullopt;
  return Absence{Code::peer_lost, "lost " + describe(rank) + ": " + loss->how};
}

void HostsTransport::show_in(std::shared_ptr<Status> status) {
  std::lock_guard lock(progress_->mutex());
  status_ = std::move(status);
  if (status_ != nullptr) status_->belongs_to(progress_.get());
}

// Shows for whom this rank waits.
void HostsTransport::show_waits() {
  if (status_ == nullptr || broken_) return;
  if (!queue_.empty()) {
    std::vector<Rank> ranks = local_->awaited();
    for (Rank r = 0; r < map_->size(); ++r) {
      if (map_->host_of(r) != map_->host_of(rank_) && needs(*queue_.front(), r)) ranks.push_back(r);
    }
    status_->wait(queue_.front()->number(), ranks);
  }
  const a2a::Message* const here = local_->waiting_message();
  if (const a2a::Message* const message = here != nullptr ? here : messages_.oldest()) status_->wait(*message);
}

void HostsTransport::check(Deadline::Clock::time_point now, bool ask_kernel) {
  if (ask_kernel) show_waits();
  if (!broken_ && local_->break_error()) break_with(*local_->break_error(), true);  // a message within this host failed
  if (!broken_) check_messages(now);
  if (queue_.empty() || broken_) return;
  guarded([this, now] {
    if (now - last_polled_ >= kRarely) poll();
    // An error of this host is more precise than the ranks that are missing elsewhere because of it.
    if (!queue_.empty()) queue_.front()->settle_local();
    for (const auto& operation : queue_) {
      for (const Entry& entry : operation->remote->send_facts_late(now)) send(operation->step(), entry);
    }
    return true;
  });
  if (queue_.empty()) return;
  // A rank of this host may have given up after its exchange here.
  if (const auto error = local_->given_up()) return break_with(*error, true);
  Operation& oldest = *queue_.front();
  for (Rank r = 0; r < map_->size(); ++r) {
    if (last_[static_cast<size_t>(r)].left_after) oldest.remote->part_from(r);
    if (!needs(oldest, r)) continue;
    if (const auto absence = missed(r, oldest.number())) {
      const std::string what = name_of(oldest.batch().signature) + ": " + name_of_rank(rank_) + " ";
      return break_with(Error(absence->code, what + absence->why), true);
    }
  }
  if (oldest.batch().deadline.passed(now)) expire(oldest);
}

void HostsTransport::expire(const Operation& operation) {
  const std::string earlier = operation.predecessors().describe();
  std::string missing;
  std::vector<Rank> here;
  for (Rank r = 0; r < map_->size(); ++r) {
    const bool neighbour = map_->host_of(r) == map_->host_of(rank_);
    if (needs(operation, r)) {
      missing += (missing.empty() ? "" : "; ") + describe(r);
    } else if (r != rank_ && (!neighbour || (operation.local != nullptr && operation.local->finished()))) {
      here.push_back(r);
    }
  }
  if (!earlier.empty()) missing = earlier;
  if (missing.empty()) missing = "ranks that pass on what they have received_facts";
  break_with(Error(Code::timeout, name_of(operation.batch().signature) + ": timeout on " + name_of_rank(rank_) +
                                      ", which still waits for " + missing + have_come(here) + advice_on_timeout()),
             true);
}

void HostsTransport::break_with(const Error& error, bool notify) {
  if (broken_) return;
  broken_.emplace(error);
  died_ |= local_->has_dead_peer();
  network_->broke(error.code(), died_);
  local_->break_with(error);
  if (relay_ != nullptr) relay_->fail(error);
  if (notify) send_reason();
  messages_.fail_all(error);
  wait_for_lent_memory();
  for (auto& operation : queue_) {
    if (status_ != nullptr) status_->end(operation->number(), &error);
    operation->fail(error);
    if (!operation->remote->let_go()) keep(operation);
  }
  queue_.clear();
  begun_here_ = 0;
  passing_here_.clear();
}

// Waits until the network no longer has memory of the operations, for kRepeatTimeout at most. The caller that gets the
// error may write to its tensors. Within that time peers have received the bytes as they were
// (RemoteExchange::good_until).
void HostsTransport::wait_for_lent_memory() {
  const auto until = Deadline::Clock::now() + kRepeatTimeout;
  const auto lent = [](const auto& operation) { return !operation->remote->let_go(); };
  for (auto& operation : queue_) operation->remote->abandon();
  while (std::ranges::any_of(queue_, lent) && Deadline::Clock::now() < until) std::this_thread::yield();
}

void HostsTransport::send_reason() {
  const Reason why{static_cast<uint32_t>(broken_->code()), died_ ? 1U : 0U};
  std::string text(object_bytes(why));
  text += broken_->what();
  try {
    send_to_other_hosts({channel_, MessageKind::aborted, 0, rank_, 0}, text);
  } catch (const Error&) {  // the network itself failed
  }
}

void HostsTransport::abort(std::string_view reason) noexcept {
  fail(Error(Code::aborted, name_of_rank(rank_) + " aborted: " + std::string(reason)));
}

void HostsTransport::fail(const Error& error) noexcept {
  if (progress_->inherited()) return;
  std::lock_guard lock(progress_->mutex());
  break_with(error, true);
}

void HostsTransport::leave(Left how, std::string_view why) noexcept {
  if (progress_->inherited() || left_) return;
  left_ = true;
  {
    std::lock_guard lock(progress_->mutex());
    if (!queue_.empty() || messages_.active()) {
      break_with(Error(Code::aborted, how == Left::replaced ? std::string(why) : "the communicator was let go"), true);
    }
    try {
      // Those that shrink go on without it.
      const bool may_shrink = broken_ || how != Left::closed;
      if (may_shrink && !shrunk_ && network_->survives_deaths()) {
        Agreement::decline(rank_, *map_, *network_, channel_);
      }
      // A rank that received the error may leave before all others have received it, so each rank sends it.
      if (how != Left::closed)
        broken_ ? send_reason() : send_to_other_hosts({channel_, MessageKind::left, 0, rank_, started_}, why);
    } catch (const Error&) {  // peers find out by other means
    }
  }
  local_->leave(how, why);
  if (relay_ != nullptr) relay_->leave(how, why);
}

void HostsTransport::network_ends(const Error& why) noexcept {
  if (progress_->inherited()) return;
  {
    std::lock_guard lock(progress_->mutex());
    if (!queue_.empty()) break_with(why, true);
  }
  leave(Left::dropped);  // peers may need nothing more of this rank, so this does not break their communicator
  std::lock_guard lock(progress_->mutex());
  if (!broken_) broken_.emplace(why);
}

void HostsTransport::await_departure(std::chrono::milliseconds patience) { local_->await_departure(patience); }

// Looks for aborts. Callers need it while no operation is in flight, because advance() does not look then.
void HostsTransport::receive_aborts() {
  if (!broken_) guarded([this] { return poll(), true; });
  if (broken_) return;
  if (const auto error = local_->given_up()) break_with(*error, true);
}

std::optional<Error> HostsTransport::broken() {
  std::lock_guard lock(progress_->mutex());
  receive_aborts();
  return broken_;
}

bool HostsTransport::failed() {
  std::lock_guard lock(progress_->mutex());
  return broken_.has_value();
}

std::optional<Error> HostsTransport::lost_peer() {
  std::lock_guard lock(progress_->mutex());
  receive_aborts();
  return broken_ ? std::nullopt : find_lost(std::numeric_limits<uint64_t>::max() / 2);
}

std::optional<Error> HostsTransport::find_lost(uint64_t number) {
  if (auto error = local_->find_lost(shm::first_step(number))) return error;
  for (Rank r = 0; r < map_->size(); ++r) {
    if (map_->host_of(r) == map_->host_of(rank_)) continue;
    if (const auto absence = missed(r, number)) return Error(absence->code, name_of_rank(rank_) + " " + absence->why);
  }
  return std::nullopt;
}

bool HostsTransport::peer_died() {
  if (local_->peer_died()) return true;
  std::lock_guard lock(progress_->mutex());
  for (Rank r = 0; r < map_->size(); ++r) {
    if (map_->host_of(r) == map_->host_of(rank_) || last_[static_cast<size_t>(r)].left_after) continue;
    if (network_->lost(map_->process_of(r))) return true;
  }
  return false;
}

std::string HostsTransport::whereabouts() {
  std::string text = local_->whereabouts();
  std::lock_guard lock(progress_->mutex());
  for (Rank r = 0; r < map_->size(); ++r) {
    if (map_->host_of(r) != map_->host_of(rank_)) text += (text.empty() ? "" : "; ") + describe(r);
  }
  return text;
}

}  // namespace a2a::hosts
