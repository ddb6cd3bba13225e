// The AscendCL names that ATB's structs use. If the including program has the official headers, in any order, they are
// the official ones; otherwise they are declared here with the same values.
#pragma once

#if defined(INC_EXTERNAL_ACL_ACL_BASE_H_) || defined(INC_EXTERNAL_ACL_ACL_BASE_RT_H_)
// The program has included them already.
#elif __has_include(<acl/acl_base.h>)
#include <acl/acl_base.h>
#else

using aclrtStream = void*;

enum aclDataType : int {
  ACL_DT_UNDEFINED = -1,
  ACL_FLOAT = 0,
  ACL_FLOAT16 = 1,
  ACL_INT8 = 2,
  ACL_INT32 = 3,
  ACL_UINT8 = 4,
  ACL_INT16 = 6,
  ACL_UINT16 = 7,
  ACL_UINT32 = 8,
  ACL_INT64 = 9,
  ACL_UINT64 = 10,
  ACL_DOUBLE = 11,
  ACL_BOOL = 12,
  ACL_STRING = 13,
  ACL_COMPLEX64 = 16,
  ACL_COMPLEX128 = 17,
  ACL_BF16 = 27,
  ACL_FLOAT8_E5M2 = 35,
  ACL_FLOAT8_E4M3FN = 36,
};

enum aclFormat : int {
  ACL_FORMAT_UNDEFINED = -1,
  ACL_FORMAT_NCHW = 0,
  ACL_FORMAT_NHWC = 1,
  ACL_FORMAT_ND = 2,
  ACL_FORMAT_NC1HWC0 = 3,
  ACL_FORMAT_FRACTAL_NZ = 29,
};

#endif

static_assert(sizeof(aclDataType) == 4 && sizeof(aclFormat) == 4);
static_assert(ACL_DT_UNDEFINED == -1 && ACL_FLOAT == 0 && ACL_FLOAT16 == 1 && ACL_INT8 == 2 && ACL_INT32 == 3 &&
              ACL_INT16 == 6 && ACL_INT64 == 9 && ACL_BF16 == 27);
static_assert(ACL_FORMAT_UNDEFINED == -1 && ACL_FORMAT_ND == 2);
