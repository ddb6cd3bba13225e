// SHA-256 (FIPS 180-4) and HMAC-SHA256 (RFC 2104). Not public.
//
// Written here because liba2a links only the C++ library. With a libcrypto loaded while the program runs, ranks could
// not meet where it is missing or of another version; C++ programs have no access to Python's hashlib. No branch and no
// table of the algorithm depends on its input, so straightforward code runs in constant time. The tests compare it with
// the official vectors and with hashlib.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace a2a {

using Digest = std::array<uint8_t, 32>;

inline std::string_view as_text(const Digest& digest) {
  return {reinterpret_cast<const char*>(digest.data()), digest.size()};
}

class Sha256 {
 public:
  Sha256& add(std::string_view bytes);
  Digest digest() const;  // of all that was added

 private:
  void compress(const uint8_t* block);

  std::array<uint32_t, 8> state_{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<uint8_t, 64> block_{};  // bytes that do not fill a block yet
  uint64_t bytes_ = 0;
};

inline Digest sha256(std::string_view bytes) { return Sha256().add(bytes).digest(); }

Digest hmac_sha256(std::string_view key, std::string_view message);

// Whether two MACs are equal. The time that it takes does not reveal where they differ.
bool same_mac(std::string_view a, std::string_view b);

}  // namespace a2a
