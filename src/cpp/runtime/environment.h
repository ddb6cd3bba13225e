// Reads environment variables: the one place that parses each kind of value. Not public.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

namespace a2a {

// Returns the variable's value without white space around it; nothing when it is unset or blank.
std::optional<std::string> variable(const char* name);

// Accepts 1, on, true, yes or 0, off, false, no, in upper or lower case. Throws Error(invalid_argument) for other
// words.
std::optional<bool> switch_variable(const char* name);

// Accepts a number of bytes from `least` to `most`. Throws Error(invalid_argument) for everything else.
std::optional<uint64_t> bytes_variable(const char* name, uint64_t least = 0, uint64_t most = UINT64_MAX);

// Returns the index of the word, in upper or lower case. Throws Error(invalid_argument) for others.
std::optional<size_t> word_variable(const char* name, std::initializer_list<std::string_view> words);

}  // namespace a2a
