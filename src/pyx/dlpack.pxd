# The declarations of DLPack 1.3 (structures, the C exchange API), of cpp/managed_tensors.h and cpp/python/capsules.h.
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from a2a cimport SharedMemory


# The callback by which an allocator reports an error: (error_ctx, kind, message).
ctypedef void (*SetError)(void*, const char*, const char*) noexcept nogil


cdef extern from "dlpack/dlpack.h" nogil:
    uint64_t DLPACK_FLAG_BITMASK_READ_ONLY
    uint64_t DLPACK_FLAG_BITMASK_IS_COPIED

    ctypedef enum DLDeviceType:
        kDLCPU
        kDLCUDA
        kDLCUDAHost
        kDLROCMHost
        kDLExtDev
        kDLCUDAManaged

    ctypedef enum DLDataTypeCode:
        kDLInt
        kDLUInt
        kDLFloat
        kDLBfloat
        kDLComplex
        kDLBool

    ctypedef struct DLPackVersion:
        uint32_t major
        uint32_t minor

    ctypedef struct DLDevice:
        DLDeviceType device_type
        int32_t device_id

    ctypedef struct DLDataType:
        uint8_t code
        uint8_t bits
        uint16_t lanes

    ctypedef struct DLTensor:
        void* data
        DLDevice device
        int32_t ndim
        DLDataType dtype
        int64_t* shape
        int64_t* strides        # in elements
        uint64_t byte_offset

    ctypedef struct DLManagedTensor:
        DLTensor dl_tensor
        void (*deleter)(DLManagedTensor*) noexcept

    ctypedef struct DLManagedTensorVersioned:
        DLPackVersion version
        uint64_t flags
        void (*deleter)(DLManagedTensorVersioned*) noexcept
        DLTensor dl_tensor

    ctypedef struct DLPackExchangeAPIHeader:
        DLPackVersion version
        DLPackExchangeAPIHeader* prev_api

    ctypedef struct DLPackExchangeAPI:
        DLPackExchangeAPIHeader header
        int (*managed_tensor_allocator)(DLTensor*, DLManagedTensorVersioned**, void*, SetError) noexcept
        int (*managed_tensor_from_py_object_no_sync)(void*, DLManagedTensorVersioned**) except -1
        int (*managed_tensor_to_py_object_no_sync)(DLManagedTensorVersioned*, void**) except -1
        int (*dltensor_from_py_object_no_sync)(void*, DLTensor*) except -1
        int (*current_work_stream)(DLDeviceType, int32_t, void**) except -1


cdef extern from "cpp/python/capsules.h":
    object to_capsule "a2a_py::to_capsule"(DLManagedTensorVersioned*)
    object legacy_to_capsule "a2a_py::to_capsule"(DLManagedTensor*)


cdef extern from "cpp/managed_tensors.h":
    DLManagedTensorVersioned* export_versioned "a2a_py::export_versioned"(
        const DLTensor&, SharedMemory, bint) except +
    DLManagedTensor* export_legacy "a2a_py::export_legacy"(const DLTensor&, SharedMemory) except +
    void release "a2a_py::release"(DLManagedTensorVersioned*)
    SharedMemory adopt "a2a_py::adopt"(DLManagedTensorVersioned*) except +
