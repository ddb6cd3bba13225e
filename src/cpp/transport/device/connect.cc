#include "transport/device/connect.h"

#include <cstring>
#include <optional>

namespace a2a::device {
namespace {

// What a rank tells the others: what must be alike, and what rank 0 alone knows. Or why it cannot take part.
struct Word {
  uint8_t failure = 0;  // 0, or a Code
  std::string text;     // why; otherwise what must be alike
  std::string root;

  std::string pack() const {
    const uint64_t length = text.size();
    std::string all(1, static_cast<char>(failure));
    all.append(reinterpret_cast<const char*>(&length), sizeof(length));
    return all + text + root;
  }

  static Word unpack(const std::string& all) {
    Word word;
    uint64_t length = 0;
    constexpr size_t kHead = 1 + sizeof(length);
    if (all.size() >= kHead) std::memcpy(&length, all.data() + 1, sizeof(length));
    if (all.size() < kHead || length > all.size() - kHead) throw Error(Code::backend, "connect: unexpected length");
    word.failure = static_cast<uint8_t>(all[0]);
    word.text = all.substr(kHead, length);
    word.root = all.substr(kHead + length);
    return word;
  }
};

// Every rank says its word or why it has none; returns rank 0's.
Word settle(const Meeting& meeting, Memory memory, const Word& mine, const std::optional<Error>& own_failure) {
  Word said = mine;
  if (own_failure) said = {static_cast<uint8_t>(own_failure->code()), own_failure->what(), {}};
  const auto all = meeting.tell_all(said.pack());
  if (own_failure) throw *own_failure;
  const std::string what = std::string("connecting the ranks for ") + to_string(memory) + " memory: ";
  std::vector<Word> words;
  for (const auto& text : all) words.push_back(Word::unpack(text));
  for (size_t rank = 0; rank < words.size(); ++rank) {
    if (words[rank].failure == 0) continue;
    const bool known = words[rank].failure <= static_cast<uint8_t>(Code::backend);
    throw Error(known ? static_cast<Code>(words[rank].failure) : Code::backend,
                what + "rank " + std::to_string(rank) + ": " + words[rank].text);
  }
  for (size_t rank = 1; rank < words.size(); ++rank) {
    if (words[rank].text == words[0].text) continue;
    throw Error(Code::mismatch,
                what + "rank 0 has " + words[0].text + ", rank " + std::to_string(rank) + " has " + words[rank].text);
  }
  return words[0];
}

}  // namespace

std::shared_ptr<DeviceTransport> connect(Memory memory, int index, const Meeting& meeting) {
  const bool rooted = meeting.adopted == nullptr && meeting.rank_table.empty();
  std::optional<Error> failure;
  Vendor* vendor = nullptr;
  std::unique_ptr<Device> device;
  Word mine;
  try {
    vendor = &vendor_of(memory);
    device = vendor->device(index);
    mine.text = vendor->version() + ", check=" + to_string(meeting.check) +
                (meeting.adopted != nullptr    ? ", an adopted communicator"
                 : !meeting.rank_table.empty() ? ", a rank table"
                                               : "");
    const Device::Current current(*device);
    if (rooted && meeting.rank == 0) mine.root = vendor->new_root(*device);
  } catch (const Error& error) {
    failure = error;
  }
  const Word first = settle(meeting, memory, mine, failure);

  std::unique_ptr<Collectives> collectives;
  try {
    const Device::Current current(*device);
    if (meeting.adopted != nullptr) {
      collectives = vendor->adopt(*device, meeting.adopted, meeting.rank, meeting.size);
    } else {
      collectives =
          vendor->join(*device, {meeting.rank, meeting.size, first.root, meeting.rank_table, meeting.deadline});
    }
  } catch (const Error& error) {
    failure = error;
  }
  settle(meeting, memory, {}, failure);
  return std::make_shared<DeviceTransport>(std::move(device), std::move(collectives), meeting.host);
}

}  // namespace a2a::device
