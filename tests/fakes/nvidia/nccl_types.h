// NCCL as its users see it. Written from the documentation of the interface; tests/python/devices/test_fake_abi.py
// compares it with the vendor's header where that is installed, as far as that is new enough: what is newer than 2.18
// has its first version behind it.
#pragma once

#include <limits.h>
#include <stddef.h>
#include <stdint.h>

typedef struct ncclComm* ncclComm_t;
typedef struct ncclWindow_vidmem* ncclWindow_t;
typedef struct CUstream_st* cudaStream_t;

typedef struct {
  char internal[128];
} ncclUniqueId;  // passed by value

typedef enum {
  ncclSuccess = 0,
  ncclUnhandledCudaError = 1,
  ncclSystemError = 2,
  ncclInternalError = 3,
  ncclInvalidArgument = 4,
  ncclInvalidUsage = 5,
  ncclRemoteError = 6,
  ncclInProgress = 7,
  ncclTimeout = 8,  // 2.30.3
} ncclResult_t;

typedef enum {
  ncclInt8 = 0,
  ncclUint8 = 1,
  ncclInt32 = 2,
  ncclUint32 = 3,
  ncclInt64 = 4,
  ncclUint64 = 5,
  ncclFloat16 = 6,
  ncclFloat32 = 7,
  ncclFloat64 = 8,
  ncclBfloat16 = 9,
  ncclFloat8e4m3 = 10,  // 2.24
  ncclFloat8e5m2 = 11,  // 2.24
  ncclNumTypes = 12,    // 2.24
} ncclDataType_t;

typedef enum {
  ncclSum = 0,
  ncclProd = 1,
  ncclMax = 2,
  ncclMin = 3,
  ncclAvg = 4,
  ncclNumOps = 5,
} ncclRedOp_t;

enum {
  NCCL_CONFIG_UNDEF_INT = INT_MIN,
  NCCL_SPLIT_NOCOLOR = -1,
  NCCL_WIN_REQUIRED_ALIGNMENT = 4096,  // 2.28
  NCCL_SHRINK_DEFAULT = 0,             // 2.27
  NCCL_SHRINK_ABORT = 1,               // 2.27
};
const uint32_t NCCL_API_MAGIC = 0xcafebeef;  // 2.29

// Grows at its end: a program's size and version say which fields it knows.
typedef struct ncclConfig_fake {
  size_t size;
  unsigned int magic;
  unsigned int version;
  int blocking;
  int cgaClusterSize;
  int minCTAs;
  int maxCTAs;
  const char* netName;
  int splitShare;
  int trafficClass;         // 2.26
  const char* commName;     // 2.27
  int collnetEnable;        // 2.27
  int CTAPolicy;            // 2.27
  int shrinkShare;          // 2.27
  int nvlsCTAs;             // 2.27
  int nChannelsPerNetPeer;  // 2.28
  int nvlinkCentricSched;   // 2.28
  int graphUsageMode;       // 2.29
  int numRmaCtx;            // 2.29
  int maxP2pPeers;          // 2.30
  int graphStreamOrdering;  // 2.30.7
  int launchOrderImplicit;  // 2.31
  int numRmaSig;            // 2.31
  int rmaEagerInit;         // 2.31
  int hostCftMode;          // 2.31
  int nvlsHostMode;         // 2.32
} ncclConfig_t;
