// A model of src/cpp/endpoint/meeting.cc and meeting_guests.cc. Functions and fields have the names that they have
// there, so that the two can be read next to each other. meeting_search.h walks through its states.
//
// What differs: a step handles one event, where Meeting::step() handles all that have come. So events on several
// connections come in any order, as between hosts. A handshake is one step of the end that accepts, and one of the end
// that dials. A socket takes everything at once. A deadline passes only when nothing else can happen any more, or at
// any time (Scenario::hasty). One that declines reads the first proposals of a process in their order.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace meeting_model {

constexpr int kProcesses = 4, kGenerations = 4, kCalls = 4;

// The lists that calls give, by number.
enum List { ab, ba, abc, acb, a, c, bc, ac, cd, bd };
inline const std::vector<std::vector<int>> kLists{{0, 1}, {1, 0}, {0, 1, 2}, {0, 2, 1}, {0},
                                                  {2},    {1, 2}, {0, 2},    {2, 3},    {1, 3}};

enum class Code : uint8_t { none, finished, mismatch, peer_lost, timeout };
inline const char* name_of(Code code) {
  constexpr const char* kNames[] = {"none", "finished", "mismatch", "peer_lost", "timeout"};
  return kNames[static_cast<int>(code)];
}

// The rules of docs/design/meeting.md, and orders in meeting.cc. Each can be broken.
#define MEETING_RULES(X)                                                                                       \
  X(refused_is_lost, "nobody listens: peer_lost")                                                              \
  X(end_is_lost, "a connection ends without an error: peer_lost")                                              \
  X(lists_equal, "a proposal of this generation with another list: mismatch")                                  \
  X(listed, "a proposal of this generation of somebody else: mismatch")                                        \
  X(generations_equal, "a member's proposal of another generation: mismatch")                                  \
  X(strangers_wait, "a proposal of another generation of somebody else: it waits")                             \
  X(finished_goes_on, "a member that has finished this meeting may be in the next one")                        \
  X(failed_goes_on, "a member in whose eyes this meeting has failed may be in the next one")                   \
  X(attempts_count, "one that has failed in earlier attempts alone may not")                                   \
  X(waits_for_proposals, "who declines a call without a generation waits for the proposals of all")            \
  X(declines_by_number, "and says in its next proposals that it has failed in these generations")              \
  X(used_is_told, "a proposal of a generation that is used: an error")                                         \
  X(failed_is_told, "a proposal of a generation that has failed: that error")                                  \
  X(retries_disagree, "unless the member knows of it, and tries again while this meeting waits for it")        \
  X(gives_up_aloud, "who gives up sends its error")                                                            \
  X(gives_up_to, "on the connections that it has dialed")                                                      \
  X(gives_up_from, "on those that it has accepted")                                                            \
  X(lingers, "and to those who come late")                                                                     \
  X(late_proposal, "to them, too, the proposal comes before the error")                                        \
  X(fresh_connections, "a meeting that is given up ends its connections")                                      \
  X(old_guests_leave, "guests that hung up before the meeting began are not heard")                            \
  X(new_guests_stay, "guests that hang up in the meeting are heard")                                           \
  X(first_proposal_counts, "a member that comes again has given up in between: it is no part of this meeting") \
  X(last_words, "before it says peer_lost it reads what has come")                                             \
  X(strings_outlive_ends, "a string that has come counts although its connection has ended")                   \
  X(ends_come_in_any_order, "the end of one connection does not hide a string on the other")                   \
  X(both_ways, "a meeting begins when both connections to each member are there")                              \
  X(last_round, "nobody finishes before all have made their communicators")

#define NAME_OF_RULE(name, words) name,
enum class Rule { none, MEETING_RULES(NAME_OF_RULE) };
#undef NAME_OF_RULE
#define WORDS_OF_RULE(name, words) {Rule::name, words},
inline const std::vector<std::pair<Rule, std::string>> kRules{MEETING_RULES(WORDS_OF_RULE)};
#undef WORDS_OF_RULE

struct Call {
  List list = ab;
  int generation = 0;     // -1: it declines, with an invalid argument
  int may = 0;            // a set of codes: the errors that are right
  bool retry = false;     // only if this generation is not used
  bool declines = false;  // with an invalid argument
  int patience = 0;       // deadlines of less patience pass first
};

struct Bounds {
  int mortal = 0;      // a set of processes: these may be killed at any step
  int deaths = 1;      // at most
  bool hasty = false;  // deadlines pass at any time
  int rounds = 2;
  bool full = false;  // strings fill the sockets, so that no error fits behind them
};

struct Scenario {
  std::string name;
  std::vector<std::vector<Call>> scripts;  // of each process
  Bounds in = {};
};

struct Message {
  enum class Kind : uint8_t { welcome, proposal, string, refusal } kind = Kind::welcome;
  Code code = Code::none;  // of a refusal
  uint8_t nonce = 0;       // the attempt of the sender
};

struct Proposal {
  int8_t generation = -1, former = -1, list = -1;
  std::array<uint8_t, kGenerations> failed{};  // how often
  uint8_t nonce = 0;
};

// A connection, in the order in which they were dialed.
struct Connection {
  enum class Dialer : uint8_t { dialing, to, closed } dialer = Dialer::dialing;
  enum class Accepter : uint8_t { backlog, guest, from, closed } accepter = Accepter::backlog;
  uint8_t by = 0, at = 0;
  Proposal sent{};                     // by the dialer
  std::optional<Proposal> proposal{};  // that the accepter has read
  std::vector<Message> forth{}, back{};
};

struct Member {
  bool to_gone = false, from_gone = false, told = false;
  std::optional<Proposal> proposal;
  std::vector<uint8_t> strings;
};

struct Process {
  enum class Phase : uint8_t { outside, gather, rounds, linger } phase = Phase::outside;
  bool alive = true, owed = false;
  uint8_t next = 0, nonce = 0, round = 0;  // of the script; 1 + the call; of strings
  Code ended = Code::none;
  uint8_t failed_before = 0;
  std::array<Member, kProcesses> members;
  // Standing
  int8_t former = -1;
  uint8_t used = 0;
  std::array<Code, kGenerations> failed{};
  std::array<uint8_t, kGenerations> times{};  // that it has failed
  // History, for the properties alone
  std::array<Code, kCalls> outcomes{};
  uint8_t made = 0;                                                 // a set of calls: it sends the last string
  std::array<std::array<uint8_t, kProcesses>, kGenerations> met{};  // of whose strings it finished
};

struct State {
  std::vector<Process> processes;
  std::vector<Connection> connections;
  int deaths = 0;
};

struct Raised {
  Code code;
};
struct Violation {
  std::string what;
};

// One state, and what may happen in it.
class Model {
 public:
  Model(const Scenario& scenario, Rule broken, State state)
      : scenario_(scenario), broken_(broken), s_(std::move(state)) {}
  State& state() { return s_; }

  // ---- what a process does ------------------------------------------------------------------------------------------

  void connect(int p) {
    Process& me = at(p);
    me.next++;
    me.nonce = me.next;
    me.phase = Process::Phase::gather;
    me.round = 0;
    me.ended = Code::none;
    me.members = {};
    me.failed_before = generation(p) < 0 ? 0 : me.times[generation(p)];
    try {
      if (!call_of(p).declines) {
        for (const int q : others(p)) call(p, q);
      }
      for (Connection& c : s_.connections) {
        if (c.at == p && guest(c) && hung_up(c) && holds(Rule::old_guests_leave)) close_accepter(c);
      }
      if (call_of(p).declines) throw Raised{Code::mismatch};
      for (Connection& c : s_.connections) {
        if (c.at == p && guest(c) && !stays(p, c)) close_unless_from(c);
      }
      go_on(p);
    } catch (const Raised& error) {
      give_up(p, error.code);
    }
  }

  // Runs one handler of Meeting::step(), and the checks that follow in gather() and allgather().
  void step(int p, const std::function<void()>& handle) {
    try {
      handle();
      go_on(p);
    } catch (const Raised& error) {
      if (at(p).phase != Process::Phase::linger) give_up(p, error.code);
    }
    if (at(p).phase == Process::Phase::linger && !absent(p)) leave(p);
  }

  // The rest of gather() and allgather() after each step.
  void go_on(int p) {
    Process& me = at(p);
    if (me.phase == Process::Phase::gather) {
      for (const int q : others(p)) {
        if ((me.members[q].to_gone || me.members[q].from_gone) && holds(Rule::end_is_lost)) lost(p, q);
      }
      if (!std::ranges::all_of(others(p), [&](int q) { return come(p, q); })) return;
      me.phase = Process::Phase::rounds;
      send_strings(p);
    }
    while (me.phase == Process::Phase::rounds) {
      for (const int q : others(p)) {
        Member& m = me.members[q];
        const bool end = m.from_gone || (m.to_gone && !holds(Rule::ends_come_in_any_order));
        const bool empty = m.strings.empty() || !holds(Rule::strings_outlive_ends);
        if (end && empty && holds(Rule::end_is_lost)) lost(p, q);
      }
      for (const int q : others(p)) {
        if (me.members[q].strings.empty()) return;
      }
      for (const int q : others(p)) take(p, q);
      if (++me.round == rounds()) return finish(p);
      send_strings(p);
    }
  }

  bool come(int p, int q) {
    const Connection* const to = dialed(p, q);
    const bool mine = to != nullptr && to->dialer == Connection::Dialer::to;
    return at(p).members[q].proposal && (mine || !holds(Rule::both_ways));
  }

  void send_strings(int p) {
    Process& me = at(p);
    if (me.round + 1 == scenario_.in.rounds) me.made |= bit(me.nonce);
    for (const int q : others(p)) {
      if (Connection* const c = dialed(p, q)) c->forth.push_back({Message::Kind::string, Code::none, me.nonce});
    }
  }

  void take(int p, int q) {
    Member& m = at(p).members[q];
    uint8_t& met = at(p).met[generation(p)][q];
    if (at(p).round > 0 && met != m.strings.front()) throw Violation{"strings of two attempts"};
    met = m.strings.front();
    m.strings.erase(m.strings.begin());
  }

  void finish(int p) {
    Process& me = at(p);
    const int g = generation(p);
    me.met[g][p] = me.nonce;
    for (const int q : others(p)) {
      if ((at(q).made & bit(me.met[g][q])) == 0) throw Violation{"finished before all have made it"};
      if ((at(q).used & 1 << g) == 0) continue;
      if (at(q).met[g][p] == 0) throw Violation{"finished with different lists"};
      const Call& theirs = scenario_.scripts[q][at(q).met[g][q] - 1];
      if (theirs.list != call_of(p).list) throw Violation{"finished with different lists"};
      if (at(q).met[g] != me.met[g]) throw Violation{"finished with strings of different attempts"};
    }
    me.failed[g] = Code::none;
    me.times[g] = 0;
    me.used |= 1 << g;
    me.former = static_cast<int8_t>(g);
    leave(p, Code::finished);
  }

  void give_up(int p, Code error) {
    Process& me = at(p);
    me.ended = error;
    if (holds(Rule::gives_up_aloud)) {
      for (const int q : others(p)) {
        if (Connection* const c = accepted(p, q)) {
          me.members[q].told = true;
          if (holds(Rule::gives_up_from)) refuse(*c, error);
        }
        Connection* const c = dialed(p, q);
        const bool to = c != nullptr && c->dialer == Connection::Dialer::to && holds(Rule::gives_up_to);
        const bool full = scenario_.in.full && me.phase == Process::Phase::rounds;
        if (to && !full) c->forth.push_back({Message::Kind::refusal, error, me.nonce});
      }
      for (Connection& c : s_.connections) {
        if (c.at == p && guest(c) && c.proposal && refuse_if_known(p, c)) close_accepter(c);
      }
    }
    if (generation(p) >= 0) remember_failure(p, generation(p));
    outcome(p) = error;
    if (error == Code::mismatch) owe(p);
    me.phase = Process::Phase::linger;
    if (error != Code::mismatch || !absent(p)) leave(p);
  }

  bool absent(int p) {
    return holds(Rule::lingers) && std::ranges::any_of(others(p), [&](int q) {
             const Connection* const c = dialed(p, q);
             const bool dialing = c != nullptr && c->dialer == Connection::Dialer::dialing;
             const bool answers = call_of(p).declines && holds(Rule::waits_for_proposals);
             return !at(p).members[q].told && (dialing || answers);
           });
  }

  void leave(int p, Code how = Code::none) {
    Process& me = at(p);
    if (how != Code::none) outcome(p) = how;
    check_outcome(p);
    for (Connection& c : s_.connections) {
      const bool keeps = outcome(p) != Code::finished && !holds(Rule::fresh_connections);
      if (c.by == p && !keeps) c.dialer = Connection::Dialer::closed;
      if (c.at == p && c.accepter == Connection::Accepter::from) {
        keeps ? void(c.accepter = Connection::Accepter::guest) : close_accepter(c);
      }
    }
    me.phase = Process::Phase::outside;
    me.owed = false;
    me.ended = Code::none;
    me.failed_before = 0;
    me.members = {};
    me.round = 0;
    const auto& script = scenario_.scripts[p];
    while (me.next < script.size() && script[me.next].retry && (me.used & 1 << script[me.next].generation)) me.next++;
  }

  [[noreturn]] void lost(int p, int q) {
    if (holds(Rule::last_words)) {
      Connection* const to = dialed(p, q);
      while (to != nullptr && to->dialer == Connection::Dialer::to && read(to->back)) continue;
      Connection* const from = accepted(p, q);
      while (from != nullptr && read(from->forth)) continue;
    }
    throw Raised{Code::peer_lost};
  }

  void kill(int p) {
    Process dead;
    dead.alive = false;
    dead.used = at(p).used;
    dead.outcomes = at(p).outcomes;
    dead.made = at(p).made;
    dead.met = at(p).met;
    at(p) = dead;
    s_.deaths++;
    for (Connection& c : s_.connections) {
      if (c.by == p) c.dialer = Connection::Dialer::closed;
      if (c.at == p) close_accepter(c);
    }
  }

  // ---- what it dials ------------------------------------------------------------------------------------------------

  void call(int p, int q) {
    if (at(q).alive) {
      s_.connections.push_back({.by = static_cast<uint8_t>(p), .at = static_cast<uint8_t>(q)});
    } else if (at(p).ended == Code::none && holds(Rule::refused_is_lost)) {
      lost(p, q);
    }
  }

  void go_on_dialing(int p, int q) {
    Connection& c = *dialed(p, q);
    if (c.back.empty()) {
      c.dialer = Connection::Dialer::closed;
      return call(p, q);
    }
    if (read(c.back)->kind != Message::Kind::welcome) throw Violation{"no welcome"};
    c.dialer = Connection::Dialer::to;
    const Code ended = at(p).ended;
    if (ended == Code::none || holds(Rule::late_proposal)) propose(p, c);
    if (ended != Code::none) c.forth.push_back({Message::Kind::refusal, ended, at(p).nonce});
  }

  void propose(int p, Connection& c) {
    c.sent = {static_cast<int8_t>(generation(p)), at(p).former, static_cast<int8_t>(call_of(p).list), at(p).times,
              at(p).nonce};
    if (generation(p) >= 0) c.sent.failed[generation(p)] = at(p).failed_before;
    c.forth.push_back({Message::Kind::proposal, Code::none, at(p).nonce});
  }

  void watch(int p, int q) {
    Connection& c = *dialed(p, q);
    while (read(c.back)) continue;
    if (c.accepter == Connection::Accepter::closed) at(p).members[q].to_gone = true;
  }

  // ---- what others dial ---------------------------------------------------------------------------------------------

  void accept(Connection& c) {
    if (c.dialer == Connection::Dialer::closed) return close_accepter(c);
    c.accepter = Connection::Accepter::guest;
    c.back.push_back({});
  }

  void receive(int p, int q) {
    Connection& c = *accepted(p, q);
    Member& m = at(p).members[q];
    while (const auto message = read(c.forth)) m.strings.push_back(message->nonce);
    if (m.strings.size() > 2) throw Violation{"a member is ahead by two rounds"};
    if (c.dialer == Connection::Dialer::closed) m.from_gone = true;
  }

  void receive_guest(int p, Connection& c) {
    if (c.forth.empty() || c.forth.front().kind == Message::Kind::refusal) return close_accepter(c);
    if (c.forth.front().kind != Message::Kind::proposal) throw Violation{"a string before the proposal"};
    c.forth.erase(c.forth.begin());
    c.proposal = c.sent;
    if (!stays(p, c)) close_unless_from(c);
  }

  bool stays(int p, Connection& c) {
    if (!c.proposal) return true;
    if (hung_up(c) && !holds(Rule::new_guests_stay)) return false;
    const Proposal theirs = *c.proposal;
    const int q = c.by, g = generation(p);
    if (refuse_if_known(p, c)) return false;
    const bool member = std::ranges::count(others(p), q) != 0;
    Member& m = at(p).members[q];
    if (theirs.generation == g) {
      if (!member && !holds(Rule::listed)) return true;
      if (!member || (theirs.list != call_of(p).list && holds(Rule::lists_equal))) disagree(p, c);
      if (m.proposal && holds(Rule::first_proposal_counts)) return true;
      if (Connection* const old = accepted(p, q)) close_accepter(*old);
      c.accepter = Connection::Accepter::from;
      m.proposal = theirs;
      receive(p, q);
      return false;
    }
    if (!misses(p, c)) return true;
    if (!holds(Rule::generations_equal)) return true;
    disagree(p, c);
  }

  bool misses(int p, const Connection& c) {
    const Proposal theirs = *c.proposal;
    const int g = generation(p);
    if (std::ranges::count(others(p), c.by) == 0) return !holds(Rule::strangers_wait);
    if ((theirs.former == g || at(p).members[c.by].proposal) && holds(Rule::finished_goes_on)) return false;
    const int before = holds(Rule::attempts_count) ? at(p).failed_before : 0;
    return g >= 0 && (theirs.failed[g] <= before || !holds(Rule::failed_goes_on));
  }

  [[noreturn]] void disagree(int p, Connection& c) {
    refuse(c, Code::mismatch);
    close_accepter(c);
    at(p).members[c.by].told = true;
    if (waits(c.by) && at(c.by).nonce == c.proposal->nonce) at(c.by).owed = true;
    throw Raised{Code::mismatch};
  }

  bool concerns(int p, const Connection& c) {
    if (generation(p) >= 0) return c.proposal->generation == generation(p);
    return std::ranges::count(others(p), c.by) != 0 && !at(p).members[c.by].told;
  }

  void remember_failure(int p, int g) {
    at(p).failed[g] = at(p).ended;
    at(p).times[g]++;
  }

  bool refuse_if_known(int p, Connection& c) {
    const int theirs = c.proposal->generation;
    if (at(p).ended != Code::none && concerns(p, c)) {
      at(p).members[c.by].told = true;
      if (generation(p) < 0 && holds(Rule::declines_by_number)) remember_failure(p, theirs);
      return refuse(c, at(p).ended), true;
    }
    if (theirs == generation(p)) return false;
    if (const Code failed = at(p).failed[theirs]; failed != Code::none && holds(Rule::failed_is_told)) {
      if (c.proposal->failed[theirs] >= at(p).times[theirs] && misses(p, c)) {  // it tries again
        at(p).owed = true;
        if (holds(Rule::retries_disagree)) return false;
      }
      return refuse(c, failed), true;
    }
    if ((at(p).used & 1 << theirs) == 0 || !holds(Rule::used_is_told)) return false;
    return refuse(c, Code::mismatch), true;
  }

  // ---- what holds ---------------------------------------------------------------------------------------------------

  void check_outcome(int p) {
    const Code code = outcome(p);
    const Call& call = call_of(p);
    const std::string of = "process " + std::to_string(p) + ", call " + std::to_string(at(p).nonce) + ": ";
    if (code == Code::finished || call.declines) return;
    if (code == Code::peer_lost && s_.deaths == 0) throw Violation{of + "peer_lost although all live"};
    if (at(p).owed && code == Code::timeout && !scenario_.in.hasty) throw Violation{of + "not told of a disagreement"};
    if ((call.may & bit(static_cast<int>(code))) == 0) throw Violation{of + "a false " + name_of(code)};
  }

  // Nothing can happen but that the deadline of p passes. Somebody must be missing, and alive.
  void check_wait(int p) {
    const auto agrees = [&](int q) {
      return waits(q) && call_of(q).list == call_of(p).list && generation(q) == generation(p);
    };
    const std::string of = "process " + std::to_string(p) + " ";
    for (const int q : others(p)) {
      if (!at(q).alive) throw Violation{of + "waits for a dead one"};
      if (at(q).phase == Process::Phase::outside || agrees(q)) continue;
      const bool same = generation(q) == generation(p);
      if (same || std::ranges::count(others(q), p) != 0) throw Violation{of + "waits for one that disagrees"};
      if ((at(q).used & 1 << generation(p)) != 0) throw Violation{of + "waits for one that has used its generation"};
      if (at(q).failed[generation(p)] != Code::none) throw Violation{of + "waits for one that has failed in it"};
    }
    if (std::ranges::all_of(others(p), agrees)) throw Violation{of + "waits although all have come"};
  }

  // A process of its list that is in connect() with this generation now hears of the disagreement; and one that has its
  // proposal for another generation, and waits for it.
  void owe(int p) {
    for (const int q : others(p)) {
      if (!waits(q)) continue;
      const int g = generation(q);
      const bool listed = std::ranges::count(others(q), p) != 0 && !at(q).members[p].proposal;
      const bool left = at(p).times[g] > at(q).failed_before;
      const bool read = std::ranges::any_of(s_.connections, [&](const Connection& c) {
        return c.by == p && c.at == q && guest(c) && c.proposal && c.sent.nonce == at(p).nonce;
      });
      const bool asks = generation(p) < 0 || (read && !left);
      if (g == generation(p) || (listed && asks)) at(q).owed = true;
    }
  }

  // ---- words --------------------------------------------------------------------------------------------------------

  Process& at(int p) { return s_.processes[p]; }
  bool waits(int p) { return at(p).phase == Process::Phase::gather || at(p).phase == Process::Phase::rounds; }
  const Call& call_of(int p) { return scenario_.scripts[p][at(p).nonce - 1]; }
  int generation(int p) { return call_of(p).generation; }
  Code& outcome(int p) { return at(p).outcomes[at(p).nonce - 1]; }
  std::vector<int> others(int p) {
    std::vector<int> all = kLists[call_of(p).list];
    std::erase(all, p);
    return all;
  }
  bool holds(Rule rule) const { return broken_ != rule; }
  int rounds() const { return scenario_.in.rounds - (holds(Rule::last_round) ? 0 : 1); }
  static int bit(int number) { return 1 << number; }
  static bool guest(const Connection& c) { return c.accepter == Connection::Accepter::guest; }
  static bool hung_up(const Connection& c) { return c.dialer == Connection::Dialer::closed; }
  static void close_accepter(Connection& c) { c.accepter = Connection::Accepter::closed; }
  static void close_unless_from(Connection& c) {
    if (guest(c)) close_accepter(c);
  }
  static void refuse(Connection& c, Code code) { c.back.push_back({Message::Kind::refusal, code, 0}); }
  static std::optional<Message> read(std::vector<Message>& messages) {
    if (messages.empty()) return std::nullopt;
    const Message first = messages.front();
    messages.erase(messages.begin());
    if (first.kind == Message::Kind::refusal) throw Raised{first.code};
    return first;
  }
  // The connection that p has dialed to q, or accepted from it, in this meeting.
  Connection* dialed(int p, int q) {
    return find([&](const Connection& c) { return c.by == p && c.at == q && c.dialer != Connection::Dialer::closed; });
  }
  Connection* accepted(int p, int q) {
    return find(
        [&](const Connection& c) { return c.by == q && c.at == p && c.accepter == Connection::Accepter::from; });
  }
  template <class Which>
  Connection* find(Which which) {
    const auto found = std::ranges::find_if(s_.connections.rbegin(), s_.connections.rend(), which);
    return found == s_.connections.rend() ? nullptr : &*found;
  }

 private:
  const Scenario& scenario_;
  const Rule broken_;
  State s_;
};

}  // namespace meeting_model
