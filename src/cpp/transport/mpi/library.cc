#include "transport/mpi/library.h"

#include <dlfcn.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "a2a/libraries.h"

namespace a2a::mpi {
namespace {

// Returns the names of libraries that understand the launcher of this process. With another MPI each rank would be
// alone.
std::vector<std::string> names() {
  if (std::getenv("OMPI_COMM_WORLD_SIZE") != nullptr) return {"libmpi.so.40"};
  // Debian has another name for MPICH's library.
  if (std::getenv("PMI_SIZE") != nullptr) return {"libmpi_abi.so.1", "libmpi.so.12", "libmpich.so.12"};
  return {"libmpi_abi.so.1", "libmpi.so.12", "libmpich.so.12", "libmpi.so.40"};
}

// Returns the directory of the launcher's MPI, if the launcher reveals it. Open MPI sets a variable where it was moved.
// The launchers of MPICH and Intel MPI have a process at the other end of a socket.
std::vector<std::string> directories() {
  if (const char* const prefix = std::getenv("OPAL_PREFIX")) return {std::string(prefix) + "/lib"};
  const char* const descriptor = std::getenv("PMI_FD");
  ucred proxy{};
  socklen_t length = sizeof proxy;
  if (descriptor == nullptr || ::getsockopt(std::atoi(descriptor), SOL_SOCKET, SO_PEERCRED, &proxy, &length) != 0) {
    return {};
  }
  std::error_code error;
  const auto program = std::filesystem::read_symlink("/proc/" + std::to_string(proxy.pid) + "/exe", error);
  if (error) return {};
  return {program.parent_path().parent_path() / "lib"};
}

// Whether the library claims a version of the standard ABI. Libraries with other ABIs have the function, too.
bool has_standard_abi(const DynamicLibrary& library) {
  int (*get_version)(int*, int*) = nullptr;
  library.find("MPI_Abi_get_version", &get_version);
  int major = 0, minor = 0;
  return get_version != nullptr && get_version(&major, &minor) == 0 && major >= 1;
}

// Loads the libfabric of Intel MPI's wheel, which expects a script to tell the loader and libfabric where it is.
void prepare_fabric(const std::string& directory) {
  if (directory.empty() || ::access((directory + "libfabric.so.1").c_str(), R_OK) != 0) return;
  ::setenv("FI_PROVIDER_PATH", directory.c_str(), 0);
  ::dlopen((directory + "libfabric.so.1").c_str(), RTLD_NOW | RTLD_LOCAL);  // MPI loads it by name, and gets this one
}

DynamicLibrary find() {
  auto library = DynamicLibrary::open({"MPI", "A2A_MPI_LIBRARY", names(), directories(), "mpi"});
  prepare_fabric(library.directory());
  return library;
}

}  // namespace

std::string describe(const DynamicLibrary& library) {
  constexpr size_t kLongest = 8192;  // the longest of all ABIs
  std::string text(kLongest, '\0');
  int length = 0;
  int (*get_version)(char*, int*) = nullptr;
  library.require("MPI_Get_library_version", &get_version);
  if (get_version(text.data(), &length) != 0) length = 0;
  text.resize(static_cast<size_t>(length));
  return library.where() + ": " + text.substr(0, text.find_first_of("\n\t,"));
}

std::unique_ptr<Library> open_library(std::optional<int> fortran_handle) {
  const DynamicLibrary library = find();
  if (has_standard_abi(library)) return bind_standard_abi(library, fortran_handle);
  if (library.find("ompi_mpi_comm_world") != nullptr) return bind_open_mpi_abi(library, fortran_handle);
  return bind_mpich_abi(library, fortran_handle);
}

}  // namespace a2a::mpi

std::string a2a::mpi_library() { return mpi::describe(mpi::find()); }
