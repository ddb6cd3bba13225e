// The AscendCL double and the device below it keep the documented rules.
#include "ascend/testing.h"

using ascend::Array;
using ascend::Stream;
using isolated::contains;

namespace {

constexpr auto kToDevice = ACL_MEMCPY_HOST_TO_DEVICE;
constexpr auto kToHost = ACL_MEMCPY_DEVICE_TO_HOST;
constexpr auto kOnDevice = ACL_MEMCPY_DEVICE_TO_DEVICE;

}  // namespace

TEST("a double does nothing without the word of the environment") {
  isolated::run([] {
    unsetenv("A2A_TEST_DOUBLES");
    CHECK_EQ(aclInit(nullptr), ACL_ERROR_RT_FAILURE);
    CHECK(contains(aclGetRecentErrMsg(), "A2A_TEST_DOUBLES"));
    HcclRootInfo root;
    CHECK(HcclGetRootInfo(&root) != HCCL_SUCCESS);
    setenv("A2A_TEST_DOUBLES", "1", 1);
  });
}

TEST("calls in the wrong order fail") {
  if (!isolated::kCanFork) return;  // a process has one aclInit
  isolated::run([] {
    aclrtStream stream;
    CHECK_EQ(aclrtSetDevice(0), ACL_ERROR_UNINITIALIZE);
    CHECK_EQ(aclFinalize(), ACL_ERROR_UNINITIALIZE);
    CHECK_EQ(aclInit(nullptr), ACL_SUCCESS);
    CHECK_EQ(aclInit(nullptr), ACL_ERROR_REPEAT_INITIALIZE);
    CHECK_EQ(aclrtCreateStream(&stream), ACL_ERROR_RT_CONTEXT_NULL);
    uint32_t count = 0;
    CHECK_EQ(aclrtGetDeviceCount(&count), ACL_SUCCESS);
    CHECK_EQ(count, 8);
    CHECK_EQ(aclrtSetDevice(8), ACL_ERROR_RT_INVALID_DEVICEID);
    CHECK_EQ(aclrtSetDevice(7), ACL_SUCCESS);
    int32_t device = -1;
    CHECK_EQ(aclrtGetDevice(&device), ACL_SUCCESS);
    CHECK_EQ(device, 7);
    std::thread([&] { CHECK_EQ(aclrtCreateStream(&stream), ACL_ERROR_RT_CONTEXT_NULL); }).join();
    aclrtContext context;
    CHECK_EQ(aclrtCreateContext(&context, 3), ACL_SUCCESS);
    std::thread([&] {
      CHECK_EQ(aclrtSetCurrentContext(context), ACL_SUCCESS);
      CHECK_EQ(aclrtGetDevice(&device), ACL_SUCCESS);
      CHECK_EQ(device, 3);
    }).join();
    CHECK_EQ(aclrtDestroyContext(context), ACL_SUCCESS);
    CHECK_EQ(aclrtSetCurrentContext(context), ACL_ERROR_RT_INVALID_HANDLE);
    CHECK_EQ(aclFinalize(), ACL_SUCCESS);
    CHECK_EQ(aclFinalize(), ACL_ERROR_REPEAT_FINALIZE);
    CHECK_EQ(aclrtSetDevice(0), ACL_ERROR_UNINITIALIZE);
  });
}

TEST("pointers tell where they point") {
  isolated::run([] {
    ascend::start(5);
    const Array<char> array(1000, 'x');
    const auto type_of = [](const void* pointer) {
      aclrtPtrAttributes attributes;
      CHECK_EQ(aclrtPointerGetAttributes(pointer, &attributes), ACL_SUCCESS);
      return std::pair(attributes.location.type, attributes.location.id);
    };
    CHECK(type_of(array.data) == std::pair(ACL_MEM_LOCATION_TYPE_DEVICE, 5u));
    CHECK(type_of(array.data + 999) == std::pair(ACL_MEM_LOCATION_TYPE_DEVICE, 5u));
    CHECK(type_of(array.data + 1000).first == ACL_MEM_LOCATION_TYPE_UNREGISTERED);
    CHECK(type_of(&array).first == ACL_MEM_LOCATION_TYPE_UNREGISTERED);
    void* host = nullptr;
    CHECK_EQ(aclrtMallocHost(&host, 10), ACL_SUCCESS);
    CHECK(type_of(host).first == ACL_MEM_LOCATION_TYPE_HOST);
    std::memset(host, 1, 10);
    CHECK_EQ(aclrtFree(host), ACL_ERROR_RT_MEMORY_FREE);
    CHECK_EQ(aclrtFreeHost(host), ACL_SUCCESS);
    CHECK_EQ(aclrtFree(array.data + 1), ACL_ERROR_RT_MEMORY_FREE);
  });
}

TEST("a host that touches device memory crashes, unless it is asked for") {
  if (!isolated::kCanFork) return;
  const auto touch = [] {
    ascend::start(0);
    const Array<char> array(10, 'x');
    signal(SIGSEGV, [](int) { _exit(77); });
    CHECK_EQ(*static_cast<volatile char*>(array.data), 'x');
  };
  CHECK_EQ(WEXITSTATUS(isolated::wait(isolated::start(touch))), 77);
  CHECK_EQ(isolated::wait(isolated::start(touch, {{"A2A_FAKE_HOST_ACCESS", "1"}})), 0);
}

TEST("copies have rules") {
  isolated::run([] {
    ascend::start(0);
    const Stream stream;
    const Array<char> a(256, 'a'), b(256, 'b');
    char host[256] = {};
    CHECK_EQ(aclrtMemcpy(a.data, 256, host, 256, kToHost), ACL_ERROR_INVALID_PARAM);  // not what the addresses are
    CHECK_EQ(aclrtMemcpy(a.data, 256, b.data, 256, kToDevice), ACL_ERROR_INVALID_PARAM);
    CHECK_EQ(aclrtMemcpy(a.data, 100, host, 101, kToDevice), ACL_ERROR_INVALID_PARAM);
    CHECK_EQ(aclrtMemcpy(a.data + 200, 256, host, 57, kToDevice), ACL_ERROR_INVALID_PARAM);  // beyond the end
    CHECK_EQ(aclrtMemcpy(nullptr, 256, host, 1, kToDevice), ACL_ERROR_INVALID_PARAM);
    CHECK_EQ(aclrtMemcpy(host, 256, a.data, 256, ACL_MEMCPY_DEFAULT), ACL_SUCCESS);
    CHECK_EQ(host[255], 'a');
    // Both addresses of an asynchronous copy within a device are multiples of 64.
    CHECK_EQ(aclrtMemcpyAsync(a.data + 64, 192, b.data + 128, 65, kOnDevice, stream), ACL_SUCCESS);
    CHECK_EQ(aclrtMemcpyAsync(a.data + 1, 255, b.data, 64, kOnDevice, stream), ACL_ERROR_RT_ADDR_UNALIGNED);
    CHECK_EQ(aclrtMemcpyAsync(a.data, 256, b.data + 32, 64, kOnDevice, stream), ACL_ERROR_RT_ADDR_UNALIGNED);
    CHECK_EQ(aclrtMemcpyAsync(a.data + 1, 255, host, 5, kToDevice, stream), ACL_SUCCESS);
    CHECK_EQ(aclrtSynchronizeStream(stream), ACL_SUCCESS);
    CHECK_EQ(std::string(a.values().data(), 8), "aaaaaaaa");
    CHECK_EQ(std::string(a.values().data() + 62, 6), "aabbbb");
  });
}

TEST("work on a stream is done later, in order") {
  isolated::run(
      [] {
        ascend::start(0);
        const Stream stream;
        const Array<int> a(64, 1), b(64, 2), c(64, 3);
        CHECK_EQ(aclrtMemcpyAsync(c.data, 256, b.data, 256, kOnDevice, stream), ACL_SUCCESS);
        CHECK_EQ(aclrtMemcpyAsync(b.data, 256, a.data, 256, kOnDevice, stream), ACL_SUCCESS);
        int late = 0;
        for (int i = 0; i < 20; ++i) {
          aclrtStreamStatus status;
          CHECK_EQ(aclrtMemcpyAsync(b.data, 256, a.data, 256, kOnDevice, stream), ACL_SUCCESS);
          CHECK_EQ(aclrtStreamQuery(stream, &status), ACL_SUCCESS);
          late += status == ACL_STREAM_STATUS_NOT_READY;
        }
        CHECK(late > 10);
        CHECK_EQ(aclrtSynchronizeStreamWithTimeout(stream, 0), ACL_ERROR_RT_STREAM_SYNC_TIMEOUT);
        CHECK_EQ(aclrtDestroyStream(stream), ACL_ERROR_RT_STREAM_NOT_COMPLETE);
        CHECK_EQ(aclrtSynchronizeStream(stream), ACL_SUCCESS);
        CHECK_EQ(c.values()[63], 2);
        CHECK_EQ(b.values()[63], 1);
        CHECK_EQ(aclrtDestroyStream(stream), ACL_SUCCESS);
        CHECK_EQ(aclrtSynchronizeStream(stream), ACL_ERROR_RT_INVALID_HANDLE);
      },
      {{"A2A_FAKE_DELAY_US", "20000"}});
}

TEST("events order streams") {
  isolated::run(
      [] {
        ascend::start(0);
        const Stream first, second;
        const Array<int> a(64, 1), b(64, 2), c(64, 3);
        aclrtEvent event;
        aclrtEventRecordedStatus status;
        CHECK_EQ(aclrtCreateEventWithFlag(&event, 1), ACL_SUCCESS);
        CHECK_EQ(aclrtQueryEventStatus(event, &status), ACL_SUCCESS);
        CHECK_EQ(status, ACL_EVENT_RECORDED_STATUS_NOT_READY);
        CHECK_EQ(aclrtStreamWaitEvent(second, event), ACL_ERROR_RT_PARAM_INVALID);  // never recorded
        for (int i = 0; i < 10; ++i) {
          CHECK_EQ(aclrtMemcpyAsync(b.data, 256, a.data, 256, kOnDevice, first), ACL_SUCCESS);
        }
        CHECK_EQ(aclrtRecordEvent(event, first), ACL_SUCCESS);
        CHECK_EQ(aclrtStreamWaitEvent(second, event), ACL_SUCCESS);
        CHECK_EQ(aclrtMemcpyAsync(c.data, 256, b.data, 256, kOnDevice, second), ACL_SUCCESS);
        CHECK_EQ(aclrtSynchronizeEvent(event), ACL_SUCCESS);
        CHECK_EQ(aclrtQueryEventStatus(event, &status), ACL_SUCCESS);
        CHECK_EQ(status, ACL_EVENT_RECORDED_STATUS_COMPLETE);
        CHECK_EQ(aclrtSynchronizeStream(second), ACL_SUCCESS);
        CHECK_EQ(c.values()[0], 1);
        CHECK_EQ(aclrtDestroyEvent(event), ACL_SUCCESS);
        CHECK_EQ(aclrtRecordEvent(event, first), ACL_ERROR_RT_INVALID_HANDLE);
      },
      {{"A2A_FAKE_DELAY_US", "2000"}});
}

TEST("an aborted stream stays aborted") {
  isolated::run(
      [] {
        ascend::start(0);
        const Stream stream;
        const Array<int> a(64, 1), b(64, 2);
        for (int i = 0; i < 50; ++i) {
          CHECK_EQ(aclrtMemcpyAsync(b.data, 256, a.data, 256, kOnDevice, stream), ACL_SUCCESS);
        }
        CHECK_EQ(aclrtStreamAbort(stream), ACL_SUCCESS);
        CHECK_EQ(aclrtSynchronizeStream(stream), ACL_ERROR_RT_STREAM_ABORT);
        CHECK(contains(aclGetRecentErrMsg(), "aborted"));
        CHECK(aclGetRecentErrMsg() == nullptr);  // said once
        CHECK_EQ(aclrtMemcpyAsync(b.data, 256, a.data, 256, kOnDevice, stream), ACL_SUCCESS);
        CHECK_EQ(aclrtSynchronizeStream(stream), ACL_ERROR_RT_STREAM_ABORT);
        CHECK_EQ(aclrtStreamAbort(nullptr), ACL_ERROR_INVALID_PARAM);
      },
      {{"A2A_FAKE_DELAY_US", "20000"}});
}

TEST("a child of a process that used the device cannot use it; the parent goes on") {
  if (!isolated::kCanFork) return;
  isolated::run([] {
    ascend::start(0);
    const Stream stream;
    const Array<int> a(64, 1), b(64, 2);
    CHECK_EQ(aclrtMemcpyAsync(b.data, 256, a.data, 256, kOnDevice, stream), ACL_SUCCESS);
    const pid_t child = isolated::start([&] {
      CHECK_EQ(aclrtSetDevice(0), ACL_ERROR_UNINITIALIZE);
      CHECK(contains(aclGetRecentErrMsg(), "fork()"));
      CHECK_EQ(aclInit(nullptr), ACL_ERROR_RT_FAILURE);
      CHECK_EQ(aclrtSynchronizeStream(stream), ACL_ERROR_UNINITIALIZE);
      HcclRootInfo root;
      CHECK(HcclGetRootInfo(&root) != HCCL_SUCCESS);
    });
    CHECK_EQ(isolated::wait(child), 0);
    CHECK_EQ(aclrtSynchronizeStream(stream), ACL_SUCCESS);
    CHECK_EQ(b.values()[0], 1);
  });
}

TEST("a process may end with work in flight") {
  if (!isolated::kCanFork) return;
  const pid_t pid = isolated::start(
      [] {
        ascend::start(0);
        const Stream stream;
        const Array<int> a(64, 1), b(64, 2);
        for (int i = 0; i < 100; ++i) {
          CHECK_EQ(aclrtMemcpyAsync(b.data, 256, a.data, 256, kOnDevice, stream), ACL_SUCCESS);
        }
        exit(7);  // runs what runs at the end of a process
      },
      {{"A2A_FAKE_DELAY_US", "5000"}}, 10);
  CHECK_EQ(WEXITSTATUS(isolated::wait(pid)), 7);
}
