// What mpi_library_test.cc tells scripted_mpi.cc. Requests are numbered from 1 in the order in which they begin.
#pragma once

#include <cstddef>
#include <cstdint>

constexpr int kErrorInStatus = 17;  // what MPI_Testsome returns when the statuses have errors

extern "C" {
uintptr_t script_begun();
// The next MPI_Testsome finds it complete.
void script_complete(uintptr_t request, int result);
// From now on MPI_Testsome itself fails; 0: no longer.
void script_fail(int result);
// How often MPI_Cancel was called for it.
size_t script_cancelled(uintptr_t request);
}
