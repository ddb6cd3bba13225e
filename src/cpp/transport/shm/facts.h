// What two ranks must agree on before a byte of their pair moves, and what to say when they do not.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "a2a/schedule.h"
#include "transport/shm/layout.h"

namespace a2a::shm {

uint32_t pack(DType dtype);
DType unpack(uint32_t packed);

// Of the sizes of the segments, so that two ranks notice when they cut the same bytes differently. 0 for fewer than
// two.
uint32_t size_hash(std::span<const Run> runs);

// What this rank would write into its own line for the peer (only the facts, not how the bytes travel): what is the
// same for all peers, and the sizes of one pair.
Head common_facts(const Signature& signature);
inline void add_sizes(Head& head, std::span<const Run> sends, std::span<const Run> recvs) {
  for (const Run& run : sends) head.sent += run.bytes;
  for (const Run& run : recvs) head.expected += run.bytes;
  if (sends.size() > 1) head.sent_hash = size_hash(sends);
  if (recvs.size() > 1) head.expected_hash = size_hash(recvs);
}
Head facts(const Signature& signature, std::span<const Run> sends, std::span<const Run> recvs);

// Equal parts are a special case of given ones: a rank need not know in which words another one says it. On devices the
// operation chooses the vendor's call, so there the words matter.
inline uint8_t family(const Head& head) {
  const bool host = static_cast<Memory>(head.memory) == Memory::host;
  return host && static_cast<Op>(head.op) == Op::alltoall ? static_cast<uint8_t>(Op::alltoallv) : head.op;
}

inline bool agree(const Head& mine, const Head& theirs) {
  return theirs.sent == mine.expected && theirs.expected == mine.sent && theirs.sent_hash == mine.expected_hash &&
         theirs.expected_hash == mine.sent_hash && theirs.dtype == mine.dtype && theirs.plan == mine.plan &&
         theirs.memory == mine.memory && (theirs.op == mine.op || family(theirs) == family(mine));
}

// The sentence for a MismatchError. Both sides come to the same facts in it.
std::string disagreement(const Signature& signature, size_t unit_bytes, Rank me, const Head& mine, Rank peer,
                         const Head& theirs);

// "alltoallv #146", or "none" for number 0
std::string name_of(uint32_t op, uint64_t number);

// Text a peer wrote into its words, made safe to print.
std::string peer_text(const char* text);
// Writes text into such words, cut to fit.
void write_text(char* words, std::string_view text);

}  // namespace a2a::shm
