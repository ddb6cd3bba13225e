// The ways of a pair's bytes. `offer` fills in this rank's line (all but the facts that are compared). `begin` reads
// and checks what the peer wrote; then the pair is a source of bytes, whatever its way. `peek` returns the next bytes,
// which stay valid, and `consume` releases so many of them. `take` copies bytes to their receives, for which some ways
// need no bytes in reach.
//
// A message is a pair without lines: it has no `offer`, and its transport tells the peer's side what to begin.
#pragma once

#include <string>

#include "transport/shm/ways/link.h"

namespace a2a::shm {

// The source of a pair on any way. Nothing happens where no bytes have come. peek() leaves out bytes that come again
// after they were consumed; take() writes them again.
std::span<const std::byte> peek(const Source& from);
void consume(const Source& from, size_t bytes);
void take(const Source& from);

// Bytes in memory of the library that this rank may read: few bytes in the line itself (eager). Of a message, those in
// its header's packet, or a fragment; then the pair waits for the next one.
namespace inlined {
void offer(const Link& link);
void begin(const Link& link);
void begin(const Source& from, std::span<const std::byte> bytes);
void take(const Source& from);
std::span<const std::byte> peek(const Source& from);
void consume(const Source& from, size_t bytes);
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
void take(const Source& from);
std::span<const std::byte> peek(const Source& from);
void consume(const Source& from, size_t bytes);
// Whether the peer has handed over all chunks that this rank still expects.
bool holds_rest(const Pair& pair, const Chunks& chunks, const Flow& handed);
// Takes back the chunks that this rank has staged. The peer does not touch them: it has given up the pair as well.
void give_up(const Link& link);
}  // namespace staged

// One copy, made by the receiver: from the sender's segment, from the memory of the same process, or by CMA.
namespace pull {
void offer(const Link& link, Kind kind);
// Call when that peer cannot read this rank's memory: CMA to it is not chosen again. Throws when this rank cannot read
// the memory either. `name` names the operation or message and this rank.
void stop_cma(LocalPeer& reader, const Cursor& source, const std::string& name);
// Looks whether the peer has made its copies, or asks for chunks. Returns whether either holds.
bool settle(const Link& link);
// Requires that `theirs` tells of the runs: kind, sent, where and count.
void begin(const Source& from, Kind kind);
void take(const Source& from);
std::span<const std::byte> peek(const Source& from);
void consume(const Source& from, size_t bytes);
// Looks for the line of chunks that this rank has asked for.
void read_rewritten_line(const Link& link);
}  // namespace pull

}  // namespace a2a::shm
