// The timeline of A2A_TRACE: the entries of its file.
#include "core/trace.h"

#include <unistd.h>

#include <cstring>
#include <map>

#include "check.h"
#include "environment.h"

namespace {

using namespace a2a;
using namespace a2a::timeline;

struct Timeline {
  explicit Timeline(const check::Folder& folder) {
    const auto files = folder.files();
    if (!CHECK_EQ(files.size(), 1)) return;
    const std::string bytes = check::contents(files[0]);
    if (!CHECK(bytes.size() >= sizeof(header))) return;
    std::memcpy(&header, bytes.data(), sizeof(header));
    for (size_t at = sizeof(header); at < bytes.size();) {
      uint32_t head[2];  // the kind and the length of every entry
      std::memcpy(head, bytes.data() + at, sizeof(head));
      if (!CHECK(head[1] >= sizeof(head) && head[1] <= bytes.size() - at)) return;
      read(static_cast<Kind>(head[0]), bytes.data() + at);
      at += head[1];
    }
    CHECK_EQ(header.written, bytes.size());
  }
  void read(Kind kind, const char* from) {
    if (kind == Kind::operation) std::memcpy(&operations.emplace_back(), from, sizeof(timeline::Operation));
    if (kind == Kind::message) std::memcpy(&messages.emplace_back(), from, sizeof(timeline::Message));
    if (kind != Kind::amounts) return;
    Amounts amounts;
    std::memcpy(&amounts, from, sizeof(amounts));
    std::vector<uint64_t>& values = bytes_of[amounts.id];
    values.resize((amounts.bytes - sizeof(amounts)) / 8);
    std::memcpy(values.data(), from + sizeof(amounts), values.size() * 8);
    ++amounts_entries;
  }

  Header header{};
  std::vector<timeline::Operation> operations;
  std::vector<timeline::Message> messages;
  std::map<uint64_t, std::vector<uint64_t>> bytes_of;
  int amounts_entries = 0;
};

Batch batch_of(uint64_t number, size_t bytes) {
  static std::byte memory[64];
  Batch batch;
  batch.signature = {Op::allgather, Memory::host, DType{2, 32, 1}, number, 0};
  batch.sends = {{1, memory, bytes}};
  batch.recvs = {{0, memory, 4}, {1, memory, 8}};
  return batch;
}

TEST("no folder, no timeline; A2A_RECORD names one as well") {
  const check::Variable trace("A2A_TRACE", nullptr), record("A2A_RECORD", nullptr);
  CHECK(Trace::open(0, 2, 1, "world") == nullptr);
  const check::Folder folder;
  const check::Variable given("A2A_RECORD", folder.path().c_str());
  CHECK(Trace::open(0, 2, 1, "world") != nullptr);
  CHECK_EQ(folder.files().size(), 1);
}

TEST("operations and messages are in the file when it is closed, equal bytes once") {
  const check::Folder folder;
  const check::Variable variable("A2A_TRACE", folder.path().c_str());
  const auto trace = Trace::open(1, 2, 77, "world");
  if (!CHECK(trace != nullptr)) return;
  trace->begin(batch_of(1, 16));
  trace->begin(batch_of(2, 16));
  trace->end(2, true);
  trace->end(1, false);
  trace->end(1, false);  // ended already
  trace->end(9, false);  // was not begun here
  trace->begin(batch_of(3, 24));
  trace->end(3, false);
  Batch refused = batch_of(4, 16);
  refused.refusal = "counts";
  trace->begin(refused);
  trace->end(4, true);
  timeline::Message message;
  message.amount = 5, message.peer = 1, message.sends = 1;
  trace->add(message);
  trace->close();
  const Timeline all(folder);
  CHECK(std::memcmp(all.header.magic, kMagic, sizeof(kMagic)) == 0);
  CHECK(all.header.rank == 1 && all.header.size == 2 && all.header.group == 77);
  CHECK(all.header.fate == Fate::closed && all.header.error == 0);
  CHECK(all.header.operations == 3 && all.header.messages == 1);
  if (!CHECK_EQ(all.operations.size(), 3) || !CHECK_EQ(all.messages.size(), 1)) return;
  CHECK(all.operations[0].number == 2 && all.operations[1].number == 1 && all.operations[2].number == 3);
  CHECK(all.operations[0].failed == 1 && all.operations[1].failed == 0);
  CHECK(all.operations[0].started <= all.operations[0].ended);
  CHECK_EQ(std::string(all.operations[0].op), "allgather");
  CHECK_EQ(all.amounts_entries, 2);
  CHECK_EQ(all.operations[0].amounts, all.operations[1].amounts);
  CHECK_EQ(all.bytes_of.at(all.operations[0].amounts), std::vector<uint64_t>({0, 16, 4, 8}));
  CHECK_EQ(all.bytes_of.at(all.operations[2].amounts), std::vector<uint64_t>({0, 24, 4, 8}));
  CHECK(all.messages[0].amount == 5 && all.messages[0].peer == 1 && all.messages[0].sends == 1);
}

TEST("the file of a rank that has not closed is marked open") {
  const check::Folder folder;
  const check::Variable variable("A2A_TRACE", folder.path().c_str());
  const auto trace = Trace::open(0, 2, 1, "world");
  if (!CHECK(trace != nullptr)) return;
  CHECK(Timeline(folder).header.fate == Fate::open);
}

}  // namespace
