// The types that every other file uses: ranks, data types, deadlines, streams and errors.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "a2a/operations.h"

#if defined(_WIN32)
#error "a2a runs on Linux"
#endif
#define A2A_API __attribute__((visibility("default")))

namespace a2a {

using Rank = int;

// An element type by its DLPack triple. Two tensors have the same dtype when all three agree. An exchange only
// moves bytes, so any type whose bits * lanes is a multiple of 8 can travel.
struct DType {
  uint8_t code = 1;  // DLPack DLDataTypeCode; 1 = unsigned integer
  uint8_t bits = 8;
  uint16_t lanes = 1;

  size_t bytes() const { return size_t{bits} * lanes / 8; }
  bool operator==(const DType&) const = default;
};

// "bfloat16", "float8_e4m3fn", "uint8", ... and "dtype(code, bits, lanes)" for a code this version has no name for.
A2A_API std::string to_string(DType);

// The kind of memory of a tensor, by DLPack device type. Pinned host memory counts as host.
enum class Memory : uint8_t { host = 1, cuda = 2, npu = 12 };

A2A_API const char* to_string(Memory);

// The operation of a call, from the table in a2a/operations.h. All ranks of a group must make the same sequence of
// operations.
enum class Op : uint8_t {
#define A2A_OPERATION(name, number, text, compared) name = number,
  A2A_OPERATIONS(A2A_OPERATION)
#undef A2A_OPERATION
};

A2A_API const char* to_string(Op);

// The operation of a reduction on the elements x0, x1, x2, ... of the ranks 0, 1, 2, ...: ((x0 op x1) op x2) ... avg is
// the sum divided by the number of ranks. premul_sum is the sum of elements that each rank has multiplied by a factor
// of its own before the call; it has a name of its own so that it does not meet a plain sum. core/fold/fold.h says what
// each means for which dtype.
enum class Fold : uint8_t { none = 0, sum, prod, min, max, avg, band, bor, bxor, premul_sum };

// "sum", "prod", ...
A2A_API const char* to_string(Fold);
// Throws Error(invalid_argument) if the operation has no meaning for this dtype: bit operations on anything but
// integers and bools, avg and premul_sum of integers and bools, min and max of complex numbers, dtypes that are no
// numbers.
A2A_API void require_defined(Fold, DType);

// A point in time on the monotonic clock. It is made once where a call enters the library and passed down, so that
// several waits inside one call share one budget.
class Deadline {
 public:
  using Clock = std::chrono::steady_clock;

  static Deadline never() { return Deadline(Clock::time_point::max()); }
  static Deadline at(Clock::time_point t) { return Deadline(t); }
  // Negative or huge values mean never; 0 means "do not wait".
  A2A_API static Deadline after_seconds(double seconds, Clock::time_point from = Clock::now());

  bool passed() const { return when_ != Clock::time_point::max() && Clock::now() >= when_; }
  bool passed(Clock::time_point now) const { return now >= when_ && when_ != Clock::time_point::max(); }
  Clock::time_point when() const { return when_; }

 private:
  explicit Deadline(Clock::time_point when) : when_(when) {}
  Clock::time_point when_;
};

// A device's queue of work (cudaStream_t, aclrtStream). Host transports ignore it.
struct Stream {
  void* handle = nullptr;
};

// The kinds of error, by what the caller may do next (docs/guide/errors.md). After peer_lost, timeout and aborted the
// communicator is broken; after the others it is as it was.
enum class Code {
  invalid_argument = 1,  // this rank's own arguments; its peers get mismatch
  mismatch,              // ranks disagree about the call; nothing of the disagreeing pair was written
  peer_lost,             // a rank died or left
  timeout,               // a deadline passed
  aborted,               // a rank called abort(), or the communicator was already broken or closed
  unsupported,           // this build or this machine cannot do it, or nothing can
  backend,               // the operating system or a vendor library failed
};

class A2A_API Error : public std::runtime_error {
 public:
  Error(Code code, const std::string& message) : std::runtime_error(message), code_(code) {}
  Code code() const { return code_; }

 private:
  Code code_;
};

}  // namespace a2a
