// What a rank shows to `a2a status` while it runs: one entry of its process's status page (status_page.cc) for each
// communicator. It is memory of this process, so writing costs no system call. Not public.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "a2a/communicator.h"
#include "core/message.h"
#include "core/metrics.h"
#include "core/schedule.h"

namespace a2a {

// The layout of the page. It is a header, then `entries` entries. All numbers are little-endian, all texts end with a
// zero, all times are nanoseconds of the monotonic clock, most of them as of the kernel's last tick. A reader copies
// the page while it is written. python/a2a/_status_pages.py reads it.
namespace status {

constexpr char kName[] = "a2a-status";  // of the memfd
constexpr char kMagic[8] = {'a', '2', 'a', 's', 't', 'a', 't', '1'};
constexpr size_t kHeaderBytes = 4096, kEntryBytes = 2048, kEntries = 128;
constexpr size_t kBytes = kHeaderBytes + kEntries * kEntryBytes;
constexpr size_t kMostShown = 32;  // ranks of a wait

template <class T>
using Word = std::atomic<T>;

struct Header {
  char magic[8];
  uint32_t entry_bytes, entries;
  int32_t pid;
  uint32_t unused;
  uint64_t started_at;  // of the process, in clock ticks since its host booted, as /proc says
  char host[64];
  char job[256];         // as far as this process knows one
  char frameworks[128];  // that its program has loaded
};
static_assert(sizeof(Header) == 32 + 64 + 256 + 128 && sizeof(Header) <= kHeaderBytes);

// The ranks without which this one cannot go on, as it saw them last. It looks every 10 ms while it waits, and not at
// all while it waits for nothing.
struct Wait {
  Word<uint64_t> version;  // odd while it is written
  uint64_t number;         // of the operation; 0 for a message
  uint64_t since, seen;    // times; seen is 0 where there is none
  uint32_t sends;          // 1: the message is one that it sends
  uint32_t count;          // of ranks, also those that are not listed
  int32_t ranks[kMostShown];
};

struct Entry {
  // Written before `serial`, which is 0 for an entry not in use.
  Word<uint64_t> serial;
  uint64_t group;             // the same for all ranks of the communicator; 0 while they meet to make one
  uint64_t opened;            // time
  uint64_t owner;             // the same for all communicators of one rank in this process
  int32_t rank, size, hosts;  // hosts is 0 where it is not known yet
  Word<int32_t> thread;       // that called last, as far as is known
  char label[128];            // "world", "split #12 of world"

  // The operation started last, and all bytes so far. Complete where `begun` and `number` are the same.
  alignas(64) Word<uint64_t> begun;
  Word<uint64_t> number;
  Word<uint64_t> started;  // time
  Word<uint64_t> sent, expected, messages, message_bytes;
  Word<uint32_t> dtype;      // code | bits << 8 | lanes << 16
  Word<uint32_t> operation;  // a2a::Op | a2a::Memory << 8

  alignas(64) Word<uint64_t> ended;  // the last operation whose end the library has seen
  Word<uint64_t> ended_at;           // time
  Word<uint64_t> failed;             // the operation of `error`, 0 for none
  Word<uint32_t> code;               // a2a::Code of `error`

  alignas(64) Wait waits[2];         // of the oldest operation; of the oldest message
  alignas(64) Word<uint64_t> sited;  // the operation that `site` belongs to
  char site[192];                    // the place of a call in the program
  char error[448];
};
static_assert(sizeof(Entry) <= kEntryBytes && std::atomic<uint64_t>::is_always_lock_free);

}  // namespace status

// One rank's entry. Its functions do nothing in a forked child.
class Status {
 public:
  // Returns nullptr where the page has no entry left, or there is no memory for one.
  static std::shared_ptr<Status> open(Rank rank, int size, int hosts, uint64_t group, std::string_view label) noexcept;
  ~Status();
  Status(const Status&) = delete;
  Status& operator=(const Status&) = delete;

  // The next three are called by one thread at a time.
  void begin(const Batch& batch, Deadline::Clock::time_point tick) noexcept;
  void add(const Message& message) noexcept;
  // Shows the place of the call that this thread is in.
  void show_site() noexcept;

  // The rest, too, and may be called beside those.
  void end(uint64_t number, const Error* error) noexcept;
  // Which rank of this process it is: any number that no other rank here has.
  void belongs_to(const void* owner) noexcept;
  // Shows for whom this rank waits: in an operation, or in a message.
  void wait(uint64_t number, std::span<const Rank> ranks) noexcept { wait(entry_.waits[0], number, false, ranks); }
  void wait(const Message& message) noexcept;
  // Has waits counted there. Call before the others.
  void count_in(std::shared_ptr<Metrics> metrics) { metrics_ = std::move(metrics); }
  // Call when no message of this rank is under way any more.
  void no_message() noexcept {
    if (message_shown_) hide_message();
  }

 private:
  friend void describe_process(const std::string& job, const std::string& frameworks);
  class Page;
  Status(std::shared_ptr<Page> page, status::Entry& entry) : page_(std::move(page)), entry_(entry) {}

  void wait(status::Wait& wait, uint64_t number, bool sends, std::span<const Rank> ranks) noexcept;
  void hide_message() noexcept;

  const std::shared_ptr<Page> page_;
  status::Entry& entry_;
  uint64_t site_shown_ = 0;
  bool message_shown_ = false;
  std::shared_ptr<Metrics> metrics_;  // nullptr: nothing is counted
};

// A number that differs each time the thread's call_site() was set.
uint64_t call_site_version() noexcept;

}  // namespace a2a
