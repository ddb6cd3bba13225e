// A rank's membership in a group of ranks.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "a2a/bootstrap.h"
#include "a2a/plan.h"
#include "a2a/transport.h"
#include "a2a/types.h"
#include "a2a/work.h"

namespace a2a {

namespace shm {
class ShmTransport;
}

// What a call is, besides its plan and its buffers.
struct Call {
  Op op = Op::alltoallv;
  DType dtype;
  Memory memory = Memory::host;
  size_t unit_bytes = 1;             // bytes of one row or element; only for messages
  uint64_t plan = 0;                 // number of a reusable plan, 0 = made for this call
  std::optional<Deadline> deadline;  // empty: now + the communicator's default timeout
  Stream stream;
};

// Facts for `a2a info` and for messages.
struct HostFacts {
  int ranks = 1;  // of the group on this host
  int cpus = 1;   // allowed to them together
  bool oversubscribed = false;
  bool vm_readv = false;  // every peer may be read with process_vm_readv
};

// Every member makes the same sequence of calls. Each call that exchanges data takes the next operation number, on
// success and on failure alike, so a rank whose arguments were refused stays in step with the others.
//
// A communicator may be used from any thread, by one at a time as far as order matters. It is not usable in a forked
// child (Error(aborted)).
class A2A_API Communicator : public std::enable_shared_from_this<Communicator> {
 public:
  struct Options {
    double timeout_seconds = 600;  // default deadline of every operation, and of making the communicator
  };

  // Collective. All ranks must live on one host; otherwise Error(unsupported).
  static std::shared_ptr<Communicator> create(Rank rank, int size, Bootstrap& bootstrap, Options options);

  ~Communicator();  // leaves without waiting: peers that still need this rank get Error(peer_lost)

  Rank rank() const;
  int size() const;
  double timeout_seconds() const;
  // Number of the operation started last, 0 before the first.
  uint64_t last_number() const;

  // Starts the exchange of a plan made for this rank and size. send[i] and recv[i] are the buffers that segments with
  // buffer == i refer to; they must stay alive until the work is done. Never waits for a peer.
  std::shared_ptr<Work> start(const Plan& plan, std::span<const void* const> send, std::span<void* const> recv,
                              const Call& call);

  // Takes the next operation number and tells every peer why this rank does not take part: their call raises
  // Error(mismatch) naming this rank and the reason. Returns once they can see it; the caller then raises its own
  // error.
  void refuse(const Call& call, std::string_view reason);

  // The number of the next reusable plan. Ranks make their plans in the same order.
  uint64_t next_plan();

  void barrier(std::optional<Deadline> deadline = {});

  // All ranks' byte strings in rank order (control traffic, not for bulk data).
  std::vector<std::string> allgather_bytes(std::string_view mine, Op op, std::optional<Deadline> deadline = {});

  // Collective over this communicator. Ranks with the same color form a group, ordered by (key, rank); a negative color
  // gives nullptr.
  std::shared_ptr<Communicator> split(int color, int key, std::optional<Deadline> deadline = {});
  // Collective over this communicator, with the same list everywhere. The result's rank i is ranks[i]; nullptr for
  // ranks that are not in the list.
  std::shared_ptr<Communicator> group(std::span<const Rank> ranks, std::optional<Deadline> deadline = {});
  // Collective over the ranks that are still alive, on a broken communicator too: they agree who is left and get a
  // working communicator in which they keep their order.
  std::shared_ptr<Communicator> shrink(std::optional<Deadline> deadline = {});

  // Breaks the communicator: this rank's and its peers' operations in flight, and all later ones, raise Error(aborted).
  void abort(std::string_view reason) noexcept;
  // Collective: waits until every rank has come here, then lets go of everything. Without effect when already closed; a
  // broken communicator is let go without waiting.
  void close(std::optional<Deadline> deadline = {});
  bool closed() const;
  bool broken() const;

  HostFacts host_facts() const;

  // Memory that every rank of the group can read with one copy. 64-byte aligned, zeroed, alive until released, also
  // beyond close(). Throws Error(backend) when there is not enough.
  static std::shared_ptr<std::byte> allocate_shared(size_t bytes);

 private:
  struct State;
  explicit Communicator(std::unique_ptr<State> state);
  std::shared_ptr<Communicator> derive(std::vector<Rank> members, Op op, Deadline deadline);
  static std::shared_ptr<Communicator> with_members(const State& parent, std::span<const Rank> members,
                                                    std::unique_ptr<shm::ShmTransport> host);
  std::unique_ptr<State> state_;
};

// Typed helpers for C++ callers: counts and displs in elements, see Plan::alltoallv. Block until done.
template <class T>
void alltoallv(Communicator& comm, std::span<const T> send, std::span<const int64_t> send_counts, std::span<T> recv,
               std::span<const int64_t> recv_counts, std::span<const int64_t> send_displs = {},
               std::span<const int64_t> recv_displs = {});

// Equal parts: send and recv are divided into comm.size() pieces.
template <class T>
void alltoall(Communicator& comm, std::span<const T> send, std::span<T> recv);

template <class T>
void allgather(Communicator& comm, std::span<const T> send, std::span<T> recv);

}  // namespace a2a

#include "a2a/communicator_inl.h"
