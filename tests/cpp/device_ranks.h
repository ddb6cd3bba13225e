// Ranks with devices, and exchanges between them: for the tests that run on the doubles of tests/fakes, whose variables
// make them fail. A program is about one vendor: Ascend, unless it defines A2A_TEST_NVIDIA first.
#pragma once

#include <chrono>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "ranks.h"

#if defined(A2A_TEST_NVIDIA)
#include "nvidia.h"
namespace vendor = nvidia;
constexpr a2a::Memory kMemory = a2a::Memory::cuda;
#else
#include "ascend.h"
namespace vendor = ascend;
constexpr a2a::Memory kMemory = a2a::Memory::npu;
#endif

namespace device_ranks {

using a2a::Call;
using a2a::Code;
using a2a::Communicator;
using a2a::Deadline;
using a2a::Op;
using a2a::Plan;
using WorkPtr = std::shared_ptr<a2a::Work>;
using Bytes = std::vector<std::byte>;

// Sets environment variables while it lives, before the ranks start.
class Environment {
 public:
  using List = std::vector<std::pair<std::string, std::string>>;
  explicit Environment(const List& variables) {
    for (const auto& [name, value] : variables) {
      const char* const before = std::getenv(name.c_str());
      before_.emplace_back(name, before == nullptr ? "" : before);
      setenv(name.c_str(), value.c_str(), 1);
    }
  }
  ~Environment() {
    for (const auto& [name, value] : before_) {
      value.empty() ? unsetenv(name.c_str()) : setenv(name.c_str(), value.c_str(), 1);
    }
  }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  List before_;
};

inline ranks::Body on_device(const ranks::Body& body) {
  return [body](Communicator& comm) {
    vendor::use_device(comm.rank());
    body(comm);
  };
}

// Runs the body in a child process, because drivers do not survive a fork(). ThreadSanitizer does not support fork()
// well either, so there the body runs in this process.
inline void apart(const std::function<void()>& body) {
#if defined(__SANITIZE_THREAD__)
  body();
#else
  std::cout.flush();
  const pid_t child = fork();
  if (child == 0) {
    alarm(120);
    check::failures = 0;
    check::shown_until = 20;
    check::guarded("child", body);
    std::cerr.flush();
    _exit(check::failures == 0 ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  CHECK_EQ(status, 0);
#endif
}

inline void as_threads(int n, const ranks::Body& body, const Environment::List& variables = {}) {
  const Environment environment(variables);
  apart([&] { ranks::as_threads(n, on_device(body)); });
}

inline void as_processes(int n, const ranks::Body& body, const Environment::List& variables = {}) {
  const Environment environment(variables);
  ranks::as_processes(n, on_device(body));
}

inline void everywhere(int n, const ranks::Body& body, const Environment::List& variables = {}) {
  as_threads(n, body, variables);
  as_processes(n, body, variables);
}

// Runs processes of which one ends itself by SIGKILL in the body. The others have to pass.
inline void with_a_victim([[maybe_unused]] int n, [[maybe_unused]] int victim, [[maybe_unused]] const ranks::Body& body,
                          [[maybe_unused]] const Environment::List& variables = {}) {
#if !defined(__SANITIZE_THREAD__)
  const Environment environment(variables);
  auto statuses = ranks::start_processes(n, on_device(body)).wait();
  for (int rank = 0; rank < n; ++rank) {
    const int status = statuses[static_cast<size_t>(rank)];
    CHECK_EQ(WIFSIGNALED(status) ? WTERMSIG(status) : status, rank == victim ? SIGKILL : 0);
  }
#endif
}

// ---- exchanges -----------------------------------------------------------------------------------------------------

inline Call call_of(const Communicator& comm, Op op, size_t bytes = 4, double timeout = 30) {
  Call call;
  call.op = op, call.memory = kMemory, call.device = comm.rank();
  call.dtype = {0, static_cast<uint8_t>(8 * std::min<size_t>(bytes, 8)), 1};
  call.unit_bytes = bytes, call.stream = {vendor::stream};
  call.deadline = Deadline::after_seconds(timeout);
  return call;
}

inline WorkPtr start(Communicator& comm, const Plan& plan, const vendor::Memory& send, const vendor::Memory& recv,
                     const Call& call) {
  const void* from = send.get();
  void* to = recv.get();
  return comm.start(plan, {&from, 1}, {&to, 1}, call);
}

inline std::byte value(int from, int to, size_t i) {
  return static_cast<std::byte>(from * 37 + to * 11 + static_cast<int>(i));
}

// Every rank sends (from + to + round) % 4 elements of `unit` bytes to every other, packed.
struct Uneven {
  int rank, size, round;
  size_t unit;
  std::vector<int64_t> to, from;
  Bytes sent, wanted;

  Uneven(const Communicator& comm, size_t unit_, int round_)
      : rank(comm.rank()), size(comm.size()), round(round_), unit(unit_) {
    for (int peer = 0; peer < size; ++peer) {
      to.push_back(count(rank, peer)), from.push_back(count(peer, rank));
      append(sent, rank, peer), append(wanted, peer, rank);
    }
  }
  int64_t count(int source, int target) const { return (source + target + round) % 4; }
  void append(Bytes& bytes, int source, int target) const {
    for (size_t i = 0; i < static_cast<size_t>(count(source, target)) * unit; ++i)
      bytes.push_back(value(source, target, i));
  }
  Plan plan() const {
    return Plan::alltoallv(rank, size, unit, {to, {}}, sent.size() / unit, {from, {}}, wanted.size() / unit);
  }
};

// Makes an uneven exchange and checks every byte.
inline void exchange(Communicator& comm, size_t unit, int round, uint64_t plan = 0) {
  const Uneven x(comm, unit, round);
  vendor::Memory send(x.sent.size()), recv(x.wanted.size());
  send.upload(x.sent);
  Call call = call_of(comm, Op::alltoallv, unit);
  call.plan = plan;
  const auto work = start(comm, x.plan(), send, recv, call);
  CHECK(recv.download() == x.wanted);
  CHECK(work->wait_until(Deadline::after_seconds(10)));
  CHECK(send.download() == x.sent);
}

// Makes as many operations as are compared, so that the next one is not.
inline void reach_unchecked(Communicator& comm) {
  for (int i = 0; i < 20; ++i) exchange(comm, 4, i);
}

// Two buffers, and the exchange of one element between each pair of ranks over them. Rank 0 sends `wrong` more to rank
// 1.
struct Swap {
  explicit Swap(Communicator& comm_) : comm(comm_) {}

  WorkPtr start(int64_t wrong = 0, double timeout = 30) const {
    const auto n = static_cast<size_t>(comm.size());
    std::vector<int64_t> to(n, 1);
    const std::vector<int64_t> from(n, 1);
    if (comm.rank() == 0 && n > 1) to[1] += wrong;
    return device_ranks::start(comm, Plan::alltoallv(comm.rank(), comm.size(), 4, {to, {}}, 64, {from, {}}, 64), send,
                               recv, call_of(comm, Op::alltoallv, 4, timeout));
  }

  Communicator& comm;
  vendor::Memory send{256}, recv{256};
};

// ---- failures ------------------------------------------------------------------------------------------------------

// Sends what a rank sends before it joins the others in the vendor's library, and does not join.
inline void pretend_to_connect(Communicator& comm, const std::string& text) {
  std::string word(1, '\0');
  for (const std::string& part : {text, std::string(), std::string(), std::string()}) {
    const uint64_t length = part.size();
    word.append(reinterpret_cast<const char*>(&length), sizeof(length));
    word += part;
  }
  comm.allgather_bytes(word, Op::connect);
}

// Returns the error that the body throws.
template <class Body>
a2a::Error failure_of(Body&& body, check::Where where = check::Where::current()) {
  try {
    body();
  } catch (const a2a::Error& error) {
    return error;
  }
  check::fail("nothing was thrown", where);
  return {Code::backend, ""};
}

inline bool says(const a2a::Error& error, Code code, std::initializer_list<std::string> parts,
                 check::Where where = check::Where::current()) {
  bool all = error.code() == code;
  for (const auto& part : parts) all = all && std::string(error.what()).find(part) != std::string::npos;
  return all || check::fail(std::to_string(static_cast<int>(error.code())) + " " + error.what(), where);
}

inline double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace device_ranks
