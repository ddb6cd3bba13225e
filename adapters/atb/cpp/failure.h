// Converts exceptions to ATB's status codes, at the edge of every public call.
#pragma once

#include <exception>
#include <new>
#include <sstream>
#include <string>
#include <utility>

#include "a2a/atb.h"

namespace a2a::atb {

// An error with a status.
struct StatusError : Error {
  StatusError(ErrorType status_, Code code, const std::string& text) : Error(code, text), status(status_) {}
  ErrorType status;
};

// Throws because a check failed: refuse(ERROR_INVALID_PARAM, "rankSize [", 0, "] is ...").
template <class... Parts>
[[noreturn]] void refuse(ErrorType status, const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  throw StatusError(status, Code::invalid_argument, text.str());
}

// Stores the result of LastFailure() until the next failure of this thread. Returns the status.
Status keep_failure(ErrorType status, Code code, const char* text) noexcept;

// Runs a public call. An error without a status comes from the core. It becomes ERROR_INVALID_PARAM if this rank's
// arguments are wrong, and `otherwise` if not.
template <class Body>
Status guarded(ErrorType otherwise, Body&& body) noexcept {
  try {
    std::forward<Body>(body)();
    return NO_ERROR;
  } catch (const StatusError& error) {
    return keep_failure(error.status, error.code(), error.what());
  } catch (const Error& error) {
    const bool ours = error.code() == Code::invalid_argument;
    return keep_failure(ours ? ERROR_INVALID_PARAM : otherwise, error.code(), error.what());
  } catch (const std::bad_alloc&) {
    return keep_failure(ERROR_OUT_OF_HOST_MEMORY, Code::backend, "out of host memory");
  } catch (const std::exception& error) {
    return keep_failure(ERROR_INTERNAL_ERROR, Code::backend, error.what());
  }
}

}  // namespace a2a::atb
