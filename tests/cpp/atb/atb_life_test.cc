// The life cycle of an operation: the order of the checks of InferShape, Setup and Execute, parameters that change, and
// the calls that ATB does not have.
#include <array>

#include "a2a/bootstrap.h"
#include "atb_ranks.h"

namespace {

using atb::infer::AllToAllVParam;
using atb::infer::AllToAllVV2Param;
using ranks::desc;
using ranks::failed;
using ranks::Memory;
using ranks::Mode;
using ranks::new_operation;

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();

// The parameters of an exchange of one element from each rank to each.
AllToAllVParam ones(int rank, int size, const std::string& domain, Mode mode = atb::infer::COMM_MULTI_PROCESS) {
  AllToAllVParam param;
  param.rank = rank, param.rankSize = size, param.commMode = mode;
  param.backend = ranks::backend();
  param.commDomain = domain + "-" + std::to_string(getpgrp());
  const auto n = static_cast<size_t>(size);
  param.sendCounts.assign(n, 1), param.recvCounts.assign(n, 1);
  for (int64_t i = 0; i < size; ++i) param.sdispls.push_back(i), param.rdispls.push_back(i);
  return param;
}

// The tensors of such an operation.
struct Tensors {
  explicit Tensors(int size) : in(static_cast<size_t>(size) * 4), out(static_cast<size_t>(size) * 4) {
    pack.inTensors = {ranks::tensor(desc({size}), in.get())};
    pack.outTensors = {ranks::tensor(desc({1, size}), out.get())};
  }
  Memory in, out;
  atb::VariantPack pack;
};

// A mistake, and its error.
template <class Changed>
struct Mistake {
  atb::ErrorType status;
  std::string words;
  std::function<void(Changed&)> make;
};

// Makes the mistakes from each on, the last first, so that the earlier of two changes of a field stays. The error has
// to name the first of them.
template <class Changed, class Call>
void require_order(const std::vector<Mistake<Changed>>& mistakes, const Changed& good, Call call) {
  for (size_t first = 0; first < mistakes.size(); ++first) {
    const check::Note note("first mistake", first);
    Changed changed = good;
    for (size_t i = mistakes.size(); i-- > first;) mistakes[i].make(changed);
    CHECK(failed(call(changed), mistakes[first].status, mistakes[first].words));
  }
}

}  // namespace

TEST("InferShape names the first mistake in ATB's order") {
  struct Question {
    AllToAllVParam param;
    atb::SVector<atb::TensorDesc> in;
  };
  const Question good{ones(0, 2, "order"), {desc({2})}};
  const auto param = atb::ERROR_INVALID_PARAM;
  require_order<Question>(
      {
          {atb::ERROR_INVALID_IN_TENSOR_NUM, "2 tensors instead of 1", [](auto& q) { q.in.push_back(q.in[0]); }},
          {atb::ERROR_INVALID_TENSOR_DIM, "dimNum [9]", [](auto& q) { q.in[0].shape.dimNum = 9; }},
          {atb::ERROR_INVALID_TENSOR_SIZE, "no valid number", [](auto& q) { q.in[0].shape.dims[0] = -1; }},
          {atb::ERROR_INVALID_TENSOR_INI_MATCH, "dtype bool", [](auto& q) { q.in[0].dtype = ACL_BOOL; }},
          {atb::ERROR_INVALID_TENSOR_INI_MATCH, "format 0", [](auto& q) { q.in[0].format = ACL_FORMAT_NCHW; }},
          {param, "sum(sendCounts) overflows", [](auto& q) { q.param.sendCounts = {kMax, 1}; }},
          {param, "sendCounts + sdispls is out", [](auto& q) { q.param.sdispls = {9, 9}; }},
          {param, "sum(recvCounts) overflows", [](auto& q) { q.param.recvCounts = {kMax, 1}; }},
          {param, "sum(recvCounts) should more", [](auto& q) { q.param.recvCounts = {0, 0}; }},
          {param, "recvCounts + rdispls is out", [](auto& q) { q.param.rdispls = {3, 3}; }},
          {param, "overlap", [](auto& q) { q.param.recvCounts = {1, 2}, q.param.rdispls = {1, 1}; }},
          {param, "sends itself", [](auto& q) { q.param.sendCounts = {0, 1}, q.param.sdispls = {0, 0}; }},
      },
      good, [](const Question& q) {
        atb::SVector<atb::TensorDesc> out;
        return new_operation(q.param)->InferShape(q.in, out);
      });
}

TEST("Setup names the first mistake in ATB's order") {
  struct Question {
    atb::VariantPack pack;
    atb::Context* context;
  };
  const auto context = ranks::new_context();
  const auto operation = new_operation(ones(0, 2, "order"));
  Tensors tensors(2);
  const auto number = atb::ERROR_INVALID_IN_TENSOR_NUM;
  const auto table = atb::ERROR_INVALID_TENSOR_INI_MATCH;
  require_order<Question>(
      {
          {atb::ERROR_INVALID_PARAM, "context is null", [](auto& q) { q.context = nullptr; }},
          {number, "inTensors: 2 tensors", [](auto& q) { q.pack.inTensors.push_back(q.pack.inTensors[0]); }},
          {number, "outTensors: 2 tensors", [](auto& q) { q.pack.outTensors.push_back(q.pack.outTensors[0]); }},
          {atb::ERROR_INVALID_TENSOR_DIM, "inTensor[0]: dimNum",
           [](auto& q) { q.pack.inTensors[0].desc.shape.dimNum = 0; }},
          {atb::ERROR_INVALID_TENSOR_SIZE, "outTensor[0]: shape",
           [](auto& q) { q.pack.outTensors[0].desc.shape.dims[1] = 0; }},
          {table, "inTensor[0]: dtype", [](auto& q) { q.pack.inTensors[0].desc.dtype = ACL_UINT8; }},
          {table, "outTensor[0]: dtype", [](auto& q) { q.pack.outTensors[0].desc.dtype = ACL_INT32; }},
          {atb::ERROR_INVALID_PARAM, "is out of bounds", [](auto& q) { q.pack.inTensors[0].desc.shape.dims[0] = 1; }},
          {atb::ERROR_INVALID_TENSOR_DIM, "should be [1, 2]",
           [](auto& q) { q.pack.outTensors[0].desc.shape.dims[1] = 3; }},
      },
      {tensors.pack, context.get()}, [&](const Question& q) {
        uint64_t workspace = 0;
        return operation->Setup(q.pack, workspace, q.context);
      });
}

TEST("Execute names the first mistake in ATB's order") {
  struct Question {
    atb::Operation* operation;
    atb::VariantPack pack;
    atb::Context* context;
    uint64_t workspace;
  };
  const auto context = ranks::new_context(), other = ranks::new_context();
  const auto operation = new_operation(ones(0, 1, "order alone")), fresh = new_operation(ones(0, 1, "order alone"));
  Tensors tensors(1);
  uint64_t workspace = 0;
  CHECK(failed(operation->Setup(tensors.pack, workspace, context.get()), atb::NO_ERROR, ""));
  const auto status = atb::ERROR_INVALID_PARAM;
  require_order<Question>(
      {
          {status, "setup failed, execute exit", [&](auto& q) { q.operation = fresh.get(); }},
          {status, "context is null", [](auto& q) { q.context = nullptr; }},
          {status, "not the one of Setup", [&](auto& q) { q.context = other.get(); }},
          {status, "workspace is null", [](auto& q) { q.workspace = 1; }},
          {status, "inTensors: 2", [](auto& q) { q.pack.inTensors.push_back(q.pack.inTensors[0]); }},
          {status, "outTensors: 2", [](auto& q) { q.pack.outTensors.push_back(q.pack.outTensors[0]); }},
          {status, "inTensor[0]: dataSize", [](auto& q) { q.pack.inTensors[0].dataSize = 5; }},
          {status, "outTensor[0]: dataSize", [](auto& q) { q.pack.outTensors[0].dataSize = 5; }},
          {status, "inTensor[0]: deviceData", [](auto& q) { q.pack.inTensors[0].deviceData = nullptr; }},
          {status, "outTensor[0]: deviceData", [](auto& q) { q.pack.outTensors[0].deviceData = nullptr; }},
          {status, "share memory", [](auto& q) { q.pack.outTensors = q.pack.inTensors; }},
      },
      {operation.get(), tensors.pack, context.get(), workspace},
      [](const Question& q) { return q.operation->Execute(q.pack, nullptr, q.workspace, q.context); });
  CHECK(failed(operation->Execute(tensors.pack, nullptr, workspace, context.get()), atb::NO_ERROR, ""));
}

TEST("updated parameters need another Setup") {
  AllToAllVV2Param param;
  param.rank = 0, param.rankSize = 1, param.backend = ranks::backend();
  const auto operation = new_operation(param);
  const auto context = ranks::new_context();
  Memory in(8), out(8);
  std::vector<int64_t> count{2}, displ{0};
  atb::VariantPack pack;
  pack.inTensors = {ranks::tensor(desc({2}), in.get())};
  for (auto* list : {&count, &displ, &count, &displ}) {
    pack.inTensors.push_back(ranks::tensor(desc({1}, ACL_INT64), nullptr));
    pack.inTensors[pack.inTensors.size() - 1].hostData = list->data();
  }
  pack.inTensors.push_back(ranks::tensor(desc({2}, ACL_INT8), nullptr));
  pack.outTensors = {ranks::tensor(desc({1, 2}), out.get())};
  uint64_t workspace = 0;
  const auto execute = [&] { return operation->Execute(pack, nullptr, 0, context.get()); };
  CHECK(failed(operation->Setup(pack, workspace, context.get()), atb::NO_ERROR, ""));
  CHECK(failed(execute(), atb::NO_ERROR, ""));
  param.commDomain = "another";
  CHECK(failed(atb::UpdateOperationParam(operation.get(), param), atb::NO_ERROR, ""));
  CHECK(failed(execute(), atb::ERROR_INVALID_PARAM, "Setup has not run"));
  CHECK(failed(operation->Setup(pack, workspace, context.get()), atb::NO_ERROR, ""));
  CHECK(failed(execute(), atb::NO_ERROR, ""));
  AllToAllVV2Param copy;
  CHECK(failed(atb::CloneOperationParam(operation.get(), copy), atb::NO_ERROR, ""));
  CHECK(copy == param);
}

TEST("several executions in flight, and a refusal instead of one") {
  ranks::everywhere(3, [](int rank, Mode mode) {
    const auto operation = new_operation(ones(rank, 3, "flight", mode));
    const auto context = ranks::new_context();
    std::array<Tensors, 3> tensors{Tensors(3), Tensors(3), Tensors(3)};
    uint64_t workspace = 0;
    CHECK(failed(operation->Setup(tensors[0].pack, workspace, context.get()), atb::NO_ERROR, ""));
    std::vector<std::shared_ptr<a2a::Work>> works(tensors.size());
    for (size_t i = 0; i < tensors.size(); ++i) {
      tensors[i].in.upload(std::vector<std::byte>(12, std::byte(10 * i + static_cast<size_t>(rank))));
      const auto& pack = tensors[i].pack;
      CHECK(failed(atb::StartExecute(operation.get(), pack, nullptr, 0, context.get(), works[i]), atb::NO_ERROR, ""));
    }
    for (size_t i = tensors.size(); i-- > 0;) {
      works[i]->wait();
      for (size_t k = 0; k < 12; ++k) CHECK_EQ(tensors[i].out.download()[k], std::byte(10 * i + k / 4));
    }
    if (rank == 2) {
      CHECK(failed(atb::RefuseExecute(operation.get(), "out of ideas"), atb::NO_ERROR, ""));
    } else {
      CHECK(failed(operation->Execute(tensors[0].pack, nullptr, 0, context.get()), atb::ERROR_HCCL_FAIL,
                   "rank 2 does not take part, its arguments were refused there: out of ideas"));
      CHECK(atb::LastFailure().code == a2a::Code::mismatch);
    }
    CHECK(failed(operation->Execute(tensors[1].pack, nullptr, 0, context.get()), atb::NO_ERROR, ""));
  });
  CHECK(failed(atb::RefuseExecute(nullptr, "x"), atb::ERROR_INVALID_PARAM, "RefuseExecute: the operation is null"));
}

TEST("a refusal reaches the communicator that replaced a broken one") {
  ranks::everywhere(2, [](int rank, Mode mode) {
    const auto param = ones(rank, 2, "replaced", mode);
    const auto operation = new_operation(param), other = new_operation(param);
    const auto hasty = ranks::new_context(0.2), patient = ranks::new_context(20);
    Tensors tensors(2);
    uint64_t workspace = 0;
    const auto setup = [&](const ranks::Operation& of, const atb::VariantPack& pack, const ranks::Context& on) {
      return of->Setup(pack, workspace, on.get());
    };
    const auto execute = [&](const ranks::Operation& of, const ranks::Context& on) {
      return of->Execute(tensors.pack, nullptr, 0, on.get());
    };
    CHECK(failed(setup(operation, tensors.pack, patient), atb::NO_ERROR, ""));
    if (rank == 0) {
      CHECK(failed(setup(operation, tensors.pack, hasty), atb::NO_ERROR, ""));
      CHECK(failed(execute(operation, hasty), atb::ERROR_HCCL_FAIL, "timeout on rank"));
    } else {
      std::this_thread::sleep_for(std::chrono::milliseconds(500));
      CHECK(failed(execute(operation, patient), atb::ERROR_HCCL_FAIL, "timeout on rank"));
    }
    CHECK(failed(setup(other, tensors.pack, patient), atb::NO_ERROR, ""));  // another communicator
    if (rank == 1) {
      auto pack = tensors.pack;
      pack.outTensors.clear();
      CHECK(failed(setup(operation, pack, patient), atb::ERROR_INVALID_IN_TENSOR_NUM, "outTensors: 0"));
      CHECK(failed(execute(operation, patient), atb::ERROR_INVALID_PARAM, "setup failed"));
    } else {
      CHECK(failed(setup(operation, tensors.pack, patient), atb::NO_ERROR, ""));
      CHECK(failed(execute(operation, patient), atb::ERROR_HCCL_FAIL, "outTensors: 0"));
    }
    CHECK(failed(execute(other, patient), atb::NO_ERROR, ""));
  });
}

TEST("a program may bring the communicator of a group") {
  const auto bootstraps = a2a::thread_bootstraps(2);
  check::threads(2, [&](int rank) {
    const auto operation = new_operation(ones(rank, 2, "brought", atb::infer::COMM_MULTI_THREAD));
    const auto context = ranks::new_context();
    const auto needed = [&] {
      atb::Meeting meeting;
      CHECK(failed(atb::GetMeeting(operation.get(), meeting), atb::NO_ERROR, ""));
      CHECK(meeting.rank == rank && meeting.size == 2 && !meeting.job.empty());
      return meeting.needed;
    };
    CHECK(needed());
    const auto refused = [&](std::shared_ptr<a2a::Communicator> other) {
      return failed(atb::SetCommunicator(operation.get(), std::move(other)), atb::ERROR_INVALID_PARAM,
                    "the communicator is not that of rank");
    };
    CHECK(refused(nullptr));
    CHECK(refused(a2a::Communicator::create(0, 1, *a2a::thread_bootstraps(1)[0], {})));
    const auto ours = a2a::Communicator::create(rank, 2, *bootstraps[static_cast<size_t>(rank)], {});
    CHECK(failed(atb::SetCommunicator(operation.get(), ours), atb::NO_ERROR, ""));
    CHECK(!needed());
    Tensors tensors(2);
    uint64_t workspace = 0;
    CHECK(failed(operation->Setup(tensors.pack, workspace, context.get()), atb::NO_ERROR, ""));
    CHECK(failed(operation->Execute(tensors.pack, nullptr, 0, context.get()), atb::NO_ERROR, ""));
    CHECK_EQ(ours->last_number(), 1u);
    ours->close();
    CHECK(needed());
    CHECK(failed(operation->Execute(tensors.pack, nullptr, 0, context.get()), atb::ERROR_HCCL_FAIL, "closed"));
  });
}

TEST("two threads of a rank meet its group once") {
  check::threads(4, [](int thread) {
    const int rank = thread % 2;
    const auto operation = new_operation(ones(rank, 2, "once", atb::infer::COMM_MULTI_THREAD));
    const auto context = ranks::new_context();
    Tensors tensors(2);
    uint64_t workspace = 0;
    CHECK(failed(operation->Setup(tensors.pack, workspace, context.get()), atb::NO_ERROR, ""));
    CHECK(failed(operation->Execute(tensors.pack, nullptr, 0, context.get()), atb::NO_ERROR, ""));
  });
}
