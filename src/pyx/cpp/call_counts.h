// The counts of one call, without an allocation where a program repeats them.
#pragma once

#include <array>
#include <cstddef>
#include <memory>

#include "a2a/plan.h"
#include "cpp/exchange.h"

namespace a2a_py {

// The counts and displacements of one call, empty at first, and the plan made from them. Programs often repeat the
// same ones, so each thread keeps the memory of the last ones, and the last plan. A call inside such a call gets
// memory of its own.
class CallCounts {
 public:
  CallCounts() : thread_(this_thread()) { lists_.swap(thread_.spare); }
  ~CallCounts() {
    for (CountList& list : lists_) list.clear();
    lists_.swap(thread_.spare);
  }
  CallCounts(const CallCounts&) = delete;
  CallCounts& operator=(const CallCounts&) = delete;

  CountList& to() { return lists_[0]; }
  CountList& to_displs() { return lists_[1]; }
  CountList& from() { return lists_[2]; }
  CountList& from_displs() { return lists_[3]; }

  PlanPtr plan(int rank, int size, size_t row_bytes, size_t send_rows, size_t recv_rows) {
    const Numbers numbers{static_cast<size_t>(rank), static_cast<size_t>(size), row_bytes, send_rows, recv_rows};
    if (thread_.plan != nullptr && thread_.numbers == numbers && thread_.lists == lists_) return thread_.plan;
    auto plan = std::make_shared<const a2a::Plan>(a2a::Plan::alltoallv(rank, size, row_bytes, {to(), to_displs()},
                                                                       send_rows, {from(), from_displs()}, recv_rows));
    thread_.plan.reset();
    thread_.numbers = numbers;
    thread_.lists = lists_;
    return thread_.plan = plan;
  }

 private:
  using Lists = std::array<CountList, 4>;
  using Numbers = std::array<size_t, 5>;

  struct Thread {
    Lists spare;
    PlanPtr plan;  // made from the following
    Numbers numbers{};
    Lists lists;
  };

  static Thread& this_thread() {
    thread_local Thread thread;
    return thread;
  }

  Thread& thread_;
  Lists lists_;
};

}  // namespace a2a_py
