// FNV-1a, a word at a time. It tells values apart, but is no protection against values made to collide.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace a2a {

class Hash {
 public:
  Hash& add(uint64_t word) {
    value_ = (value_ ^ word) * 0x100000001b3;
    return *this;
  }
  Hash& add(std::string_view text) {
    add(text.size());
    for (const char c : text) add(static_cast<unsigned char>(c));
    return *this;
  }
  uint64_t value() const { return value_; }

 private:
  uint64_t value_ = 0xcbf29ce484222325;
};

}  // namespace a2a
