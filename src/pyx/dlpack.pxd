# DLPack 1.3: the structures, the C exchange API, and the few C functions that own managed tensors.
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


cdef extern from *:
    """
    #include <memory>
    #include <vector>

    namespace a2a_py {

    // The destructor of a capsule runs the deleter only when no consumer has taken the tensor and renamed the capsule.
    template <class Managed>
    void release_unused(PyObject* capsule, const char* name) {
      if (!PyCapsule_IsValid(capsule, name)) return;
      auto* managed = static_cast<Managed*>(PyCapsule_GetPointer(capsule, name));
      if (!managed->deleter) return;
      PyObject *type, *value, *traceback;  // A destructor must not change an exception that is being raised.
      PyErr_Fetch(&type, &value, &traceback);
      managed->deleter(managed);
      PyErr_Restore(type, value, traceback);
    }

    inline PyObject* to_capsule(DLManagedTensorVersioned* managed) {
      PyObject* capsule = PyCapsule_New(managed, "dltensor_versioned", [](PyObject* self) {
        release_unused<DLManagedTensorVersioned>(self, "dltensor_versioned");
      });
      if (!capsule && managed->deleter) managed->deleter(managed);
      return capsule;
    }

    inline PyObject* to_capsule(DLManagedTensor* managed) {
      PyObject* capsule = PyCapsule_New(
          managed, "dltensor", [](PyObject* self) { release_unused<DLManagedTensor>(self, "dltensor"); });
      if (!capsule && managed->deleter) managed->deleter(managed);
      return capsule;
    }

    // A managed tensor of this package. Its deleter may run on any thread, without the GIL and after the interpreter
    // has ended.
    template <class Managed>
    struct Export {
      Managed managed{};
      std::vector<int64_t> dims;  // shape, then strides
      std::shared_ptr<void> memory;
    };

    template <class Managed>
    Managed* export_tensor(const DLTensor& tensor, std::shared_ptr<void> memory) {
      auto* made = new Export<Managed>;
      made->dims.assign(tensor.shape, tensor.shape + tensor.ndim);
      made->dims.insert(made->dims.end(), tensor.strides, tensor.strides + tensor.ndim);
      made->memory = std::move(memory);
      made->managed.dl_tensor = tensor;
      made->managed.dl_tensor.shape = made->dims.data();
      made->managed.dl_tensor.strides = made->dims.data() + tensor.ndim;
      made->managed.manager_ctx = made;
      made->managed.deleter = [](Managed* self) { delete static_cast<Export<Managed>*>(self->manager_ctx); };
      return &made->managed;
    }

    inline DLManagedTensorVersioned* export_versioned(const DLTensor& tensor, std::shared_ptr<void> memory,
                                                      bool readonly) {
      auto* made = export_tensor<DLManagedTensorVersioned>(tensor, std::move(memory));
      made->version = {DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION};
      made->flags = readonly ? DLPACK_FLAG_BITMASK_READ_ONLY : 0;
      return made;
    }

    inline DLManagedTensor* export_legacy(const DLTensor& tensor, std::shared_ptr<void> memory) {
      return export_tensor<DLManagedTensor>(tensor, std::move(memory));
    }

    inline void release(DLManagedTensorVersioned* managed) {
      if (managed->deleter) managed->deleter(managed);
    }

    // Returns the memory of a managed tensor of another package, and owns it.
    inline std::shared_ptr<void> adopt(DLManagedTensorVersioned* managed) {
      return std::shared_ptr<void>(managed, [](void* self) { release(static_cast<DLManagedTensorVersioned*>(self)); });
    }

    }  // namespace a2a_py
    """
    object to_capsule "a2a_py::to_capsule"(DLManagedTensorVersioned*)
    object legacy_to_capsule "a2a_py::to_capsule"(DLManagedTensor*)
    DLManagedTensorVersioned* export_versioned "a2a_py::export_versioned"(
        const DLTensor&, SharedMemory, bint) except +
    DLManagedTensor* export_legacy "a2a_py::export_legacy"(const DLTensor&, SharedMemory) except +
    void release "a2a_py::release"(DLManagedTensorVersioned*)
    SharedMemory adopt "a2a_py::adopt"(DLManagedTensorVersioned*) except +
