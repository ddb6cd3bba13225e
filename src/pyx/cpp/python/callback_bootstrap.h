// A bootstrap that is a Python object.
#pragma once

#include <Python.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "a2a/bootstrap.h"
#include "a2a/communicator.h"
#include "cpp/background.h"
#include "cpp/python/interrupts.h"

namespace a2a_py {

// The way between hosts of ranks whose bootstrap has none of its own. Without a network it has no effect.
struct Between {
  BootstrapPtr network;        // has it; not necessarily of the same ranks
  std::vector<int> processes;  // each rank's process of that network; empty: rank r is process r
  std::string host;            // the name of this rank's host; empty: as the core finds it
};

// A bootstrap whose allgather is a function of the bindings. That function returns false on failure, and keeps the
// reason itself.
class CallbackBootstrap final : public a2a::Bootstrap {
 public:
  using Callback = bool (*)(PyObject* context, const std::string& mine, std::vector<std::string>& all);
  using Check = bool (*)(PyObject* context);

  CallbackBootstrap(Callback callback, Check check, PyObject* context, Between between)
      : callback_(callback), check_(check), context_(context), between_(std::move(between)) {}

  std::vector<std::string> allgather(std::string_view mine, a2a::Deadline) override {
    std::vector<std::string> all;
    if (in_python([&] { return callback_(context_, std::string(mine), all); })) return all;
    throw a2a::Error(a2a::Code::backend, "the bootstrap's allgather failed");
  }

  void while_meeting() override {
    if (in_python([&] { return check_(context_); })) return;
    throw a2a::Error(a2a::Code::aborted, "interrupted by a signal");
  }

  bool has_network() const override { return between_.network != nullptr && between_.network->has_network(); }

  std::shared_ptr<a2a::hosts::Network> network(a2a::Deadline deadline) override {
    const a2a::SignalWatch signals(&interrupted);
    return between_.network->network(deadline);
  }

  std::vector<int> processes() const override { return between_.processes; }

  std::optional<std::string> host() const override {
    return between_.host.empty() ? std::nullopt : std::optional(between_.host);
  }

 private:
  Callback callback_;
  Check check_;
  PyObject* context_;  // outlives the call that uses this
  Between between_;
};

// Runs in the calling thread, because communicators that one thread makes wait together.
inline CommPtr create(int rank, int size, double timeout, a2a::Check check, const When& until,
                      CallbackBootstrap::Callback callback, CallbackBootstrap::Check signals, PyObject* context,
                      Between between) {
  CallbackBootstrap bootstrap(callback, signals, context, std::move(between));
  return a2a::Communicator::create(rank, size, bootstrap, {timeout, check}, until);
}

}  // namespace a2a_py
