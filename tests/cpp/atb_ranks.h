// Helpers for the tests of a2a/atb.h: ranks that know each other only by their parameters, and tensors in the memory of
// the backend under test. `atb_test --backend=NAME` chooses the backend. For another kind of memory than the host's
// only `Memory` differs.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "a2a/atb.h"
#include "ascend.h"
#include "check.h"

namespace atb = a2a::atb;

namespace ranks {

using Mode = atb::infer::CommMode;
using Body = std::function<void(int rank, Mode mode)>;

inline std::string backend() { return check::option("backend", "shm"); }

// Starts a child process that runs the body and exits with whether its checks passed.
inline pid_t fork_child(const std::string& name, const std::function<void()>& body) {
  std::cout.flush();
  const pid_t child = fork();
  if (child != 0) return child;
  alarm(120);
  check::failures = 0;
  check::shown_until = 20;
  check::guarded(name, body);
  std::cerr.flush();
  _exit(check::failures == 0 ? 0 : 1);
}

inline void require_good_end(pid_t child) {
  int status = -1;
  waitpid(child, &status, 0);
  CHECK_EQ(status, 0);
}

inline void enter_device(int rank) {
  if (backend() == "hccl") ascend::use_device(rank);
}

inline void as_threads(int n, const Body& body) {
  check::threads(n, [&](int rank) {
    enter_device(rank);
    body(rank, atb::infer::COMM_MULTI_THREAD);
  });
}

// Runs the ranks as threads, then as processes.
inline void everywhere(int n, const Body& body) {
#if defined(__SANITIZE_THREAD__)  // it does not see other processes, and does not support fork() well
  as_threads(n, body);
#else
  if (backend() == "hccl") {  // its drivers do not survive a fork()
    require_good_end(fork_child("threads", [&] { as_threads(n, body); }));
  } else {
    as_threads(n, body);
  }
  std::vector<pid_t> children;
  for (int rank = 0; rank < n; ++rank) {
    children.push_back(fork_child("rank " + std::to_string(rank), [&, rank] {
      const check::Note note("rank", static_cast<uint64_t>(rank));
      enter_device(rank);
      body(rank, atb::infer::COMM_MULTI_PROCESS);
    }));
  }
  for (const pid_t child : children) require_good_end(child);
#endif
}

// Memory that the backend under test moves.
class Memory {
 public:
  explicit Memory(size_t bytes) : host_(bytes) {
    if (backend() == "hccl") device_ = std::make_unique<ascend::Memory>(bytes);
  }
  void* get() { return device_ ? device_->get() : host_.data(); }
  void upload(const std::vector<std::byte>& from) {
    host_ = from;
    if (device_) device_->upload(from);
  }
  std::vector<std::byte> download() const { return device_ ? device_->download() : host_; }
  static aclrtStream new_stream() { return ascend::stream; }

 private:
  std::vector<std::byte> host_;
  std::unique_ptr<ascend::Memory> device_;
};

inline atb::TensorDesc desc(const std::vector<int64_t>& shape, aclDataType dtype = ACL_FLOAT,
                            aclFormat format = ACL_FORMAT_ND) {
  atb::TensorDesc result;
  result.dtype = dtype;
  result.format = format;
  result.shape.dimNum = shape.size();
  std::copy_n(shape.begin(), std::min<size_t>(shape.size(), atb::MAX_DIM), result.shape.dims);
  return result;
}

// Returns a tensor with this description over memory of as many bytes.
inline atb::Tensor tensor(const atb::TensorDesc& desc, void* data) {
  atb::Tensor result;
  result.desc = desc;
  result.deviceData = data;
  result.dataSize = atb::Utils::GetTensorSize(desc);
  return result;
}

struct Deleter {
  void operator()(atb::Context* context) const { atb::DestroyContext(context); }
  void operator()(atb::Operation* operation) const { atb::DestroyOperation(operation); }
};
using Context = std::unique_ptr<atb::Context, Deleter>;
using Operation = std::unique_ptr<atb::Operation, Deleter>;

inline Context new_context(double timeout = 60) {
  atb::Context* made = nullptr;
  CHECK_EQ(atb::CreateContext(&made), atb::NO_ERROR);
  made->SetExecuteStream(Memory::new_stream());
  made->SetTimeout(timeout);
  return Context(made);
}

template <class Param>
Operation new_operation(const Param& param) {
  atb::Operation* made = nullptr;
  if (!CHECK_EQ(atb::CreateOperation(param, &made), atb::NO_ERROR)) check::fail(atb::LastFailure().text);
  return Operation(made);
}

// Whether a call failed with this status and these words.
inline bool failed(atb::Status status, atb::ErrorType wanted, const std::string& words,
                   check::Where where = check::Where::current()) {
  const auto& last = atb::LastFailure();
  if (status == wanted && (status == atb::NO_ERROR || last.text.find(words) != std::string::npos)) return true;
  return check::fail(
      "status " + std::to_string(status) + ": " + last.text + "\n  wanted " + std::to_string(wanted) + ": " + words,
      where);
}

}  // namespace ranks
