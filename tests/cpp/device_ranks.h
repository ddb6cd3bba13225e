// Ranks that exchange device memory. `Kind` is where it lives: Ascend or Nvidia.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ascend.h"
#include "nvidia.h"
#include "ranks.h"

namespace device_ranks {

using a2a::Call;
using a2a::Communicator;
using a2a::Op;
using a2a::Plan;

struct Ascend {
  using Memory = ascend::Memory;
  static constexpr a2a::Memory memory = a2a::Memory::npu;
  static void use(int device) { ascend::use_device(device); }
  static void* stream() { return ascend::stream; }
};

struct Nvidia {
  using Memory = nvidia::Memory;
  static constexpr a2a::Memory memory = a2a::Memory::cuda;
  static void use(int device) { nvidia::use_device(device); }
  static void* stream() { return nvidia::stream; }
};

using Environment = std::vector<std::pair<const char*, const char*>>;

// Variables of the environment for a while.
class Setting {
 public:
  explicit Setting(const Environment& environment) {
    for (const auto& [name, value] : environment) {
      const char* const before = std::getenv(name);
      before_.emplace_back(name, before != nullptr ? std::optional<std::string>(before) : std::nullopt);
      setenv(name, value, 1);
    }
  }
  ~Setting() {
    for (const auto& [name, value] : before_) value ? setenv(name, value->c_str(), 1) : unsetenv(name);
  }
  Setting(const Setting&) = delete;
  Setting& operator=(const Setting&) = delete;

 private:
  std::vector<std::pair<const char*, std::optional<std::string>>> before_;
};

// Runs the body in a forked child that has to pass: drivers do not survive a fork().
inline void in_child(const std::function<void()>& body) {
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
}

// Ranks as threads and as processes, rank r on device r.
template <class Kind>
void everywhere(int n, const ranks::Body& body, const Environment& environment = {}) {
  const auto on_device = [&](Communicator& comm) {
    Kind::use(comm.rank());
    body(comm);
  };
#if defined(__SANITIZE_THREAD__)
  if (environment.empty()) ranks::as_threads(n, on_device);
#else
  const Setting setting(environment);
  in_child([&] { ranks::as_threads(n, on_device); });
  ranks::as_processes(n, on_device);
#endif
}

// `bytes`: of one element.
template <class Kind>
Call call_of(const Communicator& comm, Op op, size_t bytes = 4) {
  Call call;
  call.op = op, call.memory = Kind::memory, call.device = comm.rank();
  call.dtype = {0, static_cast<uint8_t>(8 * std::min<size_t>(bytes, 8)), 1};
  call.unit_bytes = bytes, call.stream = {Kind::stream()};
  call.deadline = a2a::Deadline::after_seconds(30);
  return call;
}

template <class Memory>
std::shared_ptr<a2a::Work> start(Communicator& comm, const Plan& plan, const Memory& send, const Memory& recv,
                                 const Call& call) {
  const void* from = send.get();
  void* to = recv.get();
  return comm.start(plan, {&from, 1}, {&to, 1}, call);
}

inline std::byte value(int from, int to, size_t i) {
  return static_cast<std::byte>(from * 37 + to * 11 + static_cast<int>(i));
}

// Every rank sends 0 to 3 elements to every other, packed; another matrix in each round.
struct Uneven {
  int rank, size, round;
  size_t unit;
  std::vector<int64_t> to, from;
  std::vector<std::byte> sent, wanted;

  Uneven(const Communicator& comm, size_t unit_, int round_)
      : rank(comm.rank()), size(comm.size()), round(round_), unit(unit_) {
    for (int peer = 0; peer < size; ++peer) {
      to.push_back(count(rank, peer)), from.push_back(count(peer, rank));
      append(sent, rank, peer), append(wanted, peer, rank);
    }
  }
  int64_t count(int source, int target) const { return (source + target + round) % 4; }
  void append(std::vector<std::byte>& bytes, int source, int target) const {
    const size_t all = static_cast<size_t>(count(source, target)) * unit;
    for (size_t i = 0; i < all; ++i) bytes.push_back(value(source, target, i));
  }
  Plan plan() const {
    return Plan::alltoallv(rank, size, unit, {to, {}}, sent.size() / unit, {from, {}}, wanted.size() / unit);
  }
};

// An uneven exchange, right to the byte.
template <class Kind>
void exchange(Communicator& comm, size_t unit, int round, uint64_t plan = 0) {
  const Uneven x(comm, unit, round);
  typename Kind::Memory send(x.sent.size()), recv(x.wanted.size());
  send.upload(x.sent);
  Call call = call_of<Kind>(comm, Op::alltoallv, unit);
  call.plan = plan;
  const auto work = start(comm, x.plan(), send, recv, call);
  CHECK(recv.download() == x.wanted);
  CHECK(work->wait_until(a2a::Deadline::after_seconds(10)));
  CHECK(send.download() == x.sent);
}

// One element of 4 bytes from each rank to each; rank 0 sends `wrong` more to rank 1.
template <class Kind>
std::shared_ptr<a2a::Work> swap(Communicator& comm, const typename Kind::Memory& send,
                                const typename Kind::Memory& recv, int64_t wrong = 0, double timeout = 30) {
  const auto n = static_cast<size_t>(comm.size());
  std::vector<int64_t> to(n, 1), from(n, 1);
  if (comm.rank() == 0) to[1] += wrong;
  Call call = call_of<Kind>(comm, Op::alltoallv);
  call.deadline = a2a::Deadline::after_seconds(timeout);
  return start(comm, Plan::alltoallv(comm.rank(), comm.size(), 4, {to, {}}, 8, {from, {}}, 8), send, recv, call);
}

// Past the operations that are compared.
template <class Kind>
void reach_unchecked(Communicator& comm) {
  for (int i = 0; i < 20; ++i) exchange<Kind>(comm, 4, i);
}

}  // namespace device_ranks
