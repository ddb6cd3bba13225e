#pragma once

#include "nvidia/cuda_types.h"

#ifndef A2A_FAKE_API
#define A2A_FAKE_API extern "C" __attribute__((visibility("default")))
#endif

A2A_FAKE_API CUresult cuInit(unsigned int Flags);
A2A_FAKE_API CUresult cuDriverGetVersion(int* driverVersion);
A2A_FAKE_API CUresult cuGetErrorString(CUresult error, const char** pStr);
A2A_FAKE_API CUresult cuGetErrorName(CUresult error, const char** pStr);
A2A_FAKE_API CUresult cuGetProcAddress_v2(const char* symbol, void** pfn, int cudaVersion, cuuint64_t flags,
                                          CUdriverProcAddressQueryResult* symbolStatus);

A2A_FAKE_API CUresult cuDeviceGetCount(int* count);
A2A_FAKE_API CUresult cuDeviceGet(CUdevice* device, int ordinal);
A2A_FAKE_API CUresult cuDeviceGetName(char* name, int len, CUdevice dev);
A2A_FAKE_API CUresult cuDeviceGetAttribute(int* pi, CUdevice_attribute attrib, CUdevice dev);
A2A_FAKE_API CUresult cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice dev);
A2A_FAKE_API CUresult cuDevicePrimaryCtxRetain(CUcontext* pctx, CUdevice dev);
A2A_FAKE_API CUresult cuDevicePrimaryCtxRelease_v2(CUdevice dev);
A2A_FAKE_API CUresult cuCtxGetCurrent(CUcontext* pctx);
A2A_FAKE_API CUresult cuCtxSetCurrent(CUcontext ctx);
A2A_FAKE_API CUresult cuCtxPushCurrent_v2(CUcontext ctx);
A2A_FAKE_API CUresult cuCtxPopCurrent_v2(CUcontext* pctx);
A2A_FAKE_API CUresult cuCtxGetDevice(CUdevice* device);
A2A_FAKE_API CUresult cuCtxSynchronize();

A2A_FAKE_API CUresult cuMemAlloc_v2(CUdeviceptr* dptr, size_t bytesize);
A2A_FAKE_API CUresult cuMemFree_v2(CUdeviceptr dptr);
A2A_FAKE_API CUresult cuMemAllocHost_v2(void** pp, size_t bytesize);
A2A_FAKE_API CUresult cuMemHostAlloc(void** pp, size_t bytesize, unsigned int Flags);
A2A_FAKE_API CUresult cuMemFreeHost(void* p);
A2A_FAKE_API CUresult cuMemGetAddressRange_v2(CUdeviceptr* pbase, size_t* psize, CUdeviceptr dptr);
A2A_FAKE_API CUresult cuPointerGetAttribute(void* data, CUpointer_attribute attribute, CUdeviceptr ptr);
A2A_FAKE_API CUresult cuMemcpyHtoD_v2(CUdeviceptr dstDevice, const void* srcHost, size_t ByteCount);
A2A_FAKE_API CUresult cuMemcpyDtoH_v2(void* dstHost, CUdeviceptr srcDevice, size_t ByteCount);
A2A_FAKE_API CUresult cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t ByteCount, CUstream hStream);
A2A_FAKE_API CUresult cuMemsetD8_v2(CUdeviceptr dstDevice, unsigned char uc, size_t N);

A2A_FAKE_API CUresult cuStreamCreate(CUstream* phStream, unsigned int Flags);
A2A_FAKE_API CUresult cuStreamCreateWithPriority(CUstream* phStream, unsigned int flags, int priority);
A2A_FAKE_API CUresult cuStreamDestroy_v2(CUstream hStream);
A2A_FAKE_API CUresult cuStreamSynchronize(CUstream hStream);
A2A_FAKE_API CUresult cuStreamQuery(CUstream hStream);
A2A_FAKE_API CUresult cuStreamGetCtx(CUstream hStream, CUcontext* pctx);
A2A_FAKE_API CUresult cuStreamWaitEvent(CUstream hStream, CUevent hEvent, unsigned int Flags);
A2A_FAKE_API CUresult cuStreamWriteValue32_v2(CUstream stream, CUdeviceptr addr, cuuint32_t value, unsigned int flags);
A2A_FAKE_API CUresult cuStreamWaitValue32_v2(CUstream stream, CUdeviceptr addr, cuuint32_t value, unsigned int flags);
A2A_FAKE_API CUresult cuEventCreate(CUevent* phEvent, unsigned int Flags);
A2A_FAKE_API CUresult cuEventRecord(CUevent hEvent, CUstream hStream);
A2A_FAKE_API CUresult cuEventQuery(CUevent hEvent);
A2A_FAKE_API CUresult cuEventSynchronize(CUevent hEvent);
A2A_FAKE_API CUresult cuEventDestroy_v2(CUevent hEvent);

A2A_FAKE_API CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode);
A2A_FAKE_API CUresult cuStreamIsCapturing(CUstream hStream, CUstreamCaptureStatus* captureStatus);
A2A_FAKE_API CUresult cuStreamBeginCapture_v2(CUstream hStream, CUstreamCaptureMode mode);
A2A_FAKE_API CUresult cuStreamEndCapture(CUstream hStream, CUgraph* phGraph);
A2A_FAKE_API CUresult cuGraphInstantiateWithFlags(CUgraphExec* phGraphExec, CUgraph hGraph, unsigned long long flags);
A2A_FAKE_API CUresult cuGraphLaunch(CUgraphExec hGraphExec, CUstream hStream);
A2A_FAKE_API CUresult cuGraphExecDestroy(CUgraphExec hGraphExec);
A2A_FAKE_API CUresult cuGraphDestroy(CUgraph hGraph);
