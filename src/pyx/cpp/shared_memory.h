// Memory that tensors of several frameworks share, and views of the memory of other ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "a2a/communicator.h"
#include "a2a/views.h"
#include "cpp/exchange.h"

namespace a2a_py {

// Reference-counted memory, which any thread may release, without the GIL and after the interpreter has ended.
using SharedMemory = std::shared_ptr<void>;

inline SharedMemory allocate_shared(size_t bytes) { return a2a::Communicator::allocate_shared(bytes); }

using ViewsPtr = std::shared_ptr<a2a::Views>;

inline ViewsPtr start_views(a2a::Communicator& comm, const void* data, const a2a::DType& dtype,
                            const std::vector<int64_t>& shape, const When& until) {
  return comm.start_views(data, dtype, shape, until);
}

// Returns the memory of a view. It keeps the views alive: they are released after the last tensor over one of them
// is gone.
inline SharedMemory memory_of_view(const ViewsPtr& views, const a2a::View& view) {
  return SharedMemory(views, const_cast<std::byte*>(view.data));
}

}  // namespace a2a_py
