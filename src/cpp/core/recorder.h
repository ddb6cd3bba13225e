// Tells the files and counts that a user has asked for, by A2A_DUMP, A2A_TRACE and A2A_METRICS, when operations begin
// and end. Not public.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "a2a/work.h"
#include "core/dump.h"
#include "core/message.h"
#include "core/metrics.h"
#include "core/trace.h"

namespace a2a {

class Recorder {
 public:
  // One operation. Without a recorder its functions do nothing.
  class Operation {
   public:
    Operation() = default;
    Operation(std::shared_ptr<Recorder> recorder, uint64_t number) : recorder_(std::move(recorder)), number_(number) {}

    // Runs `start`, which returns the operation's Work or throws, and passes on either.
    template <class Start>
    std::shared_ptr<Work> run(Start&& start) const {
      if (recorder_ == nullptr) return start();
      try {
        return follow(start());
      } catch (const Error& error) {
        end(&error);
        throw;
      }
    }

    // Call when the end is seen: with its error or nullptr.
    void end(const Error* error) const;

   private:
    std::shared_ptr<Work> follow(std::shared_ptr<Work> work) const;

    std::shared_ptr<Recorder> recorder_;
    uint64_t number_ = 0;
  };

  // Returns nullptr where no file is asked for. `group` is the same on all ranks, and different for other groups.
  static std::shared_ptr<Recorder> open(Rank rank, int size, uint64_t group, std::string_view label);

  // Requires calls in the order of the numbers, one at a time.
  static Operation begin(const std::shared_ptr<Recorder>& recorder, const Batch& batch);
  // Returns the message's Work, and records the message when its end is seen. `recorder` may be nullptr.
  static std::shared_ptr<Work> follow(const std::shared_ptr<Recorder>& recorder, const Message& message,
                                      bool asynchronous, std::shared_ptr<Work> work);
  // The counts that it keeps; nullptr: none.
  const std::shared_ptr<Metrics>& metrics() const { return metrics_; }
  // Records what became of the communicator.
  void close(record::Fate fate, std::string_view reason = "") noexcept;

 private:
  Recorder(std::unique_ptr<Dump> dump, std::unique_ptr<Trace> trace, std::shared_ptr<Metrics> metrics)
      : dump_(std::move(dump)), trace_(std::move(trace)), metrics_(std::move(metrics)) {}

  const std::unique_ptr<Dump> dump_;        // nullptr: not asked for
  const std::unique_ptr<Trace> trace_;      // nullptr: not asked for
  const std::shared_ptr<Metrics> metrics_;  // nullptr: not asked for
};

}  // namespace a2a
