// The mailboxes of messages between two ranks (send, recv): each rank writes packets to its peer in its own segment. As
// in layout.h and protocol.h, the code is a template over the atomics, and what a peer wrote is copied once and then
// checked.
#pragma once

#include <atomic>
#include <cstdint>

#include "transport/shm/protocol/layout.h"

namespace a2a::shm {

// What a packet says: how the bytes of a message come, or the receiver's reply.
enum class PacketKind : uint32_t {
  inlined = 1,  // eager: all bytes follow in the packet
  fragment,     // some of them lie in the sender's segment, copied by the library; perhaps none yet
  shared,       // rendezvous: all of them lie in the sender's segment
  pointer,      // rendezvous: in the memory of this process
  cma,          // rendezvous: in the sender's memory; the receiver copies with process_vm_readv
  declined,     // the sender's arguments are invalid; the reason follows in the packet
  ack,          // reply to fragment: the receiver has read it, and asks for the next one
  fin,          // reply to shared, pointer, cma: the receiver has all bytes
  nack,         // reply to cma: the receiver cannot read there, and asks for fragments
  refused,      // the receiver expected another message; the reason follows in the packet
};

struct PacketHeader {
  uint64_t id;      // the message's number among those of its sender to this receiver, from 1
  int64_t tag;      //
  uint64_t bytes;   // of the message
  uint64_t where;   // fragment, shared: an offset in the sender's segment; pointer, cma: an address; ack: 0, or 1 + the
                    // offset of the fragment that was read
  uint64_t offset;  // fragment: its place in the message
  uint32_t length;  // of the fragment, or of the reason
  uint32_t dtype;   // as in a line
  PacketKind kind;
};
static_assert(sizeof(PacketHeader) == 56);

// The payload follows this struct.
template <class A>
struct alignas(kCacheLine) Packet {
  typename A::template atomic<uint64_t> seq;  // the packet's number, from 1; stored last
  typename A::template plain<PacketHeader> head;
};

// Packet n lies in place n % kPackets, which is free when the reader has taken packet n - kPackets.
constexpr uint64_t kPackets = 8;
constexpr size_t kPacketBytes = 10 * kCacheLine, kPacketPayload = kPacketBytes - kCacheLine;

// One per ordered pair of ranks that have exchanged a message, in the segment of the rank that writes it.
template <class A>
struct Mailbox {
  // The number of packets of the peer that the owner has taken. It has copied their contents before.
  alignas(kCacheLine) typename A::template atomic<uint64_t> taken;
  // How many of the peer's messages that came in a packet have met a receive. It frees no memory of the peer, so it
  // needs no order.
  typename A::template atomic<uint64_t> matched;
};
constexpr size_t kMailboxBytes = kCacheLine + kPackets * kPacketBytes;

template <class A>
void publish_packet(Packet<A>& packet, uint64_t n) {
  packet.seq.store(n, std::memory_order_release);
}
template <class A>
bool observe_packet(const Packet<A>& packet, uint64_t n, PacketHeader* head) {
  if (packet.seq.load(std::memory_order_acquire) != n) return false;
  *head = packet.head;
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

template <class A>
void publish_matched(Mailbox<A>& own, uint64_t n) {
  own.matched.store(n, std::memory_order_relaxed);
}
template <class A>
uint64_t matched_of(const Mailbox<A>& theirs) {
  return theirs.matched.load(std::memory_order_relaxed);
}

// Publishes the mailbox to a peer. Requires that all its words are zero.
template <class A, size_t kEntries>
void publish_mailbox(Pipe<A, kEntries>& own, uint64_t offset) {
  own.mailbox.store(offset + 1, std::memory_order_release);
}
// Returns 1 + the place of the peer's mailbox for this rank, or 0.
template <class A, size_t kEntries>
uint64_t mailbox_of(const Pipe<A, kEntries>& theirs) {
  return theirs.mailbox.load(std::memory_order_acquire);
}

}  // namespace a2a::shm
