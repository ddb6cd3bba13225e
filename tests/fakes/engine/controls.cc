#include "engine/controls.h"

#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <random>
#include <set>
#include <sstream>
#include <thread>

namespace fake {
namespace {

// Never destroyed: threads of streams may still run when the process ends.
struct Process {
  std::mutex mutex;
  std::set<int> descriptors;
  std::string latest_error;
  std::atomic<pid_t> owner{0};  // the process that used the doubles first
};

Process& process() {
  static auto* const it = new Process;
  return *it;
}

// After fork() the threads of streams and links exist in the parent only.
void watch_forks() {
  pthread_atfork([] { process().mutex.lock(); }, [] { process().mutex.unlock(); },
                 [] {
                   for (const int descriptor : process().descriptors) close(descriptor);
                   process().descriptors.clear();
                   process().mutex.unlock();
                 });
}

std::mt19937_64& generator() {
  thread_local std::mt19937_64 it{std::random_device{}()};
  return it;
}

thread_local std::string error_text;
thread_local int device = -1;

}  // namespace

bool allowed() {
  if (control("A2A_TEST_DOUBLES", "") == "1") return true;
  set_error("this is a test double of a vendor library; it works only with A2A_TEST_DOUBLES=1 in the environment");
  return false;
}

bool usable() {
  if (!allowed()) return false;
  pid_t owner = 0;
  if (process().owner.compare_exchange_strong(owner, getpid())) watch_forks();
  if (process().owner == getpid()) return true;
  set_error("the device was used before fork(); this child process cannot use it");
  return false;
}

std::string control(const char* name, const std::string& otherwise) {
  const char* const value = std::getenv(name);
  return value && *value ? value : otherwise;
}

double control_number(const char* name, double otherwise) {
  const std::string value = control(name, "");
  return value.empty() ? otherwise : std::stod(value);
}

uint64_t control_operation(const char* name, int rank) {
  const std::string value = control(name, "0");
  const size_t at = value.find('@');
  if (at != std::string::npos && std::stoi(value.substr(at + 1)) != rank) return 0;
  return std::stoull(value.substr(0, at));
}

void set_error(std::string text) {
  error_text = std::move(text);
  const std::lock_guard lock(process().mutex);
  process().latest_error = error_text;
}
const std::string& error() { return error_text; }
std::string latest_error() {
  const std::lock_guard lock(process().mutex);
  return process().latest_error;
}

void log_line(const std::string& text) {
  const std::string path = control("A2A_FAKE_LOG", "");
  if (path.empty()) return;
  const int file = open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
  if (file < 0) return;
  const std::string line = "pid=" + std::to_string(getpid()) + " " + text + "\n";
  [[maybe_unused]] const ssize_t written = write(file, line.data(), line.size());
  close(file);
}

void log(const char* function, int rank, const void* stream, uint64_t bytes, int dtype, const std::vector<int>& peers) {
  if (!std::getenv("A2A_FAKE_LOG")) return;
  std::ostringstream line;
  line << "rank=" << rank << " call=" << function << " stream=" << stream << " bytes=" << bytes << " dtype=" << dtype
       << " peers=";
  for (size_t i = 0; i < peers.size(); ++i) line << (i ? "," : "") << peers[i];
  log_line(line.str());
}

void delay() {
  const auto longest = static_cast<uint64_t>(control_number("A2A_FAKE_DELAY_US", 100));
  if (longest > 0) std::this_thread::sleep_for(std::chrono::microseconds(random_number() % (longest + 1)));
}

uint64_t random_number() { return generator()(); }

uint64_t hash(const void* data, size_t bytes, uint64_t seed) {
  // FNV-1a over words: a source that changes in flight has to be found, not one that somebody forges.
  uint64_t value = 0xcbf29ce484222325 ^ seed;
  const auto* at = static_cast<const unsigned char*>(data);
  for (; bytes >= 8; bytes -= 8, at += 8) {
    uint64_t word;
    std::memcpy(&word, at, 8);
    value = (value ^ word) * 0x100000001b3;
    value ^= value >> 32;
  }
  for (; bytes > 0; --bytes, ++at) value = (value ^ *at) * 0x100000001b3;
  return value;
}

void make_identity(void* identity, size_t bytes) {
  auto* const at = static_cast<unsigned char*>(identity);
  for (size_t i = 0; i < bytes; ++i) at[i] = static_cast<unsigned char>(random_number());
  const uint64_t check = hash(at, bytes - sizeof(uint64_t), 0xa2a);
  std::memcpy(at + bytes - sizeof check, &check, sizeof check);
}

bool identity_name(const void* identity, size_t bytes, std::string& name) {
  const auto* const at = static_cast<const unsigned char*>(identity);
  uint64_t check;
  std::memcpy(&check, at + bytes - sizeof check, sizeof check);
  if (check != hash(at, bytes - sizeof check, 0xa2a)) return false;
  char text[32];
  snprintf(text, sizeof text, "%016lx", static_cast<unsigned long>(hash(at, bytes, 1)));
  name = text;
  return true;
}

int current_device() { return device; }
void set_current_device(int value) { device = value; }
int device_count() { return static_cast<int>(control_number("A2A_FAKE_DEVICES", 8)); }

void track(int descriptor) {
  const std::lock_guard lock(process().mutex);
  process().descriptors.insert(descriptor);
}

void close_tracked(int descriptor) {
  const std::lock_guard lock(process().mutex);
  if (process().descriptors.erase(descriptor)) close(descriptor);
}

}  // namespace fake
