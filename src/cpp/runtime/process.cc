#include "runtime/process.h"

#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace a2a {
namespace {

// Whether /proc uses the process numbers of this process. After a change of the PID namespace it may still be that of
// another one, in which the numbers mean other processes.
bool proc_is_ours() {
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self", error) == std::to_string(::getpid());
}

// Returns the fields of /proc/PID/stat after the process's name, from its state letter on; empty if there are none.
std::string process_facts(pid_t pid) {
  if (!proc_is_ours()) return "";
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  std::getline(file, text);
  const size_t name_end = text.rfind(')');  // the name may hold anything, parentheses too
  return name_end != std::string::npos && name_end + 2 < text.size() ? text.substr(name_end + 2) : "";
}

// Returns 'X', dead, if there is no such process. Without /proc the kernel tells no more than that.
char process_state(pid_t pid) {
  const std::string facts = process_facts(pid);
  if (!facts.empty()) return facts.front();
  return ::kill(pid, 0) != 0 && errno == ESRCH ? 'X' : '?';
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
