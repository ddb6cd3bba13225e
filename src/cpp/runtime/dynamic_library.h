// Finds vendor libraries (NCCL, HCCL, MPI, drivers) while the program runs. Nothing links them.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "a2a/types.h"

namespace a2a {

// A library that was opened and stays open: nothing can undo its effects on the process. Cheap to copy.
class A2A_API DynamicLibrary {
 public:
  // The places of a search, in this order: the file that the environment variable names (then no other place is tried);
  // a copy that the program has already loaded under one of the names; `names` in the given directories, then in those
  // of add_library_directory(); `names` as the loader finds them.
  struct Search {
    const char* title;     // for messages: "NCCL"
    const char* variable;  // environment variable with the path of the library
    std::vector<std::string> names;
    std::vector<std::string> directories = {};
    const char* extra = nullptr;  // for messages: the extra of the Python package that brings it
  };

  // Throws Error(unsupported) that lists every place and the loader's error for it. Refuses a test double unless the
  // tests are running (A2A_TEST_DOUBLES=1).
  static DynamicLibrary open(const Search& search);

  // Returns the address of a symbol, nullptr if this version of the library lacks it.
  void* find(const char* symbol) const;

  // Sets a function pointer; nullptr if the symbol is missing.
  template <class Function>
  void find(const char* symbol, Function** function) const {
    *function = reinterpret_cast<Function*>(find(symbol));
  }
  // The same for symbols that every supported version has: throws Error(unsupported) naming it.
  template <class Function>
  void require(const char* symbol, Function** function) const {
    find(symbol, function);
    if (*function == nullptr) missing(symbol);
  }
  [[noreturn]] void missing(const char* symbol) const;

  // Returns the directory of the file, empty if it was not opened by a path.
  std::string directory() const { return path_.substr(0, path_.rfind('/') + 1); }
  // For messages: returns the title and the path under which it was opened.
  std::string where() const { return title_ + " (" + path_ + ")"; }

 private:
  DynamicLibrary(std::string title, std::string path, void* handle)
      : title_(std::move(title)), path_(std::move(path)), handle_(handle) {}

  std::string title_, path_;
  void* handle_;
};

}  // namespace a2a
