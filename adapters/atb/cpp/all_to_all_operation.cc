#include "all_to_all_operation.h"

#include <algorithm>
#include <utility>

#include "failure.h"
#include "tensors.h"

namespace a2a::atb {
namespace {

void check_number(ErrorType status, const char* list, size_t number, uint32_t wanted) {
  if (number != wanted) refuse(status, list, ": ", number, " tensors instead of ", wanted);
}

bool same_shape(const TensorDesc& a, const TensorDesc& b) {
  return a.shape.dimNum == b.shape.dimNum &&
         std::equal(a.shape.dims, a.shape.dims + a.shape.dimNum, b.shape.dims, b.shape.dims + b.shape.dimNum);
}

void check_size(const Tensor& tensor, const std::string& name, uint64_t bytes) {
  if (tensor.dataSize != bytes) {
    refuse(ERROR_INVALID_PARAM, name, ": dataSize is ", tensor.dataSize, " bytes, but its shape at Setup has ", bytes);
  }
}

void check_memory(const Tensor& tensor, const std::string& name) {
  if (tensor.deviceData == nullptr) refuse(ERROR_INVALID_PARAM, name, ": deviceData is null");
}

void check_apart(const Tensor& in, const Tensor& out) {
  const auto* a = static_cast<const std::byte*>(in.deviceData);
  const auto* b = static_cast<const std::byte*>(out.deviceData);
  const std::less<const std::byte*> before;
  if (before(a, b + out.dataSize) && before(b, a + in.dataSize)) {
    refuse(ERROR_INVALID_PARAM, "inTensor[0] and outTensor[0] share memory; AllToAllV does not work in place");
  }
}

}  // namespace

std::string name_of(const char* list, size_t i) { return std::string(list) + "[" + std::to_string(i) + "]"; }

TensorDesc output_of(const TensorDesc& input, int64_t elems) {
  TensorDesc output = input;
  output.shape.dimNum = 2;
  output.shape.dims[0] = 1;
  output.shape.dims[1] = elems;
  return output;
}

Status AllToAllOperation::InferShape(const SVector<TensorDesc>& in, SVector<TensorDesc>& out) const {
  return guarded(ERROR_INTERNAL_ERROR, [&] {
    check_number(ERROR_INVALID_IN_TENSOR_NUM, "inTensors", in.size(), GetInputNum());
    for (size_t i = 0; i < in.size(); ++i) check_extent(in[i], name_of("inTensor", i));
    for (size_t i = 0; i < in.size(); ++i) check_input_kind(in[i], i);
    out = {infer(in)};
  });
}

Status AllToAllOperation::Setup(const VariantPack& pack, uint64_t& workspace_size, Context* context) {
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

Status AllToAllOperation::Execute(const VariantPack& pack, uint8_t* workspace, uint64_t workspace_size,
                                  Context* context) {
  std::shared_ptr<Work> work;
  const Status status = guarded(ERROR_INTERNAL_ERROR, [&] { require_stream(context); });
  if (status != NO_ERROR) return tell_peers(LastFailure().text), status;
  const Status started = start(pack, workspace, workspace_size, context, work);
  if (started != NO_ERROR || ready_->call.memory != Memory::host) return started;
  return guarded(ERROR_HCCL_FAIL, [&] { work->wait(); });
}

Status AllToAllOperation::start(const VariantPack& pack, uint8_t* workspace, uint64_t workspace_size, Context* context,
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

void AllToAllOperation::tell_peers(const std::string& reason) {
  // Another operation of this group may have replaced one that broke.
  const auto communicator = has_communicator() ? communicator_ : known_communicator(group_);
  if (communicator == nullptr) return;  // the peers wait in Setup for a rank that does not come
  Call call;
  try {
    communicator->refuse(call, reason);
  } catch (const Error&) {
    // The communicator is broken or closed, so the peers fail anyway.
  }
}

void AllToAllOperation::use(std::shared_ptr<Communicator> communicator) {
  set_communicator(group_, communicator);
  communicator_ = std::move(communicator);
}

bool AllToAllOperation::has_communicator() const {
  return communicator_ != nullptr && !communicator_->closed() && !communicator_->failed();
}

void AllToAllOperation::reset(Group group) {
  group_ = std::move(group);
  communicator_ = nullptr;
  ready_.reset();
  setup_failure_ = "Setup has not run";
}

AllToAllOperation::Ready AllToAllOperation::check(const VariantPack& pack) const {
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

AllToAllOperation::Ready AllToAllOperation::prepare(const Counts& counts, const SVector<TensorDesc>& in,
                                                    const TensorDesc& out, int64_t elems, int64_t sum) const {
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

void AllToAllOperation::check_execute(const VariantPack& pack, const uint8_t* workspace, uint64_t workspace_size,
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

void AllToAllOperation::require_stream(Context* context) const {
  if (!ready_ || ready_->call.memory == Memory::host) return;
  if (context != nullptr && context->GetExecuteStream() == nullptr) {
    refuse(ERROR_INVALID_PARAM, "Execute: the context's stream is null, but backend ", group_.backend, " needs one");
  }
}

}  // namespace a2a::atb
