// UCX, loaded while the program runs.
#pragma once

#include <string>

#include "transport/ucx/ucx_api.h"

namespace a2a::ucx {

struct Library : Api {
  std::string name;  // "UCX 1.22.0 (libucp.so.0)"
};

// Finds the library once, and keeps it. Throws Error(unsupported), with the places that were searched, when there is
// none, or when it is older than 1.10.
const Library& library();

// Throws Error(backend) with the library's text unless the status is a success.
void check(Status status, const char* call);

}  // namespace a2a::ucx
