// The calls by which mpi_library_test.cc controls scripted_mpi.cc. Requests are numbered from 1 in the order in which
// they begin.
#pragma once

#include <cstddef>
#include <cstdint>

constexpr int kErrorInStatus = 17;  // the result of MPI_Testsome when the statuses have errors

extern "C" {
uintptr_t script_begun();
// The next MPI_Testsome finds it complete.
void script_complete(uintptr_t request, int result);
// Makes MPI_Testsome itself fail from now on; 0: succeed.
void script_fail(int result);
// Returns how often MPI_Cancel was called for it.
size_t script_cancelled(uintptr_t request);
}
