// AllToAllV and AllToAllVV2: from parameters and tensors to a plan, and its execution.
#include <algorithm>
#include <functional>
#include <optional>
#include <utility>

#include "a2a/plan.h"
#include "checks.h"
#include "failure.h"
#include "tensors.h"

namespace a2a::atb {
namespace {

using infer::AllToAllVParam;
using infer::AllToAllVV2Param;

std::string name_of(const char* list, size_t i) { return std::string(list) + "[" + std::to_string(i) + "]"; }

void check_number(ErrorType status, const char* list, size_t number, uint32_t wanted) {
  if (number != wanted) refuse(status, list, ": ", number, " tensors instead of ", wanted);
}

TensorDesc output_of(const TensorDesc& input, int64_t elems) {
  TensorDesc output = input;
  output.shape.dimNum = 2;
  output.shape.dims[0] = 1;
  output.shape.dims[1] = elems;
  return output;
}

bool same_shape(const TensorDesc& a, const TensorDesc& b) {
  return a.shape.dimNum == b.shape.dimNum &&
         std::equal(a.shape.dims, a.shape.dims + a.shape.dimNum, b.shape.dims, b.shape.dims + b.shape.dimNum);
}

// What both versions do alike. They differ in where counts come from.
class Exchange : public Operation {
 public:
  uint32_t GetOutputNum() const override { return 1; }

  Status InferShape(const SVector<TensorDesc>& in, SVector<TensorDesc>& out) const override {
    return guarded(ERROR_INTERNAL_ERROR, [&] {
      check_inputs(in);
      out = {infer(in)};
    });
  }

  Status Setup(const VariantPack& pack, uint64_t& workspace_size, Context* context) override {
    ready_.reset();
    const Status status = guarded(ERROR_COMM_EMPTY, [&] {
      if (context == nullptr) refuse(ERROR_INVALID_PARAM, "Setup: context is null");
      Ready ready = check(pack);
      ready.context = context;
      const void* const data = pack.inTensors[0].deviceData;
      Call& call = ready.call;
      call.memory = choose_memory(group_, data);
      try {
        communicator_ = communicator_of(group_, context->GetTimeout());
        call.device = connect(group_, *communicator_, call.memory, data, context->GetTimeout());
      } catch (const Error& error) {
        throw StatusError(ERROR_COMM_EMPTY, error.code(), error.what());
      }
      workspace_size = 0;
      ready_ = std::move(ready);
    });
    if (status != NO_ERROR) setup_failure_ = LastFailure().text;
    return status;
  }

  Status Execute(const VariantPack& pack, uint8_t* workspace, uint64_t workspace_size, Context* context) override {
    std::shared_ptr<Work> work;
    const Status status = guarded(ERROR_INTERNAL_ERROR, [&] { require_stream(context); });
    if (status != NO_ERROR) return tell_peers(LastFailure().text), status;
    const Status started = start(pack, workspace, workspace_size, context, work);
    if (started != NO_ERROR || ready_->call.memory != Memory::host) return started;
    return guarded(ERROR_HCCL_FAIL, [&] { work->wait(); });
  }

  Status start(const VariantPack& pack, uint8_t* workspace, uint64_t workspace_size, Context* context,
               std::shared_ptr<Work>& work) {
    return guarded(ERROR_HCCL_FAIL, [&] {
      try {
        check_execute(pack, workspace, workspace_size, context);
      } catch (const Error& error) {
        tell_peers(error.what());
        throw;
      }
      const void* send = pack.inTensors[0].deviceData;
      void* recv = pack.outTensors[0].deviceData;
      Call call = ready_->call;
      call.deadline = Deadline::after_seconds(context->GetTimeout());
      call.stream = {context->GetExecuteStream()};
      work = communicator_->start(*ready_->plan, {&send, 1}, {&recv, 1}, call);
    });
  }

  // Takes the number of the exchange that will not be, so that the peers' calls fail and do not wait.
  void tell_peers(const std::string& reason) {
    const auto communicator = communicator_ != nullptr ? communicator_ : known_communicator(group_);
    if (communicator == nullptr) return;  // the peers wait in Setup for a rank that does not come
    Call call;
    try {
      communicator->refuse(call, reason);
    } catch (const Error&) {
      // It is broken or closed, and the peers know that already.
    }
  }

  const Group& group() const { return group_; }
  void use(std::shared_ptr<Communicator> communicator) {
    set_communicator(group_, communicator);
    communicator_ = std::move(communicator);
  }
  bool has_communicator() const {
    return communicator_ != nullptr && !communicator_->closed() && !communicator_->broken();
  }

 protected:
  explicit Exchange(Group group) : group_(std::move(group)) {}

  void reset(Group group) {
    group_ = std::move(group);
    communicator_ = nullptr;
    ready_.reset();
    setup_failure_ = "Setup has not run";
  }

  // Dtype and format of input i.
  virtual void check_input_kind(const TensorDesc& desc, size_t i) const = 0;
  // The output for inputs that passed the general checks.
  virtual TensorDesc infer(const SVector<TensorDesc>& in) const = 0;
  // The counts of these tensors, checked as far as that is possible without the size of the input.
  virtual Counts counts_of(const VariantPack& pack) const = 0;

  void check_inputs(const SVector<TensorDesc>& in) const {
    check_number(ERROR_INVALID_IN_TENSOR_NUM, "inTensors", in.size(), GetInputNum());
    for (size_t i = 0; i < in.size(); ++i) check_extent(in[i], name_of("inTensor", i));
    for (size_t i = 0; i < in.size(); ++i) check_input_kind(in[i], i);
  }

 private:
  // What a successful Setup leaves for Execute.
  struct Ready {
    std::optional<Plan> plan;
    Call call;
    std::vector<uint64_t> in_bytes;
    uint64_t out_bytes = 0;
    Context* context = nullptr;
  };

  // Everything that Setup checks of the tensors.
  Ready check(const VariantPack& pack) const {
    check_number(ERROR_INVALID_IN_TENSOR_NUM, "inTensors", pack.inTensors.size(), GetInputNum());
    check_number(ERROR_INVALID_IN_TENSOR_NUM, "outTensors", pack.outTensors.size(), GetOutputNum());
    SVector<TensorDesc> in;
    for (const Tensor& tensor : pack.inTensors) in.push_back(tensor.desc);
    const TensorDesc& out = pack.outTensors[0].desc;
    for (size_t i = 0; i < in.size(); ++i) check_extent(in[i], name_of("inTensor", i));
    check_extent(out, "outTensor[0]");
    for (size_t i = 0; i < in.size(); ++i) check_input_kind(in[i], i);
    check_kind(out, "outTensor[0]", in[0].dtype);
    const Counts counts = counts_of(pack);
    const auto elems = static_cast<int64_t>(Utils::GetTensorNumel(in[0]));
    const int64_t sum = check_bounds(counts, elems);
    const TensorDesc wanted = output_of(in[0], sum);
    if (!same_shape(out, wanted)) {
      refuse(ERROR_INVALID_TENSOR_DIM, "outTensor[0]: shape ", shape_text(out), " should be ", shape_text(wanted),
             ", the second dimension is sum(recvCounts)");
    }
    check_counts_further(counts, group_.rank);
    return prepare(counts, in, out, elems, sum);
  }

  Ready prepare(const Counts& counts, const SVector<TensorDesc>& in, const TensorDesc& out, int64_t elems,
                int64_t sum) const {
    Ready ready;
    takes(in[0].dtype, &ready.call.dtype);
    ready.call.unit_bytes = elem_bytes(in[0].dtype);
    ready.plan =
        Plan::alltoallv(group_.rank, group_.size, ready.call.unit_bytes, {counts.sendCounts, counts.sdispls},
                        static_cast<size_t>(elems), {counts.recvCounts, counts.rdispls}, static_cast<size_t>(sum));
    for (const TensorDesc& desc : in) ready.in_bytes.push_back(Utils::GetTensorSize(desc));
    ready.out_bytes = Utils::GetTensorSize(out);
    return ready;
  }

  void check_execute(const VariantPack& pack, const uint8_t* workspace, uint64_t workspace_size,
                     Context* context) const {
    if (!ready_) refuse(ERROR_INVALID_PARAM, "setup failed, execute exit: ", setup_failure_);
    if (context == nullptr) refuse(ERROR_INVALID_PARAM, "Execute: context is null");
    if (context != ready_->context) refuse(ERROR_INVALID_PARAM, "Execute: the context is not the one of Setup");
    if (workspace == nullptr && workspace_size > 0) {
      refuse(ERROR_INVALID_PARAM, "Execute: workspace is null, but workspaceSize is ", workspace_size);
    }
    check_number(ERROR_INVALID_PARAM, "inTensors", pack.inTensors.size(), GetInputNum());
    check_number(ERROR_INVALID_PARAM, "outTensors", pack.outTensors.size(), GetOutputNum());
    for (size_t i = 0; i < pack.inTensors.size(); ++i) {
      check_size(pack.inTensors[i], name_of("inTensor", i), ready_->in_bytes[i]);
    }
    check_size(pack.outTensors[0], "outTensor[0]", ready_->out_bytes);
    check_memory(pack.inTensors[0], "inTensor[0]");
    check_memory(pack.outTensors[0], "outTensor[0]");
    check_apart(pack.inTensors[0], pack.outTensors[0]);
  }

  void require_stream(Context* context) const {
    if (!ready_ || ready_->call.memory == Memory::host) return;
    if (context != nullptr && context->GetExecuteStream() == nullptr) {
      refuse(ERROR_INVALID_PARAM, "Execute: the context's stream is null, but backend ", group_.backend, " needs one");
    }
  }

  static void check_size(const Tensor& tensor, const std::string& name, uint64_t bytes) {
    if (tensor.dataSize != bytes) {
      refuse(ERROR_INVALID_PARAM, name, ": dataSize is ", tensor.dataSize, " bytes, but its shape at Setup has ",
             bytes);
    }
  }

  static void check_memory(const Tensor& tensor, const std::string& name) {
    if (tensor.deviceData == nullptr) refuse(ERROR_INVALID_PARAM, name, ": deviceData is null");
  }

  static void check_apart(const Tensor& in, const Tensor& out) {
    const auto* a = static_cast<const std::byte*>(in.deviceData);
    const auto* b = static_cast<const std::byte*>(out.deviceData);
    const std::less<const std::byte*> before;
    if (before(a, b + out.dataSize) && before(b, a + in.dataSize)) {
      refuse(ERROR_INVALID_PARAM, "inTensor[0] and outTensor[0] share memory; AllToAllV does not work in place");
    }
  }

  Group group_;
  std::shared_ptr<Communicator> communicator_;
  std::optional<Ready> ready_;  // empty unless the last Setup succeeded
  std::string setup_failure_ = "Setup has not run";
};

class AllToAllV final : public Exchange {
 public:
  AllToAllV(Group group, const AllToAllVParam& param) : Exchange(std::move(group)), param_(param) {}

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

class AllToAllVV2 final : public Exchange {
 public:
  AllToAllVV2(Group group, const AllToAllVV2Param& param) : Exchange(std::move(group)), param_(param) {}

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
    if (i < 5) check_kind(desc, name_of("inTensor", i), ACL_INT64);  // the last one only has a shape
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

const Exchange& wanted(const Operation* operation, const char* call) {
  return wanted<Exchange>(const_cast<Operation*>(operation), call);
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
    meeting = {group.rank, group.size, group.meeting(), needed};
  });
}

Status SetCommunicator(Operation* operation, std::shared_ptr<Communicator> communicator) {
  return guarded(ERROR_COMM_EMPTY,
                 [&] { wanted<Exchange>(operation, "SetCommunicator").use(std::move(communicator)); });
}

Status StartExecute(Operation* operation, const VariantPack& pack, uint8_t* workspace, uint64_t workspace_size,
                    Context* context, std::shared_ptr<Work>& work) {
  Status status = NO_ERROR;
  const Status found = guarded(ERROR_INTERNAL_ERROR, [&] {
    status = wanted<Exchange>(operation, "StartExecute").start(pack, workspace, workspace_size, context, work);
  });
  return found != NO_ERROR ? found : status;
}

Status RefuseExecute(Operation* operation, const std::string& reason) {
  return guarded(ERROR_HCCL_FAIL, [&] { wanted<Exchange>(operation, "RefuseExecute").tell_peers(reason); });
}

}  // namespace a2a::atb
