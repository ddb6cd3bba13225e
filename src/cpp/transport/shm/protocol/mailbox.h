// The words of messages between two ranks (send, recv): what a rank tells one peer, letter by letter, in its own
// segment. Like layout.h and protocol.h: templates over the atomics, whatever is read is copied once and then checked.
#pragma once

#include <atomic>
#include <cstdint>

#include "transport/shm/protocol/layout.h"

namespace a2a::shm {

// How the bytes of a message come, or what the receiver answers.
enum class LetterKind : uint32_t {
  inlined = 1,  // all bytes follow in the letter
  piece,        // some of them stand in the sender's segment, where the library has copied them; perhaps none yet
  shared,       // all of them stand in the sender's segment
  pointer,      // in the memory of this process
  cma,          // in the sender's memory: the receiver copies with process_vm_readv
  declined,     // the sender's arguments were bad; the reason follows in the letter
  read,         // answer to piece: the receiver has read it, and wants the next one
  taken,        // answer to shared, pointer, cma: the receiver has all bytes
  unreadable,   // answer to cma: the receiver cannot read there, and wants pieces
  refused,      // the receiver wanted another message; the reason follows in the letter
};

struct LetterHead {
  uint64_t id;      // of the message: its sender counts those to one receiver, from 1
  int64_t tag;      //
  uint64_t bytes;   // of the message
  uint64_t where;   // piece, shared: an offset in the sender's segment; pointer, cma: an address; read: as in the piece
  uint64_t offset;  // piece: where it begins in the message
  uint32_t length;  // of the piece, or of the reason
  uint32_t dtype;   // as in a line
  LetterKind kind;
};
static_assert(sizeof(LetterHead) == 56);

// The payload follows.
template <class A>
struct alignas(kCacheLine) Letter {
  typename A::template atomic<uint64_t> seq;  // the letter's number, from 1; stored last
  typename A::template plain<LetterHead> head;
};

// Letter n stands in place n % kLetters, which is free again when the reader has taken letter n - kLetters.
constexpr uint64_t kLetters = 8;
constexpr size_t kLetterBytes = 10 * kCacheLine, kLetterPayload = kLetterBytes - kCacheLine;

// One per ordered pair of ranks that have exchanged a message, in the segment of the rank that writes it.
template <class A>
struct Mailbox {
  // How many letters of the peer the owner has taken. All it wanted of them was copied before.
  alignas(kCacheLine) typename A::template atomic<uint64_t> taken;
};
constexpr size_t kMailboxBytes = kCacheLine + kLetters * kLetterBytes;

template <class A>
void publish_letter(Letter<A>& letter, uint64_t n) {
  letter.seq.store(n, std::memory_order_release);
}
template <class A>
bool observe_letter(const Letter<A>& letter, uint64_t n, LetterHead* head) {
  if (letter.seq.load(std::memory_order_acquire) != n) return false;
  *head = letter.head;
  return true;
}

template <class A>
void publish_taken(Mailbox<A>& own, uint64_t n) {
  own.taken.store(n, std::memory_order_release);
}
template <class A>
uint64_t taken_of(const Mailbox<A>& theirs) {
  return theirs.taken.load(std::memory_order_acquire);
}

// Shows a peer the mailbox, whose words are all zero.
template <class A, size_t kEntries>
void publish_mailbox(Pipe<A, kEntries>& own, uint64_t offset) {
  own.mailbox.store(offset + 1, std::memory_order_release);
}
// Where the peer's mailbox for this rank stands, if there is one: 1 + that.
template <class A, size_t kEntries>
uint64_t mailbox_of(const Pipe<A, kEntries>& theirs) {
  return theirs.mailbox.load(std::memory_order_acquire);
}

}  // namespace a2a::shm
