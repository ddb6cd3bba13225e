#include "core/trace.h"

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

#include "core/record_file.h"
#include "runtime/hash.h"

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
  const std::string unfinished = path.string() + ".new";
  timeline::Header header{};
  std::memcpy(header.magic, timeline::kMagic, sizeof(header.magic));
  header.rank = rank, header.size = size;
  header.group = group;
  header.opened = wall_clock();
  header.pid = ::getpid();
  header.written = sizeof(header);
  write_text(header.host, host_name());
  write_text(header.label, label);
  try {
    std::filesystem::create_directories(folder);
    Descriptor file = make_file(unfinished);
    try {
      const int error = write_at(file.fd(), &header, sizeof(header), 0);
      if (error != 0) throw std::system_error(error, std::generic_category(), path);
      std::filesystem::rename(unfinished, path);  // replaces what others may have put there, and does not open it
    } catch (const std::system_error&) {
      ::unlink(unfinished.c_str());
      throw;
    }
    return std::unique_ptr<Trace>(new Trace(std::move(file), path, header));
  } catch (const std::system_error& error) {
    static std::once_flag said;
    std::call_once(said, [&] {
      std::fprintf(stderr, "a2a: %s=%s: operations are not traced: %s\n", variable, folder, error.what());
    });
    return nullptr;
  }
}

Trace::Trace(Descriptor file, std::string path, const timeline::Header& header)
    : file_(std::move(file)),
      path_(std::move(path)),
      header_(header),
      size_(header.size),
      pid_(header.pid),
      bytes_(2 * static_cast<size_t>(header.size)),
      written_at_(header.opened) {
  buffer_.reserve(2 * kBlock);
}

Trace::~Trace() { close(); }

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
    if (in_flight_.size() >= kMostInFlight) {
      in_flight_.pop_front();
      ++header_.operations;  // it will be missing
    }
    operation.started = wall_clock();
    in_flight_.push_back(operation);
    write_out_if_due(operation.started);  // this operation may be the one that hangs
  } catch (const std::exception&) {       // no memory: this operation is not recorded
    ++header_.operations;
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
  ++header_.operations;
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
  ++header_.messages;
  try {
    append(&message, sizeof(message));
  } catch (const std::exception&) {  // no memory: this message is not recorded
  }
  write_out_if_due(message.ended);
}

void Trace::close() noexcept {
  if (::getpid() != pid_) return;
  const std::lock_guard lock(mutex_);
  if (header_.fate == timeline::Fate::open) header_.fate = timeline::Fate::closed;
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
  if (header_.fate == timeline::Fate::cut_off) return;
  const auto* const from = static_cast<const std::byte*>(entry);
  buffer_.insert(buffer_.end(), from, from + bytes);
}

// The header comes last: until then the file says less than it has. A rank that is killed in between loses nothing.
void Trace::write_out() noexcept {
  written_at_ = wall_clock();
  const int fd = file_.if_ours();
  if (fd < 0) {
    if (!buffer_.empty()) cut_off(EBADF);
    return;
  }
  if (!buffer_.empty()) {
    const int error = write_at(fd, buffer_.data(), buffer_.size(), header_.written);
    if (error != 0) {
      cut_off(error);
    } else {
      header_.written += buffer_.size();
    }
    buffer_.clear();
  }
  (void)write_at(fd, &header_, sizeof(header_), 0);
}

void Trace::cut_off(int error) noexcept {
  buffer_.clear();
  if (header_.fate == timeline::Fate::cut_off) return;
  header_.fate = timeline::Fate::cut_off;
  header_.error = error;
  static std::once_flag said;
  std::call_once(said, [&] {
    std::fprintf(stderr, "a2a: rank %d: %s: the timeline is incomplete from here on: %s\n", header_.rank, path_.c_str(),
                 error == EBADF ? "the program has closed its descriptor" : std::strerror(error));
  });
}

}  // namespace a2a
