#include "transport/shm/messages/messages.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "core/facts.h"
#include "transport/shm/messages/arriving.h"
#include "transport/shm/policy/choose.h"
#include "transport/shm/protocol/protocol.h"
#include "transport/shm/protocol/texts.h"

namespace a2a::shm {
namespace {

// memmove, because a message of a rank to itself may overlap its receive buffer.
void deliver(const Message& receive, uint64_t offset, const std::byte* from, size_t bytes) {
  if (bytes > 0) std::memmove(receive.data + offset, from, bytes);
}

}  // namespace

Messages::Messages(Membership& membership, Matching& matching, HeldMessages& held)
    : m_(membership), lanes_(static_cast<size_t>(membership.size())), matching_(matching), held_(held) {}
Messages::~Messages() = default;

Messages::Lane& Messages::lane(Rank peer) {
  auto& lane = lanes_[static_cast<size_t>(peer)];
  if (lane == nullptr) lane = std::make_unique<Lane>(m_, peer);
  return *lane;
}

// ---- start, progress and end --------------------------------------------------------------------------------------

void Messages::start(const std::shared_ptr<MessageWork>& work) {
  const Message& message = work->message();
  const Rank peer = message.peer == kAnySource ? kAnySource : m_.rank_named(message.peer);
  for (Rank other = 0; other < m_.size() && peer == kAnySource; ++other) {
    if (other != m_.rank()) lane(other);
  }
  if (peer != kAnySource && peer != m_.rank()) {
    Lane& with = lane(peer);
    if (read(peer, with)) m_.wake_sleeper(peer);
    if (auto complaint = std::exchange(with.complaint, std::nullopt)) return work->fail(*complaint);
  }
  if (message.refusal.empty() || message.sends) pending_.push_back(work);
  held_.begin(work, [this](const auto& free) { begin(free); });
  advance();
}

void Messages::begin(const std::shared_ptr<MessageWork>& work) {
  work->begin();
  const Message& message = work->message();
  if (!message.sends) return matching_.post(work);
  const Rank peer = m_.rank_named(message.peer);
  if (peer == m_.rank()) return send_to_self(work);
  Lane& to = lane(peer);
  to.unsaid.push_back({work, ++to.sent});
}

void Messages::fail_all(const Error& error) {
  for (const auto& work : pending_) work->fail(error);
  pending_.clear();
}

std::shared_ptr<MessageWork> Messages::expired(Deadline::Clock::time_point now) const {
  const auto late = [now](const auto& work) { return !work->finished() && work->message().deadline.passed(now); };
  const auto found = std::ranges::find_if(pending_, late);
  return found == pending_.end() ? nullptr : *found;
}

std::shared_ptr<MessageWork> Messages::needing(Rank peer, bool anybody) const {
  const auto needs = [&](const auto& work) {
    const Rank other = work->message().peer;
    return !work->finished() && (other == m_.name(peer) || (anybody && other == kAnySource));
  };
  const auto found = std::ranges::find_if(pending_, needs);
  return found == pending_.end() ? nullptr : *found;
}

// Returns the first unfinished operation. A receive from any rank may have been finished by another host's message.
std::vector<std::shared_ptr<MessageWork>>::const_iterator Messages::unfinished() const {
  return std::ranges::find_if(pending_, [](const auto& work) { return !work->finished(); });
}

bool Messages::active() const {
  const auto writes = [](const auto& lane) { return lane != nullptr && !lane->answers.empty(); };
  return busy() || matching_.waits() || std::ranges::any_of(lanes_, writes);
}

bool Messages::advance() {
  bool moved = held_.release();
  for (Rank peer = 0; peer < m_.size(); ++peer) {
    if (lanes_[static_cast<size_t>(peer)] == nullptr) continue;
    Lane& at = *lanes_[static_cast<size_t>(peer)];
    const bool news = read(peer, at) | copy(peer, at) | write(peer, at);
    if (news) m_.wake_sleeper(peer);
    moved |= news;
  }
  if (!pending_.empty() && std::erase_if(pending_, [](const auto& work) { return work->finished(); }) > 0) {
    matching_.prune();
    moved = true;
  }
  return moved;
}

// ---- from this rank to itself -------------------------------------------------------------------------------------

void Messages::send_to_self(const std::shared_ptr<MessageWork>& work) {
  const Message& message = work->message();
  const auto arriving = std::make_shared<Arriving>(*this);
  arriving->source = m_.name(m_.rank());
  arriving->peer = m_.rank();
  arriving->tag = message.tag;
  arriving->bytes = message.bytes;
  arriving->dtype = pack(message.dtype);
  arriving->own = work;
  if (!message.refusal.empty()) return work->finish(m_.rank());  // no other rank has to know
  if (message.bytes <= kEager && kept_ < kMostEager) {
    ++kept_;
    arriving->kept.assign(message.data, message.data + message.bytes);
    work->finish(m_.rank());
  }
  matching_.arrive(arriving);
}

// ---- a receive and its message ------------------------------------------------------------------------------------

void Messages::meet(Arriving& in) {
  const Message& wanted = in.receive->message();
  if (in.own != nullptr) m_.progress().wake_own();  // another thread of this rank may wait for the send
  if (in.own != nullptr && in.own->finished()) --kept_;
  if (in.own == nullptr && in.kind == LetterKind::inlined) lane(in.peer).letters.count_matched();
  if (in.kind == LetterKind::declined) {
    const std::string why = peer_text(reinterpret_cast<const char*>(in.kept.data()));
    return in.receive->fail(Error(Code::mismatch, name_of(wanted) + ": " + refused_there(in.source, why)));
  }
  if (const auto why = disagreement(in, in.source, m_.name(m_.rank()))) return refuse(in, *why);
  if (in.own != nullptr && !in.own->finished()) {
    deliver(wanted, 0, in.own->message().data, in.bytes);
    in.own->finish(in.source);
    return in.receive->finish(in.source);
  }
  switch (in.kind) {
    case LetterKind::inlined:
      deliver(wanted, 0, in.kept.data(), in.bytes);
      return in.receive->finish(in.source);
    case LetterKind::piece:
      return copy_piece(in);
    default:
      lane(in.peer).copying.push_back(std::static_pointer_cast<Arriving>(in.shared_from_this()));
  }
}

// Drops a message that disagrees with its receive, and tells the sender.
void Messages::refuse(Arriving& in, const std::string& why) {
  const Error error(Code::mismatch, why);
  const bool sender_waits = in.kind != LetterKind::inlined && in.there < in.bytes;
  if (!sender_waits) in.receive->fail(error);
  if (in.own != nullptr) return in.own->fail(error);
  Lane& from = lane(in.peer);
  from.arriving.erase(in.id);
  if (in.there > 0) answer_piece(from, in);
  LetterHead head = answer(LetterKind::refused, in.id);
  head.length = static_cast<uint32_t>(std::min<size_t>(why.size(), kLetterPayload));
  from.answers.push_back({head, why, sender_waits ? in.receive : nullptr});
}

// Copies the current piece. The sender sends the next one when it gets the answer.
void Messages::copy_piece(Arriving& in) {
  const Message& wanted = in.receive->message();
  deliver(wanted, in.copied, in_segment(in.peer, in.where, in.there), in.there);
  in.copied += in.there;
  Lane& from = lane(in.peer);
  answer_piece(from, in);
  if (in.copied < in.bytes) return;
  in.receive->finish(in.source);
  from.arriving.erase(in.id);
}

void Messages::answer_piece(Lane& lane, Arriving& in) {
  LetterHead head = answer(LetterKind::read, in.id);
  head.where = in.there > 0 ? in.where + 1 : 0;
  in.there = 0;
  lane.answers.push_back({head, {}, nullptr});
}

// Copies a step of the first message of lane.copying. Returns false when there is none.
bool Messages::copy(Rank peer, Lane& lane) {
  if (lane.copying.empty()) return false;
  const auto message = lane.copying.front();
  Arriving& in = *message;
  const Message& wanted = in.receive->message();
  const size_t step = std::min<size_t>(in.bytes - in.copied, kStepBytes);
  LocalPeer& host = *m_.peer(peer).host;
  if (in.kind == LetterKind::cma) {
    const Run from{peer, reinterpret_cast<std::byte*>(in.where) + in.copied, step};
    const Run to{peer, wanted.data + in.copied, step};
    Cursor source{{&from, 1}}, target{{&to, 1}};
    const ssize_t copied = cma_copy(host.pid, source, target, step);
    if (copied <= 0) return cannot_read(peer, lane, message, errno), true;
    in.copied += static_cast<size_t>(copied);
  } else {
    const std::byte* const from = in.kind == LetterKind::pointer ? reinterpret_cast<const std::byte*>(in.where)
                                                                 : in_segment(peer, in.where, in.bytes);
    const CopyingGuard guard(m_, peer);
    copy_bytes(wanted.data + in.copied, from + in.copied, step);
    in.copied += step;
  }
  if (in.copied < in.bytes) return true;
  m_.throw_if_aborted(peer);  // the peer may have reused that memory meanwhile
  lane.answers.push_back({answer(LetterKind::taken, in.id), {}, in.receive});
  lane.arriving.erase(in.id);
  lane.copying.pop_front();
  return true;
}

// Asks the sender for pieces when process_vm_readv fails. Throws when the peer is gone, or this rank's output is the
// cause.
void Messages::cannot_read(Rank peer, Lane& lane, const std::shared_ptr<Arriving>& message, int error) {
  LocalPeer& host = *m_.peer(peer).host;
  m_.throw_if_aborted(peer);
  const std::string name = "rank " + std::to_string(m_.name(m_.rank())) + ": " + name_of(message->receive->message());
  if (error == ESRCH || host.gone()) {
    host.lost.store(true, std::memory_order_relaxed);
    throw Error(Code::peer_lost, name + " lost " + m_.describe(peer));
  }
  const auto* const from = reinterpret_cast<const std::byte*>(message->where) + message->copied;
  if (error == EFAULT && can_read(host.pid, from)) {
    throw Error(Code::backend, name + " cannot write into its own output: " + std::strerror(error));
  }
  host.cma_from = false;
  message->kind = LetterKind::piece;
  message->copied = 0;
  lane.copying.pop_front();
  lane.answers.push_back({answer(LetterKind::unreadable, message->id), {}, nullptr});
}

const std::byte* Messages::in_segment(Rank peer, uint64_t where, uint64_t bytes) {
  LocalPeer& host = *m_.peer(peer).host;
  if (!host.reach(where, bytes)) m_.nonsense(peer, "place of a message");
  return host.base + where;
}

}  // namespace a2a::shm
