// The properties of the meeting hold in every state of the scenarios; and with any of its rules broken, one of them
// fails. `meeting_model_test --trace=TEXT` shows how, for the rules that have this text.
#include <iostream>
#include <map>

#include "../cpp/check.h"
#include "meeting_search.h"

namespace {

using namespace meeting_model;

constexpr int set_of(Code code) { return 1 << static_cast<int>(code); }
constexpr int kDeath = set_of(Code::peer_lost), kWrong = set_of(Code::mismatch), kLate = set_of(Code::timeout);
constexpr int kAny = kDeath | kWrong | kLate;

Call meets(List list, int generation, int may = 0, int patience = 0) {
  return {.list = list, .generation = generation, .may = may, .patience = patience};
}
Call again(List list, int generation, int may = 0, int patience = 0) {
  return {.list = list, .generation = generation, .may = may, .retry = true, .patience = patience};
}
Call declines(List list, int generation = -1) {
  return {.list = list, .generation = generation, .may = kWrong, .declines = true};
}

// Each process has a line. An error that its call may not raise fails; the model says for itself when peer_lost, a
// missing mismatch or a deadline is wrong.
std::vector<Scenario> scenarios() {
  const int A = 1, B = 2, C = 4;
  return {
      {"two come, three times",
       {{meets(ab, 0), meets(ab, 1), meets(ba, 2)}, {meets(ab, 0), meets(ab, 1), meets(ba, 2)}}},
      {"three come", {{meets(abc, 0)}, {meets(abc, 0)}, {meets(abc, 0)}}},
      {"three come twice: some are in the next meeting while others finish this one",
       {{meets(abc, 0), meets(abc, 1)}, {meets(abc, 0), meets(abc, 1)}, {meets(abc, 0), meets(abc, 1)}},
       {.rounds = 1}},
      {"a split: three, then two and one",
       {{meets(abc, 0), meets(ab, 1)}, {meets(abc, 0), meets(ab, 1)}, {meets(abc, 0), meets(c, 1)}}},
      {"a merge: two and one, then three",
       {{meets(ab, 0), meets(abc, 1)}, {meets(ab, 0), meets(abc, 1)}, {meets(c, 0), meets(abc, 1)}}},
      {"groups that overlap: each has the next meeting of another in its way",
       {{meets(ab, 0), meets(ac, 1)}, {meets(ab, 0), meets(bc, 2)}, {meets(ac, 1), meets(bc, 2)}}},
      {"each waits for the next one",
       {{meets(ab, 0, kLate), meets(ac, 2, kAny)},
        {meets(bc, 1, kLate), meets(ab, 0, kAny)},
        {meets(ac, 2, kLate), meets(bc, 1, kAny)}}},
      {"one does not come", {{meets(ab, 0, kLate)}, {}}},
      {"one of two dies", {{meets(ab, 0, kDeath)}, {meets(ab, 0)}}, {.mortal = B}},
      {"one of three dies", {{meets(abc, 0, kDeath)}, {meets(abc, 0, kDeath)}, {meets(abc, 0)}}, {.mortal = C}},
      {"two of three die",
       {{meets(abc, 0, kDeath)}, {meets(abc, 0, kDeath)}, {meets(abc, 0, kDeath)}},
       {.mortal = A | B | C, .deaths = 2, .rounds = 1}},
      {"one of three dies, and the others go on without it",
       {{meets(abc, 0, kDeath), meets(ab, 1)}, {meets(abc, 0, kDeath), meets(ab, 1)}, {meets(abc, 0)}},
       {.mortal = C, .rounds = 1}},
      {"one of three dies in the second meeting",
       {{meets(ab, 0), meets(abc, 1, kDeath)}, {meets(ab, 0), meets(abc, 1, kDeath)}, {meets(abc, 1)}},
       {.mortal = C, .rounds = 1}},
      {"a retry", {{meets(ab, 0, kLate), again(ab, 0)}, {meets(ab, 0)}}},
      {"retries after deadlines that pass at any time",
       {{meets(ab, 0, kAny), again(ab, 0, kAny)}, {meets(ab, 0, kAny), again(ab, 0, kAny)}},
       {.hasty = true}},
      {"three, whose deadlines pass at any time",
       {{meets(abc, 0, kLate)}, {meets(abc, 0, kLate)}, {meets(abc, 0, kLate)}},
       {.hasty = true, .rounds = 1}},
      {"one gives up, and goes on to the next meeting",
       {{meets(abc, 0, kLate), meets(ab, 1)}, {meets(abc, 0, kLate), meets(ab, 1)}, {}},
       {.rounds = 1}},
      {"a retry, to whose first attempt nobody listened",
       {{meets(ab, 0, kLate), again(ab, 0, 0, 2)}, {meets(bc, 1, kLate, 1), meets(ab, 0)}, {}}},
      {"two pairs change partners",
       {{meets(ab, 0), meets(ac, 1)},
        {meets(ab, 0), meets(bd, 1)},
        {meets(cd, 0), meets(ac, 1)},
        {meets(cd, 0), meets(bd, 1)}},
       {.rounds = 1}},
      {"long strings, and deadlines that pass at any time",
       {{meets(abc, 0, kLate)}, {meets(abc, 0, kLate)}, {meets(abc, 0, kLate)}},
       {.hasty = true, .rounds = 1, .full = true}},
      {"one that is not listed", {{meets(ac, 0, kAny)}, {meets(ab, 0, kAny)}, {}}},
      {"lists in another order", {{meets(ab, 0, kWrong)}, {meets(ba, 0, kWrong)}}},
      {"lists in another order, of three",
       {{meets(abc, 0, kAny)}, {meets(acb, 0, kAny)}, {meets(abc, 0, kAny)}},
       {.rounds = 1}},
      {"a part of the list", {{meets(ab, 0, kWrong)}, {meets(abc, 0, kAny)}, {meets(abc, 0, kAny)}}, {.rounds = 1}},
      {"lists that overlap", {{meets(ab, 0, kAny)}, {meets(abc, 0, kAny)}, {meets(bc, 0, kAny)}}, {.rounds = 1}},
      {"lists that disagree, and one dies",
       {{meets(abc, 0, kAny)}, {meets(acb, 0, kAny)}, {meets(abc, 0, kAny)}},
       {.mortal = C, .rounds = 1}},
      {"one of three dies, and deadlines pass at any time",
       {{meets(abc, 0, kAny), meets(ab, 1, kLate)}, {meets(abc, 0, kAny), meets(ab, 1, kLate)}, {meets(abc, 0, kAny)}},
       {.mortal = C, .hasty = true, .rounds = 1}},
      {"generations that disagree", {{meets(ab, 0, kAny)}, {meets(ab, 1, kAny)}}},
      {"generations that disagree, of three",
       {{meets(abc, 0, kAny)}, {meets(abc, 1, kAny)}, {meets(abc, 0, kAny)}},
       {.rounds = 1}},
      {"lists that disagree, and then agree", {{meets(ab, 0, kAny), meets(ab, 1)}, {meets(ba, 0, kAny), meets(ab, 1)}}},
      {"one declines", {{declines(abc, 0)}, {meets(abc, 0, kAny)}, {meets(abc, 0, kAny)}}, {.rounds = 1}},
      {"one declines, and goes on", {{declines(ab, 0), meets(ab, 1)}, {meets(ab, 0, kAny), meets(ab, 1)}}},
      {"one declines no generation", {{declines(abc)}, {meets(abc, 0, kAny)}, {meets(abc, 0, kAny)}}, {.rounds = 1}},
      {"one of three declines no generation, and all go on",
       {{declines(abc), meets(abc, 1)}, {meets(abc, 0, kAny), meets(abc, 1)}, {meets(abc, 0, kAny), meets(abc, 1)}},
       {.rounds = 1}},
      {"one declines no generation, and goes on", {{declines(ab), meets(ab, 1)}, {meets(ab, 0, kAny), meets(ab, 1)}}},
      {"one declines no generation, then the other does",
       {{declines(ab), meets(ab, 1, kAny)}, {meets(ab, 0, kAny), declines(ab)}}},
      {"a retry, beside one that is in the next meeting",
       {{meets(ab, 0, kWrong), again(ab, 0, kAny)}, {meets(ba, 0, kWrong), meets(ab, 1, kAny)}}},
      {"a retry, beside one whose next meeting fails",
       {{meets(ab, 0, kWrong), again(ab, 0, kAny)}, {meets(ba, 0, kWrong), meets(abc, 1, kAny)}, {meets(acb, 1, kAny)}},
       {.rounds = 1}},
      {"a retry, which one declines",
       {{meets(ab, 0, kWrong), again(ab, 0, kAny)}, {meets(ba, 0, kWrong), declines(ab)}}},
      {"retries, which may cross",
       {{meets(ab, 0, kAny), again(ab, 0, kAny)}, {meets(ba, 0, kAny), again(ab, 0, kAny)}},
       {.hasty = true}},
      {"a generation that one has used", {{meets(a, 0, kAny), meets(ac, 1, kLate)}, {meets(ab, 0, kAny)}, {}}},
  };
}

void print(const Report& report) {
  for (const std::string& line : report.trace) std::cout << "    " << line << '\n';
}

TEST("the properties hold, and with any rule broken one of them fails") {
  std::multimap<size_t, Scenario> by_size;
  for (const Scenario& scenario : scenarios()) {
    const Report report = explore(scenario);
    std::cout << "  " << scenario.name << ": " << report.states << " states" << std::endl;
    if (!CHECK_EQ(report.violation, "")) print(report);
    by_size.emplace(report.states, scenario);
  }
  const std::string shown = check::option("trace", "");
  for (const auto& [rule, words] : kRules) {
    std::string how;
    for (const auto& [states, scenario] : by_size) {
      const Report report = explore(scenario, rule);
      if (report.violation.empty()) continue;
      how = scenario.name + ": " + report.violation;
      if (words.find(shown) != std::string::npos && !shown.empty()) print(report);
      break;
    }
    std::cout << "  without '" << words << "': " << (how.empty() ? "NOT NOTICED" : how) << std::endl;
    CHECK(!how.empty());
  }
}

}  // namespace
