#pragma once

#include "ascend/acl_functions.h"
#include "ascend/hccl_types.h"

// Communicators: in libhcomm.so of newer releases.
A2A_FAKE_API HcclResult HcclGetRootInfo(HcclRootInfo* rootInfo);
A2A_FAKE_API HcclResult HcclCommInitRootInfo(uint32_t nRanks, const HcclRootInfo* rootInfo, uint32_t rank,
                                             HcclComm* comm);
A2A_FAKE_API HcclResult HcclCommInitRootInfoConfig(uint32_t nRanks, const HcclRootInfo* rootInfo, uint32_t rank,
                                                   const HcclCommConfig* config, HcclComm* comm);
A2A_FAKE_API HcclResult HcclCommInitClusterInfo(const char* clusterInfo, uint32_t rank, HcclComm* comm);
A2A_FAKE_API HcclResult HcclCommInitClusterInfoConfig(const char* clusterInfo, uint32_t rank, HcclCommConfig* config,
                                                      HcclComm* comm);
A2A_FAKE_API HcclResult HcclCommInitAll(uint32_t ndev, int32_t* devices, HcclComm* comms);
A2A_FAKE_API HcclResult HcclCreateSubCommConfig(HcclComm* comm, uint32_t rankNum, uint32_t* rankIds, uint64_t subCommId,
                                                uint32_t subCommRankId, HcclCommConfig* config, HcclComm* subComm);
A2A_FAKE_API HcclResult HcclCommDestroy(HcclComm comm);
A2A_FAKE_API HcclResult HcclGetRankSize(HcclComm comm, uint32_t* rankSize);
A2A_FAKE_API HcclResult HcclGetRankId(HcclComm comm, uint32_t* rank);
A2A_FAKE_API HcclResult HcclGetCommName(HcclComm comm, char* commName);
A2A_FAKE_API HcclResult HcclGetCommAsyncError(HcclComm comm, HcclResult* asyncError);
A2A_FAKE_API const char* HcclGetErrorString(HcclResult code);
A2A_FAKE_API uint32_t HcclGetCommConfigCapability();
A2A_FAKE_API HcclResult HcclBarrier(HcclComm comm, aclrtStream stream);
A2A_FAKE_API HcclResult HcclGroupStart();
A2A_FAKE_API HcclResult HcclGroupEnd();

// Operations.
A2A_FAKE_API HcclResult HcclAlltoAllV(const void* sendBuf, const void* sendCounts, const void* sdispls,
                                      HcclDataType sendType, const void* recvBuf, const void* recvCounts,
                                      const void* rdispls, HcclDataType recvType, HcclComm comm, aclrtStream stream);
A2A_FAKE_API HcclResult HcclAlltoAll(const void* sendBuf, uint64_t sendCount, HcclDataType sendType,
                                     const void* recvBuf, uint64_t recvCount, HcclDataType recvType, HcclComm comm,
                                     aclrtStream stream);
A2A_FAKE_API HcclResult HcclAlltoAllVC(const void* sendBuf, const void* sendCountMatrix, HcclDataType sendType,
                                       const void* recvBuf, HcclDataType recvType, HcclComm comm, aclrtStream stream);
A2A_FAKE_API HcclResult HcclSend(void* sendBuf, uint64_t count, HcclDataType dataType, uint32_t destRank, HcclComm comm,
                                 aclrtStream stream);
A2A_FAKE_API HcclResult HcclRecv(void* recvBuf, uint64_t count, HcclDataType dataType, uint32_t srcRank, HcclComm comm,
                                 aclrtStream stream);
A2A_FAKE_API HcclResult HcclBatchSendRecv(HcclSendRecvItem* sendRecvInfo, uint32_t itemNum, HcclComm comm,
                                          aclrtStream stream);
A2A_FAKE_API HcclResult HcclAllGather(void* sendBuf, void* recvBuf, uint64_t sendCount, HcclDataType dataType,
                                      HcclComm comm, aclrtStream stream);
A2A_FAKE_API HcclResult HcclAllGatherV(void* sendBuf, uint64_t sendCount, void* recvBuf, const void* recvCounts,
                                       const void* recvDispls, HcclDataType dataType, HcclComm comm,
                                       aclrtStream stream);
A2A_FAKE_API HcclResult HcclAllReduce(void* sendBuf, void* recvBuf, uint64_t count, HcclDataType dataType,
                                      HcclReduceOp op, HcclComm comm, aclrtStream stream);
A2A_FAKE_API HcclResult HcclReduceScatter(void* sendBuf, void* recvBuf, uint64_t recvCount, HcclDataType dataType,
                                          HcclReduceOp op, HcclComm comm, aclrtStream stream);
A2A_FAKE_API HcclResult HcclReduce(void* sendBuf, void* recvBuf, uint64_t count, HcclDataType dataType, HcclReduceOp op,
                                   uint32_t root, HcclComm comm, aclrtStream stream);
A2A_FAKE_API HcclResult HcclBroadcast(void* buf, uint64_t count, HcclDataType dataType, uint32_t root, HcclComm comm,
                                      aclrtStream stream);
A2A_FAKE_API HcclResult HcclScatter(void* sendBuf, void* recvBuf, uint64_t recvCount, HcclDataType dataType,
                                    uint32_t root, HcclComm comm, aclrtStream stream);
