// Sends messages to a peer: writes their headers, their fragments and the replies to the peer's messages, and reads the
// peer's replies.
#include <algorithm>

#include "core/facts.h"
#include "transport/shm/messages/messages.h"
#include "transport/shm/ways/ways.h"

namespace a2a::shm {
namespace {

// The size of a fragment. The receiver copies one while the sender fills the next.
constexpr size_t kFragmentBytes = size_t{256} << 10;
constexpr size_t kFragmentsAtOnce = 2;

}  // namespace

bool Messages::write_packets(Rank peer, Channel& to) {
  bool moved = false;
  while (!to.replies.empty() && to.mailboxes.may_write()) {
    write_reply(peer, to, to.replies.front());
    to.replies.pop_front();
    moved = true;
  }
  while (!to.queued.empty() && to.mailboxes.may_write()) {
    announce(peer, to, std::move(to.queued.front()));
    to.queued.pop_front();
    moved = true;
  }
  for (auto at = to.announced.begin(); at != to.announced.end();) {
    Outgoing& message = at->second;
    bool wrote = false;
    while (message.requested > 0 && message.left > 0 && to.mailboxes.may_write()) {
      --message.requested;
      write_fragment(to, message);
      wrote = moved = true;
    }
    at = wrote && message.left == 0 ? to.announced.erase(at) : std::next(at);
  }
  return moved;
}

void Messages::write_reply(Rank peer, Channel& to, const Reply& reply) {
  if (reply.head.kind != PacketKind::refused) {
    to.mailboxes.write(reply.head);
    if (reply.receive != nullptr) reply.receive->finish(m_.name(peer));
    return;
  }
  to.mailboxes.write(reply.head, reply.text);
  if (reply.receive != nullptr) reply.receive->fail(Error(Code::mismatch, reply.text));
}

// Writes the header of a message, and eager bytes.
void Messages::announce(Rank peer, Channel& to, Outgoing message) {
  const Message& m = message.work->message();
  PacketHeader head{message.id, m.tag, m.bytes, 0, 0, 0, pack(m.dtype), PacketKind::declined};
  if (!m.refusal.empty()) {
    to.mailboxes.write(head, m.refusal);
    return message.work->finish(m_.rank());
  }
  const Kind kind = choose(peer, to, message);
  switch (kind) {
    case Kind::inlined:
      to.mailboxes.count_inlined();
      head.kind = PacketKind::inlined;
      head.length = static_cast<uint32_t>(m.bytes);
      to.mailboxes.write(head, message.source);
      return message.work->finish(m_.rank());
    case Kind::staged:
      if (m.bytes <= kMostEager && to.fragments.size() < kMostBuffered) return write_fragment(to, message);
      head.kind = PacketKind::fragment;
      break;
    case Kind::none:  // the sender waits for the receive
      head.kind = PacketKind::shared;
      break;
    case Kind::shared:
      head.kind = PacketKind::shared;
      head.where = m_.arena().offset(message.source.data());
      break;
    default:
      head.kind = kind == Kind::pointer ? PacketKind::pointer : PacketKind::cma;
      head.where = reinterpret_cast<uint64_t>(message.source.data());
  }
  to.announced.emplace(message.id, std::move(message));
  to.mailboxes.write(head);
}

Kind Messages::choose(Rank peer, Channel& to, const Outgoing& message) {
  const LocalPeer& host = *m_.peer(peer).host;
  const std::span<const Run> runs = message.source.runs;
  const size_t bytes = message.left;
  const Route route{.bytes = bytes,
                    .inline_bytes = kPacketPayload,
                    .chunk_bytes = ChunkShape::of(m_.size()).capacity(),
                    .same_process = host.same_process,
                    .gaps = has_gaps(runs),
                    .cma = host.cma_to};
  const EagerRoom room{.header = bytes <= kPacketPayload && !to.mailboxes.crowded(),
                       .fragment = to.fragments.size() < kMostBuffered};
  sends_.begin(runs);
  SentMemory memory(m_, runs, sends_);
  return choose_way_of_message(route, room, m_.machine(), memory).kind;
}

// The send is finished when its last bytes are copied.
void Messages::write_fragment(Channel& to, Outgoing& message) {
  const Message& m = message.work->message();
  const size_t length = std::min<size_t>(message.left, kFragmentBytes);
  to.fragments.reserve(to.fragments.size() + 1);
  std::byte* const fragment = m_.allocate(length);
  to.fragments.push_back(fragment);
  gather(message.source, fragment, length);
  to.mailboxes.write({message.id, m.tag, m.bytes, m_.arena().offset(fragment), m.bytes - message.left,
                      static_cast<uint32_t>(length), pack(m.dtype), PacketKind::fragment});
  message.left -= length;
  if (message.left == 0) message.work->finish(m_.rank());
}

void Messages::read_reply(Rank peer, Channel& to, const Mailboxes::Received& packet) {
  const PacketHeader& head = packet.head;
  if (head.kind == PacketKind::ack && head.where != 0) free_fragment(peer, to, head.where - 1);
  const auto found = to.announced.find(head.id);
  const bool open = found != to.announced.end();
  switch (head.kind) {
    case PacketKind::ack:
      if (open) found->second.requested += head.where != 0 ? 1 : kFragmentsAtOnce;
      return;
    case PacketKind::fin:
      if (!open) m_.nonsense(peer, "reply to a message");
      found->second.work->finish(m_.rank());
      to.announced.erase(found);
      return;
    case PacketKind::nack: {
      if (!open) m_.nonsense(peer, "reply to a message");
      Outgoing& message = found->second;
      const std::string name = "rank " + std::to_string(m_.name(m_.rank())) + ": " + message.work->name();
      pull::stop_cma(*m_.peer(peer).host, message.source, name);
      message.requested = kFragmentsAtOnce;
      return;
    }
    case PacketKind::refused: {
      const Error error(Code::mismatch, packet.text());
      if (!open) return void(to.late_refusal.emplace(error));
      found->second.work->fail(error);
      to.announced.erase(found);
      return;
    }
    default:
      m_.nonsense(peer, "kind of a packet");
  }
}

void Messages::free_fragment(Rank peer, Channel& to, uint64_t where) {
  const auto fragment = std::ranges::find(to.fragments, m_.arena().base() + where);
  if (fragment == to.fragments.end()) m_.nonsense(peer, "reply to a message");
  m_.release(*fragment);
  to.fragments.erase(fragment);
}

}  // namespace a2a::shm
