// What the communicators of all doubles have in common: operations that run one after the other, in the order of the
// host's calls, whatever their streams, and the faults that the environment asks for.
#pragma once

#include <set>

#include "engine/mesh.h"
#include "engine/stream.h"

namespace fake {

struct Operation {
  const char* name;
  std::vector<Part> sends = {}, recvs = {};
  bool collective = false;  // is numbered, so that ranks in different calls are told from each other
  // Looked at when the operation runs: a reason not to run it, or nothing.
  std::function<std::string()> still_valid = {};
  std::shared_ptr<void> held = {};  // until it was run, or as long as a graph has it
  std::function<void()> then = {};  // when all has arrived
};

// What differs between the vendors' libraries.
struct Policy {
  Rules rules;
  std::optional<double> limit_seconds;  // of an operation on the device
  bool stream_fails = true;             // or: a failed operation occupies its stream until the communicator is aborted
};

class Communicator : public std::enable_shared_from_this<Communicator> {
 public:
  Communicator(std::shared_ptr<Mesh> links, int on_device, Policy policy);
  ~Communicator();

  // Counts an operation; its number, or nothing (and the error text) when the environment wants this one refused.
  std::optional<uint64_t> count();
  void enqueue(Stream& stream, Operation operation, uint64_t call);

  // The first failure of an operation, or a peer that died.
  Failure failure();
  void fail(const Failure& failure);
  // Ends what is in flight. Leaving tells the peers that it is meant.
  void end(bool leaving);
  bool ended() const { return ended_; }
  // Waits until all operations so far are done, or it has ended.
  void drain();

  const std::shared_ptr<Mesh> mesh;
  const int device;
  const int rank, size;

 private:
  Failure run(uint64_t turn, uint64_t call, Operation& operation, const Stream& stream, const Failure& earlier);
  Failure perform(uint64_t call, const Operation& operation, const Stream& stream);
  Failure move(const Operation& operation, const Stream& stream);
  Failure linger(const Stream& stream, bool fails);

  const Policy policy_;
  const uint64_t refuse_at_, fail_at_, stall_at_;
  std::atomic<bool> ended_{false};

  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t calls_ = 0, collectives_ = 0, turns_ = 0;
  std::set<uint64_t> waiting_;  // turns that are not over
  Failure failure_;
};

}  // namespace fake
