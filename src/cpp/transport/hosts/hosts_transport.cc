#include "transport/hosts/hosts_transport.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "transport/shm/facts.h"

namespace a2a::hosts {
namespace {

// How many operations of a communicator are told to other hosts before the oldest of them is finished.
constexpr size_t kAhead = 2;

// How many operations that were not compared are remembered, to find out that others compare them.
constexpr uint64_t kRemembered = 1024;

// No two communicators of a job have the same.
uint64_t new_channel(Endpoint self) {
  static std::atomic<uint32_t> made{0};
  return uint64_t{1} << 62 | static_cast<uint64_t>(self) << 32 | ++made;
}

std::string name_of_rank(Rank rank) { return "rank " + std::to_string(rank); }

Error refused_there(const Signature& signature, Rank rank, std::string_view reason) {
  return Error(Code::mismatch, name_of(signature) + ": " + name_of_rank(rank) +
                                   " does not take part, its arguments were refused there: " + std::string(reason));
}

// What a rank tells the others of a new group.
struct Card {
  uint64_t channel = 0;
  uint64_t blocks[3] = {};  // of local, gather, scatter
};

bool want_relay(const Places& places) {
  return entry_limit(places) > 0 && std::ranges::any_of(places.ranks, [](const auto& r) { return r.size() > 1; });
}

}  // namespace

std::unique_ptr<HostsTransport> HostsTransport::make(Rank rank, Places places, std::shared_ptr<Network> network,
                                                     Bootstrap& bootstrap, shm::ShmTransport& base,
                                                     std::span<const Rank> seats, Deadline deadline) {
  const bool relayed = want_relay(places);
  places.limits.aggregate = relayed ? entry_limit(places) : places.limits.eager;
  const auto& mates = places.ranks_of(places.host_of(rank));
  auto& host = base.progress()->host();
  shm::Membership::NewBlock blocks[3];
  std::string mine, failure;
  try {
    Card card;
    card.channel = new_channel(network->self());
    for (size_t i = 0; i < (relayed ? 3 : 1); ++i) {
      blocks[i] = shm::Membership::new_block(host, static_cast<int>(mates.size()));
      card.blocks[i] = host.arena().offset(blocks[i].get());
    }
    mine.assign(reinterpret_cast<const char*>(&card), sizeof(card));
  } catch (const Error& error) {
    failure = error.what();  // the others must hear of it: an empty string
  }
  const auto all = bootstrap.allgather(mine, deadline);
  if (!failure.empty()) throw Error(Code::backend, failure);
  std::vector<Card> cards(all.size());
  for (size_t r = 0; r < all.size(); ++r) {
    if (all[r].size() != sizeof(Card)) {
      throw Error(Code::backend, name_of_rank(static_cast<Rank>(r)) + " has no room for another communicator");
    }
    std::memcpy(&cards[r], all[r].data(), sizeof(Card));
  }
  const auto derived = [&](size_t which) {
    std::vector<uint64_t> offsets;
    for (const Rank mate : mates) offsets.push_back(cards[static_cast<size_t>(mate)].blocks[which]);
    return base.derive(seats, std::move(blocks[which]), offsets, base.surroundings(), mates);
  };
  const uint64_t channel = cards[0].channel;
  auto local = derived(0);
  auto where = std::make_shared<const Places>(std::move(places));
  std::unique_ptr<Relay> relay;
  if (relayed) {
    auto gather = derived(1), scatter = derived(2);
    relay = std::make_unique<Relay>(rank, where, channel, network, std::move(gather), std::move(scatter));
  }
  return std::unique_ptr<HostsTransport>(
      new HostsTransport(rank, std::move(where), std::move(network), channel, std::move(local), std::move(relay)));
}

HostsTransport::HostsTransport(Rank rank, std::shared_ptr<const Places> places, std::shared_ptr<Network> network,
                               uint64_t channel, std::unique_ptr<shm::ShmTransport> local, std::unique_ptr<Relay> relay)
    : rank_(rank),
      places_(std::move(places)),
      network_(std::move(network)),
      channel_(channel),
      local_(std::move(local)),
      progress_(local_->progress()),
      relay_(std::move(relay)),
      last_(static_cast<size_t>(places_->size())) {
  std::lock_guard lock(progress_->mutex());
  progress_->enter(this);
}

HostsTransport::~HostsTransport() {
  const bool inherited = progress_->host().inherited();
  if (!inherited) leave(Left::dropped);
  std::unique_lock lock(progress_->mutex(), std::defer_lock);
  if (!inherited) lock.lock();
  progress_->leave(this);
  if (!inherited) network_->close(channel_);
}

// ---- operations ----------------------------------------------------------------------------------------------------

std::shared_ptr<Work> HostsTransport::start(Batch batch, Stream) {
  progress_->host().refuse_if_inherited();
  auto operation = std::make_shared<Operation>(std::move(batch), progress_, rank_, places_, channel_, network_);
  {
    std::lock_guard lock(progress_->mutex());
    if (broken_) {
      operation->fail(broken_for(operation->batch().signature));
      return operation;
    }
    started_ = operation->number();
    operation->local = local_->enqueue(operation->local_batch());
    queue_.push_back(operation);
    advance();
  }
  if (!operation->batch().refusal.empty()) {
    // The caller raises its own error next and may never come back, so the peers must be able to see the refusal first.
    const auto seen = [&] {
      if (operation->finished()) return true;
      const bool duties = relay_ != nullptr && relay_->leads() && !relay_->finished(operation->number());
      return operation->posted && operation->local->posted() && !duties && network_->flushed();
    };
    const Deadline deadline = operation->batch().deadline;
    while (!progress_->wait(seen, deadline) && !deadline.passed()) {
    }
  }
  return operation;
}

template <class Body>
bool HostsTransport::guarded(Body&& body) {
  try {
    return body();
  } catch (const Error& error) {
    break_with(error, true);
  } catch (const std::exception& error) {  // out of memory, most likely
    break_with(Error(Code::backend, error.what()), true);
  }
  return true;
}

bool HostsTransport::advance() {
  if (queue_.empty() || broken_) return false;
  return guarded([this] { return step(); });
}

bool HostsTransport::must_look() {
  if (queue_.empty()) return false;
  const Operation& oldest = *queue_.front();
  return relay_ == nullptr || relay_->waits_for_network() || oldest.remote.waits_for_network() ||
         oldest.batch().way == Way::compare || !network_->flushed();
}

bool HostsTransport::step() {
  listen();
  if (queue_.empty()) return true;  // a peer has given up
  bool moved = false;
  for (size_t i = 0; i < std::min(queue_.size(), kAhead); ++i) {
    if (queue_[i]->posted) continue;
    post(*queue_[i]);
    moved = true;
  }
  if (relay_ != nullptr) {
    moved |= relay_->advance([this](uint64_t number, const Entry& entry) { hear_entry(number, entry); });
  }
  for (size_t i = 0; i < std::min(queue_.size(), kAhead); ++i) moved |= queue_[i]->remote.advance();
  while (!queue_.empty() && complete(*queue_.front())) {
    moved = true;
    if (queue_.empty()) break;  // a peer has given up
    finished_ = queue_.front()->number();
    queue_.pop_front();
  }
  return moved;
}

void HostsTransport::post(Operation& operation) {
  const auto entries = operation.remote.entries();
  if (relay_ != nullptr) {
    relay_->post(operation.batch().signature, entries);
  } else {
    for (const Entry& entry : entries) {
      std::string text;
      append(text, entry);
      tell(entry.target, {channel_, Kind::facts, rank_, operation.number()}, text);
    }
  }
  operation.remote.post_messages();
  operation.posted = true;
  const auto early = early_.extract(operation.number());
  if (early.empty()) return;
  for (const Early& one : early.mapped()) give(operation, one);
}

// Whether the operation is over; finishes it then.
bool HostsTransport::complete(Operation& operation) {
  if (operation.finished()) return true;
  if (!operation.posted || !operation.local->finished()) return false;
  const std::string quarrels = operation.quarrels();  // or throws what broke the ranks of this host
  if (!operation.remote.finished() || !network_->flushed()) return false;
  if (operation.batch().way == Way::compare) {
    if (!operation.judged) tell_verdict(operation);
    const bool agreed = quarrels.empty() && operation.their_quarrel.empty();
    if (agreed && operation.verdicts.size() + 1 < last_.size()) return false;
  }
  if (relay_ != nullptr && !relay_->finished(operation.number())) return false;
  // A rank that has given up said so before its caller could write to the memory again that was read here.
  listen();
  if (broken_) return true;
  const std::string& why = quarrels.empty() ? operation.their_quarrel : quarrels;
  operation.finish(why.empty() ? std::nullopt : std::optional<Error>(Error(Code::mismatch, why)));
  return true;
}

// An operation that is compared goes on only when no two ranks disagree, on whatever host.
void HostsTransport::tell_verdict(Operation& operation) {
  constexpr size_t kLongest = 2048;
  const std::string text = operation.quarrels().substr(0, kLongest);
  for (Rank r = 0; r < places_->size(); ++r) {
    if (r != rank_) tell(r, {channel_, Kind::verdict, rank_, operation.number()}, text);
  }
  operation.judged = true;
}

// ---- what others tell ----------------------------------------------------------------------------------------------

void HostsTransport::listen() {
  while (auto message = network_->take(channel_)) {
    const auto prefix = prefix_of(message->bytes);
    if (!prefix || !places_->has(prefix->source) || places_->endpoint_of(prefix->source) != message->from) {
      throw Error(Code::backend, network_->name() + ": a message makes no sense");
    }
    hear(*prefix, std::string(rest_of(message->bytes)));
    if (broken_) return;
  }
}

void HostsTransport::hear(const Prefix& prefix, std::string text) {
  const auto no_sense = [&] {
    return Error(Code::backend, network_->name() + ": a message of " + name_of_rank(prefix.source) + " makes no sense");
  };
  switch (prefix.kind) {
    case Kind::bundle:
      if (relay_ == nullptr) throw no_sense();
      if (!passed(prefix.number)) return relay_->take(prefix.number, prefix.source, std::move(text));
      tell(prefix.source, {channel_, Kind::bundle, rank_, prefix.number}, {});  // nobody here compares the operation
      [[fallthrough]];
    case Kind::facts: {
      const auto entries = entries_of(text);
      if (!entries) throw no_sense();
      for (const Entry& entry : *entries) {
        if (!places_->has(entry.source) || !places_->has(entry.target)) throw no_sense();
        if (entry.target == rank_) {
          hear_entry(prefix.number, entry);
        } else {
          std::string one;
          append(one, entry);
          tell(entry.target, {channel_, Kind::facts, rank_, prefix.number}, one);
        }
      }
      return;
    }
    case Kind::payload:
    case Kind::verdict:
    case Kind::passed:
      if (Operation* operation = find(prefix.number)) {
        give(*operation, {prefix.kind, prefix.source, {}, std::move(text)});
      } else if (prefix.number > finished_) {
        early_[prefix.number].push_back({prefix.kind, prefix.source, {}, std::move(text)});
      }
      return;
    case Kind::aborted: {
      uint32_t code = 0;
      if (text.size() < sizeof(code)) throw no_sense();
      std::memcpy(&code, text.data(), sizeof(code));
      const bool known = code >= static_cast<uint32_t>(Code::peer_lost) && code <= static_cast<uint32_t>(Code::backend);
      return break_with(Error(known ? static_cast<Code>(code) : Code::aborted, text.substr(sizeof(code))), false);
    }
    case Kind::left:
      last_[static_cast<size_t>(prefix.source)].left_after = prefix.number;
      return;
    default:
      throw no_sense();
  }
}

void HostsTransport::hear_entry(uint64_t number, const Entry& entry) {
  Last& last = last_[static_cast<size_t>(entry.source)];
  if (number >= last.number) last.number = number, last.op = static_cast<Op>(entry.facts.op);
  if (Operation* operation = find(number)) return operation->remote.hear(entry);
  if (passed(number)) tell(entry.source, {channel_, Kind::passed, rank_, number}, {});
  early_[number].push_back({Kind::facts, entry.source, entry.facts, std::string(entry.payload)});
}

void HostsTransport::give(Operation& operation, const Early& early) {
  switch (early.kind) {
    case Kind::facts:
      return operation.remote.hear({early.source, rank_, early.facts, early.text});
    case Kind::payload:
      return operation.remote.hear_payload(early.source, early.text);
    case Kind::passed:
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

void HostsTransport::tell_remote(const Prefix& prefix, std::string_view text) {
  for (Rank r = 0; r < places_->size(); ++r) {
    if (places_->host_of(r) != places_->host_of(rank_)) tell(r, prefix, text);
  }
}

// ---- failures ------------------------------------------------------------------------------------------------------

Error HostsTransport::broken_for(const Signature& signature) const {
  return Error(broken_->code(), name_of(signature) + ": the communicator is broken: " + broken_->what());
}

std::string HostsTransport::describe(Rank rank) const {
  const Last& last = last_[static_cast<size_t>(rank)];
  return name_of_rank(rank) + " (on another host): last operation " +
         shm::name_of(static_cast<uint32_t>(last.op), last.number);
}

void HostsTransport::check(Deadline::Clock::time_point now, bool) {
  if (queue_.empty() || broken_) return;
  guarded([this] {
    listen();
    // What the ranks of this host found out says more than who is missed elsewhere because of it.
    if (!queue_.empty() && queue_.front()->local->finished()) queue_.front()->quarrels();
    return true;
  });
  if (queue_.empty()) return;
  const Operation& oldest = *queue_.front();
  std::string missing;
  for (Rank r = 0; r < places_->size(); ++r) {
    if (!oldest.remote.waits_for(r)) continue;
    const auto& left_after = last_[static_cast<size_t>(r)].left_after;
    if (left_after && *left_after < oldest.number()) {
      return break_with(Error(Code::peer_lost, name_of(oldest.batch().signature) + ": " + name_of_rank(rank_) +
                                                   " misses, because it has left this communicator, " + describe(r)),
                        true);
    }
    missing += (missing.empty() ? "" : "; ") + describe(r);
  }
  if (!oldest.batch().deadline.passed(now)) return;
  break_with(Error(Code::timeout, name_of(oldest.batch().signature) + ": timed out on " + name_of_rank(rank_) +
                                      ", which still waits for " +
                                      (missing.empty() ? "ranks that pass on what they have heard" : missing)),
             true);
}

void HostsTransport::break_with(const Error& error, bool tell_others) {
  if (broken_) return;
  broken_.emplace(error);
  local_->break_with(error);
  if (relay_ != nullptr) relay_->fail(error);
  for (auto& operation : queue_) {
    operation->fail(error);
    if (!operation->remote.let_go()) keep(operation);
  }
  queue_.clear();
  if (!tell_others) return;
  const auto code = static_cast<uint32_t>(error.code());
  std::string text(reinterpret_cast<const char*>(&code), sizeof(code));
  text += error.what();
  try {
    tell_remote({channel_, Kind::aborted, rank_, 0}, text);
  } catch (const Error&) {  // the network is what broke
  }
}

void HostsTransport::abort(std::string_view reason) noexcept {
  fail(Error(Code::aborted, name_of_rank(rank_) + " aborted: " + std::string(reason)));
}

void HostsTransport::fail(const Error& error) noexcept {
  if (progress_->host().inherited()) return;
  std::lock_guard lock(progress_->mutex());
  break_with(error, true);
}

void HostsTransport::leave(Left how) noexcept {
  if (progress_->host().inherited() || left_) return;
  left_ = true;
  {
    std::lock_guard lock(progress_->mutex());
    if (!queue_.empty()) break_with(Error(Code::aborted, "the communicator was let go"), true);
    try {
      if (how == Left::dropped) tell_remote({channel_, Kind::left, rank_, started_}, {});
    } catch (const Error&) {  // they find out otherwise
    }
  }
  local_->leave(how);
  if (relay_ != nullptr) relay_->leave(how);
}

void HostsTransport::see_off(std::chrono::milliseconds patience) { local_->see_off(patience); }

std::optional<Error> HostsTransport::broken() {
  std::lock_guard lock(progress_->mutex());
  if (!broken_) guarded([this] { return listen(), true; });
  return broken_;
}

// ---- operations on devices -----------------------------------------------------------------------------------------

std::optional<Error> HostsTransport::pass(const Signature& signature) {
  progress_->host().refuse_if_inherited();
  {
    std::lock_guard lock(progress_->mutex());
    if (broken_) return broken_for(signature);
    Batch batch;
    batch.signature = signature;
    batch.way = Way::pass;
    local_->enqueue(std::move(batch));
    if (relay_ != nullptr) relay_->pass(signature);
    started_ = signature.number;
    passed_.push_back(started_);
    if (passed_.size() > kRemembered) passed_.pop_front();
    guarded([&] {
      for (const Early& early : early_[signature.number]) {
        tell(early.source, {channel_, Kind::passed, rank_, signature.number}, {});
      }
      if (relay_ == nullptr) return true;
      for (auto& [source, text] : relay_->give_back(signature.number)) {
        hear({channel_, Kind::bundle, source, signature.number}, std::move(text));
      }
      return true;
    });
    while (!early_.empty() && early_.begin()->first < passed_.front()) early_.erase(early_.begin());
  }
  return contradiction(signature);
}

std::optional<Error> HostsTransport::contradiction(const Signature& signature) {
  if (auto error = local_->contradiction(signature)) return error;
  std::lock_guard lock(progress_->mutex());
  if (!broken_) guarded([this] { return listen(), true; });
  const auto found = early_.find(signature.number);
  if (found == early_.end()) return std::nullopt;
  for (const Early& early : found->second) {
    if (early.kind != Kind::facts) continue;
    if (static_cast<Carriage>(early.facts.kind) == Carriage::refused) {
      return refused_there(signature, early.source, early.text);
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
  if (!broken_) guarded([this] { return listen(), true; });
  const auto found = early_.find(next.number);
  if (found == early_.end()) return std::nullopt;
  for (const Early& early : found->second) {
    if (early.kind == Kind::facts && static_cast<Carriage>(early.facts.kind) == Carriage::refused) {
      return refused_there(next, early.source, early.text);
    }
  }
  return std::nullopt;
}

std::optional<Error> HostsTransport::lost_peer() {
  if (auto error = local_->lost_peer()) {
    if (local_->broken()) fail(*error);
    return error;
  }
  std::lock_guard lock(progress_->mutex());
  if (!broken_) guarded([this] { return listen(), true; });
  if (broken_) return std::nullopt;
  for (Rank r = 0; r < places_->size(); ++r) {
    if (!last_[static_cast<size_t>(r)].left_after) continue;
    return Error(Code::peer_lost, name_of_rank(rank_) + " misses, because it has left, " + describe(r));
  }
  return std::nullopt;
}

std::string HostsTransport::whereabouts() {
  std::string text = local_->whereabouts();
  std::lock_guard lock(progress_->mutex());
  for (Rank r = 0; r < places_->size(); ++r) {
    if (places_->host_of(r) != places_->host_of(rank_)) text += (text.empty() ? "" : "; ") + describe(r);
  }
  return text;
}

// ---- groups --------------------------------------------------------------------------------------------------------

std::unique_ptr<HostTransport> HostsTransport::derive(std::span<const Rank> members, Bootstrap& bootstrap,
                                                      Deadline deadline) {
  Places part = places_->of(members);
  const auto mine = static_cast<Rank>(std::ranges::find(members, rank_) - members.begin());
  std::vector<Rank> seats;  // of those members that live here
  for (const Rank member : members) {
    if (places_->host_of(member) == places_->host_of(rank_))
      seats.push_back(static_cast<Rank>(places_->seat_of(member)));
  }
  if (part.hosts() == 1) return local_->derive(seats, bootstrap, deadline);
  return make(mine, std::move(part), network_, bootstrap, *local_, seats, deadline);
}

std::unique_ptr<HostTransport> HostsTransport::shrink(std::vector<Rank>*, Deadline) {
  throw Error(Code::unsupported, "shrink: the ranks of this communicator live on " + std::to_string(places_->hosts()) +
                                     " hosts; " + network_->name() + " cannot go on without a process it has lost");
}

HostFacts HostsTransport::facts() {
  HostFacts facts = local_->facts();
  facts.hosts = places_->hosts();
  facts.messages = network_->sent();
  return facts;
}

}  // namespace a2a::hosts
