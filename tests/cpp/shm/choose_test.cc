// The choice of the way of bytes through shared memory: tables of sizes and machines, without ranks.
#include "transport/shm/policy/choose.h"

#include "check.h"
#include "transport/shm/copy/calibration.h"

namespace {

using namespace a2a;
using namespace a2a::shm;

constexpr size_t kNever = SIZE_MAX;
constexpr size_t kInline = 592, kChunks = 128 * kKiB;

// A probe that answers from a table, and counts the questions.
struct Answers final : Probe {
  bool segment = false, huge = false, resident = true;
  size_t pays_from = kNever;
  int asked = 0;

  bool in_segment() override { return segment; }
  bool in_huge_pages() override { return ++asked, huge; }
  bool present() override { return resident; }
  size_t cma_pays_from() override { return ++asked, pays_from; }
};

Machine machine_of(int ranks) {
  Machine machine;
  machine.surroundings = {.ranks = ranks, .cpus = 2};
  machine.cache = 32 * kMiB;
  return machine;
}
Machine alone() { return machine_of(2); }
Machine crowded(int ranks = 8) { return machine_of(ranks); }

Route route(size_t bytes, bool cma = true) {
  return {.bytes = bytes, .inline_bytes = kInline, .chunk_bytes = kChunks, .same_process = false, .cma = cma};
}
// A load that fits into the caches, and one that does not.
constexpr Load kLittle{.sent = kMiB, .received = kMiB};
constexpr Load kMuch{.sent = 64 * kMiB, .received = 64 * kMiB};

struct Row {
  const char* name;
  Machine machine;
  Load load;
  size_t bytes;
  bool segment, huge;
  size_t pays_from;
  Kind kind;
  const char* reason;  // a part of it
};

TEST("every size on every machine goes the way of the table, for the reason of the table") {
  const Row rows[] = {
      {"nothing", alone(), kLittle, 0, false, false, kNever, Kind::none, "nothing to send"},
      {"a byte", alone(), kLittle, 1, true, true, 0, Kind::inlined, "fits into the line"},
      {"a full line", alone(), kLittle, kInline, true, true, 0, Kind::inlined, "fits into the line"},
      {"a byte more", alone(), kLittle, kInline + 1, true, true, 0, Kind::staged, "chunks stay in the caches"},
      {"shared", alone(), kLittle, 8 * kKiB, true, false, kNever, Kind::shared, "shared memory"},
      {"shared, too little", alone(), kLittle, 8 * kKiB - 1, true, false, kNever, Kind::staged, "chunks"},
      {"shared, CPUs too", crowded(), kLittle, 16 * kKiB, true, false, kNever, Kind::shared, "shared memory"},
      {"that, too little", crowded(), kLittle, 16 * kKiB - 1, true, false, kNever, Kind::staged, "chunks"},
      // The kernel's copy where it is measured to be faster.
      {"measured", alone(), kLittle, 512 * kKiB, false, false, 512 * kKiB, Kind::cma, "measured to be faster"},
      {"measured, less", alone(), kLittle, 512 * kKiB - 1, false, true, 512 * kKiB, Kind::staged, "are faster"},
      {"measured from 1 MiB on", alone(), kLittle, kMiB - 1, false, false, kMiB, Kind::staged, "are faster"},
      {"measured never", alone(), kLittle, size_t{1} << 30, false, false, kNever, Kind::staged, "are faster"},
      {"full chunks", crowded(4), kLittle, kChunks, false, false, 512 * kKiB, Kind::cma, "measured to be faster"},
      {"chunks not full", crowded(4), kLittle, kChunks - 1, false, false, 0, Kind::staged, "are faster"},
      {"full, from 1 MiB on", crowded(4), kLittle, kChunks, false, false, kMiB, Kind::staged, "are faster"},
      // Where memory bandwidth limits the copy, from huge pages.
      {"past the caches", alone(), kMuch, 32 * kKiB, false, true, kNever, Kind::cma, "too much for the caches"},
      {"that, less", alone(), kMuch, 32 * kKiB - 1, false, true, kNever, Kind::staged, "chunks stay"},
      {"that, small pages", alone(), kMuch, 8 * kMiB, false, false, kNever, Kind::staged, "are faster"},
      {"within the caches", alone(), kLittle, 64 * kMiB, false, true, kNever, Kind::staged, "are faster"},
      // Where chunks would need switches between ranks.
      {"turns", crowded(), kLittle, 8 * kMiB, false, true, kNever, Kind::cma, "turn of the scheduler"},
      {"turns, less", crowded(), kLittle, 8 * kMiB - 1, false, true, kNever, Kind::staged, "are faster"},
  };
  for (const Row& row : rows) {
    const check::Note note(row.name, 0);
    Answers answers;
    answers.segment = row.segment;
    answers.huge = row.huge;
    answers.pays_from = row.pays_from;
    const Choice choice = choose_way(route(row.bytes), row.load, row.machine, answers);
    CHECK(choice.kind == row.kind);
    CHECK(std::string(choice.reason).find(row.reason) != std::string::npos);
  }
}

TEST("threads of one process copy from each other's memory") {
  Answers answers;
  Route of = route(8 * kKiB);
  of.same_process = true;
  CHECK(choose_way(of, kLittle, alone(), answers).kind == Kind::pointer);
  of.bytes = 8 * kKiB - 1;
  CHECK(choose_way(of, kLittle, alone(), answers).kind == Kind::staged);
}

TEST("memory that the receiver may not read, or without pages, is staged") {
  Answers answers;
  answers.huge = true;
  CHECK(choose_way(route(kMiB, false), kMuch, alone(), answers).kind == Kind::staged);
  CHECK_EQ(answers.asked, 0);
  CHECK(choose_way(route(kMiB), kMuch, alone(), answers).kind == Kind::cma);
  answers.resident = false;
  CHECK(choose_way(route(kMiB), kMuch, alone(), answers).kind == Kind::staged);
}

TEST("nothing is measured before it decides") {
  Answers answers;
  answers.huge = true;
  choose_way(route(kLeastCalibrated - 1), kLittle, alone(), answers);
  choose_way(route(kChunks - 1), kLittle, crowded(), answers);
  CHECK_EQ(answers.asked, 0);
  choose_way(route(8 * kMiB), kLittle, crowded(), answers);  // huge pages are enough
  CHECK_EQ(answers.asked, 1);
  choose_way(route(kLeastCalibrated), kLittle, alone(), answers);
  CHECK_EQ(answers.asked, 2);
}

TEST("what the user has set holds") {
  Machine machine = alone();
  machine.direct_min = 7;
  machine.cma_min = 2000;
  machine.stream_min = 9;
  Answers answers;
  CHECK(choose_way(route(2000), kLittle, machine, answers).kind == Kind::cma);
  CHECK(choose_way(route(1999), kMuch, machine, answers).kind == Kind::staged);
  CHECK_EQ(answers.asked, 0);
  answers.segment = true;
  CHECK(choose_way(route(1999), kLittle, machine, answers).kind == Kind::shared);
  CHECK(choose_stores({.sent = 0, .received = 9}, machine) == Stores::streaming);
  CHECK(choose_stores({.sent = 64 * kMiB, .received = 8}, machine) == Stores::cached);
  CHECK_EQ(direct_min(machine), 7);
  CHECK_EQ(cma_min(machine, kChunks, kNever), 2000);
  CHECK_EQ(stream_min(machine), 9);
}

TEST("memory sets the pace once all buffers are twice what the caches hold") {
  CHECK(exceeds_caches({4 * kMiB, 4 * kMiB}, crowded()) && !exceeds_caches({4 * kMiB - 2, 4 * kMiB}, crowded()));
  CHECK(exceeds_caches({kMiB, 7 * kMiB}, crowded()) && !exceeds_caches({7 * kMiB - 2, kMiB}, crowded()));
  // Bytes that all peers get alike are one buffer.
  CHECK(!exceeds_caches({64 * kMiB, 64 * kMiB, 4 * kMiB}, alone()));
  CHECK(exceeds_caches({64 * kMiB, 64 * kMiB, 8 * kMiB}, alone()));
  CHECK(choose_stores({8 * kMiB, 1}, crowded()) == Stores::streaming);
  CHECK(choose_stores({0, 4 * kMiB}, crowded()) == Stores::cached);
  CHECK(choose_stores({0, 16 * kMiB}, crowded()) == Stores::streaming);
  CHECK_EQ(stream_min(crowded()), 4 * kMiB);
  CHECK_EQ(stream_min(alone()), 16 * kMiB);
  CHECK_EQ(cma_min(crowded(), kChunks, kLeastCalibrated), kChunks);
  CHECK_EQ(cma_min(alone(), kChunks, kNever), 8 * kMiB);
  CHECK_EQ(cma_min(crowded(64), kChunks, kNever), 32 * kKiB);
}

TEST("one copy for all peers pays where it saves enough and stays in the caches") {
  CHECK(!copy_for_all_pays(Kind::staged, kMiB, 3));
  CHECK(copy_for_all_pays(Kind::staged, 40 * kKiB, 4) && !copy_for_all_pays(Kind::staged, 40 * kKiB - 1, 4));
  CHECK(copy_for_all_pays(Kind::staged, kMiB, 8) && !copy_for_all_pays(Kind::staged, kMiB + 1, 8));
  CHECK(copy_for_all_pays(Kind::cma, 512 * kKiB, 8) && !copy_for_all_pays(Kind::cma, kMiB, 8));
  CHECK(!copy_for_all_pays(Kind::shared, kMiB, 8));
}

}  // namespace
