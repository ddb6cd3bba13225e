// Chooses how the bytes of an operation travel. The functions are pure: they take sizes and the machine, and do no I/O.
#pragma once

#include <cstddef>

#include "transport/shm/copy/copy.h"
#include "transport/shm/policy/machine.h"
#include "transport/shm/protocol/layout.h"

namespace a2a::shm {

// The bytes that one rank sends and receives in an operation.
struct Load {
  size_t sent = 0, received = 0;
  size_t alike = 0;  // the bytes that every rank gets, if they are the same; otherwise 0
};

// One ordered pair of ranks.
struct Route {
  size_t bytes = 0;         // from the sender to the receiver
  size_t inline_bytes = 0;  // the most that fits into a line
  size_t chunk_bytes = 0;   // the most that fits into the sender's share of the pair's chunks
  bool same_process = false;
  bool gaps = false;   // the sent memory has gaps
  bool folds = false;  // the receiver folds element by element, from where the bytes lie
  // The bytes are a message. Its receiver cannot be told of gaps. Two copies want both ranks at the same time, because
  // nothing is copied ahead before its receive is matched.
  bool message = false;
  bool cma = false;  // the receiver may copy from the sender's memory with process_vm_readv
};

// Answers the questions that need system calls or measurements. choose_way() asks only where the answer matters.
class Probe {
 public:
  virtual ~Probe() = default;
  // Whether the sender's segment, which the receiver maps, holds all sent bytes.
  virtual bool in_segment() = 0;
  // Whether the sent bytes lie in huge pages, see has_huge_pages().
  virtual bool in_huge_pages() = 0;
  // Whether all pages of the sent bytes are present, so that CMA takes no page fault; see are_present().
  virtual bool present() = 0;
  // The number of bytes from which on CMA is faster, see cma_pays_from().
  virtual size_t cma_pays_from() = 0;
};

struct Choice {
  Kind kind;
  const char* reason;  // for users
};

// Returns the way of a pair's bytes, and the reason.
Choice choose_way(const Route& route, const Load& load, const Machine& machine, Probe& probe);

// The most bytes of a message that the library copies at once, so that its sender goes on (eager).
inline constexpr size_t kMostEager = 64 * kKiB;

// The room for messages that nobody receives yet.
struct EagerRoom {
  bool header = true;    // in the packet of the header, which the receiver keeps
  bool fragment = true;  // in a fragment, which the sender keeps
};

// The same for a message, whose header has room for Route::inline_bytes. Few bytes are eager whatever the thresholds.
Choice choose_way_of_message(const Route& route, EagerRoom room, const Machine& machine, Probe& probe);

// Whether the buffers of all ranks are twice the size of the caches, so that the exchange is memory-bound. Assumes that
// the other ranks send and receive as much as this one.
bool exceeds_caches(const Load& load, const Machine& machine);

// Returns whether a rank's outputs are written with streaming stores, past the caches.
Stores choose_stores(const Load& load, const Machine& machine);

// Whether one copy in the sender's segment, read by all peers, takes less time than a transfer of this kind to each of
// them. All `ranks` ranks get the same `bytes` bytes.
bool copy_for_all_pays(Kind kind, size_t bytes, size_t ranks);

// The most bytes of other ranks that each rank folds whole. With more, each rank folds a part and sends the result to
// all.
size_t fold_at_once_max(const Machine& machine);

// The thresholds, in bytes of a pair, from which on another way is chosen, where all pairs exchange as many.
size_t direct_min(const Machine& machine);
size_t cma_min(const Machine& machine, size_t chunk_bytes, size_t pays_from);
// The number of bytes received by a rank from which on outputs are written past the caches, where all receive as many.
size_t stream_min(const Machine& machine);

}  // namespace a2a::shm
