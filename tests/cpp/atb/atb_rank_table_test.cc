// Rank tables: their contents, and the errors of wrong ones.
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>

#include "a2a/atb/rank_table.h"
#include "check.h"

namespace {

using a2a::Code;
using a2a::atb::parse_rank_table;
using a2a::atb::RankTable;

const std::string kV10 = R"({
  "status": "completed", "version": "1.0", "server_count": "2", "server_list": [
    {"server_id": "node_0", "device": [
      {"device_id": "0", "device_ip": "192.168.1.8", "device_port": "16667", "rank_id": "0"},
      {"device_id": "1", "device_ip": "192.168.1.9", "rank_id": "1"}]},
    {"server_id": "node_1", "host_ip": "fe80::1", "device": [
      {"device_id": "0", "device_ip": "192.168.2.8", "host_port": "1", "rank_id": "2"}]}]
})";

const std::string kV12 = R"({
  "status": "completed", "version": "1.2", "server_count": "2", "server_list": [
    {"server_id": "node_0", "host_ip": "172.16.0.100", "device": [
      {"device_id": "0", "super_device_id": "0", "device_ip": "192.168.1.6", "device_port": "16666",
       "backup_device_ip": "192.168.1.7", "backup_device_port": "65535", "host_port": "16665", "rank_id": "0"}]},
    {"server_id": "node_1", "host_ip": "172.16.0.101", "device": [
      {"device_id": "0", "super_device_id": "1", "device_ip": "192.168.2.6", "rank_id": "1"}]}],
  "super_pod_list": [{"super_pod_id": "0", "server_list": [{"server_id": "node_0"}, {"server_id": "node_1"}]}]
})";

// Replaces the n-th occurrence (from 0).
std::string replaced(std::string text, const std::string& from, const std::string& to, int n = 0) {
  size_t at = text.find(from);
  for (int i = 0; i < n && at != std::string::npos; ++i) at = text.find(from, at + 1);
  if (!CHECK(at != std::string::npos)) return text;
  return text.replace(at, from.size(), to);
}

// One mistake and its error.
struct Mistake {
  std::string from, to, said;
  int n = 0;
};

// Whether the text is refused with an error that names the file, a path and a reason.
bool refused(const std::string& text, const std::string& said) {
  try {
    parse_rank_table(text, "table.json");
  } catch (const a2a::Error& error) {
    const std::string what = error.what();
    const bool clear = error.code() == Code::invalid_argument && what.starts_with("table.json: $") &&
                       what.find(said) != std::string::npos;
    return clear || check::fail("said: " + what + "\n  wanted: " + said);
  }
  return check::fail("was taken: " + text + "\n  wanted: " + said);
}

const std::vector<Mistake> kMistakes{
    {R"("status": "completed", )", "", "$: has no \"status\""},
    {R"("completed")", R"("initializing")", "$.status: \"initializing\", but only a \"completed\" table"},
    {R"("completed")", "true", "$.status: is a boolean, not a string"},
    {R"("version": "1.0")", R"("version": "1.1")", "$.version: \"1.1\" is not one of the versions"},
    {R"("version": "1.0")", R"("version": 1.0)", "$.version: is a number, not a string"},
    {R"("version": "1.0", )", "", "$: has no \"version\""},
    {R"("server_count": "2", )", "", "$: has no \"server_count\""},
    {R"("server_count": "2")", R"("server_count": "3")", "$.server_count: \"3\", but server_list has 2 entries"},
    {R"("server_count": "2")", R"("server_count": 2)", "$.server_count: is a number, not a string"},
    {R"("server_count": "2")", R"("server_count": "02")", "$.server_count: \"02\" is not a decimal number"},
    {R"("server_count": "2")", R"("server_count": "0")", "$.server_count: \"0\" is not between 1 and"},
    {R"("server_list": [)", R"("server_list": {"a": [)", "expected"},
    {R"("server_list")", R"("servers")", "$: has no \"server_list\""},
    {R"("server_id": "node_0", )", "", "$.server_list[0]: has no \"server_id\""},
    {R"("node_1")", R"("node_0")", "$.server_list[1].server_id: \"node_0\" is the name of another server, too"},
    {R"("node_1")", R"("")", "$.server_list[1].server_id: is empty"},
    {R"("node_1")", "\"" + std::string(65, 'x') + "\"", "$.server_list[1].server_id: has 65 bytes, more than 64"},
    {R"("fe80::1")", R"("fe80::x")", "$.server_list[1].host_ip: \"fe80::x\" is not an IP address"},
    {R"("fe80::1")", R"("1.2.3.4\u0000")", "$.server_list[1].host_ip: "},
    {R"("device": [)", R"("device": [], "x": [)", "$.server_list[0].device: is empty"},
    {R"("device": [)", R"("device": [1, )", "$.server_list[0].device[0]: is a number, not an object"},
    {R"("device_id": "1", )", "", "$.server_list[0].device[1]: has no \"device_id\""},
    {R"("device_id": "1")", R"("device_id": "0")", "$.server_list[0].device[1].device_id: \"0\" is another device"},
    {R"("device_id": "1")", R"("device_id": "-1")", "$.server_list[0].device[1].device_id: \"-1\" is not a decimal"},
    {R"("device_id": "1")", R"("device_id": null)", "$.server_list[0].device[1].device_id: is null, not a string"},
    {R"("192.168.1.8")", R"("192.168.1.256")", "$.server_list[0].device[0].device_ip: \"192.168.1.256\" is not an"},
    {R"("192.168.1.8")", R"(["192.168.1.8"])", "$.server_list[0].device[0].device_ip: is an array, not a string"},
    {R"("device_ip": "192.168.2.8", )", "", "$.server_list[1].device[0]: has no \"device_ip\""},
    {R"("16667")", R"("0")", "$.server_list[0].device[0].device_port: \"0\" is not between 1 and 65535"},
    {R"("16667")", R"("65536")", "$.server_list[0].device[0].device_port: \"65536\" is not between 1 and 65535"},
    {R"("16667")", R"("99999999999999999999")", "$.server_list[0].device[0].device_port: "},
    {R"("host_port": "1")", R"("host_port": "")", "$.server_list[1].device[0].host_port: \"\" is not a decimal"},
    {R"("rank_id": "1")", R"("rank_id": "0")", "$.server_list[0].device[1].rank_id: \"0\" is the rank of another"},
    {R"("rank_id": "1")", R"("rank_id": "3")", "$: has 3 ranks, but no rank_id \"1\""},
    {R"("rank_id": "1")", R"("rank": "1")", "$.server_list[0].device[1]: has no \"rank_id\""},
    {R"("rank_id": "1")", R"("rank_id": 1)", "$.server_list[0].device[1].rank_id: is a number, not a string"},
    {R"("rank_id": "1")", R"("rank_id": "1", "rank_id": "1")", "the name \"rank_id\" stands in this object twice"},
    {"{", "[", "expected"},
    {"{", "{,", "$: line 1, column 2: expected a name in quotes, found \",\""},
    {R"("status")", "status", "expected a name in quotes, found \"s\""},
    {R"("status":)", R"("status" =)", "$: line 2, column 12: expected ':' after \"status\", found \"=\""},
    {R"("completed",)", R"("completed")", "$: line 2, column 25: expected ',' or '}', found \"\\\"\""},
    {R"("1.0")", R"('1.0')", "$.version: line 2, column 37: expected a value, found \"'\""},
    {R"("1.0")", R"("1.\x0")", "$.version: line 2, column 41: no escape begins with \"x\""},
    {R"("1.0")", "\"1.\n0\"", "$.version: line 2, column 40: a control character in a string"},
    {R"("1.0")", "\"1.\xff\"", "$.version: line 2, column 40: a byte that is not UTF-8"},
    {R"("1.0")", "\"\xed\xa0\x80\"", "a byte that is not UTF-8"},
    {R"("1.0")", R"("\ud800")", "half of a surrogate pair"},
    {R"("1.0")", R"("\u12g4")", "expected four hexadecimal digits"},
    {R"("1.0")", "01", "$.version: line 2, column 39: a number begins with 0"},
    {R"("1.0")", "1.", "expected a digit"},
    {R"("1.0")", "1e", "expected a digit"},
    {R"("1.0")", "-", "expected a digit"},
    {R"("1.0")", "nul", "expected a value"},
    {"}]}]", "}],}]", "expected a name in quotes, found \"}\""},
    {"}]}]", "}]},]", "expected a value, found \"]\""},
};

}  // namespace

TEST("version 1.0") {
  const RankTable table = parse_rank_table(kV10, "table.json");
  CHECK_EQ(table.version, "1.0");
  CHECK_EQ(table.servers, 2);
  if (!CHECK_EQ(table.size(), 3)) return;
  CHECK_EQ(table.ranks[1].server_id, "node_0");
  CHECK_EQ(table.ranks[1].device_id, "1");
  CHECK_EQ(table.ranks[1].device_ip, "192.168.1.9");
  CHECK_EQ(table.ranks[2].host_ip, "fe80::1");
}

TEST("version 1.2, with and without super pods") {
  const RankTable table = parse_rank_table(kV12, "table.json");
  if (!CHECK_EQ(table.size(), 2)) return;
  CHECK_EQ(table.ranks[1].super_device_id, "1");
  CHECK_EQ(table.ranks[1].super_pod_id, "0");
  CHECK_EQ(table.ranks[0].host_ip, "172.16.0.100");
  const auto without_count = replaced(kV12, R"("server_count": "2", )", "");
  CHECK_EQ(parse_rank_table(without_count, "t").size(), 2);
  // Inside of one super pod devices need no address of their own.
  const auto without_ip = replaced(kV12, R"("device_ip": "192.168.2.6", )", "");
  CHECK_EQ(parse_rank_table(without_ip, "t").size(), 2);
  // Without super pods it is read like 1.0, which asks for addresses.
  CHECK(refused(replaced(without_ip, "super_pod_list", "unknown"), "$.server_list[1].device[0]: has no \"device_ip\""));
  const std::string pods = "$.super_pod_list[0]";
  CHECK(refused(replaced(kV12, R"(, {"server_id": "node_1"})", ""), "has no super pod for server \"node_1\""));
  CHECK(refused(replaced(kV12, R"({"server_id": "node_1"})", R"({"server_id": "node_2"})"), "is not in $.server_list"));
  CHECK(refused(replaced(kV12, R"("node_1"}])", R"("node_0"}])"), "\"node_0\" is in another super pod, too"));
  CHECK(refused(replaced(kV12, R"("super_pod_id": "0", )", ""), pods + ": has no \"super_pod_id\""));
  CHECK(refused(replaced(kV12, R"("super_device_id": "1")", R"("super_device_id": "0")"),
                "\"0\" is another device of this super pod, too"));
  CHECK(refused(replaced(kV12, "65535", "65536"), "$.server_list[0].device[0].backup_device_port"));
  CHECK(refused(replaced(kV12, "192.168.1.7", "x"), "$.server_list[0].device[0].backup_device_ip"));
}

TEST("what is unknown is ignored, what is spelled otherwise is the same") {
  const auto table = parse_rank_table(kV10, "a");
  const auto other =
      replaced(replaced(kV10, "node_0", "\\u006eode_0"), "{", "\r\n\t{\"note\": [1e5, -0.5, null, {}], ");
  CHECK_EQ(parse_rank_table(other, "b").identity(), table.identity());
  CHECK(parse_rank_table(replaced(kV10, "node_1", "node_2"), "c").identity() != table.identity());
  const auto other_pod = replaced(kV12, R"("super_pod_id": "0")", R"("super_pod_id": "1")");
  CHECK(parse_rank_table(other_pod, "d").identity() != parse_rank_table(kV12, "e").identity());
}

TEST("one server needs no device addresses; ranks of a server follow one another") {
  const std::string one = R"({"status": "completed", "version": "1.0", "server_count": "1", "server_list": [
    {"server_id": "a", "device": [{"device_id": "7", "rank_id": "1"}, {"device_id": "3", "rank_id": "0"}]}]})";
  CHECK_EQ(parse_rank_table(one, "t").ranks[1].device_id, "7");
  CHECK(refused(replaced(replaced(replaced(kV10, R"("rank_id": "1")", R"("rank_id": "x")"), R"("rank_id": "2")",
                                  R"("rank_id": "1")"),
                         R"("rank_id": "x")", R"("rank_id": "2")"),
                "the ranks of server \"node_0\" do not follow one another"));
}

TEST("each mistake has its message") {
  for (const Mistake& mistake : kMistakes) {
    CHECK(refused(replaced(kV10, mistake.from, mistake.to, mistake.n), mistake.said));
  }
  CHECK(refused("", "$: line 1, column 1: expected a value, found the end of the text"));
  CHECK(refused("[]", "$: is an array, not an object"));
  CHECK(refused(kV10 + "x", "expected the end of the text, found \"x\""));
  CHECK(refused("// a comment\n" + kV10, "expected a value, found \"/\""));
  CHECK(refused(std::string(100'000, '['), "more than 64 levels of nesting"));
  // The path is one line for any name.
  CHECK(refused("{\"a\\n\": {\"b c\": {\"\": [1, x]}}}", R"($["a\x0a"]["b c"][""][1]: line 1, column 26: expected)"));
}

// Every prefix, every removed quote, brace, bracket, colon or comma: none of them is a table.
TEST("more than 200 mutations that break the syntax are refused") {
  int mutations = 0;
  for (const std::string& table : {kV10, kV12}) {
    for (size_t length = 0; length < table.size(); length += 7) mutations += refused(table.substr(0, length), "");
    for (size_t i = 0; i < table.size(); ++i) {
      if (std::string("\"{}[]:,").find(table[i]) == std::string::npos) continue;
      auto text = table;
      mutations += refused(text.erase(i, 1), "");
    }
  }
  CHECK(mutations > 200);
}

// A reader that searched all names for each one would take minutes.
TEST("an object of many names") {
  std::string text = kV10.substr(0, kV10.size() - 2);
  for (int i = 0; i < 300'000; ++i) text += ",\"k" + std::to_string(i) + "\": 0";
  CHECK_EQ(parse_rank_table(text + "}", "t").size(), 3);
}

TEST("random mutations: a table or an error, never a crash") {
  check::Random random(check::seed());
  int taken = 0, said = 0;
  for (int round = 0; round < 5000; ++round) {
    auto text = random.chance(0.5) ? kV10 : kV12;
    for (int change = random.in(1, 4); change > 0; --change) {
      const auto at = random.in(size_t{0}, text.size() - 1), other = random.in(size_t{0}, text.size() - 1);
      const auto length = std::min(random.in(size_t{1}, size_t{30}), text.size() - std::max(at, other));
      if (random.chance(0.4))
        text[at] = static_cast<char>(random.in(0, 255));
      else if (random.chance(0.5))
        text.erase(at, length);
      else
        text.insert(at, text.substr(other, length));
    }
    try {
      taken += parse_rank_table(text, "table.json").size() > 0;
    } catch (const a2a::Error& error) {
      said += error.code() == Code::invalid_argument && std::string(error.what()).starts_with("table.json: $");
    }
  }
  CHECK_EQ(taken + said, 5000);
  CHECK(said > 2500);
}

TEST("files") {
  CHECK_THROWS(Code::invalid_argument, "rankTableFile path: /nowhere/table.json does not exist.",
               a2a::atb::read_rank_table("/nowhere/table.json"));
  CHECK_THROWS(Code::invalid_argument, "/: is not a regular file", a2a::atb::read_rank_table("/"));
  CHECK_THROWS(Code::invalid_argument, "/dev/zero: is not a regular file", a2a::atb::read_rank_table("/dev/zero"));
  const std::string path = "atb_rank_table_test-" + std::to_string(getpid());
  CHECK_EQ(mkfifo(path.c_str(), 0600), 0);  // it has no writer
  CHECK_THROWS(Code::invalid_argument, path + ": is not a regular file", a2a::atb::read_rank_table(path));
  std::remove(path.c_str());
  std::ofstream(path) << kV10;
  CHECK_EQ(a2a::atb::read_rank_table(path).size(), 3);
  std::ofstream(path) << std::string((size_t{16} << 20) + 1, ' ');
  CHECK_THROWS(Code::invalid_argument, path + ": has more than 16 MiB", a2a::atb::read_rank_table(path));
  std::remove(path.c_str());
}
