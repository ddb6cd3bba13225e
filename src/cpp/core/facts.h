// The facts that two ranks compare before a byte of their pair moves, and the error when they disagree.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "core/schedule.h"

namespace a2a {

// The facts that one rank tells one peer about an operation. A transport may keep these fields in a line of its own:
// the templates below take any type that has them.
struct Facts {
  uint64_t sent = 0;           // bytes from the writer to the reader
  uint64_t expected = 0;       // bytes that the writer expects from the reader
  uint32_t sent_hash = 0;      // Signature::agreement; without it see size_hash()
  uint32_t expected_hash = 0;  //
  uint32_t dtype = 0;          // code | bits << 8 | lanes << 16; of a reduction, which has one lane, its fold instead
  uint32_t plan = 0;           // low bits of the plan's number
  uint8_t op = 0;              // a2a::Op
  uint8_t memory = 0;          // a2a::Memory
};

uint32_t pack(DType dtype, Fold fold = Fold::none);
DType unpack(uint32_t packed);  // for operations that are no reductions

// Returns a hash of the sizes of the segments, by which two ranks notice that they cut the same bytes differently. It
// includes the shapes of blocks that are compared. 0 for at most one segment without such a shape.
uint32_t size_hash(std::span<const Run> runs);

// Sets the fields that are the same for all peers.
template <class Line>
void set_common(Line& line, const Signature& signature) {
  line.dtype = pack(signature.dtype, signature.fold);
  line.plan = static_cast<uint32_t>(signature.plan);
  line.op = static_cast<uint8_t>(signature.op);
  line.memory = static_cast<uint8_t>(signature.memory);
  line.sent_hash = line.expected_hash = signature.agreement;
}

// Adds the sizes of one pair. Requires that they are 0.
template <class Line>
void add_sizes(Line& line, std::span<const Run> sends, std::span<const Run> recvs) {
  for (const Run& run : sends) line.sent += run.bytes;
  for (const Run& run : recvs) line.expected += run.bytes;
  const auto has_hash = [](std::span<const Run> runs) {
    return runs.size() > 1 || (runs.size() == 1 && runs[0].shape != 0);
  };
  if (has_hash(sends) && line.sent_hash == 0) line.sent_hash = size_hash(sends);
  if (has_hash(recvs) && line.expected_hash == 0) line.expected_hash = size_hash(recvs);
}

template <class Line>
Facts facts_of(const Line& line) {
  return {line.sent, line.expected, line.sent_hash, line.expected_hash, line.dtype, line.plan, line.op, line.memory};
}

// Returns the operation as it is compared. Equal parts are a special case of given ones, so alltoall on one rank
// matches alltoallv on another. On devices the operation chooses the vendor's call, so there they differ.
template <class Line>
uint8_t family(const Line& line) {
  const bool host = static_cast<Memory>(line.memory) == Memory::host;
  return host && static_cast<Op>(line.op) == Op::alltoall ? static_cast<uint8_t>(Op::alltoallv) : line.op;
}

// Whether two dtypes are the same. A rank without a part of a tensor need not know its dtype, whose bits are then 0.
template <class Line>
bool same_dtype(const Line& mine, const Line& theirs) {
  const auto is_unknown = [](uint32_t packed) { return (packed & 0xffff) == 0; };
  if (mine.dtype == theirs.dtype) return true;
  return mine.dtype >> 16 == theirs.dtype >> 16 && (is_unknown(mine.dtype) || is_unknown(theirs.dtype));
}

template <class Line>
bool agree(const Line& mine, const Line& theirs) {
  return theirs.sent == mine.expected && theirs.expected == mine.sent && theirs.sent_hash == mine.expected_hash &&
         theirs.expected_hash == mine.sent_hash && same_dtype(mine, theirs) && theirs.plan == mine.plan &&
         theirs.memory == mine.memory && (theirs.op == mine.op || family(theirs) == family(mine));
}

// Returns the sentence for a MismatchError. Both sides get the same sentence if both know the other's `unit_bytes`,
// `their_unit_bytes`, or neither does (0). Rows of different widths are named, because numbers of rows would mislead.
std::string disagreement(const Signature& signature, size_t unit_bytes, Rank me, const Facts& mine, Rank peer,
                         const Facts& theirs, size_t their_unit_bytes = 0);

// Returns the end of the sentence for an Error(timeout): how to find out what the late ranks do.
std::string advice_on_timeout();

// "alltoallv #146", or "none" for number 0
std::string name_of(uint32_t op, uint64_t number);

}  // namespace a2a
