#include "transport/mpi/mpi_network.h"

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
  explicit MpiNetwork(std::optional<int> fortran_handle)
      : library_(open_library(fortran_handle)),
        self_(library_->rank()),
        size_(library_->size()),
        largest_tag_(static_cast<uint32_t>(library_->largest_tag())),
        tags_(static_cast<size_t>(size_), kMessageTag) {}

  Endpoint self() const override { return self_; }
  int size() const override { return size_; }
  std::string name() const override { return library_->name(); }

  void post(Endpoint to, std::string bytes) override {
    if (bytes.size() > kMostBytes) throw Error(Code::backend, "a message of more than 1 GiB");
    const std::lock_guard lock(mutex_);
    posted_.push_back({std::move(bytes), 0});
    auto& message = posted_.back();
    message.request = library_->start_send(message.bytes.data(), message.bytes.size(), to, kMessageTag);
    ++sent_;
    look_after_posted();
  }

  std::optional<Message> take(uint64_t channel) override {
    const std::lock_guard lock(mutex_);
    receive_messages();
    look_after_posted();
    const auto found = arrived_.find(channel);
    if (found == arrived_.end()) return std::nullopt;
    Message message = std::move(found->second.front());
    found->second.pop_front();
    if (found->second.empty()) arrived_.erase(found);
    return message;
  }

  bool flushed() override {
    const std::lock_guard lock(mutex_);
    look_after_posted();
    return posted_.empty();
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

  std::unique_ptr<Transfer> send(Endpoint to, uint32_t tag, const std::byte* data, size_t bytes) override;
  std::unique_ptr<Transfer> receive(Endpoint from, uint32_t tag, std::byte* data, size_t bytes) override;

  uint64_t sent() const override {
    const std::lock_guard lock(mutex_);
    return sent_;
  }

  // At the end of the process.
  void finalise();

 private:
  friend class Pieces;

  // A message on its way in or out, with the memory that MPI uses. Lists of these do not move their elements.
  struct Flight {
    std::string bytes;
    Handle request = 0;
    Endpoint peer = 0;
  };

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

  mutable std::mutex mutex_;
  std::unique_ptr<Library> library_;
  const Endpoint self_;
  const int size_;
  const uint32_t largest_tag_;
  std::vector<uint32_t> tags_;  // the last one used towards each process
  std::list<Flight> posted_, arriving_;
  std::map<uint64_t, std::deque<Message>> arrived_;  // by channel
  std::set<uint64_t> closed_;
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
    while (!requests_.empty() && network_->library_->test(&requests_.back())) {
      requests_.pop_back();
      --network_->unfinished_;
    }
    return requests_.empty();
  }

  void abandon() noexcept override {
    const std::lock_guard lock(network_->mutex_);
    if (!receives_ || cancelled_) return;
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
  std::vector<Handle> requests;
  for (size_t done = 0; done < bytes; done += kMostBytes) {
    requests.push_back(
        library_->start_receive(data + done, std::min(kMostBytes, bytes - done), from, static_cast<int>(tag)));
  }
  return std::make_unique<Pieces>(shared_from_this(), std::move(requests), true);
}

// What was sent last may still be on its way: closing a communicator ends with a message. After a failure MPI could
// wait for ever for a process that is gone, so it is left alone.
void MpiNetwork::finalise() {
  const std::lock_guard lock(mutex_);
  constexpr auto kPatience = std::chrono::seconds(5);
  const auto deadline = Deadline::at(Deadline::Clock::now() + kPatience);
  while (!posted_.empty() && !deadline.passed()) {
    receive_messages();
    look_after_posted();
    std::this_thread::yield();
  }
  if (posted_.empty() && arriving_.empty() && unfinished_ == 0) library_->finalise();
}

// Networks of this process, by the handle they were made with. Never destroyed: MPI may be used until the very end.
struct Networks {
  std::mutex mutex;
  std::map<std::optional<int>, std::shared_ptr<MpiNetwork>> all;
  pid_t owner = 0;
};

Networks& networks() {
  static auto& one = *new Networks;
  return one;
}

void finalise_all() {
  Networks& here = networks();
  if (here.owner != ::getpid()) return;  // a forked child
  for (auto& [_, network] : here.all) {
    try {
      network->finalise();
    } catch (const Error&) {  // nobody is left to tell
    }
  }
}

}  // namespace

std::shared_ptr<hosts::Network> network(std::optional<int> fortran_handle) {
  Networks& here = networks();
  const std::lock_guard lock(here.mutex);
  if (here.owner != 0 && here.owner != ::getpid()) {
    throw Error(Code::aborted, "MPI was initialised before fork(): it belongs to the parent process");
  }
  auto& network = here.all[fortran_handle];
  if (network == nullptr) {
    network = std::make_shared<MpiNetwork>(fortran_handle);
    if (here.owner == 0) std::atexit(finalise_all);
    here.owner = ::getpid();
  }
  return network;
}

}  // namespace a2a::mpi

std::shared_ptr<a2a::Bootstrap> a2a::mpi_bootstrap(std::optional<int> fortran_handle, const std::string& name) {
  return std::make_shared<hosts::NetworkBootstrap>(mpi::network(fortran_handle), name);
}
