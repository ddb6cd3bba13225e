#include "a2a/atb/rank_table.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <map>
#include <optional>
#include <set>
#include <sstream>

#include "json.h"

namespace a2a::atb {
namespace {

constexpr size_t kLargestFile = size_t{16} << 20;
constexpr size_t kMostRanks = 65536;
constexpr size_t kLongestId = 64;

struct OpenFile {
  ~OpenFile() {
    if (fd >= 0) ::close(fd);
  }
  const int fd;
};

// A value of the document with its path, and the checks that a reader of a table needs.
class Node {
 public:
  Node(const Json& json, std::string path, const std::string& file)
      : json_(json), path_(std::move(path)), file_(file) {}

  [[noreturn]] void fail(const std::string& what) const {
    throw Error(Code::invalid_argument, file_ + ": " + path_ + ": " + what);
  }

  void want(Json::Kind kind) const {
    if (json_.kind != kind) fail(std::string("is ") + to_string(json_.kind) + ", not " + to_string(kind));
  }

  std::optional<Node> optional(const char* name) const {
    const Json* found = json_.find(name);
    if (found == nullptr) return std::nullopt;
    return Node(*found, path_ + member_path(name), file_);
  }

  Node required(const char* name) const {
    const auto found = optional(name);
    if (!found) fail(std::string("has no \"") + name + "\"");
    return *found;
  }

  // Returns the entries of an array of objects that is not empty.
  std::vector<Node> objects() const {
    want(Json::Kind::array);
    if (json_.items.empty()) fail("is empty");
    std::vector<Node> nodes;
    for (size_t i = 0; i < json_.items.size(); ++i) {
      nodes.emplace_back(json_.items[i], path_ + item_path(i), file_);
      nodes.back().want(Json::Kind::object);
    }
    return nodes;
  }

  // All values of a table are strings, numbers too.
  const std::string& text() const {
    want(Json::Kind::string);
    return json_.text;
  }

  const std::string& id() const {
    if (text().empty()) fail("is empty");
    if (text().size() > kLongestId) {
      fail("has " + std::to_string(text().size()) + " bytes, more than " + std::to_string(kLongestId));
    }
    return text();
  }

  unsigned number(unsigned least, unsigned most) const {
    const std::string& digits = text();
    unsigned value = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    const bool whole = error == std::errc() && end == digits.data() + digits.size();
    if (!whole || (digits.size() > 1 && digits[0] == '0')) fail(in_quotes(digits) + " is not a decimal number");
    if (value < least || value > most) {
      fail(in_quotes(digits) + " is not between " + std::to_string(least) + " and " + std::to_string(most));
    }
    return value;
  }

  const std::string& address() const {
    std::array<unsigned char, sizeof(in6_addr)> bytes;
    const char* const value = text().c_str();
    const bool known = inet_pton(AF_INET, value, bytes.data()) == 1 || inet_pton(AF_INET6, value, bytes.data()) == 1;
    if (!known || text().find('\0') != std::string::npos) fail(in_quotes(text()) + " is not an IP address");
    return text();
  }

 private:
  const Json& json_;
  std::string path_;
  const std::string& file_;
};

void check_address(const Node& node, const char* name) {
  if (const auto found = node.optional(name)) found->address();
}

void check_port(const Node& node, const char* name) {
  if (const auto found = node.optional(name)) found->number(1, 65535);
}

// Collects the ranks of a table while it is read from top to bottom.
class Reader {
 public:
  explicit Reader(const Node& root) : root_(root) {}

  RankTable read() {
    root_.want(Json::Kind::object);
    read_version();
    const auto servers = root_.required("server_list").objects();
    if (const auto count = server_count()) {
      if (count->number(1, kMostRanks) != servers.size()) {
        count->fail(in_quotes(count->text()) + ", but server_list has " + std::to_string(servers.size()) + " entries");
      }
    }
    table_.servers = static_cast<int>(servers.size());
    for (const Node& server : servers) read_server(server);
    check_ranks();
    if (v12_) read_pods();
    check_device_addresses();
    for (auto& [rank, entry] : entries_) table_.ranks.push_back(std::move(entry.place));
    return std::move(table_);
  }

 private:
  struct Entry {
    RankPlace place;
    Node device;
    size_t server;
  };

  void read_version() {
    const Node status = root_.required("status");
    if (status.text() != "completed") {
      status.fail(in_quotes(status.text()) + ", but only a \"completed\" table can be used");
    }
    const Node version = root_.required("version");
    if (version.text() != "1.0" && version.text() != "1.2") {
      version.fail(in_quotes(version.text()) + " is not one of the versions 1.0 and 1.2");
    }
    table_.version = version.text();
    v12_ = table_.version == "1.2";
  }

  std::optional<Node> server_count() const {
    return v12_ ? root_.optional("server_count") : root_.required("server_count");
  }

  void read_server(const Node& server) {
    const Node id = server.required("server_id");
    if (!server_ids_.insert(id.id()).second) id.fail(in_quotes(id.text()) + " is the name of another server, too");
    check_address(server, "host_ip");
    std::set<std::string> devices;
    for (const Node& device : server.required("device").objects()) {
      RankPlace place;
      place.server_id = id.text();
      if (const auto ip = server.optional("host_ip")) place.host_ip = ip->text();
      const Node device_id = device.required("device_id");
      device_id.number(0, kMostRanks - 1);
      place.device_id = device_id.text();
      if (!devices.insert(place.device_id).second) {
        device_id.fail(in_quotes(place.device_id) + " is another device of this server, too");
      }
      if (const auto ip = device.optional("device_ip")) place.device_ip = ip->address();
      check_port(device, "device_port");
      check_port(device, "host_port");
      if (v12_) read_super_device(device, place);
      const Node rank = device.required("rank_id");
      const unsigned number = rank.number(0, kMostRanks - 1);
      const size_t server_index = server_ids_.size();
      if (!entries_.try_emplace(number, Entry{std::move(place), device, server_index}).second) {
        rank.fail(in_quotes(rank.text()) + " is the rank of another device, too");
      }
    }
  }

  void read_super_device(const Node& device, RankPlace& place) {
    check_address(device, "backup_device_ip");
    check_port(device, "backup_device_port");
    if (const auto id = device.optional("super_device_id")) place.super_device_id = id->id();
  }

  // Checks that ranks are 0 to N-1, and that those of a server follow one another.
  void check_ranks() {
    unsigned expected = 0;
    std::set<size_t> seen;
    size_t current = 0;
    for (const auto& [rank, entry] : entries_) {
      if (rank != expected) {
        root_.fail("has " + std::to_string(entries_.size()) + " ranks, but no rank_id " +
                   in_quotes(std::to_string(expected)));
      }
      ++expected;
      if (entry.server == current) continue;
      if (!seen.insert(entry.server).second) {
        entry.device.required("rank_id").fail(in_quotes(std::to_string(rank)) + ": the ranks of server " +
                                              in_quotes(entry.place.server_id) + " do not follow one another");
      }
      current = entry.server;
    }
  }

  // Reads the super pods: each server belongs to one, and the name of a device is unique in its pod.
  void read_pods() {
    const auto list = root_.optional("super_pod_list");
    if (!list) return;
    std::map<std::string, std::string> pod_of;  // server -> pod
    std::set<std::string> pods;
    for (const Node& pod : list->objects()) {
      const Node id = pod.required("super_pod_id");
      if (!pods.insert(id.id()).second) id.fail(in_quotes(id.text()) + " is the name of another super pod, too");
      for (const Node& server : pod.required("server_list").objects()) {
        const Node name = server.required("server_id");
        if (!server_ids_.contains(name.text())) name.fail(in_quotes(name.text()) + " is not in $.server_list");
        if (!pod_of.emplace(name.text(), id.text()).second) {
          name.fail(in_quotes(name.text()) + " is in another super pod, too");
        }
      }
    }
    std::set<std::pair<std::string, std::string>> names;
    for (auto& [rank, entry] : entries_) {
      const auto pod = pod_of.find(entry.place.server_id);
      if (pod == pod_of.end()) list->fail("has no super pod for server " + in_quotes(entry.place.server_id));
      entry.place.super_pod_id = pod->second;
      const auto& name = entry.place.super_device_id;
      if (!name.empty() && !names.emplace(pod->second, name).second) {
        entry.device.required("super_device_id").fail(in_quotes(name) + " is another device of this super pod, too");
      }
    }
  }

  // Checks that devices of several servers (or super pods, if there are any) have addresses: they meet over their own
  // network.
  void check_device_addresses() {
    const bool by_pod = std::ranges::all_of(entries_, [](const auto& entry) {
      return !entry.second.place.super_pod_id.empty() && !entry.second.place.super_device_id.empty();
    });
    std::set<std::string> islands;
    for (const auto& [rank, entry] : entries_) {
      islands.insert(by_pod ? entry.place.super_pod_id : entry.place.server_id);
    }
    if (islands.size() < 2) return;
    for (const auto& [rank, entry] : entries_) entry.device.required("device_ip");
  }

  const Node& root_;
  bool v12_ = false;
  RankTable table_;
  std::set<std::string> server_ids_;
  std::map<unsigned, Entry> entries_;  // by rank
};

}  // namespace

RankTable parse_rank_table(std::string_view text, const std::string& name) {
  const Json document = parse_json(text, name);
  return Reader(Node(document, "$", name)).read();
}

RankTable read_rank_table(const std::string& file) {
  const auto refuse = [&file](const char* what) { throw Error(Code::invalid_argument, file + ": " + what); };
  // The system call would cut it there.
  if (file.find('\0') != std::string::npos) {
    throw Error(Code::invalid_argument, "rankTableFile path: " + in_quotes(file) + " holds a NUL");
  }
  struct stat facts{};
  if (::stat(file.c_str(), &facts) != 0) {
    throw Error(Code::invalid_argument, "rankTableFile path: " + file + " does not exist.");
  }
  if (!S_ISREG(facts.st_mode)) refuse("is not a regular file");
  // The file may be another one by now. To open a pipe without a writer would block.
  const OpenFile opened{::open(file.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC)};
  if (opened.fd < 0) refuse("cannot be opened");
  if (::fstat(opened.fd, &facts) != 0 || !S_ISREG(facts.st_mode)) refuse("is not a regular file");
  std::string text;
  std::array<char, 65536> piece;
  while (const ssize_t got = ::read(opened.fd, piece.data(), piece.size())) {
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) refuse("cannot be read");
    text.append(piece.data(), static_cast<size_t>(got));
    if (text.size() > kLargestFile) refuse("has more than 16 MiB");
  }
  return parse_rank_table(text, file);
}

std::string RankTable::identity() const {
  std::ostringstream said;
  said << version;
  for (const RankPlace& p : ranks) {
    for (const std::string* field :
         {&p.server_id, &p.host_ip, &p.device_id, &p.device_ip, &p.super_device_id, &p.super_pod_id}) {
      said << '/' << field->size() << ':' << *field;
    }
  }
  uint64_t hash = 0xcbf29ce484222325;  // FNV-1a: the same in every process, which std::hash does not promise
  for (const char c : said.str()) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3;
  std::array<char, 17> hex{};
  std::to_chars(hex.data(), hex.data() + 16, hash, 16);
  return hex.data();
}

}  // namespace a2a::atb
