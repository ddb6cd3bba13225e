// A breadth-first search through all states of meeting_model.h.
#pragma once

#include <algorithm>
#include <deque>
#include <sstream>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "meeting_model.h"

namespace meeting_model {

struct Report {
  size_t states = 0;
  std::string violation;           // "" if none
  std::vector<std::string> trace;  // a shortest way there
};

inline std::string key_of(const State& s) {
  std::string key;
  const auto add = [&](auto... values) { (key.push_back(static_cast<char>(values)), ...); };
  const auto add_proposal = [&](const Proposal& p) {
    add(p.generation, p.former, p.list, p.nonce);
    for (const uint8_t times : p.failed) add(times);
  };
  add(s.deaths);
  for (const Process& p : s.processes) {
    add(p.phase, p.alive, p.owed, p.next, p.nonce, p.round, p.ended, p.former, p.used, p.made, p.failed_before);
    for (const Code code : p.failed) add(code);
    for (const uint8_t times : p.times) add(times);
    for (const Code code : p.outcomes) add(code);
    for (const auto& met : p.met) {
      for (const uint8_t nonce : met) add(nonce);
    }
    for (const Member& m : p.members) {
      add(m.to_gone, m.from_gone, m.told, m.strings.size(), m.proposal.has_value());
      for (const uint8_t nonce : m.strings) add(nonce);
      if (m.proposal) add_proposal(*m.proposal);
    }
  }
  for (const Connection& c : s.connections) {
    add(c.by, c.at, c.dialer, c.accepter, c.proposal.has_value(), c.forth.size(), c.back.size());
    add_proposal(c.sent);
    for (const auto* messages : {&c.forth, &c.back}) {
      for (const Message& m : *messages) add(m.kind, m.code, m.nonce);
    }
  }
  return key;
}

// Forgets what nobody can see any more, and puts connections of one pair in order.
inline void tidy(State& s) {
  for (Connection& c : s.connections) {
    if (c.accepter == Connection::Accepter::closed) c.forth.clear();
    if (c.dialer == Connection::Dialer::closed) c.back.clear();
  }
  std::erase_if(s.connections, [](const Connection& c) {
    return c.dialer == Connection::Dialer::closed &&
           (c.accepter == Connection::Accepter::closed || c.accepter == Connection::Accepter::backlog);
  });
  std::ranges::stable_sort(s.connections, {}, [](const Connection& c) { return std::pair(c.by, c.at); });
}

struct Step {
  const char* what;
  int p, other;  // the process that does it; another process, or a connection
};

// Returns what may happen. Deadlines are apart.
inline void list_steps(Model& model, const Scenario& scenario, std::vector<Step>& steps, std::vector<Step>& late) {
  State& s = model.state();
  for (int p = 0; p < static_cast<int>(s.processes.size()); ++p) {
    const Process& me = s.processes[p];
    if (!me.alive) continue;
    if ((scenario.in.mortal & 1 << p) != 0 && s.deaths < scenario.in.deaths) steps.push_back({"kill", p, p});
    if (me.phase == Process::Phase::outside) {
      if (me.next < scenario.scripts[p].size()) steps.push_back({"connect", p, p});
      continue;
    }
    for (const int q : model.others(p)) {
      if (const Connection* const c = model.dialed(p, q)) {
        const bool end = c->accepter == Connection::Accepter::closed;
        if (c->dialer == Connection::Dialer::dialing) {
          if (end || !c->back.empty()) steps.push_back({"go_on_dialing", p, q});
        } else if (!c->back.empty() || (end && !me.members[q].to_gone)) {
          steps.push_back({"watch", p, q});
        }
      }
      const Connection* const c = model.accepted(p, q);
      if (c && (!c->forth.empty() || (Model::hung_up(*c) && !me.members[q].from_gone))) {
        steps.push_back({"receive", p, q});
      }
    }
    for (size_t i = 0; i < s.connections.size(); ++i) {
      const Connection& c = s.connections[i];
      if (c.at != p) continue;
      const bool news = !c.proposal && (!c.forth.empty() || Model::hung_up(c));
      const auto earlier = [&](const Connection& o) {
        return &o < &c && o.by == c.by && o.at == p && Model::guest(o) && !o.proposal;
      };
      if (model.generation(p) < 0 && std::ranges::any_of(s.connections, earlier)) continue;
      if (Model::guest(c) && news) steps.push_back({"receive_guest", p, static_cast<int>(i)});
      if (c.accepter == Connection::Accepter::backlog) steps.push_back({"accept", p, static_cast<int>(i)});
    }
    late.push_back({me.phase == Process::Phase::linger ? "linger ends" : "deadline", p, p});
  }
}

inline void take(Model& model, const Step& step, bool hasty) {
  const std::string_view what = step.what;
  const int p = step.p;
  if (what == "kill") return model.kill(p);
  if (what == "connect") {
    model.connect(p);
  } else if (what == "linger ends") {
    model.leave(p);
  } else if (what == "deadline") {
    if (!hasty) model.check_wait(p);
    model.give_up(p, Code::timeout);
  } else {
    model.step(p, [&] {
      if (what == "go_on_dialing") model.go_on_dialing(p, step.other);
      if (what == "watch") model.watch(p, step.other);
      if (what == "receive") model.receive(p, step.other);
      if (what == "receive_guest") model.receive_guest(p, model.state().connections[step.other]);
      if (what == "accept") model.accept(model.state().connections[step.other]);
    });
  }
}

// A line of a trace.
inline std::string describe(const Step& step, const State& before, const State& after) {
  const bool connection = std::string_view(step.what) == "accept" || std::string_view(step.what) == "receive_guest";
  const int other = connection ? before.connections[step.other].by : step.other;
  std::ostringstream line;
  line << step.p << ": " << step.what;
  if (other != step.p) line << ' ' << other;
  for (size_t i = 0; i < kCalls; ++i) {
    const Code was = before.processes[step.p].outcomes[i], is = after.processes[step.p].outcomes[i];
    if (was != is) line << "; call " << i + 1 << ": " << name_of(is);
  }
  return line.str();
}

// Goes through all states, the nearest first, until a property fails.
inline Report explore(const Scenario& scenario, Rule broken = Rule::none) {
  struct Way {
    uint32_t from;
    Step step;
  };
  std::vector<Way> ways;
  std::unordered_set<std::string> seen;
  std::deque<State> waiting;
  State first;
  first.processes.resize(scenario.scripts.size());
  seen.insert(key_of(first));
  waiting.push_back(first);
  ways.push_back({0, {"", 0, 0}});
  Report report;
  for (uint32_t now = 0; !waiting.empty(); ++now, waiting.pop_front()) {
    const State& state = waiting.front();
    std::vector<Step> steps, late;
    Model looks(scenario, broken, state);
    list_steps(looks, scenario, steps, late);
    const auto real = [](const Step& step) { return std::string_view(step.what) != "kill"; };
    if (scenario.in.hasty || std::ranges::none_of(steps, real)) {
      // Those who linger do so for a much shorter time than deadlines take.
      const auto lingers = [](const Step& step) { return std::string_view(step.what) == "linger ends"; };
      const auto patience = [&](const Step& step) { return lingers(step) ? -1 : looks.call_of(step.p).patience; };
      if (!scenario.in.hasty && !late.empty()) {
        const int least = patience(*std::ranges::min_element(late, {}, patience));
        std::erase_if(late, [&](const Step& step) { return patience(step) > least; });
      }
      steps.insert(steps.end(), late.begin(), late.end());
    }
    for (const Step& step : steps) {
      Model next(scenario, broken, state);
      try {
        take(next, step, scenario.in.hasty);
      } catch (const Violation& violation) {
        report.violation = violation.what;
        ways.push_back({now, step});
        std::vector<Step> path;
        for (uint32_t at = static_cast<uint32_t>(ways.size()) - 1; at != 0; at = ways[at].from) {
          path.insert(path.begin(), ways[at].step);
        }
        Model replay(scenario, broken, first);
        for (const Step& taken : path) {
          const State before = replay.state();
          try {
            take(replay, taken, scenario.in.hasty);
          } catch (const Violation&) {
          }
          report.trace.push_back(describe(taken, before, replay.state()));
          tidy(replay.state());
        }
        report.states = seen.size();
        return report;
      }
      tidy(next.state());
      if (!seen.insert(key_of(next.state())).second) continue;
      ways.push_back({now, step});
      waiting.push_back(std::move(next.state()));
    }
  }
  report.states = seen.size();
  return report;
}

}  // namespace meeting_model
