// AllToAllV and AllToAllVV2: the sources of their counts, and the public calls.
#include <utility>

#include "all_to_all_operation.h"
#include "failure.h"
#include "tensors.h"

namespace a2a::atb {
namespace {

using infer::AllToAllVParam;
using infer::AllToAllVV2Param;

class AllToAllV final : public AllToAllOperation {
 public:
  AllToAllV(Group group, const AllToAllVParam& param) : AllToAllOperation(std::move(group)), param_(param) {}

  std::string GetName() const override { return "AllToAllVOperation"; }
  uint32_t GetInputNum() const override { return 1; }

  static Counts counts(const AllToAllVParam& param) {
    return {param.sendCounts, param.sdispls, param.recvCounts, param.rdispls};
  }

 protected:
  void check_input_kind(const TensorDesc& desc, size_t i) const override { check_kind(desc, name_of("inTensor", i)); }
  Counts counts_of(const VariantPack&) const override { return counts(param_); }
  TensorDesc infer(const SVector<TensorDesc>& in) const override {
    const int64_t sum = check_bounds(counts(param_), static_cast<int64_t>(Utils::GetTensorNumel(in[0])));
    check_counts_further(counts(param_), group().rank);
    return output_of(in[0], sum);
  }

 private:
  const AllToAllVParam param_;
};

class AllToAllVV2 final : public AllToAllOperation {
 public:
  AllToAllVV2(Group group, const AllToAllVV2Param& param) : AllToAllOperation(std::move(group)), param_(param) {}

  std::string GetName() const override { return "AllToAllVV2Operation"; }
  uint32_t GetInputNum() const override { return 6; }

  const AllToAllVV2Param& param() const { return param_; }
  void update(Group group, const AllToAllVV2Param& param) {
    reset(std::move(group));
    param_ = param;
  }

 protected:
  void check_input_kind(const TensorDesc& desc, size_t i) const override {
    if (i == 0) return check_kind(desc, "inTensor[0]");
    if (i < 5) check_kind(desc, name_of("inTensor", i), ACL_INT64);  // only the shape of the last one is used
  }

  TensorDesc infer(const SVector<TensorDesc>& in) const override { return output_of(in[0], in[5].shape.dims[0]); }

  Counts counts_of(const VariantPack& pack) const override {
    Counts counts;
    size_t i = 0;
    for (auto* list : {&counts.sendCounts, &counts.sdispls, &counts.recvCounts, &counts.rdispls}) {
      const Tensor& tensor = pack.inTensors[++i];
      if (tensor.desc.shape.dimNum != 1 || tensor.desc.shape.dims[0] != group().size) {
        refuse(ERROR_INVALID_PARAM, name_of("inTensor", i), ": shape ", shape_text(tensor.desc), " should be [",
               group().size, "], one entry for each rank");
      }
      if (tensor.hostData == nullptr) refuse(ERROR_INVALID_PARAM, name_of("inTensor", i), ": hostData is null");
      *list = {static_cast<const int64_t*>(tensor.hostData), static_cast<size_t>(group().size)};
    }
    check_counts(counts, group().size);
    return counts;
  }

 private:
  AllToAllVV2Param param_;
};

template <class T>
T& wanted(Operation* operation, const char* call) {
  auto* const found = dynamic_cast<T*>(operation);
  if (found == nullptr) refuse(ERROR_INVALID_PARAM, call, ": the operation is null or of another kind");
  return *found;
}

const AllToAllOperation& wanted(const Operation* operation, const char* call) {
  return wanted<AllToAllOperation>(const_cast<Operation*>(operation), call);
}

}  // namespace

template <>
Status CreateOperation(const AllToAllVParam& param, Operation** operation) {
  return guarded(ERROR_INTERNAL_ERROR, [&] {
    if (operation == nullptr) refuse(ERROR_INVALID_PARAM, "CreateOperation: operation is null");
    Group group = Group::of(param);
    check_counts(AllToAllV::counts(param), group.size);
    group.check_further();
    *operation = new AllToAllV(std::move(group), param);
  });
}

template <>
Status CreateOperation(const AllToAllVV2Param& param, Operation** operation) {
  return guarded(ERROR_INTERNAL_ERROR, [&] {
    if (operation == nullptr) refuse(ERROR_INVALID_PARAM, "CreateOperation: operation is null");
    Group group = Group::of(param);
    group.check_further();
    *operation = new AllToAllVV2(std::move(group), param);
  });
}

template <>
Status CloneOperationParam(const Operation* operation, AllToAllVV2Param& param) {
  return guarded(ERROR_INTERNAL_ERROR, [&] {
    param = wanted<AllToAllVV2>(const_cast<Operation*>(operation), "CloneOperationParam").param();
  });
}

template <>
Status UpdateOperationParam(Operation* operation, const AllToAllVV2Param& param) {
  return guarded(ERROR_INTERNAL_ERROR, [&] {
    auto& found = wanted<AllToAllVV2>(operation, "UpdateOperationParam");
    Group group = Group::of(param);
    group.check_further();
    found.update(std::move(group), param);
  });
}

Status DestroyOperation(Operation* operation) {
  return guarded(ERROR_INTERNAL_ERROR, [&] {
    if (operation == nullptr) refuse(ERROR_INVALID_PARAM, "DestroyOperation: operation is null");
    delete operation;
  });
}

Status GetMeeting(const Operation* operation, Meeting& meeting) {
  return guarded(ERROR_COMM_EMPTY, [&] {
    const auto& exchange = wanted(operation, "GetMeeting");
    const Group& group = exchange.group();
    choose_memory(group, nullptr);
    const bool needed = !exchange.has_communicator() && known_communicator(group) == nullptr;
    meeting = {group.rank, group.size, group.meeting(), group.between_hosts(), needed};
  });
}

Status SetCommunicator(Operation* operation, std::shared_ptr<Communicator> communicator) {
  return guarded(ERROR_COMM_EMPTY,
                 [&] { wanted<AllToAllOperation>(operation, "SetCommunicator").use(std::move(communicator)); });
}

Status StartExecute(Operation* operation, const VariantPack& pack, uint8_t* workspace, uint64_t workspace_size,
                    Context* context, std::shared_ptr<Work>& work) {
  Status status = NO_ERROR;
  const Status found = guarded(ERROR_INTERNAL_ERROR, [&] {
    status = wanted<AllToAllOperation>(operation, "StartExecute").start(pack, workspace, workspace_size, context, work);
  });
  return found != NO_ERROR ? found : status;
}

Status RefuseExecute(Operation* operation, const std::string& reason) {
  return guarded(ERROR_HCCL_FAIL, [&] { wanted<AllToAllOperation>(operation, "RefuseExecute").tell_peers(reason); });
}

}  // namespace a2a::atb
