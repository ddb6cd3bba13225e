// AllToAllV between ranks: threads and processes that know each other by their parameters alone. `atb_test
// --backend=NAME` runs all tests on another backend.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <new>
#include <numeric>
#include <thread>

#include "atb_ranks.h"

namespace {

using atb::infer::AllToAllVParam;
using atb::infer::AllToAllVV2Param;
using ranks::desc;
using ranks::failed;
using ranks::Memory;
using ranks::Mode;
using ranks::new_operation;

#if defined(__SANITIZE_THREAD__)
constexpr int kRounds = 3;
#else
constexpr int kRounds = 12;
#endif

// Every test has a domain of its own, so that a test that breaks its group does not disturb the others.
AllToAllVParam param_of(int rank, int size, Mode mode, const std::string& domain) {
  AllToAllVParam param;
  param.rank = rank, param.rankSize = size, param.commMode = mode;
  param.backend = ranks::backend();
  param.commDomain = domain + "-" + std::to_string(size) + "-" + std::to_string(getpgrp());
  return param;
}

// The parameters of all ranks, and the elements of their inputs.
struct Case {
  std::vector<AllToAllVParam> params;
  std::vector<std::vector<int64_t>> shapes;
  aclDataType dtype = ACL_FLOAT;

  int64_t elems(int rank) const {
    const auto& shape = shapes[static_cast<size_t>(rank)];
    return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
  }
};

size_t size_of(aclDataType dtype) { return atb::Utils::GetTensorSize(desc({1}, dtype)); }

std::vector<std::byte> input(const Case& c, int rank) {
  check::Random random(static_cast<uint64_t>(rank) + 77);
  std::vector<std::byte> bytes(static_cast<size_t>(c.elems(rank)) * size_of(c.dtype));
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

// The oracle: out_r[rdispls_r[j] + k] = x_j[sdispls_j[r] + k], element by element. The page's own formula is this one
// where all ranks have the same parameters and rdispls is packed.
std::vector<std::byte> expected(const Case& c, int rank) {
  const auto r = static_cast<size_t>(rank);
  const AllToAllVParam& mine = c.params[r];
  const size_t unit = size_of(c.dtype);
  std::vector<std::byte> out(
      static_cast<size_t>(std::accumulate(mine.recvCounts.begin(), mine.recvCounts.end(), int64_t{0})) * unit);
  for (size_t j = 0; j < c.params.size(); ++j) {
    const auto x = input(c, static_cast<int>(j));
    for (int64_t k = 0; k < mine.recvCounts[j]; ++k) {
      const auto from = static_cast<size_t>(c.params[j].sdispls[r] + k) * unit;
      const auto to = static_cast<size_t>(mine.rdispls[j] + k) * unit;
      std::copy_n(x.begin() + static_cast<std::ptrdiff_t>(from), unit, out.begin() + static_cast<std::ptrdiff_t>(to));
    }
  }
  return out;
}

// Makes, runs and destroys one operation on one rank. Returns the output.
std::vector<std::byte> run(const Case& c, int rank, Mode mode, const std::string& domain) {
  const auto r = static_cast<size_t>(rank);
  AllToAllVParam param = c.params[r];
  const auto group = param_of(rank, static_cast<int>(c.params.size()), mode, domain);
  param.rank = group.rank, param.rankSize = group.rankSize, param.commMode = group.commMode;
  param.backend = group.backend, param.commDomain = group.commDomain;
  const auto context = ranks::new_context();
  const auto operation = new_operation(param);
  if (operation == nullptr) return {};
  const auto x = desc(c.shapes[r], c.dtype);
  atb::SVector<atb::TensorDesc> outputs;
  if (!CHECK(failed(operation->InferShape({x}, outputs), atb::NO_ERROR, ""))) return {};
  const auto bytes = input(c, rank);
  Memory in(bytes.size()), out(atb::Utils::GetTensorSize(outputs[0]));
  in.upload(bytes);
  atb::VariantPack pack;
  pack.inTensors = {ranks::tensor(x, in.get())};
  pack.outTensors = {ranks::tensor(outputs[0], out.get())};
  uint64_t workspace = 1;
  if (!CHECK(failed(operation->Setup(pack, workspace, context.get()), atb::NO_ERROR, ""))) return {};
  std::vector<uint8_t> buffer(workspace);
  CHECK(failed(operation->Execute(pack, buffer.data(), workspace, context.get()), atb::NO_ERROR, ""));
  CHECK(in.download() == bytes);
  return out.download();
}

// Different parameters on every rank: counts from a matrix, ranges of the input with gaps, in any order, sometimes
// overlapping; those of the output in any order.
Case draw(check::Random& random, int size, aclDataType dtype) {
  const auto n = static_cast<size_t>(size);
  std::vector<std::vector<int64_t>> counts(n, std::vector<int64_t>(n));
  for (auto& row : counts) {
    for (auto& count : row) count = random.chance(0.25) ? 0 : random.in(int64_t{1}, int64_t{300});
  }
  // A rank that receives nothing cannot use the operation.
  for (size_t r = 0; r < n; ++r) counts[r][r] = std::max<int64_t>(counts[r][r], 1);
  Case c;
  c.dtype = dtype;
  for (size_t r = 0; r < n; ++r) {
    AllToAllVParam param;
    param.sendCounts = counts[r], param.sdispls.resize(n), param.rdispls.resize(n);
    for (size_t j = 0; j < n; ++j) param.recvCounts.push_back(counts[j][r]);
    std::vector<size_t> order(n);
    std::iota(order.begin(), order.end(), size_t{0});
    std::shuffle(order.begin(), order.end(), random);
    int64_t next = 0, end = 0;
    for (const size_t j : order) {
      param.sdispls[j] = random.chance(0.2) ? 0 : next + random.in(int64_t{0}, int64_t{5});
      next = std::max(next, param.sdispls[j] + counts[r][j]);
    }
    std::shuffle(order.begin(), order.end(), random);
    for (const size_t j : order) {
      param.rdispls[j] = end;
      end += param.recvCounts[j];
    }
    c.params.push_back(param);
    c.shapes.push_back({1, next + random.in(int64_t{0}, int64_t{3}), 1});
  }
  return c;
}

constexpr aclDataType kDtypes[] = {ACL_FLOAT16, ACL_FLOAT, ACL_INT8, ACL_INT32, ACL_INT16, ACL_INT64, ACL_BF16};

}  // namespace

TEST("the document's example: the same parameters on every rank") {
  Case c;
  AllToAllVParam param;
  const int size = 4;
  for (int rank = 0; rank < size; ++rank) {
    param.sendCounts.assign(size, 5), param.recvCounts.assign(size, 5);
    param.sdispls = {0, 5, 10, 15}, param.rdispls = {0, 5, 10, 15};
    c.params.push_back(param);
    c.shapes.push_back({3, 4, 5});
  }
  ranks::everywhere(size, [&](int rank, Mode mode) {
    // Its formula: the parts [sdispls[rank], sdispls[rank] + sendCounts[rank]) of every rank's input, one after
    // another.
    std::vector<std::byte> golden;
    for (int j = 0; j < size; ++j) {
      const auto x = input(c, j);
      const auto from = x.begin() + param.sdispls[static_cast<size_t>(rank)] * 4;
      golden.insert(golden.end(), from, from + param.sendCounts[static_cast<size_t>(rank)] * 4);
    }
    CHECK(run(c, rank, mode, "example") == golden);
    CHECK(expected(c, rank) == golden);
  });
}

TEST("random parameters on 1 to 8 ranks, every dtype") {
  for (int size = 1; size <= 8; ++size) {
    const check::Note note("ranks", static_cast<uint64_t>(size));
    ranks::everywhere(size, [size](int rank, Mode mode) {
      check::Random random(check::seed() + static_cast<uint64_t>(size));  // the same on every rank
      for (int round = 0; round < kRounds; ++round) {
        const check::Note note("round", static_cast<uint64_t>(round));
        const auto c = draw(random, size, kDtypes[static_cast<size_t>(round) % std::size(kDtypes)]);
        CHECK(run(c, rank, mode, "random") == expected(c, rank));
      }
    });
  }
}

TEST("several domains at once, in different order on different ranks") {
  ranks::everywhere(4, [](int rank, Mode mode) {
    check::Random random(check::seed());
    const auto four = draw(random, 4, ACL_FLOAT), pair = draw(random, 2, ACL_INT16);
    const std::string half = rank < 2 ? "low" : "high";
    for (int round = 0; round < 3; ++round) {
      CHECK(run(four, rank, mode, "all") == expected(four, rank));
      CHECK(run(pair, rank % 2, mode, half) == expected(pair, rank % 2));
      CHECK(run(pair, rank / 2, mode, rank % 2 == 0 ? "even" : "odd") == expected(pair, rank / 2));
      CHECK(run(four, 3 - rank, mode, "all backwards") == expected(four, 3 - rank));
    }
  });
}

TEST("an operation runs many times; other tensors need another Setup") {
  ranks::everywhere(2, [](int rank, Mode mode) {
    auto param = param_of(rank, 2, mode, "many");
    param.sendCounts = param.recvCounts = {1, 1}, param.sdispls = {0, 1}, param.rdispls = {1, 0};
    const auto operation = new_operation(param);
    const auto context = ranks::new_context();
    Memory in(8), out(8);
    atb::VariantPack pack;
    pack.inTensors = {ranks::tensor(desc({2}, ACL_INT32), in.get())};
    pack.outTensors = {ranks::tensor(desc({1, 2}, ACL_INT32), out.get())};
    uint64_t workspace = 0;
    CHECK(failed(operation->Execute(pack, nullptr, 0, context.get()), atb::ERROR_INVALID_PARAM,
                 "setup failed, execute exit: Setup has not run"));
    CHECK(failed(operation->Setup(pack, workspace, context.get()), atb::NO_ERROR, ""));
    for (std::byte i{0}; i < std::byte{10}; i = std::byte(static_cast<int>(i) + 1)) {
      in.upload(std::vector<std::byte>(8, std::byte(static_cast<int>(i) * 2 + rank)));
      CHECK(failed(operation->Execute(pack, nullptr, 0, context.get()), atb::NO_ERROR, ""));
      const auto got = out.download();
      CHECK_EQ(got[7], std::byte(static_cast<int>(i) * 2));
      CHECK_EQ(got[0], std::byte(static_cast<int>(i) * 2 + 1));
    }
  });
}

TEST("a rank whose Execute is refused tells its peers, and all go on") {
  ranks::everywhere(3, [](int rank, Mode mode) {
    auto param = param_of(rank, 3, mode, "refused");
    param.sendCounts = param.recvCounts = {1, 1, 1}, param.sdispls = param.rdispls = {0, 1, 2};
    const auto operation = new_operation(param);
    const auto context = ranks::new_context(), other = ranks::new_context();
    Memory in(12), out(12);
    atb::VariantPack good;
    good.inTensors = {ranks::tensor(desc({3}), in.get())};
    good.outTensors = {ranks::tensor(desc({1, 3}), out.get())};
    uint64_t workspace = 0;
    CHECK(failed(operation->Setup(good, workspace, context.get()), atb::NO_ERROR, ""));
    const auto refused = [&](const std::string& reason, auto&& change, atb::Context* on) {
      atb::VariantPack pack = good;
      if (rank == 1) {
        change(pack);
        CHECK(failed(operation->Execute(pack, nullptr, 0, on), atb::ERROR_INVALID_PARAM, reason));
      } else {
        CHECK(failed(operation->Execute(pack, nullptr, 0, context.get()), atb::ERROR_HCCL_FAIL, "rank 1"));
        CHECK(atb::LastFailure().code == a2a::Code::mismatch);
        CHECK(atb::LastFailure().text.find(reason) != std::string::npos);
      }
      CHECK(failed(operation->Execute(good, nullptr, 0, context.get()), atb::NO_ERROR, ""));
    };
    const auto nothing = [](auto&) {};
    refused("Execute: context is null", nothing, nullptr);
    refused("the context is not the one of Setup", nothing, other.get());
    if (rank == 1) {
      CHECK(failed(operation->Execute(good, nullptr, 16, context.get()), atb::ERROR_INVALID_PARAM,
                   "workspace is null, but workspaceSize is 16"));
    } else {
      CHECK(failed(operation->Execute(good, nullptr, 0, context.get()), atb::ERROR_HCCL_FAIL, "workspace is null"));
    }
    refused("inTensors: 0 tensors", [](auto& p) { p.inTensors.clear(); }, context.get());
    refused("outTensors: 0 tensors", [](auto& p) { p.outTensors.clear(); }, context.get());
    refused("inTensor[0]: dataSize is 11 bytes", [](auto& p) { p.inTensors[0].dataSize = 11; }, context.get());
    refused("outTensor[0]: dataSize is 13 bytes", [](auto& p) { p.outTensors[0].dataSize = 13; }, context.get());
    refused("inTensor[0]: deviceData is null", [](auto& p) { p.inTensors[0].deviceData = nullptr; }, context.get());
    refused("outTensor[0]: deviceData is null", [](auto& p) { p.outTensors[0].deviceData = nullptr; }, context.get());
    refused("share memory", [](auto& p) { p.outTensors[0].deviceData = p.inTensors[0].deviceData; }, context.get());
    // A Setup that fails reaches the peers with the Execute that follows it.
    if (rank == 1) {
      atb::VariantPack pack = good;
      pack.inTensors[0].desc = desc({2});
      CHECK(failed(operation->Setup(pack, workspace, context.get()), atb::ERROR_INVALID_PARAM, "out of bounds"));
    }
    const std::string reason = "setup failed, execute exit: sendCounts + sdispls is out of bounds";
    CHECK(failed(operation->Execute(good, nullptr, 0, context.get()),
                 rank == 1 ? atb::ERROR_INVALID_PARAM : atb::ERROR_HCCL_FAIL, reason));
    CHECK(failed(operation->Setup(good, workspace, context.get()), atb::NO_ERROR, ""));
    CHECK(failed(operation->Execute(good, nullptr, 0, context.get()), atb::NO_ERROR, ""));
  });
}

TEST("ranks that disagree about counts or dtype are both told") {
  ranks::everywhere(2, [](int rank, Mode mode) {
    const auto attempt = [&](int64_t sent, aclDataType dtype, atb::ErrorType status, const std::string& words) {
      auto param = param_of(rank, 2, mode, "disagree");
      param.sendCounts = {1, 1}, param.recvCounts = {1, 1}, param.sdispls = {0, 1}, param.rdispls = {0, 1};
      if (rank == 0) param.sendCounts[1] = sent;
      const auto operation = new_operation(param);
      const auto context = ranks::new_context();
      Memory in(64), out(64);
      atb::VariantPack pack;
      pack.inTensors = {ranks::tensor(desc({8}, rank == 0 ? dtype : ACL_FLOAT), in.get())};
      pack.outTensors = {ranks::tensor(desc({1, 2}, rank == 0 ? dtype : ACL_FLOAT), out.get())};
      uint64_t workspace = 0;
      CHECK(failed(operation->Setup(pack, workspace, context.get()), atb::NO_ERROR, ""));
      CHECK(failed(operation->Execute(pack, nullptr, 0, context.get()), status, words));
    };
    attempt(2, ACL_FLOAT, atb::ERROR_HCCL_FAIL, "rank 0 sends 2 elements to rank 1, which expects 1 (element = 4");
    attempt(1, ACL_INT32, atb::ERROR_HCCL_FAIL, "int32");
    attempt(1, ACL_FLOAT, atb::NO_ERROR, "");
  });
}

TEST("a group that cannot be made is reported by Setup, and can be made later") {
  ranks::everywhere(2, [](int rank, Mode mode) {
    auto param = param_of(rank, 2, mode, "late");
    param.sendCounts = param.recvCounts = {1, 1}, param.sdispls = param.rdispls = {0, 1};
    const auto operation = new_operation(param);
    const auto hasty = ranks::new_context(0.1), patient = ranks::new_context();
    Memory in(8), out(8);
    atb::VariantPack pack;
    pack.inTensors = {ranks::tensor(desc({2}), in.get())};
    pack.outTensors = {ranks::tensor(desc({1, 2}), out.get())};
    uint64_t workspace = 0;
    if (rank == 0) {
      CHECK(failed(operation->Setup(pack, workspace, hasty.get()), atb::ERROR_COMM_EMPTY, "waiting for rank 1"));
      CHECK(atb::LastFailure().code == a2a::Code::timeout);
      CHECK(failed(operation->Execute(pack, nullptr, 0, hasty.get()), atb::ERROR_INVALID_PARAM, "waiting for rank 1"));
    } else {
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
    }
    CHECK(failed(operation->Setup(pack, workspace, patient.get()), atb::NO_ERROR, ""));
    CHECK(failed(operation->Execute(pack, nullptr, 0, patient.get()), atb::NO_ERROR, ""));
    // An Execute that no peer joins breaks the group; the next Setup makes another.
    if (rank == 0) {
      CHECK(failed(operation->Setup(pack, workspace, hasty.get()), atb::NO_ERROR, ""));
      CHECK(failed(operation->Execute(pack, nullptr, 0, hasty.get()), atb::ERROR_HCCL_FAIL, "timeout on rank"));
    } else {
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
      CHECK(failed(operation->Execute(pack, nullptr, 0, patient.get()), atb::ERROR_HCCL_FAIL, "timeout on rank"));
    }
    CHECK(failed(operation->Setup(pack, workspace, patient.get()), atb::NO_ERROR, ""));
    CHECK(failed(operation->Execute(pack, nullptr, 0, patient.get()), atb::NO_ERROR, ""));
  });
}

TEST("a rank that dies is a lost peer to the others") {
  // The number of ranks that have finished the first exchange: a rank that is still in it may fail when the other one
  // dies.
  void* const shared = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (!CHECK(shared != MAP_FAILED)) return;
  auto& through = *new (shared) std::atomic<int>(0);
  ranks::everywhere(3, [&through](int rank, Mode mode) {
    if (mode == atb::infer::COMM_MULTI_THREAD) return;  // threads do not die alone
    auto param = param_of(rank, 3, mode, "death");
    param.sendCounts = param.recvCounts = {1, 1, 1}, param.sdispls = param.rdispls = {0, 1, 2};
    const auto operation = new_operation(param);
    const auto context = ranks::new_context();
    Memory in(12), out(12);
    atb::VariantPack pack;
    pack.inTensors = {ranks::tensor(desc({3}), in.get())};
    pack.outTensors = {ranks::tensor(desc({1, 3}), out.get())};
    uint64_t workspace = 0;
    CHECK(failed(operation->Setup(pack, workspace, context.get()), atb::NO_ERROR, ""));
    CHECK(failed(operation->Execute(pack, nullptr, 0, context.get()), atb::NO_ERROR, ""));
    through += 1;
    while (rank == 1 && through < 3) usleep(1000);
    if (rank == 1) _exit(0);
    const auto status = operation->Execute(pack, nullptr, 0, context.get());
    CHECK(failed(status, atb::ERROR_HCCL_FAIL, "rank 1"));
    CHECK(atb::LastFailure().code == a2a::Code::peer_lost);
  });
  munmap(shared, 4096);
}

TEST("ranks that disagree about rankSize are told in Setup") {
  ranks::everywhere(2, [](int rank, Mode mode) {
    auto param = param_of(rank, 2, mode, "sizes");
    param.rankSize = rank == 0 ? 2 : 3;
    const auto size = static_cast<size_t>(param.rankSize);
    param.sendCounts.assign(size, 1), param.recvCounts.assign(size, 1);
    param.sdispls.assign(size, 0), param.rdispls.resize(size);
    std::iota(param.rdispls.begin(), param.rdispls.end(), 0);
    const auto operation = new_operation(param);
    const auto context = ranks::new_context();
    Memory in(4), out(4 * size);
    atb::VariantPack pack;
    pack.inTensors = {ranks::tensor(desc({1}), in.get())};
    pack.outTensors = {ranks::tensor(desc({1, param.rankSize}), out.get())};
    uint64_t workspace = 0;
    CHECK(failed(operation->Setup(pack, workspace, context.get()), atb::ERROR_COMM_EMPTY,
                 "rank 1 was started with size 3, rank 0 with size 2"));
  });
}

TEST("AllToAllVV2: counts from tensors") {
  ranks::everywhere(3, [](int rank, Mode mode) {
    const auto group = param_of(rank, 3, mode, "v2");
    AllToAllVV2Param param;
    param.rank = rank, param.rankSize = 3, param.commMode = mode;
    param.backend = group.backend, param.commDomain = group.commDomain;
    const auto operation = new_operation(param);
    const auto context = ranks::new_context();
    check::Random random(check::seed());
    for (int round = 0; round < 4; ++round) {
      const auto c = draw(random, 3, ACL_BF16);
      AllToAllVParam counts = c.params[static_cast<size_t>(rank)];
      const auto sum = std::accumulate(counts.recvCounts.begin(), counts.recvCounts.end(), int64_t{0});
      const auto x = desc(c.shapes[static_cast<size_t>(rank)], ACL_BF16);
      const auto bytes = input(c, rank);
      Memory in(bytes.size()), out(static_cast<size_t>(sum) * 2);
      in.upload(bytes);
      atb::VariantPack pack;
      pack.inTensors = {ranks::tensor(x, in.get())};
      for (auto* list : {&counts.sendCounts, &counts.sdispls, &counts.recvCounts, &counts.rdispls}) {
        auto tensor = ranks::tensor(desc({3}, ACL_INT64), nullptr);
        tensor.hostData = list->data();
        pack.inTensors.push_back(tensor);
      }
      pack.inTensors.push_back(ranks::tensor(desc({sum}, ACL_INT8), nullptr));
      atb::SVector<atb::TensorDesc> in_descs, outputs;
      for (const auto& tensor : pack.inTensors) in_descs.push_back(tensor.desc);
      CHECK(failed(operation->InferShape(in_descs, outputs), atb::NO_ERROR, ""));
      CHECK_EQ(outputs[0].shape.dims[1], sum);
      pack.outTensors = {ranks::tensor(outputs[0], out.get())};
      uint64_t workspace = 0;
      CHECK(failed(operation->Setup(pack, workspace, context.get()), atb::NO_ERROR, ""));
      CHECK(failed(operation->Execute(pack, nullptr, 0, context.get()), atb::NO_ERROR, ""));
      CHECK(out.download() == expected(c, rank));

      // Checked at Setup: the values, their number, and where they are.
      auto wrong = pack;
      wrong.outTensors[0] = ranks::tensor(desc({1, sum + 1}, ACL_BF16), out.get());
      CHECK(failed(operation->Setup(wrong, workspace, context.get()), atb::ERROR_INVALID_TENSOR_DIM, "outTensor[0]"));
      wrong = pack;
      wrong.inTensors[3].desc = desc({2}, ACL_INT64);
      CHECK(failed(operation->Setup(wrong, workspace, context.get()), atb::ERROR_INVALID_PARAM,
                   "inTensor[3]: shape [2]"));
      wrong = pack;
      wrong.inTensors[3].desc.dtype = ACL_INT32;
      CHECK(failed(operation->Setup(wrong, workspace, context.get()), atb::ERROR_INVALID_TENSOR_INI_MATCH,
                   "inTensor[3]: dtype int32 (3) is not int64 (9)"));
      wrong = pack;
      wrong.inTensors[2].hostData = nullptr;
      CHECK(failed(operation->Setup(wrong, workspace, context.get()), atb::ERROR_INVALID_PARAM, "hostData is null"));
      counts.rdispls[1] = -1;
      CHECK(failed(operation->Setup(pack, workspace, context.get()), atb::ERROR_INVALID_PARAM, "rdispls[1] = -1"));
    }
    CHECK(failed(operation->InferShape({}, *std::make_unique<atb::SVector<atb::TensorDesc>>()),
                 atb::ERROR_INVALID_IN_TENSOR_NUM, "0 tensors instead of 6"));
  });
}
