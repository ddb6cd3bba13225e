// Bodies of the typed helpers declared in communicator.h.
#pragma once

#include <complex>
#include <numeric>
#include <type_traits>
#include <utility>
#include <vector>

#include "a2a/communicator.h"

namespace a2a {
namespace detail {

// T as sizeof(T) uninterpreted bytes.
template <class T>
constexpr DType opaque() {
  static_assert(std::is_trivially_copyable_v<T>);
  return DType{1, 8, static_cast<uint16_t>(sizeof(T))};
}

template <class T>
constexpr bool kIsComplex = std::is_same_v<T, std::complex<float>> || std::is_same_v<T, std::complex<double>>;
template <class T>
constexpr bool kIsNumber = kIsComplex<T> || (std::is_arithmetic_v<T> && !std::is_same_v<T, long double>);

// T as numbers, with DLPack's codes.
template <class T>
constexpr DType number() {
  constexpr bool complex = kIsComplex<T>;
  static_assert(kIsNumber<T>, "no type that is folded");
  const uint8_t code = complex                       ? 5
                       : std::is_same_v<T, bool>     ? 6
                       : std::is_floating_point_v<T> ? 2
                                                     : std::is_unsigned_v<T>;
  return DType{code, 8 * sizeof(T), 1};
}

inline Error sizes_differ(const Communicator& comm, size_t send, size_t recv, const char* what) {
  return Error(Code::invalid_argument, "rank " + std::to_string(comm.rank()) + ": send has " + std::to_string(send) +
                                           " elements and recv " + std::to_string(recv) + ": " + what);
}

inline void note(const std::source_location& caller) {
  if (!recording()) return;
  set_call_site(std::string(caller.file_name()) + ":" + std::to_string(caller.line()) + " in " +
                caller.function_name());
}

// Runs a plan made for this rank and waits. If the plan cannot be made, tells the peers, then rethrows the error.
template <class T, class MakePlan>
void run(Communicator& comm, Op op, std::span<const T> send, std::span<T> recv, const std::source_location& caller,
         MakePlan&& make_plan, DType dtype = opaque<T>(), Fold fold = Fold::none) {
  note(caller);
  Call call;
  call.op = op;
  call.dtype = dtype;
  call.unit_bytes = sizeof(T);
  call.fold = fold;
  std::optional<Plan> plan;
  try {
    if (fold != Fold::none) require_defined(fold, dtype);
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

template <class T>
void allgatherv(Communicator& comm, std::span<const T> send, std::span<T> recv, std::span<const int64_t> recv_counts,
                std::span<const int64_t> recv_displs, std::source_location caller) {
  detail::run<T>(comm, Op::allgatherv, send, recv, caller, [&] {
    const auto size = static_cast<size_t>(comm.size());
    const std::vector<int64_t> counts(size, static_cast<int64_t>(send.size())), displs(size, 0);
    return Plan::alltoallv(comm.rank(), comm.size(), sizeof(T), {counts, displs}, send.size(),
                           {recv_counts, recv_displs}, recv.size());
  });
}

template <class T>
void allreduce(Communicator& comm, std::span<const T> send, std::span<T> recv, Fold op, std::source_location caller) {
  const auto plan = [&] {
    if (send.size() != recv.size()) throw detail::sizes_differ(comm, send.size(), recv.size(), "not as many");
    return comm.plan_allreduce(sizeof(T), send.size());
  };
  detail::run<T>(comm, Op::allreduce, send, recv, caller, plan, detail::number<T>(), op);
}

namespace detail {

template <class T>
void scan(Communicator& comm, Op which, std::span<const T> send, std::span<T> recv, Fold op,
          std::source_location caller) {
  const auto plan = [&] {
    if (send.size() != recv.size()) throw sizes_differ(comm, send.size(), recv.size(), "not as many");
    return Plan::scan(comm.rank(), comm.size(), sizeof(T), send.size(), which == Op::exscan);
  };
  run<T>(comm, which, send, recv, caller, plan, number<T>(), op);
}

}  // namespace detail

template <class T>
void scan(Communicator& comm, std::span<const T> send, std::span<T> recv, Fold op, std::source_location caller) {
  detail::scan<T>(comm, Op::scan, send, recv, op, caller);
}

template <class T>
void exscan(Communicator& comm, std::span<const T> send, std::span<T> recv, Fold op, std::source_location caller) {
  detail::scan<T>(comm, Op::exscan, send, recv, op, caller);
}

template <class T>
void reduce_scatter(Communicator& comm, std::span<const T> send, std::span<T> recv, std::span<const int64_t> counts,
                    Fold op, std::source_location caller) {
  const auto plan = [&] {
    const auto size = static_cast<size_t>(comm.size());
    const std::vector<int64_t> equal(size, static_cast<int64_t>(recv.size()));
    const std::span<const int64_t> parts = counts.empty() ? std::span<const int64_t>(equal) : counts;
    const auto own = static_cast<size_t>(comm.rank());
    if (parts.size() != size || std::cmp_not_equal(parts[own], recv.size()) ||
        std::cmp_not_equal(std::accumulate(parts.begin(), parts.end(), int64_t{0}), send.size())) {
      throw detail::sizes_differ(comm, send.size(), recv.size(), "not what the counts of all ranks say");
    }
    return Plan::reduce_scatter(comm.rank(), comm.size(), sizeof(T), parts);
  };
  detail::run<T>(comm, Op::reduce_scatter, send, recv, caller, plan, detail::number<T>(), op);
}

template <class T>
void reduce(Communicator& comm, std::span<const T> send, std::span<T> recv, Rank root, Fold op,
            std::source_location caller) {
  const auto plan = [&] {
    const size_t wanted = comm.rank() == root ? send.size() : 0;
    if (recv.size() != wanted) throw detail::sizes_differ(comm, send.size(), recv.size(), "only the root has a result");
    return Plan::reduce(comm.rank(), comm.size(), root, send.size_bytes());
  };
  detail::run<T>(comm, Op::reduce, send, recv, caller, plan, detail::number<T>(), op);
}

template <class T>
void broadcast(Communicator& comm, std::span<T> data, Rank root, std::source_location caller) {
  detail::run<T>(comm, Op::broadcast, std::span<const T>(data), data, caller,
                 [&] { return Plan::broadcast(comm.rank(), comm.size(), root, data.size_bytes()); });
}

template <class T>
void gather(Communicator& comm, std::span<const T> send, std::span<T> recv, Rank root, std::source_location caller) {
  detail::run<T>(comm, Op::gather, send, recv, caller, [&] {
    const size_t wanted = comm.rank() == root ? send.size() * static_cast<size_t>(comm.size()) : 0;
    if (recv.size() != wanted)
      throw detail::sizes_differ(comm, send.size(), recv.size(), "only the root has all parts");
    return Plan::gather(comm.rank(), comm.size(), root, send.size_bytes());
  });
}

template <class T>
void scatter(Communicator& comm, std::span<const T> send, std::span<T> recv, Rank root, std::source_location caller) {
  detail::run<T>(comm, Op::scatter, send, recv, caller, [&] {
    const size_t wanted = comm.rank() == root ? recv.size() * static_cast<size_t>(comm.size()) : 0;
    if (send.size() != wanted)
      throw detail::sizes_differ(comm, send.size(), recv.size(), "only the root has all parts");
    return Plan::scatter(comm.rank(), comm.size(), root, recv.size_bytes());
  });
}

template <class T>
void reshard(Communicator& comm, std::span<const T> send, std::span<T> recv, std::span<const int64_t> shape,
             const Sharding& src, const Sharding& dst, std::source_location caller) {
  detail::note(caller);
  Call call;
  call.op = Op::reshard;
  call.dtype = detail::opaque<T>();
  std::optional<Reshard> plan;
  try {
    if constexpr (detail::kIsNumber<T>) {
      if (src.fold() != Fold::none) call.dtype = detail::number<T>();
    }
    const Resharding tensor{{shape.begin(), shape.end()}, src, dst, call.dtype};
    plan.emplace(comm.plan_reshard({&tensor, 1}));
    const auto elems = [](const std::optional<Box>& box) { return box ? static_cast<size_t>(box->elems()) : 0; };
    if (send.size() != elems(plan->src(0)) || recv.size() != elems(plan->dst(0))) {
      throw detail::sizes_differ(comm, send.size(), recv.size(), "its parts of the tensor have others");
    }
  } catch (const Error& error) {
    comm.refuse(call, error.what());
    throw;
  }
  const void* from = send.data();
  void* to = recv.data();
  comm.start(*plan, 0, {&from, 1}, {&to, 1}, call)->wait();
}

template <class T>
void send(Communicator& comm, std::span<const T> data, Rank peer, int64_t tag) {
  Call call;
  call.op = Op::send;
  call.dtype = detail::opaque<T>();
  comm.send(data.data(), data.size_bytes(), peer, tag, call)->wait();
}

template <class T>
Rank recv(Communicator& comm, std::span<T> data, Rank peer, int64_t tag) {
  Call call;
  call.op = Op::recv;
  call.dtype = detail::opaque<T>();
  const auto work = comm.recv(data.data(), data.size_bytes(), peer, tag, call);
  work->wait();
  return work->source();
}

}  // namespace a2a
