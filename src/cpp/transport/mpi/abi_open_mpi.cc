// Open MPI's own ABI (libmpi.so.40): handles are addresses of the library's objects. Constants from its mpi.h.
#include "transport/mpi/bound_library.h"

namespace a2a::mpi {
namespace {

struct OpenMpiAbi : PointerHandles {
  static constexpr int kAnySource = -1, kAnyTag = -1;
  static constexpr int kThreadSerialized = 2, kThreadMultiple = 3;
  static constexpr int kTagUb = 0;
  static constexpr int kIdent = 0;
  static constexpr size_t kSourceOffset = 0, kStatusBytes = 24;

  template <class T>
  static T* object(const DynamicLibrary& library, const char* symbol) {
    void* found = library.find(symbol);
    if (found == nullptr) library.missing(symbol);
    return static_cast<T*>(found);
  }
  static Comm null(const DynamicLibrary& library) { return object<OpaqueComm>(library, "ompi_mpi_comm_null"); }
  static Comm world(const DynamicLibrary& library) { return object<OpaqueComm>(library, "ompi_mpi_comm_world"); }
  static Comm self(const DynamicLibrary& library) { return object<OpaqueComm>(library, "ompi_mpi_comm_self"); }
  static Datatype byte(const DynamicLibrary& library) { return object<OpaqueDatatype>(library, "ompi_mpi_byte"); }
  static Errhandler errors_return(const DynamicLibrary& library) {
    return object<OpaqueErrhandler>(library, "ompi_mpi_errors_return");
  }
  static Comm from_fortran(const DynamicLibrary& library, int handle) {
    Comm (*from_int)(int) = nullptr;
    library.require("MPI_Comm_f2c", &from_int);
    return from_int(handle);
  }
};

}  // namespace

std::unique_ptr<Library> bind_open_mpi_abi(const DynamicLibrary& library, std::optional<int> fortran_handle) {
  return std::make_unique<BoundLibrary<OpenMpiAbi>>(library, fortran_handle);
}

}  // namespace a2a::mpi
