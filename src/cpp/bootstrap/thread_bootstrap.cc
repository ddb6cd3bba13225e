// The bootstrap of ranks that are threads of one process: a table in its memory.
#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <utility>

#include "a2a/bootstrap.h"
#include "a2a/work.h"
#include "bootstrap/sockets.h"

namespace a2a {
namespace {

using namespace std::chrono_literals;

// The table that the ranks share. A round ends when every rank has read the strings.
struct Table {
  explicit Table(int size) : strings(static_cast<size_t>(size)), states(static_cast<size_t>(size)) {}

  struct RankState {
    bool written = false, read = false;  // its string, the table; in this round
    bool left = false;                   // its bootstrap is destroyed
  };

  bool all(bool RankState::* done) const { return std::ranges::all_of(states, done); }

  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::string> strings;
  std::vector<RankState> states;
};

class ThreadBootstrap final : public Bootstrap {
 public:
  ThreadBootstrap(Rank rank, std::shared_ptr<Table> table) : rank_(rank), table_(std::move(table)) {}

  ~ThreadBootstrap() override {
    const std::lock_guard lock(table_->mutex);
    own().left = true;
    table_->changed.notify_all();
  }

  std::vector<std::string> allgather(std::string_view text, Deadline deadline) override {
    std::unique_lock lock(table_->mutex);
    await(lock, deadline, &Table::RankState::read, [this] { return !own().read; });  // until the last round has ended
    table_->strings[static_cast<size_t>(rank_)] = text;
    own().written = true;
    table_->changed.notify_all();
    await(lock, deadline, &Table::RankState::written, [this] { return table_->all(&Table::RankState::written); });
    auto all = table_->strings;
    own().read = true;
    if (table_->all(&Table::RankState::read)) {
      for (Table::RankState& state : table_->states) state.written = state.read = false;
      table_->changed.notify_all();
    }
    return all;
  }

 private:
  Table::RankState& own() { return table_->states[static_cast<size_t>(rank_)]; }

  // Returns the other ranks of which `done` is false.
  std::vector<Rank> missing(bool Table::RankState::* done) const {
    std::vector<Rank> ranks;
    for (size_t r = 0; r < table_->states.size(); ++r) {
      if (!(table_->states[r].*done) && static_cast<Rank>(r) != rank_) ranks.push_back(static_cast<Rank>(r));
    }
    return ranks;
  }

  // Waits until `ready`, which depends on `done` of all ranks. Throws when a rank left of which it is false, or when
  // the deadline passes.
  template <class Ready>
  void await(std::unique_lock<std::mutex>& lock, Deadline deadline, bool Table::RankState::* done, Ready ready) {
    while (!ready()) {
      for (size_t r = 0; r < table_->states.size(); ++r) {
        const Table::RankState& state = table_->states[r];
        if (!state.left || state.*done) continue;
        throw Error(Code::peer_lost, "rank " + std::to_string(r) + " left before all threads had met");
      }
      if (deadline.passed()) {
        throw Error(Code::timeout, "rank " + std::to_string(rank_) + " timed out waiting for the threads of rank " +
                                       list(missing(done)));
      }
      table_->changed.wait_for(lock, 20ms);
      lock.unlock();  // look() requires it, and destroying another rank's bootstrap takes the mutex
      SignalWatch::look();
      lock.lock();
    }
  }

  Rank rank_;
  std::shared_ptr<Table> table_;
};

}  // namespace

std::vector<std::shared_ptr<Bootstrap>> thread_bootstraps(int size) {
  check_rank_and_size(0, size);
  const auto table = std::make_shared<Table>(size);
  std::vector<std::shared_ptr<Bootstrap>> all;
  for (Rank r = 0; r < size; ++r) all.push_back(std::make_shared<ThreadBootstrap>(r, table));
  return all;
}

}  // namespace a2a
