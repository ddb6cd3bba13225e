// The doubles come in several shapes. This program links none but libascendcl.so, because what a program links is found
// before what it loads.
#include <dlfcn.h>

#include "ascend/testing.h"

TEST("every double says that it is one") {
  for (const char* file : {"liba2a_fake_device.so", "libascendcl.so", "libhccl.so", "split/libhccl.so",
                           "split/libhcomm.so", "old/libhccl.so", "old/libascendcl.so"}) {
    void* const library = dlopen((std::string(A2A_FAKES "/") + file).c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!CHECK(library)) continue;
    const auto* const text = static_cast<const char*>(dlsym(library, "a2a_test_double"));
    CHECK(isolated::contains(text, "test double"));
  }
}

TEST("libhccl.so without communicators finds those of libhcomm.so; an old one lacks what is new") {
  isolated::run([] {
    void* const split = dlopen(A2A_FAKES "/split/libhccl.so", RTLD_NOW | RTLD_LOCAL);
    void* const comm_library = dlopen(A2A_FAKES "/split/libhcomm.so", RTLD_NOW | RTLD_LOCAL);
    void* const old = dlopen(A2A_FAKES "/old/libhccl.so", RTLD_NOW | RTLD_LOCAL);
    void* const old_acl = dlopen(A2A_FAKES "/old/libascendcl.so", RTLD_NOW | RTLD_LOCAL);
    if (!CHECK(split && comm_library && old && old_acl)) return;
    CHECK(dlsym(split, "HcclAlltoAllV") && dlsym(split, "HcclCommInitRootInfo") && dlsym(split, "HcclGroupStart"));
    CHECK(dlsym(comm_library, "HcclCommInitRootInfo") && !dlsym(comm_library, "HcclAlltoAllV"));
    CHECK(dlsym(old, "HcclAlltoAllV") && dlsym(old, "HcclCommInitRootInfo") && dlsym(old_acl, "aclrtCreateStream"));
    for (const char* name : {"HcclCommInitRootInfoConfig", "HcclCommInitClusterInfoConfig", "HcclCreateSubCommConfig",
                             "HcclGetCommConfigCapability", "HcclAllGatherV", "HcclBatchSendRecv", "HcclGetCommName",
                             "HcclGroupStart", "HcclGroupEnd", "HcclGetErrorString"}) {
      CHECK(!dlsym(old, name) && dlsym(split, name));
    }
    CHECK(!dlsym(old_acl, "aclrtStreamAbort"));

    // The two halves share their communicators.
    ascend::start(0);
    const ascend::Stream stream;
    const auto init = reinterpret_cast<decltype(&HcclCommInitRootInfo)>(dlsym(split, "HcclCommInitRootInfo"));
    const auto get_root = reinterpret_cast<decltype(&HcclGetRootInfo)>(dlsym(split, "HcclGetRootInfo"));
    const auto gather = reinterpret_cast<decltype(&HcclAllGather)>(dlsym(split, "HcclAllGather"));
    HcclRootInfo root;
    HcclComm comm;
    CHECK_EQ(get_root(&root), HCCL_SUCCESS);
    CHECK_EQ(init(1, &root, 0, &comm), HCCL_SUCCESS);
    const ascend::Array<int> from(1, 5), to(1, -1);
    CHECK_EQ(gather(from.data, to.data, 1, HCCL_DATA_TYPE_INT32, comm, stream), HCCL_SUCCESS);
    CHECK_EQ(aclrtSynchronizeStream(stream), ACL_SUCCESS);
    CHECK_EQ(to.values(), std::vector{5});
  });
}
