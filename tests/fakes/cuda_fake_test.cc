// The CUDA driver double keeps the documented rules.
#include "nvidia/testing.h"

using isolated::contains;
using nvidia::Array;
using nvidia::Stream;

TEST("a double does nothing without the word of the environment") {
  isolated::run([] {
    unsetenv("A2A_TEST_DOUBLES");
    CHECK_EQ(cuInit(0), CUDA_ERROR_NO_DEVICE);
    ncclUniqueId id;
    int version;
    CHECK_EQ(ncclGetUniqueId(&id), ncclSystemError);
    CHECK_EQ(ncclGetVersion(&version), ncclSystemError);
    CHECK(contains(ncclGetLastError(nullptr), "A2A_TEST_DOUBLES"));
    setenv("A2A_TEST_DOUBLES", "1", 1);
  });
}

TEST("calls need cuInit, then a current context") {
  if (!isolated::kCanFork) return;  // a process has one cuInit
  isolated::run([] {
    int count = 0;
    CUcontext context, other, current;
    CUdeviceptr address;
    CHECK_EQ(cuDeviceGetCount(&count), CUDA_ERROR_NOT_INITIALIZED);
    CHECK_EQ(cuInit(1), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQ(cuInit(0), CUDA_SUCCESS);
    CHECK_EQ(cuInit(0), CUDA_SUCCESS);
    CHECK_EQ(cuDeviceGetCount(&count), CUDA_SUCCESS);
    CHECK_EQ(count, 8);
    CHECK_EQ(cuMemAlloc_v2(&address, 10), CUDA_ERROR_INVALID_CONTEXT);
    CHECK_EQ(cuDevicePrimaryCtxRetain(&context, 8), CUDA_ERROR_INVALID_DEVICE);
    CHECK_EQ(cuDevicePrimaryCtxRetain(&context, 1), CUDA_SUCCESS);
    CHECK_EQ(cuDevicePrimaryCtxRetain(&other, 1), CUDA_SUCCESS);
    CHECK(context == other);
    CHECK_EQ(cuCtxGetCurrent(&current), CUDA_SUCCESS);
    CHECK(current == nullptr);  // retaining does not make it current
    CHECK_EQ(cuCtxPushCurrent_v2(context), CUDA_SUCCESS);
    int device = -1;
    CHECK_EQ(cuCtxGetDevice(&device), CUDA_SUCCESS);
    CHECK_EQ(device, 1);
    CHECK_EQ(cuDevicePrimaryCtxRetain(&other, 2), CUDA_SUCCESS);
    CHECK_EQ(cuCtxPushCurrent_v2(other), CUDA_SUCCESS);
    CHECK_EQ(cuCtxGetDevice(&device), CUDA_SUCCESS);
    CHECK_EQ(device, 2);
    std::thread([&] { CHECK_EQ(cuMemAlloc_v2(&address, 10), CUDA_ERROR_INVALID_CONTEXT); }).join();
    CHECK_EQ(cuCtxPopCurrent_v2(&current), CUDA_SUCCESS);
    CHECK(current == other);
    CHECK_EQ(cuCtxGetDevice(&device), CUDA_SUCCESS);
    CHECK_EQ(device, 1);
    CHECK_EQ(cuDevicePrimaryCtxRelease_v2(1), CUDA_SUCCESS);
    CHECK_EQ(cuMemAlloc_v2(&address, 10), CUDA_SUCCESS);
    CHECK_EQ(cuDevicePrimaryCtxRelease_v2(1), CUDA_SUCCESS);
    CHECK_EQ(cuMemAlloc_v2(&address, 10), CUDA_ERROR_CONTEXT_IS_DESTROYED);
    CHECK_EQ(cuDevicePrimaryCtxRelease_v2(1), CUDA_ERROR_INVALID_CONTEXT);
    CHECK_EQ(cuCtxPopCurrent_v2(nullptr), CUDA_SUCCESS);
    CHECK_EQ(cuCtxPopCurrent_v2(nullptr), CUDA_ERROR_INVALID_CONTEXT);
    const char* text = nullptr;
    CHECK_EQ(cuGetErrorString(CUDA_ERROR_INVALID_CONTEXT, &text), CUDA_SUCCESS);
    CHECK_EQ(std::string(text), "invalid device context");
  });
}

TEST("functions are found by their plain names and a version") {
  isolated::run([] {
    void* function = nullptr;
    CUdriverProcAddressQueryResult status;
    CHECK_EQ(cuGetProcAddress_v2("cuMemAlloc", &function, 12000, 0, &status), CUDA_SUCCESS);
    CHECK(function == reinterpret_cast<void*>(cuMemAlloc_v2));
    CHECK_EQ(status, CU_GET_PROC_ADDRESS_SUCCESS);
    CHECK_EQ(cuGetProcAddress_v2("cuMemAlloc_v2", &function, 12000, 0, &status), CUDA_SUCCESS);
    CHECK_EQ(status, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
    CHECK_EQ(cuGetProcAddress_v2("cuStreamBeginCapture", &function, 10000, 0, &status), CUDA_SUCCESS);
    CHECK_EQ(status, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
    CHECK(function == nullptr);
    CHECK_EQ(cuGetProcAddress_v2("cuNothing", &function, 12000, 0, nullptr), CUDA_ERROR_NOT_FOUND);
  });
}

TEST("pointers tell where they point; copies look at them") {
  isolated::run([] {
    nvidia::start(5);
    const Array<char> array(1000, 'x');
    unsigned type = 0;
    int device = -1;
    CUdeviceptr base = 0;
    size_t size = 0;
    const auto attribute = [&](void* into, CUpointer_attribute which, CUdeviceptr pointer) {
      return cuPointerGetAttribute(into, which, pointer);
    };
    const CUdeviceptr inside = array.address + 999;
    CHECK_EQ(attribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, inside), CUDA_SUCCESS);
    CHECK_EQ(type, CU_MEMORYTYPE_DEVICE);
    CHECK_EQ(attribute(&device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, inside), CUDA_SUCCESS);
    CHECK_EQ(device, 5);
    CHECK_EQ(attribute(&base, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, inside), CUDA_SUCCESS);
    CHECK_EQ(base, array.address);
    CHECK_EQ(cuMemGetAddressRange_v2(&base, &size, inside), CUDA_SUCCESS);
    CHECK_EQ(size, 1000);
    CHECK_EQ(attribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, array.address + 1000), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQ(attribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, reinterpret_cast<CUdeviceptr>(&type)),
             CUDA_ERROR_INVALID_VALUE);
    void* host = nullptr;
    CHECK_EQ(cuMemAllocHost_v2(&host, 10), CUDA_SUCCESS);
    CHECK_EQ(attribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, reinterpret_cast<CUdeviceptr>(host)), CUDA_SUCCESS);
    CHECK_EQ(type, CU_MEMORYTYPE_HOST);
    CHECK_EQ(cuMemFreeHost(host), CUDA_SUCCESS);
    char bytes[10] = {};
    CHECK_EQ(cuMemcpyDtoH_v2(bytes, array.address + 995, 6), CUDA_ERROR_INVALID_VALUE);  // beyond the end
    CHECK_EQ(cuMemcpyHtoD_v2(reinterpret_cast<CUdeviceptr>(bytes), bytes, 6), CUDA_ERROR_INVALID_VALUE);
    const Stream stream;
    CHECK_EQ(cuMemcpyAsync(reinterpret_cast<CUdeviceptr>(bytes), array.address + 1, 6, stream), CUDA_SUCCESS);
    CHECK_EQ(bytes[5], 'x');  // pageable memory is written before the call returns
    CHECK_EQ(cuMemFree_v2(array.address + 1), CUDA_ERROR_INVALID_VALUE);
  });
}

TEST("streams and events") {
  isolated::run(
      [] {
        nvidia::start(0);
        const Array<int> a(64, 1), b(64, 2), c(64, 3);
        const Stream first, second;
        CUevent event;
        CUcontext mine, its;
        CHECK_EQ(cuCtxGetCurrent(&mine), CUDA_SUCCESS);
        CHECK_EQ(cuStreamGetCtx(first, &its), CUDA_SUCCESS);
        CHECK_EQ(its, mine);
        CHECK_EQ(cuEventCreate(&event, CU_EVENT_INTERPROCESS), CUDA_ERROR_INVALID_VALUE);  // without DISABLE_TIMING
        CHECK_EQ(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
        CHECK_EQ(cuEventQuery(event), CUDA_SUCCESS);  // never recorded
        CHECK_EQ(cuStreamWaitEvent(second, event, 0), CUDA_SUCCESS);
        for (int i = 0; i < 10; ++i) CHECK_EQ(cuMemcpyAsync(b.address, a.address, 256, first), CUDA_SUCCESS);
        CHECK_EQ(cuEventRecord(event, first), CUDA_SUCCESS);
        CHECK_EQ(cuEventQuery(event), CUDA_ERROR_NOT_READY);
        CHECK_EQ(cuStreamQuery(first), CUDA_ERROR_NOT_READY);
        CHECK_EQ(cuStreamWaitEvent(second, event, 0), CUDA_SUCCESS);
        CHECK_EQ(cuMemcpyAsync(c.address, b.address, 256, second), CUDA_SUCCESS);
        CHECK_EQ(cuStreamSynchronize(second), CUDA_SUCCESS);
        CHECK_EQ(c.values()[63], 1);
        CHECK_EQ(cuEventQuery(event), CUDA_SUCCESS);
        CHECK_EQ(cuEventDestroy_v2(event), CUDA_SUCCESS);
        CHECK_EQ(cuEventRecord(event, first), CUDA_ERROR_INVALID_HANDLE);
        for (const uintptr_t number : {0, 1, 2}) {  // streams that nobody creates
          const auto special = reinterpret_cast<CUstream>(number);
          CHECK_EQ(cuMemcpyAsync(c.address, b.address, 256, special), CUDA_SUCCESS);
          CHECK_EQ(cuStreamSynchronize(special), CUDA_SUCCESS);
        }
        CUstream gone;
        CHECK_EQ(cuStreamCreate(&gone, 0), CUDA_SUCCESS);
        CHECK_EQ(cuStreamDestroy_v2(gone), CUDA_SUCCESS);
        CHECK_EQ(cuStreamSynchronize(gone), CUDA_ERROR_INVALID_CONTEXT);
        // A stream that waits for a word, and another that writes it.
        CHECK_EQ(cuMemsetD8_v2(a.address, 0, 256), CUDA_SUCCESS);
        CHECK_EQ(cuStreamWaitValue32_v2(first, a.address, 5, CU_STREAM_WAIT_VALUE_GEQ), CUDA_SUCCESS);
        CHECK_EQ(cuMemcpyAsync(c.address, a.address, 256, first), CUDA_SUCCESS);
        CHECK_EQ(cuStreamQuery(first), CUDA_ERROR_NOT_READY);
        CHECK_EQ(cuStreamWriteValue32_v2(second, a.address, 6, 0), CUDA_SUCCESS);
        CHECK_EQ(cuStreamSynchronize(first), CUDA_SUCCESS);
        CHECK_EQ(c.values()[0], 6);
      },
      {{"A2A_FAKE_DELAY_US", "5000"}});
}

TEST("a captured stream does nothing until the graph is launched, each time anew") {
  isolated::run([] {
    nvidia::start(0);
    const Array<int> a(64, 1), b(64, 2), c(64, 3);
    const Stream first, second;
    CUevent fork_event, join_event;
    CHECK_EQ(cuEventCreate(&fork_event, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
    CHECK_EQ(cuEventCreate(&join_event, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
    CUgraph graph;
    CUgraphExec executable;
    CUstreamCaptureStatus status;
    CHECK_EQ(cuStreamBeginCapture_v2(first, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
    CHECK_EQ(cuMemcpyAsync(b.address, a.address, 256, first), CUDA_SUCCESS);
    CHECK_EQ(cuEventRecord(fork_event, first), CUDA_SUCCESS);
    CHECK_EQ(cuStreamWaitEvent(second, fork_event, 0), CUDA_SUCCESS);  // joins the capture
    CHECK_EQ(cuStreamIsCapturing(second, &status), CUDA_SUCCESS);
    CHECK_EQ(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
    CHECK_EQ(cuMemcpyAsync(c.address, b.address, 256, second), CUDA_SUCCESS);
    CHECK_EQ(cuEventRecord(join_event, second), CUDA_SUCCESS);
    CHECK_EQ(cuStreamWaitEvent(first, join_event, 0), CUDA_SUCCESS);
    CHECK_EQ(cuStreamEndCapture(first, &graph), CUDA_SUCCESS);
    CHECK_EQ(cuStreamIsCapturing(second, &status), CUDA_SUCCESS);
    CHECK_EQ(status, CU_STREAM_CAPTURE_STATUS_NONE);
    CHECK_EQ(cuGraphInstantiateWithFlags(&executable, graph, 0), CUDA_SUCCESS);
    CHECK_EQ(cuGraphDestroy(graph), CUDA_SUCCESS);
    CHECK_EQ(c.values()[0], 3);
    for (const int value : {7, 8}) {
      CHECK_EQ(cuMemcpyHtoD_v2(a.address, std::vector<int>(64, value).data(), 256), CUDA_SUCCESS);
      CHECK_EQ(cuGraphLaunch(executable, first), CUDA_SUCCESS);
      CHECK_EQ(cuStreamSynchronize(first), CUDA_SUCCESS);
      CHECK_EQ(c.values()[63], value);
    }
    CHECK_EQ(cuGraphExecDestroy(executable), CUDA_SUCCESS);
    CHECK_EQ(cuGraphLaunch(executable, first), CUDA_ERROR_INVALID_VALUE);
  });
}

TEST("a capture forbids what waits, allocates, or does not come back") {
  isolated::run([] {
    nvidia::start(0);
    const Array<int> a(64, 1);
    CUevent event, outside;
    CHECK_EQ(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
    CHECK_EQ(cuEventCreate(&outside, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
    const auto spoiled = [&](CUresult code, CUstreamCaptureMode mode, const std::function<CUresult(CUstream)>& what,
                             CUresult at_end = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED) {
      const Stream stream;
      CUgraph graph;
      CHECK_EQ(cuEventRecord(outside, stream), CUDA_SUCCESS);
      CHECK_EQ(cuStreamBeginCapture_v2(stream, mode), CUDA_SUCCESS);
      CHECK_EQ(what(stream), code);
      CHECK_EQ(cuStreamEndCapture(stream, &graph), at_end);
    };
    CUdeviceptr memory;
    const auto allocates = [&](CUstream) { return cuMemAlloc_v2(&memory, 10); };
    const auto elsewhere = [&](CUstream) {
      CUresult result;
      std::thread([&] {
        nvidia::start(0);
        result = cuMemAlloc_v2(&memory, 10);
      }).join();
      return result;
    };
    constexpr auto kNo = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    spoiled(kNo, CU_STREAM_CAPTURE_MODE_RELAXED, [](CUstream s) { return cuStreamSynchronize(s); });
    spoiled(kNo, CU_STREAM_CAPTURE_MODE_RELAXED, [](CUstream s) { return cuStreamQuery(s); });
    spoiled(kNo, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, allocates);
    spoiled(kNo, CU_STREAM_CAPTURE_MODE_GLOBAL, elsewhere);
    spoiled(CUDA_SUCCESS, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, elsewhere, CUDA_SUCCESS);
    spoiled(CUDA_SUCCESS, CU_STREAM_CAPTURE_MODE_RELAXED, allocates, CUDA_SUCCESS);
    spoiled(CUDA_ERROR_STREAM_CAPTURE_ISOLATION, CU_STREAM_CAPTURE_MODE_RELAXED,
            [&](CUstream s) { return cuStreamWaitEvent(s, outside, 0); });
    const Stream other;
    spoiled(
        CUDA_ERROR_CAPTURED_EVENT, CU_STREAM_CAPTURE_MODE_RELAXED,
        [&](CUstream s) {
          CHECK_EQ(cuEventRecord(event, s), CUDA_SUCCESS);
          CHECK_EQ(cuStreamWaitEvent(other, event, 0), CUDA_SUCCESS);
          CHECK_EQ(cuMemcpyAsync(a.address, a.address + 128, 128, other), CUDA_SUCCESS);  // not joined
          return cuEventQuery(event);
        },
        CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
    CHECK_EQ(cuStreamBeginCapture_v2(nullptr, CU_STREAM_CAPTURE_MODE_RELAXED), kNo);
  });
}

TEST("a child of a process that used the device cannot use it") {
  if (!isolated::kCanFork) return;
  isolated::run([] {
    nvidia::start(0);
    const pid_t child = isolated::start([] {
      int count;
      CHECK_EQ(cuDeviceGetCount(&count), CUDA_ERROR_NOT_INITIALIZED);
      CHECK_EQ(cuInit(0), CUDA_ERROR_NOT_INITIALIZED);
    });
    CHECK_EQ(isolated::wait(child), 0);
  });
}
