#include "transport/mpi/mpi_network.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <new>
#include <thread>

namespace a2a::mpi {
namespace {

constexpr uint64_t kObituary = ~uint64_t{0};  // the channel of the news that a process is dead
constexpr int kMessageTag = 0;                // for the others see transfers.cc, two for each of next_tag()'s

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

// ---- messages ------------------------------------------------------------------------------------------------------

void MpiNetwork::post(Endpoint to, std::string bytes) {
  if (bytes.size() > kMostBytes) throw Error(Code::backend, "a message of more than 1 GiB");
  const std::lock_guard lock(mutex_);
  refuse_if_ended();
  start_post(to, std::move(bytes), kMessageTag);
  look_after_posted();
}

void MpiNetwork::start_post(Endpoint to, std::string bytes, int tag) {
  posted_.push_back({std::move(bytes), 0});
  auto& message = posted_.back();
  message.request = library_->start_send(message.bytes.data(), message.bytes.size(), to, tag);
  ++sent_;
}

std::optional<Message> MpiNetwork::take(uint64_t channel) {
  const std::lock_guard lock(mutex_);
  move_messages();
  const auto found = arrived_.find(channel);
  if (found == arrived_.end()) return std::nullopt;
  Message message = std::move(found->second.front());
  found->second.pop_front();
  if (found->second.empty()) arrived_.erase(found);
  return message;
}

bool MpiNetwork::flushed() {
  const std::lock_guard lock(mutex_);
  if (!ended_) look_after_posted();
  return ended_ || posted_.empty();
}

void MpiNetwork::close(uint64_t channel) noexcept {
  const std::lock_guard lock(mutex_);
  arrived_.erase(channel);
  try {
    closed_.insert(channel);
  } catch (const std::bad_alloc&) {  // what still comes stays until the network ends
  }
}

void MpiNetwork::move_messages() {
  if (ended_) return;
  receive_messages();
  look_after_posted();
}

// Each probe is several looks at the network; a receive from anybody that is always posted would be one. But MPICH
// 5.0.2 over UCX loses messages that are to go to such a receive.
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
    deliver({message->peer, std::move(message->bytes)});
    message = arriving_.erase(message);
  }
}

void MpiNetwork::deliver(Message message) {
  uint64_t channel = 0;
  if (message.bytes.size() < sizeof(channel)) return;  // nobody sends that
  std::memcpy(&channel, message.bytes.data(), sizeof(channel));
  if (!closed_.contains(channel)) arrived_[channel].push_back(std::move(message));
}

void MpiNetwork::look_after_posted() {
  for (auto message = posted_.begin(); message != posted_.end();) {
    message = library_->test(&message->request) ? posted_.erase(message) : std::next(message);
  }
}

uint64_t MpiNetwork::sent() const {
  const std::lock_guard lock(mutex_);
  return sent_;
}

// ---- tags ----------------------------------------------------------------------------------------------------------

uint32_t MpiNetwork::next_tag(Endpoint to) {
  const std::lock_guard lock(mutex_);
  auto& tag = tags_[static_cast<size_t>(to)];
  return tag = tag % largest_tag_ + 1;
}

bool MpiNetwork::fresh(Endpoint to, uint32_t tag) const {
  return (tags_[static_cast<size_t>(to)] + largest_tag_ - tag) % largest_tag_ < largest_tag_ / 2;
}

// ---- the end -------------------------------------------------------------------------------------------------------

void MpiNetwork::broke(Code code, bool died) noexcept {
  if (died) died_ = true;
  if (code == Code::timeout || code == Code::backend) late_ = true;
}

void MpiNetwork::tell_users() noexcept {
  const std::lock_guard lock(users_mutex_);
  for (User* user : users_) user->network_ends(finalised_by_program());
}

// A rank that failed leaves sends behind that nobody would receive any more. So each process takes whatever still
// comes, until all have come to their end, and what all have sent is complete.
bool MpiNetwork::wind_up() {
  const std::lock_guard lock(mutex_);
  if (ended_) return true;
  if (!library_->duplicated()) return false;
  if (arrived_.contains(kObituary)) died_ = true;
  library_->tell_watchers_to_expect_nothing();
  throw_away_arrivals();
  look_after_posted();
  library_->look();
  if (!last_barrier_) {
    if (!posted_.empty() || library_->watched() != 0) return false;
    last_barrier_ = library_->start_barrier();
  }
  return ended_ = library_->test(&*last_barrier_) && arriving_.empty();
}

void MpiNetwork::throw_away_arrivals() {
  while (const auto arrival = library_->probe(std::nullopt)) {
    arriving_.push_back({std::string(static_cast<size_t>(arrival->bytes), '\0'), 0, arrival->source});
    arriving_.back().request = library_->start_receive(arriving_.back().bytes.data(), *arrival);
  }
  std::erase_if(arriving_, [this](Flight& message) {
    if (!library_->test(&message.request)) return false;
    died_ = died_ || (message.bytes.size() == sizeof(kObituary) &&
                      std::memcmp(message.bytes.data(), &kObituary, sizeof(kObituary)) == 0);
    return true;
  });
}

// Who heard of it from a rank of his own host does not know that the process is dead, and would wait for it.
void MpiNetwork::tell_of_death() noexcept {
  constexpr auto kPatience = std::chrono::milliseconds(100);
  const auto deadline = Deadline::at(Deadline::Clock::now() + kPatience);
  const std::lock_guard lock(mutex_);
  try {
    if (ended_ || !library_->duplicated()) return;
    for (Endpoint peer = 0; peer < size(); ++peer) {
      if (peer == self()) continue;
      start_post(peer, std::string(reinterpret_cast<const char*>(&kObituary), sizeof(kObituary)), kMessageTag);
    }
    for (; !posted_.empty() && !deadline.passed(); std::this_thread::yield()) look_after_posted();
  } catch (const Error&) {  // they find out otherwise
  }
}

void MpiNetwork::give_up() noexcept {
  const std::lock_guard lock(mutex_);
  ended_ = true;
}

}  // namespace a2a::mpi
