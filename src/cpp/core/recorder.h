// The record of a rank's last operations on one communicator, in a file that `a2a explain` reads. The kernel keeps what
// was written: the file tells of a rank that was killed, too, and can be read while the rank is stuck. The file is
// mapped, which is the fastest way, but the kernel copies into the mapping: where somebody has truncated the file, that
// is an error, while the program's own store would be SIGBUS. Not public.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "a2a/work.h"
#include "core/record.h"
#include "core/schedule.h"
#include "runtime/descriptor.h"

namespace a2a {

// What set_call_site() has said last in this thread.
A2A_API const std::string& call_site() noexcept;

class Recorder {
 public:
  // One operation. Does nothing when it is of no record.
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
        failed(error);
        throw;
      }
    }

    void finished() const;
    void failed(const Error& error) const;

   private:
    std::shared_ptr<Work> follow(std::shared_ptr<Work> work) const;

    std::shared_ptr<Recorder> recorder_;
    uint64_t number_ = 0;
  };

  // In the folder that A2A_DUMP names; nothing where it names none. Whatever prevents a record is said on standard
  // error, once: the program is worth more than its record. `group` is the same on all ranks, and no other group's.
  static std::shared_ptr<Recorder> open(Rank rank, int size, uint64_t group, std::string_view label);
  ~Recorder();
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  uint64_t group() const { return header().group; }
  std::string label() const { return header().label; }

  // The operation is about to start. Calls are in the order of the numbers, one at a time.
  static Operation begin(const std::shared_ptr<Recorder>& recorder, const Batch& batch);
  void end(record::Fate fate, std::string_view reason = "") noexcept;

 private:
  Recorder(Descriptor file, size_t bytes);

  void write_header(Rank rank, int size, uint64_t group, std::string_view label, size_t entry_bytes, size_t capacity);
  record::Header& header() const { return *reinterpret_cast<record::Header*>(all_.get()); }
  record::Entry& entry(uint64_t number) const;
  // The entry is of that operation still.
  bool has(uint64_t number) const;
  void settle(uint64_t number, record::State state, const Error* error);
  // Writes this part of the record, or all of it where somebody has truncated the file.
  void write(const void* part, size_t bytes) noexcept;

  Descriptor file_;
  std::unique_ptr<std::byte[]> all_;  // what the file holds
  size_t bytes_;
  std::byte* mapped_ = nullptr;  // the file
};

}  // namespace a2a
