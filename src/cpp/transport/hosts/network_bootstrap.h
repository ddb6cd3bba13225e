// A bootstrap over a network that connects the ranks already.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "a2a/bootstrap.h"
#include "transport/hosts/network.h"

namespace a2a::hosts {

// Rank r is process r of the network. All ranks give the meeting the same name, which no other meeting of the network
// has.
class NetworkBootstrap final : public Bootstrap {
 public:
  NetworkBootstrap(std::shared_ptr<Network> network, const std::string& meeting);
  ~NetworkBootstrap() override;

  std::vector<std::string> allgather(std::string_view mine, Deadline deadline) override;
  bool has_network() const override { return true; }
  std::shared_ptr<Network> network(Deadline) override { return network_; }
  std::optional<GroupRank> group_rank() const override { return GroupRank{network_->self(), network_->size()}; }

 private:
  std::shared_ptr<Network> network_;
  uint64_t channel_;
  uint64_t round_ = 0;
  std::map<uint64_t, std::map<Process, std::string>> arrived_;  // by round
};

}  // namespace a2a::hosts
