#include "transport/shm/ways/sent_memory.h"

#include <algorithm>

namespace a2a::shm {

bool SentMemory::in_segment() {
  const auto holds = [this](const Run& run) { return m_.arena().contains(run.memory().data(), run.memory().size()); };
  return std::ranges::all_of(runs_, holds);
}

// process_vm_readv waits for a page uninterruptibly, except for death. If the memory comes from a file system that does
// not answer, the peer could neither keep its deadline nor be interrupted. Usually all sends are present, and one query
// is enough.
bool SentMemory::present() {
  if (!all_.present) all_.present = are_present(all_.runs);
  return *all_.present || (runs_.size() < all_.runs.size() && are_present(runs_));
}

}  // namespace a2a::shm
