// The steps of the protocol: every access to a shared word that needs a memory order, with the reason for that order.
//
// Templates over the atomics. The transport runs them with std::atomic; tests/model runs the same code through every
// interleaving of its threads and every value that the C++ memory model lets a load return.
#pragma once

#include <algorithm>
#include <span>

#include "transport/shm/protocol/layout.h"

namespace a2a::shm {

// ---- lines ---------------------------------------------------------------------------------------------------------

// Publishes step n to one peer. The head and any payload are written before, by plain stores.
template <class A>
void publish(PairLine<A>& line, uint64_t n) {
  line.seq.store(n, std::memory_order_release);
}

template <class A>
bool is_published(const PairLine<A>& line, uint64_t n) {
  return line.seq.load(std::memory_order_acquire) == n;
}

// Whether step n was published; then *head is what it says.
template <class A>
bool observe(const PairLine<A>& line, uint64_t n, Head* head) {
  if (!is_published(line, n)) return false;
  *head = line.head;
  return true;
}

template <class A>
const std::byte* inline_payload(const PairLine<A>& line) {
  return reinterpret_cast<const std::byte*>(&line) + kInlineOffset;
}

// ---- what is done --------------------------------------------------------------------------------------------------

// Says that this rank has read all lines of step n and before, and copied all their bytes.
template <class A>
void publish_done(RankBlock<A>& words, uint64_t n) {
  words.done.store(n, std::memory_order_release);
}

// Whether a peer has said that. *known is what was seen of its `done` before.
template <class A>
bool is_done(const RankBlock<A>& words, uint64_t n, uint64_t* known) {
  if (*known < n) *known = std::max(*known, words.done.load(std::memory_order_acquire));
  return *known >= n;
}

// A line also tells how far behind step n its writer's `done` was, so that most readers need not look there.
template <class A>
uint8_t backlog(const RankBlock<A>& own, uint64_t n) {
  return static_cast<uint8_t>(std::min<uint64_t>(n - own.done.load(std::memory_order_relaxed), kMostBacklog));
}

inline void learn_from_backlog(const Head& theirs, uint64_t n, uint64_t* known) {
  const auto behind = static_cast<uint8_t>(theirs.backlog & kMostBacklog);
  if (behind < kMostBacklog && behind <= n) *known = std::max(*known, n - behind);
}

// ---- what was copied from a peer's memory, or to it ----------------------------------------------------------------

// Says that this rank has made all its copies of step n and before from the memory that the peer showed it, or to
// the memory to which it was invited.
template <class A, size_t kEntries>
void publish_copied(Pipe<A, kEntries>& own, uint64_t n) {
  own.copied.store(n, std::memory_order_release);
}

// Whether a peer has said that of this rank's memory, which may be written then, or read.
template <class A, size_t kEntries>
bool is_copied(const Pipe<A, kEntries>& theirs, uint64_t n) {
  return theirs.copied.load(std::memory_order_acquire) >= n;
}

// Says that this rank cannot copy from the memory that the peer showed it in step n, and asks for chunks. It has
// read the line, and reads it again only when is_rewritten().
template <class A, size_t kEntries>
void ask_for_chunks(Pipe<A, kEntries>& own, uint64_t n) {
  own.asked.store(n, std::memory_order_release);
}

// Whether a peer has asked for that; then the line may be written again.
template <class A, size_t kEntries>
bool asks_for_chunks(const Pipe<A, kEntries>& theirs, uint64_t n) {
  return theirs.asked.load(std::memory_order_acquire) == n;
}

// Says that the line of step n is complete again. The head is written before, by plain stores.
template <class A, size_t kEntries>
void publish_rewritten(Pipe<A, kEntries>& own, uint64_t n) {
  own.rewritten.store(n, std::memory_order_release);
}
template <class A, size_t kEntries>
bool is_rewritten(const Pipe<A, kEntries>& theirs, uint64_t n) {
  return theirs.rewritten.load(std::memory_order_acquire) == n;
}

// ---- chunks --------------------------------------------------------------------------------------------------------

// Which chunk is the next to change hands. Nobody reads the entry that it replaces: a pair has no more chunks than
// entries, so that one's chunk has come back since.
template <class A, size_t kEntries>
void enlist(ChunkFlow<A, kEntries>& flow, uint64_t number, uint8_t chunk) {
  flow.chunk[number % kEntries] = chunk;
}

// Says that all chunks before this number have changed hands. The old owner has done with them.
template <class A, size_t kEntries>
void publish_count(ChunkFlow<A, kEntries>& flow, uint64_t count) {
  flow.count.store(count, std::memory_order_release);
}
template <class A, size_t kEntries>
uint64_t count_of(const ChunkFlow<A, kEntries>& flow) {
  return flow.count.load(std::memory_order_acquire);
}

// Which chunk that was. Its number is below count_of(), or a line has told of it.
template <class A, size_t kEntries>
uint8_t listed(const ChunkFlow<A, kEntries>& flow, uint64_t number) {
  return flow.chunk[number % kEntries];
}

// ---- sleeping and waking -------------------------------------------------------------------------------------------

// Falling asleep and waking are a Dekker pair: the sleeper announces itself, then looks for news once more; the waker
// stores its news, then looks for sleepers. The fences make it impossible that both miss each other.
//
// Calls sleep(ticket), which must return at once when the bell does not read `ticket` any more, unless look() finds
// news. The ticket is older than that look, so that a ring after the look is noticed.
template <class A, class Look, class Sleep>
void sleep_unless(Seat<A>& seat, const Bell<A>& bell, Look look, Sleep sleep) {
  const uint32_t ticket = bell.rings.load(std::memory_order_relaxed);
  seat.sleepers.fetch_add(1, std::memory_order_relaxed);
  A::fence(std::memory_order_seq_cst);
  if (!look()) sleep(ticket);
  seat.sleepers.fetch_sub(1, std::memory_order_relaxed);
}

// Once after a round of news (several lines, counters, ...) and before must_wake().
template <class A>
void before_waking() {
  A::fence(std::memory_order_seq_cst);
}

// A wake without a change of the word would be lost on a peer that is about to sleep.
template <class A>
void ring(Bell<A>& bell) {
  bell.rings.fetch_add(1, std::memory_order_relaxed);
}

// Whether the peer must be woken; the bell was rung then, and the caller makes the futex call.
template <class A>
bool must_wake(const Seat<A>& seat, Bell<A>& bell) {
  if (seat.sleepers.load(std::memory_order_relaxed) == 0) return false;
  ring(bell);
  return true;
}

// ---- giving up and leaving -----------------------------------------------------------------------------------------

// Says why this rank gave up; the text is written before. Whatever this rank does to its buffers afterwards, a peer
// that sees any of it also sees the abort when it looks again; and a peer that has not seen the abort when it begins to
// copy is seen by is_copying().
template <class A>
void post_abort(RankBlock<A>& words, uint32_t code) {
  words.aborted.store(code, std::memory_order_release);
  A::fence(std::memory_order_seq_cst);
}

// The code with which a peer gave up, 0 when it has not. What was copied from it before this look was copied before it
// gave up when the answer is 0.
template <class A>
uint32_t abort_of(const RankBlock<A>& words) {
  A::fence(std::memory_order_acquire);
  return words.aborted.load(std::memory_order_acquire);
}

// Between these two a rank copies from the memory of a peer, or to it. It asks abort_of() first. kAnyPeer: from
// several.
constexpr uint32_t kAnyPeer = UINT32_MAX;
template <class A>
void begin_copying(RankBlock<A>& words, uint32_t mark) {
  words.copying.store(mark, std::memory_order_relaxed);
  A::fence(std::memory_order_seq_cst);
}
template <class A>
void end_copying(RankBlock<A>& words) {
  words.copying.store(0, std::memory_order_release);
}

// After post_abort(): whether that peer may still read this rank's memory, or write there. Once false, always false.
template <class A>
bool is_copying(const RankBlock<A>& words, uint32_t mark) {
  const uint32_t copying = words.copying.load(std::memory_order_acquire);
  return copying == mark || copying == kAnyPeer;
}

// Says that this rank takes no more part. All it wrote before can be read by whoever sees it, and it reads no more.
template <class A>
void publish_left(RankBlock<A>& words, Left how) {
  words.left.store(static_cast<uint32_t>(how), std::memory_order_release);
}
template <class A>
Left left_of(const RankBlock<A>& words) {
  return static_cast<Left>(words.left.load(std::memory_order_acquire));
}

// ---- looking at peers' tensors -------------------------------------------------------------------------------------

// Says that this rank is going to look. Before it publishes the line that tells the owners of the word.
template <class A>
void begin_viewing(Viewing<A>& word, uint64_t views) {
  word.views.store(views, std::memory_order_relaxed);
}

// Says that it does so no more. All its looks come before.
template <class A>
void end_viewing(Viewing<A>& word) {
  word.views.store(0, std::memory_order_release);
}

// Whether a peer may still look at the tensor that this rank has shown it. Once false, always false: then the memory
// may be written.
template <class A>
bool is_viewing(const Viewing<A>& word, uint64_t views) {
  return word.views.load(std::memory_order_acquire) == views;
}

// ---- comparing operations that run elsewhere -----------------------------------------------------------------------

template <class A>
void publish_notice(RankBlock<A>& words, uint64_t n, uint64_t word) {
  words.notice[n % kSlots].store(word, std::memory_order_release);
}
template <class A>
uint64_t notice_of(const RankBlock<A>& words, uint64_t n) {
  return words.notice[n % kSlots].load(std::memory_order_acquire);
}

// Says that this rank has found a disagreement. The text is written before, and `done` is published afterwards: only
// who has seen is_done() may ask.
template <class A>
void publish_quarrel(RankBlock<A>& words, uint64_t n) {
  words.quarrel[n % kSlots].store(n, std::memory_order_relaxed);
}
template <class A>
bool has_quarrel(const RankBlock<A>& words, uint64_t n) {
  return words.quarrel[n % kSlots].load(std::memory_order_relaxed) == n;
}

// ---- proposals of survivors ----------------------------------------------------------------------------------------

// A sequence lock: readers never wait, and take nothing that was changed while they read.
template <class A>
void propose(RankBlock<A>& words, std::span<const uint64_t> alive) {
  const uint64_t version = words.version.load(std::memory_order_relaxed);
  words.version.store(version + 1, std::memory_order_relaxed);
  A::fence(std::memory_order_release);
  for (size_t i = 0; i < alive.size(); ++i) words.alive[i].store(alive[i], std::memory_order_relaxed);
  words.version.store(version + 2, std::memory_order_release);
}

// Says that the last proposal is this rank's final word. Ordered by the fences of a proposal and of its reader.
template <class A>
void commit(RankBlock<A>& words) {
  words.committed.store(1, std::memory_order_relaxed);
}

// A peer's proposal, and whether it is its final word. False when it has made none, or is just changing it.
template <class A>
bool read_proposal(const RankBlock<A>& words, std::span<uint64_t> alive, bool* committed) {
  const uint64_t version = words.version.load(std::memory_order_acquire);
  if (version == 0 || version % 2 != 0) return false;
  *committed = words.committed.load(std::memory_order_relaxed) != 0;
  for (size_t i = 0; i < alive.size(); ++i) alive[i] = words.alive[i].load(std::memory_order_relaxed);
  A::fence(std::memory_order_acquire);
  return words.version.load(std::memory_order_relaxed) == version;
}

}  // namespace a2a::shm
