// The record of a rank's last operations on one communicator, in a file that `a2a explain` reads: A2A_DUMP names its
// folder. The kernel keeps what was written, so the file survives a rank that was killed, and can be read while the
// rank hangs. The file is mapped, which is the fastest way to write it. The kernel copies into the mapping: if somebody
// has truncated the file, that returns an error, while a store of the program would raise SIGBUS. Not public.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "core/record.h"
#include "core/schedule.h"
#include "runtime/descriptor.h"

namespace a2a {

class Dump {
 public:
  // Opens a file in the folder that A2A_DUMP names; nullptr if it names none. A failure is printed once on standard
  // error and does not stop the program.
  static std::unique_ptr<Dump> open(Rank rank, int size, uint64_t group, std::string_view label);
  ~Dump();
  Dump(const Dump&) = delete;
  Dump& operator=(const Dump&) = delete;

  // The next three are thread-safe, and do nothing in a forked child.

  // Records that the operation is about to start.
  void begin(const Batch& batch);
  // Records the end of an operation that is still in the record, with its error or nullptr.
  void end(uint64_t number, const Error* error);
  // Records what became of the communicator. Only the first call has an effect.
  void close(record::Fate fate, std::string_view reason) noexcept;

 private:
  Dump(Descriptor file, size_t bytes);

  void write_header(Rank rank, int size, uint64_t group, std::string_view label, size_t entry_bytes, size_t capacity);
  record::Header& header() const { return *reinterpret_cast<record::Header*>(all_.get()); }
  record::Entry& entry(uint64_t number) const;
  // Writes this part of the record, or all of it if somebody has truncated the file.
  void write(const void* part, size_t bytes) noexcept;

  std::mutex mutex_;
  Descriptor file_;
  std::unique_ptr<std::byte[]> all_;  // the contents of the file
  size_t bytes_;
  std::byte* mapped_ = nullptr;  // the mapped file
};

}  // namespace a2a
