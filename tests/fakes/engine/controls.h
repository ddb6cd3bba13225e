// What all doubles share: the environment that steers them, error texts, the log, and the rules about processes.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace fake {

using Clock = std::chrono::steady_clock;

// How a call or an operation on a stream ended; each double has its own codes for the kinds.
struct Failure {
  enum Kind { none, not_ready, mismatch, timeout, remote, aborted, injected, misuse };
  Kind kind = none;
  std::string text;
  explicit operator bool() const { return kind != none; }
};

// Whether A2A_TEST_DOUBLES=1 is set. Otherwise sets the error text.
bool allowed();
// The same, and no parent process used the doubles before fork(). Each double asks in its first call.
bool usable();

// Variables of the environment, read at each call, because tests change them.
std::string control(const char* name, const std::string& otherwise);
double control_number(const char* name, double otherwise);
// "3" (or "3@1": on rank 1 alone) says which operation of a communicator a fault is for; 0 if none.
uint64_t control_operation(const char* name, int rank);

// The text of this thread's latest error, and of the latest one in any thread.
void set_error(std::string text);
const std::string& error();
std::string latest_error();

// One line in the file A2A_FAKE_LOG for a call.
void log(const char* function, int rank = -1, const void* stream = nullptr, uint64_t bytes = 0, int dtype = -1,
         const std::vector<int>& peers = {});
void log_line(const std::string& text);

// Sleeps for 0 to A2A_FAKE_DELAY_US (default 100) microseconds, so that work is late enough for missing waits to show.
void delay();
uint64_t random_number();

// Identities that ranks pass around by hand. Every byte counts: one that was shortened or changed is not recognised.
void make_identity(void* identity, size_t bytes);
bool identity_name(const void* identity, size_t bytes, std::string& name);  // false: made by nobody, or damaged
uint64_t hash(const void* data, size_t bytes, uint64_t seed = 0);

// The device that is current in this thread, or -1.
int current_device();
void set_current_device(int device);
int device_count();

// Descriptors that a forked child has to close, so that peers see the end of the parent.
void track(int descriptor);
void close_tracked(int descriptor);

}  // namespace fake
