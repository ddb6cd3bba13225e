// The format of messages between hosts: what is written is what is read, and truncated messages are refused.
#include "transport/hosts/messages.h"

#include <array>

#include "check.h"

namespace {

using namespace a2a;
using namespace a2a::hosts;

// The bytes of runs, one after the other.
std::string bytes_of(const std::vector<Run>& runs) {
  std::string bytes;
  for (const Run& run : runs) bytes.append(reinterpret_cast<const char*>(run.data), run.bytes);
  return bytes;
}

Entry entry_of(Rank source, Rank target, std::string_view payload) {
  Entry entry{source, target, {}, payload};
  entry.facts.sent = payload.size();
  entry.facts.tag = static_cast<uint64_t>(source) << 8;
  entry.facts.delivery = Delivery::eager;
  return entry;
}

bool same(const Entry& a, const Entry& b) {
  return a.source == b.source && a.target == b.target && a.payload == b.payload && a.facts.sent == b.facts.sent &&
         a.facts.tag == b.facts.tag && a.facts.delivery == b.facts.delivery;
}

TEST("a message has its prefix and the rest") {
  const std::string text = message({7, MessageKind::verdict, 2, 3, 9}, "the rest");
  const auto prefix = prefix_of(text);
  if (!CHECK(prefix.has_value())) return;
  CHECK(prefix->channel == 7 && prefix->kind == MessageKind::verdict && prefix->stage == 2 && prefix->source == 3 &&
        prefix->number == 9);
  CHECK_EQ(rest_of(text), "the rest");
  CHECK(!prefix_of(std::string_view(text).substr(0, sizeof(Prefix) - 1)).has_value());
}

TEST("entries of any payload are read as they were appended, and no part of a list is a list") {
  std::string text;
  std::vector<std::string> payloads{"", "1", "12345678", "123456789", std::string(2000, 'x')};
  std::vector<Entry> entries;
  for (const std::string& payload : payloads) {
    entries.push_back(entry_of(static_cast<Rank>(entries.size()), 5, payload));
    append(text, entries.back());
  }
  const auto read = entries_of(text);
  if (!CHECK(read.has_value()) || !CHECK_EQ(read->size(), entries.size())) return;
  for (size_t i = 0; i < entries.size(); ++i) CHECK(same((*read)[i], entries[i]));
  CHECK(entries_of("").has_value());
  for (size_t cut = 1; cut < 2000; ++cut) {
    if (!CHECK(!entries_of(std::string_view(text).substr(0, text.size() - cut)).has_value())) return;
  }
}

TEST("a list as runs refers to long payloads, and has the bytes of the same entries in a text") {
  const std::string few(100, 'a'), many(5000, 'b');
  std::string text;
  EntryList list;
  for (int round = 0; round < 2; ++round) {  // the second time with the memory of the first
    text.clear();
    list.clear();
    for (const std::string* payload : {&few, &many, &few}) {
      list.append(entry_of(1, 2, *payload));
      append(text, entry_of(1, 2, *payload));
    }
  }
  std::vector<Run> runs;
  list.append_runs(4, runs);
  CHECK_EQ(runs.size(), 3);
  for (const Run& run : runs) CHECK_EQ(run.peer, 4);
  CHECK(reinterpret_cast<const char*>(runs[1].data) == many.data());
  const std::string memory = bytes_of(runs);
  CHECK_EQ(memory.size(), list.bytes());
  CHECK(entries_at(memory + "unused") == text);
  CHECK_EQ(entries_at("short"), "");
  CHECK_EQ(entries_at(memory.substr(0, 20)).size(), 12);  // no more than the memory has
}

TEST("runs are packed into one piece, and unpacked") {
  std::array<std::byte, 10> from{}, to{};
  for (size_t i = 0; i < from.size(); ++i) from[i] = std::byte(i + 1);
  const std::vector<Run> sends{{0, from.data() + 5, 3}, {0, from.data(), 2}};
  const std::string piece = packed(sends, 5);
  CHECK_EQ(piece, "\6\7\10\1\2");
  unpack(piece, std::vector<Run>{{0, to.data(), 1}, {0, to.data() + 2, 4}});
  CHECK(to[0] == std::byte{6} && to[1] == std::byte{0} && to[2] == std::byte{7} && to[5] == std::byte{2});
}

TEST("memory with gaps on either side goes in pieces, unless it repeats an match") {
  SentFacts sender, receiver;
  sender.delivery = Delivery::rendezvous;
  CHECK(sender.moves_memory() && !goes_in_pieces(sender, receiver));
  receiver.gaps = 1;
  CHECK(goes_in_pieces(sender, receiver));
  sender.repeats = 1;
  CHECK(!goes_in_pieces(sender, receiver));
  sender.repeats = 0, sender.delivery = Delivery::packed;
  CHECK(sender.moves_memory() && !goes_in_pieces(sender, receiver));
}

}  // namespace
