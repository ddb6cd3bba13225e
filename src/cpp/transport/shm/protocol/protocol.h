// The steps of the protocol: every access to a shared word that needs a memory order, with the reason for that order.
//
// Templates over the atomics. The transport runs them with std::atomic; tests/model runs the same code through every
// interleaving of its threads and every value that the C++ memory model lets a load return.
#pragma once

#include <algorithm>
#include <span>

#include "transport/shm/protocol/layout.h"

namespace a2a::shm {

// ---- lines --------------------------------------------------------------------------------------------------------

// Publishes step n to one peer. The caller has written the head and any payload, by plain stores.
template <class A>
void publish(PairLine<A>& line, uint64_t n) {
  line.seq.store(n, std::memory_order_release);
}

template <class A>
bool is_published(const PairLine<A>& line, uint64_t n) {
  return line.seq.load(std::memory_order_acquire) == n;
}

// Returns whether step n was published, and then copies its head to *head.
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

// ---- completed steps ----------------------------------------------------------------------------------------------

// Publishes that this rank has read all lines of steps up to n, and copied all their bytes.
template <class A>
void publish_done(RankBlock<A>& words, uint64_t n) {
  words.done.store(n, std::memory_order_release);
}

// Whether a peer's `done` has reached n. *known caches the highest value seen.
template <class A>
bool is_done(const RankBlock<A>& words, uint64_t n, uint64_t* known) {
  if (*known < n) *known = std::max(*known, words.done.load(std::memory_order_acquire));
  return *known >= n;
}

// A line also says how far the writer's `done` was behind step n, so that most readers need not load `done`.
template <class A>
uint8_t backlog(const RankBlock<A>& own, uint64_t n) {
  return static_cast<uint8_t>(std::min<uint64_t>(n - own.done.load(std::memory_order_relaxed), kMostBacklog));
}

inline void learn_from_backlog(const Head& theirs, uint64_t n, uint64_t* known) {
  const auto behind = static_cast<uint8_t>(theirs.backlog & kMostBacklog);
  if (behind < kMostBacklog && behind <= n) *known = std::max(*known, n - behind);
}

// ---- copies from a peer's memory ----------------------------------------------------------------------------------

// Publishes that this rank has made all its copies of steps up to n from the memory that the peer offered.
template <class A, size_t kEntries>
void publish_copied(Pipe<A, kEntries>& own, uint64_t n) {
  own.copied.store(n, std::memory_order_release);
}

// Whether a peer has published that. Then this rank may reuse its input.
template <class A, size_t kEntries>
bool is_copied(const Pipe<A, kEntries>& theirs, uint64_t n) {
  return theirs.copied.load(std::memory_order_acquire) >= n;
}

// Publishes that this rank cannot copy from the memory that the peer offered in step n, and asks for chunks. It has
// read the line, and reads it again only after is_rewritten().
template <class A, size_t kEntries>
void ask_for_chunks(Pipe<A, kEntries>& own, uint64_t n) {
  own.asked.store(n, std::memory_order_release);
}

// Whether a peer has asked for chunks. Then this rank may rewrite the line.
template <class A, size_t kEntries>
bool asks_for_chunks(const Pipe<A, kEntries>& theirs, uint64_t n) {
  return theirs.asked.load(std::memory_order_acquire) == n;
}

// Publishes that the line of step n is complete again. The caller has written the head, by plain stores.
template <class A, size_t kEntries>
void publish_rewritten(Pipe<A, kEntries>& own, uint64_t n) {
  own.rewritten.store(n, std::memory_order_release);
}
template <class A, size_t kEntries>
bool is_rewritten(const Pipe<A, kEntries>& theirs, uint64_t n) {
  return theirs.rewritten.load(std::memory_order_acquire) == n;
}

// ---- chunks -------------------------------------------------------------------------------------------------------

// Records the next chunk to change hands. Nobody reads the entry that it replaces: a pair has no more chunks than
// entries, so the chunk of that entry has come back since.
template <class A, size_t kEntries>
void enlist(ChunkFlow<A, kEntries>& flow, uint64_t number, uint8_t chunk) {
  flow.chunk[number % kEntries] = chunk;
}

// Publishes that all chunks before number `count` have changed hands. The old owner no longer touches them.
template <class A, size_t kEntries>
void publish_count(ChunkFlow<A, kEntries>& flow, uint64_t count) {
  flow.count.store(count, std::memory_order_release);
}
template <class A, size_t kEntries>
uint64_t count_of(const ChunkFlow<A, kEntries>& flow) {
  return flow.count.load(std::memory_order_acquire);
}

// Returns chunk `number` of the flow. Requires that count_of() exceeds it, or that a line has announced it.
template <class A, size_t kEntries>
uint8_t listed(const ChunkFlow<A, kEntries>& flow, uint64_t number) {
  return flow.chunk[number % kEntries];
}

// ---- sleeping and waking ------------------------------------------------------------------------------------------

// Falling asleep and waking are a Dekker pair: the sleeper announces itself, then looks for news once more; the waker
// publishes its news, then looks for sleepers. The fences make it impossible that each misses the other.
//
// Calls sleep(ticket) unless look() finds news. sleep() must return at once when the bell no longer reads `ticket`. The
// ticket is loaded before that look, so a ring after the look ends the sleep.
template <class A, class Look, class Sleep>
void sleep_unless(Seat<A>& seat, const Bell<A>& bell, Look look, Sleep sleep) {
  const uint32_t ticket = bell.rings.load(std::memory_order_relaxed);
  seat.sleepers.fetch_add(1, std::memory_order_relaxed);
  A::fence(std::memory_order_seq_cst);
  if (!look()) sleep(ticket);
  seat.sleepers.fetch_sub(1, std::memory_order_relaxed);
}

// Call once after a round of publications (lines, counters, ...) and before must_wake().
template <class A>
void before_waking() {
  A::fence(std::memory_order_seq_cst);
}

// A futex wake without a change of the word would be lost on a peer that is about to sleep.
template <class A>
void ring(Bell<A>& bell) {
  bell.rings.fetch_add(1, std::memory_order_relaxed);
}

// Returns whether the peer sleeps. Then it has rung the bell, and the caller makes the futex call.
template <class A>
bool must_wake(const Seat<A>& seat, Bell<A>& bell) {
  if (seat.sleepers.load(std::memory_order_relaxed) == 0) return false;
  ring(bell);
  return true;
}

// ---- giving up and leaving ----------------------------------------------------------------------------------------

// Publishes that this rank gave up. The caller has written the text. A peer that sees any later write of this rank to
// its buffers also sees the abort when it looks again. If a peer has not seen the abort when it begins to copy,
// is_copying() sees that copy.
template <class A>
void post_abort(RankBlock<A>& words, uint32_t code) {
  words.aborted.store(code, std::memory_order_release);
  A::fence(std::memory_order_seq_cst);
}

// Returns the code with which a peer gave up, or 0. If it is 0, all that was copied from the peer before this call is
// valid.
template <class A>
uint32_t abort_of(const RankBlock<A>& words) {
  A::fence(std::memory_order_acquire);
  return words.aborted.load(std::memory_order_acquire);
}

// A rank calls these before and after a copy from a peer's memory, or to it, and abort_of() in between, before it
// copies. kAnyPeer: the copy concerns several peers.
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

// Whether that peer may still be reading this rank's memory, or writing there. Call after post_abort(). Once false,
// always false.
template <class A>
bool is_copying(const RankBlock<A>& words, uint32_t mark) {
  const uint32_t copying = words.copying.load(std::memory_order_acquire);
  return copying == mark || copying == kAnyPeer;
}

// Publishes that this rank has left. Whoever sees it can read all that this rank wrote before; this rank reads no more.
template <class A>
void publish_left(RankBlock<A>& words, Left how) {
  words.left.store(static_cast<uint32_t>(how), std::memory_order_release);
}
template <class A>
Left left_of(const RankBlock<A>& words) {
  return static_cast<Left>(words.left.load(std::memory_order_acquire));
}

// ---- views of peers' tensors --------------------------------------------------------------------------------------

// Publishes that this rank is going to view tensors. Call before the line that tells the owners of the word.
template <class A>
void begin_viewing(Viewing<A>& word, uint64_t views) {
  word.views.store(views, std::memory_order_relaxed);
}

// Publishes that this rank has ended its views. All its reads come before.
template <class A>
void end_viewing(Viewing<A>& word) {
  word.views.store(0, std::memory_order_release);
}

// Whether a peer may still view this rank's tensor. Once false, always false; then this rank may write the memory.
template <class A>
bool is_viewing(const Viewing<A>& word, uint64_t views) {
  return word.views.load(std::memory_order_acquire) == views;
}

// ---- comparing operations that run elsewhere ----------------------------------------------------------------------

template <class A>
void publish_notice(RankBlock<A>& words, uint64_t n, uint64_t word) {
  words.notice[n % kSlots].store(word, std::memory_order_release);
}
template <class A>
uint64_t notice_of(const RankBlock<A>& words, uint64_t n) {
  return words.notice[n % kSlots].load(std::memory_order_acquire);
}

// Publishes that this rank has found a disagreement. The caller has written the text, and publishes `done` afterwards:
// only a rank that has seen is_done() may call has_disagreement().
template <class A>
void publish_disagreement(RankBlock<A>& words, uint64_t n) {
  words.disagreement[n % kSlots].store(n, std::memory_order_relaxed);
}
template <class A>
bool has_disagreement(const RankBlock<A>& words, uint64_t n) {
  return words.disagreement[n % kSlots].load(std::memory_order_relaxed) == n;
}

// ---- proposals of survivors ---------------------------------------------------------------------------------------

// Publishes a proposal under a sequence lock: readers never wait, and discard what changed while they read.
template <class A>
void propose(RankBlock<A>& words, std::span<const uint64_t> alive) {
  const uint64_t version = words.version.load(std::memory_order_relaxed);
  words.version.store(version + 1, std::memory_order_relaxed);
  A::fence(std::memory_order_release);
  for (size_t i = 0; i < alive.size(); ++i) words.alive[i].store(alive[i], std::memory_order_relaxed);
  words.version.store(version + 2, std::memory_order_release);
}

// Publishes that the last proposal is final. The fences of the proposal and of its reader order this store.
template <class A>
void commit(RankBlock<A>& words) {
  words.committed.store(1, std::memory_order_relaxed);
}

// Reads a peer's proposal, and whether it is final. Returns false when there is none, or the peer is changing it.
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
