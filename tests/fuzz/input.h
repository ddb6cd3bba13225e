// The bytes of one fuzzing input, taken from the front. When there are no more, everything reads as zero.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <string>
#include <string_view>

namespace fuzz {

class Input {
 public:
  Input(const uint8_t* data, size_t bytes) : rest_(reinterpret_cast<const char*>(data), bytes) {}

  bool empty() const { return rest_.empty(); }
  template <class T>
  T take() {
    T value{};
    const std::string_view bytes = take_bytes(sizeof(T));
    if (!bytes.empty()) std::memcpy(&value, bytes.data(), bytes.size());
    return value;
  }
  std::string_view take_bytes(size_t most) {
    const std::string_view bytes = rest_.substr(0, most);
    rest_.remove_prefix(bytes.size());
    return bytes;
  }
  // Changes some bytes of a value, as many as its next byte says.
  template <class T>
  bool patch(T& value) {
    const unsigned count = take<uint8_t>() % 8;
    for (unsigned i = 0; i < count; ++i) {
      const size_t at = take<uint16_t>() % sizeof(T);
      reinterpret_cast<uint8_t*>(&value)[at] = take<uint8_t>();
    }
    return count > 0;
  }

 private:
  std::string_view rest_;
};

// What must hold for every input. libFuzzer keeps the input of a program that ends like this.
inline void require(bool holds, const char* what) {
  if (holds) return;
  std::cerr << "fuzz: " << what << std::endl;
  std::abort();
}

}  // namespace fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes);
