#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <list>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "a2a/bootstrap.h"
#include "a2a/work.h"
#include "transport/hosts/network.h"
#include "transport/hosts/network_bootstrap.h"
#include "transport/mpi/library.h"

namespace a2a::mpi {
namespace {

using hosts::Endpoint;
using hosts::Message;
using hosts::Transfer;

constexpr int kMessageTag = 0;  // all others pair transfers

class MpiNetwork final : public hosts::Network, public std::enable_shared_from_this<MpiNetwork> {
 public:
  explicit MpiNetwork(std::unique_ptr<Library> library)
      : library_(std::move(library)),
        largest_tag_(static_cast<uint32_t>(library_->largest_tag())),
        tags_(static_cast<size_t>(library_->size()), kMessageTag) {}

  // Whether all processes have come: nothing else may be called before.
  bool connected() {
    const std::lock_guard lock(mutex_);
    refuse_if_ended();
    return library_->duplicated();
  }
  bool connects_processes_of(const Library& library) const { return library_->same_processes(library); }

  // A name for the next meeting that was given this one: all processes come to the same, and never again.
  std::string next_meeting(const std::string& name) {
    const std::lock_guard lock(mutex_);
    return name + "#" + std::to_string(++meetings_[name]);
  }

  Endpoint self() const override { return library_->rank(); }
  int size() const override { return library_->size(); }
  std::string name() const override { return library_->name(); }

  void enter(User* user) override {
    const std::lock_guard lock(users_mutex_);
    users_.push_back(user);
  }

  void leave(User* user) noexcept override {
    const std::lock_guard lock(users_mutex_);
    std::erase(users_, user);
  }

  void post(Endpoint to, std::string bytes) override {
    if (bytes.size() > kMostBytes) throw Error(Code::backend, "a message of more than 1 GiB");
    const std::lock_guard lock(mutex_);
    refuse_if_ended();
    posted_.push_back({std::move(bytes), 0});
    auto& message = posted_.back();
    message.request = library_->start_send(message.bytes.data(), message.bytes.size(), to, kMessageTag);
    ++sent_;
    look_after_posted();
  }

  std::optional<Message> take(uint64_t channel) override {
    const std::lock_guard lock(mutex_);
    move_messages();
    const auto found = arrived_.find(channel);
    if (found == arrived_.end()) return std::nullopt;
    Message message = std::move(found->second.front());
    found->second.pop_front();
    if (found->second.empty()) arrived_.erase(found);
    return message;
  }

  bool flushed() override {
    const std::lock_guard lock(mutex_);
    if (!ended_) look_after_posted();
    return ended_ || posted_.empty();
  }

  void close(uint64_t channel) noexcept override {
    const std::lock_guard lock(mutex_);
    arrived_.erase(channel);
    closed_.insert(channel);
  }

  uint32_t next_tag(Endpoint to) override {
    const std::lock_guard lock(mutex_);
    uint32_t& tag = tags_[static_cast<size_t>(to)];
    return tag = tag % largest_tag_ + 1;
  }

  bool fresh(Endpoint to, uint32_t tag) const override {
    const std::lock_guard lock(mutex_);
    return (tags_[static_cast<size_t>(to)] + largest_tag_ - tag) % largest_tag_ < largest_tag_ / 2;
  }

  std::unique_ptr<Transfer> send(Endpoint to, uint32_t tag, const std::byte* data, size_t bytes) override;
  std::unique_ptr<Transfer> receive(Endpoint from, uint32_t tag, std::byte* data, size_t bytes) override;
  std::unique_ptr<Transfer> discard(Endpoint from, uint32_t tag, size_t bytes) override;

  uint64_t sent() const override {
    const std::lock_guard lock(mutex_);
    return sent_;
  }

  // At the end of the process: whether nothing is left to be done, so that MPI can be finalised.
  bool quiet();
  // At the beginning of MPI_Finalize.
  void end() noexcept;
  void finalise() { library_->finalise(); }

 private:
  friend class Pieces;

  // A message on its way in or out, with the memory that MPI uses. Lists of these do not move their elements.
  struct Flight {
    std::string bytes;
    Handle request = 0;
    Endpoint peer = 0;
  };

  void refuse_if_ended() const {
    if (ended_) throw finalised_by_program();
  }

  Error finalised_by_program() const {
    return Error(Code::aborted, library_->name() + " was finalised while the communicator was in use");
  }

  void move_messages() {
    if (ended_) return;
    receive_messages();
    look_after_posted();
  }

  // What was sent last may still be on its way: closing a communicator ends with a message. After a failure MPI could
  // wait for ever for a process that is gone.
  void drain() {
    constexpr auto kPatience = std::chrono::seconds(5);
    const auto deadline = Deadline::at(Deadline::Clock::now() + kPatience);
    while (!posted_.empty() && !deadline.passed()) {
      move_messages();
      std::this_thread::yield();
    }
  }

  // Each probe is several looks at the network; a receive from anybody that is always posted would be one. But MPICH
  // 5.0.2 over UCX loses messages that are to go to such a receive.
  void receive_messages() {
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

  void deliver(Message message) {
    uint64_t channel = 0;
    if (message.bytes.size() < sizeof(channel)) return;  // nobody sends that
    std::memcpy(&channel, message.bytes.data(), sizeof(channel));
    if (!closed_.contains(channel)) arrived_[channel].push_back(std::move(message));
  }

  void look_after_posted() {
    for (auto message = posted_.begin(); message != posted_.end();) {
      message = library_->test(&message->request) ? posted_.erase(message) : std::next(message);
    }
  }

  std::mutex users_mutex_;  // before mutex_
  std::vector<User*> users_;
  mutable std::mutex mutex_;  // guards what follows
  std::unique_ptr<Library> library_;
  bool ended_ = false;  // nothing of MPI may be called any more
  const uint32_t largest_tag_;
  std::vector<uint32_t> tags_;  // the last one used towards each process
  std::list<Flight> posted_, arriving_;
  std::map<uint64_t, std::deque<Message>> arrived_;  // by channel
  std::set<uint64_t> closed_;
  std::map<std::string, uint64_t> meetings_;
  uint64_t sent_ = 0;
  uint64_t unfinished_ = 0;  // transfers that MPI still has
};

// A run of memory, in as many pieces as MPI's counts ask for. Pieces of one tag arrive in their order.
class Pieces final : public Transfer {
 public:
  Pieces(std::shared_ptr<MpiNetwork> network, std::vector<Handle> requests, bool receives)
      : network_(std::move(network)), requests_(std::move(requests)), receives_(receives) {
    network_->unfinished_ += requests_.size();
  }

  ~Pieces() override { abandon(); }

  bool done() override {
    const std::lock_guard lock(network_->mutex_);
    if (network_->ended_) return network_->library_->finalised();  // until then MPI may use the memory
    while (!requests_.empty() && network_->library_->test(&requests_.back())) {
      requests_.pop_back();
      --network_->unfinished_;
    }
    return requests_.empty();
  }

  void withdraw() noexcept override { abandon(); }

  void abandon() noexcept override {
    const std::lock_guard lock(network_->mutex_);
    if (!receives_ || cancelled_ || network_->ended_) return;
    cancelled_ = true;
    try {
      for (const Handle request : requests_) network_->library_->cancel(request);
    } catch (const Error&) {  // it stays with MPI then
    }
  }

 private:
  std::shared_ptr<MpiNetwork> network_;
  std::vector<Handle> requests_;
  bool receives_, cancelled_ = false;
};

std::unique_ptr<Transfer> MpiNetwork::send(Endpoint to, uint32_t tag, const std::byte* data, size_t bytes) {
  const std::lock_guard lock(mutex_);
  refuse_if_ended();
  std::vector<Handle> requests;
  for (size_t done = 0; done < bytes; done += kMostBytes) {
    requests.push_back(
        library_->start_send(data + done, std::min(kMostBytes, bytes - done), to, static_cast<int>(tag)));
    ++sent_;
  }
  return std::make_unique<Pieces>(shared_from_this(), std::move(requests), false);
}

std::unique_ptr<Transfer> MpiNetwork::receive(Endpoint from, uint32_t tag, std::byte* data, size_t bytes) {
  const std::lock_guard lock(mutex_);
  refuse_if_ended();
  std::vector<Handle> requests;
  for (size_t done = 0; done < bytes; done += kMostBytes) {
    requests.push_back(
        library_->start_receive(data + done, std::min(kMostBytes, bytes - done), from, static_cast<int>(tag)));
  }
  return std::make_unique<Pieces>(shared_from_this(), std::move(requests), true);
}

// MPI knows no other way than to receive it.
class Discarded final : public Transfer {
 public:
  Discarded(MpiNetwork& network, Endpoint from, uint32_t tag, size_t bytes)
      : memory_(std::make_unique_for_overwrite<std::byte[]>(bytes)),
        transfer_(network.receive(from, tag, memory_.get(), bytes)) {}
  ~Discarded() override {
    try {
      if (done()) return;
    } catch (const Error&) {  // nobody knows then what MPI does with it
    }
    (void)memory_.release();  // it stays with MPI
  }

  bool done() override { return transfer_->done(); }
  void abandon() noexcept override { transfer_->abandon(); }
  void withdraw() noexcept override { transfer_->withdraw(); }

 private:
  std::unique_ptr<std::byte[]> memory_;
  std::unique_ptr<Transfer> transfer_;
};

std::unique_ptr<Transfer> MpiNetwork::discard(Endpoint from, uint32_t tag, size_t bytes) {
  return std::make_unique<Discarded>(*this, from, tag, bytes);
}

bool MpiNetwork::quiet() {
  const std::lock_guard lock(mutex_);
  if (ended_ || !library_->duplicated()) return false;
  drain();
  return posted_.empty() && arriving_.empty() && unfinished_ == 0;
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
