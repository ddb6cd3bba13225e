// The ABI of MPI 5.0 (libmpi_abi.so.1): handles are pointers with fixed values. Constants from the standard's chapter
// on the ABI.
#include "transport/mpi/bound_library.h"

namespace a2a::mpi {
namespace {

struct StandardAbi : PointerHandles {
  static constexpr int kAnySource = -1, kAnyTag = -2;
  static constexpr int kThreadSerialized = 2048, kThreadMultiple = 4096;
  static constexpr int kTagUb = 501;
  static constexpr int kIdent = 201;
  static constexpr size_t kSourceOffset = 0, kStatusBytes = 32;

  static Comm null(const DynamicLibrary&) { return reinterpret_cast<Comm>(uintptr_t{0x100}); }
  static Comm world(const DynamicLibrary&) { return reinterpret_cast<Comm>(uintptr_t{0x101}); }
  static Comm self(const DynamicLibrary&) { return reinterpret_cast<Comm>(uintptr_t{0x102}); }
  static Datatype byte(const DynamicLibrary&) { return reinterpret_cast<Datatype>(uintptr_t{0x247}); }
  static Errhandler errors_return(const DynamicLibrary&) { return reinterpret_cast<Errhandler>(uintptr_t{0x143}); }
  static Comm from_fortran(const DynamicLibrary& library, int handle) {
    Comm (*from_int)(int) = nullptr;
    library.require("MPI_Comm_fromint", &from_int);
    const Comm comm = from_int(handle);
    // Intel MPI 2021.18.1 returns the number itself for all handles but constants. Its other calls crash on that.
    constexpr int kLargestConstant = 0xfff;
    const bool constant = handle >= 0 && handle <= kLargestConstant;
    if (!constant && reinterpret_cast<intptr_t>(comm) == handle) {
      throw Error(Code::unsupported, library.where() + ": MPI_Comm_fromint does not know the Fortran handle " +
                                         std::to_string(handle) + ", which MPI_Comm_toint may have made");
    }
    return comm;
  }
};

}  // namespace

std::unique_ptr<Library> bind_standard_abi(const DynamicLibrary& library, std::optional<int> fortran_handle) {
  return std::make_unique<BoundLibrary<StandardAbi>>(library, fortran_handle);
}

}  // namespace a2a::mpi
