#include "runtime/dynamic_library.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <mutex>

#include "a2a/libraries.h"
#include "runtime/environment.h"

namespace a2a {
namespace {

struct Directories {
  std::mutex mutex;
  std::vector<std::string> list;
};

Directories& directories() {
  static auto& added = *new Directories;
  return added;
}

std::vector<std::string> added_directories() {
  const std::lock_guard lock(directories().mutex);
  return directories().list;
}

bool tests_are_running() { return switch_variable("A2A_TEST_DOUBLES").value_or(false); }

// Attempts to open a library, with a log of the failures.
class Attempts {
 public:
  explicit Attempts(const char* title) : title_(title) {}

  void* open(const std::string& path, int flags, const char* note = "") {
    void* const handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | flags);
    if (handle == nullptr) {
      const char* const why = dlerror();
      log_ += "\n  " + path + note + ": " + (flags & RTLD_NOLOAD || why == nullptr ? "not there" : why);
      return nullptr;
    }
    if (dlsym(handle, "a2a_test_double") != nullptr && !tests_are_running()) {
      log_ += "\n  " + path + note + ": a test double, which only moves bytes between the ranks of a test";
      return nullptr;  // stays open: it, or the engine of its double, was loaded already
    }
    return handle;
  }

  [[noreturn]] void fail(const std::string& advice) const {
    throw Error(Code::unsupported, std::string("cannot find ") + title_ + "; looked for" + log_ + "\n" + advice);
  }

 private:
  const char* title_;
  std::string log_;
};

}  // namespace

DynamicLibrary DynamicLibrary::open(const Search& search) {
  Attempts attempts(search.title);
  const auto found = [&](const std::string& path, void* handle) { return DynamicLibrary(search.title, path, handle); };
  if (const char* const path = std::getenv(search.variable); path != nullptr && *path != '\0') {
    if (void* const handle = attempts.open(path, 0)) return found(path, handle);
    attempts.fail(std::string(search.variable) + " names this file, so nothing else was tried");
  }
  for (const auto& name : search.names) {
    if (void* const handle = attempts.open(name, RTLD_NOLOAD, " (loaded already)")) return found(name, handle);
  }
  auto places = search.directories;
  std::ranges::copy(added_directories(), std::back_inserter(places));
  for (const auto& directory : places) {
    for (const auto& name : search.names) {
      const std::string path = directory + "/" + name;
      if (void* const handle = attempts.open(path, 0)) return found(path, handle);
    }
  }
  for (const auto& name : search.names) {
    if (void* const handle = attempts.open(name, 0)) return found(name, handle);
  }
  const std::string advice = std::string("set ") + search.variable + " to the path of the library";
  attempts.fail(search.extra == nullptr ? advice : advice + ", or pip install 'a2a-comm[" + search.extra + "]'");
}

void* DynamicLibrary::find(const char* symbol) const { return dlsym(handle_, symbol); }

void DynamicLibrary::missing(const char* symbol) const {
  throw Error(Code::unsupported, where() + " lacks " + symbol + "; another version of it is needed");
}

void add_library_directory(const std::string& directory) {
  const std::lock_guard lock(directories().mutex);
  if (std::ranges::find(directories().list, directory) == directories().list.end()) {
    directories().list.push_back(directory);
  }
}

}  // namespace a2a
