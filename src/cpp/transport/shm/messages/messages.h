// Messages between ranks of one host. The bytes come in the letter that announces the message (eager), by one copy from
// the sender's memory (rendezvous), or in pieces through the sender's segment. A send of few bytes is finished when the
// library has copied them.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/message.h"
#include "transport/shm/copy/copy.h"
#include "transport/shm/messages/letters.h"

namespace a2a::shm {

// All functions require the progress mutex. The caller breaks the communicator when one throws.
class Messages {
 public:
  // `matching` and `held` are those of all messages of this rank, with any host.
  Messages(Membership& membership, Matching& matching, HeldMessages& held);
  ~Messages();

  // Starts a message to or from a rank of this host, or from any rank.
  void start(const std::shared_ptr<MessageWork>& work);
  // Advances all messages without waiting. Returns whether anything moved.
  bool advance();
  // Whether advance() may have work: unfinished messages, answers to write, or receives that another host may match.
  bool active() const;
  const std::vector<std::shared_ptr<MessageWork>>& pending() const { return pending_; }
  // Whether an unfinished send or receive of this rank is under way.
  bool busy() const { return unfinished() != pending_.end(); }
  // Returns the first unfinished message whose deadline has passed, or nullptr.
  std::shared_ptr<MessageWork> expired(Deadline::Clock::time_point now) const;
  // Returns the first unfinished message that needs that rank of this host, or with `anybody` set, any rank; or
  // nullptr.
  std::shared_ptr<MessageWork> needing(Rank peer, bool anybody) const;
  void fail_all(const Error& error);
  // Names the first unfinished message: "send to rank 1 with tag 0". Requires busy().
  std::string first() const { return name_of((*unfinished())->message()); }

 private:
  // A send of up to kEager bytes is copied to a piece and finished (eager), unless kMostEager pieces are unread.
  static constexpr size_t kEager = size_t{64} << 10, kMostEager = 16;

  struct Arriving;
  struct Outgoing {
    std::shared_ptr<MessageWork> work;
    uint64_t id = 0;
    uint64_t offset = 0;  // bytes copied to pieces
    bool wanted = false;  // the receiver waits for the next piece
  };
  struct Answer {
    LetterHead head;
    std::string text;
    std::shared_ptr<MessageWork> receive;  // to finish when the answer is written: the sender waits for it
  };
  // The messages between this rank and one peer.
  struct Lane {
    explicit Lane(Membership& m, Rank peer) : letters(m, peer) {}

    Letters letters;
    uint64_t sent = 0, heard = 0;       // messages
    std::deque<Answer> answers;         // to be written
    std::deque<Outgoing> unsaid;        // messages that were not announced to the receiver
    std::map<uint64_t, Outgoing> said;  // announced messages that the receiver has not copied, by id
    std::vector<std::byte*> pieces;     // that the receiver has not read
    std::map<uint64_t, std::shared_ptr<Arriving>> arriving;  // messages not received completely, by id
    std::deque<std::shared_ptr<Arriving>> copying;           // those copied from the sender's memory, in order
    std::optional<Error> complaint;                          // a receiver's refusal of a message that was finished here
  };

  std::vector<std::shared_ptr<MessageWork>>::const_iterator unfinished() const;
  Lane& lane(Rank peer);
  void begin(const std::shared_ptr<MessageWork>& work);
  void send_to_self(const std::shared_ptr<MessageWork>& work);

  // A message and its receive (messages.cc).
  void meet(Arriving& in);
  void refuse(Arriving& in, const std::string& why);
  void copy_piece(Arriving& in);
  void answer_piece(Lane& lane, Arriving& in);
  bool copy(Rank peer, Lane& lane);
  void cannot_read(Rank peer, Lane& lane, const std::shared_ptr<Arriving>& message, int error);
  const std::byte* in_segment(Rank peer, uint64_t where, uint64_t bytes);

  // Letters (read.cc, write.cc).
  bool read(Rank peer, Lane& lane);
  void hear(Rank peer, Lane& lane, const Letters::Read& letter);
  void take_piece(Rank peer, Arriving& in, const LetterHead& head);
  void hear_piece(Rank peer, Arriving& in, const LetterHead& head);
  void drop_piece(Rank peer, Lane& lane, const LetterHead& head);
  void hear_answer(Rank peer, Lane& lane, const Letters::Read& letter);
  bool write(Rank peer, Lane& lane);
  void say(Rank peer, Lane& lane, const Outgoing& message);
  LetterKind choose(Rank peer, Lane& lane, const Message& message);
  void write_piece(Lane& lane, Outgoing& message, size_t most);

  Membership& m_;
  std::vector<std::unique_ptr<Lane>> lanes_;  // by rank; empty where no message went
  Matching& matching_;
  std::vector<std::shared_ptr<MessageWork>> pending_;
  HeldMessages& held_;
  size_t kept_ = 0;  // sends of this rank to itself whose bytes are copied, and wait for a receive
};

}  // namespace a2a::shm
