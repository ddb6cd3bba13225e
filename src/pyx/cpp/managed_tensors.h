// Managed tensors of DLPack: those that this package makes, and the memory of those of others.
#pragma once

#include <dlpack/dlpack.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace a2a_py {

// A managed tensor of this package. Its deleter may run on any thread, without the GIL and after the interpreter
// has ended.
template <class Managed>
struct Export {
  Managed managed{};
  std::vector<int64_t> dims;  // shape, then strides
  std::shared_ptr<void> memory;
};

template <class Managed>
Managed* export_tensor(const DLTensor& tensor, std::shared_ptr<void> memory) {
  auto* made = new Export<Managed>;
  made->dims.assign(tensor.shape, tensor.shape + tensor.ndim);
  made->dims.insert(made->dims.end(), tensor.strides, tensor.strides + tensor.ndim);
  made->memory = std::move(memory);
  made->managed.dl_tensor = tensor;
  made->managed.dl_tensor.shape = made->dims.data();
  made->managed.dl_tensor.strides = made->dims.data() + tensor.ndim;
  made->managed.manager_ctx = made;
  made->managed.deleter = [](Managed* self) { delete static_cast<Export<Managed>*>(self->manager_ctx); };
  return &made->managed;
}

inline DLManagedTensorVersioned* export_versioned(const DLTensor& tensor, std::shared_ptr<void> memory, bool readonly) {
  auto* made = export_tensor<DLManagedTensorVersioned>(tensor, std::move(memory));
  made->version = {DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION};
  made->flags = readonly ? DLPACK_FLAG_BITMASK_READ_ONLY : 0;
  return made;
}

inline DLManagedTensor* export_legacy(const DLTensor& tensor, std::shared_ptr<void> memory) {
  return export_tensor<DLManagedTensor>(tensor, std::move(memory));
}

inline void release(DLManagedTensorVersioned* managed) {
  if (managed->deleter) managed->deleter(managed);
}

// Returns the memory of a managed tensor of another package, and owns it.
inline std::shared_ptr<void> adopt(DLManagedTensorVersioned* managed) {
  return std::shared_ptr<void>(managed, [](void* self) { release(static_cast<DLManagedTensorVersioned*>(self)); });
}

}  // namespace a2a_py
