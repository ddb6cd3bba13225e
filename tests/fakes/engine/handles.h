// Handles that programs get for objects of a double. A value is never used twice, so that a destroyed handle is always
// recognised, and points to nothing, so that a program that looks behind it crashes as it may on a real device.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

namespace fake {

template <class T>
class Handles {
 public:
  explicit Handles(uintptr_t first) : next_(first) {}

  void* add(std::shared_ptr<T> object) {
    const std::lock_guard lock(mutex_);
    next_ += 64;
    objects_[next_] = std::move(object);
    return reinterpret_cast<void*>(next_);
  }

  std::shared_ptr<T> find(const void* handle) {
    const std::lock_guard lock(mutex_);
    const auto found = objects_.find(reinterpret_cast<uintptr_t>(handle));
    return found == objects_.end() ? nullptr : found->second;
  }

  // The object, or null when there is none of that handle.
  std::shared_ptr<T> remove(const void* handle) {
    const std::lock_guard lock(mutex_);
    const auto found = objects_.find(reinterpret_cast<uintptr_t>(handle));
    if (found == objects_.end()) return nullptr;
    auto object = std::move(found->second);
    objects_.erase(found);
    return object;
  }

  size_t size() {
    const std::lock_guard lock(mutex_);
    return objects_.size();
  }

 private:
  std::mutex mutex_;
  uintptr_t next_;
  std::map<uintptr_t, std::shared_ptr<T>> objects_;
};

}  // namespace fake
