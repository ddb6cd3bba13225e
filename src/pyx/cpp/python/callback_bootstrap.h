// A bootstrap that is a Python object.
#pragma once

#include <Python.h>

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "a2a/bootstrap.h"
#include "a2a/communicator.h"
#include "cpp/background.h"
#include "cpp/python/interrupts.h"

namespace a2a_py {

// A bootstrap whose allgather is a function of the bindings. That function returns false on failure, and keeps the
// reason itself.
class CallbackBootstrap final : public a2a::Bootstrap {
 public:
  using Callback = bool (*)(PyObject* context, const std::string& mine, std::vector<std::string>& all);
  using Check = bool (*)(PyObject* context);

  CallbackBootstrap(Callback callback, Check check, PyObject* context, BootstrapPtr inner)
      : callback_(callback), check_(check), context_(context), inner_(std::move(inner)) {}

  std::vector<std::string> allgather(std::string_view mine, a2a::Deadline) override {
    std::vector<std::string> all;
    if (in_python([&] { return callback_(context_, std::string(mine), all); })) return all;
    throw a2a::Error(a2a::Code::backend, "the bootstrap's allgather failed");
  }

  void while_meeting() override {
    if (in_python([&] { return check_(context_); })) return;
    throw a2a::Error(a2a::Code::aborted, "interrupted by a signal");
  }

  bool has_network() const override { return inner_ != nullptr && inner_->has_network(); }

  std::shared_ptr<a2a::hosts::Network> network(a2a::Deadline deadline) override {
    const a2a::SignalWatch signals(&interrupted);
    return inner_->network(deadline);
  }

 private:
  Callback callback_;
  Check check_;
  PyObject* context_;   // outlives the call that uses this
  BootstrapPtr inner_;  // the bootstrap that the callback uses, if it is one of the core's
};

// Runs in the calling thread, because communicators that one thread makes wait together.
inline CommPtr create(int rank, int size, double timeout, a2a::Check check, const When& until,
                      CallbackBootstrap::Callback callback, CallbackBootstrap::Check signals, PyObject* context,
                      BootstrapPtr inner) {
  CallbackBootstrap bootstrap(callback, signals, context, std::move(inner));
  return a2a::Communicator::create(rank, size, bootstrap, {timeout, check}, until);
}

}  // namespace a2a_py
