// Calls of the core that may wait for long. Each checks for Python's signals meanwhile, and ends when a handler raises.
#pragma once

#include <cstddef>
#include <exception>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "a2a/bootstrap.h"
#include "a2a/communicator.h"
#include "a2a/endpoint.h"
#include "cpp/background.h"
#include "cpp/exchange.h"
#include "cpp/python/interrupts.h"

namespace a2a_py {

// Starts the exchange. If the memory layouts cannot be stored, the peers are told.
inline WorkPtr start(a2a::Communicator& comm, const Exchange& x) {
  const a2a::SignalWatch signals(&interrupted);
  std::vector<a2a::TensorLayout> send_layouts, recv_layouts;
  try {
    send_layouts = spans_of(x.send_layouts), recv_layouts = spans_of(x.recv_layouts);
  } catch (const std::exception& error) {  // no memory
    comm.refuse(x.call, error.what());
    throw;
  }
  a2a::Call call = x.call;
  call.send_layouts = send_layouts, call.recv_layouts = recv_layouts;
  if (x.reshard) return comm.start(*x.reshard, x.operation, x.sends, x.recvs, call);
  if (x.listed) return comm.start(*x.plan, x.sends, x.recvs, call);
  return comm.start(*x.plan, std::span(&x.send, 1), std::span(&x.recv, 1), call);
}

// Waits until nothing in flight writes this tensor. `kept` has its layout if it has gaps.
inline void wait_to_read(a2a::Communicator& comm, const void* data, size_t bytes, const KeptLayouts& kept) {
  const a2a::SignalWatch signals(&interrupted);
  comm.wait_to_read(data, bytes, spans_of(kept));
}

// These run in the calling thread: they check for signals themselves, and end at once. A thread left behind would
// go on meeting, and disturb the next attempt.
inline BootstrapPtr join_job(int rank, int size, const std::string& job, const When& until) {
  const a2a::SignalWatch signals(&interrupted);
  return a2a::unix_bootstrap(rank, size, job, *until);
}

inline BootstrapPtr join_tcp(int rank, int size, const std::string& job, const std::string& address,
                             const std::string& secret, const When& until) {
  const a2a::SignalWatch signals(&interrupted);
  return a2a::tcp_bootstrap(rank, size, job, address, secret, *until);
}

inline std::vector<std::string> allgather_here(a2a::Bootstrap& bootstrap, const std::string& mine, const When& until) {
  const a2a::SignalWatch signals(&interrupted);
  return bootstrap.allgather(mine, *until);
}

// Runs in the calling thread, because communicators that one thread makes wait together.
inline CommPtr connect_endpoint(a2a::Endpoint& endpoint, const std::vector<std::string>& handles, int64_t generation,
                                const When& until, std::vector<int>& joined) {
  const a2a::SignalWatch signals(&interrupted);
  return endpoint.connect(handles, generation, *until, &joined);
}

// Runs in the calling thread, which MPI takes for the main one.
inline BootstrapPtr mpi_bootstrap(bool given, int fortran_handle, const std::string& name, const When& until) {
  const a2a::SignalWatch signals(&interrupted);
  return a2a::mpi_bootstrap(given ? std::optional(fortran_handle) : std::nullopt, name, *until);
}

}  // namespace a2a_py
