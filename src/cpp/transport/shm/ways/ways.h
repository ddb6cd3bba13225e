// The ways of a pair's bytes. `offer` fills in this rank's line (all but the facts that are compared). `begin` reads
// and checks the peer's line; then the pair is a source of bytes, whatever its way. `peek` returns the next bytes,
// which stay valid, and `consume` releases so many of them. `take` copies bytes to their receives, for which some ways
// need no bytes in reach.
#pragma once

#include "transport/shm/ways/link.h"

namespace a2a::shm {

// The source of a pair on any way. Nothing happens where no bytes have come. peek() leaves out bytes that come again
// after they were consumed; take() writes them again.
std::span<const std::byte> peek(const Link& link);
void consume(const Link& link, size_t bytes);
void take(const Link& link);

// Few bytes, in the line itself (eager).
namespace inlined {
void offer(const Link& link);
void begin(const Link& link);
void take(const Link& link);
std::span<const std::byte> peek(const Link& link);
void consume(const Link& link, size_t bytes);
}  // namespace inlined

// Two copies, through chunks that the two ranks hand to and fro.
namespace staged {
void offer(const Link& link);
// Fills a chunk and hands it over, if one is free. Returns whether it did. Only one, because where the peer sends as
// well, the chunk that has just come from it is to be filled next.
bool send(const Link& link);
// Call when the peer cannot read this rank's memory. Sends this operation's bytes, and those of later ones, in chunks.
void replace_cma(const Link& link);
void begin(const Link& link);
void take(const Link& link);
std::span<const std::byte> peek(const Link& link);
void consume(const Link& link, size_t bytes);
// Whether the peer has handed over all chunks that this rank still expects.
bool holds_rest(const Pair& pair, const Chunks& chunks, const Flow& handed);
// Takes back the chunks that this rank has staged. The peer does not touch them: it has given up the pair as well.
void give_up(const Link& link);
}  // namespace staged

// One copy, made by the receiver: from the sender's segment, from the memory of the same process, or by CMA.
namespace pull {
void offer(const Link& link, Kind kind);
// Looks whether the peer has made its copies, or asks for chunks. Returns whether either holds.
bool settle(const Link& link);
void begin(const Link& link, Kind kind);
void take(const Link& link);
std::span<const std::byte> peek(const Link& link);
void consume(const Link& link, size_t bytes);
// Looks for the line of chunks that this rank has asked for.
void hear_answer(const Link& link);
}  // namespace pull

}  // namespace a2a::shm
