#include "core/dump.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <system_error>
#include <utility>

#include "a2a/communicator.h"
#include "core/record_file.h"
#include "core/status_page.h"
#include "runtime/hash.h"
#include "runtime/last_tick.h"
#include "runtime/process.h"

namespace a2a {
namespace {

using record::Entry;
using record::Header;
using record::State;

std::atomic<bool> any_record{false};
std::atomic<uint64_t> sites_set{0};
struct Site {
  std::string text;
  uint64_t version = 0;
  Deadline::Clock::time_point set{};  // the tick
};
thread_local Site site;

// Writes the bytes of the runs of each peer.
void write_bytes(uint64_t* bytes, int size, const std::vector<Run>& runs) {
  std::fill_n(bytes, size, 0);
  for (const Run& run : runs) bytes[run.peer] += run.bytes;
}

void say_once(const std::string& folder, const std::string& problem) {
  static std::once_flag said;
  std::call_once(said, [&] {
    std::fprintf(stderr, "a2a: A2A_DUMP=%s: operations are not recorded: %s\n", folder.c_str(), problem.c_str());
  });
}

// Makes a file and allocates all its blocks, so that a disk that is full later does not end the record.
Descriptor make_file(const std::string& path, size_t bytes) {
  Descriptor file = a2a::make_file(path);
  const int error = allocate(file.fd(), bytes);
  if (error == 0) return file;
  ::unlink(path.c_str());
  throw std::system_error(error, std::generic_category(), path);
}

}  // namespace

bool recording() noexcept { return any_record.load(std::memory_order_relaxed) || site.set != last_tick(); }
void set_call_site(std::string_view place) {
  site.text = place;
  site.version = sites_set.fetch_add(1, std::memory_order_relaxed) + 1;
  site.set = last_tick();
}
const std::string& call_site() noexcept { return site.text; }
uint64_t call_site_version() noexcept { return site.version; }

std::unique_ptr<Dump> Dump::open(Rank rank, int size, uint64_t group, std::string_view label) {
  const char* const folder = std::getenv("A2A_DUMP");
  if (folder == nullptr || *folder == '\0') return nullptr;
  constexpr size_t kMostBytes = size_t{4} << 20;
  constexpr size_t kFewest = 16, kMost = 256;  // operations
  const size_t entry_bytes = sizeof(Entry) + 2 * sizeof(uint64_t) * static_cast<size_t>(size);
  const size_t capacity = std::clamp(kMostBytes / entry_bytes, kFewest, kMost);
  static std::atomic<unsigned> files{0};
  const std::string name = record_name(rank, size, ++files, "a2a");
  const std::filesystem::path path = std::filesystem::path(folder) / name, unfinished = path.string() + ".new";
  try {
    std::filesystem::create_directories(folder);
    const size_t bytes = record::kHeaderBytes + capacity * entry_bytes;
    std::unique_ptr<Dump> dump(new Dump(make_file(unfinished, bytes), bytes));
    dump->write_header(rank, size, group, label, entry_bytes, capacity);
    std::error_code refused;
    std::filesystem::rename(unfinished, path, refused);  // no reader finds a file without its header
    if (refused) {
      ::unlink(unfinished.c_str());
      throw std::system_error(refused, path);
    }
    any_record.store(true, std::memory_order_relaxed);
    return dump;
  } catch (const std::system_error& error) {
    say_once(folder, error.what());
    return nullptr;
  }
}

void Dump::write_header(Rank rank, int size, uint64_t group, std::string_view label, size_t entry_bytes,
                        size_t capacity) {
  Header& header = this->header();
  std::memcpy(header.magic, record::kMagic, sizeof(header.magic));
  header.entry_bytes = static_cast<uint32_t>(entry_bytes);
  header.capacity = static_cast<uint32_t>(capacity);
  header.rank = rank, header.size = size;
  header.group = group;
  header.opened = wall_clock();
  header.pid = ::getpid();
  header.started_at = process_start(header.pid);
  write_text(header.host, host_name());
  write_text(header.label, label);
  write(&header, sizeof(header));
}

Dump::Dump(Descriptor file, size_t bytes) : file_(std::move(file)), all_(new std::byte[bytes]{}), bytes_(bytes) {
  void* const base = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file_.fd(), 0);
  if (base != MAP_FAILED) mapped_ = static_cast<std::byte*>(base);
}

Dump::~Dump() {
  if (mapped_ != nullptr) ::munmap(mapped_, bytes_);
}

void Dump::write(const void* part, size_t bytes) noexcept {
  const auto* from = static_cast<const std::byte*>(part);
  if (mapped_ != nullptr) {
    const iovec to{mapped_ + (from - all_.get()), bytes}, source{const_cast<std::byte*>(from), bytes};
    if (std::cmp_equal(::process_vm_readv(header().pid, &to, 1, &source, 1, 0), bytes)) return;
  }
  // The file has been truncated, or the system call is not allowed. The program may have closed the descriptor.
  struct stat status{};
  if (file_.if_ours() < 0 || ::fstat(file_.fd(), &status) != 0) return;
  if (std::cmp_less(status.st_size, bytes_)) from = all_.get(), bytes = bytes_;
  (void)write_at(file_.fd(), from, bytes, static_cast<size_t>(from - all_.get()));
}

Entry& Dump::entry(uint64_t number) const {
  const size_t index = number % header().capacity;
  return *reinterpret_cast<Entry*>(all_.get() + record::kHeaderBytes + index * header().entry_bytes);
}

void Dump::begin(const Batch& batch) {
  if (::getpid() != header().pid) return;  // a forked child does not write its parent's record
  const std::lock_guard lock(mutex_);
  const Signature& signature = batch.signature;
  Entry& entry = this->entry(signature.number);
  auto* const sent = reinterpret_cast<uint64_t*>(&entry + 1);
  const int size = header().size;
  write_bytes(sent, size, batch.sends);
  write_bytes(sent + size, size, batch.recvs);
  Hash hash;
  for (int i = 0; i < 2 * size; ++i) hash.add(sent[i]);
  entry.counts_hash = hash.value();
  entry.plan = signature.plan;
  entry.unit_bytes = batch.unit_bytes;
  entry.started = wall_clock(), entry.ended = 0;
  write_text(entry.op, to_string(signature.op));
  write_text(entry.memory, to_string(signature.memory));
  write_text(entry.dtype, to_string(signature.dtype));
  entry.error = 0;
  write_end_of_text(entry.site, call_site());
  write_text(entry.text, batch.refusal);
  entry.state = static_cast<uint32_t>(batch.refusal.empty() ? State::started : State::refused);
  entry.number = signature.number;
  write(&entry, header().entry_bytes);
}

void Dump::end(uint64_t number, const Error* error) {
  if (::getpid() != header().pid) return;
  const std::lock_guard lock(mutex_);
  Entry& entry = this->entry(number);
  if (entry.number != number || entry.state != static_cast<uint32_t>(State::started)) return;
  entry.ended = wall_clock();
  if (error != nullptr) {
    entry.error = static_cast<uint32_t>(error->code());
    write_text(entry.text, error->what());
  }
  entry.state = static_cast<uint32_t>(error == nullptr ? State::finished : State::failed);
  write(&entry, sizeof(entry));
}

void Dump::close(record::Fate fate, std::string_view reason) noexcept {
  Header& header = this->header();
  if (::getpid() != header.pid) return;
  const std::lock_guard lock(mutex_);
  if (header.fate != static_cast<uint32_t>(record::Fate::open)) return;
  write_text(header.reason, reason);
  header.fate = static_cast<uint32_t>(fate);
  write(&header, sizeof(header));
}

}  // namespace a2a
