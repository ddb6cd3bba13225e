// The bytes of an object as they travel between processes of one version on hosts of one byte order. Not public.
#pragma once

#include <string_view>
#include <type_traits>

namespace a2a {

// The result is valid as long as the object.
template <class T>
std::string_view object_bytes(const T& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  return {reinterpret_cast<const char*>(&value), sizeof(T)};
}

}  // namespace a2a
