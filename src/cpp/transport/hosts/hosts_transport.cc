#include "transport/hosts/hosts_transport.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <ranges>

namespace a2a::hosts {
namespace {

// How many operations of a communicator are told to other hosts before the oldest of them is finished.
constexpr size_t kAhead = 2;
// How long the network may go unasked: a look costs as much as a small exchange, so there is not one for each.
constexpr auto kOften = std::chrono::microseconds(500);
// Where ranks share CPUs, the first steps of an operation that has sent all it sends, with no look at the network:
// others have yet to do their part, and may want this CPU for it.
constexpr unsigned kStepsUnseen = 2;  // one in start(), one in the wait for it
// How long a rank whose arguments were refused stays to throw away what others send it that do not know that yet.
constexpr auto kStay = std::chrono::milliseconds(200);

// Of this machine, whichever of them this process may use.
size_t cpus() { return static_cast<size_t>(std::max(::sysconf(_SC_NPROCESSORS_ONLN), 1l)); }

}  // namespace

HostsTransport::HostsTransport(Rank rank, std::shared_ptr<const Places> places, std::shared_ptr<Network> network,
                               uint64_t channel, std::unique_ptr<shm::ShmTransport> local, std::unique_ptr<Relay> relay)
    : rank_(rank),
      places_(std::move(places)),
      network_(std::move(network)),
      channel_(channel),
      local_(std::move(local)),
      progress_(local_->progress()),
      relay_(std::move(relay)),
      crowded_(progress_->crowded() || places_->on_machine_of(rank_) > cpus()),
      last_(static_cast<size_t>(places_->size())),
      agreed_(static_cast<size_t>(places_->size())) {
  progress_->note_slow_looks();
  {
    std::lock_guard lock(progress_->mutex());
    progress_->enter(this);
  }
  network_->enter(this);  // not with the mutex held: network_ends() takes it
}

HostsTransport::~HostsTransport() {
  const bool inherited = progress_->inherited();
  if (!inherited) {
    network_->leave(this);
    leave(Left::dropped);
  }
  std::unique_lock lock(progress_->mutex(), std::defer_lock);
  if (!inherited) lock.lock();
  progress_->leave(this);
  if (!inherited) network_->close(channel_);
}

// ---- operations ----------------------------------------------------------------------------------------------------

std::shared_ptr<Work> HostsTransport::start(Batch&& batch) {
  progress_->refuse_if_inherited();
  auto operation = std::make_shared<Operation>(std::move(batch), progress_, rank_, places_, network_);
  {
    std::lock_guard lock(progress_->mutex());
    if (broken_) {
      operation->fail(broken_for(operation->batch().signature));
      return operation;
    }
    started_ = operation->number();
    queue_.push_back(operation);
    guarded([this] {
      // Who has told facts already wants to hear some.
      if (Deadline::Clock::now() - last_listened_ > kSilence) listen();
      return post_next();  // the other hosts first: what goes there takes longest
    });
    if (broken_) return operation;
    operation->local = local_->enqueue(operation->local_batch());
    advance();
  }
  if (!operation->batch().refusal.empty()) {
    // The caller raises its own error next and may never come back, so the peers must be able to see the refusal first.
    const bool repeated = std::ranges::any_of(agreed_, [](const Agreements& agreed) { return !agreed.empty(); });
    const auto stay = Deadline::Clock::now() + (repeated ? kStay : kStay.zero());
    const auto seen = [&] {
      if (operation->finished()) return true;
      const bool duties =
          relay_ != nullptr && relay_->leads(operation->number()) && !relay_->finished(operation->number());
      const bool told = operation->posted && operation->local->posted() && !duties && network_->flushed();
      return told && (operation->remote.finished() || Deadline::Clock::now() > stay);
    };
    const Deadline deadline = operation->batch().deadline;
    while (!progress_->wait(seen, deadline) && !deadline.passed()) {
    }
  }
  return operation;
}

bool HostsTransport::advance() {
  if (queue_.empty() || broken_) return false;
  return guarded([this] { return step(); });
}

bool HostsTransport::must_look() {
  return !queue_.empty() && (must_listen() || queue_.front()->remote.waits_for_network());
}

// Whether the oldest operation waits for a message. Transfers are asked after themselves.
bool HostsTransport::must_listen() {
  const Operation& oldest = *queue_.front();
  const bool listens = oldest.remote.listens() && (!oldest.relayed || relay_->finished(oldest.number()));
  return listens || (relay_ != nullptr && relay_->waits_for_network()) || oldest.batch().way == Way::compare ||
         !network_->flushed();
}

// Whether to ask after transfers.
bool HostsTransport::wants_look() {
  Operation& oldest = *queue_.front();
  if (crowded_ && oldest.steps++ < kStepsUnseen && oldest.remote.sent_at_once()) return false;
  const auto waits = [](const auto& operation) { return operation->remote.waits_for_network(); };
  return std::ranges::any_of(queue_ | std::views::take(kAhead), waits);
}

// Facts may come instead of the bytes that are waited for. Asking costs more than all the rest of a step, so the less
// often, the longer none have.
bool HostsTransport::has_not_heard_for_long() {
  constexpr unsigned kMostUnheard = 256;
  if (++unheard_ < patience_) return false;
  unheard_ = 0;
  patience_ = std::min(2 * patience_, kMostUnheard);
  return true;
}

bool HostsTransport::step() {
  const uint64_t before = network_->moved();
  if (must_listen() || (!queue_.front()->remote.finished() && has_not_heard_for_long())) listen();
  if (queue_.empty()) return true;  // a peer has given up
  bool moved = post_next();
  moved |= advance_relay();
  if (queue_.empty()) return true;
  if (wants_look()) {
    network_->advance();
    last_looked_ = Deadline::Clock::now();
  }
  for (size_t i = 0; i < std::min(queue_.size(), kAhead); ++i) {
    moved |= queue_[i]->remote.advance();
    if (queue_[i]->remote.finished() && queue_[i]->local != nullptr) queue_[i]->local->let_own_go();
  }
  while (!queue_.empty() && complete(*queue_.front())) {
    moved = true;
    if (queue_.empty()) break;  // a peer has given up
    note_outcome(queue_.front());
    queue_.pop_front();
  }
  return moved || network_->moved() != before;
}

bool HostsTransport::advance_relay() {
  if (relay_ == nullptr) return false;
  const auto ask = [this](uint64_t number) {
    const auto asked =
        std::ranges::find_if(queue_, [&](const auto& operation) { return operation->number() == number; });
    return asked == queue_.end() ? std::nullopt : (*asked)->host_relays();
  };
  return relay_->advance(
      [this](uint64_t number, const Entry& entry) { hear_entry(number, entry); }, ask,
      [this](uint64_t number, Rank source, std::string message) { hear_stray(number, source, std::move(message)); });
}

bool HostsTransport::post_next() {
  bool posted = false;
  for (size_t i = 0; i < std::min(queue_.size(), kAhead); ++i) {
    if (queue_[i]->posted) continue;
    post(*queue_[i]);
    posted = true;
  }
  return posted;
}

void HostsTransport::post(Operation& operation) {
  // Who runs an operation on a device, uncompared, answers those that tell it what they do; so they have to.
  repeats_ &= operation.batch().signature.op != Op::connect;
  // With an earlier one unfinished, what is agreed on now may not be what bytes on their way belong to.
  const bool alone = &operation == queue_.front().get();
  RemoteExchange::Earlier earlier;
  if (const auto early = early_.find(operation.number()); early != early_.end()) {
    for (const Early& one : early->second) earlier.emplace(one.source, one.told);
  }
  const auto entries = operation.remote.begin(alone && repeats_ ? &agreed_ : nullptr, earlier);
  operation.relayed = !operation.remote.tells_itself() && !entries.empty();
  if (!operation.relayed) {
    for (const Entry& entry : entries) tell(operation.number(), entry);
  }
  if (relay_ != nullptr) {
    const bool said = operation.local != nullptr;  // that it relays
    relay_->post(operation.batch().signature, operation.relayed ? entries : std::vector<Entry>(),
                 operation.relayed || said);
    advance_relay();
  }
  operation.posted = true;
  const auto early = early_.extract(operation.number());
  if (early.empty()) return;
  for (const Early& one : early.mapped()) give(operation, one);
}

// Whether the operation is over; finishes it then.
bool HostsTransport::complete(Operation& operation) {
  if (operation.finished()) return true;
  if (!operation.posted || !operation.local->finished()) return false;
  operation.settle_local();
  if (!operation.remote.finished() || !network_->flushed()) return false;
  if (relay_ != nullptr) {
    // Who has handed over no memory need not wait until the relay is done with it.
    const bool done = operation.relayed ? relay_->finished(operation.number()) : relay_->served(operation.number());
    if (!done) return false;
  }
  const std::string quarrels = operation.quarrels();
  if (operation.batch().way == Way::compare) {
    if (!operation.judged) tell_verdict(operation);
    const bool agreed = quarrels.empty() && operation.their_quarrel.empty();
    if (agreed && operation.verdicts.size() + 1 < last_.size()) return false;
  }
  // A rank that has given up said so before its caller could write to the memory again that was read here. Where nobody
  // can have, it is enough to ask from time to time. Asking costs more than a small exchange, and a large one as well:
  // it fetches what others send for the next, to which this rank has not given memory yet.
  const auto now = Deadline::Clock::now();
  if (now > operation.remote.good_until() || now - last_listened_ > kSilence) listen();
  if (broken_) return true;
  const std::string& why = quarrels.empty() ? operation.their_quarrel : quarrels;
  operation.finish(why.empty() ? std::nullopt : std::optional<Error>(Error(Code::mismatch, why)));
  return true;
}

void HostsTransport::note_outcome(const std::shared_ptr<Operation>& operation) {
  finished_ = operation->number();
  for (Rank rank = 0; rank < places_->size(); ++rank) {
    Last& last = last_[static_cast<size_t>(rank)];  // bytes that say that facts are repeated do not say which
    if (last.number >= finished_ || !operation->remote.arrived(rank)) continue;
    last.number = finished_;
    last.op = operation->batch().signature.op;
  }
  operation->remote.note_agreements(agreed_);
  if (!operation->remote.let_go()) keep(operation);
}

// An operation that is compared goes on only when no two ranks disagree, on whatever host.
void HostsTransport::tell_verdict(Operation& operation) {
  constexpr size_t kLongest = 2048;
  const std::string text = operation.quarrels().substr(0, kLongest);
  for (Rank r = 0; r < places_->size(); ++r) {
    if (r != rank_) tell(r, {channel_, MessageKind::verdict, rank_, operation.number()}, text);
  }
  operation.judged = true;
}

// ---- what others tell ----------------------------------------------------------------------------------------------

void HostsTransport::listen() {
  const auto now = Deadline::Clock::now();
  // A network that nobody has asked for long may need several calls to come up with all that has arrived, such as the
  // word of a rank that has given up meanwhile.
  constexpr int kAsksOfLateRank = 5;
  int asks = now - last_looked_ > kOften ? kAsksOfLateRank : 1;
  last_listened_ = last_looked_ = now;
  while (asks > 0) {
    auto message = network_->take(channel_);
    if (!message) {
      --asks;
      continue;
    }
    const auto prefix = prefix_of(message->bytes);
    if (!prefix || !places_->has(prefix->source) || places_->endpoint_of(prefix->source) != message->from) {
      throw Error(Code::backend, network_->name() + ": a message makes no sense");
    }
    hear(*prefix, std::move(message->bytes));
    if (broken_) return;
  }
}

void HostsTransport::hear(const Prefix& prefix, std::string message) {
  const std::string_view text = rest_of(message);
  const auto no_sense = [&] {
    return Error(Code::backend, network_->name() + ": a message of " + name_of_rank(prefix.source) + " makes no sense");
  };
  switch (prefix.kind) {
    case MessageKind::bundle:
      if (relay_ == nullptr) throw no_sense();
      if (relay_->wants(prefix.number)) return relay_->take(prefix.number, prefix.source, std::move(message));
      tell(relay_->receiver_on(places_->host_of(prefix.source), prefix.number),
           {channel_, MessageKind::silence, rank_, prefix.number}, {});
      [[fallthrough]];
    case MessageKind::facts: {
      const auto entries = entries_of(text);
      if (!entries) throw no_sense();
      for (const Entry& entry : *entries) {
        if (!places_->has(entry.source) || !places_->has(entry.target)) throw no_sense();
        if (entry.target == rank_) {
          hear_entry(prefix.number, entry);
        } else {
          tell(prefix.number, entry);
        }
      }
      return;
    }
    case MessageKind::silence:
      if (relay_ == nullptr) throw no_sense();
      if (relay_->wants(prefix.number)) relay_->take(prefix.number, prefix.source, std::move(message));
      return;
    case MessageKind::passed:
    case MessageKind::verdict:
      if (Operation* operation = find(prefix.number)) {
        give(*operation, {prefix.kind, prefix.source, {}, std::string(text)});
      } else if (prefix.number > finished_) {
        early_[prefix.number].push_back({prefix.kind, prefix.source, {}, std::string(text)});
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
    case MessageKind::left:
      last_[static_cast<size_t>(prefix.source)].left_after = prefix.number;
      return;
    default:
      throw no_sense();
  }
}

// Of an operation that this host does not relay.
void HostsTransport::hear_stray(uint64_t number, Rank source, std::string message) {
  if (prefix_of(message)->kind == MessageKind::bundle)
    hear({channel_, MessageKind::bundle, source, number}, std::move(message));
}

void HostsTransport::hear_entry(uint64_t number, const Entry& entry) {
  Last& last = last_[static_cast<size_t>(entry.source)];
  if (number >= last.number) last.number = number, last.op = static_cast<Op>(entry.told.op);
  if (Operation* operation = find(number)) return hear(*operation, entry);
  if (passed(number)) {
    tell(entry.source, {channel_, MessageKind::passed, rank_, number}, {});
  } else if (number <= finished_) {
    return;
  }
  early_[number].push_back({MessageKind::facts, entry.source, entry.told, std::string(entry.payload)});
}

void HostsTransport::hear(Operation& operation, const Entry& entry) {
  const auto answer = operation.remote.hear(entry);
  if (!answer) return;
  patience_ = kLeastUnheard;
  tell(operation.number(), *answer);
}

void HostsTransport::give(Operation& operation, const Early& early) {
  switch (early.kind) {
    case MessageKind::facts:
      return hear(operation, {early.source, rank_, early.told, early.text});
    case MessageKind::passed:
      operation.verdicts.insert(early.source);  // it has none
      return operation.remote.hear_passed(early.source);
    default:
      operation.verdicts.insert(early.source);
      if (operation.their_quarrel.empty()) operation.their_quarrel = early.text;
  }
}

// The operation, once it was told to other hosts and as long as it is not finished.
Operation* HostsTransport::find(uint64_t number) {
  const auto found = std::ranges::find_if(queue_, [&](const auto& o) { return o->number() == number && o->posted; });
  return found == queue_.end() ? nullptr : found->get();
}

void HostsTransport::tell(Rank rank, const Prefix& prefix, std::string_view text) {
  network_->post(places_->endpoint_of(rank), message(prefix, text));
}

void HostsTransport::tell(uint64_t number, const Entry& entry) {
  std::string text = begin_message({channel_, MessageKind::facts, rank_, number}, room_for(entry.payload.size()));
  append(text, entry);
  network_->post(places_->endpoint_of(entry.target), std::move(text));
}

void HostsTransport::tell_remote(const Prefix& prefix, std::string_view text) {
  for (Rank r = 0; r < places_->size(); ++r) {
    if (places_->host_of(r) != places_->host_of(rank_)) tell(r, prefix, text);
  }
}

}  // namespace a2a::hosts
