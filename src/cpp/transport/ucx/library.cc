#include "transport/ucx/library.h"

#include <cstdlib>

#include "a2a/libraries.h"
#include "runtime/dynamic_library.h"

namespace a2a::ucx {
namespace {

constexpr unsigned kMajor = 1, kMinor = 10;  // of the oldest that has the calls below

DynamicLibrary open() {
  // UCX would write a stack of its own at a crash, in place of the program's handler.
  ::setenv("UCX_HANDLE_ERRORS", "none", 0);
  return DynamicLibrary::open({"UCX", "A2A_UCX_LIBRARY", {"libucp.so.0"}, {}, "ucx"});
}

Library bind() {
  const DynamicLibrary found = open();
  Library api;
  found.require("ucp_get_version", &api.get_version);
  found.require("ucp_get_version_string", &api.get_version_string);
  api.name = "UCX " + std::string(api.get_version_string());
  api.name = api.name.substr(0, api.name.find(' ', 4)) + found.where().substr(3);
  unsigned major = 0, minor = 0, release = 0;
  api.get_version(&major, &minor, &release);
  if (major != kMajor || minor < kMinor) throw Error(Code::unsupported, api.name + " is not of version 1.10 or later");
  found.require("ucp_config_read", &api.config_read);
  found.require("ucp_config_release", &api.config_release);
  found.require("ucp_init_version", &api.init_version);
  found.require("ucp_cleanup", &api.cleanup);
  found.require("ucp_worker_create", &api.worker_create);
  found.require("ucp_worker_destroy", &api.worker_destroy);
  found.require("ucp_worker_get_address", &api.worker_get_address);
  found.require("ucp_worker_release_address", &api.worker_release_address);
  found.require("ucp_worker_progress", &api.worker_progress);
  found.require("ucp_worker_get_efd", &api.worker_get_efd);
  found.require("ucp_worker_arm", &api.worker_arm);
  found.require("ucp_ep_create", &api.ep_create);
  found.require("ucp_ep_close_nbx", &api.ep_close_nbx);
  found.find("ucp_ep_query", &api.ep_query);
  found.require("ucp_tag_send_nbx", &api.tag_send_nbx);
  found.require("ucp_tag_recv_nbx", &api.tag_recv_nbx);
  found.require("ucp_tag_probe_nb", &api.tag_probe_nb);
  found.require("ucp_tag_msg_recv_nbx", &api.tag_msg_recv_nbx);
  found.require("ucp_request_cancel", &api.request_cancel);
  found.require("ucp_request_free", &api.request_free);
  found.require("ucp_request_check_status", &api.request_check_status);
  found.require("ucs_status_string", &api.status_string);  // the loader looks in libucs, too, which libucp needs
  return api;
}

}  // namespace

const Library& library() {
  static const Library& one = *new Library(bind());
  return one;
}

void check(Status status, const char* call) {
  if (status >= kOk) return;
  throw Error(Code::backend, library().name + ": " + call + ": " + library().status_string(status));
}

}  // namespace a2a::ucx

std::string a2a::ucx_library() { return ucx::library().name; }
