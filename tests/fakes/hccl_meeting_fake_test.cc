// How ranks of the HCCL double find each other: root infos and rank tables.
#include <filesystem>
#include <fstream>

#include "hccl_ranks.h"

using ascend::Array;
using isolated::contains;

TEST("ranks that do not find each other") {
  isolated::run(
      [] {
        ascend::start(0);
        HcclRootInfo root;
        HcclComm comm;
        CHECK_EQ(HcclGetRootInfo(&root), HCCL_SUCCESS);
        CHECK_EQ(HcclCommInitRootInfo(2, &root, 0, &comm), HCCL_E_TIMEOUT);
        CHECK(contains(aclGetRecentErrMsg(), "EI0015"));
        CHECK_EQ(HcclCommInitRootInfo(2, &root, 1, &comm), HCCL_E_TIMEOUT);
        CHECK_EQ(HcclCommInitRootInfo(2, &root, 2, &comm), HCCL_E_PARA);
        CHECK_EQ(HcclCommInitRootInfo(0, &root, 0, &comm), HCCL_E_PARA);
        for (const size_t byte : {0, 5, 2000, 4107}) {  // each one counts
          HcclRootInfo damaged = root;
          damaged.internal[byte] = static_cast<char>(damaged.internal[byte] + 1);
          CHECK_EQ(HcclCommInitRootInfo(1, &damaged, 0, &comm), HCCL_E_PARA);
        }
        std::thread([&] { CHECK_EQ(HcclGetRootInfo(&root), HCCL_E_RUNTIME); }).join();  // no device
      },
      {{"A2A_FAKE_CONNECT_TIMEOUT", "0.3"}});
  isolated::run([] {
    ascend::start(0);
    HcclRootInfo root;
    CHECK_EQ(HcclGetRootInfo(&root), HCCL_SUCCESS);
    check::threads(2, [&](int rank) {
      ascend::start(0);
      HcclComm own;
      CHECK_EQ(HcclCommInitRootInfo(static_cast<uint32_t>(2 + rank), &root, static_cast<uint32_t>(rank), &own),
               HCCL_E_PARA);  // 2 ranks, or 3?
      CHECK(contains(aclGetRecentErrMsg(), "says there are"));
    });
  });
}

namespace {

const std::string kTable = R"({"status":"completed","version":"1.0","server_count":"1","server_list":[
  {"server_id":"node_0","device":[{"device_id":"0","device_ip":"192.168.1.8","rank_id":"0"},
                                  {"device_id":"1","device_ip":"192.168.1.9","rank_id":"1"}]}],"more":[1, {"a":true}]})";
const std::string kSuperPod = R"({"status":"completed","version":"1.2","server_list":[
  {"server_id":"a","host_ip":"1.2.3.4","device":[{"device_id":"0","super_device_id":"0","rank_id":"0"}]},
  {"server_id":"b","host_ip":"1.2.3.5","device":[{"device_id":"0","super_device_id":"1","rank_id":"1"}]}],
  "super_pod_list":[{"super_pod_id":"0","server_list":[{"server_id":"a"},{"server_id":"b"}]}]})";

struct TableFile {
  explicit TableFile(const std::string& content)
      : path(std::filesystem::temp_directory_path() / ("a2a-fake-table-" + std::to_string(getpid()))) {
    std::ofstream(path) << content;
  }
  ~TableFile() { std::filesystem::remove(path); }
  const std::string path;
};

std::string changed(std::string table, const std::string& from, const std::string& to) {
  return table.replace(table.find(from), from.size(), to);
}

}  // namespace

TEST("rank tables bring ranks together, again and again") {
  for (const std::string& content : {kTable, kSuperPod}) {
    const TableFile table(content);
    isolated::everywhere(2, [&](int rank, isolated::Board&) {
      ascend::start(rank);
      for (int i = 0; i < 5; ++i) {
        const ascend::Stream stream;
        HcclComm comm;
        CHECK_EQ(HcclCommInitClusterInfo(table.path.c_str(), static_cast<uint32_t>(rank), &comm), HCCL_SUCCESS);
        const Array<int> a(1, rank), b(2, -1);
        CHECK_EQ(HcclAllGather(a.data, b.data, 1, HCCL_DATA_TYPE_INT32, comm, stream), HCCL_SUCCESS);
        CHECK_EQ(aclrtSynchronizeStream(stream), ACL_SUCCESS);
        CHECK_EQ(b.values(), (std::vector{0, 1}));
        CHECK_EQ(HcclCommDestroy(comm), HCCL_SUCCESS);
      }
    });
  }
}

TEST("wrong rank tables are refused") {
  const std::vector<std::pair<std::string, std::string>> wrong = {
      {"completed", "initializing"},
      {"\"1.0\"", "\"1.1\""},
      {"\"server_count\":\"1\"", "\"server_count\":\"2\""},
      {"\"server_count\":\"1\"", "\"server_count\":1"},
      {"\"rank_id\":\"1\"", "\"rank_id\":\"0\""},
      {"\"rank_id\":\"1\"", "\"rank_id\":\"2\""},
      {"\"rank_id\":\"1\"", "\"rank\":\"1\""},
      {"\"device_ip\":\"192.168.1.8\"", "\"device_port\":\"70000\""},
      {"node_0", ""},
      {"node_0", std::string(65, 'n')},
      {"server_list", "servers"},
      {"{\"status\"", "// a comment\n{\"status\""},
      {"]}", "]"},
      {"\"more\"", "\"version\":\"1.0\",\"more\""},
  };
  isolated::run([&] {
    ascend::start(0);
    HcclComm comm;
    for (size_t i = 0; i < wrong.size(); ++i) {
      const check::Note note("case", i);
      const TableFile table(changed(kTable, wrong[i].first, wrong[i].second));
      CHECK_EQ(HcclCommInitClusterInfo(table.path.c_str(), 0, &comm), HCCL_E_PARA);
      CHECK(contains(aclGetRecentErrMsg(), wrong[i].second == "]" ? "byte" : table.path));
    }
    const TableFile table(kTable);
    CHECK_EQ(HcclCommInitClusterInfo(table.path.c_str(), 2, &comm), HCCL_E_PARA);
    CHECK(contains(aclGetRecentErrMsg(), "no rank_id 2"));
    CHECK_EQ(HcclCommInitClusterInfo((table.path + "x").c_str(), 0, &comm), HCCL_E_PARA);
    CHECK(contains(aclGetRecentErrMsg(), "EI0004"));
    const std::string two_on_a = R"("rank_id":"0"},{"device_id":"1","rank_id":"2"}]})";
    const TableFile interleaved(changed(kSuperPod, "\"rank_id\":\"0\"}]}", two_on_a));
    CHECK_EQ(HcclCommInitClusterInfo(interleaved.path.c_str(), 0, &comm), HCCL_E_PARA);
    CHECK(contains(aclGetRecentErrMsg(), "interleaved"));
    const TableFile twice(changed(kSuperPod, "\"super_device_id\":\"1\"", "\"super_device_id\":\"0\""));
    CHECK_EQ(HcclCommInitClusterInfo(twice.path.c_str(), 0, &comm), HCCL_E_PARA);
    CHECK(contains(aclGetRecentErrMsg(), "EI0014"));
  });
}
