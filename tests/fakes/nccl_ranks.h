// Ranks of the NCCL self-tests.
#pragma once

#include <optional>

#include "nvidia/testing.h"

namespace nvidia {

inline ncclConfig_t config(int blocking, int version = 23203) {
  ncclConfig_t made;
  int* const words = reinterpret_cast<int*>(&made);
  std::fill(words, words + sizeof made / sizeof(int), INT_MIN);
  made.size = sizeof made;
  made.magic = NCCL_API_MAGIC;
  made.version = static_cast<unsigned>(version);
  made.netName = made.commName = nullptr;
  made.blocking = blocking;
  return made;
}

// Polls as programs do with communicators that do not block.
inline ncclResult_t settled(ncclComm_t comm) {
  ncclResult_t state = ncclInProgress;
  while (state == ncclInProgress) {
    if (const ncclResult_t wrong = ncclCommGetAsyncError(comm, &state)) return wrong;
    usleep(200);
  }
  return state;
}

// One rank with its communicator and a stream.
struct Rank {
  Rank(int own_rank, int ranks, isolated::Board& shared, bool blocks = true)
      : rank(own_rank), size(ranks), blocking(blocks), board(shared) {
    start(rank % 8);
    board.share(rank, &id, sizeof id, [&] { CHECK_EQ(ncclGetUniqueId(&id), ncclSuccess); });
    ncclConfig_t how = config(blocking);
    CHECK_EQ(ncclCommInitRankConfig(&comm, size, id, rank, &how), blocking ? ncclSuccess : ncclInProgress);
    CHECK_EQ(settled(comm), ncclSuccess);
    stream.emplace();
  }
  ~Rank() {
    if (comm) CHECK_EQ(ncclCommDestroy(comm), ncclSuccess);
  }
  Rank(const Rank&) = delete;

  void abort() {
    CHECK_EQ(ncclCommAbort(comm), ncclSuccess);
    comm = nullptr;
  }
  ncclResult_t async_error() const {
    ncclResult_t error = ncclInProgress;
    CHECK_EQ(ncclCommGetAsyncError(comm, &error), ncclSuccess);
    return error;
  }
  // Polls until the communicator has an error.
  ncclResult_t async_error_soon() const {
    for (int i = 0; i < 5000 && !async_error(); ++i) usleep(1000);
    return async_error();
  }
  CUresult synchronize() const { return cuStreamSynchronize(*stream); }
  void meet() const { board.meet(size); }

  const int rank, size;
  const bool blocking;
  isolated::Board& board;
  ncclUniqueId id;
  ncclComm_t comm = nullptr;
  std::optional<Stream> stream;
};

using Body = std::function<void(Rank&)>;

inline std::function<void(int, isolated::Board&)> with_ranks(int n, Body body, bool blocking = true) {
  return [=](int number, isolated::Board& board) {
    Rank rank(number, n, board, blocking);
    body(rank);
  };
}
inline void everywhere(int n, Body body, const isolated::Environment& environment = {}) {
  isolated::everywhere(n, with_ranks(n, body), environment);
}
inline void as_threads(int n, Body body, const isolated::Environment& environment = {}) {
  isolated::as_threads(n, with_ranks(n, body), environment);
}

inline int value(int from, int to, size_t i) { return (from * 64 + to) * 100000 + static_cast<int>(i); }

}  // namespace nvidia
