// Ranks that meet over a network that connects them already.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "a2a/bootstrap.h"
#include "transport/hosts/network.h"

namespace a2a::hosts {

// Rank r is process r of the network. Every process makes its bootstraps of one name in the same order.
class NetworkBootstrap final : public Bootstrap {
 public:
  NetworkBootstrap(std::shared_ptr<Network> network, const std::string& name);
  ~NetworkBootstrap() override;

  std::vector<std::string> allgather(std::string_view mine, Deadline deadline) override;
  bool has_network() const override { return true; }
  std::shared_ptr<Network> network(Deadline) override { return network_; }

 private:
  std::shared_ptr<Network> network_;
  uint64_t channel_;
  uint64_t round_ = 0;
  std::map<uint64_t, std::map<Endpoint, std::string>> arrived_;  // by round
};

}  // namespace a2a::hosts
