// An MPI of one process that mpi_library_test.cc controls: requests complete or fail when the test wants it. It has the
// standard's ABI. Nothing is sent.
#include "scripted_mpi.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>
#include <vector>

using Handle = void*;

namespace {

uintptr_t begun = 0;
std::map<uintptr_t, int> results;  // of requests that are complete
std::vector<uintptr_t> cancelled;
int failure = 0;

uintptr_t number_of(Handle request) { return reinterpret_cast<uintptr_t>(request); }

int begin(Handle* request) {
  *request = reinterpret_cast<Handle>(++begun);
  return 0;
}

}  // namespace

extern "C" {

uintptr_t script_begun() { return begun; }
void script_complete(uintptr_t request, int result) { results[request] = result; }
void script_fail(int result) { failure = result; }
size_t script_cancelled(uintptr_t request) { return static_cast<size_t>(std::ranges::count(cancelled, request)); }

int MPI_Testsome(int count, Handle* requests, int* done, int* indices, void* statuses) {
  *done = 0;
  if (failure != 0) return failure;
  bool failed = false;
  for (int i = 0; i < count; ++i) {
    const auto result = results.find(number_of(requests[i]));
    if (result == results.end()) continue;
    struct {
      int source, tag, error, internal[5];
    } status{0, 0, result->second, {}};
    std::memcpy(static_cast<char*>(statuses) + static_cast<size_t>(*done) * sizeof(status), &status, sizeof(status));
    failed |= result->second != 0;
    indices[(*done)++] = i;
    requests[i] = nullptr;
    results.erase(result);
  }
  return failed ? kErrorInStatus : 0;
}

int MPI_Cancel(Handle* request) {
  cancelled.push_back(number_of(*request));
  return 0;
}

int MPI_Error_string(int error, char* text, int* length) {
  *length = std::sprintf(text, "error %d of the script", error);
  return 0;
}

int MPI_Isend(const void*, int, Handle, int, int, Handle, Handle* request) { return begin(request); }
int MPI_Irecv(void*, int, Handle, int, int, Handle, Handle* request) { return begin(request); }
int MPI_Imrecv(void*, int, Handle, Handle*, Handle* request) { return begin(request); }

int MPI_Get_library_version(char* text, int* length) {
  *length = std::sprintf(text, "a script");
  return 0;
}
int MPI_Initialized(int* flag) {
  *flag = 1;
  return 0;
}
int MPI_Finalized(int* flag) {
  *flag = 0;
  return 0;
}
int MPI_Query_thread(int* level) {
  constexpr int kThreadMultiple = 4096;
  *level = kThreadMultiple;
  return 0;
}
int MPI_Comm_rank(Handle, int* rank) {
  *rank = 0;
  return 0;
}
int MPI_Comm_size(Handle, int* size) {
  *size = 1;
  return 0;
}
int MPI_Test(Handle*, int* done, void*) {
  *done = 1;
  return 0;
}

// Calls without an effect.
int MPI_Init_thread(int*, char***, int, int*) { return 0; }
int MPI_Finalize() { return 0; }
int MPI_Abort(Handle, int) { return 0; }
int MPI_Ibarrier(Handle, Handle*) { return 0; }
int MPI_Comm_idup(Handle, Handle*, Handle*) { return 0; }
int MPI_Comm_test_inter(Handle, int*) { return 0; }
int MPI_Comm_group(Handle, Handle*) { return 0; }
int MPI_Group_compare(Handle, Handle, int*) { return 0; }
int MPI_Group_free(Handle*) { return 0; }
int MPI_Comm_create_keyval(void*, void*, int*, void*) { return 0; }
int MPI_Comm_set_attr(Handle, int, void*) { return 0; }
int MPI_Comm_get_attr(Handle, int, void*, int*) { return 0; }
int MPI_Comm_get_errhandler(Handle, Handle*) { return 0; }
int MPI_Errhandler_free(Handle*) { return 0; }
int MPI_Comm_set_errhandler(Handle, Handle) { return 0; }
int MPI_Improbe(int, int, Handle, int*, Handle*, void*) { return 0; }
int MPI_Get_count(void*, Handle, int*) { return 0; }

}  // extern "C"
