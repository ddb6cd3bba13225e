#include "a2a/process.h"

#include <fstream>
#include <sstream>

namespace a2a {
namespace {

// What stands in /proc after the process's name, from its state letter on; empty when there is no such process.
std::string process_facts(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  std::getline(file, text);
  const size_t name_end = text.rfind(')');  // the name may hold anything, parentheses too
  return name_end != std::string::npos && name_end + 2 < text.size() ? text.substr(name_end + 2) : "";
}

// 'X', dead, where there is none.
char process_state(pid_t pid) {
  const std::string facts = process_facts(pid);
  return facts.empty() ? 'X' : facts.front();
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
      return text + ", exited";
    default:
      return text + ", alive";
  }
}

bool has_exited(pid_t pid) {
  const char state = process_state(pid);
  return state == 'Z' || state == 'X';
}

uint64_t process_start(pid_t pid) {
  constexpr int kBefore = 19;  // words; the state letter is the first of them
  std::istringstream words(process_facts(pid));
  std::string skipped;
  for (int i = 0; i < kBefore; ++i) words >> skipped;
  uint64_t ticks = 0;
  return words >> ticks ? ticks : 0;
}

}  // namespace a2a
