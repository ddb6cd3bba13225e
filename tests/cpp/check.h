// The test framework. Each test file is one program, and this header has its main().
//
//   TEST("counts add up") {
//     const check::Note note("case", i);  // printed with every failure while `note` lives
//     CHECK_EQ(sum(counts), 7);           // prints both values
//     CHECK_THROWS(a2a::Code::invalid_argument, "counts[1] = -1", make_plan(counts));
//   }
//
// A failed check is reported and the test goes on; checks are bools, for tests that must stop: if (!CHECK(p)) return;
// Checks may be used in any thread; check::threads runs the ranks of a test. `program text` runs the tests whose names
// contain the text; `--name=value` before it is for the tests, see check::option. A2A_TEST_SEED overrides the seed.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <iostream>
#include <mutex>
#include <random>
#include <source_location>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "a2a/types.h"

#define TEST(name) CHECK_TEST(name, __LINE__)
#define CHECK_TEST(name, line) CHECK_TEST_AT(name, line)
#define CHECK_TEST_AT(name, line)                                                                     \
  static void test_##line();                                                                          \
  [[maybe_unused]] static const int added_##line = (check::tests.emplace_back(name, test_##line), 0); \
  static void test_##line()

#define CHECK(...) (static_cast<bool>(__VA_ARGS__) || check::fail("CHECK(" #__VA_ARGS__ ")"))
#define CHECK_EQ(a, b) check::equal(a, b, "CHECK_EQ(" #a ", " #b ")")
#define CHECK_THROWS(code, part, ...) check::throws(code, part, #__VA_ARGS__, [&] { (void)(__VA_ARGS__); })

namespace check {

using Where = std::source_location;
inline std::vector<std::pair<const char*, void (*)()>> tests;
inline std::atomic<int> failures{0};     // checks that failed so far; a forked child can exit with it
inline std::atomic<int> shown_until{0};  // one mistake can fail thousands of random cases, so not all are printed

inline uint64_t seed() {
  static const char* const given = std::getenv("A2A_TEST_SEED");
  return given ? std::strtoull(given, nullptr, 10) : 20240229;
}

inline std::vector<std::string> options;  // "name=value", from the command line

inline std::string option(const std::string& name, const std::string& otherwise) {
  for (const std::string& given : options) {
    if (given.starts_with(name + "=")) return given.substr(name.size() + 1);
  }
  return otherwise;
}

struct Random : std::mt19937_64 {
  using std::mt19937_64::mt19937_64;
  auto in(auto lowest, decltype(lowest) highest) { return std::uniform_int_distribution(lowest, highest)(*this); }
  bool chance(double p) { return std::bernoulli_distribution(p)(*this); }
};

// A value printed with every failure of this thread, and of the threads it starts with check::threads.
struct [[nodiscard]] Note {
  Note(const char* what, uint64_t is) : name(what), value(is), outer(innermost) { innermost = this; }
  ~Note() { innermost = outer; }
  const char* const name;
  const uint64_t value;
  const Note* const outer;
  static inline thread_local const Note* innermost = nullptr;
};

inline bool fail(const std::string& text, Where where = Where::current()) {
  static std::mutex output;
  const std::lock_guard lock(output);
  if (++failures > shown_until) return false;
  std::cerr << where.file_name() << ':' << where.line() << ": " << text << '\n';
  for (const Note* note = Note::innermost; note; note = note->outer)
    std::cerr << "  " << note->name << " = " << note->value << '\n';
  return false;
}

template <class T>
void show(std::ostream& out, const T& value) {
  if constexpr (requires { std::string(to_string(value)); }) {
    out << to_string(value);
  } else if constexpr (std::is_enum_v<T> || (std::is_integral_v<T> && sizeof(T) == 1)) {
    out << static_cast<int64_t>(value);
  } else if constexpr (requires { out << value; }) {
    out << value;
  } else {
    for (const auto& element : value) show(out << ' ', element);
  }
}

// Integers are compared by value, whatever their types; ranges element by element.
template <class A, class B>
bool equal(const A& a, const B& b, const char* text, Where where = Where::current()) {
  bool same;
  if constexpr (std::is_integral_v<A> && std::is_integral_v<B>) {
    same = static_cast<__int128>(a) == static_cast<__int128>(b);
  } else if constexpr (requires { a == b; }) {
    same = a == b;
  } else {
    same = std::ranges::equal(a, b);
  }
  if (same) return true;
  std::ostringstream out;
  show(out << text << "\n  left:  ", a);
  show(out << "\n  right: ", b);
  return fail(out.str(), where);
}

bool throws(a2a::Code code, std::string part, std::string text, auto&& body, Where where = Where::current()) try {
  body();
  return fail(text + " did not throw", where);
} catch (const a2a::Error& error) {
  const auto full = [](a2a::Code c, const std::string& what) {
    return std::to_string(static_cast<int>(c)) + ' ' + what;
  };
  if (error.code() == code && std::string(error.what()).find(part) != std::string::npos) return true;
  return fail(text + "\n  threw:  " + full(error.code(), error.what()) + "\n  wanted: " + full(code, part), where);
}

void guarded(const std::string& name, auto&& body) try { body(); } catch (const std::exception& error) {
  fail(name + " threw: " + error.what());
}

// Runs body(0) ... body(n - 1) in n threads and waits for them.
void threads(int n, auto body) {
  std::vector<std::jthread> running;
  for (int i = 0; i < n; ++i) {
    running.emplace_back([&body, i, outer = Note::innermost] {
      Note::innermost = outer;
      const Note note("thread", static_cast<uint64_t>(i));
      guarded("thread", [&] { body(i); });
    });
  }
}

}  // namespace check

int main(int argc, char** argv) {
  std::cout << "seed " << check::seed() << std::endl;
  for (; argc > 1 && std::string(argv[1]).starts_with("--"); --argc, ++argv) check::options.emplace_back(argv[1] + 2);
  int passed = 0, failed = 0;
  for (const auto& [name, body] : check::tests) {
    if (argc > 1 && std::string(name).find(argv[1]) == std::string::npos) continue;
    const int before = check::failures;
    check::shown_until = before + 20;
    check::guarded(name, body);
    ++(check::failures == before ? passed : failed);
    if (check::failures > before) std::cerr << "FAILED: " << name << " (" << check::failures - before << " checks)\n";
  }
  std::cout << passed << " passed, " << failed << " failed" << std::endl;
  return failed == 0 && passed > 0 ? 0 : 1;  // a filter that selects no test is a mistake
}
