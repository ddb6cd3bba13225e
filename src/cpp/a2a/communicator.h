// A rank's membership in a group of ranks.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <source_location>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "a2a/bootstrap.h"
#include "a2a/host_facts.h"
#include "a2a/plan.h"
#include "a2a/sharding.h"
#include "a2a/strides.h"
#include "a2a/types.h"
#include "a2a/views.h"
#include "a2a/work.h"

namespace a2a {

struct Message;

class DeviceTransport;
class Transport;
struct Batch;

// Returns the number of a routing (a2a/experts.h) for Call::plan. Ranks compare it as they compare those of plans.
// `agreed`: a number on which the ranks have agreed and that no other routing of the communicator has.
constexpr uint64_t number_of_routing(uint64_t agreed) { return (agreed & 0x7fff'ffff) | 0x8000'0000; }
constexpr bool is_of_routing(uint64_t plan) { return (plan & 0x8000'0000) != 0; }

// The arguments of a call besides its plan and its buffers.
struct Call {
  Op op = Op::alltoallv;
  DType dtype;
  Memory memory = Memory::host;
  size_t unit_bytes = 1;             // bytes of one row or element; only for messages
  uint64_t plan = 0;                 // number of a reusable plan or of a routing, 0 = made for this call
  std::optional<Deadline> deadline;  // empty: now + the communicator's default timeout
  int device = 0;                    // device memory: its index
  Stream stream;                     // device memory: what the operation comes after, and what comes after it
  // The caller goes on meanwhile. Device memory: the operation is enqueued on a stream of the communicator, and
  // `stream` does not wait for it. Host memory: the progress thread, where there is one, advances it.
  bool asynchronous = false;
  Fold fold = Fold::none;  // of plans whose receives are folded
  // For plans that sum rows: the weight of each term (Summands::sources); nullptr: all are 1. `biases` are added to the
  // sums; they have the output's shape and dtype; nullptr: nothing is added. Both stay alive as long as the buffers.
  const float* weights = nullptr;
  std::array<const void*, 2> biases{};
  // Host memory: the memory layouts of the tensors of each side, one for each buffer; empty where all are packed. Read
  // before the call returns.
  std::span<const TensorLayout> send_layouts, recv_layouts;
  // Host memory: both sides are the same memory. The call copies the bytes to send before it returns.
  bool in_place = false;
};

// When ranks compare operations on devices before they start them. On a device a disagreement would hang. Ranks compare
// through host memory, and each waits for every other.
enum class Check : uint8_t {
  off,     // never
  first,   // the first run of each reusable plan, and the first 16 other operations once the devices are connected
  always,  // before every operation
};
A2A_API const char* to_string(Check);
// Returns the value of the environment variable A2A_CHECK, or `first`. Throws Error(invalid_argument) for other words.
A2A_API Check default_check();

// The membership of a rank in a group. Every member makes the same sequence of calls. Each call that exchanges data
// takes the next operation number, on success and on failure alike, so a rank whose arguments were refused stays in
// step with the others.
//
// Any thread may use a communicator; where the order of calls matters, one thread at a time. It cannot be used in a
// forked child (Error(aborted)).
class A2A_API Communicator : public std::enable_shared_from_this<Communicator> {
 public:
  struct Options {
    double timeout_seconds = 600;   // default deadline of every operation
    Check check = default_check();  // the same on all ranks
  };

  // Collective. Ranks of one host share memory. Ranks on several hosts need a bootstrap with a network, such as
  // tcp_bootstrap() or mpi_bootstrap(); otherwise Error(unsupported). Without a deadline the options' timeout counts.
  static std::shared_ptr<Communicator> create(Rank rank, int size, Bootstrap& bootstrap, Options options,
                                              std::optional<Deadline> deadline = {});

  ~Communicator();  // leaves without waiting: peers whose operations still need this rank get Error(peer_lost)

  Rank rank() const;
  int size() const;
  double timeout_seconds() const;
  // Changes the default deadline of operations that this rank starts from now on. Requires seconds >= 0.
  void set_timeout_seconds(double seconds);
  // Returns the number of the last operation started, 0 before the first.
  uint64_t last_number() const;
  // Shows `a2a status` the call_site() of this thread, for a call that waits long. Never blocks.
  void show_call_site() noexcept;

  // Starts the exchange of a plan made for this rank and size. send[i] and recv[i] are the buffers that segments with
  // buffer == i refer to. Requires that they stay alive until the work is done. An operation that shares memory with an
  // earlier operation or message in flight, which one of them writes, begins when that is finished. On host memory it
  // never waits for a peer, except where it shares memory with an earlier operation whose rows are summed or copied
  // when they have arrived. On device memory it waits for the peers where the ranks have to meet first: for the first
  // operation, and where Check says so. Of a plan that folds, send and recv may be the same buffer. With
  // Call::recv_layouts no two received elements may share memory; the caller checks that.
  std::shared_ptr<Work> start(const Plan& plan, std::span<const void* const> send, std::span<void* const> recv,
                              const Call& call);
  // The same on host memory for a caller that holds a lock which others want, such as an interpreter's. Starts nothing
  // and returns nullptr where another thread holds a lock, ranks share CPUs, or the ranks are on several hosts.
  std::shared_ptr<Work> try_start(const Plan& plan, std::span<const void* const> send, std::span<void* const> recv,
                                  const Call& call);

  // Returns the plan of an allreduce, in one exchange or in two, whichever suits the size and the transport of these
  // ranks. On devices it is one exchange, which the vendor's library divides as it likes.
  Plan plan_allreduce(size_t elem_bytes, size_t elems, Memory memory = Memory::host) const;

  // Returns the plan that brings tensors from one sharding to another on these ranks. Throws as Reshard::make().
  Reshard plan_reshard(std::span<const Resharding> tensors, bool all_know_dtypes = true) const;
  // Starts operation `part` of such a plan; all ranks start all of them, in order. send[i] and recv[i] are the local
  // tensors of tensor i, null where this rank has no elements of it. Call::send_layouts and Call::recv_layouts have one
  // entry for each tensor; empty: all are packed. Its op, dtype and fold are set here. For host memory.
  std::shared_ptr<Work> start(const Reshard& reshard, size_t part, std::span<const void* const> send,
                              std::span<void* const> recv, const Call& call);

  // Messages: only the two ranks take part. send() sends exactly `bytes` bytes of call.dtype with this tag to the peer,
  // and recv() receives such a message from it; a negative peer receives from whichever rank sends first
  // (Work::source()). Messages of one tag from one rank to another arrive in the order in which they were started,
  // those of other tags in any order. A send may finish before it is received. A tensor with gaps (Call::send_layouts,
  // Call::recv_layouts) is packed where the ranks are on several hosts. Messages take no operation number, and hold up
  // only operations that use the same memory. If the two ranks disagree on dtype or bytes, the receive raises
  // Error(mismatch), and so does the send or the next message with that rank.
  std::shared_ptr<Work> send(const void* data, size_t bytes, Rank peer, int64_t tag, const Call& call);
  std::shared_ptr<Work> recv(void* data, size_t bytes, Rank peer, int64_t tag, const Call& call);
  // Waits until nothing in flight writes a tensor, for a caller that is about to read it itself. It has `bytes` bytes,
  // and the layout in `layouts` if it has gaps.
  void wait_to_read(const void* data, size_t bytes, std::span<const TensorLayout> layouts,
                    std::optional<Deadline> deadline = std::nullopt);

  // Tells the other rank why this one does not take part: its send or receive with that tag raises Error(mismatch).
  void refuse_message(bool sends, Rank peer, int64_t tag, std::string_view reason);

  // Takes the next operation number and publishes a refusal: each peer's call raises Error(mismatch) naming this rank
  // and the reason. Returns once the peers can see it; the caller then raises its own error.
  void refuse(const Call& call, std::string_view reason);

  // Collective. Meets the peers for operations on this kind of memory; without this call the first operation does. A
  // communicator uses one device of each kind. Throws Error(unsupported) when a vendor library is missing.
  void connect(Memory memory, int device, std::optional<Deadline> deadline = {});
  // Runs operations over a communicator of the caller (ncclComm_t, HcclComm). Requires that every rank calls it before
  // anything else on this kind of memory, and that the vendor's communicator has the same ranks and outlives this one.
  // The caller keeps its ownership.
  void adopt(Memory memory, void* vendor_communicator);
  // The same requirement. HCCL's ranks meet by this rank table instead of over this communicator.
  void use_rank_table(const std::string& path);

  // Returns the number of the next reusable plan. Requires that all ranks make their plans in the same order.
  uint64_t next_plan();

  void barrier(std::optional<Deadline> deadline = {});

  // Collective. Returns all ranks' byte strings in rank order. For control traffic, not for bulk data.
  std::vector<std::string> allgather_bytes(std::string_view mine, Op op, std::optional<Deadline> deadline = {});

  // Collective. Starts to give every rank a view of every other rank's tensor, without copying a byte of it: see Views.
  // `data` is the tensor of that dtype and shape in C order. Requires that it lies in one block of allocate_shared() of
  // this process. The dtype is the same on all ranks, the shapes may differ. Throws Error(invalid_argument) for memory
  // that lies elsewhere, Error(unsupported) when the ranks are on several hosts; the peers then get Error(mismatch).
  std::shared_ptr<Views> start_views(const void* data, DType dtype, std::span<const int64_t> shape,
                                     std::optional<Deadline> deadline = {});
  // The same, and waits until the views can be read.
  std::shared_ptr<Views> allgather_views(const void* data, DType dtype, std::span<const int64_t> shape,
                                         std::optional<Deadline> deadline = {});

  // Collective over this communicator. Ranks with the same color form a group, ordered by (key, rank); a rank with a
  // negative color gets nullptr.
  std::shared_ptr<Communicator> split(int color, int key, std::optional<Deadline> deadline = {});
  // Collective over this communicator, with the same list on all ranks. Rank i of the result is ranks[i]; ranks that
  // are not in the list get nullptr.
  std::shared_ptr<Communicator> group(std::span<const Rank> ranks, std::optional<Deadline> deadline = {});
  // Collective over the ranks that are still alive. Works on a broken communicator too. The survivors agree who is left
  // and get a working communicator, in which they keep their order.
  std::shared_ptr<Communicator> shrink(std::optional<Deadline> deadline = {});

  // Breaks the communicator: this rank's and its peers' operations in flight, and all later ones, raise Error(aborted).
  void abort(std::string_view reason) noexcept;
  // Leaves the group for another one. Peers finish the operations that this rank has finished; those that need more of
  // it, its own in flight and all later ones raise Error(aborted) with `why`, here and there. Operations on devices are
  // aborted.
  void retire(std::string_view why) noexcept;
  // Collective: waits until every rank has called it, then releases all resources. Without effect when already closed.
  // A broken communicator does not wait. Throws Error(aborted), closed, when no rank has received a message of this
  // one.
  void close(std::optional<Deadline> deadline = {});
  bool closed() const;
  // Whether an operation or abort() has broken it, here or at a peer, or a peer has died. If it is false after the
  // stream of a device operation is synchronised, nothing has ended that operation early.
  bool broken() const;
  // Whether an operation or abort() of this rank has failed because it is broken. Unlike broken(), it does not look at
  // the peers: a peer may have given up, and the next operation here raises the error.
  bool failed() const;

  // Returns what connects this rank with the others. While it is held, a group that some of them form later uses it
  // again (a2a/endpoint.h). It does not keep the communicator alive.
  std::shared_ptr<const void> connections() const;
  HostFacts host_facts() const;
  // Returns for each rank the number of its host: ranks of one host have the same.
  std::vector<int> hosts() const;
  // Returns for each kind of memory how `bytes` of host memory would go to a peer, and why, in an exchange in which
  // every pair of ranks has as many bytes.
  std::vector<WayOfBytes> host_ways(size_t bytes) const;
  // Returns the stages in which this group runs its collectives on host memory: of each collective in the order of
  // StageChoice::from. The last one that holds is chosen.
  std::vector<StageChoice> stage_choices() const;

  // Allocates memory that every rank of the group can reach: from such an input to any output bytes go with one copy.
  // It is 64-byte aligned and zeroed, and lives until released, also after close(). Throws Error(backend) when there is
  // not enough.
  static std::shared_ptr<std::byte> allocate_shared(size_t bytes);

 private:
  struct State;
  explicit Communicator(std::unique_ptr<State> state);
  std::shared_ptr<Communicator> derive(std::vector<Rank> members, Op op, Deadline deadline);
  std::shared_ptr<Work> start_on_host(const Plan& plan, std::span<const void* const> send, std::span<void* const> recv,
                                      const Call& call);
  std::string unreceived();
  std::shared_ptr<Work> start_on_device(Batch& batch, const Call& call);
  std::shared_ptr<Work> start_message(Message message, const Call& call);
  std::shared_ptr<DeviceTransport> connected(Memory memory, int device, Deadline deadline);
  std::shared_ptr<DeviceTransport> meet_on_device(Memory memory, int device, Deadline deadline);
  void drain_devices(Deadline deadline);
  void close_devices();
  void drop_devices() noexcept;  // without waiting for the peers, and without telling them
  static std::shared_ptr<Communicator> with_members(const State& parent, std::span<const Rank> members,
                                                    std::unique_ptr<Transport> host, Op op, uint64_t which);
  std::unique_ptr<State> state_;
};

// recording() returns whether the place of the call that begins now is wanted: for each where A2A_DUMP makes this
// process record its operations (`a2a explain`), otherwise at most for one at each tick of the kernel's clock (`a2a
// status`). set_call_site() sets the place in the program, such as "train.py:12 in step", that is recorded for the
// following calls of this thread. The typed helpers below call it themselves. call_site() returns the place that was
// set last in this thread, "" before the first, so that a call which goes on in another thread can set it there; the
// reference is valid until the next set_call_site() of the thread.
A2A_API bool recording() noexcept;
A2A_API void set_call_site(std::string_view site);
A2A_API const std::string& call_site() noexcept;
// Tells `a2a status` the name of this process's job, and the frameworks that its program uses. An empty text changes
// nothing.
A2A_API void describe_process(const std::string& job, const std::string& frameworks);
// Shows `a2a status` that a rank waits for the others to meet, until the result is released. `hosts` is the number of
// hosts that they are on, 0 where that is not known. Returns nullptr where nothing can be shown.
A2A_API std::shared_ptr<void> show_meeting(Rank rank, int size, int hosts) noexcept;
// Returns the counts of all communicators of this process in Prometheus's text format, if A2A_METRICS was set when they
// were made.
A2A_API std::string metrics_text();

// Typed helpers for C++ callers: counts and displs in elements, see Plan::alltoallv. Block until done.
template <class T>
void alltoallv(Communicator& comm, std::span<const T> send, std::span<const int64_t> send_counts, std::span<T> recv,
               std::span<const int64_t> recv_counts, std::span<const int64_t> send_displs = {},
               std::span<const int64_t> recv_displs = {},
               std::source_location caller = std::source_location::current());

// Equal parts: send and recv are divided into comm.size() pieces.
template <class T>
void alltoall(Communicator& comm, std::span<const T> send, std::span<T> recv,
              std::source_location caller = std::source_location::current());

template <class T>
void allgather(Communicator& comm, std::span<const T> send, std::span<T> recv,
               std::source_location caller = std::source_location::current());

// send[i] of rank p lands in recv at recv_displs[p]; recv_counts and recv_displs are the same on all ranks.
template <class T>
void allgatherv(Communicator& comm, std::span<const T> send, std::span<T> recv, std::span<const int64_t> recv_counts,
                std::span<const int64_t> recv_displs = {},
                std::source_location caller = std::source_location::current());

// ---- reductions: T is a standard integer, bool, float, double, or std::complex of these two ----

// recv[i] = send[i] of rank 0 op send[i] of rank 1 op ..., in that order, so all ranks get the same bits. send may be
// the same memory as recv.
template <class T>
void allreduce(Communicator& comm, std::span<const T> send, std::span<T> recv, Fold op = Fold::sum,
               std::source_location caller = std::source_location::current());

// recv[i] = send[i] of rank 0 op ... op send[i] of this rank (scan), or of the rank before this one (exscan; at rank 0
// recv stays as it is). send may be the same memory as recv.
template <class T>
void scan(Communicator& comm, std::span<const T> send, std::span<T> recv, Fold op = Fold::sum,
          std::source_location caller = std::source_location::current());
template <class T>
void exscan(Communicator& comm, std::span<const T> send, std::span<T> recv, Fold op = Fold::sum,
            std::source_location caller = std::source_location::current());

// Does the same as allreduce for the counts[rank] elements of this rank's part. `counts` is the same on all ranks;
// empty means equal parts. recv may be this rank's part of send.
template <class T>
void reduce_scatter(Communicator& comm, std::span<const T> send, std::span<T> recv,
                    std::span<const int64_t> counts = {}, Fold op = Fold::sum,
                    std::source_location caller = std::source_location::current());

// Only the root gets the result; recv of the others is empty.
template <class T>
void reduce(Communicator& comm, std::span<const T> send, std::span<T> recv, Rank root = 0, Fold op = Fold::sum,
            std::source_location caller = std::source_location::current());

// ---- rooted: of any type ----

template <class T>
void broadcast(Communicator& comm, std::span<T> data, Rank root = 0,
               std::source_location caller = std::source_location::current());

// Equal parts, in rank order at the root; recv of the others is empty.
template <class T>
void gather(Communicator& comm, std::span<const T> send, std::span<T> recv, Rank root = 0,
            std::source_location caller = std::source_location::current());

// The inverse of gather; send of the others is empty.
template <class T>
void scatter(Communicator& comm, std::span<const T> send, std::span<T> recv, Rank root = 0,
             std::source_location caller = std::source_location::current());

// ---- shardings: send is this rank's part of the tensor in `src`, recv its part in `dst`, both packed; empty where it
// has none ----

template <class T>
void reshard(Communicator& comm, std::span<const T> send, std::span<T> recv, std::span<const int64_t> shape,
             const Sharding& src, const Sharding& dst, std::source_location caller = std::source_location::current());

// ---- messages: see Communicator::send. recv returns the sender ----

template <class T>
void send(Communicator& comm, std::span<const T> data, Rank peer, int64_t tag = 0);
template <class T>
Rank recv(Communicator& comm, std::span<T> data, Rank peer = -1, int64_t tag = 0);

}  // namespace a2a

#include "a2a/communicator_inl.h"
