#include "transport/device/connect.h"

#include <cstring>
#include <exception>
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

Error as_error(const std::exception& error) {
  const auto* const own = dynamic_cast<const Error*>(&error);
  return own != nullptr ? *own : Error(Code::backend, error.what());
}

// Every rank says its word or why it has none; returns rank 0's.
Word settle(const Meeting& meeting, const std::string& what, const Word& mine, const std::optional<Error>& failure) {
  Word said = mine;
  if (failure) said = {static_cast<uint8_t>(failure->code()), failure->what(), {}};
  const auto all = meeting.tell_all(said.pack());
  if (failure) throw Error(failure->code(), what + failure->what());
  std::vector<Word> words;
  for (const auto& text : all) words.push_back(Word::unpack(text));
  for (size_t rank = 0; rank < words.size(); ++rank) {
    if (words[rank].failure == 0) continue;
    auto code = Code::backend;
    if (words[rank].failure <= static_cast<uint8_t>(Code::backend)) code = static_cast<Code>(words[rank].failure);
    if (code == Code::invalid_argument) code = Code::mismatch;  // those were not this rank's arguments
    throw Error(code, what + "rank " + std::to_string(rank) + ": " + words[rank].text);
  }
  for (size_t rank = 1; rank < words.size(); ++rank) {
    if (words[rank].text == words[0].text) continue;
    throw Error(Code::mismatch,
                what + "rank 0 has " + words[0].text + ", rank " + std::to_string(rank) + " has " + words[rank].text);
  }
  return words[0];
}

// What a rank looks at while it waits for the others inside the vendor's library.
void look_around(const Meeting& meeting) {
  SignalWatch::look();
  if (meeting.deadline.passed()) {
    throw Error(Code::timeout, "timed out; peers: " + meeting.host->whereabouts());
  }
  const auto lost = meeting.host->lost_peer();
  if (auto error = meeting.host->broken()) throw *error;
  if (lost) throw *lost;
  if (auto error = meeting.peer_refuses()) throw *error;
}

std::unique_ptr<Collectives> join(Vendor& vendor, Device& device, const Meeting& meeting, const std::string& root) {
  const Device::Current current(device);
  if (meeting.adopted != nullptr) return vendor.adopt(device, meeting.adopted, meeting.rank, meeting.size);
  return vendor.join(device,
                     {meeting.rank, meeting.size, root, meeting.rank_table, [&meeting] { look_around(meeting); }});
}

// This rank could not join. The others may be waiting for it inside the vendor's library, where they look around.
[[noreturn]] void give_up(const Meeting& meeting, const std::string& what, const Error& cause) {
  const Error error(cause.code(), what + cause.what());
  if (error.code() == Code::peer_lost || error.code() == Code::timeout || error.code() == Code::aborted) {
    meeting.host->fail(error);
  } else {
    meeting.refuse(error.what());
  }
  throw error;
}

}  // namespace

std::shared_ptr<DeviceTransport> connect(Memory memory, int index, const Meeting& meeting) {
  const std::string what = std::string("connecting the ranks for ") + to_string(memory) + " memory: ";
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
  } catch (const std::exception& error) {
    failure = as_error(error);
  }
  const Word first = settle(meeting, what, mine, failure);

  std::unique_ptr<Collectives> collectives;
  try {
    collectives = join(*vendor, *device, meeting, first.root);
  } catch (const Interrupted& error) {
    meeting.host->fail(Error(Code::aborted, what + "rank " + std::to_string(meeting.rank) + ": " + error.what()));
    throw;
  } catch (const std::exception& error) {
    give_up(meeting, what, as_error(error));
  }
  settle(meeting, what, {}, {});
  return std::make_shared<DeviceTransport>(meeting.rank, std::move(device), std::move(collectives), meeting.host);
}

}  // namespace a2a::device
