#include "transport/shm/shm_transport.h"

#include <chrono>
#include <limits>

#include "bootstrap/cards.h"
#include "runtime/last_tick.h"
#include "transport/shm/peers/loans.h"
#include "transport/shm/protocol/protocol.h"
#include "transport/shm/protocol/texts.h"

namespace a2a::shm {
namespace {

// What the kernel said about the peers holds for this long: it takes a microsecond for each of them.
constexpr auto kFresh = std::chrono::milliseconds(5);

}  // namespace

std::unique_ptr<ShmTransport> ShmTransport::connect(Rank rank, int size, Bootstrap& bootstrap, Deadline deadline,
                                                    std::vector<Rank> names) {
  if (size > kMaxRanks) {
    throw Error(Code::unsupported,
                "size = " + std::to_string(size) + ": at most " + std::to_string(kMaxRanks) + " ranks share one host");
  }
  check_variables();
  auto progress = ShmProgress::of_this_thread();
  auto block = Membership::new_block(progress->host(), size);
  const uint64_t offset = progress->host().arena().offset(block.get());
  Meeting meeting = meet(rank, size, bootstrap, *progress, offset, deadline, names);
  return std::unique_ptr<ShmTransport>(new ShmTransport(rank, std::move(block), progress, meeting.surroundings,
                                                        std::move(meeting.neighbours), meeting.blocks,
                                                        std::move(names)));
}

ShmTransport::ShmTransport(Rank rank, Membership::NewBlock block, std::shared_ptr<ShmProgress> progress,
                           Surroundings surroundings, std::vector<std::shared_ptr<Neighbour>> neighbours,
                           std::span<const uint64_t> blocks, std::vector<Rank> names)
    : membership_(rank, std::move(block), progress, surroundings, neighbours, blocks, std::move(names)),
      vicinity_(std::make_shared<Vicinity>(Vicinity{rank, std::move(neighbours), std::move(progress)})) {
  std::lock_guard lock(membership_.progress().mutex());
  membership_.progress().enter(this);
}

ShmTransport::~ShmTransport() {
  if (membership_.progress().inherited()) {
    (void)successor_.release();  // it is the parent's
  } else {
    leave(Left::dropped);
  }
  // In a forked child another thread may have held the mutex at the fork; nobody else is there to race with.
  std::unique_lock lock(membership_.progress().mutex(), std::defer_lock);
  if (!membership_.progress().inherited()) lock.lock();
  membership_.progress().leave(this);
}

std::shared_ptr<Work> ShmTransport::start(Batch&& batch) {
  membership_.progress().refuse_if_inherited();
  const bool refusal = !batch.refusal.empty(), asynchronous = batch.asynchronous;
  const Deadline deadline = batch.deadline;
  std::shared_ptr<Exchange> exchange;
  {
    std::lock_guard lock(membership_.progress().mutex());
    exchange = enqueue(std::move(batch));
    if (asynchronous && !exchange->finished()) membership_.progress().hand_over();
  }
  // The caller raises its own error next and may never come back, so the peers must be able to see the refusal first.
  if (refusal) {
    while (!membership_.progress().wait([&] { return exchange->posted() || exchange->finished(); }, deadline)) {
      if (deadline.passed()) break;
    }
  }
  return exchange;
}

std::unique_lock<std::mutex> ShmTransport::claim() {
  ShmProgress& progress = membership_.progress();
  if (!progress.may_linger()) return {};
  return std::unique_lock(progress.mutex(), std::try_to_lock);
}

// When nobody has the latest operation any more, not even the queue, its memory serves the next one. A copy of the
// pointer acquires what the last of those who had it left behind.
std::shared_ptr<Exchange> ShmTransport::new_exchange(Batch&& batch) {
  if (latest_.use_count() != 1) {
    latest_ = std::make_shared<Exchange>(membership_.shared_progress(), membership_.rank(), size());
  }
  std::shared_ptr<Exchange> exchange = latest_;
  exchange->begin(std::move(batch));
  return exchange;
}

std::shared_ptr<Exchange> ShmTransport::enqueue(Batch&& batch) {
  auto exchange = new_exchange(std::move(batch));
  if (broken_) {
    exchange->fail(membership_, broken_for(exchange->batch().signature));
  } else {
    queue_.push_back(exchange);
    const bool later = exchange->batch().asynchronous && membership_.progress().is_served();
    guarded([&] { return later ? post_ready() : step(); });
  }
  return exchange;
}

Error ShmTransport::broken_for(const Signature& signature) const {
  return Error(broken_->code(), name_of(signature) + ": the communicator is broken: " + broken_->what());
}

// One look at each operation that can end now.
void ShmTransport::take_what_came() {
  size_t before = 0;
  do {
    before = queue_.size();
    advance();
  } while (queue_.size() < before);
}

bool ShmTransport::advance() {
  return !queue_.empty() && guarded([this] { return step(); });
}

template <class Step>
bool ShmTransport::guarded(Step&& step) {
  try {
    return step();
  } catch (const Error& error) {
    break_with(error);
  } catch (const std::exception& error) {  // out of memory, most likely
    break_with(Error(Code::backend, error.what()));
  }
  return true;
}

// Writes the lines of what comes next. Returns whether there was any.
bool ShmTransport::post_ready() {
  bool moved = false;
  for (size_t i = 0; i < queue_.size() && i < kSlots; ++i) {
    if (queue_[i]->posted()) continue;
    // The ring of a pair is one stream: the next operation's chunks may only follow when this one's are all in.
    if (i > 0 && queue_[i - 1]->streaming(membership_)) break;
    if (!queue_[i]->post(membership_)) break;
    moved = true;
  }
  return moved;
}

// One look at everything that is posted or could be. Returns whether anything moved.
bool ShmTransport::step() {
  bool moved = post_ready();
  if (queue_.empty() || !queue_.front()->posted()) return moved;
  moved |= queue_.front()->advance(membership_);
  if (!queue_.front()->finished()) return moved;
  queue_.pop_front();
  return !queue_.empty() || moved;
}

void ShmTransport::check(Deadline::Clock::time_point now, bool ask_kernel) {
  if (queue_.empty()) return;
  for (size_t i = 0; i < queue_.size() && !broken_; ++i) {
    if (queue_[i]->batch().deadline.passed(now)) expire(*queue_[i]);
  }
  for (Rank peer = 0; peer < size() && !broken_; ++peer) {
    if (peer != membership_.rank()) check_peer(peer, ask_kernel);
  }
}

void ShmTransport::check_peer(Rank peer, bool ask_kernel) {
  Peer& p = membership_.peer(peer);
  const auto& words = p.block.words();
  // What a rank wrote before it gave up, or left, is all there, and so is what others wrote before that. Take that
  // first; only what is still wanting then is lost.
  if (abort_of(words) != 0) take_what_came();
  if (broken_ || queue_.empty()) return;
  try {
    membership_.throw_if_aborted(peer);
    queue_.front()->look_for_pass(membership_, peer);
  } catch (const Error& error) {
    return break_with(error);
  }
  const Left left = left_of(words);
  const bool gone = ask_kernel ? p.host->gone() : p.host->lost.load(std::memory_order_relaxed);
  if (left == Left::no && !gone) return;
  take_what_came();
  if (broken_ || queue_.empty() || !queue_.front()->needs(membership_, peer)) return;
  // A rank that has left may have done so because it lost another one: what it said of that is handed on, otherwise
  // whoever is gone is named.
  if (const auto error = given_up()) return break_with(*error);
  std::string how = " lost ", whom;
  for (Rank other = 0; other < size(); ++other) {
    if (other == membership_.rank() || !membership_.peer(other).host->gone()) continue;
    if (queue_.front()->needs(membership_, other)) whom += (whom.empty() ? "" : "; ") + membership_.describe(other);
  }
  if (whom.empty()) {
    how = std::string(" misses, because it has ") + (left == Left::closed ? "closed" : "left") + " this communicator, ";
    whom = membership_.describe(peer);
  }
  break_with(Error(Code::peer_lost, name_of(queue_.front()->batch().signature) + ": rank " +
                                        std::to_string(membership_.name(membership_.rank())) + how + whom));
}

void ShmTransport::expire(Exchange& exchange) {
  break_with(Error(Code::timeout, name_of(exchange.batch().signature) + ": timed out on rank " +
                                      std::to_string(membership_.name(membership_.rank())) +
                                      ", which still waits for " + queue_.front()->missing(membership_)));
}

// The order matters: peers that are copying from this rank must see the abort before any caller here learns that its
// buffers are its own again.
void ShmTransport::break_with(const Error& error) {
  if (broken_) return;
  broken_.emplace(error);
  membership_.post_abort(error.code(), error.what());
  end_all(error);
}

void ShmTransport::end_all(const Error& error) {
  for (auto& exchange : queue_) exchange->fail(membership_, error);
  queue_.clear();
}

std::optional<Error> ShmTransport::given_up() {
  try {
    for (Rank peer = 0; peer < size(); ++peer) {
      if (peer != membership_.rank()) membership_.throw_if_aborted(peer);
    }
  } catch (const Error& error) {
    return error;
  }
  return std::nullopt;
}

// What a rank did before it gave up counts, so that is taken first.
void ShmTransport::hear_aborts() {
  if (broken_) return;
  const auto error = given_up();
  if (!error) return;
  take_what_came();
  break_with(*error);
}

void ShmTransport::abort(std::string_view reason) noexcept {
  if (membership_.progress().inherited()) return;
  std::lock_guard lock(membership_.progress().mutex());
  break_with(Error(Code::aborted, "rank " + std::to_string(membership_.name(membership_.rank())) +
                                      " aborted: " + std::string(reason)));
}

void ShmTransport::leave(Left how) noexcept {
  if (membership_.progress().inherited()) return;
  part(how);
  membership_.progress().host().loans().sweep();
}

void ShmTransport::part(Left how) {
  std::lock_guard lock(membership_.progress().mutex());
  if (!queue_.empty()) {
    const Error error(Code::aborted, "rank " + std::to_string(membership_.name(membership_.rank())) +
                                         " let the communicator go while " +
                                         name_of(queue_.front()->batch().signature) + " was under way");
    // Between parts of the library a rank may leave when nobody needs it any more.
    const auto given = [](const auto& exchange) { return exchange->batch().at_most && exchange->given(); };
    if (std::ranges::all_of(queue_, given)) {
      end_all(error);
    } else {
      break_with(error);
    }
  }
  membership_.leave(how);
  if (successor_ != nullptr) Membership::abandon(std::move(successor_), how);
}

void ShmTransport::see_off(std::chrono::milliseconds patience) {
  membership_.see_off(Deadline::at(Deadline::Clock::now() + patience));
  membership_.progress().host().loans().sweep();
}

std::shared_ptr<Loan> ShmTransport::lend(const std::byte* data, size_t bytes, DType dtype,
                                         std::span<const int64_t> shape) {
  if (shape.size() > kMaxDims) {
    throw Error(Code::invalid_argument, "the tensor has " + std::to_string(shape.size()) + " dimensions; at most " +
                                            std::to_string(kMaxDims) + " are possible");
  }
  Host& host = membership_.progress().host();
  host.loans().sweep();  // so that a program that only shows tensors gets its memory back
  const auto loan = std::make_shared<SharedLoan>(host, vicinity_, data, bytes, dtype, shape);
  host.loans().add(loan);
  return loan;
}

// ---- operations on devices -----------------------------------------------------------------------------------------

std::optional<Error> ShmTransport::pass(const Signature& signature) {
  membership_.progress().refuse_if_inherited();
  std::lock_guard lock(membership_.progress().mutex());
  if (auto error = find_end(signature)) return error;
  if (queue_.empty()) {
    membership_.pass(signature);
  } else {  // not before what is still in flight here
    Batch batch;
    batch.signature = signature;
    batch.way = Way::pass;
    queue_.push_back(new_exchange(std::move(batch)));
    advance();
  }
  return find_contradiction(signature);
}

// Whether it is all over already. Who gives up or leaves rings, so as long as nobody has there is nothing to look for;
// who dies does not, and is looked for from time to time.
std::optional<Error> ShmTransport::find_end(const Signature& signature) {
  const uint32_t rings = membership_.progress().rings();
  if (!broken_ && heard_ == rings && last_tick() - asked_ < kFresh) return std::nullopt;
  heard_ = rings;
  hear_aborts();
  if (broken_) return broken_for(signature);
  const auto lost = find_lost(signature.number);
  return lost ? std::optional(Error(lost->code(), name_of(signature) + ": " + lost->what())) : std::nullopt;
}

std::optional<Error> ShmTransport::contradiction(const Signature& signature) {
  std::lock_guard lock(membership_.progress().mutex());
  return find_contradiction(signature);
}

std::optional<Error> ShmTransport::refusal(const Signature& next) {
  std::lock_guard lock(membership_.progress().mutex());
  for (Rank peer = 0; peer < size(); ++peer) {
    if (peer == membership_.rank()) continue;
    if (auto error = find_refusal(peer, next)) return error;
  }
  return std::nullopt;
}

std::optional<Error> ShmTransport::find_refusal(Rank peer, const Signature& signature) {
  const auto& words = membership_.peer(peer).block.words();
  const uint64_t slot = signature.number % kSlots;
  const uint64_t said = notice_of(words, signature.number);
  if (said != notice(signature.number, static_cast<uint8_t>(said >> 8), 0)) return std::nullopt;
  return Error(Code::mismatch,
               name_of(signature) + ": rank " + std::to_string(membership_.name(peer)) +
                   " does not take part, its arguments were refused there: " + peer_text(words.refusal_text[slot]));
}

std::optional<Error> ShmTransport::find_contradiction(const Signature& signature) {
  const auto op = static_cast<uint8_t>(signature.op), memory = static_cast<uint8_t>(signature.memory);
  for (Rank peer = 0; peer < size(); ++peer) {
    if (peer == membership_.rank()) continue;
    if (auto error = find_refusal(peer, signature)) return error;
    const uint64_t said = notice_of(membership_.peer(peer).block.words(), signature.number);
    if (said >> 16 != signature.number || said == notice(signature.number, op, memory)) continue;
    return Error(Code::mismatch, name_of(signature) + ": rank " + std::to_string(membership_.name(peer)) + " calls " +
                                     to_string(static_cast<Op>(static_cast<uint8_t>(said >> 8))) + " in " +
                                     to_string(static_cast<Memory>(static_cast<uint8_t>(said))) + " memory, rank " +
                                     std::to_string(membership_.name(membership_.rank())) + " runs it in " +
                                     to_string(signature.memory) + " memory without comparing");
  }
  return std::nullopt;
}

std::optional<Error> ShmTransport::lost_peer() {
  std::lock_guard lock(membership_.progress().mutex());
  hear_aborts();
  return broken_ ? std::nullopt : find_lost(std::numeric_limits<uint64_t>::max());
}

// Who has come to the operation may be gone: what it sent is perhaps on its way still.
std::optional<Error> ShmTransport::find_lost(uint64_t needed) {
  const auto now = Deadline::Clock::now();
  const bool ask_kernel = now - asked_ >= kFresh;
  if (ask_kernel) asked_ = now;
  for (Rank peer = 0; peer < size(); ++peer) {
    if (peer == membership_.rank()) continue;
    const Peer& p = membership_.peer(peer);
    const Left left = left_of(p.block.words());
    const bool gone = ask_kernel ? p.host->gone() : p.host->lost.load(std::memory_order_relaxed);
    if ((left == Left::no && !gone) || membership_.finished(peer, needed)) continue;
    return Error(Code::peer_lost, "rank " + std::to_string(membership_.name(membership_.rank())) +
                                      (left == Left::no ? " lost " : " misses, because it has left, ") +
                                      membership_.describe(peer));
  }
  return std::nullopt;
}

bool ShmTransport::peer_died() {
  std::lock_guard lock(membership_.progress().mutex());
  return has_dead_peer();
}

bool ShmTransport::has_dead_peer() {
  for (Rank peer = 0; peer < size(); ++peer) {
    if (peer == membership_.rank() || left_of(membership_.peer(peer).block.words()) != Left::no) continue;
    if (membership_.peer(peer).host->gone()) return true;
  }
  return false;
}

void ShmTransport::fail(const Error& error) noexcept {
  if (membership_.progress().inherited()) return;
  std::lock_guard lock(membership_.progress().mutex());
  break_with(error);
}

std::string ShmTransport::whereabouts() {
  std::lock_guard lock(membership_.progress().mutex());
  std::string text;
  for (Rank peer = 0; peer < size(); ++peer) {
    if (peer != membership_.rank()) text += (text.empty() ? "" : "; ") + membership_.describe(peer);
  }
  return text;
}

std::optional<Error> ShmTransport::broken() {
  std::lock_guard lock(membership_.progress().mutex());
  hear_aborts();
  return broken_;
}

bool ShmTransport::failed() {
  std::lock_guard lock(membership_.progress().mutex());
  return broken_.has_value();
}

std::unique_ptr<Transport> ShmTransport::derive(std::span<const Rank> members, Bootstrap& bootstrap,
                                                Deadline deadline) {
  Membership::NewBlock block;
  const auto make_block = [&] {
    block = Membership::new_block(membership_.progress().host(), static_cast<int>(members.size()));
    return uint64_t{membership_.arena().offset(block.get())};
  };
  const auto name = [&](Rank rank) {
    return "rank " + std::to_string(membership_.name(members[static_cast<size_t>(rank)]));
  };
  const std::vector<uint64_t> blocks = exchange_cards(bootstrap, deadline, make_block, name);
  return derive(members, std::move(block), blocks, membership_.surroundings(), {});
}

std::unique_ptr<ShmTransport> ShmTransport::derive(std::span<const Rank> members, Membership::NewBlock block,
                                                   std::span<const uint64_t> blocks, const Surroundings& surroundings,
                                                   std::vector<Rank> names) {
  std::vector<std::shared_ptr<Neighbour>> neighbours;
  Rank mine = 0;
  for (size_t i = 0; i < members.size(); ++i) {
    if (members[i] == membership_.rank()) mine = static_cast<Rank>(i);
    neighbours.push_back(membership_.peer(members[i]).host);
  }
  return std::unique_ptr<ShmTransport>(new ShmTransport(mine, std::move(block), membership_.shared_progress(),
                                                        surroundings, std::move(neighbours), blocks, std::move(names)));
}

}  // namespace a2a::shm
