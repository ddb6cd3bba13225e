// The operations of programs that XLA has compiled. A program names each by a number; its one handler runs it on the
// buffers of the program, in a thread of XLA, without the GIL.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cpp/exchange.h"

namespace a2a_py::xla {

// What a handler does, without buffers.
struct Call {
  enum class Kind : uint8_t {
    exchange,  // a plan, from the first argument into the first result
    in_place,  // a plan whose two sides are the first result
    ragged,    // alltoallv, whose counts are arguments: see run_ragged()
    send,
    recv,
  };
  Kind kind = Kind::exchange;
  Exchange exchange;
  size_t send_bytes = 0, recv_bytes = 0;  // of the whole tensors
  size_t send_elems = 0, recv_elems = 0;  // their elements, which the program has, too
  int peer = 0;                           // of messages
  int64_t tag = 0;
  // Whether every rank fails where two disagree, because each compares all that may differ with every other one.
  bool compared_by_all = true;
  uint32_t agreement = 0;  // of the plan of a ragged one: Plan::agreement()
  uint64_t program = 0;    // the calls of one program have one number
};

// Keeps a call for as long as the communicator lives, and returns its number. It does not keep the communicator alive.
uint64_t keep_call(const std::shared_ptr<a2a::Communicator>& comm, const Call& call);

// Aborts the communicators of the programs with these numbers.
void abort_programs(const std::string& reason, const std::vector<uint64_t>& programs);

// Returns the address of the handler, an XLA_FFI_Handler. Its attribute "call" is the number of the call, a scalar of
// 64 bits. An error of the operation becomes XLA's with the same text.
void* handler();

}  // namespace a2a_py::xla
