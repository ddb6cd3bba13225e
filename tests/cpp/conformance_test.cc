// The cases of the conformance kit (python/a2a/conformance/cases, whose format cases.py describes) through the C++
// calls: plans and communicators, and the operation of a2a/atb.h.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <numeric>

#include "../../adapters/atb/cpp/json.h"
#include "a2a/atb.h"
#include "check.h"
#include "ranks.h"

namespace {

using namespace a2a;
using a2a::atb::Json;
using Bytes = std::vector<std::byte>;
using Counts = std::vector<int64_t>;

constexpr std::byte kPoison{0xA5};
constexpr int kMostRanks = 4;  // 1 to 8 are there; each costs as many threads, then processes

const Json& member(const Json& object, std::string_view name) {
  const Json* found = object.find(name);
  if (found == nullptr) throw Error(Code::invalid_argument, "a case has no " + std::string(name));
  return *found;
}

int64_t integer(const Json& json) { return std::stoll(json.text); }

Counts integers(const Json& array) {
  Counts result;
  for (const Json& item : array.items) result.push_back(integer(item));
  return result;
}

int64_t product(const Json& shape) {
  const Counts dims = integers(shape);
  return std::accumulate(dims.begin(), dims.end(), int64_t{1}, std::multiplies<>());
}

// One case as this rank sees it, in elements of `unit` bytes.
struct View {
  const Json& facts;
  Rank rank;
  int size;
  size_t unit;

  std::string op() const { return member(facts, "op").text; }
  const Json& of(const char* name, Rank r) const { return member(facts, name).items[static_cast<size_t>(r)]; }
  size_t row() const { return unit * static_cast<size_t>(product(member(facts, "row"))); }
  bool has(const char* name) const { return facts.find(name) != nullptr; }

  Counts column(const char* name) const {
    Counts result;
    for (Rank source = 0; source < size; ++source) {
      result.push_back(integer(of(name, source).items[static_cast<size_t>(rank)]));
    }
    return result;
  }
  Counts displs(const char* name) const { return has(name) ? integers(of(name, rank)) : Counts(); }

  int64_t rows(const char* name, const Counts& counts) const {
    return has(name) ? integer(of(name, rank)) : std::accumulate(counts.begin(), counts.end(), int64_t{0});
  }

  // global_count[s * E + e] of this rank is local_count[rank * E + e] of rank s.
  Counts global_count() const {
    const auto experts = static_cast<size_t>(integer(member(facts, "experts")));
    Counts result;
    for (Rank source = 0; source < size; ++source) {
      const Counts local = integers(of("local_count", source));
      const auto mine = local.begin() + static_cast<std::ptrdiff_t>(static_cast<size_t>(rank) * experts);
      result.insert(result.end(), mine, mine + static_cast<std::ptrdiff_t>(experts));
    }
    return result;
  }
};

Plan plan_of(const View& v) {
  const std::string op = v.op();
  if (op == "alltoallv") {
    const Counts sends = integers(v.of("send_counts", v.rank)), recvs = v.column("send_counts");
    const Counts from = v.displs("send_displs"), to = v.displs("recv_displs");
    return Plan::alltoallv(v.rank, v.size, v.row(), {sends, from}, static_cast<size_t>(v.rows("send_rows", sends)),
                           {recvs, to}, static_cast<size_t>(v.rows("recv_rows", recvs)));
  }
  if (op == "alltoall_list") {
    std::vector<size_t> sends, recvs;
    for (Rank peer = 0; peer < v.size; ++peer) {
      sends.push_back(v.unit * static_cast<size_t>(product(v.of("shapes", v.rank).items[static_cast<size_t>(peer)])));
      recvs.push_back(v.unit * static_cast<size_t>(product(v.of("shapes", peer).items[static_cast<size_t>(v.rank)])));
    }
    return Plan::alltoall_list(v.rank, v.size, sends, recvs);
  }
  if (op == "allgather") {
    return Plan::allgather(v.rank, v.size, v.unit * static_cast<size_t>(product(member(v.facts, "shape"))));
  }
  const Counts local = integers(v.of("local_count", v.rank)), global = v.global_count();
  const auto make = op == "global_scatter" ? Plan::global_scatter : Plan::global_gather;
  return make(v.rank, v.size, v.row(), local, global);
}

Op op_of(const std::string& name) {
  if (name == "alltoallv") return Op::alltoallv;
  if (name == "alltoall_list") return Op::alltoall_list;
  if (name == "allgather") return Op::allgather;
  return name == "global_scatter" ? Op::global_scatter : Op::global_gather;
}

// What a rank's send buffers hold, one after the other: byte k of rank r is a formula of the two.
Bytes pattern(Rank rank, size_t bytes) {
  Bytes result(bytes);
  for (size_t k = 0; k < bytes; ++k) {
    result[k] = static_cast<std::byte>(131 * static_cast<size_t>(rank) + 7 * k + 13 * (k >> 8) + 1);
  }
  return result;
}

std::vector<Bytes> cut(const Bytes& stream, std::span<const size_t> sizes) {
  std::vector<Bytes> result;
  auto at = stream.begin();
  for (const size_t bytes : sizes) {
    result.emplace_back(at, at + static_cast<std::ptrdiff_t>(bytes));
    at += static_cast<std::ptrdiff_t>(bytes);
  }
  return result;
}

std::vector<Bytes> inputs(const Plan& plan, Rank rank) {
  const auto sizes = plan.send_extents();
  return cut(pattern(rank, std::accumulate(sizes.begin(), sizes.end(), size_t{0})), sizes);
}

// What a rank has to receive: for each pair the k-th send segment goes to the k-th receive segment.
std::vector<Bytes> expected(const View& v, const Plan& mine) {
  std::vector<Bytes> result;
  for (const size_t bytes : mine.recv_extents()) result.emplace_back(bytes, kPoison);
  for (Rank source = 0; source < v.size; ++source) {
    const View theirs{v.facts, source, v.size, v.unit};
    const Plan plan = plan_of(theirs);
    const std::vector<Bytes> given = inputs(plan, source);
    auto to = mine.recvs().begin();
    for (const Segment& from : plan.sends()) {
      if (from.peer != v.rank) continue;
      to = std::find_if(to, mine.recvs().end(), [&](const Segment& s) { return s.peer == source; });
      if (!CHECK(to != mine.recvs().end() && to->bytes == from.bytes)) return result;
      std::copy_n(given[static_cast<size_t>(from.buffer)].begin() + static_cast<std::ptrdiff_t>(from.offset),
                  from.bytes,
                  result[static_cast<size_t>(to->buffer)].begin() + static_cast<std::ptrdiff_t>(to->offset));
      ++to;
    }
  }
  return result;
}

// The expected elements where the document gives them, for int64.
Bytes documented(const Json& values) {
  Bytes result;
  for (const Json& value : values.items) {
    const int64_t element = integer(value);
    const auto* bytes = reinterpret_cast<const std::byte*>(&element);
    result.insert(result.end(), bytes, bytes + sizeof(element));
  }
  return result;
}

void run(Communicator& comm, const Json& facts, size_t unit) {
  const View v{facts, comm.rank(), comm.size(), unit};
  const Plan plan = plan_of(v);
  std::vector<Bytes> sends = inputs(plan, comm.rank()), wanted = expected(v, plan), recvs;
  const bool in_words = v.has("send") && v.has("expected") && member(facts, "dtypes").items[0].text == "int64";
  if (in_words && unit == sizeof(int64_t)) {
    sends = cut(documented(v.of("send", comm.rank())), plan.send_extents());
    wanted = cut(documented(v.of("expected", comm.rank())), plan.recv_extents());
  }
  for (const size_t bytes : plan.recv_extents()) recvs.emplace_back(bytes, kPoison);
  std::vector<const void*> from;
  std::vector<void*> to;
  for (const Bytes& one : sends) from.push_back(one.data());
  for (Bytes& one : recvs) to.push_back(one.data());
  Call call;
  call.op = op_of(v.op());
  comm.start(plan, from, to, call)->wait();
  if (!CHECK(recvs == wanted)) std::cerr << "  case: " << member(facts, "name").text << '\n';
}

std::vector<Json> cases() {
  std::vector<Json> result;
  for (const auto& file : std::filesystem::directory_iterator(A2A_CASES)) {
    std::ifstream in(file.path());
    const std::string text((std::istreambuf_iterator<char>(in)), {});
    Json document = a2a::atb::parse_json(text, file.path().filename().string());
    for (const Json& one : member(document, "cases").items) {
      if (member(one, "op").text != "quantized_all_reduce")
        result.push_back(one);  // no plan, but a pipeline of Python's
    }
  }
  return result;
}

int ranks_of(const Json& facts) {
  for (const char* name : {"send_counts", "shapes", "local_count", "send"}) {
    if (const Json* found = facts.find(name)) return static_cast<int>(found->items.size());
  }
  const std::string& name = member(facts, "name").text;  // "all_gather, 3 ranks"
  return std::stoi(name.substr(name.rfind(", ") + 2));
}

TEST("every case through plans, in every size of element") {
  const std::vector<Json> all = cases();
  CHECK(all.size() > 100);
  for (int n = 1; n <= kMostRanks; ++n) {
    const check::Note note("ranks", static_cast<uint64_t>(n));
    ranks::everywhere(n, [&](Communicator& comm) {
      for (const Json& facts : all) {
        if (ranks_of(facts) != n) continue;
        for (const size_t unit : {1, 2, 4, 8, 16}) run(comm, facts, unit);
      }
    });
  }
}

// ---- a2a/atb.h -----------------------------------------------------------------------------------------------------

a2a::atb::TensorDesc flat(int64_t elements, aclDataType dtype) {
  a2a::atb::TensorDesc desc;
  desc.dtype = dtype;
  desc.format = ACL_FORMAT_ND;
  desc.shape.dimNum = 1;
  desc.shape.dims[0] = elements;
  return desc;
}

// The operation counts in elements; an output without gaps is what its page describes.
void run_atb(const Json& facts, Rank rank, int n, const std::string& domain) {
  const View v{facts, rank, n, sizeof(float)};
  const int64_t row = product(member(facts, "row"));
  a2a::atb::infer::AllToAllVParam param;
  param.rank = rank, param.rankSize = n;
  param.backend = "shm";
  param.commMode = a2a::atb::infer::COMM_MULTI_THREAD;
  param.commDomain = domain;
  param.sendCounts = integers(v.of("send_counts", rank));
  param.recvCounts = v.column("send_counts");
  param.sdispls = v.displs("send_displs");
  int64_t sent = 0, received = 0;
  if (param.sdispls.empty()) {
    for (const int64_t count : param.sendCounts) param.sdispls.push_back(std::exchange(sent, sent + count));
  }
  for (const int64_t count : param.recvCounts) param.rdispls.push_back(std::exchange(received, received + count));
  const int64_t rows = v.rows("send_rows", param.sendCounts);
  for (auto* list : {&param.sendCounts, &param.recvCounts, &param.sdispls, &param.rdispls}) {
    for (int64_t& value : *list) value *= row;
  }
  const Plan plan = plan_of(v);
  const Bytes wanted = expected(v, plan)[0];
  Bytes given = pattern(rank, static_cast<size_t>(rows * row) * sizeof(float)), out(wanted.size(), kPoison);

  a2a::atb::Context* context = nullptr;
  a2a::atb::Operation* operation = nullptr;
  if (!CHECK_EQ(a2a::atb::CreateContext(&context), a2a::atb::NO_ERROR)) return;
  if (CHECK_EQ(a2a::atb::CreateOperation(param, &operation), a2a::atb::NO_ERROR)) {
    a2a::atb::VariantPack pack;
    a2a::atb::Tensor x, y;
    x.desc = flat(rows * row, ACL_FLOAT), x.deviceData = given.data(), x.dataSize = given.size();
    y.desc = flat(received * row, ACL_FLOAT), y.deviceData = out.data(), y.dataSize = out.size();
    y.desc.shape.dimNum = 2, y.desc.shape.dims[1] = y.desc.shape.dims[0], y.desc.shape.dims[0] = 1;
    pack.inTensors.push_back(x), pack.outTensors.push_back(y);
    uint64_t workspace = 0;
    CHECK_EQ(operation->Setup(pack, workspace, context), a2a::atb::NO_ERROR);
    CHECK_EQ(operation->Execute(pack, nullptr, workspace, context), a2a::atb::NO_ERROR);
    if (!CHECK(out == wanted)) std::cerr << "  case: " << member(facts, "name").text << '\n';
    a2a::atb::DestroyOperation(operation);
  }
  a2a::atb::DestroyContext(context);
}

// Whether every rank sends and receives something, which the operation demands, and without gaps in the output.
bool atb_takes(const Json& facts, int n) {
  if (member(facts, "op").text != "alltoallv" || facts.find("recv_displs") != nullptr) return false;
  if (product(member(facts, "row")) == 0) return false;
  for (Rank rank = 0; rank < n; ++rank) {
    const View v{facts, rank, n, 4};
    for (const Counts& counts : {v.column("send_counts"), integers(v.of("send_counts", rank))}) {
      if (std::accumulate(counts.begin(), counts.end(), int64_t{0}) == 0) return false;
    }
  }
  return true;
}

TEST("every case of alltoallv through the operation of a2a/atb.h") {
  const std::vector<Json> all = cases();
  for (int n = 1; n <= kMostRanks; ++n) {
    const check::Note note("ranks", static_cast<uint64_t>(n));
    const std::string domain = "conformance-" + std::to_string(n) + "-" + std::to_string(getpid());
    int taken = 0;
    for (const Json& facts : all) {
      if (ranks_of(facts) != n || !atb_takes(facts, n)) continue;
      ++taken;
      check::threads(n, [&](int rank) { run_atb(facts, rank, n, domain); });
    }
    CHECK(taken >= 5);
  }
}

}  // namespace
