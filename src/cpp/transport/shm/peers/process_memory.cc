#include "transport/shm/peers/process_memory.h"

#include <sys/random.h>

#include <string>

#include "a2a/types.h"
#include "transport/shm/peers/exposed_tensor.h"

namespace a2a::shm {
namespace {

ProcessMemory* current = nullptr;  // guarded by fork_mutex(); never deleted

}  // namespace

ProcessMemory& ProcessMemory::get() {
  ProcessMemory* made = nullptr;
  {
    const std::lock_guard lock(fork_mutex());
    if (current != nullptr && !current->inherited()) return *current;
    current = made = new ProcessMemory();
  }
  call_in_child([] {
    if (!current->inherited()) current->arena_.become_private();
  });
  close_in_child(made->arena_.fd());
  close_in_child(made->common_.fd());
  return *made;
}

// In each communicator the chunks of a rank take a megabyte at most, or 32 KiB for each peer where that is more.
constexpr size_t kMostCommon = size_t{16} << 30;

ProcessMemory::ProcessMemory()
    : arena_("a2a"), common_("a2a-common", kMostCommon, kBellsBytes), exposed_tensors_(new ExposedTensors(*this)) {
  for (uint32_t i = kBells; i > 0; --i) free_bells_.push_back(i - 1);
  if (::getrandom(&nonce_, sizeof(nonce_), 0) != sizeof(nonce_)) throw Error(Code::backend, "getrandom failed");
}

uint32_t ProcessMemory::take_bell() {
  std::lock_guard lock(mutex_);
  if (free_bells_.empty()) {
    throw Error(Code::backend, "more than " + std::to_string(kBells) + " ranks in one process");
  }
  const uint32_t index = free_bells_.back();
  common_.commit(index * sizeof(BellWord), sizeof(BellWord));
  free_bells_.pop_back();
  return index;
}

void ProcessMemory::give_bell(uint32_t index) {
  std::lock_guard lock(mutex_);
  free_bells_.push_back(index);
}

}  // namespace a2a::shm
