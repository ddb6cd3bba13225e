// Receives messages of a peer: reads their headers and fragments, and copies what a receive is matched with.
#include <algorithm>

#include "core/facts.h"
#include "transport/shm/messages/arriving.h"
#include "transport/shm/sinks/sinks.h"

namespace a2a::shm {
namespace {

Kind way_of(PacketKind kind) {
  switch (kind) {
    case PacketKind::shared:
      return Kind::shared;
    case PacketKind::pointer:
      return Kind::pointer;
    case PacketKind::cma:
      return Kind::cma;
    default:
      return Kind::inlined;  // in memory of the library
  }
}

PacketHeader reply(PacketKind kind, uint64_t id) {
  PacketHeader head{};
  head.kind = kind;
  head.id = id;
  return head;
}

}  // namespace

// ---- a message that has not been received completely ---------------------------------------------------------------

Messages::Arriving::Arriving(Messages& all, Rank from, const PacketHeader& head)
    : messages(all), peer(from), id(head.id), kind(head.kind) {
  source = all.m_.name(from);
  tag = head.tag;
  bytes = head.bytes;
  dtype = head.dtype;
  pair.in_left = head.bytes;
  pair.theirs.kind = static_cast<uint8_t>(way_of(kind));
  pair.theirs.sent = head.bytes;
  pair.theirs.where = head.where;
  pair.theirs.count = 1;
}

bool Messages::Arriving::rendezvous() const {
  return kind == PacketKind::shared || kind == PacketKind::pointer || kind == PacketKind::cma;
}

std::string Messages::Arriving::name(const Membership& m) const {
  return "rank " + std::to_string(m.name(m.rank())) + ": " + receive->name();
}

void Messages::Arriving::acknowledge(const Source&) {
  Channel& from = messages.channel(peer);
  from.replies.push_back({reply(PacketKind::fin, id), {}, receive});
  from.arriving.erase(id);
}

void Messages::Arriving::ask_for_copies(const Source&) {
  kind = PacketKind::fragment;
  messages.channel(peer).replies.push_back({reply(PacketKind::nack, id), {}, nullptr});
}

// ---- packets -------------------------------------------------------------------------------------------------------

bool Messages::read_packets(Rank peer, Channel& from) {
  bool moved = false;
  while (const auto packet = from.mailboxes.next()) {
    if (packet->head.kind >= PacketKind::ack) {
      read_reply(peer, from, *packet);
    } else {
      read_header(peer, from, *packet);
    }
    from.mailboxes.take();
    moved = true;
  }
  return moved;
}

void Messages::read_header(Rank peer, Channel& from, const Mailboxes::Received& packet) {
  const PacketHeader& head = packet.head;
  if (const auto found = from.arriving.find(head.id); found != from.arriving.end()) {
    const auto message = found->second;  // copy_here() may erase it
    if (message->receive == nullptr) m_.nonsense(peer, "fragment of a message");
    read_fragment(*message, head);
    return copy_here(*message);
  }
  const auto message = std::make_shared<Arriving>(*this, peer, head);
  Arriving& in = *message;
  if (head.id <= from.received) {  // a fragment of a message that was refused meanwhile
    if (head.kind != PacketKind::fragment) m_.nonsense(peer, "number of a message");
    in.fragment = head.where + 1;
    return acknowledge_fragment(in);
  }
  if (head.id != from.received + 1) m_.nonsense(peer, "number of a message");
  ++from.received;
  switch (head.kind) {
    case PacketKind::inlined:
      if (head.bytes > kPacketPayload) m_.nonsense(peer, "length of a message");
      inlined::begin(in.pair_source(), packet.payload.first(head.bytes));
      break;
    case PacketKind::declined:
      in.reason = packet.text();
      break;
    case PacketKind::fragment:
      read_fragment(in, head);
      from.arriving.emplace(in.id, message);
      break;
    case PacketKind::cma:
    case PacketKind::shared:
    case PacketKind::pointer:
      from.arriving.emplace(in.id, message);
      break;
    default:
      m_.nonsense(peer, "kind of a packet");
  }
  matching_.arrive(message);
  if (head.kind != PacketKind::inlined || in.receive != nullptr) return;
  in.kept.assign(in.pair.here.begin(), in.pair.here.end());  // the packet's place is used again
  in.pair.here = in.kept;
}

void Messages::read_fragment(Arriving& in, const PacketHeader& head) {
  Pair& p = in.pair;
  LocalPeer& host = *m_.peer(in.peer).host;
  const bool fits = in.kind == PacketKind::fragment && head.kind == PacketKind::fragment && p.here.empty() &&
                    head.offset == in.bytes - p.in_left && head.length <= p.in_left;
  if (!fits || !host.reach(head.where, head.length)) m_.nonsense(in.peer, "fragment of a message");
  if (head.length == 0) return;
  inlined::begin(in.pair_source(), {host.base + head.where, head.length});
  in.fragment = head.where + 1;
}

// ---- a receive and its message -------------------------------------------------------------------------------------

void Messages::meet(Arriving& in) {
  if (in.own != nullptr) m_.progress().wake_own();  // another thread of this rank may wait for the send
  if (in.own != nullptr && in.own->finished()) --kept_;
  if (in.own == nullptr && in.kind == PacketKind::inlined) channel(in.peer).mailboxes.count_matched();
  if (in.kind == PacketKind::declined) {
    const std::string why = name_of(in.receive->message()) + ": " + refused_there(in.source, in.reason);
    return in.receive->fail(Error(Code::mismatch, why));
  }
  if (const auto why = disagreement(in, in.source, m_.name(m_.rank()))) return refuse(in, *why);
  if (in.own != nullptr) return receive_own(in);
  in.pair.target = {in.receive->run()};
  in.stores = choose_stores({0, in.bytes, 0}, m_.machine());
  if (!in.rendezvous()) return copy_here(in);
  if (in.bytes == 0) return in.acknowledge(in.pair_source());
  pull::begin(in.pair_source(), in.pair.their_kind());
  if (in.pair.in != Pair::In::pulling) return;  // it has asked for fragments
  channel(in.peer).pulled.push_back(std::static_pointer_cast<Arriving>(in.shared_from_this()));
}

// Drops a message that disagrees with its receive, and tells the sender.
void Messages::refuse(Arriving& in, const std::string& why) {
  const Error error(Code::mismatch, why);
  const bool sender_waits = in.kind != PacketKind::inlined && in.pair.here.size() < in.bytes;
  if (!sender_waits) in.receive->fail(error);
  if (in.own != nullptr) return in.own->fail(error);
  Channel& from = channel(in.peer);
  from.arriving.erase(in.id);
  if (in.fragment != 0) acknowledge_fragment(in);
  from.replies.push_back({reply(PacketKind::refused, in.id), why, sender_waits ? in.receive : nullptr});
}

void Messages::receive_own(Arriving& in) {
  if (in.own->finished()) {
    Cursor target{in.receive->run()};
    if (in.bytes > 0) scatter(target, in.kept.data(), in.bytes);
  } else {
    copy_self(in.own->run(), in.receive->run(), 0);
    in.own->finish(in.source);
  }
  in.receive->finish(in.source);
}

// Copies what the library has of the message. The sender sends the next fragment when it gets the reply.
void Messages::copy_here(Arriving& in) {
  if (!in.pair.here.empty()) sinks::copy(in.pair_source());
  if (in.kind == PacketKind::fragment) acknowledge_fragment(in);
  if (in.pair.in_left > 0) return;
  channel(in.peer).arriving.erase(in.id);
  in.receive->finish(in.source);
}

void Messages::acknowledge_fragment(Arriving& in) {
  PacketHeader head = reply(PacketKind::ack, in.id);
  head.where = std::exchange(in.fragment, 0);
  channel(in.peer).replies.push_back({head, {}, nullptr});
}

// Copies a step of the first message that is copied from its sender's memory. Returns false when there is none.
bool Messages::pull(Channel& from) {
  if (from.pulled.empty()) return false;
  const auto message = from.pulled.front();
  sinks::copy(message->pair_source());
  if (message->pair.in != Pair::In::pulling) from.pulled.pop_front();
  return true;
}

}  // namespace a2a::shm
