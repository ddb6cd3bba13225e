// The order of operations and messages in flight that share memory. Not public.
#pragma once

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "a2a/work.h"
#include "core/schedule.h"
#include "core/strided/sharing.h"

namespace a2a {

struct Message;

// The memory that an operation or a message reads and writes.
class Footprint {
 public:
  // Requires that the strides of a run with gaps live as long as the footprint is used.
  void read(const Run& run) { reads_.add(run.memory(), run.strides); }
  void write(const Run& run) { writes_.add(run.memory(), run.strides); }
  void read(std::span<const std::byte> memory) { reads_.add(memory, nullptr); }
  void write(std::span<const std::byte> memory) { writes_.add(memory, nullptr); }

  // Whether both use the same memory, and one of them writes it.
  bool conflicts(const Footprint& other) const {
    return writes_.overlaps(other.writes_) || writes_.overlaps(other.reads_) || reads_.overlaps(other.writes_);
  }
  // Whether it certainly writes all memory that the other uses. Says false of several blocks, and of blocks whose gaps
  // are not the same.
  bool writes_all(const Footprint& other) const { return writes_.holds(other.writes_) && writes_.holds(other.reads_); }

 private:
  class Spans {
   public:
    void add(std::span<const std::byte> memory, const Strides* strides);
    bool overlaps(const Spans& other) const { return begin_ < other.end_ && other.begin_ < end_ && any_overlap(other); }
    bool holds(const Spans& other) const;

   private:
    bool any_overlap(const Spans& other) const;

    const std::byte *begin_ = nullptr, *end_ = nullptr;  // of all; both are nullptr where there is none
    std::vector<Stretch> blocks_;                        // sorted by address
    bool gaps_ = false;                                  // whether a block has gaps
  };
  Spans reads_, writes_;
};

Footprint footprint_of(const Batch& batch);
Footprint footprint_of(const Message& message);

// An operation or a message that was started.
class InFlight : public Work {
 public:
  virtual bool finished() const = 0;
  // "broadcast #3", "recv from rank 2 with tag 5"
  virtual std::string name() const = 0;
};

// What has to finish before an operation or a message may begin, because they conflict and were started earlier.
class Predecessors {
 public:
  void add(std::shared_ptr<InFlight> earlier) { earlier_.push_back(std::move(earlier)); }
  void add(Predecessors&& others) { std::ranges::move(others.earlier_, std::back_inserter(earlier_)); }
  // Call when it has failed. Otherwise each of many operations on one tensor would hold the one before.
  void clear() { earlier_.clear(); }
  // Whether none is left. Forgets those that are finished, from the end, so that a call that changes nothing looks at
  // one of them.
  bool finished() {
    while (!earlier_.empty() && earlier_.back()->finished()) earlier_.pop_back();
    return earlier_.empty();
  }
  // Waits for all of them, whatever becomes of them. Throws Error(timeout) when the deadline passes, and Interrupted.
  void wait(Deadline deadline);
  // "recv from rank 2 with tag 5, which uses the same memory": the first unfinished one, if there is one.
  std::string describe() const {
    const auto found = std::ranges::find_if(earlier_, [](const auto& one) { return !one->finished(); });
    return found == earlier_.end() ? "" : (*found)->name() + ", which uses the same memory";
  }

 private:
  std::vector<std::shared_ptr<InFlight>> earlier_;
};

// Adds the latest operation of a queue that conflicts. Operations finish in the order of their numbers, so it is the
// last to wait for.
template <class Queue>
void add_latest(Predecessors& predecessors, const Queue& queue, const Footprint& memory) {
  const auto conflicts = [&](const auto& one) { return !one->finished() && one->footprint().conflicts(memory); };
  const auto found = std::find_if(queue.rbegin(), queue.rend(), conflicts);
  if (found != queue.rend()) predecessors.add(*found);
}

// Adds the messages of a list that conflict, from the latest one back to one that writes all of that memory: it waits
// for the earlier ones itself. Otherwise many messages of one tensor would each hold all before.
template <class Messages>
void add_conflicting(Predecessors& predecessors, const Messages& messages, const Footprint& memory) {
  for (auto one = messages.rbegin(); one != messages.rend(); ++one) {
    if ((*one)->finished() || !(*one)->footprint().conflicts(memory)) continue;
    predecessors.add(*one);
    if ((*one)->footprint().writes_all(memory)) return;
  }
}

// Has operations or messages that end unfinished, in the order of their starts, hold nothing earlier. Otherwise the end
// of a long chain destroys one inside the other, and the stack overflows.
template <class All>
void forget_predecessors(const All& all) {
  for (const auto& one : all) one->predecessors().clear();
}

}  // namespace a2a
