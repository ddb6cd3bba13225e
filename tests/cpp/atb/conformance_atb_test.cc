// The cases of the conformance kit through the operation of a2a/atb.h.
#include <utility>

#include "a2a/atb.h"
#include "cases.h"

namespace {

using namespace conformance;

a2a::atb::TensorDesc described(const Counts& shape) {
  a2a::atb::TensorDesc desc;
  desc.dtype = ACL_FLOAT;
  desc.format = ACL_FORMAT_ND;
  desc.shape.dimNum = shape.size();
  std::copy(shape.begin(), shape.end(), desc.shape.dims);
  return desc;
}

Counts packed(const Counts& counts) {
  Counts result;
  int64_t next = 0;
  for (const int64_t count : counts) result.push_back(std::exchange(next, next + count));
  return result;
}

// The operation counts in elements, its input may have any shape, and its output is a row.
void run_atb(const Json& facts, Rank rank, int n, const std::string& domain) {
  const CaseView v{facts, rank, n, sizeof(float)};
  const int64_t row = product(member(facts, "row"));
  a2a::atb::infer::AllToAllVParam param;
  param.rank = rank, param.rankSize = n;
  param.backend = "shm";
  param.commMode = a2a::atb::infer::COMM_MULTI_THREAD;
  param.commDomain = domain;
  param.sendCounts = integers(v.of("send_counts", rank));
  param.recvCounts = v.column("send_counts");
  param.sdispls = v.has("send_displs") ? v.displs("send_displs") : packed(param.sendCounts);
  param.rdispls = v.has("recv_displs") ? v.displs("recv_displs") : packed(param.recvCounts);
  for (auto* list : {&param.sendCounts, &param.recvCounts, &param.sdispls, &param.rdispls}) {
    for (int64_t& value : *list) value *= row;
  }
  const Plan plan = plan_of(v);
  const int64_t sent = v.rows("send_rows", integers(v.of("send_counts", rank))) * row;
  const int64_t received = std::accumulate(param.recvCounts.begin(), param.recvCounts.end(), int64_t{0});
  Bytes given = pattern(rank, static_cast<size_t>(sent) * sizeof(float));
  Bytes wanted = expected(v, plan)[0];
  const size_t bytes = wanted.size();
  wanted.resize(bytes + 64, kPoison);  // guard bytes
  Bytes out(wanted.size(), kPoison);

  a2a::atb::Context* context = nullptr;
  a2a::atb::Operation* operation = nullptr;
  if (!CHECK_EQ(a2a::atb::CreateContext(&context), a2a::atb::NO_ERROR)) return;
  if (CHECK_EQ(a2a::atb::CreateOperation(param, &operation), a2a::atb::NO_ERROR)) {
    const auto x = described(v.has("input_shapes") ? integers(v.of("input_shapes", rank)) : Counts{sent});
    a2a::atb::VariantPack pack;
    pack.inTensors = {{x, given.data(), nullptr, given.size()}};
    pack.outTensors = {{described({1, received}), out.data(), nullptr, bytes}};
    uint64_t workspace = 0;
    CHECK_EQ(operation->Setup(pack, workspace, context), a2a::atb::NO_ERROR);
    CHECK_EQ(operation->Execute(pack, nullptr, workspace, context), a2a::atb::NO_ERROR);
    if (!CHECK(out == wanted)) std::cerr << "  case: " << member(facts, "name").text << '\n';
    a2a::atb::DestroyOperation(operation);
  }
  a2a::atb::DestroyContext(context);
}

// Whether every rank has an input and receives something, and the parts that it receives fill its output, in any order.
bool atb_takes(const Json& facts, int n) {
  if (member(facts, "op").text != "alltoallv" || product(member(facts, "row")) == 0) return false;
  for (Rank rank = 0; rank < n; ++rank) {
    const CaseView v{facts, rank, n, 4};
    const Counts sends = integers(v.of("send_counts", rank)), recvs = v.column("send_counts");
    const int64_t received = std::accumulate(recvs.begin(), recvs.end(), int64_t{0});
    if (v.rows("send_rows", sends) == 0 || received == 0 || v.rows("recv_rows", recvs) != received) return false;
    for (const int64_t displ : v.displs("recv_displs")) {
      if (displ > received) return false;
    }
  }
  return true;
}

TEST("every case of alltoallv through the operation of a2a/atb.h") {
  const std::vector<Json> all = cases();
  for (int n = 1; n <= kMostRanks; ++n) {
    const check::Note note("ranks", static_cast<uint64_t>(n));
    const std::string domain = "conformance-" + std::to_string(n) + "-" + std::to_string(getpid());
    int taken = 0, in_any_order = 0, in_any_shape = 0;
    for (const Json& facts : all) {
      if (ranks_of(facts) != n || !atb_takes(facts, n)) continue;
      ++taken;
      in_any_order += facts.find("recv_displs") != nullptr;
      in_any_shape += facts.find("input_shapes") != nullptr;
      check::threads(n, [&](int rank) { run_atb(facts, rank, n, domain); });
    }
    CHECK(taken >= 15);
    CHECK(in_any_order >= 2);
    CHECK(in_any_shape >= (n == 2 ? 2 : 0));
  }
}

}  // namespace
