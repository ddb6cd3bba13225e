// What two ranks must agree on before a byte of their pair moves, and what to say when they do not.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "core/schedule.h"

namespace a2a {

// What one rank says of its part in an operation with one peer. A transport may keep these fields in a line of its own
// instead: what follows takes anything that has them.
struct Facts {
  uint64_t sent = 0;           // bytes from the writer to the reader
  uint64_t expected = 0;       // bytes that the writer expects from the reader
  uint32_t sent_hash = 0;      // Signature::elems; without them see size_hash()
  uint32_t expected_hash = 0;  //
  uint32_t dtype = 0;          // code | bits << 8 | lanes << 16; of a reduction, which has one lane, its fold instead
  uint32_t plan = 0;           // low bits of the plan's number
  uint8_t op = 0;              // a2a::Op
  uint8_t memory = 0;          // a2a::Memory
};

uint32_t pack(DType dtype, Fold fold = Fold::none);
DType unpack(uint32_t packed);  // of what is no reduction

// Of the sizes of the segments, so that two ranks notice when they cut the same bytes differently, and of the shapes of
// blocks that are compared. 0 where there is one segment at most, whose shape is not.
uint32_t size_hash(std::span<const Run> runs);

// What is the same for all peers.
template <class Line>
void set_common(Line& line, const Signature& signature) {
  line.dtype = pack(signature.dtype, signature.fold);
  line.plan = static_cast<uint32_t>(signature.plan);
  line.op = static_cast<uint8_t>(signature.op);
  line.memory = static_cast<uint8_t>(signature.memory);
  line.sent_hash = line.expected_hash = signature.elems;
}

// The sizes of one pair; they were 0.
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

// Equal parts are a special case of given ones: a rank need not know in which words another one says it. On devices the
// operation chooses the vendor's call, so there the words matter.
template <class Line>
uint8_t family(const Line& line) {
  const bool host = static_cast<Memory>(line.memory) == Memory::host;
  return host && static_cast<Op>(line.op) == Op::alltoall ? static_cast<uint8_t>(Op::alltoallv) : line.op;
}

template <class Line>
bool agree(const Line& mine, const Line& theirs) {
  return theirs.sent == mine.expected && theirs.expected == mine.sent && theirs.sent_hash == mine.expected_hash &&
         theirs.expected_hash == mine.sent_hash && theirs.dtype == mine.dtype && theirs.plan == mine.plan &&
         theirs.memory == mine.memory && (theirs.op == mine.op || family(theirs) == family(mine));
}

// The sentence for a MismatchError. Both sides come to the same sentence.
std::string disagreement(const Signature& signature, size_t unit_bytes, Rank me, const Facts& mine, Rank peer,
                         const Facts& theirs);

// "alltoallv #146", or "none" for number 0
std::string name_of(uint32_t op, uint64_t number);

}  // namespace a2a
