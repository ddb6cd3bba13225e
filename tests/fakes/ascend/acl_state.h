// What the files of the AscendCL double share.
#pragma once

#include <memory>
#include <string>

#include "ascend/acl_functions.h"
#include "engine/stream.h"

namespace fake {

// Sets this thread's error text and returns the code.
aclError acl_refuse(aclError code, const std::string& text);
// ... or success, when there is no failure.
aclError acl_result(const Failure& failure);

// Whether calls may be made: after aclInit, in this process, and where `device` says so in a thread that has a current
// device.
aclError acl_ready(bool device = true);

// The stream of a handle, null being the current device's own one; null when it does not exist.
std::shared_ptr<Stream> acl_stream(aclrtStream handle);

}  // namespace fake

// The rules that come first in each call.
#define A2A_FAKE_READY(...) \
  if (const aclError not_ready = fake::acl_ready(__VA_ARGS__)) return not_ready
#define A2A_FAKE_NOT_NULL(pointer) \
  if (!(pointer)) return fake::acl_refuse(ACL_ERROR_INVALID_PARAM, #pointer " is null")
