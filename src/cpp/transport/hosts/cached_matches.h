// CachedMatches of two ranks of different hosts, which later operations repeat without sending facts.
#pragma once

#include <array>
#include <chrono>
#include <memory>

#include "a2a/types.h"
#include "transport/hosts/messages.h"

namespace a2a::hosts {

// How long a rank that repeats a cached match waits before it sends its facts after all.
inline constexpr std::chrono::milliseconds kRepeatTimeout{100};

struct CachedMatch {
  SentFacts mine{}, theirs{};
  Deadline::Clock::time_point since{};  // when this rank began the latest operation in which both sent their facts
};

// The latest cached matches of this rank and another one. There are several, because a program may alternate between
// exchanges. Each match has two tags of its own, so a tag identifies it.
class CachedMatches {
 public:
  bool empty() const { return count_ == 0; }

  // Returns the match in which this rank sent these facts, or nullptr. Valid until the next note().
  const CachedMatch* find(const SentFacts& mine) const {
    for (size_t i = 0; i < count_; ++i) {
      if (same((*latest_)[i].mine, mine) && (*latest_)[i].mine.repeated != Delivery::nothing) return &(*latest_)[i];
    }
    return nullptr;
  }

  // Drops the match in which the other rank sent this tag.
  void forget(uint64_t their_tag) {
    for (size_t i = 0; i < count_; ++i) {
      if ((*latest_)[i].theirs.tag == their_tag) (*latest_)[i].mine.repeated = Delivery::nothing;
    }
  }

  void note(const CachedMatch& match) {
    if (latest_ == nullptr) latest_ = std::make_unique<std::array<CachedMatch, kKept>>();
    for (size_t i = 0; i < count_; ++i) {
      if (same((*latest_)[i].mine, match.mine)) return void((*latest_)[i] = match);
    }
    (*latest_)[next_] = match;
    next_ = (next_ + 1) % kKept;
    if (count_ < kKept) ++count_;
  }

 private:
  static constexpr size_t kKept = 8;

  // Compares the facts, but not how the bytes travel.
  static bool same(const SentFacts& a, const SentFacts& b) {
    return a.sent == b.sent && a.expected == b.expected && a.sent_hash == b.sent_hash &&
           a.expected_hash == b.expected_hash && a.dtype == b.dtype && a.plan == b.plan && a.op == b.op &&
           a.memory == b.memory;
  }

  std::unique_ptr<std::array<CachedMatch, kKept>> latest_;  // most pairs have none
  size_t count_ = 0, next_ = 0;
};

}  // namespace a2a::hosts
