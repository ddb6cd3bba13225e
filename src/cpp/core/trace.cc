#include "core/trace.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "core/hash.h"
#include "core/record_file.h"

namespace a2a {
namespace {

constexpr size_t kBlock = size_t{64} << 10;
constexpr uint64_t kLongestKept = 1'000'000'000;  // after so many nanoseconds the next operation writes the block
constexpr size_t kMostKnown = 4096;
constexpr size_t kMostInFlight = 4096;  // more are operations whose end no call has seen

}  // namespace

std::unique_ptr<Trace> Trace::open(Rank rank, int size, uint64_t group, std::string_view label) {
  const char* variable = "A2A_TRACE";
  const char* folder = std::getenv(variable);
  if (folder == nullptr || *folder == '\0') folder = std::getenv(variable = "A2A_RECORD");
  if (folder == nullptr || *folder == '\0') return nullptr;
  static std::atomic<unsigned> files{0};
  const auto path = std::filesystem::path(folder) / record_name(rank, size, ++files, "a2atrace");
  try {
    std::filesystem::create_directories(folder);
    Descriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!file.open()) throw std::system_error(errno, std::generic_category(), path);
    std::unique_ptr<Trace> trace(new Trace(std::move(file), size));
    timeline::Header header{};
    std::memcpy(header.magic, timeline::kMagic, sizeof(header.magic));
    header.rank = rank, header.size = size;
    header.group = group;
    header.opened = wall_clock();
    header.pid = trace->pid_;
    write_text(header.host, host_name());
    write_text(header.label, label);
    trace->append(&header, sizeof(header));
    trace->flush();
    return trace;
  } catch (const std::system_error& error) {
    static std::once_flag said;
    std::call_once(said, [&] {
      std::fprintf(stderr, "a2a: %s=%s: operations are not traced: %s\n", variable, folder, error.what());
    });
    return nullptr;
  }
}

Trace::Trace(Descriptor file, int size)
    : file_(std::move(file)), size_(size), pid_(::getpid()), bytes_(2 * static_cast<size_t>(size)) {
  buffer_.reserve(2 * kBlock);
}

Trace::~Trace() { flush(); }

void Trace::begin(const Batch& batch) noexcept {
  if (::getpid() != pid_ || !batch.refusal.empty()) return;  // a forked child does not write its parent's timeline
  const std::lock_guard lock(mutex_);
  try {
    timeline::Operation operation{};
    operation.number = batch.signature.number;
    operation.amounts = add_amounts(batch);
    operation.asynchronous = batch.asynchronous;
    write_text(operation.op, to_string(batch.signature.op));
    write_text(operation.memory, to_string(batch.signature.memory));
    write_text(operation.dtype, to_string(batch.signature.dtype));
    if (in_flight_.size() >= kMostInFlight) in_flight_.pop_front();
    operation.started = wall_clock();
    in_flight_.push_back(operation);
    write_out_if_due(operation.started);  // this operation may be the one that hangs
  } catch (const std::exception&) {       // no memory: this operation is not recorded
  }
}

void Trace::end(uint64_t number, bool failed) noexcept {
  if (::getpid() != pid_) return;
  const uint64_t now = wall_clock();
  const std::lock_guard lock(mutex_);
  const auto it = std::ranges::lower_bound(in_flight_, number, {}, &timeline::Operation::number);
  if (it == in_flight_.end() || it->number != number) return;
  it->ended = now;
  it->failed = failed;
  try {
    append(&*it, sizeof(*it));
  } catch (const std::exception&) {
  }
  in_flight_.erase(it);
  write_out_if_due(now);
}

void Trace::add(const timeline::Message& message) noexcept {
  if (::getpid() != pid_) return;
  const std::lock_guard lock(mutex_);
  try {
    append(&message, sizeof(message));
  } catch (const std::exception&) {  // no memory: this message is not recorded
  }
  write_out_if_due(message.ended);
}

void Trace::flush() noexcept {
  if (::getpid() != pid_) return;
  const std::lock_guard lock(mutex_);
  write_out();
}

void Trace::write_out_if_due(uint64_t now) noexcept {
  if (buffer_.size() >= kBlock || now - written_at_ > kLongestKept) write_out();
}

// Returns the id of these numbers of bytes. They are written unless they were before.
uint64_t Trace::add_amounts(const Batch& batch) {
  std::ranges::fill(bytes_, 0);
  for (const Run& run : batch.sends) bytes_[static_cast<size_t>(run.peer)] += run.bytes;
  for (const Run& run : batch.recvs) bytes_[static_cast<size_t>(size_ + run.peer)] += run.bytes;
  if (bytes_ == latest_bytes_) return latest_amounts_;
  Hash hash;
  for (const uint64_t bytes : bytes_) hash.add(bytes);
  if (known_amounts_.size() >= kMostKnown) known_amounts_.clear();
  if (!known_amounts_.contains(hash.value())) {
    timeline::Amounts amounts{};
    amounts.bytes = static_cast<uint32_t>(sizeof(amounts) + bytes_.size() * sizeof(uint64_t));
    amounts.id = hash.value();
    buffer_.reserve(buffer_.size() + amounts.bytes);  // an entry is written whole or not at all
    append(&amounts, sizeof(amounts));
    append(bytes_.data(), bytes_.size() * sizeof(uint64_t));
    known_amounts_.insert(hash.value());
  }
  latest_bytes_ = bytes_;
  latest_amounts_ = hash.value();
  return latest_amounts_;
}

void Trace::append(const void* entry, size_t bytes) {
  const auto* const from = static_cast<const std::byte*>(entry);
  buffer_.insert(buffer_.end(), from, from + bytes);
}

void Trace::write_out() noexcept {
  written_at_ = wall_clock();
  written_ += buffer_.size();
  if (written_ > file_size_limit()) file_ = Descriptor();  // a write would raise SIGXFSZ
  size_t done = 0;
  while (done < buffer_.size() && file_.if_ours() >= 0) {
    const ssize_t wrote = ::write(file_.if_ours(), buffer_.data() + done, buffer_.size() - done);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) break;  // the disk is full: the timeline has a hole from here on
    done += static_cast<size_t>(wrote);
  }
  if (done < buffer_.size()) file_ = Descriptor();
  buffer_.clear();
}

}  // namespace a2a
