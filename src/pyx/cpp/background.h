// Control calls, which block for long, in threads of their own: Ctrl-C ends the wait for them.
#pragma once

#include <unistd.h>

#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "a2a/bootstrap.h"
#include "a2a/communicator.h"
#include "cpp/exchange.h"

namespace a2a_py {

using CommPtr = std::shared_ptr<a2a::Communicator>;
using BootstrapPtr = std::shared_ptr<a2a::Bootstrap>;

// The results of control calls; each sets those that it has.
struct Outcome {
  CommPtr communicator;
  BootstrapPtr bootstrap;
  std::vector<std::string> strings;
};

// Jobs that must not run before a call in the background has ended.
class Afterwards {
 public:
  // Runs the job at once if the call has ended, otherwise afterwards.
  void add(std::function<void()> job) {
    {
      const std::lock_guard lock(mutex_);
      if (!ended_) return jobs_.push_back(std::move(job));
    }
    job();
  }

  void end() {
    std::unique_lock lock(mutex_);
    while (!jobs_.empty()) {
      const auto jobs = std::exchange(jobs_, {});
      lock.unlock();
      for (const auto& job : jobs) job();
      lock.lock();
    }
    ended_ = true;
  }

 private:
  std::mutex mutex_;
  bool ended_ = false;
  std::vector<std::function<void()>> jobs_;  // they do not throw
};

// A call that runs in a thread of its own. It may be abandoned. It holds the objects that it uses until it has
// finished, and releases them before its result is there, so that a caller that has waited for it finds none of
// them open.
class Background {
 public:
  explicit Background(std::function<Outcome()> call)
      : task_([call = std::move(call), afterwards = afterwards_]() mutable {
          struct End {
            Afterwards& afterwards;
            ~End() { afterwards.end(); }
          } const end{*afterwards};
          return std::exchange(call, nullptr)();
        }),
        outcome_(task_.get_future()) {}

  void start() {
    try {
      std::thread(std::move(task_)).detach();
    } catch (const std::system_error& error) {
      throw a2a::Error(a2a::Code::backend, std::string("cannot start a thread: ") + error.what());
    }
  }

  // Waits for a while. Returns true once finished. Throws in a forked child, which has no such thread.
  bool wait_slice() {
    if (::getpid() != process_) {
      throw a2a::Error(a2a::Code::aborted, "this call belongs to the process that forked this one");
    }
    return outcome_.wait_for(std::chrono::milliseconds(50)) == std::future_status::ready;
  }

  // Returns the result. Call once, after wait_slice() has returned true.
  Outcome result() { return outcome_.get(); }

  // Tells the peers, after the call, that this rank does not take part in the next operation.
  void refuse_afterwards(const CommPtr& comm, const a2a::Call& call, const std::string& reason) {
    afterwards_->add([=] {
      try {
        comm->refuse(call, reason);
      } catch (const std::exception&) {  // the communicator is broken or closed, so the peers raise anyway
      }
    });
  }

 private:
  std::shared_ptr<Afterwards> afterwards_ = std::make_shared<Afterwards>();
  std::packaged_task<Outcome()> task_;
  std::future<Outcome> outcome_;
  pid_t process_ = ::getpid();
};

using Task = std::shared_ptr<Background>;

inline Task background(std::function<Outcome()> call) {
  return std::make_shared<Background>([call = std::move(call), site = a2a::call_site()] {
    a2a::set_call_site(site);
    return call();
  });
}

inline Task split(CommPtr comm, int color, int key, When until) {
  return background([=] { return Outcome{comm->split(color, key, until), nullptr, {}}; });
}

inline Task group(CommPtr comm, std::vector<int> ranks, When until) {
  return background([=] { return Outcome{comm->group(ranks, until), nullptr, {}}; });
}

inline Task shrink(CommPtr comm, When until) {
  return background([=] { return Outcome{comm->shrink(until), nullptr, {}}; });
}

inline Task connect(CommPtr comm, a2a::Memory memory, int device, When until) {
  return background([=] { return comm->connect(memory, device, until), Outcome{}; });
}

inline Task close(CommPtr comm, When until) {
  return background([=] { return comm->close(until), Outcome{}; });
}

inline Task allgather_bytes(CommPtr comm, std::string mine, When until) {
  return background(
      [=] { return Outcome{nullptr, nullptr, comm->allgather_bytes(mine, a2a::Op::allgather_bytes, until)}; });
}

}  // namespace a2a_py
