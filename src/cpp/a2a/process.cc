#include "a2a/process.h"

#include <fstream>

namespace a2a {
namespace {

// The state letter of a process from /proc, or 0.
char process_state(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  std::getline(file, text);
  const size_t name_end = text.rfind(')');  // the name may hold anything, parentheses too
  return name_end != std::string::npos && name_end + 2 < text.size() ? text[name_end + 2] : '\0';
}

}  // namespace

std::string process_in_words(pid_t pid) {
  const std::string text = "pid " + std::to_string(pid);
  switch (process_state(pid)) {
    case 'T':
    case 't':
      return text + ", alive but stopped";
    case 'Z':
    case 'X':
    case '\0':
      return text + ", exited";
    default:
      return text + ", alive";
  }
}

}  // namespace a2a
