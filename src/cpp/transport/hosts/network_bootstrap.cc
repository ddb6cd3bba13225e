#include "transport/hosts/network_bootstrap.h"

#include <chrono>
#include <map>
#include <thread>

#include "a2a/work.h"
#include "transport/hosts/messages.h"

namespace a2a::hosts {
namespace {

// Returns the channel of a meeting. It differs from those of communicators, see HostsTransport. The hash is FNV-1a,
// because every process has to compute the same.
uint64_t channel_of(const std::string& meeting) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : meeting) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  }
  return uint64_t{1} << 63 | hash;
}

std::string absent(const std::map<Process, std::string>& here, int size) {
  std::string text;
  for (Process r = 0; r < size; ++r) {
    if (!here.contains(r)) text += (text.empty() ? "" : ", ") + std::to_string(r);
  }
  return text;
}

}  // namespace

NetworkBootstrap::NetworkBootstrap(std::shared_ptr<Network> network, const std::string& meeting)
    : network_(std::move(network)), channel_(channel_of(meeting)) {}

NetworkBootstrap::~NetworkBootstrap() { network_->close(channel_); }

std::vector<std::string> NetworkBootstrap::allgather(std::string_view mine, Deadline deadline) {
  const uint64_t round = ++round_;
  const int size = network_->size();
  for (Process to = 0; to < size; ++to) {
    if (to != network_->self())
      network_->post(to, message({channel_, MessageKind::text, 0, network_->self(), round}, mine));
  }
  auto& here = arrived_[round];
  here[network_->self()] = mine;
  while (here.size() < static_cast<size_t>(size) || !network_->flushed()) {
    if (const auto arrived = network_->take(channel_)) {
      const auto prefix = prefix_of(arrived->bytes);
      if (prefix && prefix->kind == MessageKind::text)
        arrived_[prefix->number][arrived->from] = rest_of(arrived->bytes);
      continue;
    }
    SignalWatch::look();
    while_meeting();
    if (deadline.passed()) {
      throw Error(Code::timeout, "rank " + std::to_string(network_->self()) + " of " + std::to_string(size) +
                                     " timed out while the ranks met; missing: " + absent(here, size));
    }
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
  std::vector<std::string> all;
  for (auto& [_, text] : here) all.push_back(std::move(text));
  arrived_.erase(round);
  return all;
}

}  // namespace a2a::hosts
