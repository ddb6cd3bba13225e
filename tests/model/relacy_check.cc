// The programs of programs.h under Relacy: random executions are all good, and with any memory order of the protocol
// weakened, or any of the programs' deliberate mistakes made, one is not.
#include <map>
#include <tuple>

#include "../cpp/check.h"
#include "checker_relacy.h"
#include "programs.h"

namespace {

using model::Mutation;
using model::Order;
using model::Site;

uint64_t executions() { return std::stoull(check::option("executions", "20000")); }

std::map<std::pair<Site, Order>, bool>& caught() {
  static std::map<std::pair<Site, Order>, bool> all;
  return all;
}

template <class Program>
void check_program() {
  model::sites = {};
  std::cout << "  " << Program::kName << std::endl;
  if (!CHECK(model::holds<Program>(executions()))) std::cerr << "  " << Program::kName << '\n';
  for (int variant = 1; variant <= Program::kVariants; ++variant) {
    const check::Note note("variant", static_cast<uint64_t>(variant));
    model::chosen_variant = variant;
    if (!CHECK(!model::holds<Program>(executions()))) std::cerr << "  of " << Program::kName << '\n';
  }
  model::chosen_variant = 0;
  const model::Sites found = model::sites;
  for (size_t i = 0; i < found.count; ++i) {
    const Site& site = found.all[i];
    const Mutation mutant{site, Order::relaxed};
    model::mutation = &mutant;
    bool& noticed = caught()[{site, mutant.to}];
    noticed = noticed || !model::holds<Program>(executions());
  }
  model::mutation = nullptr;
}

template <class... Programs>
void check_programs(std::tuple<Programs...>*) {
  (check_program<Programs>(), ...);
}

TEST("Relacy finds nothing in the protocol, and every mutant of it") {
  using namespace programs;
  check_programs(static_cast<std::tuple<Publish, Reuse, Pull, AskForChunks, Backlog, ChunksToAndFro, Sleep<1>,
                                        AbortUnderCopy<false>, AbortUnderCopy<true>, AbortBetweenProcesses, Leave, View,
                                        TakeBack, Compare, Pass, Propose, Packets, Fragments, FirstPacket>*>(nullptr));
  for (const auto& [mutant, noticed] : caught()) {
    const check::Note note("line of protocol.h", mutant.first.line);
    CHECK(noticed);
  }
  std::cout << "  " << caught().size() << " mutants" << std::endl;
}

}  // namespace
