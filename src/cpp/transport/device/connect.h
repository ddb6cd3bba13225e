// How the ranks of a group come to a vendor's communicator.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "a2a/communicator.h"
#include "transport/device/device_transport.h"

namespace a2a::device {

struct Meeting {
  Rank rank = 0;
  int size = 1;
  Check check = Check::first;
  void* adopted = nullptr;  // the caller's vendor communicator
  std::string rank_table;
  Deadline deadline = Deadline::never();
  std::function<std::vector<std::string>(std::string_view)> tell_all;  // an allgather over host memory
  std::function<void(std::string_view)> refuse;        // tells all why this rank does not take part in the next one
  std::function<std::optional<Error>()> peer_refuses;  // whether a peer has done that
  std::shared_ptr<HostTransport> host;
};

// Collective. When one rank cannot, no rank does: all throw, the others naming it. They can try again after that,
// unless a rank was lost, the deadline passed, or a signal ended the wait: then the communicator is broken.
std::shared_ptr<DeviceTransport> connect(Memory memory, int index, const Meeting& meeting);

}  // namespace a2a::device
