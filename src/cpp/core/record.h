// The layout of the files that A2A_DUMP makes a rank write. python/a2a/dump.py reads them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace a2a::record {

// A file is a header, then `capacity` entries. Operation n is in entry n % capacity. Each entry is followed by two
// numbers of bytes for each rank: sent to it, and expected from it. All numbers are little-endian, all texts end with a
// zero, all times are nanoseconds since 1970.

constexpr char kMagic[8] = {'a', '2', 'a', 'd', 'u', 'm', 'p', '1'};
constexpr size_t kHeaderBytes = 4096;

enum class Fate : uint32_t {
  open = 0,     // in use, or its process is gone
  closed = 1,   // by close(), which every rank has called
  dropped = 2,  // left without waiting
  aborted = 3,  // by abort() on this rank; `reason` says why
};

struct Header {
  char magic[8];
  uint32_t entry_bytes;  // with the numbers that follow it
  uint32_t capacity;
  int32_t rank, size;
  uint64_t group;       // the same in the files of all ranks of the group
  uint64_t opened;      // time
  int32_t pid;          //
  uint32_t fate;        // Fate
  uint64_t started_at;  // of the process, in clock ticks since its host booted, as /proc says
  char host[64];        //
  char label[128];      // "world", "split #12 of world"
  char reason[448];
};
static_assert(sizeof(Header) == 56 + 64 + 128 + 448 && sizeof(Header) <= kHeaderBytes);

enum class State : uint32_t {
  none = 0,
  started = 1,   // in flight, or no call has seen its end yet
  finished = 2,  //
  failed = 3,    // `text` has the error
  refused = 4,   // this rank's arguments were refused; `text` says why
};

struct Entry {
  uint64_t number;  // of the operation; 0 for none
  uint64_t plan;
  uint64_t started, ended;  // times
  uint64_t unit_bytes;      // of one row or element
  uint64_t counts_hash;     // of the numbers of bytes
  uint32_t state;           // State
  uint32_t error;           // a2a::Code of `text`, 0 for none
  char op[16], memory[8], dtype[32];
  char site[192];  // the place of the call in the program
  char text[448];
};
static_assert(sizeof(Entry) == 56 + 56 + 192 + 448);

}  // namespace a2a::record
