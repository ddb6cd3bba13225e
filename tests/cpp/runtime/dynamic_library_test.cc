// Vendor libraries: found while the program runs, or not found with a reason.
#include "runtime/dynamic_library.h"

#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>

#include "a2a/libraries.h"
#include "check.h"

namespace {

using a2a::Code;
using a2a::DynamicLibrary;

const std::string kFakes = A2A_FAKES;

DynamicLibrary::Search search_of(std::vector<std::string> names, std::vector<std::string> directories = {}) {
  return {"the library", "A2A_SOME_LIBRARY", std::move(names), std::move(directories)};
}

// Runs the body in a child process: libraries stay loaded, and variables stay set.
void apart(const std::function<void()>& body) {
#if defined(__SANITIZE_THREAD__)
  return;  // its runtime does not support fork() well
#endif
  std::cout.flush();
  const pid_t child = fork();
  if (child == 0) {
    check::failures = 0;
    check::shown_until = 20;
    check::guarded("child", body);
    std::cerr.flush();
    _exit(check::failures == 0 ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  CHECK_EQ(status, 0);
}

std::string message_of(const DynamicLibrary::Search& search) {
  try {
    DynamicLibrary::open(search);
  } catch (const a2a::Error& error) {
    CHECK_EQ(error.code(), Code::unsupported);
    return error.what();
  }
  check::fail("it was found");
  return "";
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST("the variable names a file: that one, or none") {
  apart([] {
    setenv("A2A_SOME_LIBRARY", "/nonexistent/libsome.so", 1);
    const auto text = message_of(search_of({"libm.so.6"}, {"/nonexistent/directory"}));
    CHECK(contains(text, "cannot find the library; looked for\n  /nonexistent/libsome.so: "));
    CHECK(contains(text, "A2A_SOME_LIBRARY names this file, so nothing else was tried"));
    CHECK(!contains(text, "libm.so.6") && !contains(text, "/nonexistent/directory"));
    setenv("A2A_SOME_LIBRARY", "libm.so.6", 1);
    const auto found = DynamicLibrary::open(search_of({"libnothing.so"}));
    CHECK_EQ(found.where(), std::string("the library (libm.so.6)"));
    setenv("A2A_SOME_LIBRARY", "", 1);  // as if it were not set
    CHECK(contains(message_of(search_of({"libnothing.so"})), "set A2A_SOME_LIBRARY to the path of the library"));
    auto search = search_of({"libnothing.so"});
    search.extra = "some";
    CHECK(contains(message_of(search), "path of the library, or pip install 'a2a-comm[some]'"));
  });
}

TEST("nothing found: every place is listed, in the order of the search") {
  apart([] {
    a2a::add_library_directory("/nonexistent/added");
    a2a::add_library_directory("/nonexistent/added");
    const auto text = message_of(search_of({"liba.so", "libb.so"}, {"/nonexistent/one", "/nonexistent/two"}));
    size_t at = 0;
    for (const std::string place :
         {"liba.so (loaded already): not there", "libb.so (loaded already): not there", "/nonexistent/one/liba.so: ",
          "/nonexistent/one/libb.so: ", "/nonexistent/two/liba.so: ", "/nonexistent/added/liba.so: ",
          "/nonexistent/added/libb.so: ", "\n  liba.so: ", "\n  libb.so: ", "set A2A_SOME_LIBRARY"}) {
      const size_t found = text.find(place, at);
      if (!CHECK(found != std::string::npos)) check::fail("no " + place + " from there on in\n" + text);
      at = found == std::string::npos ? at : found;
    }
    const std::string added = "\n  /nonexistent/added/liba.so: ";
    CHECK_EQ(text.find(added), text.rfind(added));  // once
  });
}

TEST("a copy that the program has loaded goes before the directories") {
  apart([] {
    CHECK(dlopen("libm.so.6", RTLD_NOW) != nullptr);
    const auto found = DynamicLibrary::open(search_of({"libm.so.6"}, {"/nonexistent"}));
    CHECK_EQ(found.find("cos"), dlsym(RTLD_DEFAULT, "cos"));
  });
}

TEST("a test double is refused outside of tests, also where it is loaded already") {
  apart([] {
    unsetenv("A2A_TEST_DOUBLES");
    setenv("A2A_SOME_LIBRARY", (kFakes + "/libhccl.so").c_str(), 1);
    CHECK(contains(message_of(search_of({"libhccl.so"})), "libhccl.so: a test double, which only moves bytes"));
    unsetenv("A2A_SOME_LIBRARY");
    CHECK(dlopen((kFakes + "/libhccl.so").c_str(), RTLD_NOW | RTLD_GLOBAL) != nullptr);
    const auto text = message_of(search_of({"libhccl.so"}, {kFakes}));
    CHECK(contains(text, "libhccl.so (loaded already): a test double"));
    CHECK(contains(text, kFakes + "/libhccl.so: a test double"));
    for (const char* value : {"0", "no", ""}) {
      setenv("A2A_TEST_DOUBLES", value, 1);
      CHECK(contains(message_of(search_of({"libhccl.so"}, {kFakes})), "a test double"));
    }
    setenv("A2A_TEST_DOUBLES", "1", 1);
    CHECK(DynamicLibrary::open(search_of({"libhccl.so"})).find("HcclAlltoAllV") != nullptr);
  });
}

TEST("a missing symbol is named with the library") {
  apart([] {
    setenv("A2A_SOME_LIBRARY", "libm.so.6", 1);
    const auto library = DynamicLibrary::open(search_of({}));
    double (*cosine)(double) = nullptr;
    library.require("cos", &cosine);
    CHECK_EQ(cosine(0), 1.0);
    void (*missing)() = &std::abort;
    library.find("a2a_no_such_symbol", &missing);
    CHECK(missing == nullptr);
    CHECK_THROWS(Code::unsupported, "the library (libm.so.6) lacks a2a_no_such_symbol; another version of it is needed",
                 library.require("a2a_no_such_symbol", &missing));
  });
}
