// The limits of a secret. Not public; secret_from_environment() is declared in bootstrap.h.
#pragma once

#include <cstddef>
#include <string_view>

namespace a2a {

// Any process that answers a rank at rank 0's address gets a MAC, against which it can try short secrets.
inline constexpr size_t kShortestSecret = 16;
inline constexpr size_t kLongestSecret = 4096;

// Throws Error(invalid_argument) unless its length is within these limits.
void check_secret(std::string_view secret);

}  // namespace a2a
