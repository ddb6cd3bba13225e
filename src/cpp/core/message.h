// Messages between two ranks, which send() and recv() start. Not public.
#pragma once

#include <atomic>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>

#include "a2a/work.h"
#include "core/in_flight.h"
#include "core/schedule.h"
#include "runtime/progress.h"

namespace a2a {

constexpr Rank kAnySource = -1;

// A tensor with gaps and its elements in C order.
struct PackedTensor {
  std::byte* data = nullptr;
  Strides strides;
  std::unique_ptr<std::byte[]> packed;
};

struct Message {
  bool sends = false;
  Rank peer = 0;  // of a receive: or kAnySource
  int64_t tag = 0;
  std::byte* data = nullptr;
  size_t bytes = 0;
  DType dtype;
  Deadline deadline = Deadline::never();
  std::shared_ptr<PackedTensor> packed = {};  // of a tensor with gaps: the owner of the memory at `data`
  std::string refusal = {};  // not empty: why this rank's arguments were refused; the other rank is told
};

// "recv from rank 2 with tag 5"
std::string name_of(const Message& message);
// The memory of the tensor itself, gaps included.
Run run_of(const Message& message);

// One message in flight, on one of its two sides. All but the Work interface requires the progress mutex.
class MessageWork final : public InFlight {
 public:
  MessageWork(std::shared_ptr<Progress> progress, const Message& message)
      : progress_(std::move(progress)), message_(message) {}

  bool done() override;
  bool wait_until(Deadline deadline) override;
  bool wait_briefly() override;
  Rank source() override;
  bool let_go() override;

  const Message& message() const { return message_; }
  bool finished() const override { return finished_.load(std::memory_order_acquire); }
  std::string name() const override { return name_of(message_); }
  const Footprint& footprint();
  // What has to be finished before the message begins.
  Predecessors& predecessors() { return predecessors_; }
  // Call before the bytes of a send are read at message().data. Packs a tensor with gaps.
  void begin();
  // Returns the tensor as one run. Who calls it copies from there, or to there, in place of message().data.
  std::span<const Run> run();
  void finish(Rank source);
  void fail(const Error& error);
  // Call before fail() when a network still uses its memory. `let_go` returns whether the network has finished with it.
  void lend(std::function<bool()> let_go) { let_go_ = std::move(let_go); }

 private:
  std::shared_ptr<Progress> progress_;
  const Message message_;
  std::optional<Footprint> footprint_;  // made when it is asked for
  std::optional<Run> run_;              // the same
  Predecessors predecessors_;
  std::optional<Error> error_;  // written before finished_, like source_
  Rank source_ = kAnySource;
  std::function<bool()> let_go_;
  std::atomic<bool> finished_{false};
};

// A message that a peer has announced to this rank. Each transport adds how the bytes arrive.
struct Incoming : std::enable_shared_from_this<Incoming> {
  virtual ~Incoming() = default;
  // Called when a receive has taken it.
  virtual void meet() = 0;

  Rank source = 0;
  int64_t tag = 0;
  uint64_t bytes = 0;
  uint32_t dtype = 0;                    // packed, see facts.h
  std::shared_ptr<MessageWork> receive;  // the one that takes it, or nullptr
};

// Matches receives with messages: a message goes to the first receive with its tag, and the messages of a source are
// matched in the order of their sends.
class Matching {
 public:
  // Adds a receive. It is matched with a message that has arrived, or waits.
  void post(const std::shared_ptr<MessageWork>& receive);
  // Adds a message that has arrived. It is matched with a receive that waits, or waits itself.
  void arrive(const std::shared_ptr<Incoming>& incoming);
  // Removes finished receives.
  void prune();
  bool waits() const { return !receives_.empty(); }

 private:
  std::list<std::shared_ptr<MessageWork>> receives_;  // waiting, in the order of their calls
  std::list<std::shared_ptr<Incoming>> arrived_;      // waiting for a receive
};

// Messages to and from this rank, on any host, that were started and may not begin yet: because of what uses their
// memory, or because an earlier message of the same tag may not, with which they could be confused.
class HeldMessages {
 public:
  using Begin = std::function<void(const std::shared_ptr<MessageWork>&)>;

  // Calls begin(work) at once, or when release() finds that the message may begin.
  void begin(const std::shared_ptr<MessageWork>& work, Begin begin);
  // Begins those that may begin now. Returns whether there were any.
  bool release();

 private:
  struct Held {
    std::shared_ptr<MessageWork> work;
    Begin begin;
  };
  // Whether it waits for its memory, or for one of the messages before `end`.
  bool waits(MessageWork& work, std::list<Held>::const_iterator end) const;

  std::list<Held> held_;  // in the order of their calls
};

// Names the first unfinished send; "" if there is none.
std::string first_send(std::span<const std::shared_ptr<MessageWork>> works);

// "rank 2 does not take part, its arguments were refused there: ..."
std::string refused_there(Rank rank, const std::string& reason);

// Returns why a receive cannot take a message, in a text for both ranks; nothing when it can.
std::optional<std::string> disagreement(const Incoming& incoming, Rank source, Rank receiver);

}  // namespace a2a
