// Ranks meet over TCP, as threads of this program. test_tcp_bootstrap.py tests unauthenticated and broken peers.
#include <latch>

#include "a2a/bootstrap.h"
#include "check.h"
#include "tcp.h"

namespace {

using a2a::Code;
using a2a::Deadline;

const std::string kSecret = "0123456789abcdef";

std::shared_ptr<a2a::Bootstrap> join(int rank, int size, const std::string& address, const std::string& job = "job",
                                     const std::string& secret = kSecret, double timeout = 20) {
  return a2a::tcp_bootstrap(rank, size, job, address, secret, Deadline::after_seconds(timeout));
}

// Returns the string of rank `rank` in round `round`; all such strings differ.
std::string said(int rank, int round, size_t bytes) {
  std::string text = std::to_string(rank) + "/" + std::to_string(round) + ":";
  while (text.size() < bytes) text += static_cast<char>(text[text.size() / 2] + rank + round);
  return bytes == 0 ? "" : text;
}

void check_round(a2a::Bootstrap& bootstrap, int rank, int size, int round, size_t bytes) {
  // Lengths differ from rank to rank.
  const auto all =
      bootstrap.allgather(said(rank, round, bytes * static_cast<size_t>(rank + 1)), Deadline::after_seconds(30));
  if (!CHECK_EQ(all.size(), size)) return;
  for (int r = 0; r < size; ++r) {
    CHECK(all[static_cast<size_t>(r)] == said(r, round, bytes * static_cast<size_t>(r + 1)));
  }
}

TEST("ranks exchange strings, again and again") {
  for (int size = 1; size <= 8; ++size) {
    const check::Note note("size", static_cast<uint64_t>(size));
    const std::string address = free_address();
    check::threads(size, [&](int rank) {
      const auto bootstrap = join(rank, size, address);
      for (int round = 0; round < 50; ++round) check_round(*bootstrap, rank, size, round, static_cast<size_t>(round));
    });
  }
}

TEST("long strings, and none") {
  const std::string address = free_address();
  check::threads(3, [&](int rank) {
    const auto bootstrap = join(rank, 3, address);
    for (const size_t bytes : {size_t{1} << 20, size_t{0}, size_t{65'496}, size_t{65'497}})
      check_round(*bootstrap, rank, 3, 1, bytes);
    CHECK_EQ(bootstrap->allgather("", Deadline::after_seconds(20)).size(), 3);
  });
}

TEST("one meeting after another at the same address") {
  const std::string address = free_address();
  check::threads(3, [&](int rank) {
    for (int meeting = 0; meeting < 20; ++meeting)
      check_round(*join(rank, 3, address, "job#" + std::to_string(meeting)), rank, 3, meeting, 10);
  });
}

TEST("a string that is too long is an error on all ranks, and the last word") {
  const std::string address = free_address();
  check::threads(3, [&](int rank) {
    const auto bootstrap = join(rank, 3, address);
    check_round(*bootstrap, rank, 3, 0, 10);
    const std::string mine(rank == 1 ? (size_t{16} << 20) + 1 : 5, 'x');
    for (int i = 0; i < 2; ++i) {
      CHECK_THROWS(Code::invalid_argument, "job 'job': rank 1 has a string of 16777217 bytes",
                   bootstrap->allgather(mine, Deadline::after_seconds(20)));
    }
  });
}

TEST("all hear of what does not fit") {
  struct Case {
    std::vector<std::pair<int, int>> facts;  // rank, size
    const char* text;
  };
  for (const auto& [facts, text] : std::vector<Case>{
           {{{0, 3}, {1, 3}, {1, 3}}, "rank 1 joined twice, from pid "},
           {{{0, 3}, {1, 3}, {2, 4}}, "rank 2 was started with size 4, rank 0 with size 3"},
       }) {
    const std::string address = free_address();
    check::threads(3, [&, &f = facts, t = text](int i) {
      const auto [rank, size] = f[static_cast<size_t>(i)];
      // It ends the meeting for the ranks that have connected; a later rank finds no listener.
      if (i == 2) std::this_thread::sleep_for(std::chrono::seconds(1));
      const auto meet = [&] { return join(rank, size, address)->allgather("", Deadline::after_seconds(20)); };
      CHECK_THROWS(Code::invalid_argument, t, meet());
    });
  }
}

TEST("another job's rank is told, and this job goes on") {
  const std::string address = free_address();
  check::threads(3, [&](int i) {
    if (i == 1) std::this_thread::sleep_for(std::chrono::milliseconds(300));
    if (i < 2) return check_round(*join(i, 2, address), i, 2, 0, 10);
    const std::string text = "job 'job': rank 1 of job 'other' came to rank 0";
    CHECK_THROWS(Code::invalid_argument, text, join(1, 2, address, "other"));
  });
}

TEST("another secret") {
  const std::string address = free_address(), refused = "20 connections without the job's secret";
  check::threads(2, [&](int rank) {
    if (rank == 0) CHECK_THROWS(Code::timeout, refused, join(0, 2, address, "job", kSecret, 3));
    if (rank == 1) {
      CHECK_THROWS(Code::invalid_argument, "do not have the same secret", join(1, 2, address, "job", kSecret + "?"));
    }
  });
}

TEST("who is missing") {
  const std::string address = free_address();
  check::threads(2, [&](int i) {
    const int rank = 2 * i;
    const auto meet = [&] {
      return join(rank, 4, address, "job", kSecret, i == 0 ? 0.3 : 5)->allgather("", Deadline::after_seconds(5));
    };
    CHECK_THROWS(Code::timeout, "timed out waiting for rank 1, 3", meet());
  });
  CHECK_THROWS(Code::timeout, "rank 1 timed out waiting for rank 0 at " + address + " (Connection refused)",
               join(1, 2, address, "job", kSecret, 0.2));
}

TEST("a rank that leaves is named") {
  const std::string address = free_address();
  check::threads(4, [&](int rank) {
    const auto bootstrap = join(rank, 4, address);
    check_round(*bootstrap, rank, 4, 0, 10);
    if (rank == 2) return;
    CHECK_THROWS(Code::peer_lost, "rank 2 (pid " + std::to_string(getpid()) + " at 127.0.0.1) was lost",
                 bootstrap->allgather("", Deadline::after_seconds(20)));
  });
}

TEST("deadlines") {
  const std::string address = free_address();
  check::threads(3, [&](int rank) {
    const auto bootstrap = join(rank, 3, address);
    if (rank == 2) return std::this_thread::sleep_for(std::chrono::milliseconds(700));
    CHECK_THROWS(Code::timeout, "timed out waiting for rank 2", bootstrap->allgather("", Deadline::after_seconds(0.3)));
  });
}

TEST("one thread at a time") {
  const std::string address = free_address();
  std::latch refused(2);
  check::threads(2, [&](int rank) {
    const auto bootstrap = join(rank, 2, address);
    std::jthread first([&] {
      if (rank == 1) refused.arrive_and_wait();  // so that rank 0's call lasts
      check_round(*bootstrap, rank, 2, 0, 10);
    });
    if (rank == 1) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    CHECK_THROWS(Code::invalid_argument, "another thread", bootstrap->allgather("", Deadline::after_seconds(1)));
    refused.count_down();
  });
}

TEST("arguments") {
  CHECK_THROWS(Code::invalid_argument, "rank = 2 and size = 2", join(2, 2, "127.0.0.1:1"));
  CHECK_THROWS(Code::invalid_argument, "the secret has 15 bytes", join(0, 2, "127.0.0.1:1", "job", "0123456789abcde"));
  for (const auto& [address, text] : std::vector<std::pair<const char*, const char*>>{
           {"localhost", "has no port"},
           {"localhost:", "the port is"},
           {"localhost:0", "the port is"},
           {"localhost:65536", "the port is"},
           {"localhost:-1", "the port is"},
           {"localhost:1x", "the port is"},
           {"::1:80", "stands in brackets"},
           {"0.0.0.0:29501", "every interface"},
           {"[::]:29501", "every interface"},
           {"[::ffff:0.0.0.0]:29501", "every interface"},
           {"192.0.2.1:29501", "has no such address"},  // an address reserved for documentation
       }) {
    CHECK_THROWS(Code::invalid_argument, text, join(0, 2, address));
  }
}

TEST("a port that is in use") {
  const std::string address = free_address();
  check::threads(2, [&](int i) {
    if (i == 1) std::this_thread::sleep_for(std::chrono::milliseconds(200));
    if (i == 0) CHECK_THROWS(Code::timeout, "waiting for rank 1", join(0, 2, address, "job", kSecret, 1.5));
    if (i == 1) CHECK_THROWS(Code::invalid_argument, "the port is in use", join(0, 2, address));
  });
}

}  // namespace
