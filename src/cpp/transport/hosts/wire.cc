#include "transport/hosts/wire.h"

namespace a2a::hosts {
namespace {

struct EntryHead {
  Rank source = 0, target = 0;
  uint32_t bytes = 0;  // of the payload
  uint32_t unused = 0;
  shm::Head facts{};
};
static_assert(sizeof(EntryHead) == kEntryBytes && kEntryBytes % 8 == 0);

template <class T>
std::string_view bytes_of(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof(T)};
}

}  // namespace

std::string message(const Prefix& prefix, std::string_view rest) {
  std::string text;
  text.reserve(sizeof(prefix) + rest.size());
  text += bytes_of(prefix);
  text += rest;
  return text;
}

std::optional<Prefix> prefix_of(std::string_view message) {
  if (message.size() < sizeof(Prefix)) return std::nullopt;
  Prefix prefix;
  std::memcpy(&prefix, message.data(), sizeof(prefix));
  return prefix;
}

void append(std::string& text, const Entry& entry) {
  EntryHead head;
  head.source = entry.source;
  head.target = entry.target;
  head.bytes = static_cast<uint32_t>(entry.payload.size());
  head.facts = entry.facts;
  text += bytes_of(head);
  text += entry.payload;
  text.append(room_for(entry.payload.size()) - kEntryBytes - entry.payload.size(), '\0');
}

std::optional<std::vector<Entry>> entries_of(std::string_view text) {
  std::vector<Entry> entries;
  while (!text.empty()) {
    EntryHead head;
    if (text.size() < sizeof(head)) return std::nullopt;
    std::memcpy(&head, text.data(), sizeof(head));
    if (text.size() < room_for(head.bytes)) return std::nullopt;
    entries.push_back({head.source, head.target, head.facts, text.substr(sizeof(head), head.bytes)});
    text.remove_prefix(room_for(head.bytes));
  }
  return entries;
}

}  // namespace a2a::hosts
