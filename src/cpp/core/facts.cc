#include "core/facts.h"

#include <algorithm>

#include "a2a/communicator.h"
#include "runtime/environment.h"
#include "runtime/hash.h"

namespace a2a {
namespace {

std::string rank_name(Rank rank) { return "rank " + std::to_string(rank); }

// "812 rows", or "812 bytes" when the unit does not divide the number.
std::string quantity(uint64_t bytes, size_t unit_bytes, bool rows) {
  if (unit_bytes == 0 || bytes % unit_bytes != 0) return std::to_string(bytes) + " bytes";
  return std::to_string(bytes / unit_bytes) + (rows ? " rows" : " elements");
}

std::string size_sentence(const Signature& signature, size_t unit_bytes, Rank from, uint64_t sent, Rank to,
                          uint64_t expected) {
  const bool rows = unit_bytes != signature.dtype.bytes();
  std::string text =
      rank_name(from) + " sends " + quantity(sent, unit_bytes, rows) + " to " + rank_name(to) + ", which expects ";
  if (unit_bytes != 0 && sent % unit_bytes == 0 && expected % unit_bytes == 0) {
    text += std::to_string(expected / unit_bytes);
  } else {
    text += quantity(expected, unit_bytes, rows);
  }
  return text + (rows ? " (row = " : " (element = ") + std::to_string(unit_bytes) + " bytes, " +
         to_string(signature.dtype) + ")";
}

// "16 columns": the elements of a row.
std::string width(size_t unit_bytes, DType dtype) {
  const size_t elem = dtype.bytes();
  if (elem == 0 || unit_bytes % elem != 0) return std::to_string(unit_bytes) + " bytes";
  return std::to_string(unit_bytes / elem) + (unit_bytes == elem ? " column" : " columns");
}

DType dtype_of(uint32_t packed, bool reduction) {
  DType dtype = unpack(packed);
  if (reduction) dtype.lanes = 1;
  return dtype;
}

// What two ranks compare: a2a/operations.h.
enum class Compared { pair, all, all_and_root, elements, experts, scales, weights, shardings };

Compared compared_of(Op op) {
  switch (op) {
#define A2A_OPERATION(name, number, text, compared) \
  case Op::name:                                    \
    return Compared::compared;
    A2A_OPERATIONS(A2A_OPERATION)
#undef A2A_OPERATION
  }
  return Compared::pair;
}

// How two ranks differ that exchange the same number of bytes.
const char* difference(Compared compared) {
  switch (compared) {
    case Compared::experts:
      return " exchange the same number of rows, but in different numbers for each expert";
    case Compared::scales:
      return " exchange the same number of bytes, but differ in the dtype of scales or in the bytes of a row";
    case Compared::weights:
      return " exchange the same rows, but one of them multiplies by weights and the other does not";
    default:
      return " exchange the same number of bytes in segments of different sizes or blocks of different shapes";
  }
}

std::string plan_name(uint32_t plan) {
  if (is_of_routing(plan)) return "routing " + std::to_string(plan - number_of_routing(0));
  return plan == 0 ? "no plan" : "plan " + std::to_string(plan);
}

}  // namespace

uint32_t pack(DType dtype, Fold fold) {
  const uint32_t last = fold == Fold::none ? dtype.lanes : static_cast<uint32_t>(fold);
  return static_cast<uint32_t>(dtype.code) | static_cast<uint32_t>(dtype.bits) << 8 | last << 16;
}

DType unpack(uint32_t packed) {
  return {static_cast<uint8_t>(packed), static_cast<uint8_t>(packed >> 8), static_cast<uint16_t>(packed >> 16)};
}

uint32_t size_hash(std::span<const Run> runs) {
  if (runs.empty() || (runs.size() == 1 && runs[0].shape == 0)) return 0;
  Hash hash;
  for (const Run& run : runs) {
    hash.add(run.bytes);
    if (run.shape != 0) hash.add(run.shape);
  }
  return static_cast<uint32_t>(hash.value() ^ hash.value() >> 32) | 1;
}

std::string disagreement(const Signature& signature, size_t unit_bytes, Rank me, const Facts& mine, Rank peer,
                         const Facts& theirs, size_t their_unit_bytes) {
  // Both sides name the ranks in the same order, so that both print the same sentence.
  const bool first = me < peer;
  const auto both = [&](const std::string& verb, const std::string& ours, const std::string& other) {
    return rank_name(std::min(me, peer)) + verb + (first ? ours : other) + ", " + rank_name(std::max(me, peer)) + verb +
           (first ? other : ours);
  };
  const auto op = [](const Facts& facts) { return std::string(to_string(static_cast<Op>(facts.op))); };
  const auto half = [](const Facts& facts) {
    return std::string(static_cast<Op>(facts.op) == Op::exchange_counts ? "first half" : "second half");
  };
  const auto memory = [](const Facts& facts) { return std::string(to_string(static_cast<Memory>(facts.memory))); };
  if (mine.op != theirs.op && family(mine) != family(theirs)) {
    if (op(mine) == op(theirs)) return name_of(signature) + ": " + both(" is in its ", half(mine), half(theirs));
    return "operation #" + std::to_string(signature.number) + ": " + both(" calls ", op(mine), op(theirs));
  }
  const std::string name = name_of(signature) + ": ";
  if (mine.memory != theirs.memory) return name + both(" uses memory of kind ", memory(mine), memory(theirs));
  if (mine.plan != theirs.plan) {
    const bool routings = is_of_routing(mine.plan) || is_of_routing(theirs.plan);
    return name + both(routings ? " uses " : " runs ", plan_name(mine.plan), plan_name(theirs.plan));
  }
  const bool reduction = signature.fold != Fold::none;
  const DType dtype = dtype_of(mine.dtype, reduction), their_dtype = dtype_of(theirs.dtype, reduction);
  if (dtype != their_dtype && !same_dtype(mine, theirs))
    return name + both(" uses dtype ", to_string(dtype), to_string(their_dtype));
  if (mine.dtype >> 16 != theirs.dtype >> 16) {
    const auto fold = [](const Facts& facts) { return std::string(to_string(static_cast<Fold>(facts.dtype >> 16))); };
    return name + both(" reduces with ", fold(mine), fold(theirs));
  }
  const Compared compared = compared_of(signature.op);
  if (compared == Compared::elements) {
    const auto elements = [&](const Facts& facts) {
      const uint64_t elems = facts.sent_hash != 0 ? facts.sent_hash : facts.sent / std::max<size_t>(1, dtype.bytes());
      return std::to_string(elems) + " elements";
    };
    return name + both(" reduces ", elements(mine), elements(theirs)) + " of " + to_string(dtype);
  }
  const std::string ranks = rank_name(std::min(me, peer)) + " and " + rank_name(std::max(me, peer));
  // A transport may hash the sizes of all ranks in place of the segments.
  const bool root = compared == Compared::all_and_root;
  if (theirs.sent_hash != mine.expected_hash && (compared == Compared::all || root)) {
    return name + ranks + " differ in the numbers of elements" + (root ? " or in the root" : " of the ranks");
  }
  if (theirs.sent_hash != mine.expected_hash && compared == Compared::shardings) {
    return name + ranks + " differ in the shapes, the shardings or the dtypes of tensors";
  }
  // The rows of a tensor that is divided along an axis are its elements: they say nothing about its width.
  const bool rows = std::min(unit_bytes, their_unit_bytes) > dtype.bytes();
  if (rows && their_unit_bytes != unit_bytes && (theirs.sent != mine.expected || theirs.expected != mine.sent)) {
    return name + both(" has rows of ", width(unit_bytes, dtype), width(their_unit_bytes, dtype)) + " (" +
           to_string(dtype) + ")";
  }
  if (theirs.sent != mine.expected) {
    return name + size_sentence(signature, unit_bytes, peer, theirs.sent, me, mine.expected);
  }
  if (theirs.expected != mine.sent) {
    return name + size_sentence(signature, unit_bytes, me, mine.sent, peer, theirs.expected);
  }
  return name + ranks + difference(compared);
}

std::string advice_on_timeout() {
  const auto folder = variable("A2A_DUMP");
  if (folder) return "; `a2a explain " + *folder + "` compares what the ranks did";
  return "; with A2A_DUMP=folder ranks record what they do, and `a2a explain folder` compares it";
}

std::string name_of(uint32_t op, uint64_t number) {
  if (number == 0) return "none";
  return std::string(to_string(static_cast<Op>(op))) + " #" + std::to_string(number);
}

}  // namespace a2a
