#include "runtime/environment.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>

#include "a2a/types.h"

namespace a2a {
namespace {

[[noreturn]] void refuse(const char* name, const std::string& value, const std::string& allowed) {
  throw Error(Code::invalid_argument, std::string(name) + "=" + value + " in the environment is " + allowed);
}

std::string in_lower_case(std::string text) {
  std::ranges::transform(text, text.begin(),
                         [](char c) { return 'A' <= c && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  return text;
}

}  // namespace

std::optional<std::string> variable(const char* name) {
  constexpr auto kBlank = " \t\r\n";
  const char* const text = std::getenv(name);
  const std::string_view value = text == nullptr ? "" : text;
  const size_t begin = value.find_first_not_of(kBlank);
  if (begin == std::string_view::npos) return std::nullopt;
  return std::string(value.substr(begin, value.find_last_not_of(kBlank) - begin + 1));
}

std::optional<size_t> word_variable(const char* name, std::initializer_list<std::string_view> words) {
  const auto value = variable(name);
  if (!value) return std::nullopt;
  const auto found = std::ranges::find(words, in_lower_case(*value));
  if (found != words.end()) return static_cast<size_t>(found - words.begin());
  std::string allowed;
  for (const std::string_view word : words) allowed += (allowed.empty() ? "none of " : ", ") + std::string(word);
  refuse(name, *value, allowed);
}

std::optional<bool> switch_variable(const char* name) {
  const auto word = word_variable(name, {"1", "0", "on", "off", "true", "false", "yes", "no"});
  return word ? std::optional(*word % 2 == 0) : std::nullopt;
}

std::optional<uint64_t> bytes_variable(const char* name, uint64_t least, uint64_t most) {
  const auto value = variable(name);
  if (!value) return std::nullopt;
  uint64_t bytes = 0;
  const auto [end, error] = std::from_chars(value->data(), value->data() + value->size(), bytes);
  if (error == std::errc() && end == value->data() + value->size() && bytes >= least && bytes <= most) return bytes;
  refuse(name, *value, "not a number of bytes from " + std::to_string(least) + " to " + std::to_string(most));
}

}  // namespace a2a
