// The interface of checker.h over Relacy (https://github.com/dvyukov/relacy; Debian: relacy-dev), so that a checker
// with another author judges the same programs. It has no futex and no deaths: a mutex and a condition variable stand
// for the kernel's queue of sleepers.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <ostream>
#include <relacy/relacy.hpp>
#include <source_location>
#include <streambuf>
#include <string>
#include <string_view>
#undef new
#undef delete
#undef malloc
#undef calloc
#undef realloc
#undef free
#undef memory_order_relaxed
#undef memory_order_consume
#undef memory_order_acquire
#undef memory_order_release
#undef memory_order_acq_rel
#undef memory_order_seq_cst

namespace model {

using Order = std::memory_order;

// A line of protocol.h or mailbox.h that asks for a memory order, and what a mutant makes of it.
struct Site {
  uint32_t line = 0, column = 0;
  bool fence = false;
  Order order = Order::relaxed;
  auto operator<=>(const Site&) const = default;
};
struct Mutation {
  Site site;
  Order to = Order::relaxed;
};

struct Kernel {
  rl::mutex lock;
  rl::condition_variable sleepers;
};

// In the order in which they were met. No container: Relacy takes what is allocated in an execution for the program's.
struct Sites {
  std::array<Site, 64> all{};
  size_t count = 0;

  void add(const Site& site) {
    if (std::find(all.begin(), all.begin() + count, site) == all.begin() + count) all.at(count++) = site;
  }
};
inline Sites sites;
inline const Mutation* mutation = nullptr;
inline int chosen_variant = 0;
inline Kernel* kernel = nullptr;  // of this execution

inline Order ordered(Order order, bool fence, const std::source_location& where) {
  if (std::string_view(where.file_name()).find("transport/shm/protocol/") == std::string_view::npos) return order;
  if (order != Order::relaxed) sites.add({where.line(), where.column(), fence, order});
  const bool mutant = mutation && mutation->site.line == where.line() && mutation->site.column == where.column();
  return mutant ? mutation->to : order;
}
inline rl::memory_order as_relacy(Order order) {
  switch (order) {
    case Order::relaxed:
      return rl::mo_relaxed;
    case Order::consume:
      return rl::mo_consume;
    case Order::acquire:
      return rl::mo_acquire;
    case Order::release:
      return rl::mo_release;
    case Order::acq_rel:
      return rl::mo_acq_rel;
    case Order::seq_cst:
      break;
  }
  return rl::mo_seq_cst;
}
inline rl::debug_info as_relacy(const std::source_location& where) {
  return {where.function_name(), where.file_name(), where.line()};
}

struct Atomics {
  template <class T>
  class atomic {
   public:
    atomic(T value = {}) : value_(value) {}
    atomic(const atomic&) = delete;
    atomic& operator=(const atomic&) = delete;
    T load(Order order, std::source_location where = std::source_location::current()) const {
      return value_.load(as_relacy(ordered(order, false, where)), as_relacy(where));
    }
    void store(T value, Order order, std::source_location where = std::source_location::current()) {
      value_.store(value, as_relacy(ordered(order, false, where)), as_relacy(where));
    }
    T fetch_add(T value, Order order, std::source_location where = std::source_location::current()) {
      return value_.fetch_add(value, as_relacy(ordered(order, false, where)), as_relacy(where));
    }
    T fetch_sub(T value, Order order, std::source_location where = std::source_location::current()) {
      return value_.fetch_sub(value, as_relacy(ordered(order, false, where)), as_relacy(where));
    }

   private:
    rl::atomic<T> value_;
  };

  // Relacy watches a stamp in its place, since it can only print numbers.
  template <class T>
  class plain {
   public:
    plain() { stamp_(as_relacy(std::source_location::current())) = 0; }
    plain& operator=(const T& value) {
      stamp_(as_relacy(std::source_location::current())) = 1;
      value_ = value;
      return *this;
    }
    operator T() const {
      (void)stamp_(as_relacy(std::source_location::current())).load();
      return value_;
    }

   private:
    rl::var<int> stamp_;
    T value_{};
  };

  static void fence(Order order, std::source_location where = std::source_location::current()) {
    order = ordered(order, true, where);
    if (order != Order::relaxed) rl::atomic_thread_fence(as_relacy(order), as_relacy(where));
  }
};

inline void require(bool holds, const char* what) {
  if (!holds) rl::ctx().fail_test(what, rl::test_result_user_assert_failed, as_relacy(std::source_location::current()));
}
template <class Condition>
void wait_until(Condition condition) {
  while (!condition()) rl::yield(1, as_relacy(std::source_location::current()));
}
inline int variant() { return chosen_variant; }
inline void futex_wait(const Atomics::atomic<uint32_t>& word, uint32_t expected) {
  const auto here = as_relacy(std::source_location::current());
  kernel->lock.lock(here);
  if (word.load(Order::relaxed) == expected) kernel->sleepers.wait(kernel->lock, here);
  kernel->lock.unlock(here);
}
inline void futex_wake(const Atomics::atomic<uint32_t>&) {
  const auto here = as_relacy(std::source_location::current());
  kernel->lock.lock(here);
  kernel->sleepers.notify_all(here);
  kernel->lock.unlock(here);
}
inline bool is_dead(int) { return false; }

template <class Program>
struct Suite : rl::test_suite<Suite<Program>, Program::kThreads> {
  Kernel own_kernel;
  Program program;

  void before() { kernel = &own_kernel; }
  void thread(unsigned index) { program.run(static_cast<int>(index)); }
};

// Whether `executions` random ones are all good.
template <class Program>
bool holds(uint64_t executions) {
  struct Silent : std::streambuf {
    int overflow(int c) override { return c; }
  };
  Silent buffer;
  std::ostream silent(&buffer);
  rl::test_params params;
  params.iteration_count = executions;
  params.output_stream = params.progress_stream = &silent;
  params.search_type = rl::sched_random;
  params.execution_depth_limit = 4000;
  return rl::simulate<Suite<Program>>(params);
}

}  // namespace model
