#include "transport/shm/shm_transport.h"

#include <chrono>

#include "bootstrap/allgather_values.h"
#include "transport/shm/peers/exposed_tensor.h"
#include "transport/shm/peers/handshake.h"
#include "transport/shm/protocol/protocol.h"

namespace a2a::shm {

std::unique_ptr<ShmTransport> ShmTransport::connect(Rank rank, int size, Bootstrap& bootstrap, Deadline deadline,
                                                    std::vector<Rank> names) {
  if (size > kMaxRanks) {
    throw Error(Code::unsupported,
                "size = " + std::to_string(size) + ": at most " + std::to_string(kMaxRanks) + " ranks share one host");
  }
  check_variables();
  auto progress = ShmProgress::of_this_thread();
  auto block = Membership::new_block(progress->memory(), size);
  const uint64_t offset = progress->memory().arena().offset(block.get());
  ConnectedGroup group = connect_group(rank, size, bootstrap, *progress, offset, deadline, names);
  return std::unique_ptr<ShmTransport>(new ShmTransport(rank, std::move(block), progress, group.surroundings,
                                                        std::move(group.local_peers), group.blocks, std::move(names)));
}

ShmTransport::ShmTransport(Rank rank, Membership::NewBlock block, std::shared_ptr<ShmProgress> progress,
                           Surroundings surroundings, std::vector<std::shared_ptr<LocalPeer>> local_peers,
                           std::span<const uint64_t> blocks, std::vector<Rank> names)
    : membership_(rank, std::move(block), progress, surroundings, local_peers, blocks, std::move(names)),
      local_group_(std::make_shared<LocalGroup>(LocalGroup{rank, std::move(local_peers), std::move(progress)})) {
  std::lock_guard lock(membership_.progress().mutex());
  membership_.progress().enter(this);
}

ShmTransport::~ShmTransport() {
  if (membership_.progress().inherited()) {
    (void)successor_.release();  // the parent owns it
    forget_predecessors(queue_);
    if (messages_) forget_predecessors(messages_->pending());
  } else {
    leave(Left::dropped);
  }
  // In a forked child another thread may have held the mutex at the fork, so it is not taken; no other thread exists
  // there.
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
    exchange = enqueue_in_order(std::move(batch));
    if (asynchronous && !exchange->finished()) membership_.progress().hand_over();
  }
  // The caller raises its own error next and may never wait, so the peers have to see the refusal first.
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

// Reuses the memory of the latest operation if nobody else holds it. The copy of the pointer acquires what its last
// holder wrote.
std::shared_ptr<Exchange> ShmTransport::new_exchange(Batch&& batch) {
  if (latest_.use_count() != 1) {
    latest_ = std::make_shared<Exchange>(membership_.shared_progress(), membership_.rank(), size());
  }
  std::shared_ptr<Exchange> exchange = latest_;
  exchange->begin(std::move(batch));
  return exchange;
}

// Each stage is an exchange. All of them are in the queue before the first one goes on, so that its failure ends the
// others.
std::shared_ptr<Exchange> ShmTransport::enqueue_in_order(Batch&& batch) {
  if (batch.later.empty()) {
    Predecessors predecessors;
    if (in_flight()) predecessors = find_conflicting(footprint_of(batch));
    return enqueue(std::move(batch), std::move(predecessors));
  }
  std::vector<Batch> stages = split_stages(std::move(batch));
  std::vector<std::shared_ptr<Exchange>> exchanges;
  for (Batch& stage : stages) {
    Predecessors predecessors;
    if (in_flight()) predecessors = find_conflicting(footprint_of(stage));
    exchanges.push_back(new_exchange(std::move(stage)));
    exchanges.back()->predecessors() = std::move(predecessors);
  }
  for (const auto& exchange : exchanges) push(exchange);
  go_on(*exchanges.back());
  return exchanges.back();
}

std::shared_ptr<Exchange> ShmTransport::enqueue(Batch&& batch, Predecessors predecessors) {
  auto exchange = new_exchange(std::move(batch));
  exchange->predecessors() = std::move(predecessors);
  push(exchange);
  go_on(*exchange);
  return exchange;
}

void ShmTransport::push(const std::shared_ptr<Exchange>& exchange) {
  if (!broken_) return queue_.push_back(exchange);
  exchange->fail(membership_, broken_for(exchange->batch().signature));
}

void ShmTransport::go_on(const Exchange& latest) {
  if (latest.finished()) return;
  const bool later = latest.batch().asynchronous && membership_.progress().is_served();
  guarded([&] { return later ? post_ready() : step(); });
}

std::shared_ptr<MessageWork> ShmTransport::post(const Message& message) {
  ShmProgress& progress = membership_.progress();
  progress.refuse_if_inherited();
  auto work = std::make_shared<MessageWork>(membership_.shared_progress(), message);
  std::lock_guard lock(progress.mutex());
  if (in_flight()) work->predecessors() = find_conflicting(work->footprint());
  if (!broken_) {
    guarded([&] { return start_message(work), true; });
  }
  if (broken_) {
    work->fail(Error(broken_->code(), name_of(message) + ": the communicator is broken: " + broken_->what()));
  } else if (!work->finished()) {
    progress.hand_over();
  }
  return work;
}

Predecessors ShmTransport::conflicting(const Footprint& memory) {
  std::lock_guard lock(membership_.progress().mutex());
  return in_flight() ? find_conflicting(memory) : Predecessors();
}

Predecessors ShmTransport::find_conflicting(const Footprint& memory) const {
  Predecessors found;
  add_latest(found, queue_, memory);
  add_messages(found, memory);
  return found;
}

void ShmTransport::start_message(const std::shared_ptr<MessageWork>& work) {
  if (!messages_) messages_.emplace(membership_, matching_, held_);
  messages_->start(work);
}

Error ShmTransport::broken_for(const Signature& signature) const {
  return Error(broken_->code(), name_of(signature) + ": the communicator is broken: " + broken_->what());
}

// Advances as long as that ends operations.
void ShmTransport::take_what_came() {
  size_t before = 0;
  do {
    before = queue_.size();
    advance();
  } while (queue_.size() < before);
}

size_t ShmTransport::most_at_once() const {
  return fold_at_once_max(membership_.machine()) / static_cast<size_t>(std::max(1, size() - 1));
}

bool ShmTransport::advance() {
  const bool moved = !queue_.empty() && guarded([this] { return step(); });
  if (!messages_ || !messages_->active() || broken_) return moved;
  const bool passed = guarded([this] { return messages_->advance(); });
  if (membership_.status() != nullptr && !messages_->busy()) membership_.status()->no_message();
  return passed || moved;
}

// Publishes the lines of the next operations. Returns whether it did.
bool ShmTransport::post_ready() {
  bool moved = false;
  for (size_t i = 0; i < queue_.size() && i < kSlots; ++i) {
    if (queue_[i]->posted()) continue;
    if (i > 0 && queue_[i]->batch().stage > 0) break;  // it sends what the stage before receives
    // The chunks of a pair are one stream: the next operation's chunks have to follow all of this one's.
    if (i > 0 && queue_[i - 1]->streaming(membership_)) break;
    if (!queue_[i]->may_begin() || !queue_[i]->post(membership_)) break;
    moved = true;
  }
  return moved;
}

// Posts what can be posted, and advances the first operation. Returns whether anything moved.
bool ShmTransport::step() {
  bool moved = post_ready();
  if (queue_.empty() || !queue_.front()->posted()) return moved;
  moved |= queue_.front()->advance(membership_);
  if (!queue_.front()->finished()) return moved;
  retire_first();
  return !queue_.empty() || moved;
}

// Removes the first exchange. A stage that has failed has failed on every rank, so no rank runs the next one.
void ShmTransport::retire_first() {
  const std::optional<Error> error = queue_.front()->error();
  queue_.pop_front();
  if (queue_.empty() || queue_.front()->batch().stage == 0) return;
  if (!error) return void(post_ready());
  queue_.front()->fail(membership_, *error);
  queue_.pop_front();
}

// The order matters: peers that copy from this rank must see the abort before any caller here learns that its buffers
// are free.
void ShmTransport::break_with(const Error& error) {
  if (broken_) return;
  broken_.emplace(error);
  membership_.post_abort(error.code(), error.what());
  end_all(error);
}

void ShmTransport::end_all(const Error& error) {
  for (auto& exchange : queue_) exchange->fail(membership_, error);
  queue_.clear();
  if (messages_) messages_->fail_all(error);
}

void ShmTransport::abort(std::string_view reason) noexcept {
  if (membership_.progress().inherited()) return;
  std::lock_guard lock(membership_.progress().mutex());
  break_with(Error(Code::aborted, "rank " + std::to_string(membership_.name(membership_.rank())) +
                                      " aborted: " + std::string(reason)));
}

std::string ShmTransport::unreceived() {
  std::lock_guard lock(membership_.progress().mutex());
  if (!messages_ || broken_) return "";
  advance();
  return first_send(messages_->pending());
}

void ShmTransport::leave(Left how, std::string_view why) noexcept {
  if (membership_.progress().inherited()) return;
  part(how, why);
  membership_.progress().memory().exposed_tensors().sweep();
}

void ShmTransport::part(Left how, std::string_view why) {
  std::lock_guard lock(membership_.progress().mutex());
  const auto let_go = [&](const std::string& what) {
    return Error(Code::aborted, how == Left::replaced
                                    ? what + ": " + std::string(why)
                                    : "rank " + std::to_string(membership_.name(membership_.rank())) +
                                          " let the communicator go while " + what + " was under way");
  };
  if (messages_ && messages_->busy()) break_with(let_go(name_of(messages_->oldest())));
  if (!queue_.empty()) {
    const Error error = let_go(name_of(queue_.front()->batch().signature));
    // Inside the library (at_most) a rank may leave when its peers have all its bytes.
    const auto given = [](const auto& exchange) { return exchange->batch().at_most && exchange->given(); };
    if (std::ranges::all_of(queue_, given)) {
      end_all(error);
    } else {
      break_with(error);
    }
  }
  membership_.leave(how, why);
  if (successor_ != nullptr) Membership::abandon(std::move(successor_), how);
}

void ShmTransport::await_departure(std::chrono::milliseconds patience) {
  membership_.await_departure(Deadline::at(Deadline::Clock::now() + patience));
  membership_.progress().memory().exposed_tensors().sweep();
}

std::shared_ptr<Exposure> ShmTransport::expose(const std::byte* data, size_t bytes, DType dtype,
                                               std::span<const int64_t> shape) {
  if (shape.size() > kMaxDims) {
    throw Error(Code::invalid_argument, "the tensor has " + std::to_string(shape.size()) + " dimensions; at most " +
                                            std::to_string(kMaxDims) + " are possible");
  }
  ProcessMemory& memory = membership_.progress().memory();
  memory.exposed_tensors().sweep();  // a program that only shows tensors gets memory back here
  const auto tensor = std::make_shared<ExposedTensor>(memory, local_group_, data, bytes, dtype, shape);
  memory.exposed_tensors().add(tensor);
  return tensor;
}

void ShmTransport::fail(const Error& error) noexcept {
  if (membership_.progress().inherited()) return;
  std::lock_guard lock(membership_.progress().mutex());
  break_with(error);
}

std::unique_ptr<Transport> ShmTransport::derive(std::span<const Rank> members, Bootstrap& bootstrap,
                                                Deadline deadline) {
  Membership::NewBlock block;
  const auto make_block = [&] {
    block = Membership::new_block(membership_.progress().memory(), static_cast<int>(members.size()));
    return uint64_t{membership_.arena().offset(block.get())};
  };
  const auto name = [&](Rank rank) {
    return "rank " + std::to_string(membership_.name(members[static_cast<size_t>(rank)]));
  };
  const std::vector<uint64_t> blocks = allgather_values(bootstrap, deadline, make_block, name);
  return derive(members, std::move(block), blocks, membership_.surroundings(), {});
}

std::unique_ptr<ShmTransport> ShmTransport::derive(std::span<const Rank> members, Membership::NewBlock block,
                                                   std::span<const uint64_t> blocks, const Surroundings& surroundings,
                                                   std::vector<Rank> names) {
  std::vector<std::shared_ptr<LocalPeer>> local_peers;
  Rank mine = 0;
  for (size_t i = 0; i < members.size(); ++i) {
    if (members[i] == membership_.rank()) mine = static_cast<Rank>(i);
    local_peers.push_back(membership_.peer(members[i]).host);
  }
  return std::unique_ptr<ShmTransport>(new ShmTransport(mine, std::move(block), membership_.shared_progress(),
                                                        surroundings, std::move(local_peers), blocks,
                                                        std::move(names)));
}

}  // namespace a2a::shm
