// The timeline of a rank's operations on one communicator, in a file that `a2a trace` and `a2a replay` read: A2A_TRACE,
// or A2A_RECORD, names its folder. Unlike the record of A2A_DUMP it keeps every operation, and is written in blocks.
// Not public.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "core/schedule.h"
#include "runtime/descriptor.h"

namespace a2a {

// The layout of the file. It is a header, then entries, which begin with their kind and their length. All numbers are
// little-endian, all texts end with a zero, all times are nanoseconds since 1970. python/a2a/_timelines.py reads it.
namespace timeline {

constexpr char kMagic[8] = {'a', '2', 'a', 't', 'r', 'a', 'c', '2'};

// A file that is still open is that of a rank that runs, or was killed.
enum class Fate : uint32_t { open = 0, closed = 1, cut_off = 2 };

// Written first, and again with every block, in place: that needs no more room on a disk that is full.
struct Header {
  char magic[8];
  int32_t rank, size;
  uint64_t group;   // the same in the files of all ranks of the group
  uint64_t opened;  // time
  int32_t pid;
  Fate fate;
  char host[64];
  char label[128];                // "world", "split #12 of world"
  uint64_t written;               // bytes of the file, with this header
  uint64_t operations, messages;  // that have ended, also those that could not be written
  int32_t error;                  // the errno that cut it off
  uint32_t unused;
};
static_assert(sizeof(Header) == 40 + 64 + 128 + 32);

enum class Kind : uint32_t { amounts = 1, operation = 2, message = 3 };

// Two numbers of bytes follow for each rank: sent to it, and expected from it.
struct Amounts {
  Kind kind = Kind::amounts;
  uint32_t bytes;  // of the entry, with what follows
  uint64_t id;
};
static_assert(sizeof(Amounts) == 16);

// An operation whose end a call has seen.
struct Operation {
  Kind kind = Kind::operation;
  uint32_t bytes = sizeof(Operation);
  uint64_t number;
  uint64_t started, ended;  // times
  uint64_t amounts;         // the id of an entry before this one
  uint32_t failed;          // 1: it ended with an error
  uint32_t asynchronous;    // 1: its caller went on meanwhile
  char op[16], memory[8], dtype[32];
};
static_assert(sizeof(Operation) == 48 + 56);

// A send or recv whose end a call has seen.
struct Message {
  Kind kind = Kind::message;
  uint32_t bytes = sizeof(Message);
  uint64_t started = 0, ended = 0;  // times
  uint64_t amount = 0;              // bytes
  int32_t peer = 0;
  uint32_t sends = 0, failed = 0, asynchronous = 0;  // 1: yes
  char dtype[32] = {};
};
static_assert(sizeof(Message) == 48 + 32);

}  // namespace timeline

class Trace {
 public:
  // Opens a file in the folder that A2A_TRACE or A2A_RECORD names; nullptr if they name none. A failure is printed once
  // on standard error and does not stop the program. Nor does a disk that fills up, or a limit of the size of files:
  // the file then says how much is missing.
  static std::unique_ptr<Trace> open(Rank rank, int size, uint64_t group, std::string_view label);
  ~Trace();
  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;

  // Thread-safe. An operation that was not begun here, or so long ago that it was forgotten, is ignored. Refused
  // operations are not recorded.
  void begin(const Batch& batch) noexcept;
  void end(uint64_t number, bool failed) noexcept;
  // Records a message that has ended. Thread-safe.
  void add(const timeline::Message& message) noexcept;
  // Writes what is kept in memory, and that nothing is missing.
  void close() noexcept;

 private:
  Trace(Descriptor file, std::string path, const timeline::Header& header);

  uint64_t add_amounts(const Batch& batch);
  void append(const void* entry, size_t bytes);
  void write_out_if_due(uint64_t now) noexcept;
  void write_out() noexcept;
  void cut_off(int error) noexcept;

  std::mutex mutex_;
  const Descriptor file_;
  const std::string path_;
  timeline::Header header_;
  const int size_;
  const int pid_;
  std::vector<std::byte> buffer_;
  std::vector<uint64_t> bytes_;         // of the operation that begins: sent, expected
  std::vector<uint64_t> latest_bytes_;  // and the id of these, because programs often repeat an exchange
  uint64_t latest_amounts_ = 0;
  std::unordered_set<uint64_t> known_amounts_;
  std::deque<timeline::Operation> in_flight_;  // by number; not more than kMostInFlight
  uint64_t written_at_ = 0;                    // time
};

}  // namespace a2a
