// The cases of the conformance kit (python/a2a/conformance/cases, whose format cases.py describes), as plans, inputs
// and expected outputs.
#pragma once

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include "../../adapters/atb/cpp/json.h"
#include "a2a/communicator.h"
#include "check.h"

namespace conformance {

using namespace a2a;
using a2a::atb::Json;
using Bytes = std::vector<std::byte>;
using Counts = std::vector<int64_t>;

constexpr std::byte kPoison{0xA5};
constexpr int kMostRanks = 8;

inline const Json& member(const Json& object, std::string_view name) {
  const Json* found = object.find(name);
  if (found == nullptr) throw Error(Code::invalid_argument, "a case has no " + std::string(name));
  return *found;
}

inline int64_t integer(const Json& json) { return std::stoll(json.text); }

inline Counts integers(const Json& array) {
  Counts result;
  for (const Json& item : array.items) result.push_back(integer(item));
  return result;
}

inline int64_t product(const Json& shape) {
  const Counts dims = integers(shape);
  return std::accumulate(dims.begin(), dims.end(), int64_t{1}, std::multiplies<>());
}

// One case as this rank sees it, in elements of `unit` bytes.
struct CaseView {
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

inline Plan plan_of(const CaseView& v) {
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

inline Op op_of(const std::string& name) {
  if (name == "alltoallv") return Op::alltoallv;
  if (name == "alltoall_list") return Op::alltoall_list;
  if (name == "allgather") return Op::allgather;
  return name == "global_scatter" ? Op::global_scatter : Op::global_gather;
}

// Returns the bytes of a rank's send buffers, one after the other: byte k of rank r is a formula of the two.
inline Bytes pattern(Rank rank, size_t bytes) {
  Bytes result(bytes);
  for (size_t k = 0; k < bytes; ++k) {
    result[k] = static_cast<std::byte>(131 * static_cast<size_t>(rank) + 7 * k + 13 * (k >> 8) + 1);
  }
  return result;
}

inline std::vector<Bytes> cut(const Bytes& stream, std::span<const size_t> sizes) {
  std::vector<Bytes> result;
  auto at = stream.begin();
  for (const size_t bytes : sizes) {
    result.emplace_back(at, at + static_cast<std::ptrdiff_t>(bytes));
    at += static_cast<std::ptrdiff_t>(bytes);
  }
  return result;
}

inline std::vector<Bytes> inputs(const Plan& plan, Rank rank) {
  const auto sizes = plan.send_extents();
  return cut(pattern(rank, std::accumulate(sizes.begin(), sizes.end(), size_t{0})), sizes);
}

// Returns the bytes that a rank has to receive: for each pair the k-th send segment goes to the k-th receive segment.
inline std::vector<Bytes> expected(const CaseView& v, const Plan& mine) {
  std::vector<Bytes> result;
  for (const size_t bytes : mine.recv_extents()) result.emplace_back(bytes, kPoison);
  for (Rank source = 0; source < v.size; ++source) {
    const CaseView theirs{v.facts, source, v.size, v.unit};
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

inline std::vector<Json> cases() {
  std::vector<Json> result;
  for (const auto& file : std::filesystem::directory_iterator(A2A_CASES)) {
    std::ifstream in(file.path());
    const std::string text((std::istreambuf_iterator<char>(in)), {});
    Json document = a2a::atb::parse_json(text, file.path().filename().string());
    for (const Json& one : member(document, "cases").items) result.push_back(one);
  }
  return result;
}

inline int ranks_of(const Json& facts) { return static_cast<int>(integer(member(facts, "ranks"))); }

// Whether the case is one of those that these tests run: an exchange, in which nothing is folded and no rank is a root.
inline bool is_exchange(const Json& facts) {
  constexpr std::string_view kOps[] = {"alltoallv", "alltoall_list", "allgather", "global_scatter", "global_gather"};
  return std::find(std::begin(kOps), std::end(kOps), member(facts, "op").text) != std::end(kOps);
}

}  // namespace conformance
