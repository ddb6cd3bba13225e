// The letters that two ranks of a host write to each other, as one of the two sees them.
#pragma once

#include <optional>

#include "transport/shm/peers/membership.h"
#include "transport/shm/protocol/mailbox.h"

namespace a2a::shm {

class Letters {
 public:
  Letters(Membership& membership, Rank peer) : m_(membership), peer_(peer) {}

  // Whether a letter can be written. Throws Error(backend) where there is no memory for the first one.
  bool may_write();
  // Writes the next one; the payload has head.length bytes. Rings nobody.
  void write(const LetterHead& head, const void* payload = nullptr);

  struct Read {
    LetterHead head;
    const std::byte* payload;  // kLetterPayload bytes, until take()
  };
  // The peer's next letter, if it is there.
  std::optional<Read> next();
  // All that was wanted of it was copied.
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
};

// The head of an answer to that message.
inline LetterHead answer(LetterKind kind, uint64_t id) {
  LetterHead head{};
  head.kind = kind;
  head.id = id;
  return head;
}

}  // namespace a2a::shm
