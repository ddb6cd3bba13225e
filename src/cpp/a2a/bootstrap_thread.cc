// Ranks as threads of one process: over a table in its memory.
#include <condition_variable>
#include <mutex>
#include <utility>

#include "a2a/bootstrap.h"
#include "a2a/bootstrap_socket.h"

namespace a2a {
namespace {

using namespace std::chrono_literals;

// The common table of ranks that are threads. A round ends when every rank has taken the result.
struct Table {
  explicit Table(int size) : strings(static_cast<size_t>(size)) {}

  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::string> strings;
  size_t laid = 0, taken = 0;
};

class ThreadBootstrap final : public Bootstrap {
 public:
  ThreadBootstrap(Rank rank, std::shared_ptr<Table> table) : rank_(rank), table_(std::move(table)) {}

  std::vector<std::string> allgather(std::string_view mine, Deadline deadline) override {
    std::unique_lock lock(table_->mutex);
    await(lock, deadline, [this] { return table_->taken == 0; });
    table_->strings[static_cast<size_t>(rank_)] = mine;
    ++table_->laid;
    table_->changed.notify_all();
    await(lock, deadline, [this] { return table_->laid == table_->strings.size(); });
    auto all = table_->strings;
    if (++table_->taken == table_->strings.size()) {
      table_->laid = table_->taken = 0;
      table_->changed.notify_all();
    }
    return all;
  }

 private:
  template <class Ready>
  void await(std::unique_lock<std::mutex>& lock, Deadline deadline, Ready ready) {
    while (!ready()) {
      if (deadline.passed()) {
        throw Error(Code::timeout, "rank " + std::to_string(rank_) + " timed out waiting for the other threads");
      }
      table_->changed.wait_for(lock, 20ms);
    }
  }

  Rank rank_;
  std::shared_ptr<Table> table_;
};

}  // namespace

std::vector<std::shared_ptr<Bootstrap>> thread_bootstraps(int size) {
  check_membership(0, size);
  const auto table = std::make_shared<Table>(size);
  std::vector<std::shared_ptr<Bootstrap>> all;
  for (Rank r = 0; r < size; ++r) all.push_back(std::make_shared<ThreadBootstrap>(r, table));
  return all;
}

}  // namespace a2a
