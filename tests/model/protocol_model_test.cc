// The protocol holds in every execution of the programs in programs.h; and with any of its memory orders weakened, any
// of its fences removed, or any of the programs' deliberate mistakes made, one of them breaks.
#include <map>
#include <tuple>

#include "../cpp/check.h"
#include "checker.h"
#include "programs.h"

namespace {

using model::Mutation;
using model::Options;
using model::Order;
using model::Report;
using model::Site;

const char* name_of(Order order) {
  switch (order) {
    case Order::relaxed:
      return "relaxed";
    case Order::consume:
      return "consume";
    case Order::acquire:
      return "acquire";
    case Order::release:
      return "release";
    case Order::acq_rel:
      return "acq_rel";
    case Order::seq_cst:
      return "seq_cst";
  }
  return "";
}

std::string name_of(const Mutation& mutation) {
  return mutation.site.function + " (line " + std::to_string(mutation.site.line) +
         "): " + name_of(mutation.site.order) + (mutation.site.fence ? " fence -> " : " -> ") +
         (mutation.site.fence && mutation.to == Order::relaxed ? "none" : name_of(mutation.to));
}

std::vector<Mutation> weaker(const Site& site) {
  std::vector<Mutation> all{{site, Order::relaxed}};
  if (site.fence && site.order == Order::seq_cst) all.push_back({site, Order::acq_rel});
  return all;
}

// By mutant, how it was noticed.
std::map<std::string, std::string>& caught() {
  static std::map<std::string, std::string> all;
  return all;
}

template <class Program>
Report explore(Options options = {}) {
  if constexpr (requires { Program::kPreemptions; }) options.preemptions = Program::kPreemptions;
  return model::explore<Program>(options);
}

template <class Program>
void check_program() {
  const Report right = explore<Program>();
  std::cout << "  " << Program::kName << ": " << right.executions << " executions" << std::endl;
  if (!CHECK_EQ(right.violation, "")) {
    for (const std::string& line : right.trace) std::cerr << "  " << line << '\n';
    return;
  }
  CHECK(right.executions > 1);
  for (int variant = 1; variant <= Program::kVariants; ++variant) {
    const check::Note note("variant", static_cast<uint64_t>(variant));
    const Report wrong = explore<Program>({.variant = variant});
    if (!CHECK(!wrong.violation.empty())) std::cerr << "  of " << Program::kName << '\n';
  }
  for (const Site& site : right.sites) {
    for (const Mutation& mutation : weaker(site)) {
      std::string& how = caught()[name_of(mutation)];
      if (how.empty()) how = explore<Program>({.mutation = &mutation}).violation;
    }
  }
}

template <class... Programs>
void check_programs(std::tuple<Programs...>*) {
  (check_program<Programs>(), ...);
}

TEST("the protocol holds, and each mutant of it breaks") {
  using namespace programs;
  check_programs(
      static_cast<std::tuple<Publish, Reuse, Pull, AskForChunks, Backlog, ChunksToAndFro, Sleep<1>, Sleep<2>,
                             AbortUnderCopy<false>, AbortUnderCopy<true>, AbortBetweenProcesses, Leave, Death, View,
                             TakeBack, Compare, Pass, Propose, Packets, Fragments, FirstPacket>*>(nullptr));
  size_t survivors = 0;
  for (const auto& [mutant, how] : caught()) {
    std::cout << "  " << mutant << ": " << (how.empty() ? "NOT NOTICED" : how) << '\n';
    survivors += how.empty() ? 1 : 0;
  }
  CHECK(caught().size() >= 31);
  CHECK_EQ(survivors, 0);
}

}  // namespace
