// Ranks of the HCCL self-tests.
#pragma once

#include <optional>

#include "ascend/testing.h"

namespace ascend {

// One rank with its communicator and a stream.
struct Rank {
  Rank(int own_rank, int ranks, isolated::Board& shared) : rank(own_rank), size(ranks), board(shared) {
    start(rank % 8);
    HcclRootInfo root;
    board.share(rank, &root, sizeof root, [&] { CHECK_EQ(HcclGetRootInfo(&root), HCCL_SUCCESS); });
    CHECK_EQ(HcclCommInitRootInfo(static_cast<uint32_t>(size), &root, static_cast<uint32_t>(rank), &comm),
             HCCL_SUCCESS);
    stream.emplace();
  }
  ~Rank() {
    if (comm) CHECK_EQ(HcclCommDestroy(comm), HCCL_SUCCESS);
  }
  Rank(const Rank&) = delete;

  aclError synchronize() const { return aclrtSynchronizeStream(*stream); }
  void meet() const { board.meet(size); }

  const int rank, size;
  isolated::Board& board;
  HcclComm comm = nullptr;
  std::optional<Stream> stream;
};

using Body = std::function<void(Rank&)>;

inline std::function<void(int, isolated::Board&)> with_ranks(int n, Body body) {
  return [n, body](int number, isolated::Board& board) {
    Rank rank(number, n, board);
    body(rank);
  };
}

inline void everywhere(int n, Body body, const isolated::Environment& environment = {}) {
  isolated::everywhere(n, with_ranks(n, body), environment);
}
inline void as_threads(int n, Body body, const isolated::Environment& environment = {}) {
  isolated::as_threads(n, with_ranks(n, body), environment);
}
inline void as_processes(int n, Body body, const isolated::Environment& environment = {}) {
  isolated::as_processes(n, with_ranks(n, body), environment);
}

// What rank `from` sends to rank `to` at place i: another value for each.
inline int value(int from, int to, size_t i) { return (from * 64 + to) * 100000 + static_cast<int>(i); }

}  // namespace ascend
