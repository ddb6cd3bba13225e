#include "core/status_page.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <new>
#include <utility>

#include "core/facts.h"
#include "core/record_file.h"
#include "runtime/descriptor.h"
#include "runtime/fork_guard.h"
#include "runtime/last_tick.h"
#include "runtime/process.h"

namespace a2a {
namespace {

using status::Entry;
using status::Header;

constexpr auto kRelaxed = std::memory_order_relaxed;

uint64_t nanoseconds(Deadline::Clock::time_point time) {
  return static_cast<uint64_t>(time.time_since_epoch().count());
}
uint64_t now() { return nanoseconds(last_tick()); }

int32_t this_thread() {
  thread_local const int32_t id = ::gettid();
  return id;
}

template <class T>
void store(std::atomic<T>& word, T value) {
  word.store(value, kRelaxed);
}
// Only one thread at a time adds, so that no atomic addition is needed.
void add_to(std::atomic<uint64_t>& word, uint64_t value) { word.store(word.load(kRelaxed) + value, kRelaxed); }

uint64_t bytes_of(const std::vector<Run>& runs) {
  uint64_t bytes = 0;
  for (const Run& run : runs) bytes += run.bytes;
  return bytes;
}

struct Description {
  std::string job, frameworks;
};

}  // namespace

// The memory of the page, which a reader opens at /proc/PID/fd. It lives as long as the process has a communicator.
class Status::Page {
 public:
  // Returns that of this process. Throws std::system_error.
  static std::shared_ptr<Page> of_this_process();
  static void describe(const std::string& job, const std::string& frameworks);
  ~Page();

  Entry& take();  // throws std::bad_alloc
  void give_back(Entry& entry) noexcept;
  bool inherited() const { return guard_.inherited(); }

 private:
  struct Shared {
    std::mutex mutex;
    std::weak_ptr<Page> page;
    Description described;
  };
  // A forked child begins anew: another thread may have held the mutex, and the page is its parent's.
  static Shared*& shared() {
    static Shared* one = [] {
      call_in_child([] { shared() = new Shared; });
      return new Shared;
    }();
    return one;
  }

  Page();
  Header& header() const { return *reinterpret_cast<Header*>(base_); }
  Entry& entry(size_t at) const {
    return *reinterpret_cast<Entry*>(base_ + status::kHeaderBytes + at * status::kEntryBytes);
  }
  void write(const Description& described) {
    write_text(header().job, described.job);
    write_text(header().frameworks, described.frameworks);
  }

  const ForkGuard guard_;
  Descriptor file_;
  std::byte* base_ = nullptr;
  std::mutex mutex_;
  bool taken_[status::kEntries] = {};
  uint64_t serial_ = 0;
};

std::shared_ptr<Status::Page> Status::Page::of_this_process() {
  Shared& all = *shared();
  const std::lock_guard lock(all.mutex);
  auto page = all.page.lock();
  if (page == nullptr) {
    page.reset(new Page);
    page->write(all.described);
    all.page = page;
  }
  return page;
}

void Status::Page::describe(const std::string& job, const std::string& frameworks) {
  Shared& all = *shared();
  const std::lock_guard lock(all.mutex);
  if (!job.empty()) all.described.job = job;
  if (!frameworks.empty()) all.described.frameworks = frameworks;
  if (const auto page = all.page.lock()) page->write(all.described);
}

// Sealed, so that nobody who opens it can make it shorter: a store would then raise SIGBUS. Memory that is missing is
// noticed by fallocate(), for the same reason. A size beyond the limit on files would raise SIGXFSZ.
Status::Page::Page() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur < status::kBytes) throw std::bad_alloc();
  Descriptor file(::memfd_create(status::kName, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  constexpr auto kSize = static_cast<off_t>(status::kBytes);
  if (file.fd() < 0 || ::ftruncate(file.fd(), kSize) != 0 ||
      ::fcntl(file.fd(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0 ||
      ::fallocate(file.fd(), 0, 0, status::kHeaderBytes) != 0) {
    throw std::bad_alloc();
  }
  void* const base = ::mmap(nullptr, status::kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.fd(), 0);
  if (base == MAP_FAILED) throw std::bad_alloc();
  base_ = static_cast<std::byte*>(base);
  file_ = std::move(file);
  close_in_child(file_.fd());  // a reader would take the child for a rank
  header().entry_bytes = status::kEntryBytes, header().entries = status::kEntries;
  header().pid = ::getpid();
  header().started_at = process_start(header().pid);
  write_text(header().host, host_name());
  std::memcpy(header().magic, status::kMagic, sizeof(status::kMagic));
}

Status::Page::~Page() {
  if (!inherited()) keep_in_child(file_.fd());
  ::munmap(base_, status::kBytes);
}

Entry& Status::Page::take() {
  const std::lock_guard lock(mutex_);
  bool* const found = std::find(std::begin(taken_), std::end(taken_), false);
  if (found == std::end(taken_) || file_.if_ours() < 0) throw std::bad_alloc();
  const auto at = static_cast<size_t>(found - taken_);
  const size_t offset = status::kHeaderBytes + at * status::kEntryBytes;
  if (::fallocate(file_.fd(), 0, static_cast<off_t>(offset), status::kEntryBytes) != 0) throw std::bad_alloc();
  *found = true;
  return *new (base_ + offset) Entry{};
}

void Status::Page::give_back(Entry& entry) noexcept {
  const std::lock_guard lock(mutex_);
  entry.serial.store(0);
  taken_[static_cast<size_t>(reinterpret_cast<std::byte*>(&entry) - base_ - status::kHeaderBytes) /
         status::kEntryBytes] = false;
}

void describe_process(const std::string& job, const std::string& frameworks) {
  Status::Page::describe(job, frameworks);
}

std::shared_ptr<void> show_meeting(Rank rank, int size, int hosts) noexcept {
  auto shown = Status::open(rank, size, hosts, 0, "a2a.init()");
  if (shown != nullptr) shown->belongs_to(shown.get());
  return shown;
}

std::shared_ptr<Status> Status::open(Rank rank, int size, int hosts, uint64_t group, std::string_view label) noexcept {
  static std::atomic<uint64_t> serials{0};
  try {
    auto page = Page::of_this_process();
    Entry& entry = page->take();
    entry.group = group, entry.opened = now();
    entry.rank = rank, entry.size = size, entry.hosts = hosts;
    store(entry.thread, this_thread());
    write_text(entry.label, label);
    entry.serial.store(++serials, std::memory_order_release);
    return std::shared_ptr<Status>(new Status(std::move(page), entry));
  } catch (const std::exception&) {  // a rank runs as well without
    return nullptr;
  }
}

Status::~Status() {
  if (!page_->inherited()) page_->give_back(entry_);
}

void Status::begin(const Batch& batch, Deadline::Clock::time_point tick) noexcept {
  if (page_->inherited()) return;
  const Signature& signature = batch.signature;
  store(entry_.begun, signature.number);
  std::atomic_thread_fence(std::memory_order_release);
  store(entry_.started, nanoseconds(tick));
  add_to(entry_.sent, bytes_of(batch.sends));
  add_to(entry_.expected, bytes_of(batch.recvs));
  store(entry_.dtype, pack(signature.dtype));
  store(entry_.operation, static_cast<uint32_t>(signature.op) | static_cast<uint32_t>(signature.memory) << 8);
  entry_.number.store(signature.number, std::memory_order_release);
  if (site_shown_ != call_site_version()) show_site();
}

void Status::add(const Message& message) noexcept {
  if (page_->inherited()) return;
  add_to(entry_.messages, 1);
  add_to(entry_.message_bytes, message.bytes);
  if (site_shown_ != call_site_version()) show_site();
}

void Status::show_site() noexcept {
  if (page_->inherited() || call_site().empty()) return;
  site_shown_ = call_site_version();
  store(entry_.thread, this_thread());
  store(entry_.sited, uint64_t{0});
  std::atomic_thread_fence(std::memory_order_release);
  write_end_of_text(entry_.site, call_site());
  entry_.sited.store(entry_.number.load(kRelaxed), std::memory_order_release);
}

void Status::end(uint64_t number, const Error* error) noexcept {
  if (page_->inherited()) return;
  if (error != nullptr) {
    write_text(entry_.error, error->what());
    store(entry_.code, static_cast<uint32_t>(error->code()));
    entry_.failed.store(number, std::memory_order_release);
  }
  store(entry_.ended_at, now());
  entry_.ended.store(number, std::memory_order_release);
}

void Status::belongs_to(const void* owner) noexcept { entry_.owner = reinterpret_cast<uintptr_t>(owner); }

void Status::wait(const Message& message) noexcept {
  const std::span<const Rank> peer(&message.peer, message.peer == kAnySource ? 0 : 1);
  wait(entry_.waits[1], 0, message.sends, peer);
  message_shown_ = true;
}

void Status::hide_message() noexcept {
  if (page_->inherited()) return;
  status::Wait& shown = entry_.waits[1];
  const uint64_t version = shown.version.load(kRelaxed);
  shown.version.store(version + 1, kRelaxed);
  std::atomic_thread_fence(std::memory_order_release);
  shown.seen = 0;
  shown.version.store(version + 2, std::memory_order_release);
  message_shown_ = false;
}

void Status::wait(status::Wait& wait, uint64_t number, bool sends, std::span<const Rank> ranks) noexcept {
  constexpr uint64_t kFresh = 500'000'000;  // a message that was not looked at for so long is another one
  if (page_->inherited()) return;
  const uint64_t version = wait.version.load(kRelaxed), time = now();
  wait.version.store(version + 1, kRelaxed);
  std::atomic_thread_fence(std::memory_order_release);
  const bool same =
      number != 0 ? wait.number == number : wait.sends == static_cast<uint32_t>(sends) && time - wait.seen < kFresh;
  constexpr uint64_t kLook = 100'000'000;  // with some delay: between looks further apart it may have been elsewhere
  if (metrics_ != nullptr && same) metrics_->waited(ranks, std::min(time - wait.seen, kLook));
  if (!same) wait.since = time;
  wait.seen = time, wait.number = number, wait.sends = sends;
  wait.count = static_cast<uint32_t>(ranks.size());
  std::copy_n(ranks.begin(), std::min(ranks.size(), status::kMostShown), wait.ranks);
  wait.version.store(version + 2, std::memory_order_release);
}

}  // namespace a2a
