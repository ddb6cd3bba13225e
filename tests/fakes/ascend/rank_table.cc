#include "ascend/rank_table.h"

#include <fstream>
#include <mutex>
#include <set>
#include <sstream>

#include "ascend/json.h"
#include "engine/controls.h"

namespace fake {
namespace {

struct Device {
  uint64_t rank;
  size_t server;
};

[[noreturn]] void fail(const std::string& code, const std::string& what) {
  throw std::invalid_argument(code + ": " + what);
}

const Json* find(const Json& object, const std::string& key) {
  const auto found = object.members.find(key);
  return found == object.members.end() ? nullptr : &found->second;
}

// All values are strings, numbers too.
std::string text(const Json& object, const std::string& key) {
  const Json* const value = find(object, key);
  if (!value) fail("EI0004", key + " is missing");
  if (value->kind != Json::string) fail("EI0004", key + " is not a string");
  return value->text;
}

uint64_t number(const Json& object, const std::string& key, uint64_t lowest, uint64_t highest) {
  const std::string value = text(object, key);
  const bool digits = !value.empty() && value.size() <= 10 && value.find_first_not_of("0123456789") == value.npos;
  const uint64_t parsed = digits ? std::stoull(value) : 0;
  if (!digits || parsed < lowest || parsed > highest) fail("EI0004", key + " = \"" + value + "\" is out of range");
  return parsed;
}

const std::vector<Json>& list(const Json& object, const std::string& key) {
  const Json* const value = find(object, key);
  if (!value || value->kind != Json::array || value->elements.empty()) fail("EI0004", key + " is not a list");
  return value->elements;
}

std::vector<Device> devices_of(const Json& table) {
  if (text(table, "status") != "completed") fail("EI0004", "status is not \"completed\"");
  const std::string version = text(table, "version");
  if (version != "1.0" && version != "1.2") fail("EI0004", "version \"" + version + "\"");
  const auto& servers = list(table, "server_list");
  if (version == "1.0" || find(table, "server_count")) {
    number(table, "server_count", servers.size(), servers.size());
  }
  std::vector<Device> devices;
  std::set<std::string> ids, super_devices;
  for (size_t server = 0; server < servers.size(); ++server) {
    const std::string id = text(servers[server], "server_id");
    if (id.empty() || id.size() > 64 || !ids.insert(id).second) fail("EI0004", "server_id \"" + id + "\"");
    for (const Json& device : list(servers[server], "device")) {
      number(device, "device_id", 0, UINT32_MAX);
      devices.push_back({number(device, "rank_id", 0, UINT32_MAX), server});
      // Servers reach each other over these.
      if (servers.size() > 1 && version == "1.0") text(device, "device_ip");
      for (const char* port : {"device_port", "host_port", "backup_device_port"}) {
        if (find(device, port)) number(device, port, 1, 65535);
      }
      if (version == "1.2" && find(device, "super_device_id") &&
          !super_devices.insert(text(device, "super_device_id")).second) {
        fail("EI0014", "a super_device_id stands twice");
      }
    }
  }
  return devices;
}

// Ranks are 0 ... N - 1, each once, and those of one server follow each other.
void check_ranks(const std::vector<Device>& devices) {
  std::vector<size_t> server_of(devices.size(), SIZE_MAX);
  for (const Device& device : devices) {
    if (device.rank >= devices.size() || server_of[device.rank] != SIZE_MAX) {
      fail("EI0004", "rank_id " + std::to_string(device.rank) + " stands twice or is too high");
    }
    server_of[device.rank] = device.server;
  }
  std::set<size_t> seen;
  for (size_t rank = 0; rank < server_of.size(); ++rank) {
    if (rank > 0 && server_of[rank] == server_of[rank - 1]) continue;
    if (!seen.insert(server_of[rank]).second) fail("EI0004", "the ranks of servers are interleaved");
  }
}

}  // namespace

bool read_rank_table(const std::string& path, uint32_t rank, uint32_t& ranks, std::string& name, std::string& why) {
  std::ifstream file(path);
  std::stringstream content;
  content << file.rdbuf();
  if (!file) {
    why = "EI0004: cannot read " + path;
    return false;
  }
  const std::string table = content.str();
  try {
    const auto devices = devices_of(JsonReader(table).read());
    check_ranks(devices);
    if (rank >= devices.size()) fail("EI0004", "no rank_id " + std::to_string(rank));
    ranks = static_cast<uint32_t>(devices.size());
  } catch (const std::invalid_argument& wrong) {
    why = path + ": " + wrong.what();
    return false;
  }
  // The file's name is part of it, because tests that run at once have tables of the same content.
  char* const real = realpath(path.c_str(), nullptr);
  const uint64_t identity = hash(table.data(), table.size(), hash(real, std::char_traits<char>::length(real)));
  free(real);
  static auto* const mutex = new std::mutex;
  static auto* const uses = new std::map<std::pair<uint64_t, uint32_t>, unsigned>;
  const std::lock_guard lock(*mutex);
  char text[64];
  snprintf(text, sizeof text, "%016lx-%u", static_cast<unsigned long>(identity), ++(*uses)[{identity, rank}]);
  name = text;
  return true;
}

}  // namespace fake
