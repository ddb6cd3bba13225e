// Runs a small concurrent program through every interleaving of its threads and every value that the C++ memory model
// lets a load return, and says whether any of these executions breaks a requirement.
//
//   struct Program {                      // made anew for each execution
//     static constexpr int kThreads = 2;
//     model::Atomics::atomic<int> flag{};
//     model::Atomics::plain<int> data;    // an access that races is a violation
//     static constexpr int kMortal = 1;   // may be left out: a thread that may die before each of its steps
//     void run(int thread) { ... model::require(flag.load(std::memory_order_acquire) == 0, "..."); }
//   };
//   const model::Report report = model::explore<Program>();
//
// How memory is modelled: each atomic keeps all values that were ever stored in it. A thread's view says how old a
// value it may still read there; a store with release carries its thread's view along, a load with acquire takes it
// over, and fences do so for the relaxed accesses around them. Sequentially consistent fences share one view. Stores to
// one atomic are ordered as they are executed, so that effects which need two concurrent writers of one word, and loads
// of values that are stored later, are not explored. The protocol has one writer for each word but the doorbell.
//
// How the executions are explored: depth first. An execution is made of choices (which thread goes on, which value a
// load returns); the next one repeats the choices of the last but takes another one at its end.
#pragma once

#include <ucontext.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <set>
#include <source_location>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace model {

using Order = std::memory_order;

constexpr int kMostThreads = 4;
constexpr size_t kMostPlaces = 96;

// A line of the code under test that asks for a memory order: what a mutant weakens.
struct Site {
  std::string function;
  uint32_t line = 0, column = 0;
  bool fence = false;
  Order order = Order::relaxed;
  auto operator<=>(const Site&) const = default;
};

// Weakens one site to an order; a fence that is relaxed is none.
struct Mutation {
  Site site;
  Order to = Order::relaxed;
};

struct Options {
  int preemptions = 1000;  // most of them in one execution: threads that are interrupted although they could go on
  uint64_t executions = 20000000;  // more are a failure: then the program is too large
  int variant = 0;                 // of the program, see variant()
  const Mutation* mutation = nullptr;
  std::string_view mutable_files = "transport/shm/protocol/";  // where sites are looked for
};

struct Report {
  uint64_t executions = 0;
  std::string violation;  // empty: there is none
  std::vector<std::string> trace;
  std::set<Site> sites;
};

// What has been seen: of each place the oldest store that can still be read, of each thread how many of its steps.
struct View {
  std::array<uint16_t, kMostPlaces> stores{};
  std::array<uint16_t, kMostThreads> steps{};

  void join(const View& other) {
    for (size_t i = 0; i < stores.size(); ++i) stores[i] = std::max(stores[i], other.stores[i]);
    for (size_t i = 0; i < steps.size(); ++i) steps[i] = std::max(steps[i], other.steps[i]);
  }
};

// One execution after another of one program.
class Explorer {
 public:
  // The thread `mortal`, if any, may die before each of its steps.
  Explorer(const Options& options, int threads, int mortal)
      : options_(options), threads_(static_cast<size_t>(threads)), mortal_(static_cast<size_t>(mortal)) {}

  // The three below are one execution; explore() repeats them.
  void begin() {
    depth_ = 0;
    preempted_ = 0;
    used_places_ = 0;
    violation_.clear();
    pruned_ = false;
    fences_ = {};
    for (Thread& t : threads_) t = Thread{};
    running_ = kNobody;
    ++report.executions;
  }
  void run(void (*body)(int)) {
    for (size_t i = 0; i < threads_.size(); ++i) {
      if (stacks_.size() <= i) stacks_.push_back(std::make_unique<std::array<char, kStack>>());
      getcontext(&threads_[i].context);
      threads_[i].context.uc_stack = {stacks_[i]->data(), 0, kStack};
      threads_[i].context.uc_link = nullptr;
      makecontext(&threads_[i].context, reinterpret_cast<void (*)()>(body), 1, static_cast<int>(i));
    }
    go_on(/*blocked=*/true);
    running_ = kNobody;
  }
  // Whether there is another execution to run.
  bool advance() {
    while (!path_.empty() && ++path_.back().taken == path_.back().options) path_.pop_back();
    return !path_.empty();
  }

  bool failed() const { return !violation_.empty(); }
  const std::string& violation() const { return violation_; }
  bool pruned() const { return pruned_; }
  int variant() const { return options_.variant; }
  bool in_thread() const { return running_ != kNobody; }

  // ---- called by the running thread

  [[noreturn]] void thread_ends() {
    threads_[running_].ended = true;
    go_on(true);
    __builtin_unreachable();
  }
  void fail(const std::string& what) {
    if (violation_.empty()) violation_ = what;
    if (in_thread()) leave();
  }
  [[noreturn]] void prune() {
    pruned_ = true;
    leave();
  }
  // One of `options`; all are tried, the first one first.
  size_t choose(size_t options) {
    if (options == 1) return 0;
    if (depth_ == path_.size()) path_.push_back({0, options});
    return path_[depth_++].taken;
  }
  // Before each access that other threads may see or that may see theirs.
  void step() {
    if (!in_thread()) return;
    go_on(false);
    if (running_ != mortal_ || choose(2) == 0) return;
    note("dies", {}, 0, 0);
    threads_[running_].died = true;
    thread_ends();
  }

  size_t new_place(uint64_t value) {
    if (used_places_ == kMostPlaces) throw std::length_error("the program has too many places");
    if (used_places_ == places_.size()) places_.emplace_back();
    Place& p = places_[used_places_];
    p.stores.assign(1, {value, View{}});
    p.written = p.read = {};
    p.lock = {};
    return used_places_++;
  }

  uint64_t load(size_t place, Order order, const std::source_location& where) {
    Place& p = places_[place];
    if (!in_thread()) return p.stores.back().value;
    order = ordered(order, false, where);
    step();
    const uint64_t value = read(place, order);
    note("load", where, place, value);
    return value;
  }

  void store(size_t place, uint64_t value, Order order, const std::source_location& where) {
    order = ordered(order, false, where);
    step();
    add_store(place, value, order, View{});
    note("store", where, place, value);
  }

  // Reads the newest value, as the C++ memory model wants it of a read-modify-write operation.
  uint64_t add(size_t place, uint64_t change, Order order, const std::source_location& where) {
    order = ordered(order, false, where);
    step();
    const Store before = places_[place].stores.back();
    take_over(before.released, order);
    add_store(place, before.value + change, order, before.released);
    note("add", where, place, before.value + change);
    return before.value;
  }

  void fence(Order order, const std::source_location& where) {
    order = ordered(order, true, where);
    if (!in_thread()) return;
    if (order == Order::seq_cst) step();
    Thread& me = threads_[running_];
    if (order != Order::relaxed && order != Order::release) me.view.join(me.read);
    if (order == Order::seq_cst) {
      me.view.join(fences_);
      fences_ = me.view;
    }
    if (order != Order::relaxed && order != Order::acquire) me.released = me.view;
    note("fence", where, 0, static_cast<uint64_t>(order));
  }

  // A plain access races unless all earlier ones that matter happened before it.
  void touch(size_t place, bool write) {
    if (!in_thread()) return;
    Place& p = places_[place];
    Thread& me = threads_[running_];
    for (size_t t = 0; t < threads_.size(); ++t) {
      if (p.written[t] > me.view.steps[t] || (write && p.read[t] > me.view.steps[t])) {
        note(write ? "racing write" : "racing read", {}, place, 0);
        fail("a plain access races");
      }
    }
    (write ? p.written : p.read)[running_] = ++me.view.steps[running_];
  }

  // The kernel compares and falls asleep under a lock, which it also takes to wake.
  void futex_wait(size_t place, uint64_t expected) {
    step();
    Thread& me = threads_[running_];
    me.view.join(places_[place].lock);
    if (read(place, Order::relaxed) != expected) return;
    places_[place].lock.join(me.view);
    me.sleeps_on = place;
    note("sleep", {}, place, expected);
    go_on(true);
  }
  void futex_wake(size_t place) {
    step();
    Place& p = places_[place];
    Thread& me = threads_[running_];
    me.view.join(p.lock);
    p.lock.join(me.view);
    for (Thread& t : threads_) {
      if (t.sleeps_on != place) continue;
      t.sleeps_on = kAwake;
      t.view.join(me.view);
    }
    note("wake", {}, place, 0);
  }

  // What the kernel knows of another thread. It tells of a death after all that was written before.
  bool is_dead(int thread) {
    step();
    const Thread& other = threads_[static_cast<size_t>(thread)];
    if (other.died) threads_[running_].view.join(other.view);
    return other.died;
  }

  Report report;
  bool tracing = false;

 private:
  static constexpr size_t kNobody = SIZE_MAX, kAwake = SIZE_MAX, kStack = size_t{64} << 10;

  struct Choice {
    size_t taken, options;
  };
  struct Store {
    uint64_t value;
    View released;
  };
  struct Place {
    std::vector<Store> stores;
    std::array<uint16_t, kMostThreads> written{}, read{};  // plain: the step of each thread's last access
    View lock{};                                           // of the kernel's queue of sleepers
  };
  struct Thread {
    View view;      // what happened before its next step
    View read;      // what its relaxed loads found: joins the view at an acquire fence
    View released;  // its view at the last release fence: goes along with its relaxed stores
    bool ended = false, died = false;
    size_t sleeps_on = kAwake;
    ucontext_t context{};
  };

  bool can_run(size_t thread) const { return !threads_[thread].ended && threads_[thread].sleeps_on == kAwake; }

  // Chooses who makes the next step. `blocked`: the running thread cannot.
  void go_on(bool blocked) {
    std::array<size_t, kMostThreads> candidates{};
    size_t count = 0;
    if (!blocked) candidates[count++] = running_;
    for (size_t t = 0; t < threads_.size() && (blocked || preempted_ < options_.preemptions); ++t) {
      if (can_run(t) && (blocked || t != running_)) candidates[count++] = t;
    }
    if (count == 0) {
      for (const Thread& t : threads_) {
        if (t.sleeps_on != kAwake) violation_ = "a thread sleeps and nobody is left to wake it";
      }
      return leave();
    }
    const size_t next = candidates[choose(count)];
    if (next == running_) return;
    if (!blocked) ++preempted_;
    ucontext_t& from = running_ == kNobody ? outside_ : threads_[running_].context;
    running_ = next;
    swapcontext(&from, &threads_[next].context);
  }
  // Ends the execution; stacks of threads in the middle of something are left as they are.
  [[noreturn]] void leave() {
    setcontext(&outside_);
    __builtin_unreachable();
  }

  // The newest value is tried first.
  uint64_t read(size_t place, Order order) {
    const Place& p = places_[place];
    Thread& me = threads_[running_];
    const size_t newest = p.stores.size() - 1;
    const size_t at = newest - choose(newest - me.view.stores[place] + 1);
    me.view.stores[place] = static_cast<uint16_t>(at);
    take_over(p.stores[at].released, order);
    return p.stores[at].value;
  }
  void take_over(const View& released, Order order) {
    Thread& me = threads_[running_];
    me.read.join(released);
    if (order == Order::acquire || order == Order::acq_rel || order == Order::seq_cst) me.view.join(released);
  }
  void add_store(size_t place, uint64_t value, Order order, const View& continued) {
    Place& p = places_[place];
    Store store{value, continued};
    if (in_thread()) {
      Thread& me = threads_[running_];
      ++me.view.steps[running_];
      me.view.stores[place] = static_cast<uint16_t>(p.stores.size());
      const bool releases = order == Order::release || order == Order::acq_rel || order == Order::seq_cst;
      store.released.join(releases ? me.view : me.released);
      store.released.stores[place] = me.view.stores[place];
    }
    p.stores.push_back(store);
  }

  // The order that counts at this site: as it stands there, or as the mutation has it.
  Order ordered(Order order, bool fence, const std::source_location& where) {
    if (std::string_view(where.file_name()).find(options_.mutable_files) == std::string_view::npos) return order;
    const Mutation* m = options_.mutation;
    if (m != nullptr && m->site.line == where.line() && m->site.column == where.column()) return m->to;
    bool& known = known_sites_[(where.line() * 128 + where.column()) % known_sites_.size()];
    if (order != Order::relaxed && !known) {
      known = true;
      report.sites.insert({function_of(where), where.line(), where.column(), fence, order});
    }
    return order;
  }
  static std::string function_of(const std::source_location& where) {
    const std::string_view whole = where.function_name();
    const size_t end = whole.find('('), begin = whole.rfind(' ', end) + 1;
    const std::string_view name = whole.substr(begin, end - begin);
    return std::string(name.substr(name.rfind(':') + 1));
  }
  void note(const char* what, const std::source_location& where, size_t place, uint64_t value) {
    if (!tracing) return;
    char text[160];
    std::snprintf(text, sizeof(text), "thread %zu: %-6s place %zu, %llu (%s line %u)", running_, what, place,
                  static_cast<unsigned long long>(value), function_of(where).c_str(), where.line());
    report.trace.emplace_back(text);
  }

  Options options_;
  std::vector<Choice> path_;
  size_t depth_ = 0;
  int preempted_ = 0;
  std::vector<Place> places_;
  size_t used_places_ = 0;
  std::vector<Thread> threads_;
  const size_t mortal_;
  std::array<bool, 65536> known_sites_{};
  std::vector<std::unique_ptr<std::array<char, kStack>>> stacks_;
  View fences_;
  size_t running_ = kNobody;
  ucontext_t outside_{};
  std::string violation_;
  bool pruned_ = false;
};

inline Explorer* explorer = nullptr;

// The atomics of a program, in place of a2a::shm::StdAtomics.
struct Atomics {
  template <class T>
  class atomic {
   public:
    atomic(T value = {}) : place_(explorer->new_place(static_cast<uint64_t>(value))) {}
    atomic(const atomic&) = delete;
    atomic& operator=(const atomic&) = delete;
    T load(Order order, std::source_location where = std::source_location::current()) const {
      return static_cast<T>(explorer->load(place_, order, where));
    }
    void store(T value, Order order, std::source_location where = std::source_location::current()) {
      explorer->store(place_, static_cast<uint64_t>(value), order, where);
    }
    T fetch_add(T value, Order order, std::source_location where = std::source_location::current()) {
      return static_cast<T>(explorer->add(place_, static_cast<uint64_t>(value), order, where));
    }
    T fetch_sub(T value, Order order, std::source_location where = std::source_location::current()) {
      return static_cast<T>(explorer->add(place_, ~static_cast<uint64_t>(value) + 1, order, where));
    }
    size_t place() const { return place_; }

   private:
    size_t place_;
  };

  template <class T>
  class plain {
   public:
    plain() : place_(explorer->new_place(0)) {}
    plain& operator=(const T& value) {
      explorer->touch(place_, true);
      value_ = value;
      return *this;
    }
    operator T() const {
      explorer->touch(place_, false);
      return value_;
    }

   private:
    size_t place_;
    T value_{};
  };

  static void fence(Order order, std::source_location where = std::source_location::current()) {
    explorer->fence(order, where);
  }
};

// ---- what a program says -------------------------------------------------------------------------------------------

inline void require(bool holds, const char* what) {
  if (!holds) explorer->fail(what);
}
// In place of a loop: executions in which the thread would have to look again are not followed; those in which it looks
// later are.
template <class Condition>
void wait_until(Condition condition) {
  if (!condition()) explorer->prune();
}
// Which of its deliberate mistakes the program shall make; 0: none.
inline int variant() { return explorer->variant(); }
inline void futex_wait(const Atomics::atomic<uint32_t>& word, uint32_t expected) {
  explorer->futex_wait(word.place(), expected);
}
inline void futex_wake(const Atomics::atomic<uint32_t>& word) { explorer->futex_wake(word.place()); }
inline bool is_dead(int thread) { return explorer->is_dead(thread); }

template <class Program>
Report explore(const Options& options = {}) {
  static Program* program;
  constexpr int mortal = [] {
    if constexpr (requires { Program::kMortal; }) return Program::kMortal;
    return -1;
  }();
  Explorer all(options, Program::kThreads, mortal);
  explorer = &all;
  const auto body = [](int thread) {
    program->run(thread);
    explorer->thread_ends();
  };
  const auto execute = [&] {
    all.begin();
    Program fresh;
    program = &fresh;
    all.run(body);
    if constexpr (requires { fresh.finally(); }) {
      if (!all.failed() && !all.pruned()) fresh.finally();
    }
  };
  do {
    execute();
    if (all.report.executions > options.executions) all.fail("the program has too many executions");
  } while (!all.failed() && all.advance());
  all.report.violation = all.violation();
  if (all.failed()) {  // once more, and watch
    all.tracing = true;
    execute();
  }
  return all.report;
}

}  // namespace model
