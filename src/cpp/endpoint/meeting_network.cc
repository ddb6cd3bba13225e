// The network of a meeting whose endpoints have addresses: an endpoint has one for all of its groups, which grows.
#include <algorithm>

#include "endpoint/meeting.h"
#include "transport/tcp/connect.h"
#include "transport/ucx/choose.h"

namespace a2a::endpoint {

std::shared_ptr<hosts::Network> Meeting::network(Deadline deadline) {
  const Digest key = hmac_sha256(standing_.secret, "a2a key of the network");
  // It is made anew for each generation.
  if (auto network = ucx::connect_if_chosen(*this, place_, key, [this] { while_meeting(); }, deadline)) {
    numbered_anew_ = true;
    return network;
  }
  if (standing_.network == nullptr) standing_.network = tcp::TcpNetwork::alone();
  std::erase_if(standing_.links, [this](const auto& link) {  // of processes that have ended
    return standing_.network->lost(link.second.process) && find(text_of(link.first)) == nullptr;
  });
  std::vector<bool> connected(members_.size());
  for (size_t i = 0; i < members_.size(); ++i) {
    const Member& m = members_[i];
    const auto link = standing_.links.find(m.handle.id);
    connected[i] = is_self(m) ||
                   (m.link != 0 && m.link == m.proposal->connection && !standing_.network->lost(link->second.process));
  }
  // Both ends have to keep a connection. Either may have lost it since it proposed.
  std::string mine;
  for (const bool kept : connected) mine += kept ? '1' : '0';
  const auto all = allgather(mine, deadline);
  for (size_t i = 0; i < members_.size(); ++i) {
    if (all[i].size() != members_.size()) throw error(Code::backend, name(members_[i]) + " sent nonsense");
    connected[i] = connected[i] && all[i][static_cast<size_t>(place_)] == '1';
  }
  auto sockets = tcp::connect_mesh(*this,
                                   {.rank = place_,
                                    .job = "generation " + std::to_string(generation_),
                                    .own_address = standing_.self.address,
                                    .key = key,
                                    .meanwhile = [this] { while_meeting(); }},
                                   connected, deadline);
  for (size_t i = 0; i < members_.size(); ++i) {
    if (connected[i]) continue;
    NetworkLink& link = standing_.links[members_[i].handle.id];
    if (link.number != 0) standing_.network->drop(link.process);
    link = {standing_.network->add(std::move(sockets[i])),
            std::max(members_[i].link, members_[i].proposal->connection) + 1};
  }
  return standing_.network;
}

std::vector<int> Meeting::processes() const {
  std::vector<int> numbers;
  if (numbered_anew_) return numbers;
  for (const Member& m : members_) {
    numbers.push_back(is_self(m) ? standing_.network->self() : standing_.links.at(m.handle.id).process);
  }
  return numbers;
}

}  // namespace a2a::endpoint
