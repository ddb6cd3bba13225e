// Agreements of two ranks of different hosts, which later operations repeat without sending facts.
#pragma once

#include <array>
#include <chrono>
#include <memory>

#include "a2a/types.h"
#include "transport/hosts/messages.h"

namespace a2a::hosts {

// How long a rank that repeats an agreement waits before it sends its facts after all.
inline constexpr std::chrono::milliseconds kSilence{100};

struct Agreement {
  Told mine{}, theirs{};
  Deadline::Clock::time_point since{};  // when this rank began the latest operation in which both sent their facts
};

// The latest agreements of this rank and another one. There are several, because a program may alternate between
// exchanges. Each agreement has two tags of its own, so a tag identifies it.
class Agreements {
 public:
  bool empty() const { return count_ == 0; }

  // Returns the agreement in which this rank sent these facts, or nullptr. Valid until the next note().
  const Agreement* find(const Told& mine) const {
    for (size_t i = 0; i < count_; ++i) {
      if (same((*latest_)[i].mine, mine) && (*latest_)[i].mine.repeated != Carriage::nothing) return &(*latest_)[i];
    }
    return nullptr;
  }

  // Drops the agreement in which the other rank sent this tag.
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

  // Compares the facts, but not how the bytes travel.
  static bool same(const Told& a, const Told& b) {
    return a.sent == b.sent && a.expected == b.expected && a.sent_hash == b.sent_hash &&
           a.expected_hash == b.expected_hash && a.dtype == b.dtype && a.plan == b.plan && a.op == b.op &&
           a.memory == b.memory;
  }

  std::unique_ptr<std::array<Agreement, kKept>> latest_;  // most pairs have none
  size_t count_ = 0, next_ = 0;
};

}  // namespace a2a::hosts
