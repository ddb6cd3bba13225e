// Requests that are tested together: each watcher gets the results of its own.
#include "transport/mpi/library.h"

#include <cstdlib>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "check.h"
#include "scripted_mpi.h"

namespace {

using a2a::Code;
using a2a::Error;
using a2a::mpi::Library;

struct Script {
  Script() {
    setenv("A2A_TEST_DOUBLES", "1", 1);
    const auto file = a2a::DynamicLibrary::open({"MPI", "A2A_SCRIPTED_MPI", {A2A_SCRIPTED_MPI_FILE}});
    file.require("script_begun", &begun);
    file.require("script_complete", &complete);
    file.require("script_fail", &fail);
    file.require("script_cancelled", &cancelled);
    library = a2a::mpi::bind_standard_abi(file, std::nullopt);
  }

  // Begins a receive. Returns its number.
  uintptr_t watch(a2a::mpi::Watcher* watcher) {
    library->watch(library->start_receive(nullptr, 0, 0, 1), watcher);
    return begun();
  }

  decltype(&script_begun) begun = nullptr;
  decltype(&script_complete) complete = nullptr;
  decltype(&script_fail) fail = nullptr;
  decltype(&script_cancelled) cancelled = nullptr;
  std::unique_ptr<Library> library;
};

struct SentFacts final : a2a::mpi::Watcher {
  void completed(const Error* error) override { told.emplace_back(error != nullptr ? error->what() : ""); }
  std::vector<std::string> told;
};

TEST("each request is told of to its own watcher, in whatever order they are complete") {
  Script script;
  check::Random random(check::seed());
  std::vector<SentFacts> watchers(7);
  std::vector<size_t> expected(watchers.size());
  std::vector<std::pair<uintptr_t, size_t>> open;  // with the watcher's number
  for (int step = 0; step < 2000; ++step) {
    if (open.empty() || random.chance(0.6)) {
      const size_t whose = random.in(size_t{0}, watchers.size() - 1);
      open.emplace_back(script.watch(&watchers[whose]), whose);
    }
    for (size_t i = open.size(); i-- > 0;) {
      if (!random.chance(0.25)) continue;
      script.complete(open[i].first, 0);
      ++expected[open[i].second];
      open.erase(open.begin() + static_cast<std::ptrdiff_t>(i));
    }
    script.library->look();
    CHECK_EQ(script.library->watched(), open.size());
    for (size_t w = 0; w < watchers.size(); ++w) CHECK_EQ(watchers[w].told.size(), expected[w]);
  }
}

struct Numbered final : a2a::mpi::Watcher {
  Numbered(size_t which, std::vector<size_t>& all) : number(which), order(all) {}
  void completed(const Error*) override { order.push_back(number); }
  const size_t number;
  std::vector<size_t>& order;
};

// Messages of one tag are sent when the receiver's permission has arrived. Otherwise they would overtake each other.
TEST("what is complete at once is told of in the order in which it was begun") {
  Script script;
  check::Random random(check::seed());
  std::deque<Numbered> watchers;
  std::vector<size_t> order;
  std::vector<std::pair<uintptr_t, size_t>> open;
  for (int step = 0; step < 500; ++step) {
    for (size_t i = random.in(size_t{0}, size_t{4}); i-- > 0;) {
      Numbered& watcher = watchers.emplace_back(watchers.size(), order);
      open.emplace_back(script.watch(&watcher), watcher.number);
    }
    std::vector<size_t> expected;
    std::erase_if(open, [&](const auto& one) {
      if (!random.chance(0.5)) return false;
      script.complete(one.first, 0);
      expected.push_back(one.second);
      return true;
    });
    order.clear();
    script.library->look();
    CHECK(order == expected);
  }
}

TEST("what went wrong with a request only its watcher is told") {
  Script script;
  SentFacts good, bad;
  const auto first = script.watch(&good), second = script.watch(&bad), third = script.watch(&good);
  script.watch(&good);  // not complete
  for (const auto request : {first, third}) script.complete(request, 0);
  script.complete(second, 5);
  script.library->look();
  CHECK(good.told == std::vector<std::string>{"", ""});
  if (!CHECK(bad.told.size() == 1)) return;
  CHECK(bad.told[0].ends_with("MPI_Testsome: error 5 of the script"));
  CHECK_EQ(script.library->watched(), size_t{1});
}

TEST("what is wrong with no request in particular whoever looks is told") {
  Script script;
  SentFacts watcher;
  const auto request = script.watch(&watcher);
  script.fail(3);
  CHECK_THROWS(Code::backend, "MPI_Testsome: error 3 of the script", script.library->look());
  script.fail(0);
  script.complete(request, 0);
  script.library->look();
  CHECK_EQ(watcher.told.size(), size_t{1});
}

TEST("a watcher that is gone is not told, and its requests go on") {
  Script script;
  SentFacts gone, stays;
  const auto of_gone = script.watch(&gone);
  script.watch(&stays);
  script.library->unwatch(&gone);
  CHECK_EQ(script.library->watched(), size_t{2});
  script.complete(of_gone, 5);
  script.library->look();
  CHECK_EQ(script.library->watched(), size_t{1});
  CHECK(gone.told.empty() && stays.told.empty());
}

TEST("only the watcher's own requests are cancelled") {
  Script script;
  SentFacts one, other;
  const auto first = script.watch(&one), second = script.watch(&other), third = script.watch(&one);
  script.library->cancel(&one);
  CHECK_EQ(script.cancelled(first), size_t{1});
  CHECK_EQ(script.cancelled(second), size_t{0});
  CHECK_EQ(script.cancelled(third), size_t{1});
}

}  // namespace
