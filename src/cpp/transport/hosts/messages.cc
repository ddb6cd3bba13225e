#include "transport/hosts/messages.h"

#include "runtime/object_bytes.h"

namespace a2a::hosts {
namespace {

struct EntryHead {
  Rank source = 0, target = 0;
  uint32_t bytes = 0;  // of the payload
  uint32_t unused = 0;
  SentFacts facts{};
};
static_assert(sizeof(EntryHead) == kEntryBytes && kEntryBytes % 8 == 0);

EntryHead head_of(const Entry& entry) {
  EntryHead head;
  head.source = entry.source;
  head.target = entry.target;
  head.bytes = static_cast<uint32_t>(entry.payload.size());
  head.facts = entry.facts;
  return head;
}

size_t padding(const Entry& entry) { return room_for(entry.payload.size()) - kEntryBytes - entry.payload.size(); }

}  // namespace

std::string packed(std::span<const Run> runs, size_t bytes) {
  std::string piece(bytes, '\0');
  auto* next = reinterpret_cast<std::byte*>(piece.data());
  for (const Run& run : runs) {
    gather(run, 0, run.bytes, next);
    next += run.bytes;
  }
  return piece;
}

void unpack(std::string_view piece, std::span<const Run> runs) {
  for (const Run& run : runs) {
    scatter(run, 0, run.bytes, reinterpret_cast<const std::byte*>(piece.data()));
    piece.remove_prefix(run.bytes);
  }
}

std::string begin_message(const Prefix& prefix, size_t bytes) {
  std::string text;
  text.reserve(sizeof(prefix) + bytes);
  text += object_bytes(prefix);
  return text;
}

std::string message(const Prefix& prefix, std::string_view rest) {
  std::string text = begin_message(prefix, rest.size());
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
  text += object_bytes(head_of(entry));
  text += entry.payload;
  text.append(padding(entry), '\0');
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

void EntryList::clear() {
  text_.assign(kListBytes, '\0');
  cuts_.clear();
  bytes_ = 0;
}

void EntryList::append(const Entry& entry) {
  constexpr size_t kLong = 512;  // shorter payloads are copied: that costs less than a run of their own
  bytes_ += room_for(entry.payload.size());
  if (entry.payload.size() < kLong) return hosts::append(text_, entry);
  text_ += object_bytes(head_of(entry));
  cuts_.push_back({text_.size(), entry.payload});
  text_.append(padding(entry), '\0');
}

void EntryList::append_runs(Rank peer, std::vector<Run>& runs) {
  std::memcpy(text_.data(), &bytes_, sizeof(bytes_));
  // Run has one pointer type for both directions; sends are never written.
  const auto add = [&](const char* data, size_t bytes) {
    if (bytes > 0) runs.push_back({peer, reinterpret_cast<std::byte*>(const_cast<char*>(data)), bytes});
  };
  size_t done = 0;
  for (const Cut& cut : cuts_) {
    add(text_.data() + done, cut.at - done);
    add(cut.payload.data(), cut.payload.size());
    done = cut.at;
  }
  add(text_.data() + done, text_.size() - done);
}

std::string_view entries_at(std::string_view memory) {
  uint64_t bytes = 0;
  if (memory.size() < sizeof(bytes)) return {};
  std::memcpy(&bytes, memory.data(), sizeof(bytes));
  return memory.substr(kListBytes, bytes);
}

}  // namespace a2a::hosts
