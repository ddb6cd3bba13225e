// a2a/atb.h with the types that Cython can pass.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "a2a/atb.h"
#include "a2a/atb/rank_table.h"
#include "cpp/python/interrupts.h"

namespace a2a_py {

using AtbParam = a2a::atb::infer::AllToAllVParam;

inline a2a::atb::TensorDesc atb_desc(int dtype, int ndim, const int64_t* shape) {
  a2a::atb::TensorDesc desc;
  desc.dtype = static_cast<aclDataType>(dtype);
  desc.format = ACL_FORMAT_ND;
  desc.shape.dimNum = static_cast<uint64_t>(ndim);
  for (int i = 0; i < ndim && i < static_cast<int>(a2a::atb::MAX_DIM); ++i) desc.shape.dims[i] = shape[i];
  return desc;
}

// An operation with its context. Methods return a status; atb_failure() returns its text.
class Atb {
 public:
  ~Atb() {
    if (operation_ != nullptr) a2a::atb::DestroyOperation(operation_);
    if (context_ != nullptr) a2a::atb::DestroyContext(context_);
  }

  int create(const AtbParam& param, double timeout) {
    if (const int status = a2a::atb::CreateContext(&context_)) return status;
    if (const int status = context_->SetTimeout(timeout)) return status;
    return a2a::atb::CreateOperation(param, &operation_);
  }

  std::string name() const { return operation_->GetName(); }
  int inputs() const { return static_cast<int>(operation_->GetInputNum()); }
  int outputs() const { return static_cast<int>(operation_->GetOutputNum()); }

  // `elems` becomes the second dimension of the output.
  int infer(const std::vector<a2a::atb::TensorDesc>& in, int64_t& elems) {
    a2a::atb::SVector<a2a::atb::TensorDesc> descs, out;
    for (const auto& desc : in) descs.push_back(desc);
    const int status = operation_->InferShape(descs, out);
    if (status == a2a::atb::NO_ERROR) elems = out[0].shape.dims[1];
    return status;
  }

  int meeting(a2a::atb::Meeting& meeting) const { return a2a::atb::GetMeeting(operation_, meeting); }
  int join(std::shared_ptr<a2a::Communicator> comm) { return a2a::atb::SetCommunicator(operation_, std::move(comm)); }

  // `stream`: of the tensors' device, if any.
  int setup(const a2a::atb::TensorDesc& in, void* from, int64_t elems, void* to, void* stream) {
    if (const int status = context_->SetExecuteStream(stream)) return status;
    a2a::atb::TensorDesc out = in;
    out.shape = {{1, elems}, 2};
    pack_.inTensors = {{in, from, nullptr, a2a::atb::Utils::GetTensorSize(in)}};
    pack_.outTensors = {{out, to, nullptr, a2a::atb::Utils::GetTensorSize(out)}};
    const a2a::SignalWatch signals(&interrupted);
    return operation_->Setup(pack_, workspace_bytes_, context_);
  }

  int start(std::shared_ptr<a2a::Work>& work) {
    const a2a::SignalWatch signals(&interrupted);
    workspace_.resize(workspace_bytes_);
    return a2a::atb::StartExecute(operation_, pack_, workspace_.data(), workspace_bytes_, context_, work);
  }

  bool ordered_by_stream() const { return context_->GetExecuteStream() != nullptr; }

  int refuse(const std::string& reason) { return a2a::atb::RefuseExecute(operation_, reason); }

 private:
  a2a::atb::Context* context_ = nullptr;
  a2a::atb::Operation* operation_ = nullptr;
  a2a::atb::VariantPack pack_;
  uint64_t workspace_bytes_ = 0;
  std::vector<uint8_t> workspace_;
};

inline void set_comm_mode(AtbParam& param, int mode) { param.commMode = static_cast<a2a::atb::infer::CommMode>(mode); }

inline int failure_code() { return static_cast<int>(a2a::atb::LastFailure().code); }
inline std::string failure_text() { return a2a::atb::LastFailure().text; }
inline std::string status_name(int status) { return a2a::atb::to_string(static_cast<a2a::atb::ErrorType>(status)); }

}  // namespace a2a_py
