// What two ranks of different hosts have agreed on before, and need not say again.
#pragma once

#include <array>
#include <chrono>
#include <memory>

#include "a2a/types.h"
#include "transport/hosts/messages.h"

namespace a2a::hosts {

// How long ranks that repeat what they have agreed on get along without a word.
inline constexpr std::chrono::milliseconds kSilence{100};

struct Agreement {
  Told mine{}, theirs{};
  Deadline::Clock::time_point since{};  // this rank began the latest operation in which both sent what it says
};

// Those of this rank and another one: the latest few, since a program goes through some exchanges in turn. Each has its
// own two tags, so a tag says which one is meant.
class Agreements {
 public:
  bool empty() const { return count_ == 0; }

  // Of ranks that said these facts, or nothing. Valid until the next note().
  const Agreement* find(const Told& mine) const {
    for (size_t i = 0; i < count_; ++i) {
      if (same((*latest_)[i].mine, mine) && (*latest_)[i].mine.repeated != Carriage::nothing) return &(*latest_)[i];
    }
    return nullptr;
  }

  // Never again the one with this tag of the other rank's.
  void forget(uint64_t their_tag) {
    for (size_t i = 0; i < count_; ++i) {
      if ((*latest_)[i].theirs.tag == their_tag) (*latest_)[i].mine.repeated = Carriage::nothing;
    }
  }

  void note(const Agreement& agreement) {
    if (latest_ == nullptr) latest_ = std::make_unique<std::array<Agreement, kKept>>();
    for (size_t i = 0; i < count_; ++i) {
      if (same((*latest_)[i].mine, agreement.mine)) return void((*latest_)[i] = agreement);
    }
    (*latest_)[next_] = agreement;
    next_ = (next_ + 1) % kKept;
    if (count_ < kKept) ++count_;
  }

 private:
  static constexpr size_t kKept = 8;

  // The facts, not how the bytes travel.
  static bool same(const Told& a, const Told& b) {
    return a.sent == b.sent && a.expected == b.expected && a.sent_hash == b.sent_hash &&
           a.expected_hash == b.expected_hash && a.dtype == b.dtype && a.plan == b.plan && a.op == b.op &&
           a.memory == b.memory;
  }

  std::unique_ptr<std::array<Agreement, kKept>> latest_;  // most pairs have none
  size_t count_ = 0, next_ = 0;
};

}  // namespace a2a::hosts
