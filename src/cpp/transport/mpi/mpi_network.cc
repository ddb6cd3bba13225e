#include "transport/mpi/mpi_network.h"

#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "a2a/bootstrap.h"
#include "a2a/work.h"
#include "transport/hosts/network_bootstrap.h"

namespace a2a::mpi {
namespace {

constexpr int kMessageTag = 0;  // for the others see transfers.cc, two for each of next_tag()'s

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
  closed_.insert(channel);
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

// What was sent last may still be on its way: closing a communicator ends with a message. After a failure MPI could
// wait for ever for a process that is gone.
void MpiNetwork::drain() {
  constexpr auto kPatience = std::chrono::seconds(5);
  const auto deadline = Deadline::at(Deadline::Clock::now() + kPatience);
  while (!posted_.empty() && !deadline.passed()) {
    move_messages();
    std::this_thread::yield();
  }
}

bool MpiNetwork::quiet() {
  const std::lock_guard lock(mutex_);
  if (ended_ || !library_->duplicated()) return false;
  drain();
  return posted_.empty() && arriving_.empty() && library_->watched() == 0;
}

void MpiNetwork::end() noexcept {
  {
    const std::lock_guard lock(users_mutex_);
    for (User* user : users_) user->network_ends(finalised_by_program());
  }
  const std::lock_guard lock(mutex_);
  try {
    drain();
  } catch (const Error&) {  // MPI_Finalize has its own words for it
  }
  ended_ = true;
}

// ---- networks of this process --------------------------------------------------------------------------------------

namespace {

// Networks of this process, one for each group of processes. A communicator is none: its handle may come to mean
// another one. All processes of a group make its network together, so they all have it, or none does. Never destroyed:
// MPI may be used until the very end, and processes let go of a network at different times.
struct Networks {
  std::mutex mutex;
  std::vector<std::shared_ptr<MpiNetwork>> all;
  pid_t owner = 0;
};

Networks& networks() {
  static auto& one = *new Networks;
  return one;
}

void end_all() {
  Networks& here = networks();
  if (here.owner != ::getpid()) return;  // a forked child
  const std::lock_guard lock(here.mutex);
  for (const auto& network : here.all) network->end();
}

void finalise_all() {
  Networks& here = networks();
  if (here.owner != ::getpid()) return;  // a forked child
  try {
    if (!std::ranges::all_of(here.all, [](const auto& network) { return network->quiet(); })) return;
    for (const auto& network : here.all) network->finalise();
  } catch (const Error&) {  // nobody is left to tell
  }
}

// The network of the communicator's processes, which need not be connected yet.
std::shared_ptr<MpiNetwork> begin(std::optional<int> fortran_handle) {
  Networks& here = networks();
  const std::lock_guard lock(here.mutex);
  if (here.owner != 0 && here.owner != ::getpid()) {
    throw Error(Code::aborted, "MPI was initialised before fork(): it belongs to the parent process");
  }
  auto library = open_library(fortran_handle);
  for (const auto& network : here.all) {
    if (network->connects_processes_of(*library)) return network;
  }
  library->start_duplicate();
  if (here.owner == 0) {
    library->call_at_finalise(end_all);
    std::atexit(finalise_all);
  }
  here.owner = ::getpid();
  return here.all.emplace_back(std::make_shared<MpiNetwork>(std::move(library)));
}

void forget(const std::shared_ptr<MpiNetwork>& network) {
  Networks& here = networks();
  const std::lock_guard lock(here.mutex);
  std::erase(here.all, network);
}

// A wait that is given up changes nothing: whoever calls next for these processes goes on with it. That is what keeps
// the processes together, since those that come late find the others' part done.
std::shared_ptr<MpiNetwork> connect(std::optional<int> fortran_handle, Deadline deadline) {
  auto network = begin(fortran_handle);
  try {
    while (!network->connected()) {
      SignalWatch::look();
      if (deadline.passed()) {
        throw Error(Code::timeout, "rank " + std::to_string(network->self()) + " of " +
                                       std::to_string(network->size()) + " timed out in MPI_Comm_idup, " +
                                       "to which not all have come; the next call for these processes goes on with it");
      }
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  } catch (const Error& error) {
    if (error.code() == Code::backend) forget(network);
    throw;
  }
  return network;
}

}  // namespace
}  // namespace a2a::mpi

std::shared_ptr<a2a::Bootstrap> a2a::mpi_bootstrap(std::optional<int> fortran_handle, const std::string& name,
                                                   Deadline deadline) {
  const auto network = mpi::connect(fortran_handle, deadline);
  return std::make_shared<hosts::NetworkBootstrap>(network, network->next_meeting(name));
}
