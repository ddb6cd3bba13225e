// Runs a test with ranks on several hosts. They are threads of this program, and a network of the tests carries the
// bytes between hosts. Its messages overtake each other whenever they can. With --network=tcp they go over TCP, through
// the kernel.
#pragma once

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <list>
#include <map>
#include <mutex>
#include <random>
#include <set>

#include "ranks.h"
#include "tcp.h"
#include "transport/hosts/network.h"
#include "transport/hosts/network_bootstrap.h"

namespace hosts_test {

using a2a::hosts::Message;
using a2a::hosts::Process;
using a2a::hosts::Transfer;

// The process that receives nothing for the moment, as if its messages took long.
inline std::atomic<Process> deaf{-1};
// Whether the network keeps abandoned memory, as MPI does with sends.
inline std::atomic<bool> clings{false};

// The state that all endpoints share.
class Hub {
 public:
  struct Memory {
    Process from, to;
    uint32_t tag;
    std::byte* data;
    size_t bytes;
    bool sends;
    bool done = false;
    bool known = false;  // since that end's advance()
  };

  explicit Hub(int size) : inboxes(static_cast<size_t>(size)) {}

  std::mutex mutex;
  std::vector<std::list<Message>> inboxes;  // by receiver
  std::list<std::shared_ptr<Memory>> transfers;
  std::map<Process, a2a::hosts::Loss> losses;  // processes that are gone
  bool survives_deaths = false;
  std::set<uint64_t> closed;  // channels
  std::mt19937 random{7};

  // Pairs a transfer with the oldest matching one.
  void offer(const std::shared_ptr<Memory>& mine) {
    const std::lock_guard lock(mutex);
    for (auto it = transfers.begin(); it != transfers.end(); ++it) {
      Memory& other = **it;
      if (other.sends == mine->sends || other.from != mine->from || other.to != mine->to || other.tag != mine->tag)
        continue;
      CHECK_EQ(other.bytes, mine->bytes);
      const Memory& source = mine->sends ? *mine : other;
      const Memory& target = mine->sends ? other : *mine;
      std::memcpy(target.data, source.data, std::min(other.bytes, mine->bytes));
      other.done = mine->done = true;
      transfers.erase(it);
      return;
    }
    transfers.push_back(mine);
  }
};

class LoopbackTransfer final : public Transfer {
 public:
  LoopbackTransfer(std::shared_ptr<Hub> hub, std::vector<std::shared_ptr<Hub::Memory>> runs)
      : hub_(std::move(hub)), runs_(std::move(runs)) {
    for (const auto& run : runs_) hub_->offer(run);
  }
  bool done() override {
    const std::lock_guard lock(hub_->mutex);
    return std::ranges::all_of(runs_, [](const auto& run) { return run->known; });
  }
  void abandon() noexcept override {
    if (clings) return;
    const std::lock_guard lock(hub_->mutex);
    for (const auto& run : runs_) {
      hub_->transfers.remove(run);
      run->known = true;
    }
  }
  // Requires that nothing was sent for it.
  void withdraw() noexcept override {
    {
      const std::lock_guard lock(hub_->mutex);
      for (const auto& run : runs_) CHECK(!run->done);
    }
    abandon();
  }

 private:
  std::shared_ptr<Hub> hub_;
  std::vector<std::shared_ptr<Hub::Memory>> runs_;
};

class LoopbackNetwork final : public a2a::hosts::Network {
 public:
  LoopbackNetwork(std::shared_ptr<Hub> hub, Process self)
      : hub_(std::move(hub)), self_(self), tags_(hub_->inboxes.size()) {}

  Process self() const override { return self_; }
  int size() const override { return static_cast<int>(hub_->inboxes.size()); }
  std::string name() const override { return "loopback"; }

  void post(Process to, std::string bytes) override {
    const std::lock_guard lock(hub_->mutex);
    auto& inbox = hub_->inboxes[static_cast<size_t>(to)];
    auto where = inbox.begin();
    std::advance(where, static_cast<ptrdiff_t>(hub_->random() % (inbox.size() + 1)));
    inbox.insert(where, {self_, std::move(bytes)});
    ++sent_;
  }

  std::optional<Message> take(uint64_t channel) override {
    if (self_ == deaf) return std::nullopt;
    const std::lock_guard lock(hub_->mutex);
    auto& inbox = hub_->inboxes[static_cast<size_t>(self_)];
    for (auto it = inbox.begin(); it != inbox.end(); ++it) {
      if (std::memcmp(it->bytes.data(), &channel, sizeof(channel)) != 0) continue;
      Message message = std::move(*it);
      inbox.erase(it);
      return message;
    }
    return std::nullopt;
  }

  bool flushed() override { return true; }
  std::optional<a2a::hosts::Loss> lost(Process of) override {
    const std::lock_guard lock(hub_->mutex);
    const auto found = hub_->losses.find(of);
    return found == hub_->losses.end() ? std::nullopt : std::optional(found->second);
  }
  bool survives_deaths() const override { return hub_->survives_deaths; }
  void close(uint64_t channel) noexcept override {
    const std::lock_guard lock(hub_->mutex);
    hub_->closed.insert(channel);
  }

  uint32_t next_tag(Process to) override {
    const std::lock_guard lock(hub_->mutex);
    return ++tags_[static_cast<size_t>(to)];
  }
  // Some transfers count as new, so that they are announced again.
  bool fresh(Process to, uint32_t tag) const override {
    const std::lock_guard lock(hub_->mutex);
    return tags_[static_cast<size_t>(to)] - tag < kFresh;
  }
  std::unique_ptr<Transfer> send(Process to, uint32_t tag, std::span<const a2a::Run> runs) override {
    {
      const std::lock_guard lock(hub_->mutex);
      sent_ += runs.size();
    }
    return transfer({self_, to, tag, nullptr, 0, true}, runs);
  }
  std::unique_ptr<Transfer> receive(Process from, uint32_t tag, std::span<const a2a::Run> runs) override {
    return transfer({from, self_, tag, nullptr, 0, false}, runs);
  }

  std::unique_ptr<Transfer> discard(Process from, uint32_t tag, size_t bytes) override {
    auto& memory = discarded_.emplace_back(bytes);
    const a2a::Run run{0, memory.data(), bytes};
    return receive(from, tag, {&run, 1});
  }

  void advance() override {
    const std::lock_guard lock(hub_->mutex);
    std::erase_if(flying_, [](const auto& memory) { return memory->known |= memory->done; });
  }

  uint64_t sent() const override {
    const std::lock_guard lock(hub_->mutex);
    return sent_;
  }

 private:
  static constexpr uint32_t kFresh = 40;

  std::unique_ptr<Transfer> transfer(Hub::Memory memory, std::span<const a2a::Run> runs) {
    std::vector<std::shared_ptr<Hub::Memory>> all;
    for (const a2a::Run& run : runs) {
      memory.data = run.data;
      memory.bytes = run.bytes;
      all.push_back(std::make_shared<Hub::Memory>(memory));
    }
    flying_.insert(flying_.end(), all.begin(), all.end());
    return std::make_unique<LoopbackTransfer>(hub_, std::move(all));
  }

  std::shared_ptr<Hub> hub_;
  Process self_;
  std::vector<uint32_t> tags_;
  std::list<std::vector<std::byte>> discarded_;
  std::vector<std::shared_ptr<Hub::Memory>> flying_;
  uint64_t sent_ = 0;
};

// The bootstrap of one rank. All bootstraps of a test share one channel.
class LoopbackBootstrap final : public a2a::Bootstrap {
 public:
  LoopbackBootstrap(std::shared_ptr<a2a::Bootstrap> meeting, std::shared_ptr<a2a::hosts::Network> network)
      : meeting_(std::move(meeting)), network_(std::move(network)) {}
  std::vector<std::string> allgather(std::string_view mine, a2a::Deadline deadline) override {
    return meeting_->allgather(mine, deadline);
  }
  bool has_network() const override { return true; }
  std::shared_ptr<a2a::hosts::Network> network(a2a::Deadline) override { return network_; }

 private:
  std::shared_ptr<a2a::Bootstrap> meeting_;
  std::shared_ptr<a2a::hosts::Network> network_;
};

// The meeting of the ranks of a test.
class MeetingPlace {
 public:
  explicit MeetingPlace(int size)
      : size_(size),
        tcp_(check::option("network", "") == "tcp"),
        address_(free_address()),
        hub_(std::make_shared<Hub>(size)),
        meetings_(a2a::thread_bootstraps(size)) {}

  std::shared_ptr<a2a::Bootstrap> join(int rank) const {
    if (tcp_)
      return a2a::tcp_bootstrap(rank, size_, "job", address_, "0123456789abcdef", a2a::Deadline::after_seconds(60));
    return std::make_shared<LoopbackBootstrap>(meetings_[static_cast<size_t>(rank)],
                                               std::make_shared<LoopbackNetwork>(hub_, rank));
  }

 private:
  int size_;
  bool tcp_;
  std::string address_;
  std::shared_ptr<Hub> hub_;
  std::vector<std::shared_ptr<a2a::Bootstrap>> meetings_;
};

class Setting {
 public:
  Setting(const char* name, const std::string& value) : name_(name) { setenv(name, value.c_str(), 1); }
  ~Setting() { unsetenv(name_); }
  Setting(const Setting&) = delete;
  Setting& operator=(const Setting&) = delete;

 private:
  const char* name_;
};

// Runs ranks on these hosts; `hosts` is as in A2A_HOSTS.
inline void on_hosts(const std::string& hosts, int n, const ranks::Body& body, double timeout = 60) {
  const Setting assigned("A2A_HOSTS", hosts);
  const MeetingPlace place(n);
  check::threads(n, [&](int rank) {
    const auto comm = a2a::Communicator::create(rank, n, *place.join(rank), {timeout});
    CHECK(comm->host_facts().hosts > 1);
    body(*comm);
  });
}

// Returns the A2A_HOSTS of n ranks on so many hosts, in turn.
inline std::string in_turn(int n, int hosts) {
  std::string names;
  for (int r = 0; r < n; ++r) names.append(r > 0 ? "," : "").append(std::to_string(r % hosts));
  return names;
}

// Runs n ranks on two hosts in turn, and each on a host of its own.
inline void on_hosts(int n, const ranks::Body& body, double timeout = 60) {
  on_hosts(in_turn(n, 2), n, body, timeout);
  if (n <= 8) on_hosts(in_turn(n, n), n, body, timeout);
}

}  // namespace hosts_test
