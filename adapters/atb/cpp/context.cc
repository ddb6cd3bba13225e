
#include "failure.h"

namespace a2a::atb {
namespace {

class HostContext final : public Context {
 public:
  Status SetExecuteStream(aclrtStream stream) override {
    streams_.assign(1, stream);
    return NO_ERROR;
  }
  aclrtStream GetExecuteStream() const override { return streams_.empty() ? nullptr : streams_[0]; }

  Status SetExecuteStreams(const std::vector<aclrtStream>& streams) override {
    return guarded(ERROR_INTERNAL_ERROR, [&] { streams_ = streams; });
  }
  std::vector<aclrtStream> GetExecuteStreams() override { return streams_; }

  Status SetAsyncTilingCopyStatus(bool enable) override {
    async_tiling_ = enable;  // nothing here is tiled
    return NO_ERROR;
  }
  bool GetAsyncTilingCopyStatus() const override { return async_tiling_; }

  Status SetExecuteType(ExecuteType type) override {
    return guarded(ERROR_INVALID_PARAM, [&] { want("ExecuteType", type, EXECUTE_NORMAL); });
  }
  ExecuteType GetExecuteType() override { return EXECUTE_NORMAL; }

  Status SetLaunchMode(LaunchMode mode) override {
    return guarded(ERROR_INVALID_PARAM, [&] { want("LaunchMode", mode, KERNEL_LAUNCH_MODE); });
  }
  LaunchMode GetLaunchMode() override { return KERNEL_LAUNCH_MODE; }

  Status SetTimeout(double seconds) override {
    return guarded(ERROR_INVALID_PARAM, [&] {
      if (!(seconds >= 0)) refuse(ERROR_INVALID_PARAM, "the timeout of ", seconds, " s is negative or not a number");
      timeout_ = seconds;
    });
  }
  double GetTimeout() const override { return timeout_; }

 private:
  static void want(const char* name, int value, int only) {
    if (value != only) refuse(ERROR_INVALID_PARAM, name, " ", value, " is not supported, only ", only, " is");
  }

  std::vector<aclrtStream> streams_;
  bool async_tiling_ = false;
  double timeout_ = 600;
};

Failure& failure() {
  static thread_local Failure last;
  return last;
}

}  // namespace

Status CreateContext(Context** context) {
  return guarded(ERROR_INTERNAL_ERROR, [&] {
    if (context == nullptr) refuse(ERROR_INVALID_PARAM, "CreateContext: context is null");
    *context = new HostContext;
  });
}

Status DestroyContext(Context* context) {
  return guarded(ERROR_INTERNAL_ERROR, [&] {
    if (context == nullptr) refuse(ERROR_INVALID_PARAM, "DestroyContext: context is null");
    delete context;
  });
}

const Failure& LastFailure() { return failure(); }

Status keep_failure(ErrorType status, Code code, const char* text) noexcept {
  failure().status = status;
  failure().code = code;
  try {
    failure().text = text;
  } catch (const std::exception&) {
    failure().text.clear();
  }
  return status;
}

}  // namespace a2a::atb
