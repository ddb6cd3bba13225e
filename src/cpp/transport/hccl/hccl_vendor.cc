#include "transport/hccl/hccl_vendor.h"

#include <cstring>
#include <string>

#include "runtime/background.h"
#include "transport/hccl/ascend_device.h"
#include "transport/hccl/hccl_api.h"
#include "transport/hccl/hccl_collectives.h"

namespace a2a::hccl {
namespace {

using device::Collectives;
using device::Device;
using device::Joining;

class HcclVendor final : public device::Vendor {
 public:
  explicit HcclVendor(const Api& loaded) : api_(loaded) {}

  std::string version() const override { return "HCCL"; }

  std::unique_ptr<Device> device(int index) override { return std::make_unique<AscendDevice>(index); }

  std::optional<int> device_of(const void* pointer) override { return AscendDevice::of(pointer); }

  std::string new_root(Device&) override {
    RootInfo root{};
    api_.check(api_.get_root_info(&root), "HcclGetRootInfo");
    return {root.internal, sizeof(root.internal)};
  }

  std::unique_ptr<Collectives> join(Device& device, const Joining& joining) override {
    Joining given = joining;
    given.look = nullptr;  // only for this thread
    const auto call = [&api = api_, index = device.index(), given]() -> Comm {
      const AscendDevice own(index);  // each thread has its own current device
      const Device::Current current(own);
      return given.rank_table.empty() ? join_by_root(api, given) : join_by_table(api, given);
    };
    const auto discard = [&api = api_](Comm comm) { api.comm_destroy(comm); };
    Comm comm = in_background<Comm>(call, discard, joining.look);
    return new_collectives(device, comm, joining.rank, joining.size, Ownership::ours);
  }

  std::unique_ptr<Collectives> adopt(Device& device, void* communicator, Rank rank, int size) override {
    uint32_t its_size = 0, its_rank = 0;
    api_.check(api_.get_rank_size(communicator, &its_size), "HcclGetRankSize");
    api_.check(api_.get_rank_id(communicator, &its_rank), "HcclGetRankId");
    if (its_size != static_cast<uint32_t>(size) || its_rank != static_cast<uint32_t>(rank)) {
      throw Error(Code::invalid_argument, "the HcclComm is that of rank " + std::to_string(its_rank) + " of " +
                                              std::to_string(its_size) + ", this is rank " + std::to_string(rank) +
                                              " of " + std::to_string(size));
    }
    return new_collectives(device, communicator, rank, size, Ownership::callers);
  }

 private:
  static Comm join_by_root(const Api& api, const Joining& joining) {
    RootInfo root{};
    if (joining.root.size() != sizeof(root.internal)) throw Error(Code::backend, "HCCL: rank 0 sent no root info");
    std::memcpy(root.internal, joining.root.data(), sizeof(root.internal));
    Comm comm = nullptr;
    api.check(
        api.comm_init_root_info(static_cast<uint32_t>(joining.size), &root, static_cast<uint32_t>(joining.rank), &comm),
        "HcclCommInitRootInfo");
    return comm;
  }

  static Comm join_by_table(const Api& api, const Joining& joining) {
    if (api.comm_init_cluster_info == nullptr) api.hccl.missing("HcclCommInitClusterInfo");
    Comm comm = nullptr;
    api.check(api.comm_init_cluster_info(joining.rank_table.c_str(), static_cast<uint32_t>(joining.rank), &comm),
              "HcclCommInitClusterInfo");
    return comm;
  }

  const Api& api_;
};

}  // namespace

device::Vendor& vendor() {
  static auto& one = *new HcclVendor(api());
  return one;
}

}  // namespace a2a::hccl
