// What a secret may look like. Not public; secret_from_environment() stands in bootstrap.h.
#pragma once

#include <cstddef>
#include <string_view>

namespace a2a {

// Whoever answers a rank at rank 0's address gets a MAC, with which he can try short secrets at leisure.
inline constexpr size_t kShortestSecret = 16;
inline constexpr size_t kLongestSecret = 4096;

// Error(invalid_argument) unless its length is one of these.
void check_secret(std::string_view secret);

}  // namespace a2a
