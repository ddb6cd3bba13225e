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

// The table that the ranks share. A round ends when every rank has taken the result.
struct Table {
  explicit Table(int size) : strings(static_cast<size_t>(size)), places(static_cast<size_t>(size)) {}

  struct Place {
    bool laid = false, taken = false;  // in this round
    bool left = false;                 // its bootstrap is destroyed
  };

  bool all(bool Place::* done) const { return std::ranges::all_of(places, done); }

  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::string> strings;
  std::vector<Place> places;
};

class ThreadBootstrap final : public Bootstrap {
 public:
  ThreadBootstrap(Rank rank, std::shared_ptr<Table> table) : rank_(rank), table_(std::move(table)) {}

  ~ThreadBootstrap() override {
    const std::lock_guard lock(table_->mutex);
    mine().left = true;
    table_->changed.notify_all();
  }

  std::vector<std::string> allgather(std::string_view text, Deadline deadline) override {
    std::unique_lock lock(table_->mutex);
    await(lock, deadline, &Table::Place::taken, [this] { return !mine().taken; });  // until the last round has ended
    table_->strings[static_cast<size_t>(rank_)] = text;
    mine().laid = true;
    table_->changed.notify_all();
    await(lock, deadline, &Table::Place::laid, [this] { return table_->all(&Table::Place::laid); });
    auto all = table_->strings;
    mine().taken = true;
    if (table_->all(&Table::Place::taken)) {
      for (Table::Place& place : table_->places) place.laid = place.taken = false;
      table_->changed.notify_all();
    }
    return all;
  }

 private:
  Table::Place& mine() { return table_->places[static_cast<size_t>(rank_)]; }

  // Returns the other ranks that have not done it.
  std::vector<Rank> those(bool Table::Place::* done) const {
    std::vector<Rank> missing;
    for (size_t r = 0; r < table_->places.size(); ++r) {
      if (!(table_->places[r].*done) && static_cast<Rank>(r) != rank_) missing.push_back(static_cast<Rank>(r));
    }
    return missing;
  }

  // Waits until `ready`, which depends on what `done` says of all ranks. Throws when a rank left without it, or the
  // deadline passes.
  template <class Ready>
  void await(std::unique_lock<std::mutex>& lock, Deadline deadline, bool Table::Place::* done, Ready ready) {
    while (!ready()) {
      for (size_t r = 0; r < table_->places.size(); ++r) {
        const Table::Place& place = table_->places[r];
        if (!place.left || place.*done) continue;
        throw Error(Code::peer_lost, "rank " + std::to_string(r) + " left before all threads had met");
      }
      if (deadline.passed()) {
        throw Error(Code::timeout, "rank " + std::to_string(rank_) + " timed out waiting for the threads of rank " +
                                       list(those(done)));
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
  check_membership(0, size);
  const auto table = std::make_shared<Table>(size);
  std::vector<std::shared_ptr<Bootstrap>> all;
  for (Rank r = 0; r < size; ++r) all.push_back(std::make_shared<ThreadBootstrap>(r, table));
  return all;
}

}  // namespace a2a
