// The ABI that MPICH, Intel MPI and others share (libmpi.so.12): handles are integers. Constants from MPICH's mpi.h.
#include "transport/mpi/bound_library.h"

namespace a2a::mpi {
namespace {

struct MpichAbi {
  using Comm = int;
  using Request = int;
  using Message = int;
  using Group = int;
  using Datatype = int;
  using Errhandler = int;

  static constexpr int kAnySource = -2, kAnyTag = -1;
  static constexpr int kThreadSerialized = 2, kThreadMultiple = 3;
  static constexpr int kTagUb = 0x64400001;
  static constexpr int kIdent = 0;
  static constexpr size_t kSourceOffset = 8, kStatusBytes = 20;

  static Comm null(const DynamicLibrary&) { return 0x04000000; }
  static Comm world(const DynamicLibrary&) { return 0x44000000; }
  static Comm self(const DynamicLibrary&) { return 0x44000001; }
  static Datatype byte(const DynamicLibrary&) { return 0x4c00010d; }
  static Errhandler errors_return(const DynamicLibrary&) { return 0x54000001; }
  static Comm from_fortran(const DynamicLibrary&, int handle) { return handle; }
};

}  // namespace

std::unique_ptr<Library> bind_mpich_abi(const DynamicLibrary& library, std::optional<int> fortran_handle) {
  return std::make_unique<BoundLibrary<MpichAbi>>(library, fortran_handle);
}

}  // namespace a2a::mpi
