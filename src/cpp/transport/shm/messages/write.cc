// Writes letters to a peer: answers, first letters of messages, and their pieces.
#include <algorithm>
#include <cstring>

#include "core/facts.h"
#include "transport/shm/copy/pages.h"
#include "transport/shm/messages/messages.h"

namespace a2a::shm {
namespace {

// The size of a piece. The receiver copies one while the sender fills the next.
constexpr size_t kPiece = size_t{256} << 10;

}  // namespace

bool Messages::write(Rank peer, Lane& lane) {
  bool moved = false;
  while (!lane.answers.empty() && lane.letters.may_write()) {
    const Answer& next = lane.answers.front();
    lane.letters.write(next.head, next.text.empty() ? nullptr : next.text.data());
    if (next.receive != nullptr && next.head.kind == LetterKind::refused) {
      next.receive->fail(Error(Code::mismatch, next.text));
    } else if (next.receive != nullptr) {
      next.receive->finish(m_.name(peer));
    }
    lane.answers.pop_front();
    moved = true;
  }
  while (!lane.unsaid.empty() && lane.letters.may_write()) {
    say(peer, lane, lane.unsaid.front());
    lane.unsaid.pop_front();
    moved = true;
  }
  for (auto said = lane.said.begin(); said != lane.said.end();) {
    Outgoing& message = said->second;
    const bool goes = message.wanted && lane.letters.may_write();
    if (goes) {
      message.wanted = false;
      write_piece(lane, message, kPiece);
      moved = true;
    }
    said = goes && message.offset == message.work->message().bytes ? lane.said.erase(said) : std::next(said);
  }
  return moved;
}

// Writes the first letter of a message.
void Messages::say(Rank peer, Lane& lane, const Outgoing& message) {
  const Message& m = message.work->message();
  const LetterKind kind = m.refusal.empty() ? choose(peer, lane, m) : LetterKind::declined;
  LetterHead head{message.id, m.tag, m.bytes, 0, 0, 0, pack(m.dtype), kind};
  switch (kind) {
    case LetterKind::declined:
      head.length = static_cast<uint32_t>(std::min(m.refusal.size(), kLetterPayload));
      lane.letters.write(head, m.refusal.data());
      return message.work->finish(m_.rank());
    case LetterKind::inlined:
      lane.letters.count_inlined();
      head.length = static_cast<uint32_t>(m.bytes);
      lane.letters.write(head, m.bytes > 0 ? m.data : nullptr);
      return message.work->finish(m_.rank());
    case LetterKind::piece: {
      Outgoing& said = lane.said[message.id] = message;
      write_piece(lane, said, m.bytes <= kEager && lane.pieces.size() < kMostEager ? kEager : 0);
      if (said.offset == m.bytes) lane.said.erase(message.id);
      return;
    }
    case LetterKind::shared:
      head.where = m.bytes > 0 ? m_.arena().offset(m.data) : 0;
      break;
    default:
      head.where = reinterpret_cast<uint64_t>(m.data);
  }
  lane.said[message.id] = message;
  lane.letters.write(head);
}

LetterKind Messages::choose(Rank peer, Lane& lane, const Message& m) {
  const LocalPeer& host = *m_.peer(peer).host;
  if (m.bytes <= kLetterPayload && !lane.letters.crowded()) return LetterKind::inlined;
  if (m.bytes == 0) return LetterKind::shared;  // of nothing: the sender waits for the receive
  if (m.bytes <= kEager && lane.pieces.size() < kMostEager) return LetterKind::piece;
  if (host.same_process) return LetterKind::pointer;
  if (m_.arena().contains(m.data, m.bytes)) return LetterKind::shared;
  const Run run{peer, m.data, m.bytes};
  return host.cma_to && are_present({&run, 1}) ? LetterKind::cma : LetterKind::piece;
}

// Writes a piece of a message, of at most `most` bytes. A piece without bytes only announces the message. The send is
// finished when its last bytes are copied.
void Messages::write_piece(Lane& lane, Outgoing& message, size_t most) {
  const Message& m = message.work->message();
  const size_t length = std::min<size_t>(m.bytes - message.offset, most);
  LetterHead head{message.id,       m.tag, m.bytes, 0, message.offset, static_cast<uint32_t>(length), pack(m.dtype),
                  LetterKind::piece};
  if (length > 0) {
    lane.pieces.reserve(lane.pieces.size() + 1);
    std::byte* const piece = m_.lend(length);
    lane.pieces.push_back(piece);
    copy_bytes(piece, m.data + message.offset, length);
    head.where = m_.arena().offset(piece);
    message.offset += length;
  }
  lane.letters.write(head);
  if (message.offset == m.bytes) message.work->finish(m_.rank());
}

}  // namespace a2a::shm
