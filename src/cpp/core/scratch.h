// Memory of operations. Not public.
#pragma once

#include <cstddef>
#include <memory>

namespace a2a {

// take() reuses the memory of the last operation if that is over, because fresh memory costs page faults. Not for
// concurrent use.
class Scratch {
 public:
  // Throws std::bad_alloc.
  std::shared_ptr<std::byte[]> take(size_t bytes) {
    if (latest_.use_count() != 1 || bytes_ < bytes) {
      latest_.reset(new std::byte[bytes]);
      bytes_ = bytes;
    }
    return latest_;
  }

 private:
  std::shared_ptr<std::byte[]> latest_;
  size_t bytes_ = 0;
};

}  // namespace a2a
