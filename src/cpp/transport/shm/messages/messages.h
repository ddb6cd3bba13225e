// Messages between ranks of one host. Their bytes come in the letter that tells of them, by one copy from the sender's
// memory, or in pieces through the sender's segment. A sender with little has done when the library has a copy.
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

// Everything wants the progress mutex held. What throws breaks the communicator.
class Messages {
 public:
  // `matching` is that of all messages to this rank.
  Messages(Membership& membership, Matching& matching);
  ~Messages();

  // A message to or from a rank of this host, or from any rank.
  void start(const std::shared_ptr<MessageWork>& work);
  // Does what can be done without waiting. Returns whether anything moved.
  bool advance();
  // Whether there is anything to do, or to wait for.
  bool active() const;
  // Whether a message is under way that somebody here waits for.
  bool busy() const { return unfinished() != pending_.end(); }
  // The first one whose deadline has passed.
  std::shared_ptr<MessageWork> expired(Deadline::Clock::time_point now) const;
  // The first one that needs that rank of this host; `anybody`: or any.
  std::shared_ptr<MessageWork> needing(Rank peer, bool anybody) const;
  void fail_all(const Error& error);
  // "send to rank 1 with tag 0" of the first one.
  std::string first() const { return name_of((*unfinished())->message()); }

 private:
  // So much is copied for a receiver that may not wait for it yet, and the sender goes on; more of them wait.
  static constexpr size_t kEager = size_t{64} << 10, kMostEager = 16;

  struct Arriving;
  struct Outgoing {
    std::shared_ptr<MessageWork> work;
    uint64_t id = 0;
    uint64_t offset = 0;  // bytes that were put into pieces
    bool wanted = false;  // the receiver waits for the next piece
  };
  struct Answer {
    LetterHead head;
    std::string text;
    std::shared_ptr<MessageWork> receive;  // that is over when the answer is written: its sender waits for that
  };
  // What goes on between this rank and one other.
  struct Lane {
    explicit Lane(Membership& m, Rank peer) : letters(m, peer) {}

    Letters letters;
    uint64_t sent = 0, heard = 0;                            // messages
    std::deque<Answer> answers;                              // to be written
    std::deque<Outgoing> unsaid;                             // messages of which the receiver does not know yet
    std::map<uint64_t, Outgoing> said;                       // and those of which it has not all, by id
    std::vector<std::byte*> pieces;                          // that the receiver has not read
    std::map<uint64_t, std::shared_ptr<Arriving>> arriving;  // that are not whole yet, by id
    std::deque<std::shared_ptr<Arriving>> copying;           // of them those copied from the sender's memory, in turn
    std::optional<Error> complaint;                          // about a message that this rank had done with
  };

  std::vector<std::shared_ptr<MessageWork>>::const_iterator unfinished() const;
  Lane& lane(Rank peer);
  void send_to_self(const std::shared_ptr<MessageWork>& work);

  // A message and its receive.
  void meet(Arriving& in);
  void refuse(Arriving& in, const std::string& why);
  void copy_piece(Arriving& in);
  void answer_piece(Lane& lane, Arriving& in);
  bool copy(Rank peer, Lane& lane);
  void cannot_read(Rank peer, Lane& lane, const std::shared_ptr<Arriving>& message, int error);
  const std::byte* in_segment(Rank peer, uint64_t where, uint64_t bytes);

  // Letters.
  bool read(Rank peer, Lane& lane);
  void hear(Rank peer, Lane& lane, const Letters::Read& letter);
  void take_piece(Rank peer, Arriving& in, const LetterHead& head);
  void hear_piece(Rank peer, Arriving& in, const LetterHead& head);
  void drop_piece(Rank peer, Lane& lane, const LetterHead& head);
  void hear_answer(Rank peer, Lane& lane, const Letters::Read& letter);
  bool write(Rank peer, Lane& lane);
  void say(Rank peer, Lane& lane, const Outgoing& message);
  LetterKind choose(Rank peer, const Lane& lane, const Message& message);
  void write_piece(Lane& lane, Outgoing& message, size_t most);

  Membership& m_;
  std::vector<std::unique_ptr<Lane>> lanes_;  // by rank; empty where no message went
  Matching& matching_;
  std::vector<std::shared_ptr<MessageWork>> pending_;
};

}  // namespace a2a::shm
