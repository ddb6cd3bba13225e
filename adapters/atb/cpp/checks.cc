#include "checks.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "failure.h"
#include "tensors.h"

namespace a2a::atb {
namespace {

using List = std::pair<const char*, std::span<const int64_t>>;  // an argument and its name

// Returns the sum of a list of counts, none of which is negative.
int64_t sum_of(const List& counts) {
  int64_t sum = 0;
  for (size_t i = 0; i < counts.second.size(); ++i) {
    const int64_t before = sum;
    if (__builtin_add_overflow(before, counts.second[i], &sum)) {
      refuse(ERROR_INVALID_PARAM, "sum(", counts.first, ") overflows int64: ", before, " + ", counts.first, "[", i,
             "] = ", counts.second[i]);
    }
  }
  return sum;
}

void check_ranges(const List& counts, const List& displs, int64_t elems, const char* what) {
  for (size_t i = 0; i < counts.second.size(); ++i) {
    const int64_t count = counts.second[i], displ = displs.second[i];
    int64_t end = 0;
    if (__builtin_add_overflow(count, displ, &end) || end > elems) {
      refuse(ERROR_INVALID_PARAM, counts.first, " + ", displs.first, " is out of bounds: ", counts.first, "[", i,
             "] = ", count, " + ", displs.first, "[", i, "] = ", displ, " is more than the ", elems, " elements of ",
             what);
    }
  }
}

}  // namespace

void check_counts(const Counts& counts, int size) {
  const List lists[] = {{"sendCounts", counts.sendCounts},
                        {"sdispls", counts.sdispls},
                        {"recvCounts", counts.recvCounts},
                        {"rdispls", counts.rdispls}};
  for (const auto& [name, list] : lists) {
    if (list.size() == static_cast<size_t>(size)) continue;
    refuse(ERROR_INVALID_PARAM, name, " size should be equal to ranksize: it has ", list.size(),
           " entries, rankSize is ", size);
  }
  for (const auto& [name, list] : lists) {
    for (size_t i = 0; i < list.size(); ++i) {
      if (list[i] < 0) refuse(ERROR_INVALID_PARAM, name, "[", i, "] = ", list[i], " is negative");
    }
  }
}

int64_t check_bounds(const Counts& counts, int64_t elems) {
  const List sends{"sendCounts", counts.sendCounts}, recvs{"recvCounts", counts.recvCounts};
  // ATB does not check this sum. Counts that overflow here also leave the input, so the status is the same.
  sum_of(sends);
  check_ranges(sends, {"sdispls", counts.sdispls}, elems, "the input");
  const int64_t sum = sum_of(recvs);
  if (sum <= 0) refuse(ERROR_INVALID_PARAM, "sum(recvCounts) should more than 0, it is ", sum);
  check_ranges(recvs, {"rdispls", counts.rdispls}, sum, "the output, sum(recvCounts)");
  return sum;
}

void check_counts_further(const Counts& counts, int rank) {
  std::vector<size_t> order;
  for (size_t i = 0; i < counts.recvCounts.size(); ++i) {
    if (counts.recvCounts[i] > 0) order.push_back(i);
  }
  std::ranges::sort(order, {}, [&](size_t i) { return counts.rdispls[i]; });
  for (size_t k = 1; k < order.size(); ++k) {
    const size_t a = order[k - 1], b = order[k];
    if (counts.rdispls[a] + counts.recvCounts[a] <= counts.rdispls[b]) continue;
    refuse(ERROR_INVALID_PARAM, "the receive ranges of ranks ", a, " and ", b, " overlap: recvCounts[", a,
           "] = ", counts.recvCounts[a], " at rdispls[", a, "] = ", counts.rdispls[a], ", recvCounts[", b,
           "] = ", counts.recvCounts[b], " at rdispls[", b, "] = ", counts.rdispls[b]);
  }
  const auto self = static_cast<size_t>(rank);
  if (counts.sendCounts[self] != counts.recvCounts[self]) {
    refuse(ERROR_INVALID_PARAM, "rank ", rank, " sends itself sendCounts[", rank, "] = ", counts.sendCounts[self],
           " but expects recvCounts[", rank, "] = ", counts.recvCounts[self]);
  }
}

void check_kind(const TensorDesc& desc, const std::string& name) {
  DType core;
  if (!takes(desc.dtype, &core)) {
    refuse(ERROR_INVALID_TENSOR_INI_MATCH, name, ": dtype ", to_string(desc.dtype),
           " is not one of float16, float, int8, int32, int16, int64, bf16");
  }
  if (desc.format != ACL_FORMAT_ND) {
    refuse(ERROR_INVALID_TENSOR_INI_MATCH, name, ": format ", static_cast<int>(desc.format), " is not ACL_FORMAT_ND (",
           static_cast<int>(ACL_FORMAT_ND), ")");
  }
}

void check_kind(const TensorDesc& desc, const std::string& name, aclDataType dtype) {
  check_kind(desc, name);
  if (desc.dtype != dtype) {
    refuse(ERROR_INVALID_TENSOR_INI_MATCH, name, ": dtype ", to_string(desc.dtype), " is not ", to_string(dtype));
  }
}

}  // namespace a2a::atb
