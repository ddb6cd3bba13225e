// One rank's end of the two mailboxes that it shares with a peer of its host.
#pragma once

#include <optional>

#include "transport/shm/peers/membership.h"
#include "transport/shm/protocol/mailbox.h"

namespace a2a::shm {

class Letters {
 public:
  Letters(Membership& membership, Rank peer) : m_(membership), peer_(peer) {}

  // Whether the mailbox has room for a letter. Throws Error(backend) when there is no memory for the mailbox.
  bool may_write();
  // Writes the next letter; the payload has head.length bytes. Requires may_write(). Does not wake the peer.
  void write(const LetterHead& head, const void* payload = nullptr);

  // Counts a message that is written in a letter as a whole, and one of the peer that has met a receive.
  void count_inlined() { ++inlined_; }
  void count_matched();
  // Whether so many messages of this rank in letters wait for receives that the next one had better not be in a letter:
  // the peer keeps each of them.
  bool crowded();

  struct Read {
    LetterHead head;
    const std::byte* payload;  // kLetterPayload bytes, valid until take()
  };
  // Returns the peer's next letter, if it has come.
  std::optional<Read> next();
  // Frees the letter's place. Call when its contents were copied.
  void take();

 private:
  using OwnLetter = Letter<StdAtomics>;

  Mailbox<StdAtomics>* own();
  const Mailbox<StdAtomics>* theirs();
  template <class Box>
  static auto* letter(Box* box, uint64_t n);

  Membership& m_;
  const Rank peer_;
  Mailbox<StdAtomics>* own_ = nullptr;
  const Mailbox<StdAtomics>* theirs_ = nullptr;
  uint64_t written_ = 0, taken_ = 0;
  uint64_t inlined_ = 0, met_ = 0;  // of this rank's messages in letters; met_ as it was read last
  uint64_t matched_ = 0;            // of the peer's
};

// Returns the head of an answer to message `id`.
inline LetterHead answer(LetterKind kind, uint64_t id) {
  LetterHead head{};
  head.kind = kind;
  head.id = id;
  return head;
}

}  // namespace a2a::shm
