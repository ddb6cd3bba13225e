// Reads a peer's letters: messages, their pieces, and answers.
#include <algorithm>

#include "core/facts.h"
#include "transport/shm/messages/arriving.h"
#include "transport/shm/protocol/texts.h"

namespace a2a::shm {

bool Messages::read(Rank peer, Lane& lane) {
  bool moved = false;
  while (const auto letter = lane.letters.next()) {
    hear(peer, lane, *letter);
    lane.letters.take();
    moved = true;
  }
  return moved;
}

void Messages::hear(Rank peer, Lane& lane, const Letters::Read& letter) {
  const LetterHead& head = letter.head;
  if (head.kind >= LetterKind::read) return hear_answer(peer, lane, letter);
  if (const auto found = lane.arriving.find(head.id); found != lane.arriving.end()) {
    return hear_piece(peer, *found->second, head);
  }
  if (head.id <= lane.heard) return drop_piece(peer, lane, head);
  if (head.id != lane.heard + 1) m_.nonsense(peer, "number of a message");
  ++lane.heard;
  const auto message = std::make_shared<Arriving>(*this);
  Arriving& in = *message;
  in.source = m_.name(peer);
  in.peer = peer;
  in.id = head.id;
  in.tag = head.tag;
  in.bytes = head.bytes;
  in.dtype = head.dtype;
  in.kind = head.kind;
  in.where = head.where;
  switch (head.kind) {
    case LetterKind::inlined:
      if (head.bytes > kLetterPayload) m_.nonsense(peer, "length of a message");
      in.kept.assign(letter.payload, letter.payload + head.bytes);
      break;
    case LetterKind::declined:
      in.kept.assign(letter.payload, letter.payload + std::min<size_t>(head.length, kLetterPayload));
      in.kept.push_back(std::byte{0});
      break;
    case LetterKind::piece:
      take_piece(peer, in, head);
      lane.arriving.emplace(in.id, message);
      break;
    case LetterKind::cma:
    case LetterKind::shared:
    case LetterKind::pointer:
      if (head.kind == LetterKind::pointer && !m_.peer(peer).host->same_process) m_.nonsense(peer, "kind of message");
      lane.arriving.emplace(in.id, message);
      break;
    default:
      m_.nonsense(peer, "kind of message");
  }
  matching_.arrive(message);
}

void Messages::take_piece(Rank peer, Arriving& in, const LetterHead& head) {
  const bool fits = in.kind == LetterKind::piece && in.there == 0 && head.kind == LetterKind::piece &&
                    head.offset == in.copied && head.length <= in.bytes - in.copied;
  if (!fits) m_.nonsense(peer, "piece of a message");
  in.where = head.where;
  in.there = head.length;
}

void Messages::hear_piece(Rank peer, Arriving& in, const LetterHead& head) {
  if (in.receive == nullptr) m_.nonsense(peer, "piece of a message");
  take_piece(peer, in, head);
  const auto message = lane(peer).arriving.at(in.id);  // keeps `in` alive: copy_piece() erases it
  copy_piece(in);
}

// Answers a piece of a message that was refused meanwhile.
void Messages::drop_piece(Rank peer, Lane& lane, const LetterHead& head) {
  if (head.kind != LetterKind::piece) m_.nonsense(peer, "number of a message");
  LetterHead read = answer(LetterKind::read, head.id);
  read.where = head.where + 1;
  lane.answers.push_back({read, {}, nullptr});
}

void Messages::hear_answer(Rank peer, Lane& lane, const Letters::Read& letter) {
  const LetterHead& head = letter.head;
  if (head.kind == LetterKind::read && head.where != 0) {
    const auto piece = std::ranges::find(lane.pieces, m_.arena().base() + (head.where - 1));
    if (piece == lane.pieces.end()) m_.nonsense(peer, "answer to a message");
    m_.take_back(*piece);
    lane.pieces.erase(piece);
  }
  const auto found = lane.said.find(head.id);
  switch (head.kind) {
    case LetterKind::read:
      if (found != lane.said.end()) found->second.wanted = true;
      return;
    case LetterKind::taken:
      if (found == lane.said.end()) m_.nonsense(peer, "answer to a message");
      found->second.work->finish(m_.rank());
      lane.said.erase(found);
      return;
    case LetterKind::unreadable:
      if (found == lane.said.end()) m_.nonsense(peer, "answer to a message");
      m_.peer(peer).host->cma_to = false;
      found->second.wanted = true;
      return;
    case LetterKind::refused: {
      std::string why(reinterpret_cast<const char*>(letter.payload), std::min<size_t>(head.length, kLetterPayload));
      why.erase(std::find(why.begin(), why.end(), '\0'), why.end());
      const Error error(Code::mismatch, peer_text(why.c_str()));
      if (found == lane.said.end()) return void(lane.complaint.emplace(error));
      found->second.work->fail(error);
      lane.said.erase(found);
      return;
    }
    default:
      m_.nonsense(peer, "kind of message");
  }
}

}  // namespace a2a::shm
