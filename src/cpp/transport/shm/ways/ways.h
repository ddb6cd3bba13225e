// The ways of a pair's bytes, a page each. `offer` fills in what the line says of them (all but the facts that are
// compared), `begin` reads what the peer's line says and checks it, `take` brings them to where they are received. In a
// reduction they are folded instead, all peers' at once: `peek` shows the next ones in reach, which stay there, and
// `consume` gives back so many of them.
#pragma once

#include "transport/shm/ways/link.h"

namespace a2a::shm {

// The next bytes of a pair, whichever way they come, and nothing where none are in reach.
std::span<const std::byte> peek(const Link& link);
void consume(const Link& link, size_t bytes);

// A few bytes travel in the line itself.
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
// Fills a chunk and hands it over, if one is free. Returns whether it did. One at a time: where the peer sends as well,
// the chunk that has just come from it is the one that is filled next.
bool send(const Link& link);
// The peer cannot read this rank's memory. From now on this pair goes through chunks, this operation included.
void replace_cma(const Link& link);
void begin(const Link& link);
void take(const Link& link);
std::span<const std::byte> peek(const Link& link);
void consume(const Link& link, size_t bytes);
// Whether all that is still to come lies in chunks that the peer has handed over.
bool holds_rest(const Pair& pair, const Chunks& chunks, const Flow& handed);
// What this rank has staged the peer will not touch: it has given the pair up as well.
void give_up(const Link& link);
}  // namespace staged

// One copy, made by the receiver: from the sender's segment, from the memory of its own process, or by the kernel.
namespace pull {
void offer(const Link& link, Kind kind);
// Looks whether the peer has made its copies, or asks for chunks instead. Returns whether either holds.
bool settle(const Link& link);
void begin(const Link& link, Kind kind);
void take(const Link& link);
std::span<const std::byte> peek(const Link& link);
void consume(const Link& link, size_t bytes);
// Looks for the chunks that this rank has asked for.
void hear_answer(const Link& link);
}  // namespace pull

// One copy, made by the sender: two ranks that reach each other's outputs write their bytes there, where otherwise each
// reads from the other's input.
namespace put {
// Where the peer may put its bytes, if it may.
uint64_t invite(const Link& link);
// Whether each of the two puts its bytes into the other one's memory: both lines say so.
bool is_agreed(const Pair& pair);
void begin(const Link& link);
void send(const Link& link);
}  // namespace put

}  // namespace a2a::shm
