#include "transport/nccl/nccl_vendor.h"

#include <cstring>
#include <string>

#include "transport/nccl/cuda_device.h"
#include "transport/nccl/nccl_collectives.h"

namespace a2a::nccl {
namespace {

using device::Collectives;
using device::Device;
using device::Joining;

class NcclVendor final : public device::Vendor {
 public:
  explicit NcclVendor(const Api& loaded) : api_(loaded) {
    try {
      cuda();
    } catch (const Error& error) {  // the error must not blame NCCL, which was found
      throw Error(error.code(), api_.library.where() + " is version " + api_.version_text() + ", but " + error.what());
    }
  }

  std::string version() const override { return "NCCL " + api_.version_text(); }

  std::unique_ptr<Device> device(int index) override { return std::make_unique<CudaDevice>(index); }

  std::optional<int> device_of(const void* pointer) override { return CudaDevice::of(pointer); }

  std::string new_root(Device&) override {
    UniqueId id{};
    api_.check(api_.get_unique_id(&id), nullptr, "ncclGetUniqueId");
    return {id.internal, sizeof(id.internal)};
  }

  std::unique_ptr<Collectives> join(Device&, const Joining& joining) override {
    UniqueId id{};
    if (joining.root.size() != sizeof(id.internal)) throw Error(Code::backend, "NCCL: rank 0 sent no unique id");
    std::memcpy(id.internal, joining.root.data(), sizeof(id.internal));
    return join_nccl(id, joining);
  }

  std::unique_ptr<Collectives> adopt(Device& device, void* communicator, Rank rank, int size) override {
    Comm comm = static_cast<Comm>(communicator);
    int its_size = 0, its_rank = 0, its_device = 0;
    api_.check(api_.comm_count(comm, &its_size), comm, "ncclCommCount");
    api_.check(api_.comm_user_rank(comm, &its_rank), comm, "ncclCommUserRank");
    api_.check(api_.comm_cu_device(comm, &its_device), comm, "ncclCommCuDevice");
    if (its_size != size || its_rank != rank || its_device != device.index()) {
      throw Error(Code::invalid_argument, "the ncclComm_t is that of rank " + std::to_string(its_rank) + " of " +
                                              std::to_string(its_size) + " on cuda:" + std::to_string(its_device) +
                                              ", this is rank " + std::to_string(rank) + " of " + std::to_string(size) +
                                              " on " + device.name());
    }
    return adopt_nccl(comm, rank, size);
  }

 private:
  const Api& api_;
};

}  // namespace

device::Vendor& vendor() {
  static auto& one = *new NcclVendor(api());
  return one;
}

}  // namespace a2a::nccl
