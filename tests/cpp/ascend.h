// Memory and streams of an Ascend device for tests, through the AscendCL that A2A_ASCENDCL_LIBRARY names: in general
// the double of tests/fakes.
#pragma once

#include <dlfcn.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "check.h"

namespace ascend {

class Acl {
 public:
  static const Acl& get() {
    static const Acl one;
    return one;
  }

  int (*init)(const char*);
  int (*set_device)(int32_t);
  int (*malloc)(void**, size_t, int);
  int (*free)(void*);
  int (*memcpy)(void*, size_t, const void*, size_t, int);
  int (*create_stream)(void**);
  int (*synchronize_stream)(void*);
  int (*stream_abort)(void*);
  int (*destroy_stream_force)(void*);

 private:
  Acl() {
    const char* const path = std::getenv("A2A_ASCENDCL_LIBRARY");
    library_ = dlopen(path != nullptr ? path : "libascendcl.so", RTLD_NOW);
    if (library_ == nullptr) {
      std::cerr << "no AscendCL: " << dlerror() << '\n';
      std::exit(1);
    }
    find("aclInit", &init), find("aclrtSetDevice", &set_device);
    find("aclrtMalloc", &malloc), find("aclrtFree", &free), find("aclrtMemcpy", &memcpy);
    find("aclrtCreateStream", &create_stream), find("aclrtSynchronizeStream", &synchronize_stream);
    find("aclrtDestroyStreamForce", &destroy_stream_force);
    stream_abort = reinterpret_cast<int (*)(void*)>(dlsym(library_, "aclrtStreamAbort"));  // not in old versions
    init(nullptr);  // or it has been called before
  }

  template <class Function>
  void find(const char* name, Function** function) {
    *function = reinterpret_cast<Function*>(dlsym(library_, name));
    if (*function == nullptr) check::fail(std::string("AscendCL lacks ") + name);
  }

  void* library_;
};

// Makes the calling thread use this device from now on, with one stream.
inline thread_local void* stream = nullptr;
inline thread_local int device = -1;
inline void use_device(int index) {
  device = index;
  CHECK_EQ(Acl::get().set_device(index), 0);
  if (stream == nullptr) CHECK_EQ(Acl::get().create_stream(&stream), 0);
}

// Memory on the thread's device.
class Memory {
 public:
  explicit Memory(size_t bytes) : bytes_(bytes) {
    CHECK_EQ(Acl::get().malloc(&data_, bytes == 0 ? 1 : bytes, kHugeFirst), 0);
  }
  ~Memory() { CHECK_EQ(Acl::get().free(data_), 0); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  void* get() const { return data_; }
  std::byte* bytes() const { return static_cast<std::byte*>(data_); }
  void upload(const std::vector<std::byte>& from) {
    if (!from.empty()) CHECK_EQ(Acl::get().memcpy(data_, bytes_, from.data(), from.size(), kToDevice), 0);
  }
  // Returns the bytes after all work on the thread's stream.
  std::vector<std::byte> download() const {
    std::vector<std::byte> to(bytes_);
    CHECK_EQ(Acl::get().synchronize_stream(stream), 0);
    if (!to.empty()) CHECK_EQ(Acl::get().memcpy(to.data(), to.size(), data_, to.size(), kToHost), 0);
    return to;
  }

 private:
  static constexpr int kHugeFirst = 0, kToDevice = 1, kToHost = 2;

  void* data_ = nullptr;
  size_t bytes_;
};

}  // namespace ascend
