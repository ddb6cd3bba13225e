#include "transport/device/watch.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <thread>
#include <vector>

namespace a2a::device {
namespace {

constexpr auto kPeriod = std::chrono::milliseconds(5);

class Watch {
 public:
  // Returns the watch of this process: a forked child makes its own, because threads do not survive fork(). Never
  // destroyed.
  static Watch& get() {
    static std::mutex mutex;
    const std::lock_guard lock(mutex);
    if (one == nullptr || one->owner_ != getpid()) one = new Watch;
    return *one;
  }

  void add(const std::shared_ptr<StreamTransport>& transport) {
    const std::lock_guard lock(mutex_);
    transports_.push_back(transport);
    news_.notify_one();
  }

 private:
  Watch() : owner_(getpid()) {
    std::thread(&Watch::run, this).detach();
    std::atexit(stop);  // registered after the vendors' libraries were loaded, so it runs before they shut down
  }

  // Runs when the process exits. The thread may be in a call of a driver, but must not make another one.
  static void stop() {
    constexpr auto kPatience = std::chrono::seconds(1);  // a driver that hangs cannot keep the process
    if (one->owner_ != getpid()) return;
    const auto until = std::chrono::steady_clock::now() + kPatience;
    while (!one->round_.try_lock() && std::chrono::steady_clock::now() < until) std::this_thread::sleep_for(kPeriod);
  }

  [[noreturn]] void run() {
    for (;;) {
      auto busy = take();
      {
        const std::lock_guard round(round_);
        std::erase_if(busy, [](const auto& transport) { return !transport->tend(); });
        {
          const std::lock_guard lock(mutex_);
          transports_.insert(transports_.end(), busy.begin(), busy.end());
        }
        busy.clear();  // these may be the last references
      }
      std::this_thread::sleep_for(kPeriod);
    }
  }

  // Returns the registered transports. Blocks while there are none.
  std::vector<std::shared_ptr<StreamTransport>> take() {
    std::unique_lock lock(mutex_);
    std::vector<std::shared_ptr<StreamTransport>> alive;
    while (alive.empty()) {
      news_.wait(lock, [this] { return !transports_.empty(); });
      for (const auto& weak : transports_) {
        if (auto transport = weak.lock()) alive.push_back(std::move(transport));
      }
      transports_.clear();
    }
    return alive;
  }

  static inline Watch* one = nullptr;

  const pid_t owner_;
  std::mutex round_;  // held during calls of drivers; stop() keeps it
  std::mutex mutex_;  // guards what follows
  std::condition_variable news_;
  std::vector<std::weak_ptr<StreamTransport>> transports_;
};

}  // namespace

void watch(const std::shared_ptr<StreamTransport>& transport) { Watch::get().add(transport); }

}  // namespace a2a::device
