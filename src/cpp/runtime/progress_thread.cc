#include "runtime/progress_thread.h"

#include <pthread.h>

#include <chrono>
#include <condition_variable>
#include <csignal>
#include <exception>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "a2a/types.h"
#include "runtime/environment.h"

namespace a2a {

struct ProgressThread::State {
  std::mutex mutex;
  std::condition_variable changed;
  bool wanted = false, ended = false;
  std::atomic<bool> stop{false};

  void run(const std::function<void(const std::atomic<bool>&)>& serve) {
    pthread_setname_np(pthread_self(), "a2a-progress");
    std::unique_lock lock(mutex);
    for (;;) {
      changed.wait(lock, [this] { return wanted || stop; });
      if (stop) break;
      wanted = false;
      lock.unlock();
      try {
        serve(stop);
      } catch (const std::exception&) {
        // Probably out of memory. A wait for the operation comes to the same point, and throws.
      }
      lock.lock();
    }
    ended = true;
    changed.notify_all();
  }
};

ThreadWish progress_thread_wish() {
  const auto word =
      word_variable("A2A_PROGRESS_THREAD", {"auto", "1", "0", "on", "off", "true", "false", "yes", "no"}).value_or(0);
  if (word == 0) return ThreadWish::automatic;
  return word % 2 == 1 ? ThreadWish::always : ThreadWish::never;
}

ProgressThread::ProgressThread(std::function<void(const std::atomic<bool>&)> serve, std::function<void()> interrupt)
    : state_(std::make_shared<State>()), interrupt_(std::move(interrupt)) {
  // Signals are for the program's own threads.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    // Detached, because a forked child could neither join it nor destroy its handle.
    std::thread([state = state_, serve = std::move(serve)] { state->run(serve); }).detach();
  } catch (const std::system_error& error) {
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw Error(Code::backend, std::string("A2A_PROGRESS_THREAD: cannot start a thread: ") + error.what());
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

ProgressThread::~ProgressThread() {
  if (state_ == nullptr) return;
  std::unique_lock lock(state_->mutex);
  state_->stop = true;
  state_->changed.notify_all();
  while (!state_->ended) {
    interrupt_();
    state_->changed.wait_for(lock, std::chrono::milliseconds(1));
  }
}

void ProgressThread::wake() {
  const std::lock_guard lock(state_->mutex);
  state_->wanted = true;
  state_->changed.notify_all();
}

}  // namespace a2a
