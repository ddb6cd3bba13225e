// Chooses the transport of a group, and the vendor of a kind of memory. This is the one place that knows them all by
// name.
#include "a2a/communicator.h"
#include "a2a/libraries.h"
#include "core/connect.h"
#include "transport/device/connect.h"
#include "transport/device/vendor.h"
#include "transport/hccl/hccl_vendor.h"
#include "transport/hosts/hosts_transport.h"
#include "transport/nccl/nccl_vendor.h"
#include "transport/shm/peers/exposed_tensor.h"
#include "transport/shm/shm_transport.h"

namespace a2a {
namespace {

// Restricts a bootstrap to the ranks of one host.
class LocalBootstrap final : public Bootstrap {
 public:
  LocalBootstrap(Bootstrap& all, const std::vector<Rank>& local_ranks) : all_(all), local_ranks_(local_ranks) {}

  std::vector<std::string> allgather(std::string_view mine, Deadline deadline) override {
    auto everything = all_.allgather(mine, deadline);
    std::vector<std::string> ours;
    for (const Rank rank : local_ranks_) ours.push_back(std::move(everything.at(static_cast<size_t>(rank))));
    return ours;
  }
  void while_meeting() override { all_.while_meeting(); }
  bool met_before() const override { return all_.met_before(); }

 private:
  Bootstrap& all_;
  const std::vector<Rank>& local_ranks_;
};

}  // namespace

std::unique_ptr<Transport> connect(Rank rank, int size, Bootstrap& bootstrap, Deadline deadline) {
  if (!bootstrap.has_network()) return shm::ShmTransport::connect(rank, size, bootstrap, deadline);
  hosts::HostMap map = hosts::make_host_map(rank, size, bootstrap, deadline);
  if (map.hosts() == 1) return shm::ShmTransport::connect(rank, size, bootstrap, deadline);
  const auto network = bootstrap.network(deadline);
  if (const auto processes = bootstrap.processes(); !processes.empty()) map.process = processes;
  const std::vector<Rank> local_ranks = map.ranks_of(map.host_of(rank));
  const auto local_rank = static_cast<Rank>(map.local_rank_of(rank));
  LocalBootstrap here(bootstrap, local_ranks);
  const auto base =
      shm::ShmTransport::connect(local_rank, static_cast<int>(local_ranks.size()), here, deadline, local_ranks);
  std::vector<Rank> members(local_ranks.size());
  for (size_t i = 0; i < members.size(); ++i) members[i] = static_cast<Rank>(i);
  return hosts::HostsTransport::make(rank, std::move(map), network, bootstrap, *base, members, deadline);
}

std::shared_ptr<DeviceTransport> connect_device(Memory memory, int index, const DeviceMeeting& meeting) {
  return device::connect(memory, index, meeting);
}

device::Vendor& device::vendor_of(Memory memory) {
  switch (memory) {
    case Memory::cuda:
      return nccl::vendor();
    case Memory::npu:
      return hccl::vendor();
    default:
      throw Error(Code::unsupported, std::string("no transport for ") + to_string(memory) + " memory in this build");
  }
}

std::string library_for(Memory memory) { return device::vendor_of(memory).version(); }

std::optional<int> device_of(Memory memory, const void* pointer) {
  return device::vendor_of(memory).device_of(pointer);
}

std::shared_ptr<std::byte> Communicator::allocate_shared(size_t bytes) {
  shm::ProcessMemory& memory = shm::ProcessMemory::get();
  memory.exposed_tensors().sweep();
  return {memory.arena().allocate(bytes), [&memory](std::byte* data) {
            if (!memory.inherited()) memory.arena().release(data);
          }};
}

}  // namespace a2a
