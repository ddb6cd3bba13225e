#include "transport/device/watch.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

namespace a2a::device {
namespace {

constexpr auto kPeriod = std::chrono::milliseconds(5);

class Watch {
 public:
  // That of this process: a thread does not survive fork().
  static Watch& get() {
    static std::mutex mutex;
    static Watch* one = nullptr;  // never destroyed: its thread runs until the process ends
    static pid_t owner = 0;
    const std::lock_guard lock(mutex);
    if (owner != getpid()) {
      one = new Watch;
      owner = getpid();
    }
    return *one;
  }

  void add(const std::shared_ptr<DeviceTransport>& transport) {
    const std::lock_guard lock(mutex_);
    transports_.push_back(transport);
    news_.notify_one();
  }

 private:
  Watch() { std::thread(&Watch::run, this).detach(); }

  [[noreturn]] void run() {
    for (;;) {
      auto busy = take();
      std::erase_if(busy, [](const auto& transport) { return !transport->tend(); });
      {
        const std::lock_guard lock(mutex_);
        transports_.insert(transports_.end(), busy.begin(), busy.end());
      }
      busy.clear();  // perhaps the last to hold one of them
      std::this_thread::sleep_for(kPeriod);
    }
  }

  // Blocks while there is nothing to look after.
  std::vector<std::shared_ptr<DeviceTransport>> take() {
    std::unique_lock lock(mutex_);
    std::vector<std::shared_ptr<DeviceTransport>> alive;
    while (alive.empty()) {
      news_.wait(lock, [this] { return !transports_.empty(); });
      for (const auto& weak : transports_) {
        if (auto transport = weak.lock()) alive.push_back(std::move(transport));
      }
      transports_.clear();
    }
    return alive;
  }

  std::mutex mutex_;
  std::condition_variable news_;
  std::vector<std::weak_ptr<DeviceTransport>> transports_;
};

}  // namespace

void watch(const std::shared_ptr<DeviceTransport>& transport) { Watch::get().add(transport); }

}  // namespace a2a::device
