// The record of A2A_DUMP: what is in its file while operations run, and after they have ended.
#include "core/dump.h"

#include <unistd.h>

#include <cstring>

#include "a2a/communicator.h"
#include "check.h"
#include "environment.h"

namespace {

using namespace a2a;
using record::Entry;
using record::Header;
using record::State;

// The one file of a folder, as a reader finds it.
struct Record {
  explicit Record(const check::Folder& folder) {
    const auto files = folder.files();
    if (!CHECK_EQ(files.size(), 1)) return;
    bytes = check::contents(files[0]);
    if (CHECK(bytes.size() >= sizeof(header))) std::memcpy(&header, bytes.data(), sizeof(header));
  }
  Entry entry(uint64_t number) const {
    Entry entry{};
    const size_t at = record::kHeaderBytes + number % header.capacity * header.entry_bytes;
    if (CHECK(at + sizeof(entry) <= bytes.size())) std::memcpy(&entry, bytes.data() + at, sizeof(entry));
    return entry;
  }
  std::vector<uint64_t> amounts(uint64_t number) const {  // sent to each rank, then expected from each
    std::vector<uint64_t> amounts(2 * static_cast<size_t>(header.size));
    const size_t at = record::kHeaderBytes + number % header.capacity * header.entry_bytes + sizeof(Entry);
    if (CHECK(at + amounts.size() * 8 <= bytes.size())) {
      std::memcpy(amounts.data(), bytes.data() + at, amounts.size() * 8);
    }
    return amounts;
  }

  std::string bytes;
  Header header{};
};

Batch batch_of(uint64_t number) {
  static std::byte memory[64];
  Batch batch;
  batch.signature = {Op::alltoallv, Memory::host, DType{2, 32, 1}, number, 0};
  batch.unit_bytes = 4;
  batch.sends = {{0, memory, 8}, {1, memory, 12}, {1, memory, 4}};
  batch.recvs = {{1, memory, 20}};
  return batch;
}

TEST("no folder, no record") {
  const check::Variable none("A2A_DUMP", nullptr);
  CHECK(Dump::open(0, 2, 1, "world") == nullptr);
  const check::Variable empty("A2A_DUMP", "");
  CHECK(Dump::open(0, 2, 1, "world") == nullptr);
}

TEST("an operation is in the file from its begin on, with the bytes of each peer") {
  const check::Folder folder;
  const check::Variable variable("A2A_DUMP", folder.path().c_str());
  const auto dump = Dump::open(1, 2, 77, "split #12 of world");
  if (!CHECK(dump != nullptr)) return;
  CHECK(recording());
  set_call_site("train.py:12");
  dump->begin(batch_of(3));
  {
    const Record record(folder);
    CHECK(std::memcmp(record.header.magic, record::kMagic, sizeof(record::kMagic)) == 0);
    CHECK(record.header.rank == 1 && record.header.size == 2 && record.header.group == 77);
    CHECK_EQ(record.header.pid, ::getpid());
    CHECK_EQ(std::string(record.header.label), "split #12 of world");
    const Entry entry = record.entry(3);
    CHECK(entry.number == 3 && entry.state == static_cast<uint32_t>(State::started) && entry.ended == 0);
    CHECK_EQ(std::string(entry.op), "alltoallv");
    CHECK_EQ(std::string(entry.dtype), "float32");
    CHECK_EQ(std::string(entry.site), "train.py:12");
    CHECK_EQ(record.amounts(3), std::vector<uint64_t>({8, 16, 0, 20}));
  }
  dump->end(3, nullptr);
  dump->begin(batch_of(4));
  const Error error(Code::timeout, "too late");
  dump->end(4, &error);
  dump->end(3, &error);  // it has ended already
  const Record record(folder);
  CHECK(record.entry(3).state == static_cast<uint32_t>(State::finished) && record.entry(3).ended > 0);
  CHECK(record.entry(4).state == static_cast<uint32_t>(State::failed));
  CHECK_EQ(record.entry(4).error, static_cast<uint32_t>(Code::timeout));
  CHECK_EQ(std::string(record.entry(4).text), "too late");
  set_call_site("");
}

TEST("a refused operation has its reason, and the newest operations replace the oldest") {
  const check::Folder folder;
  const check::Variable variable("A2A_DUMP", folder.path().c_str());
  const auto dump = Dump::open(0, 2, 1, "world");
  if (!CHECK(dump != nullptr)) return;
  Batch refused;
  refused.signature.number = 1;
  refused.refusal = "counts[0] = -1";
  dump->begin(refused);
  CHECK_EQ(Record(folder).entry(1).state, static_cast<uint32_t>(State::refused));
  CHECK_EQ(std::string(Record(folder).entry(1).text), "counts[0] = -1");
  const uint64_t capacity = Record(folder).header.capacity;
  dump->begin(batch_of(1 + capacity));
  dump->end(1, nullptr);  // is not in the record any more
  const Entry entry = Record(folder).entry(1);
  CHECK(entry.number == 1 + capacity && entry.state == static_cast<uint32_t>(State::started));
}

TEST("only the first close counts, and a truncated file is written again") {
  const check::Folder folder;
  const check::Variable variable("A2A_DUMP", folder.path().c_str());
  const auto dump = Dump::open(0, 2, 1, "world");
  if (!CHECK(dump != nullptr)) return;
  dump->begin(batch_of(1));
  CHECK_EQ(::truncate(folder.files()[0].c_str(), 0), 0);
  dump->close(record::Fate::aborted, "no more");
  dump->close(record::Fate::closed, "");
  const Record record(folder);
  CHECK_EQ(record.header.fate, static_cast<uint32_t>(record::Fate::aborted));
  CHECK_EQ(std::string(record.header.reason), "no more");
  CHECK_EQ(record.entry(1).number, 1);
}

}  // namespace
