// How the bytes of an operation travel: pure functions of sizes and of the machine, without ranks and without I/O.
#pragma once

#include <cstddef>

#include "transport/shm/copy/copy.h"
#include "transport/shm/policy/machine.h"
#include "transport/shm/protocol/layout.h"

namespace a2a::shm {

// The most a rank copies for one peer, or for itself, before it looks after the others, deadlines and aborts again.
inline constexpr size_t kCopyStep = size_t{4} << 20;

// What one rank sends and receives in an operation, in bytes.
struct Load {
  size_t sent = 0, received = 0;
  size_t alike = 0;  // that every rank gets, in the same bytes; 0 where ranks get different ones
};

// One ordered pair of ranks.
struct Route {
  size_t bytes = 0;         // from the sender to the receiver
  size_t inline_bytes = 0;  // that fit into a line
  size_t chunk_bytes = 0;   // that fit into the sender's share of the pair's chunks
  bool same_process = false;
  bool gaps = false;   // in what is sent
  bool folds = false;  // the receiver folds it, element by element where it lies
  bool cma = false;    // the receiver may copy from the sender's memory with process_vm_readv
};

// What takes time to find out. It is asked only where the answer matters.
class Probe {
 public:
  virtual ~Probe() = default;
  // Whether all that is sent lies in the sender's segment, which the receiver maps.
  virtual bool in_segment() = 0;
  // Whether what is sent lies in huge pages, see has_huge_pages().
  virtual bool in_huge_pages() = 0;
  // Whether the kernel's copy from there waits for no page fault, see are_present().
  virtual bool present() = 0;
  // From how many bytes on the kernel's copy is the faster one, see cma_pays_from().
  virtual size_t cma_pays_from() = 0;
};

struct Choice {
  Kind kind;
  const char* reason;  // for people
};

// Which way the bytes of a pair go, and why.
Choice choose_way(const Route& route, const Load& load, const Machine& machine, Probe& probe);

// Whether the buffers of all ranks are twice what the caches hold, if this rank, which sends and receives so many bytes
// in all, has as much as they have on average. Then memory sets the pace.
bool exceeds_caches(const Load& load, const Machine& machine);

// Whether what a rank receives is written past the caches.
Stores choose_stores(const Load& load, const Machine& machine);

// Whether a receiver with memory in a peer's reach has the peer put its bytes there, rather than copy them from the
// peer's memory itself. `string_puts_pay` is asked only where it matters.
bool choose_put(const Load& load, const Machine& machine, bool (*string_puts_pay)());

// Whether one copy in the sender's segment for all peers takes less time than what this kind does for each of them, of
// bytes that all `ranks` ranks get alike.
bool copy_for_all_pays(Kind kind, size_t bytes, size_t ranks);

// How many bytes of other ranks one rank folds at once at most, rather than its part of them, which it then gives to
// all.
size_t fold_at_once_max(const Machine& machine);

// From how many bytes of a pair on another way is taken, where all pairs exchange as many.
size_t direct_min(const Machine& machine);
size_t cma_min(const Machine& machine, size_t chunk_bytes, size_t pays_from);
// From how many bytes received by a rank in all on they are written past the caches, where all receive as many.
size_t stream_min(const Machine& machine);

}  // namespace a2a::shm
