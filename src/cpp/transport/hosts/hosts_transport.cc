#include "transport/hosts/hosts_transport.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>
#include <ranges>

#include "core/status_page.h"
#include "transport/hosts/spare_cpus.h"

namespace a2a::hosts {
namespace {

// How many unfinished operations of a communicator send their facts to other hosts at once.
constexpr size_t kAhead = 2;
// The first steps of an operation that do not look at the network, where ranks share CPUs and all its bytes are sent.
// Other ranks have to do their part first, and may need this CPU.
constexpr unsigned kStepsUnseen = 2;  // one in start(), one in the wait for it
// How long a rank whose arguments were refused discards bytes that peers send because they do not know that yet.
constexpr auto kStay = std::chrono::milliseconds(200);

}  // namespace

HostsTransport::HostsTransport(Rank rank, std::shared_ptr<const HostMap> map, std::shared_ptr<Network> network,
                               uint64_t channel, std::unique_ptr<shm::ShmTransport> local, std::unique_ptr<Relay> relay)
    : rank_(rank),
      map_(std::move(map)),
      network_(std::move(network)),
      channel_(channel),
      local_(std::move(local)),
      progress_(local_->progress()),
      relay_(std::move(relay)),
      crowded_(progress_->crowded() || map_->on_machine_of(rank_) > cpus_of_machine()),
      last_(static_cast<size_t>(map_->size())),
      matches_(static_cast<size_t>(map_->size())),
      messages_(rank_, *map_, network_, local_->matching(), local_->held(),
                [this](Rank to, bool answers, uint64_t number, const std::string& rest) {
                  send(to, {channel_, answers ? MessageKind::answered : MessageKind::sent, 0, rank_, number}, rest);
                }) {
  progress_->note_slow_looks(network_->serves_any_thread());
  const shm::Surroundings& here = local_->surroundings();
  // Several hosts may be containers of one machine, and share its CPUs.
  const bool spare = has_spare_cpus(static_cast<size_t>(here.ranks), static_cast<size_t>(here.cpus)) &&
                     has_spare_cpus(map_->on_machine_of(rank_), cpus_of_machine());
  if (spare && network_->serves_any_thread()) progress_->serve_if_automatic();
  local_->note_other_hosts();
  {
    std::lock_guard lock(progress_->mutex());
    progress_->enter(this);
  }
  network_->enter(this);  // without the mutex: network_ends() takes it
}

HostsTransport::~HostsTransport() {
  const bool inherited = progress_->inherited();
  if (!inherited) {
    network_->leave(this);
    leave(Left::dropped);
  } else {
    forget_predecessors(queue_);
    forget_predecessors(messages_.pending());
  }
  std::unique_lock lock(progress_->mutex(), std::defer_lock);
  if (!inherited) lock.lock();
  progress_->leave(this);
  if (inherited) return;
  network_->close(channel_);
  if (agreement_ == nullptr && network_->survives_deaths()) Agreement::forget(*network_, channel_);
}

// Leaves the batch as it was, but for its receives, when it throws.
std::shared_ptr<Operation> HostsTransport::new_operation(Batch&& batch) {
  const bool sums = batch.sum.summands != nullptr && batch.way == Way::exchange && batch.refusal.empty();
  auto sum = sums ? std::make_unique<ReceivedSum>(batch, map_->size()) : nullptr;
  auto stages = stage_runs(batch, rank_, *map_, scratch_);
  return std::make_shared<Operation>(std::move(batch), std::move(stages), std::move(sum), progress_, rank_, map_,
                                     network_);
}

// ---- operations ---------------------------------------------------------------------------------------------------

std::shared_ptr<Work> HostsTransport::start(Batch&& batch) {
  progress_->refuse_if_inherited();
  std::shared_ptr<Operation> operation;
  try {
    operation = new_operation(std::move(batch));
  } catch (const std::bad_alloc&) {
    Batch refused;
    static_cast<Terms&>(refused) = batch;
    refused.refusal = "out of memory";
    start(std::move(refused));
    throw;
  }
  {
    std::lock_guard lock(progress_->mutex());
    if (broken_) {
      operation->fail(broken_for(operation->batch().signature));
      return operation;
    }
    started_ = operation->number();
    if (in_flight()) operation->predecessors() = find_conflicting(operation->footprint());
    queue_.push_back(operation);
    guarded([this] {
      // A rank that has sent its facts already needs facts in return, not repeated bytes.
      if (Deadline::Clock::now() - last_polled_ > kRepeatTimeout) poll();
      post_next();  // other hosts first: their bytes take longest
      if (!broken_) begin_here();
      return true;
    });
    advance();
    if (operation->batch().asynchronous && !operation->finished()) progress_->hand_over();
  }
  if (!operation->batch().refusal.empty()) {
    // The caller raises its own error next and may never wait, so the peers have to see the refusal first.
    const bool repeated = std::ranges::any_of(matches_, [](const CachedMatches& agreed) { return !agreed.empty(); });
    const auto stay = Deadline::Clock::now() + (repeated ? kStay : kStay.zero());
    const auto seen = [&] {
      if (operation->finished()) return true;
      const bool duties =
          relay_ != nullptr && relay_->leads(operation->number()) && !relay_->finished(operation->number());
      const bool facts = operation->posted && operation->local != nullptr && operation->local->posted();
      if (!facts || duties || !network_->flushed()) return false;
      return operation->remote->finished() || Deadline::Clock::now() > stay;
    };
    const Deadline deadline = operation->batch().deadline;
    while (!progress_->wait(seen, deadline) && !deadline.passed()) {
    }
  }
  return operation;
}

Predecessors HostsTransport::conflicting(const Footprint& memory) {
  const std::lock_guard lock(progress_->mutex());
  return in_flight() ? find_conflicting(memory) : Predecessors();
}

Predecessors HostsTransport::find_conflicting(const Footprint& memory) const {
  Predecessors found;
  add_latest(found, queue_, memory);
  add_conflicting(found, messages_.pending(), memory);
  local_->add_messages(found, memory);
  return found;
}

bool HostsTransport::advance() {
  if (broken_) return false;
  const bool moved = messages_.active() && guarded([this] { return advance_messages(); });
  if (queue_.empty() || broken_) return moved;
  return guarded([this] { return step(); }) || moved;
}

bool HostsTransport::must_look() {
  return messages_.active() || (!queue_.empty() && (must_poll() || queue_.front()->remote->waits_for_network()));
}

// Whether the oldest operation waits for a message. wants_look() decides about transfers.
bool HostsTransport::must_poll() {
  const Operation& oldest = *queue_.front();
  const bool expects_facts =
      oldest.posted && oldest.remote->expects_facts() && (!oldest.relayed || relay_->finished(oldest.number()));
  return expects_facts || (relay_ != nullptr && relay_->waits_for_network()) || oldest.batch().way == Way::compare ||
         !network_->flushed();
}

// Whether to look at transfers.
bool HostsTransport::wants_look() {
  Operation& oldest = *queue_.front();
  if (crowded_ && oldest.steps++ < kStepsUnseen && oldest.remote->sent_at_once()) return false;
  const auto waits = [](const auto& operation) { return operation->remote->waits_for_network(); };
  return std::ranges::any_of(queue_ | std::views::take(kAhead), waits);
}

// Whether to look for messages: facts may come instead of the bytes that a repeating rank waits for. A look costs more
// than the rest of a step, so the longer none came, the rarer the looks.
bool HostsTransport::has_not_polled_for_long() {
  constexpr unsigned kMostUnpolled = 256;
  if (++unpolled_ < patience_) return false;
  unpolled_ = 0;
  patience_ = std::min(2 * patience_, kMostUnpolled);
  return true;
}

bool HostsTransport::step() {
  const uint64_t before = network_->moved();
  if (must_poll() || (!queue_.front()->remote->finished() && has_not_polled_for_long())) poll();
  if (queue_.empty()) return true;  // a peer has given up
  bool moved = post_next();
  moved |= advance_relay();
  if (queue_.empty()) return true;
  if (wants_look()) {
    network_->advance();
    last_looked_ = Deadline::Clock::now();
  }
  for (size_t i = 0; i < std::min(queue_.size(), kAhead); ++i) {
    moved |= queue_[i]->remote->advance();
    if (queue_[i]->remote->finished() && queue_[i]->local != nullptr) queue_[i]->local->let_own_go();
  }
  while (!queue_.empty() && complete(*queue_.front())) {
    moved = true;
    if (queue_.empty()) return true;  // a peer has given up
    if (queue_.front()->finished()) {
      note_outcome(queue_.front());
      retire_first();
    }
    begin_here();
    post_next();
  }
  begin_here();
  moved |= !queue_.empty() && queue_.front()->concluding();
  return moved || network_->moved() != before;
}

bool HostsTransport::advance_relay() {
  if (relay_ == nullptr) return false;
  const auto ask = [this](uint64_t number) {
    const auto asked =
        std::ranges::find_if(queue_, [&](const auto& operation) { return operation->number() == number; });
    return asked == queue_.end() ? std::nullopt : (*asked)->host_relays();
  };
  return relay_->advance([this](uint64_t number, const Entry& entry) { handle_entry(step_of(number), entry); }, ask,
                         [this](uint64_t number, Rank source, std::string message) {
                           handle_unexpected(number, source, std::move(message));
                         });
}

// Begins the exchanges on this host, in order. The next operation waits until the one before has begun its last
// exchange.
void HostsTransport::begin_here() {
  const auto pass_until = [this](uint64_t number) {
    for (; !passing_here_.empty() && passing_here_.front().number < number; passing_here_.pop_front()) {
      Batch batch;
      batch.signature = passing_here_.front();
      batch.way = Way::pass;
      local_->enqueue(std::move(batch));
    }
  };
  for (; begun_here_ < queue_.size(); ++begun_here_) {
    Operation& operation = *queue_[begun_here_];
    pass_until(operation.number());
    if (!operation.may_begin()) return;
    if (auto batch = operation.next_here()) operation.begun_here(local_->enqueue(std::move(*batch)));
    if (!operation.all_begun_here()) return;
  }
  pass_until(std::numeric_limits<uint64_t>::max());
}

void HostsTransport::retire_first() {
  queue_.pop_front();
  if (begun_here_ > 0) --begun_here_;
}

bool HostsTransport::post_next() {
  bool posted = false;
  for (size_t i = 0; i < std::min(queue_.size(), kAhead); ++i) {
    if (queue_[i]->posted) continue;
    if (!queue_[i]->on_network() || !queue_[i]->may_begin()) break;
    post(*queue_[i]);
    posted = true;
  }
  return posted;
}

void HostsTransport::post(Operation& operation) {
  // A rank that runs an operation on a device without comparing answers only ranks that send facts. So once the group
  // has devices, nothing is repeated.
  repeats_ &= operation.batch().signature.op != Op::connect;
  // While an earlier operation is unfinished, bytes under way may belong to an older match than the latest one.
  const bool alone = &operation == queue_.front().get();
  RemoteExchange::Earlier earlier;
  if (const auto early = early_.find(operation.step()); early != early_.end()) {
    for (const Early& one : early->second) earlier.emplace(one.source, one.facts);
  }
  const auto entries = operation.remote->begin(alone && repeats_ ? &matches_ : nullptr, earlier);
  operation.relayed = !operation.remote->sends_itself() && !entries.empty();
  if (!operation.relayed) {
    for (const Entry& entry : entries) send(operation.step(), entry);
  }
  if (relay_ != nullptr && operation.step() == step_of(operation.number())) {
    const bool said = operation.local != nullptr;  // peers of this host know that it relays
    relay_->post(operation.batch().signature, operation.relayed ? entries : std::vector<Entry>(),
                 operation.relayed || said);
    advance_relay();
  }
  operation.posted = true;
  const auto early = early_.extract(operation.step());
  if (early.empty()) return;
  for (const Early& one : early.mapped()) give(operation, one);
}

// Whether the exchanges of the operation's stage are over.
bool HostsTransport::complete_stage(Operation& operation) {
  if (!operation.settle_local()) return false;
  if (!operation.on_network()) return true;
  if (!operation.posted || !operation.remote->finished() || !network_->flushed()) return false;
  // Without memory at the relay the rank need not wait until the relay has finished.
  return relay_ == nullptr ||
         (operation.relayed ? relay_->finished(operation.number()) : relay_->served(operation.number()));
}

// Ends the operation's stage if it is over: begins the next one, or finishes the operation. Returns whether it is over.
bool HostsTransport::complete(Operation& operation) {
  if (operation.finished()) return true;
  if (!complete_stage(operation)) return false;
  const std::string disagreements = operation.disagreements();
  if (operation.batch().way == Way::compare) {
    if (!operation.judged) send_verdict(operation);
    const bool agreed = disagreements.empty() && operation.their_disagreement.empty();
    if (agreed && operation.verdicts.size() + 1 < last_.size()) return false;
  }
  if (disagreements.empty() && !operation.conclude()) return false;
  if (disagreements.empty() || !operation.compared()) {
    if (operation.on_network()) operation.remote->note_matches(matches_);
    if (operation.begin_next_stage()) return true;
  }
  // A peer that gave up sent its abort before its caller could write to the memory that was read here. Until
  // good_until() no peer can have done that, so a look from time to time is enough. A look costs more than a small
  // exchange. In a large one it may fetch bytes of the next operation, for which this rank has offered no memory yet.
  const auto now = Deadline::Clock::now();
  if (operation.stage_number() > 0 || now > operation.remote->good_until() || now - last_polled_ > kRepeatTimeout)
    poll();
  if (broken_) return true;
  const std::string& why = disagreements.empty() ? operation.their_disagreement : disagreements;
  const auto error = why.empty() ? std::nullopt : std::optional<Error>(Error(Code::mismatch, why));
  if (status_ != nullptr) status_->end(operation.number(), error ? &*error : nullptr);
  operation.finish(error);
  return true;
}

void HostsTransport::note_outcome(const std::shared_ptr<Operation>& operation) {
  finished_ = operation->step();
  for (Rank rank = 0; rank < map_->size(); ++rank) {
    Last& last = last_[static_cast<size_t>(rank)];  // bytes of a repeated match do not name the operation
    if (last.number >= operation->number() || !operation->remote->arrived(rank)) continue;
    last.number = operation->number();
    last.op = operation->batch().signature.op;
  }
  operation->remote->note_matches(matches_);
  if (!operation->remote->let_go()) keep(operation);
}

// Sends this rank's verdict. A compared operation goes on only when no two ranks disagree, on whatever host.
void HostsTransport::send_verdict(Operation& operation) {
  constexpr size_t kLongest = 2048;
  const std::string text = operation.disagreements().substr(0, kLongest);
  for (Rank r = 0; r < map_->size(); ++r) {
    if (r != rank_) send(r, {channel_, MessageKind::verdict, 0, rank_, operation.number()}, text);
  }
  operation.judged = true;
}

}  // namespace a2a::hosts
