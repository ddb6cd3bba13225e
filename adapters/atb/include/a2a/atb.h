// ATB's AllToAllV: the parameters, the life cycle and the status codes of Ascend Transformer Boost, on any backend.
// docs/frameworks/atb.md tells what differs. A program moves over by its namespace:
//
//   namespace atb = a2a::atb;             // instead of #include "atb/atb_infer.h"
//   atb::infer::AllToAllVParam param;
//   param.rank = rank, param.rankSize = 4, param.backend = "shm";
//   param.sendCounts = ..., param.sdispls = ..., param.recvCounts = ..., param.rdispls = ...;
//   atb::Operation* operation = nullptr;
//   atb::Status status = atb::CreateOperation(param, &operation);
//   status = operation->Setup(pack, workspaceSize, context);   // the first Setup of a group waits for its ranks
//   status = operation->Execute(pack, workspace, workspaceSize, context);
//
// Every call returns a Status and throws nothing; LastFailure() has the sentence that belongs to it. An operation is
// used by one thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "a2a/atb/types.h"
#include "a2a/communicator.h"

namespace a2a::atb {

namespace infer {

enum CommMode : int {
  COMM_UNDEFINED = -1,
  COMM_MULTI_PROCESS,
  COMM_MULTI_THREAD,  // the ranks of this group are threads of this process
};

// The parameters of one rank; all counts and displacements are in elements. The fields are those of AllToAllVParam on
// ATB's page "AllToAllVOperation".
struct AllToAllVParam {
  int rank = 0;
  int rankSize = 0;  // 0 with a rank table: rank and size come from RANK_ID and the table
  int rankRoot = 0;
  std::vector<int64_t> sendCounts;
  std::vector<int64_t> sdispls;
  std::vector<int64_t> recvCounts;
  std::vector<int64_t> rdispls;
  std::string backend = "hccl";  // here also "shm", "nccl", "mpi" and "auto"
  HcclComm hcclComm = nullptr;   // a communicator of the caller's, for "hccl"
  CommMode commMode = COMM_MULTI_PROCESS;
  std::string rankTableFile;
  std::string commDomain;
  uint8_t rsv[64] = {0};
};

// The same with counts and displacements as input tensors: x, sendCounts, sdispls, recvCounts, rdispls (int64, read
// from hostData), and one whose first dimension is sum(recvCounts).
struct AllToAllVV2Param {
  int rank = -1;
  int rankSize = 0;
  int rankRoot = 0;
  std::string backend = "hccl";
  HcclComm hcclComm = nullptr;
  CommMode commMode = COMM_MULTI_PROCESS;
  std::string rankTableFile;
  std::string commDomain;
  uint8_t rsv[64] = {0};

  bool operator==(const AllToAllVV2Param&) const = default;
};

}  // namespace infer

enum ExecuteType : int { EXECUTE_NORMAL = 0, EXECUTE_PRELAUNCH, EXECUTE_LAUNCH };
enum LaunchMode : int { KERNEL_LAUNCH_MODE = 0, GRAPH_LAUNCH_MODE };

// The place where operations run: for device backends a stream. CreateContext makes it.
class A2A_API Context {
 public:
  virtual ~Context() = default;
  virtual Status SetExecuteStream(aclrtStream stream) = 0;
  virtual aclrtStream GetExecuteStream() const = 0;
  virtual Status SetExecuteStreams(const std::vector<aclrtStream>& streams) = 0;
  virtual std::vector<aclrtStream> GetExecuteStreams() = 0;
  virtual Status SetAsyncTilingCopyStatus(bool enable) = 0;
  virtual bool GetAsyncTilingCopyStatus() const = 0;
  virtual Status SetExecuteType(ExecuteType type) = 0;  // EXECUTE_NORMAL alone
  virtual ExecuteType GetExecuteType() = 0;
  virtual Status SetLaunchMode(LaunchMode mode) = 0;  // KERNEL_LAUNCH_MODE alone
  virtual LaunchMode GetLaunchMode() = 0;

  // Not in ATB. Sets how long Setup waits for the other ranks and Execute for the exchange; 600 s by default.
  virtual Status SetTimeout(double seconds) = 0;
  virtual double GetTimeout() const = 0;
};

A2A_API Status CreateContext(Context** context);
A2A_API Status DestroyContext(Context* context);

class A2A_API Operation {
 public:
  virtual ~Operation() = default;
  virtual std::string GetName() const = 0;
  virtual uint32_t GetInputNum() const = 0;
  virtual uint32_t GetOutputNum() const = 0;

  // Describes the one output: of shape [1, sum(recvCounts)] with the dtype and format of the input, which is treated as
  // flat.
  virtual Status InferShape(const SVector<TensorDesc>& inTensorDescs, SVector<TensorDesc>& outTensorDescs) const = 0;

  // Checks the tensors and makes the communicator: the first Setup of a group waits for all of its ranks. When it
  // cannot be made, this returns ERROR_COMM_EMPTY at once, and a later Setup tries again. Operations with equal rank,
  // rankSize, commDomain, commMode and rank table share one communicator, which lives as long as the process.
  virtual Status Setup(const VariantPack& variantPack, uint64_t& workspaceSize, Context* context) = 0;

  // Exchanges. Host backends ignore the stream and return when the output is complete; device backends return when the
  // exchange is enqueued on the context's stream. If this rank's arguments are refused here, its peers' Execute returns
  // ERROR_HCCL_FAIL.
  virtual Status Execute(const VariantPack& variantPack, uint8_t* workspace, uint64_t workspaceSize,
                         Context* context) = 0;
};

template <typename OpParam>
Status CreateOperation(const OpParam& opParam, Operation** operation);
template <>
A2A_API Status CreateOperation(const infer::AllToAllVParam& opParam, Operation** operation);
template <>
A2A_API Status CreateOperation(const infer::AllToAllVV2Param& opParam, Operation** operation);

A2A_API Status DestroyOperation(Operation* operation);

// Only for AllToAllVV2, as in ATB. An operation whose parameters were updated needs a Setup.
template <typename OpParam>
Status CloneOperationParam(const Operation* operation, OpParam& opParam);
template <>
A2A_API Status CloneOperationParam(const Operation* operation, infer::AllToAllVV2Param& opParam);
template <typename OpParam>
Status UpdateOperationParam(Operation* operation, const OpParam& opParam);
template <>
A2A_API Status UpdateOperationParam(Operation* operation, const infer::AllToAllVV2Param& opParam);

// ---- not in ATB -----------------------------------------------------------------------------------------------------

// The failure of this thread's last call that failed.
struct Failure {
  Status status = NO_ERROR;
  Code code = Code::invalid_argument;  // the code of the corresponding a2a::Error
  std::string text;
};
A2A_API const Failure& LastFailure();

// The meeting of the ranks of an operation. `needed` says whether this process has no communicator for them yet.
struct Meeting {
  Rank rank = 0;
  int size = 0;
  std::string job;        // for unix_bootstrap, or as the name of mpi_bootstrap
  bool over_mpi = false;  // which of the two
  bool needed = false;
};
// Fills in the meeting. Fails like Setup when the backend cannot serve this machine.
A2A_API Status GetMeeting(const Operation* operation, Meeting& meeting);
// Gives a group the communicator that Setup would have made: for programs with their own bootstrap. Requires that its
// rank and size are the operation's.
A2A_API Status SetCommunicator(Operation* operation, std::shared_ptr<Communicator> communicator);
// Executes without the wait. Requires that the tensors live until `work` is done. Without a stream on a device only
// `work` tells when the output is complete.
A2A_API Status StartExecute(Operation* operation, const VariantPack& variantPack, uint8_t* workspace,
                            uint64_t workspaceSize, Context* context, std::shared_ptr<Work>& work);
// Call in place of an Execute whose arguments the caller has refused: tells the peers why, so that they do not wait.
A2A_API Status RefuseExecute(Operation* operation, const std::string& reason);

}  // namespace a2a::atb
