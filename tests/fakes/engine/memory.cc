#include "engine/memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <new>

#include "engine/controls.h"

namespace fake {
namespace {

struct Registry {
  std::mutex mutex;
  std::map<uintptr_t, std::shared_ptr<const Allocation>> by_base;
};

Registry& registry() {
  static auto* const it = new Registry;
  return *it;
}

std::byte* map(int file, size_t bytes, int protection) {
  void* const at = mmap(nullptr, bytes, protection, MAP_SHARED, file, 0);
  if (at == MAP_FAILED) throw std::bad_alloc();
  return static_cast<std::byte*>(at);
}

std::string text_of(const void* pointer, size_t bytes) {
  char text[64];
  snprintf(text, sizeof text, "%p (%zu bytes)", pointer, bytes);
  return text;
}

size_t pages(size_t bytes) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return (std::max<size_t>(bytes, 1) + page - 1) / page * page;
}

}  // namespace

Allocation::Allocation(int on_device, size_t size) : device(on_device), bytes(size), mapped(pages(size)) {
  const int file = memfd_create("a2a-fake-device", MFD_CLOEXEC);
  if (file < 0 || ftruncate(file, static_cast<off_t>(mapped)) != 0) {
    if (file >= 0) close(file);
    throw std::bad_alloc();
  }
  const bool accessible = device < 0 || control("A2A_FAKE_HOST_ACCESS", "0") == "1";
  base = map(file, mapped, accessible ? PROT_READ | PROT_WRITE : PROT_NONE);
  data = map(file, mapped, PROT_READ | PROT_WRITE);
  close(file);
  std::memset(data, kPoison, std::min<size_t>(mapped, 1 << 20));
}

Allocation::~Allocation() {
  munmap(base, mapped);
  munmap(data, mapped);
}

void* allocate(int device, size_t bytes) try {
  const auto made = std::make_shared<const Allocation>(device, bytes);
  const std::lock_guard lock(registry().mutex);
  registry().by_base[reinterpret_cast<uintptr_t>(made->base)] = made;
  return made->base;
} catch (const std::bad_alloc&) {
  return nullptr;
}

bool release(void* pointer, bool device_memory) {
  std::shared_ptr<const Allocation> last;  // is unmapped after the lock
  const std::lock_guard lock(registry().mutex);
  const auto found = registry().by_base.find(reinterpret_cast<uintptr_t>(pointer));
  if (found == registry().by_base.end() || (found->second->device >= 0) != device_memory) return false;
  last = std::move(found->second);
  registry().by_base.erase(found);
  return true;
}

std::shared_ptr<const Allocation> find_allocation(const void* pointer) {
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  const std::lock_guard lock(registry().mutex);
  auto next = registry().by_base.upper_bound(address);
  if (next == registry().by_base.begin()) return nullptr;
  const auto& [base, found] = *--next;
  return address - base < std::max<size_t>(found->bytes, 1) ? found : nullptr;
}

std::optional<Region> any_region(const void* pointer, size_t bytes, std::string& why) {
  if (bytes == 0) return Region{};
  if (!pointer) {
    why = "a null pointer with " + std::to_string(bytes) + " bytes";
    return std::nullopt;
  }
  const auto found = find_allocation(pointer);
  auto* const at = const_cast<std::byte*>(static_cast<const std::byte*>(pointer));
  if (!found) return Region{nullptr, at, bytes};
  const auto offset = static_cast<size_t>(at - found->base);
  if (bytes > found->bytes - offset) {
    why = text_of(pointer, bytes) + " leaves its allocation " + text_of(found->base, found->bytes);
    return std::nullopt;
  }
  return Region{found, found->data + offset, bytes};
}

bool overlap(const Region& a, const Region& b) {
  return a.bytes > 0 && b.bytes > 0 && a.data < b.data + b.bytes && b.data < a.data + a.bytes;
}

std::optional<Region> device_region(const void* pointer, size_t bytes, int device, std::string& why) {
  auto found = any_region(pointer, bytes, why);
  if (!found || bytes == 0) return found;
  if (!found->owner || found->owner->device < 0) {
    why = text_of(pointer, bytes) + " is not device memory";
  } else if (found->owner->device != device) {
    why = text_of(pointer, bytes) + " is on device " + std::to_string(found->owner->device) + ", not on device " +
          std::to_string(device);
  } else {
    return found;
  }
  return std::nullopt;
}

}  // namespace fake
