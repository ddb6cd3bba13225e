// The two mailboxes of a pair, from one end; the test is the other end.
#include "transport/shm/messages/mailboxes.h"

#include <string>

#include "check.h"
#include "message_peer.h"

namespace {

using namespace shm_test;

struct Ends {
  Ends() {
    theirs = new (peer.mailbox()) Mailbox<StdAtomics>{};
    publish_mailbox(peer.block().pipe(HostilePeer::kMe), HostilePeer::kMailbox);
  }
  // The peer writes packet n.
  void write(uint64_t n, const PacketHeader& head, const std::string& text = "") {
    auto& packet = *reinterpret_cast<Packet<StdAtomics>*>(peer.mailbox() + kCacheLine + n % kPackets * kPacketBytes);
    packet.head = head;
    std::ranges::copy(text, reinterpret_cast<char*>(&packet) + kCacheLine);
    publish_packet(packet, n);
  }
  // What the rank has written as packet n.
  const std::byte* written(uint64_t n) {
    Membership& m = peer.membership();
    const uint64_t where = mailbox_of(m.block().pipe(HostilePeer::kPeer)) - 1;
    return m.arena().base() + where + kCacheLine + n % kPackets * kPacketBytes;
  }

  HostilePeer peer;
  Mailbox<StdAtomics>* theirs = nullptr;
  Mailboxes mailboxes{peer.membership(), HostilePeer::kPeer};
};

PacketHeader header(uint64_t id, size_t length = 0) {
  PacketHeader head{};
  head.id = id;
  head.length = static_cast<uint32_t>(length);
  return head;
}

TEST("a rank writes as many packets as there are places, until the peer has taken some") {
  Ends ends;
  for (uint64_t n = 1; n <= kPackets; ++n) {
    CHECK(ends.mailboxes.may_write());
    ends.mailboxes.write(header(n));
  }
  CHECK(!ends.mailboxes.may_write());
  publish_taken(*ends.theirs, 1);
  CHECK(ends.mailboxes.may_write());
  publish_taken(*ends.theirs, kPackets + 1);
  CHECK_THROWS(Code::backend, "count of packets", ends.mailboxes.may_write());
}

TEST("the payload follows the header: bytes of runs, or as much of a text as fits") {
  Ends ends;
  std::byte bytes[6] = {std::byte{1}, std::byte{2}, std::byte{3}, std::byte{4}, std::byte{5}, std::byte{6}};
  const Run runs[] = {{0, bytes, 2}, {0, bytes + 4, 2}};
  CHECK(ends.mailboxes.may_write());
  ends.mailboxes.write(header(1, 4), Cursor{runs});
  const std::byte* const payload = ends.written(1) + kCacheLine;
  CHECK(payload[0] == bytes[0] && payload[1] == bytes[1] && payload[2] == bytes[4] && payload[3] == bytes[5]);
  ends.mailboxes.write(header(2), std::string(kPacketPayload + 9, 'x'));
  PacketHeader head{};
  CHECK(observe_packet(*reinterpret_cast<const Packet<StdAtomics>*>(ends.written(2)), 2, &head));
  CHECK_EQ(head.length, kPacketPayload);
}

TEST("packets of the peer come in order, and each stays until it is taken") {
  Ends ends;
  CHECK(!ends.mailboxes.next());
  ends.write(1, header(11, 3), "abcdef");
  ends.write(2, header(12));
  for (int look = 0; look < 2; ++look) {
    const auto first = ends.mailboxes.next();
    CHECK(first && first->head.id == 11 && first->text() == "abc");
  }
  ends.mailboxes.take();
  CHECK_EQ(taken_of(*reinterpret_cast<const Mailbox<StdAtomics>*>(ends.written(0) - kCacheLine)), 1);
  CHECK(ends.mailboxes.next()->head.id == 12);
  ends.mailboxes.take();
  CHECK(!ends.mailboxes.next());
}

TEST("a text of a peer has no control characters and no more bytes than a packet") {
  Ends ends;
  ends.write(1, header(1, 100'000), "a\nb");
  CHECK_EQ(ends.mailboxes.next()->text(), "a?b");
}

TEST("mailboxes are crowded when the peer keeps 256 messages") {
  Ends ends;
  for (int i = 0; i < 255; ++i) ends.mailboxes.count_inlined();
  CHECK(!ends.mailboxes.crowded());
  ends.mailboxes.count_inlined();
  CHECK(ends.mailboxes.crowded());
  publish_matched(*ends.theirs, 1);
  CHECK(!ends.mailboxes.crowded());
  for (int i = 0; i < 1; ++i) ends.mailboxes.count_inlined();
  publish_matched(*ends.theirs, 258);
  CHECK_THROWS(Code::backend, "count of messages", ends.mailboxes.crowded());
}

TEST("a place outside of the peer's segment is no mailbox") {
  for (const uint64_t where : {HostilePeer::kSegment - kMailboxBytes + kCacheLine, size_t{1}, SIZE_MAX - 1}) {
    HostilePeer peer;
    publish_mailbox(peer.block().pipe(HostilePeer::kMe), where);
    Mailboxes mailboxes(peer.membership(), HostilePeer::kPeer);
    CHECK_THROWS(Code::backend, "mailbox", mailboxes.next());
  }
}

}  // namespace
