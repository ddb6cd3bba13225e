#include "transport/mpi/mpi_network.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "runtime/object_bytes.h"

namespace a2a::mpi {
namespace {

constexpr uint64_t kTombstone = ~uint64_t{0};  // the channel of tombstones: messages that a process died
constexpr int kMessageTag = 0;                 // for transfers see transfers.cc: two tags for each of next_tag()'s

}  // namespace

MpiNetwork::MpiNetwork(std::unique_ptr<Library> library)
    : library_(std::move(library)),
      largest_tag_(static_cast<uint32_t>(library_->largest_tag()) / 2 - 1),
      tags_(static_cast<size_t>(library_->size())) {}

bool MpiNetwork::connected() {
  const std::lock_guard lock(mutex_);
  refuse_if_ended();
  return library_->duplicated();
}

std::string MpiNetwork::next_meeting(const std::string& name) {
  const std::lock_guard lock(mutex_);
  return name + "#" + std::to_string(++meetings_[name]);
}

void MpiNetwork::enter(User* user) {
  const std::lock_guard lock(users_mutex_);
  users_.push_back(user);
}

void MpiNetwork::leave(User* user) noexcept {
  const std::lock_guard lock(users_mutex_);
  std::erase(users_, user);
}

void MpiNetwork::refuse_if_ended() const {
  if (ended_) throw finalised_by_program();
}

Error MpiNetwork::finalised_by_program() const {
  return Error(Code::aborted, library_->name() + " was finalised while the communicator was in use");
}

// ---- messages -----------------------------------------------------------------------------------------------------

void MpiNetwork::post(Process to, std::string bytes) {
  if (bytes.size() > kMostBytes) throw Error(Code::backend, "a message of more than 1 GiB");
  const std::lock_guard lock(mutex_);
  refuse_if_ended();
  start_post(to, std::move(bytes), kMessageTag);
  complete_posted();
}

void MpiNetwork::start_post(Process to, std::string bytes, int tag) {
  posted_.push_back({std::move(bytes), 0});
  auto& message = posted_.back();
  message.request = library_->start_send(message.bytes.data(), message.bytes.size(), to, tag);
  ++sent_;
}

std::optional<Message> MpiNetwork::take(uint64_t channel) {
  const std::lock_guard lock(mutex_);
  move_messages();
  return inbox_.take(channel);
}

bool MpiNetwork::flushed() {
  const std::lock_guard lock(mutex_);
  if (!ended_) complete_posted();
  return ended_ || posted_.empty();
}

void MpiNetwork::close(uint64_t channel) noexcept {
  const std::lock_guard lock(mutex_);
  inbox_.close(channel);
}

void MpiNetwork::move_messages() {
  if (ended_) return;
  receive_messages();
  complete_posted();
}

// Receives by probing, although each probe polls the network several times and a posted receive from any source would
// poll once: MPICH 5.0.2 over UCX loses messages that should match such a receive.
void MpiNetwork::receive_messages() {
  while (const auto arrival = library_->probe(kMessageTag)) {
    arriving_.push_back({std::string(static_cast<size_t>(arrival->bytes), '\0'), 0, arrival->source});
    auto& message = arriving_.back();
    message.request = library_->start_receive(message.bytes.data(), *arrival);
  }
  for (auto message = arriving_.begin(); message != arriving_.end();) {
    if (!library_->test(&message->request)) {
      ++message;
      continue;
    }
    inbox_.deliver({message->peer, std::move(message->bytes)});
    message = arriving_.erase(message);
  }
}

void MpiNetwork::complete_posted() {
  for (auto message = posted_.begin(); message != posted_.end();) {
    message = library_->test(&message->request) ? posted_.erase(message) : std::next(message);
  }
}

uint64_t MpiNetwork::sent() const {
  const std::lock_guard lock(mutex_);
  return sent_;
}

// ---- tags ---------------------------------------------------------------------------------------------------------

uint32_t MpiNetwork::next_tag(Process to) {
  const std::lock_guard lock(mutex_);
  auto& tag = tags_[static_cast<size_t>(to)];
  return tag = tag % largest_tag_ + 1;
}

bool MpiNetwork::fresh(Process to, uint32_t tag) const {
  return (tags_[static_cast<size_t>(to)] + largest_tag_ - tag) % largest_tag_ < largest_tag_ / 2;
}

// ---- the end ------------------------------------------------------------------------------------------------------

void MpiNetwork::broke(Code code, bool died) noexcept {
  if (died) died_ = true;
  if (code == Code::timeout || code == Code::backend) late_ = true;
}

void MpiNetwork::notify_users() noexcept {
  const std::lock_guard lock(users_mutex_);
  for (User* user : users_) user->network_ends(finalised_by_program());
}

// Does a part of the end; returns whether all is done. A rank that failed leaves sends that no receive would match. So
// each process receives all that still comes, until all processes have reached their end and all sends are complete.
bool MpiNetwork::wind_up() {
  const std::lock_guard lock(mutex_);
  if (ended_) return true;
  if (!library_->duplicated()) return false;
  if (inbox_.has(kTombstone)) died_ = true;
  library_->tell_watchers_to_expect_nothing();
  discard_arriving();
  complete_posted();
  library_->look();
  if (!last_barrier_) {
    if (!posted_.empty() || library_->watched() != 0) return false;
    last_barrier_ = library_->start_barrier();
  }
  return ended_ = library_->test(&*last_barrier_) && arriving_.empty();
}

void MpiNetwork::discard_arriving() {
  while (const auto arrival = library_->probe(std::nullopt)) {
    arriving_.push_back({std::string(static_cast<size_t>(arrival->bytes), '\0'), 0, arrival->source});
    arriving_.back().request = library_->start_receive(arriving_.back().bytes.data(), *arrival);
  }
  std::erase_if(arriving_, [this](PendingMessage& message) {
    if (!library_->test(&message.request)) return false;
    died_ = died_ || (message.bytes.size() == sizeof(kTombstone) &&
                      std::memcmp(message.bytes.data(), &kTombstone, sizeof(kTombstone)) == 0);
    return true;
  });
}

// Sends all processes a tombstone. A rank that learned of the failure from a rank of its own host does not know that a
// process died, and would wait for it at the end.
void MpiNetwork::tell_of_death() noexcept {
  constexpr auto kPatience = std::chrono::milliseconds(100);
  const auto deadline = Deadline::at(Deadline::Clock::now() + kPatience);
  const std::lock_guard lock(mutex_);
  try {
    if (ended_ || !library_->duplicated()) return;
    for (Process peer = 0; peer < size(); ++peer) {
      if (peer == self()) continue;
      start_post(peer, std::string(object_bytes(kTombstone)), kMessageTag);
    }
    for (; !posted_.empty() && !deadline.passed(); std::this_thread::yield()) complete_posted();
  } catch (const Error&) {  // they find out by other means
  }
}

void MpiNetwork::give_up() noexcept {
  const std::lock_guard lock(mutex_);
  ended_ = true;
}

}  // namespace a2a::mpi
