// Memory of the devices: pages of this host that only the double can touch.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>

namespace fake {

// What freshly allocated memory holds (its first MiB), and what receive buffers hold until the data are there.
constexpr unsigned char kPoison = 0xDB;

struct Allocation {
  Allocation(int on_device, size_t size);
  ~Allocation();
  Allocation(const Allocation&) = delete;
  Allocation& operator=(const Allocation&) = delete;

  const int device;     // -1: pinned host memory
  const size_t bytes;   // as asked for
  std::byte* base;      // the address that programs know
  std::byte* data;      // the same memory where the double reads and writes it
  const size_t mapped;  // whole pages
};

// Device memory is not accessible at the address that programs get, unless A2A_FAKE_HOST_ACCESS=1: a host that reads
// it is a mistake that real devices punish. device -1 gives pinned host memory, which is accessible.
void* allocate(int device, size_t bytes);
// False when `pointer` is not the start of an allocation of that kind. Operations in flight keep the memory.
bool release(void* pointer, bool device_memory);
// The allocation that holds this address, or null.
std::shared_ptr<const Allocation> find_allocation(const void* pointer);

// Memory that an operation uses, kept mapped as long as this lives.
struct Region {
  std::shared_ptr<const Allocation> owner;
  std::byte* data = nullptr;
  size_t bytes = 0;
};

bool overlap(const Region& a, const Region& b);

// The memory [pointer, pointer + bytes) of one device, or nothing and in `why` what is wrong with it. No bytes at any
// address, null included, are an empty region.
std::optional<Region> device_region(const void* pointer, size_t bytes, int device, std::string& why);
// The same for memory of any kind: pageable host memory is what no allocation here holds.
std::optional<Region> any_region(const void* pointer, size_t bytes, std::string& why);

}  // namespace fake
