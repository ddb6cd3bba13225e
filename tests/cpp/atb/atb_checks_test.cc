// The constraints of AllToAllV, both sides of each boundary. Nothing here is sent.
#include <fcntl.h>

#include <cstdio>
#include <fstream>
#include <limits>

#include "atb_ranks.h"

namespace {

using atb::infer::AllToAllVParam;
using atb::infer::AllToAllVV2Param;
using ranks::desc;
using ranks::failed;
using ranks::new_operation;

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();

// Rank 1 of 2: takes 2 of 4 elements from each rank.
AllToAllVParam good() {
  AllToAllVParam param;
  param.rank = 1, param.rankSize = 2;
  param.sendCounts = {1, 2}, param.sdispls = {0, 2};
  param.recvCounts = {3, 2}, param.rdispls = {2, 0};
  param.backend = "shm";
  return param;
}

template <class Change>
AllToAllVParam with(Change&& change) {
  AllToAllVParam param = good();
  change(param);
  return param;
}

atb::Status create(const AllToAllVParam& param) {
  atb::Operation* made = nullptr;
  const auto status = atb::CreateOperation(param, &made);
  CHECK_EQ(made != nullptr, status == atb::NO_ERROR);
  if (made != nullptr) atb::DestroyOperation(made);
  return status;
}

atb::Status infer(const AllToAllVParam& param, const atb::TensorDesc& x = desc({2, 2})) {
  const auto operation = new_operation(param);
  atb::SVector<atb::TensorDesc> out;
  return operation == nullptr ? -1 : operation->InferShape({x}, out);
}

// A file with a rank table of n ranks on one server.
struct TableFile {
  explicit TableFile(int ranks, int servers = 1) {
    std::ofstream out(path);
    out << R"({"status": "completed", "version": "1.0", "server_count": ")" << servers << R"(", "server_list": [)";
    for (int s = 0, rank = 0; s < servers; ++s) {
      out << (s ? "," : "") << R"({"server_id": "s)" << s << R"(", "device": [)";
      for (int d = 0; d < ranks / servers; ++d, ++rank) {
        out << (d ? "," : "") << R"({"device_id": ")" << d << R"(", "device_ip": "10.0.0.1", "rank_id": ")" << rank
            << "\"}";
      }
      out << "]}";
    }
    out << "]}";
  }
  ~TableFile() { std::remove(path.c_str()); }
  const std::string path = "atb_checks_test-" + std::to_string(getpid()) + ".json";
};

const auto kParam = atb::ERROR_INVALID_PARAM;

}  // namespace

TEST("the struct is the document's: order, types and defaults") {
  const AllToAllVParam p{};
  CHECK(p.rank == 0 && p.rankSize == 0 && p.rankRoot == 0 && p.hcclComm == nullptr);
  CHECK(p.sendCounts.empty() && p.sdispls.empty() && p.recvCounts.empty() && p.rdispls.empty());
  CHECK(p.backend == "hccl" && p.commMode == atb::infer::COMM_MULTI_PROCESS);
  CHECK(p.rankTableFile.empty() && p.commDomain.empty() && std::ranges::count(p.rsv, 0) == 64);
  const std::vector<int64_t> a{1}, b{2}, c{3}, d{4};
  const AllToAllVParam q{0, 1, 0, a, b, c, d, "shm", nullptr, atb::infer::COMM_MULTI_THREAD, "table", "domain", {0}};
  CHECK(q.sendCounts == a && q.sdispls == b && q.recvCounts == c && q.rdispls == d && q.commDomain == "domain");
  CHECK_EQ(AllToAllVV2Param{}.rank, -1);
  CHECK(AllToAllVV2Param{} == AllToAllVV2Param{});
  CHECK_EQ(static_cast<int>(atb::ERROR_COPY_HOST_MEMORY_FAIL), 29);
  CHECK_EQ(static_cast<int>(atb::ERROR_INVALID_TENSOR_INI_MATCH), 13);
  CHECK_EQ(static_cast<int>(atb::ERROR_COMM_EMPTY), 28);
}

TEST("good parameters") {
  CHECK(failed(create(good()), atb::NO_ERROR, ""));
  const auto operation = new_operation(good());
  CHECK_EQ(operation->GetName(), "AllToAllVOperation");
  CHECK_EQ(operation->GetInputNum(), 1u);
  CHECK_EQ(operation->GetOutputNum(), 1u);
  atb::SVector<atb::TensorDesc> out;
  CHECK(failed(operation->InferShape({desc({2, 1, 2}, ACL_BF16)}, out), atb::NO_ERROR, ""));
  if (!CHECK_EQ(out.size(), 1u)) return;
  CHECK(out[0].dtype == ACL_BF16 && out[0].format == ACL_FORMAT_ND && out[0].shape.dimNum == 2);
  CHECK(out[0].shape.dims[0] == 1 && out[0].shape.dims[1] == 5);
}

TEST("null pointers") {
  CHECK(failed(atb::CreateOperation(good(), nullptr), kParam, "operation is null"));
  CHECK(failed(atb::CreateContext(nullptr), kParam, "context is null"));
  CHECK(failed(atb::DestroyOperation(nullptr), kParam, "operation is null"));
  CHECK(failed(atb::DestroyContext(nullptr), kParam, "context is null"));
}

TEST("rsv, backend, commMode, commDomain") {
  for (size_t i = 0; i < 64; ++i) {
    for (const int value : {1, 128, 255}) {
      const std::string said = "param rsv has a non-zero value, please check the compilation version: rsv[" +
                               std::to_string(i) + "] is " + std::to_string(value);
      CHECK(failed(create(with([&](auto& p) { p.rsv[i] = static_cast<uint8_t>(value); })), kParam, said));
    }
  }
  for (const char* name : {"hccl", "shm", "nccl", "mpi", "auto"}) {
    CHECK(failed(create(with([&](auto& p) { p.backend = name; })), atb::NO_ERROR, ""));
  }
  for (const char* name : {"lccl", "", "HCCL", "shm "}) {
    CHECK(failed(create(with([&](auto& p) { p.backend = name; })), kParam,
                 std::string("backend is \"") + name + "\", must be hccl, shm, nccl, mpi or auto"));
  }
  for (const int mode : {-1, 0, 1, 2}) {
    const bool legal = mode == 0 || mode == 1;
    CHECK(failed(create(with([&](auto& p) { p.commMode = static_cast<atb::infer::CommMode>(mode); })),
                 legal ? atb::NO_ERROR : kParam, "commMode: " + std::to_string(mode) + " is invalid"));
  }
  CHECK(failed(create(with([](auto& p) { p.commDomain.assign(128, 'x'); })), atb::NO_ERROR, ""));
  CHECK(failed(create(with([](auto& p) { p.commDomain.assign(129, 'x'); })), kParam,
               "len(commDomain) is illegal: 129 bytes, should be less than or equal to 128"));
  CHECK(failed(create(with([](auto& p) { p.commDomain = "0:200"; })), atb::NO_ERROR, ""));
  CHECK(
      failed(create(with([](auto& p) { p.commDomain = "0:199"; })), kParam, "commDomain is 0:199: its size of 199 MB"));
  CHECK(failed(create(with([](auto& p) { p.commDomain = "0:4294967295"; })), atb::NO_ERROR, ""));
  CHECK(failed(create(with([](auto& p) { p.commDomain = "0:4294967296"; })), kParam,
               "its size of 4294967296 MB must be between 200 and 4294967295"));
  CHECK(failed(create(with([](auto& p) { p.commDomain = "a:1"; })), atb::NO_ERROR, ""));
}

TEST("rank, rankSize, rankRoot") {
  for (const int size : {0, -1}) {
    CHECK(failed(create(with([&](auto& p) { p.rankSize = size; })), kParam,
                 "rankSize [" + std::to_string(size) + "] is invalid"));
  }
  for (const auto& [rank, status] : {std::pair{-1, 1}, {0, 0}, {1, 0}, {2, 1}}) {
    const auto wanted = static_cast<atb::ErrorType>(status);
    const std::string value =
        std::string("[") + std::to_string(rank) + "] should be >= 0 and smaller than rankSize [2]";
    CHECK(failed(create(with([&](auto& p) { p.rank = rank; })), wanted, "rank " + value));
    CHECK(failed(create(with([&](auto& p) { p.rankRoot = rank; })), wanted, "rankRoot " + value));
  }
  // A communicator of the caller does not switch them off here.
  int foreign = 0;
  const auto given = [&](auto& p) { p.backend = "hccl", p.hcclComm = &foreign; };
  CHECK(failed(create(with(given)), atb::NO_ERROR, ""));
  CHECK(failed(create(with([&](auto& p) { given(p), p.rank = 2; })), kParam, "rank [2]"));
  CHECK(failed(create(with([&](auto& p) { given(p), p.backend = "shm"; })), kParam,
               "hcclComm is set, but backend is shm"));
}

TEST("lengths equal rankSize, values are not negative") {
  using Member = std::vector<int64_t> AllToAllVParam::*;
  for (const auto& [name, member] :
       std::initializer_list<std::pair<std::string, Member>>{{"sendCounts", &AllToAllVParam::sendCounts},
                                                             {"sdispls", &AllToAllVParam::sdispls},
                                                             {"recvCounts", &AllToAllVParam::recvCounts},
                                                             {"rdispls", &AllToAllVParam::rdispls}}) {
    CHECK(failed(create(with([&](auto& p) { (p.*member).push_back(0); })), kParam,
                 name + " size should be equal to ranksize: it has 3 entries, rankSize is 2"));
    CHECK(failed(create(with([&](auto& p) { (p.*member).pop_back(); })), kParam, name + " size should be equal"));
    CHECK(failed(create(with([&](auto& p) { (p.*member)[1] = -1; })), kParam, name + "[1] = -1 is negative"));
    CHECK(failed(create(with([&](auto& p) { (p.*member)[1] = 0; })), atb::NO_ERROR, ""));
  }
}

TEST("the first mistake in ATB's order is the one that is named") {
  std::vector<std::pair<std::string, std::function<void(AllToAllVParam&)>>> mistakes{
      {"rsv", [](auto& p) { p.rsv[0] = 1; }},
      {"backend", [](auto& p) { p.backend.assign(1, 'x'); }},
      {"commMode", [](auto& p) { p.commMode = atb::infer::COMM_UNDEFINED; }},
      {"commDomain", [](auto& p) { p.commDomain.assign(200, 'x'); }},
      {"rankSize [", [](auto& p) { p.rankSize = 0; }},
      {"rank [", [](auto& p) { p.rank = -1; }},
      {"rankRoot [", [](auto& p) { p.rankRoot = 9; }},
      {"sendCounts size", [](auto& p) { p.sendCounts.clear(); }},
      {"recvCounts[0] = -5 is negative", [](auto& p) { p.recvCounts[0] = -5; }},
      {"commDomain is", [](auto& p) { p.commDomain.assign("0:1"); }},
  };
  for (size_t first = 0; first < mistakes.size(); ++first) {
    AllToAllVParam param = good();
    // From the last to the first, so that the earlier of two changes of a field stays.
    for (size_t i = mistakes.size(); i-- > first;) mistakes[i].second(param);
    CHECK(failed(create(param), kParam, mistakes[first].first));
  }
}

TEST("what is sent lies in the input") {
  CHECK(failed(infer(good()), atb::NO_ERROR, ""));
  CHECK(failed(infer(good(), desc({4})), atb::NO_ERROR, ""));
  CHECK(
      failed(infer(good(), desc({3})), kParam,
             "sendCounts + sdispls is out of bounds: sendCounts[1] = 2 + sdispls[1] = 2 is more than the 3 elements"));
  const auto empty_at = [](int64_t displ) { return with([&](auto& p) { p.sendCounts[0] = 0, p.sdispls[0] = displ; }); };
  CHECK(failed(infer(empty_at(4)), atb::NO_ERROR, ""));
  CHECK(failed(infer(empty_at(5)), kParam, "sendCounts[0] = 0 + sdispls[0] = 5 is more than the 4 elements"));
  CHECK(failed(infer(empty_at(kMax)), kParam, "is out of bounds"));
  CHECK(failed(infer(with([](auto& p) { p.sendCounts[0] = 1, p.sdispls[0] = kMax; })), kParam, "is out of bounds"));
  // Ranges of the input may overlap.
  CHECK(failed(infer(with([](auto& p) { p.sendCounts[0] = 4; })), atb::NO_ERROR, ""));
}

TEST("sums do not overflow") {
  CHECK(failed(infer(with([](auto& p) { p.sendCounts = {kMax - 2, 2}; })), kParam, "sendCounts + sdispls is out"));
  CHECK(failed(infer(with([](auto& p) { p.sendCounts = {kMax - 1, 2}; })), kParam,
               "sum(sendCounts) overflows int64: 9223372036854775806 + sendCounts[1] = 2"));
  CHECK(failed(infer(with([](auto& p) { p.recvCounts = {kMax - 2, 2}, p.rdispls = {2, 0}; })), atb::NO_ERROR, ""));
  CHECK(failed(infer(with([](auto& p) { p.recvCounts = {kMax - 1, 2}; })), kParam,
               "sum(recvCounts) overflows int64: 9223372036854775806 + recvCounts[1] = 2"));
}

TEST("something is received") {
  const auto param = with([](auto& p) { p.sendCounts = p.recvCounts = p.sdispls = p.rdispls = {0, 0}; });
  CHECK(failed(create(param), atb::NO_ERROR, ""));
  CHECK(failed(infer(param), kParam, "sum(recvCounts) should more than 0, it is 0"));
  CHECK(failed(infer(with([](auto& p) { p.sendCounts = {0, 0}, p.recvCounts = {1, 0}, p.rdispls = {0, 0}; })),
               atb::NO_ERROR, ""));
}

TEST("what is received lies in the output, and does not overlap") {
  CHECK(
      failed(infer(with([](auto& p) { p.rdispls = {3, 0}; })), kParam,
             "recvCounts + rdispls is out of bounds: recvCounts[0] = 3 + rdispls[0] = 3 is more than the 5 elements"));
  CHECK(failed(infer(with([](auto& p) { p.rdispls = {kMax, 0}; })), kParam, "recvCounts + rdispls is out of bounds"));
  CHECK(failed(infer(with([](auto& p) { p.rdispls = {0, 3}; })), atb::NO_ERROR, ""));
  CHECK(failed(infer(with([](auto& p) { p.rdispls = {0, 2}; })), kParam,
               "the receive ranges of ranks 0 and 1 overlap: recvCounts[0] = 3 at rdispls[0] = 0, recvCounts[1] = 2 at "
               "rdispls[1] = 2"));
  // An empty range overlaps nothing, wherever it is, but it has to be inside.
  const auto empty_at = [](int64_t displ) {
    return with([&](auto& p) { p.recvCounts = {0, 2}, p.rdispls = {displ, 0}; });
  };
  CHECK(failed(infer(empty_at(1)), atb::NO_ERROR, ""));
  CHECK(failed(infer(empty_at(2)), atb::NO_ERROR, ""));
  CHECK(failed(infer(empty_at(3)), kParam, "recvCounts[0] = 0 + rdispls[0] = 3 is more than the 2 elements"));
}

TEST("a rank expects from itself what it sends to itself") {
  CHECK(failed(infer(with([](auto& p) { p.sendCounts[1] = 1; })), kParam,
               "rank 1 sends itself sendCounts[1] = 1 but expects recvCounts[1] = 2"));
}

TEST("the input: number, dimensions, size, dtype, format") {
  const auto operation = new_operation(good());
  atb::SVector<atb::TensorDesc> out;
  CHECK(failed(operation->InferShape({}, out), atb::ERROR_INVALID_IN_TENSOR_NUM, "inTensors: 0 tensors instead of 1"));
  CHECK(failed(operation->InferShape({desc({4}), desc({4})}, out), atb::ERROR_INVALID_IN_TENSOR_NUM, "2 tensors"));
  const auto infer_desc = [](const atb::TensorDesc& x) { return infer(good(), x); };
  const auto dimension = atb::ERROR_INVALID_TENSOR_DIM, size = atb::ERROR_INVALID_TENSOR_SIZE;
  CHECK(failed(infer_desc(desc({})), dimension, "inTensor[0]: dimNum [0] should be between 1 and 8"));
  CHECK(failed(infer_desc(desc({1, 1, 1, 1, 1, 1, 1, 4})), atb::NO_ERROR, ""));
  CHECK(failed(infer_desc(desc({1, 1, 1, 1, 1, 1, 1, 1, 4})), dimension, "dimNum [9]"));
  CHECK(failed(infer_desc(desc({4, 0})), size, "inTensor[0]: shape [4, 0] of dtype float (0) has 0 bytes"));
  CHECK(failed(infer_desc(desc({4, -1})), size, "shape [4, -1] of dtype float (0) has no valid number of bytes"));
  CHECK(failed(infer_desc(desc({kMax, 8})), size, "no valid number of bytes"));
  const int64_t most = (int64_t{256} << 30) / 4;
  CHECK(failed(infer_desc(desc({most})), atb::NO_ERROR, ""));
  CHECK(failed(infer_desc(desc({most + 1})), size, "has 274877906948 bytes; 1 to 274877906944 (256 GiB)"));
  for (const auto dtype : {ACL_FLOAT16, ACL_FLOAT, ACL_INT8, ACL_INT32, ACL_INT16, ACL_INT64, ACL_BF16}) {
    CHECK(failed(infer_desc(desc({4}, dtype)), atb::NO_ERROR, ""));
  }
  const auto table = atb::ERROR_INVALID_TENSOR_INI_MATCH;
  for (const auto dtype : {ACL_BOOL, ACL_UINT8, ACL_UINT16, ACL_UINT32, ACL_UINT64, ACL_DOUBLE, ACL_COMPLEX64}) {
    CHECK(failed(infer_desc(desc({4}, dtype)), table, "is not one of float16, float, int8, int32, int16, int64, bf16"));
  }
  CHECK(failed(infer_desc(desc({4}, ACL_DT_UNDEFINED)), size, "dtype aclDataType (-1) has 0 bytes"));
  for (const auto format : {ACL_FORMAT_UNDEFINED, ACL_FORMAT_NCHW, ACL_FORMAT_NHWC}) {
    CHECK(failed(infer_desc(desc({4}, ACL_FLOAT, format)), table,
                 "inTensor[0]: format " + std::to_string(format) + " is not ACL_FORMAT_ND (2)"));
  }
}

TEST("rank tables set rank and size, and have to agree with them") {
  const TableFile file(2);
  const auto from_table = [&](auto& p) { p.rankTableFile = file.path; };
  CHECK(failed(create(with(from_table)), atb::NO_ERROR, ""));
  CHECK(failed(create(with([&](auto& p) { from_table(p), p.rankSize = 0; })), atb::NO_ERROR, ""));
  CHECK(failed(create(with([&](auto& p) { from_table(p), p.rankSize = 0, p.sendCounts = {1, 2, 3}; })), kParam,
               "sendCounts size should be equal to ranksize: it has 3 entries, rankSize is 2"));
  CHECK(failed(create(with([&](auto& p) { from_table(p), p.rank = 2; })), kParam, "rank [2] should be"));
  CHECK(failed(create(with([&](auto& p) { from_table(p), p.rankRoot = 2; })), kParam, "rankRoot [2] should be"));
  const TableFile* const bigger = new TableFile(4);
  CHECK(failed(create(with(from_table)), kParam, "rankSize [2], but the rank table "));
  std::ofstream(bigger->path) << "{\"status\": 1}";
  CHECK(failed(create(with(from_table)), kParam, "json: $.status: is a number, not a string"));
  delete bigger;
  CHECK(failed(create(with(from_table)), kParam, "rankTableFile path: " + file.path + " does not exist."));
  const auto cut = [&](auto& p) { p.rankTableFile = "/" + std::string(1, '\0') + "x"; };
  CHECK(failed(create(with(cut)), kParam, "rankTableFile path: \"/\\x00x\" holds a NUL"));
}

TEST("RANK_ID is this rank where the parameters leave it to the table") {
  const TableFile file(2);
  const auto meeting_rank = [&](int rank, const char* variable) {
    if (variable != nullptr) setenv("RANK_ID", variable, 1);
    atb::Meeting meeting;
    const auto operation = new_operation(with([&](auto& p) {
      p.rankTableFile = file.path, p.rankSize = 0, p.rank = rank;
      p.sendCounts = p.recvCounts = {1, 1};
    }));
    CHECK(failed(atb::GetMeeting(operation.get(), meeting), atb::NO_ERROR, ""));
    unsetenv("RANK_ID");
    CHECK_EQ(meeting.size, 2);
    return meeting.rank;
  };
  CHECK_EQ(meeting_rank(0, "1"), 1);
  CHECK_EQ(meeting_rank(0, nullptr), 0);
  CHECK_EQ(meeting_rank(1, "0"), 1);
  CHECK_EQ(meeting_rank(-1, "1"), 1);
  CHECK_EQ(meeting_rank(-1, nullptr), 0);
  const auto negative = [&](auto& p) { p.rankTableFile = file.path, p.rankSize = 0, p.rank = -2; };
  CHECK(failed(create(with(negative)), kParam, "rank [-2] should be"));
  setenv("RANK_ID", "one", 1);
  const auto unset = [&](auto& p) { p.rankTableFile = file.path, p.rankSize = 0, p.rank = 0; };
  CHECK(failed(create(with(unset)), kParam, "RANK_ID=one in the environment is not an integer"));
  unsetenv("RANK_ID");
}

TEST("backends that this build cannot serve say so in Setup, and at once") {
  const auto context = ranks::new_context();
  ranks::Memory in(16), out(20);
  atb::VariantPack pack;
  pack.inTensors = {ranks::tensor(desc({4}), in.get())};
  pack.outTensors = {ranks::tensor(desc({1, 5}), out.get())};
  uint64_t workspace = 0;
  const auto setup = [&](const AllToAllVParam& param) {
    return new_operation(param)->Setup(pack, workspace, context.get());
  };
  const auto refused = [&](const AllToAllVParam& param, const std::string& words) {
    CHECK(failed(setup(param), atb::ERROR_COMM_EMPTY, words));
    CHECK(atb::LastFailure().code == a2a::Code::unsupported);
  };
  // Independent of the libraries of this machine.
  const std::vector<const char*> variables = {"A2A_HCCL_LIBRARY", "A2A_NCCL_LIBRARY", "A2A_MPI_LIBRARY"};
  for (const char* variable : variables) setenv(variable, "/nowhere/lib.so", 1);
  refused(with([](auto& p) { p.backend = "hccl"; }), "backend hccl: cannot find HCCL");
  refused(with([](auto& p) { p.backend = "nccl"; }), "backend nccl: cannot find NCCL");
  refused(with([](auto& p) { p.backend = "mpi"; }), "backend mpi: cannot find MPI");
  refused(with([&](auto& p) { p.backend = "auto", p.hcclComm = &workspace; }), "backend auto: cannot find HCCL");
  for (const char* variable : variables) unsetenv(variable);
  const TableFile file(2, 2);
  refused(with([&](auto& p) { p.rankTableFile = file.path; }), "places the ranks on 2 servers");
}

TEST("tensors at Setup") {
  const auto context = ranks::new_context();
  ranks::Memory in(16), out(64);
  atb::VariantPack pack;
  pack.inTensors = {ranks::tensor(desc({4}), in.get())};
  pack.outTensors = {ranks::tensor(desc({1, 5}), out.get())};
  const auto operation =
      new_operation(with([](auto& p) { p.backend = "hccl"; }));  // an operation that passes all checks fails there
  uint64_t workspace = 0;
  const auto setup = [&](auto&& change) {
    auto changed = pack;
    change(changed);
    return operation->Setup(changed, workspace, context.get());
  };
  CHECK(failed(operation->Setup(pack, workspace, nullptr), kParam, "Setup: context is null"));
  CHECK(failed(setup([](auto&) {}), atb::ERROR_COMM_EMPTY, "HCCL"));
  CHECK(failed(setup([](auto& p) { p.inTensors.clear(); }), atb::ERROR_INVALID_IN_TENSOR_NUM, "inTensors: 0 tensors"));
  CHECK(failed(setup([](auto& p) { p.outTensors.resize(2); }), atb::ERROR_INVALID_IN_TENSOR_NUM,
               "outTensors: 2 tensors"));
  const auto with_output = [&](const atb::TensorDesc& to) {
    return setup([&](auto& p) { p.outTensors[0] = ranks::tensor(to, out.get()); });
  };
  const auto dimension = atb::ERROR_INVALID_TENSOR_DIM;
  CHECK(failed(with_output(desc({1, 4})), dimension, "outTensor[0]: shape [1, 4] should be [1, 5]"));
  CHECK(failed(with_output(desc({1, 6})), dimension, "shape [1, 6] should be [1, 5]"));
  CHECK(failed(with_output(desc({5})), dimension, "shape [5] should be [1, 5]"));
  CHECK(failed(with_output(desc({})), dimension, "outTensor[0]: dimNum [0]"));
  CHECK(failed(with_output(desc({1, 0})), atb::ERROR_INVALID_TENSOR_SIZE, "outTensor[0]: shape [1, 0]"));
  CHECK(failed(with_output(desc({1, 5}, ACL_INT32)), atb::ERROR_INVALID_TENSOR_INI_MATCH,
               "outTensor[0]: dtype int32 (3) is not float (0)"));
  CHECK(
      failed(setup([](auto& p) { p.inTensors[0].desc = desc({3}); }), kParam, "sendCounts + sdispls is out of bounds"));
}

TEST("SVector") {
  atb::SVector<int> list{1, 2};
  list.push_back(3);
  list.insert(0, 0);
  CHECK(list == atb::SVector<int>({0, 1, 2, 3}));
  bool thrown = false;
  try {
    list[4] = 1;
  } catch (const std::out_of_range&) {
    thrown = true;
  }
  CHECK(thrown);
  list.resize(256);
  thrown = false;
  try {
    list.push_back(1);
  } catch (const atb::MaxSizeExceeded& error) {
    thrown = std::string(error.what()).find("257 elements") != std::string::npos;
  }
  CHECK(thrown);
  CHECK_EQ(list.size(), 256u);
}

TEST("contexts") {
  const auto context = ranks::new_context();
  int stream = 0;
  CHECK_EQ(context->SetExecuteStream(&stream), atb::NO_ERROR);
  CHECK(context->GetExecuteStream() == &stream);
  CHECK(context->GetExecuteStreams() == std::vector<aclrtStream>{&stream});
  CHECK_EQ(context->SetExecuteType(atb::EXECUTE_NORMAL), atb::NO_ERROR);
  CHECK(failed(context->SetExecuteType(atb::EXECUTE_LAUNCH), kParam, "ExecuteType 2 is not supported"));
  CHECK(failed(context->SetLaunchMode(atb::GRAPH_LAUNCH_MODE), kParam, "LaunchMode 1 is not supported"));
  CHECK(failed(context->SetTimeout(-1), kParam, "negative"));
  CHECK_EQ(context->GetTimeout(), 60.0);
}

TEST("AllToAllVV2: parameters") {
  const auto create_v2 = [](auto&& change) {
    AllToAllVV2Param param;
    param.rank = 1, param.rankSize = 2, param.backend = "shm";
    change(param);
    atb::Operation* made = nullptr;
    const auto status = atb::CreateOperation(param, &made);
    if (made != nullptr) atb::DestroyOperation(made);
    return status;
  };
  CHECK(failed(create_v2([](auto&) {}), atb::NO_ERROR, ""));
  CHECK(failed(create_v2([](auto& p) { p.rank = -1; }), kParam, "multi-card, rank must be specified"));
  CHECK(failed(create_v2([](auto& p) { p.rank = -1, p.rankSize = 1; }), kParam, "rank [-1] should be"));
  for (size_t i = 0; i < 64; ++i) {
    CHECK(failed(create_v2([&](auto& p) { p.rsv[i] = 1; }), kParam, "rsv[" + std::to_string(i) + "] is 1"));
  }
  CHECK(failed(create_v2([](auto& p) { p.backend = "x"; }), kParam, "backend is \"x\", must be"));
  AllToAllVV2Param param, copy;
  param.rank = 0, param.rankSize = 1, param.backend = "auto";
  const auto operation = new_operation(param);
  CHECK_EQ(operation->GetName(), "AllToAllVV2Operation");
  CHECK_EQ(operation->GetInputNum(), 6u);
  CHECK_EQ(atb::CloneOperationParam(operation.get(), copy), atb::NO_ERROR);
  CHECK(copy == param);
  copy.rankSize = 0;
  CHECK(failed(atb::UpdateOperationParam(operation.get(), copy), kParam, "rankSize [0]"));
  CHECK(failed(atb::CloneOperationParam(new_operation(good()).get(), copy), kParam, "of another kind"));
}
