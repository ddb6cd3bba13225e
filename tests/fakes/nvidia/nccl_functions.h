#pragma once

#include "nvidia/nccl_types.h"

#ifndef A2A_FAKE_API
#define A2A_FAKE_API extern "C" __attribute__((visibility("default")))
#endif

A2A_FAKE_API ncclResult_t ncclGetVersion(int* version);
A2A_FAKE_API const char* ncclGetErrorString(ncclResult_t result);
A2A_FAKE_API const char* ncclGetLastError(ncclComm_t comm);

A2A_FAKE_API ncclResult_t ncclGetUniqueId(ncclUniqueId* uniqueId);
A2A_FAKE_API ncclResult_t ncclCommInitRank(ncclComm_t* comm, int nranks, ncclUniqueId commId, int rank);
A2A_FAKE_API ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int nranks, ncclUniqueId commId, int rank,
                                                 ncclConfig_t* config);
A2A_FAKE_API ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* newcomm, ncclConfig_t* config);
A2A_FAKE_API ncclResult_t ncclCommFinalize(ncclComm_t comm);
A2A_FAKE_API ncclResult_t ncclCommDestroy(ncclComm_t comm);
A2A_FAKE_API ncclResult_t ncclCommAbort(ncclComm_t comm);
A2A_FAKE_API ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* asyncError);
A2A_FAKE_API ncclResult_t ncclCommCount(const ncclComm_t comm, int* count);
A2A_FAKE_API ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int* device);
A2A_FAKE_API ncclResult_t ncclCommUserRank(const ncclComm_t comm, int* rank);

A2A_FAKE_API ncclResult_t ncclGroupStart();
A2A_FAKE_API ncclResult_t ncclGroupEnd();
A2A_FAKE_API ncclResult_t ncclSend(const void* sendbuff, size_t count, ncclDataType_t datatype, int peer,
                                   ncclComm_t comm, cudaStream_t stream);
A2A_FAKE_API ncclResult_t ncclRecv(void* recvbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm,
                                   cudaStream_t stream);
A2A_FAKE_API ncclResult_t ncclAllGather(const void* sendbuff, void* recvbuff, size_t sendcount, ncclDataType_t datatype,
                                        ncclComm_t comm, cudaStream_t stream);
A2A_FAKE_API ncclResult_t ncclAllReduce(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype,
                                        ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream);
A2A_FAKE_API ncclResult_t ncclReduceScatter(const void* sendbuff, void* recvbuff, size_t recvcount,
                                            ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm,
                                            cudaStream_t stream);
A2A_FAKE_API ncclResult_t ncclReduce(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype,
                                     ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream);
A2A_FAKE_API ncclResult_t ncclBroadcast(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype,
                                        int root, ncclComm_t comm, cudaStream_t stream);

// Newer than 2.18, with the first version.
A2A_FAKE_API ncclResult_t ncclMemAlloc(void** ptr, size_t size);                                            // 2.19
A2A_FAKE_API ncclResult_t ncclMemFree(void* ptr);                                                           // 2.19
A2A_FAKE_API ncclResult_t ncclCommRegister(const ncclComm_t comm, void* buff, size_t size, void** handle);  // 2.19
A2A_FAKE_API ncclResult_t ncclCommDeregister(const ncclComm_t comm, void* handle);                          // 2.19
A2A_FAKE_API ncclResult_t ncclCommInitRankScalable(ncclComm_t* newcomm, int nranks, int myrank, int nId,
                                                   ncclUniqueId* commIds, ncclConfig_t* config);  // 2.23
A2A_FAKE_API ncclResult_t ncclCommShrink(ncclComm_t comm, int* excludeRanksList, int excludeRanksCount,
                                         ncclComm_t* newcomm, ncclConfig_t* config, int shrinkFlags);  // 2.27
A2A_FAKE_API ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void* buff, size_t size, ncclWindow_t* win,
                                                 int winFlags);                         // 2.27
A2A_FAKE_API ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t win);  // 2.27
A2A_FAKE_API ncclResult_t ncclAlltoAll(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype,
                                       ncclComm_t comm, cudaStream_t stream);  // 2.28.3
A2A_FAKE_API ncclResult_t ncclCommRevoke(ncclComm_t comm, int revokeFlags);    // 2.28.7
