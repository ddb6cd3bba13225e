// Bodies of the typed helpers declared in communicator.h.
#pragma once

#include <numeric>
#include <vector>

#include "a2a/communicator.h"

namespace a2a {
namespace detail {

// Runs a plan made for this rank and waits. A plan that cannot be made is told to the peers before the error goes on.
template <class T, class MakePlan>
void run(Communicator& comm, Op op, std::span<const T> send, std::span<T> recv, const std::source_location& caller,
         MakePlan&& make_plan) {
  static_assert(std::is_trivially_copyable_v<T>);
  if (recording()) {
    set_call_site(std::string(caller.file_name()) + ":" + std::to_string(caller.line()) + " in " +
                  caller.function_name());
  }
  Call call;
  call.op = op;
  call.dtype = DType{1, 8, static_cast<uint16_t>(sizeof(T))};  // sizeof(T) bytes each
  call.unit_bytes = sizeof(T);
  std::optional<Plan> plan;
  try {
    plan.emplace(make_plan());
  } catch (const Error& error) {
    comm.refuse(call, error.what());
    throw;
  }
  const void* from = send.data();
  void* to = recv.data();
  comm.start(*plan, {&from, 1}, {&to, 1}, call)->wait();
}

}  // namespace detail

template <class T>
void alltoallv(Communicator& comm, std::span<const T> send, std::span<const int64_t> send_counts, std::span<T> recv,
               std::span<const int64_t> recv_counts, std::span<const int64_t> send_displs,
               std::span<const int64_t> recv_displs, std::source_location caller) {
  detail::run<T>(comm, Op::alltoallv, send, recv, caller, [&] {
    return Plan::alltoallv(comm.rank(), comm.size(), sizeof(T), {send_counts, send_displs}, send.size(),
                           {recv_counts, recv_displs}, recv.size());
  });
}

template <class T>
void alltoall(Communicator& comm, std::span<const T> send, std::span<T> recv, std::source_location caller) {
  detail::run<T>(comm, Op::alltoall, send, recv, caller, [&] {
    const auto size = static_cast<size_t>(comm.size());
    if (send.size() != recv.size() || send.size() % size != 0) {
      throw Error(Code::invalid_argument, "rank " + std::to_string(comm.rank()) + ": " + std::to_string(send.size()) +
                                              " elements to send and " + std::to_string(recv.size()) +
                                              " to receive do not divide equally among " + std::to_string(size) +
                                              " ranks");
    }
    const std::vector<int64_t> counts(size, static_cast<int64_t>(send.size() / size));
    return Plan::alltoallv(comm.rank(), comm.size(), sizeof(T), {counts, {}}, send.size(), {counts, {}}, recv.size());
  });
}

template <class T>
void allgather(Communicator& comm, std::span<const T> send, std::span<T> recv, std::source_location caller) {
  detail::run<T>(comm, Op::allgather, send, recv, caller, [&] {
    if (recv.size() != send.size() * static_cast<size_t>(comm.size())) {
      throw Error(Code::invalid_argument, "rank " + std::to_string(comm.rank()) + ": recv has " +
                                              std::to_string(recv.size()) + " elements, not size " +
                                              std::to_string(comm.size()) + " times the " +
                                              std::to_string(send.size()) + " of send");
    }
    return Plan::allgather(comm.rank(), comm.size(), send.size_bytes());
  });
}

}  // namespace a2a
