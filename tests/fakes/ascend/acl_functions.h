#pragma once

#include "ascend/acl_types.h"

#ifndef A2A_FAKE_API
#define A2A_FAKE_API extern "C" __attribute__((visibility("default")))
#endif

A2A_FAKE_API aclError aclInit(const char* configPath);
A2A_FAKE_API aclError aclFinalize();
A2A_FAKE_API const char* aclrtGetSocName();
A2A_FAKE_API const char* aclGetRecentErrMsg();

A2A_FAKE_API aclError aclrtGetDeviceCount(uint32_t* count);
A2A_FAKE_API aclError aclrtSetDevice(int32_t deviceId);
A2A_FAKE_API aclError aclrtResetDevice(int32_t deviceId);
A2A_FAKE_API aclError aclrtGetDevice(int32_t* deviceId);
A2A_FAKE_API aclError aclrtSynchronizeDevice();
A2A_FAKE_API aclError aclrtCreateContext(aclrtContext* context, int32_t deviceId);
A2A_FAKE_API aclError aclrtDestroyContext(aclrtContext context);
A2A_FAKE_API aclError aclrtGetCurrentContext(aclrtContext* context);
A2A_FAKE_API aclError aclrtSetCurrentContext(aclrtContext context);

A2A_FAKE_API aclError aclrtCreateStream(aclrtStream* stream);
A2A_FAKE_API aclError aclrtCreateStreamWithConfig(aclrtStream* stream, uint32_t priority, uint32_t flag);
A2A_FAKE_API aclError aclrtDestroyStream(aclrtStream stream);
A2A_FAKE_API aclError aclrtDestroyStreamForce(aclrtStream stream);
A2A_FAKE_API aclError aclrtSynchronizeStream(aclrtStream stream);
A2A_FAKE_API aclError aclrtSynchronizeStreamWithTimeout(aclrtStream stream, int32_t timeout);
A2A_FAKE_API aclError aclrtStreamQuery(aclrtStream stream, aclrtStreamStatus* status);
A2A_FAKE_API aclError aclrtStreamAbort(aclrtStream stream);
A2A_FAKE_API aclError aclrtCreateEvent(aclrtEvent* event);
A2A_FAKE_API aclError aclrtCreateEventWithFlag(aclrtEvent* event, uint32_t flag);
A2A_FAKE_API aclError aclrtDestroyEvent(aclrtEvent event);
A2A_FAKE_API aclError aclrtRecordEvent(aclrtEvent event, aclrtStream stream);
A2A_FAKE_API aclError aclrtResetEvent(aclrtEvent event, aclrtStream stream);
A2A_FAKE_API aclError aclrtStreamWaitEvent(aclrtStream stream, aclrtEvent event);
A2A_FAKE_API aclError aclrtQueryEventStatus(aclrtEvent event, aclrtEventRecordedStatus* status);
A2A_FAKE_API aclError aclrtSynchronizeEvent(aclrtEvent event);

A2A_FAKE_API aclError aclrtMalloc(void** devPtr, size_t size, aclrtMemMallocPolicy policy);
A2A_FAKE_API aclError aclrtFree(void* devPtr);
A2A_FAKE_API aclError aclrtMallocHost(void** hostPtr, size_t size);
A2A_FAKE_API aclError aclrtFreeHost(void* hostPtr);
A2A_FAKE_API aclError aclrtMemcpy(void* dst, size_t destMax, const void* src, size_t count, aclrtMemcpyKind kind);
A2A_FAKE_API aclError aclrtMemcpyAsync(void* dst, size_t destMax, const void* src, size_t count, aclrtMemcpyKind kind,
                                       aclrtStream stream);
A2A_FAKE_API aclError aclrtMemset(void* devPtr, size_t maxCount, int32_t value, size_t count);
A2A_FAKE_API aclError aclrtPointerGetAttributes(const void* ptr, aclrtPtrAttributes* attributes);
