// The HCCL double enforces the documented rules, and fails as the environment asks it to.
#include "hccl_ranks.h"

using ascend::Array;
using ascend::Rank;
using isolated::contains;

namespace {

constexpr auto kInt = HCCL_DATA_TYPE_INT32;
using Counts = std::vector<uint64_t>;

// An exchange of equal parts; tests change single arguments of it.
struct Call {
  explicit Call(Rank& of)
      : rank(of), from(static_cast<size_t>(4 * of.size), of.rank), to(static_cast<size_t>(4 * of.size), -1) {
    for (uint64_t peer = 0; peer < static_cast<uint64_t>(rank.size); ++peer) {
      send.push_back(4);
      recv.push_back(4);
      sdispls.push_back(4 * peer);
      rdispls.push_back(4 * peer);
    }
    send_buffer = from.data;
    recv_buffer = to.data;
  }
  HcclResult operator()() {
    return HcclAlltoAllV(send_buffer, send.data(), sdispls.data(), type, recv_buffer, recv.data(), rdispls.data(), type,
                         rank.comm, *rank.stream);
  }
  void works() {
    CHECK_EQ((*this)(), HCCL_SUCCESS);
    CHECK_EQ(rank.synchronize(), ACL_SUCCESS);
    CHECK_EQ(to.values().back(), rank.size - 1);
  }

  Rank& rank;
  Array<int> from, to;
  Counts send, recv, sdispls, rdispls;
  const void *send_buffer, *recv_buffer;
  HcclDataType type = kInt;
};

HcclResult async_error(const Rank& rank) {
  HcclResult error = HCCL_E_RESERVED;
  CHECK_EQ(HcclGetCommAsyncError(rank.comm, &error), HCCL_SUCCESS);
  return error;
}

}  // namespace

TEST("null arguments") {
  ascend::as_threads(1, [](Rank& rank) {
    Call call(rank);
    const uint64_t* const four = call.send.data();
    const uint64_t* const zero = call.sdispls.data();
    const auto with = [&](const void* send, const void* counts, const void* displs, const void* recv,
                          const void* recv_counts, const void* recv_displs, HcclComm comm, aclrtStream stream) {
      return HcclAlltoAllV(send, counts, displs, kInt, recv, recv_counts, recv_displs, kInt, comm, stream);
    };
    void *a = call.from.data, *b = call.to.data;
    const HcclComm comm = rank.comm;
    const aclrtStream stream = *rank.stream;
    CHECK_EQ(with(a, nullptr, zero, b, four, zero, comm, stream), HCCL_E_PTR);
    CHECK_EQ(with(a, four, nullptr, b, four, zero, comm, stream), HCCL_E_PTR);
    CHECK_EQ(with(a, four, zero, b, nullptr, zero, comm, stream), HCCL_E_PTR);
    CHECK_EQ(with(a, four, zero, b, four, nullptr, comm, stream), HCCL_E_PTR);
    CHECK_EQ(with(a, four, zero, b, four, zero, nullptr, stream), HCCL_E_PTR);
    CHECK_EQ(with(a, four, zero, b, four, zero, comm, nullptr), HCCL_E_PTR);
    CHECK_EQ(with(nullptr, four, zero, b, four, zero, comm, stream), HCCL_E_PTR);
    CHECK_EQ(with(a, four, zero, nullptr, four, zero, comm, stream), HCCL_E_PTR);
    CHECK_EQ(with(nullptr, zero, zero, nullptr, zero, zero, comm, stream), HCCL_SUCCESS);  // all counts are 0
    CHECK_EQ(HcclAlltoAll(nullptr, 0, kInt, nullptr, 0, kInt, nullptr, nullptr), HCCL_SUCCESS);
    CHECK_EQ(HcclSend(nullptr, 0, kInt, 0, nullptr, nullptr), HCCL_SUCCESS);
    CHECK_EQ(HcclSend(nullptr, 1, kInt, 0, comm, stream), HCCL_E_PTR);
    CHECK_EQ(HcclBatchSendRecv(nullptr, 0, nullptr, nullptr), HCCL_SUCCESS);
    CHECK_EQ(HcclBatchSendRecv(nullptr, 1, comm, stream), HCCL_E_PTR);
    CHECK_EQ(HcclGetRootInfo(nullptr), HCCL_E_PTR);
    CHECK_EQ(HcclCommDestroy(nullptr), HCCL_E_PTR);
    call.works();
  });
}

TEST("counts, types and buffers") {
  ascend::as_threads(1, [](Rank& rank) {
    Call call(rank);
    const auto refused = [&](HcclResult code, auto change) {
      Call changed(rank);
      change(changed);
      CHECK_EQ(changed(), code);
    };
    refused(HCCL_E_PARA, [](Call& c) { c.send_buffer = c.recv_buffer; });  // in place
    CHECK(contains(aclGetRecentErrMsg(), "AlltoAllV does not support in-place operation."));
    refused(HCCL_E_PARA, [](Call& c) { c.send[0] = 0x800000000; });
    CHECK(contains(aclGetRecentErrMsg(), "0x7FFFFFFFF"));
    refused(HCCL_E_PARA, [](Call& c) { c.recv[0] = 0x7FFFFFFFF; });  // a legal count, but the buffer is not as long
    refused(HCCL_E_PARA, [](Call& c) { c.rdispls[0] = 1; });         // beyond the end
    refused(HCCL_E_NOT_SUPPORT, [](Call& c) { c.type = HCCL_DATA_TYPE_INT128; });
    refused(HCCL_E_NOT_SUPPORT, [](Call& c) { c.type = static_cast<HcclDataType>(13); });
    refused(HCCL_E_NOT_SUPPORT, [](Call& c) { c.type = HCCL_DATA_TYPE_FP8E4M3; });  // not this product
    refused(HCCL_E_PARA, [](Call& c) { c.send_buffer = c.send.data(); });           // host memory
    CHECK(contains(aclGetRecentErrMsg(), "not device memory"));
    CHECK_EQ(HcclAlltoAll(call.from.data, 1, kInt, call.to.data, 2, kInt, rank.comm, *rank.stream), HCCL_E_PARA);
    CHECK_EQ(HcclAlltoAll(call.from.data, 1, kInt, call.to.data, 1, HCCL_DATA_TYPE_FP32, rank.comm, *rank.stream),
             HCCL_E_PARA);
    CHECK_EQ(HcclAlltoAll(call.to.data, 1, kInt, call.to.data, 1, kInt, rank.comm, *rank.stream), HCCL_E_PARA);
    // Counts are read by the host.
    const Array<uint64_t> on_device(1, 4);
    CHECK_EQ(HcclAlltoAllV(call.from.data, on_device.data, call.sdispls.data(), kInt, call.to.data, call.recv.data(),
                           call.rdispls.data(), kInt, rank.comm, *rank.stream),
             HCCL_E_PARA);
    setenv("A2A_FAKE_SOC", "Ascend950PR", 1);
    call.type = HCCL_DATA_TYPE_FP8E4M3;
    CHECK_EQ(call(), HCCL_SUCCESS);
    CHECK_EQ(rank.synchronize(), ACL_SUCCESS);
    unsetenv("A2A_FAKE_SOC");
  });
}

TEST("reductions: their types and operations, and outputs") {
  ascend::as_threads(1, [](Rank& rank) {
    const Array<int> a(8, 1), b(8, 2);
    const auto reduce = [&](void* to, HcclDataType type, HcclReduceOp op, uint32_t root = 0) {
      return HcclReduce(a.data, to, 4, type, op, root, rank.comm, *rank.stream);
    };
    for (const auto type : {HCCL_DATA_TYPE_UINT8, HCCL_DATA_TYPE_FP64, HCCL_DATA_TYPE_FP8E4M3}) {
      CHECK_EQ(reduce(b.data, type, HCCL_REDUCE_SUM), HCCL_E_NOT_SUPPORT);
    }
    CHECK_EQ(reduce(b.data, HCCL_DATA_TYPE_BFP16, HCCL_REDUCE_PROD), HCCL_E_NOT_SUPPORT);
    CHECK_EQ(reduce(b.data, kInt, HCCL_REDUCE_RESERVED), HCCL_E_NOT_SUPPORT);
    CHECK_EQ(reduce(nullptr, kInt, HCCL_REDUCE_SUM), HCCL_E_PTR);
    CHECK_EQ(reduce(reinterpret_cast<std::byte*>(b.data) + 2, kInt, HCCL_REDUCE_SUM), HCCL_E_PARA);
    CHECK_EQ(reduce(reinterpret_cast<std::byte*>(a.data) + 4, kInt, HCCL_REDUCE_SUM), HCCL_E_PARA);
    CHECK_EQ(reduce(b.data, kInt, HCCL_REDUCE_SUM, 1), HCCL_E_PARA);
    CHECK_EQ(reduce(a.data, kInt, HCCL_REDUCE_SUM), HCCL_SUCCESS);
    CHECK_EQ(reduce(b.data, kInt, HCCL_REDUCE_MAX), HCCL_SUCCESS);
    CHECK_EQ(HcclScatter(nullptr, b.data, 4, kInt, 0, rank.comm, *rank.stream), HCCL_E_PTR);
    CHECK_EQ(HcclBroadcast(nullptr, 4, kInt, 0, rank.comm, *rank.stream), HCCL_E_PTR);
    CHECK_EQ(rank.synchronize(), ACL_SUCCESS);
    CHECK_EQ(b.values(), (std::vector<int>{1, 1, 1, 1, 2, 2, 2, 2}));
  });
}

TEST("everything is on the device of the communicator, and so is the thread") {
  ascend::as_threads(1, [](Rank& rank) {
    Call call(rank);
    CHECK_EQ(aclrtSetDevice(1), ACL_SUCCESS);
    const ascend::Stream stream;
    const Array<int> elsewhere(4, 1);
    CHECK_EQ(call(), HCCL_E_PARA);  // the thread
    CHECK_EQ(aclrtSetDevice(0), ACL_SUCCESS);
    CHECK_EQ(HcclBarrier(rank.comm, stream), HCCL_E_PARA);
    call.send_buffer = elsewhere.data;
    CHECK_EQ(call(), HCCL_E_PARA);
    CHECK(contains(aclGetRecentErrMsg(), "is on device 1"));
    std::thread([&] { CHECK_EQ(call(), HCCL_E_RUNTIME); }).join();  // has no device
  });
}

TEST("nothing works with what was destroyed") {
  ascend::as_threads(1, [](Rank& rank) {
    Call call(rank);
    const HcclComm comm = rank.comm;
    CHECK_EQ(HcclCommDestroy(comm), HCCL_SUCCESS);
    CHECK_EQ(HcclCommDestroy(comm), HCCL_E_PARA);
    CHECK_EQ(call(), HCCL_E_PARA);
    uint32_t size;
    CHECK_EQ(HcclGetRankSize(comm, &size), HCCL_E_PARA);
    rank.comm = nullptr;
  });
  ascend::as_threads(1, [](Rank& rank) {
    const aclrtStream stream = *rank.stream;
    CHECK_EQ(aclrtDestroyStream(stream), ACL_SUCCESS);
    CHECK_EQ(HcclBarrier(rank.comm, stream), HCCL_E_PARA);
  });
}

TEST("messages with oneself") {
  ascend::as_threads(1, [](Rank& rank) {
    const Array<int> a(4, 1), b(4, -1);
    CHECK_EQ(HcclSend(a.data, 4, kInt, 0, rank.comm, *rank.stream), HCCL_E_NOT_SUPPORT);
    CHECK(contains(aclGetRecentErrMsg(), "destRank cannot be equal to self."));
    CHECK_EQ(HcclRecv(b.data, 4, kInt, 0, rank.comm, *rank.stream), HCCL_E_NOT_SUPPORT);
    CHECK_EQ(HcclSend(a.data, 4, kInt, 1, rank.comm, *rank.stream), HCCL_E_PARA);  // nobody
    HcclSendRecvItem items[] = {{HCCL_SEND, a.data, 4, kInt, 0}, {HCCL_RECV, b.data, 3, kInt, 0}};
    CHECK_EQ(HcclBatchSendRecv(items, 2, rank.comm, *rank.stream), HCCL_E_PARA);
    CHECK_EQ(HcclBatchSendRecv(items, 1, rank.comm, *rank.stream), HCCL_E_PARA);
    items[1] = {HCCL_RECV, b.data, 4, HCCL_DATA_TYPE_FP32, 0};
    CHECK_EQ(HcclBatchSendRecv(items, 2, rank.comm, *rank.stream), HCCL_E_PARA);
    items[1].dataType = kInt;
    HcclSendRecvItem twice[] = {items[0], items[1], items[0], items[1]};
    CHECK_EQ(HcclBatchSendRecv(twice, 4, rank.comm, *rank.stream), HCCL_E_PARA);
    CHECK_EQ(HcclBatchSendRecv(items, 2, rank.comm, *rank.stream), HCCL_SUCCESS);
    CHECK_EQ(rank.synchronize(), ACL_SUCCESS);
    CHECK_EQ(b.values()[3], 1);
  });
}

TEST("two ranks that both send first wait in vain") {
  const auto body = [](Rank& rank) {
    const Array<int> a(4, 1), b(4, -1);
    const auto peer = static_cast<uint32_t>(1 - rank.rank);
    CHECK_EQ(HcclSend(a.data, 4, kInt, peer, rank.comm, *rank.stream), HCCL_SUCCESS);
    CHECK_EQ(HcclRecv(b.data, 4, kInt, peer, rank.comm, *rank.stream), HCCL_SUCCESS);
    CHECK_EQ(rank.synchronize(), ACL_ERROR_RT_AICPU_TIMEOUT);
    CHECK_EQ(async_error(rank), HCCL_E_TIMEOUT);
    rank.meet();
  };
  ascend::everywhere(2, body, {{"A2A_FAKE_EXEC_TIMEOUT", "1.5"}});
}

TEST("a rank that does not call makes the others wait in vain") {
  const auto body = [](Rank& rank) {
    Call call(rank);
    call.works();
    if (rank.rank != 1) {
      CHECK_EQ(call(), HCCL_SUCCESS);
      CHECK_EQ(rank.synchronize(), ACL_ERROR_RT_AICPU_TIMEOUT);
      CHECK(contains(aclGetRecentErrMsg(), "waits in vain for rank 1"));
      CHECK_EQ(async_error(rank), HCCL_E_TIMEOUT);
    }
    rank.meet();
  };
  ascend::everywhere(3, body, {{"A2A_FAKE_EXEC_TIMEOUT", "1.5"}});
}

TEST("counts that differ fail on both ranks, and only there") {
  ascend::everywhere(3, [](Rank& rank) {
    Call call(rank);
    if (rank.rank == 1) call.send[0] = 3;
    CHECK_EQ(call(), HCCL_SUCCESS);
    if (rank.rank == 2) {
      CHECK_EQ(rank.synchronize(), ACL_SUCCESS);
      CHECK_EQ(call.to.values()[0], 0);
      CHECK_EQ(call.to.values()[4], 1);
    } else {
      CHECK_EQ(rank.synchronize(), ACL_ERROR_RT_AICPU_EXCEPTION);
      const std::string text = aclGetRecentErrMsg();
      CHECK(contains(text.c_str(),
                     "rank 1 sends HcclAlltoAllV #1 of 3 elements of type 2 (12 bytes) to rank 0, which "
                     "expects HcclAlltoAllV #1 of 4 elements of type 2 (16 bytes)"));
      CHECK_EQ(async_error(rank), HCCL_E_PARA);
      CHECK_EQ(std::string(HcclGetErrorString(HCCL_E_PARA)), "parameter error");
      CHECK_EQ(call(), HCCL_SUCCESS);  // fails on the stream
      CHECK_EQ(rank.synchronize(), ACL_ERROR_RT_AICPU_EXCEPTION);
    }
    rank.meet();
  });
}

TEST("calls, types and numbers that differ fail") {
  ascend::everywhere(2, [](Rank& rank) {
    const Array<int> a(4, 1), b(8, -1);
    const auto type = rank.rank ? HCCL_DATA_TYPE_FP32 : kInt;
    CHECK_EQ(HcclAllGather(a.data, b.data, 4, type, rank.comm, *rank.stream), HCCL_SUCCESS);
    CHECK_EQ(rank.synchronize(), ACL_ERROR_RT_AICPU_EXCEPTION);
    rank.meet();
  });
  ascend::everywhere(2, [](Rank& rank) {
    const Array<int> a(8, 1), b(8, -1);
    if (rank.rank) {
      CHECK_EQ(HcclAllGather(a.data, b.data, 4, kInt, rank.comm, *rank.stream), HCCL_SUCCESS);
    } else {
      CHECK_EQ(HcclAlltoAll(a.data, 4, kInt, b.data, 4, kInt, rank.comm, *rank.stream), HCCL_SUCCESS);
    }
    CHECK_EQ(rank.synchronize(), ACL_ERROR_RT_AICPU_EXCEPTION);
    CHECK(contains(aclGetRecentErrMsg(), "HcclAllGather #1"));
    rank.meet();
  });
}

TEST("counts that differ hang, as they really do, until somebody gives up") {
  const auto body = [](Rank& rank) {
    Call call(rank);
    if (rank.rank == 1) call.send[0] = 3;
    CHECK_EQ(call(), HCCL_SUCCESS);
    CHECK_EQ(aclrtSynchronizeStreamWithTimeout(*rank.stream, 300), ACL_ERROR_RT_STREAM_SYNC_TIMEOUT);
    CHECK_EQ(async_error(rank), HCCL_SUCCESS);
    rank.meet();
    if (rank.rank == 0) {
      CHECK_EQ(aclrtStreamAbort(*rank.stream), ACL_SUCCESS);
    } else {
      CHECK_EQ(HcclCommDestroy(rank.comm), HCCL_SUCCESS);
      rank.comm = nullptr;
    }
    CHECK(rank.synchronize() != ACL_SUCCESS);
    rank.meet();
  };
  ascend::everywhere(2, body, {{"A2A_FAKE_MISMATCH", "hang"}, {"A2A_FAKE_EXEC_TIMEOUT", "0.1"}});
}

TEST("counts stay as they are until the stream was synchronised") {
  const auto body = [](Rank& rank) {
    const bool late = !std::getenv("A2A_FAKE_COUNTS");
    Call call(rank);
    CHECK_EQ(call(), HCCL_SUCCESS);
    call.send[0] = 1;
    CHECK_EQ(rank.synchronize(), late ? ACL_ERROR_RT_AICPU_EXCEPTION : ACL_SUCCESS);
    if (late) CHECK(contains(aclGetRecentErrMsg(), "changed or freed"));
  };
  // The first operation has to run late enough.
  ascend::as_threads(1,
                     [&](Rank& rank) {
                       const Array<int> a(64, 1), b(64, 1);
                       for (int i = 0; i < 20; ++i) {
                         CHECK_EQ(aclrtMemcpyAsync(a.data, 256, b.data, 256, ACL_MEMCPY_DEVICE_TO_DEVICE, *rank.stream),
                                  ACL_SUCCESS);
                       }
                       body(rank);
                     },
                     {{"A2A_FAKE_DELAY_US", "10000"}});
  ascend::as_threads(1, body, {{"A2A_FAKE_COUNTS", "early"}});
}

TEST("a source is not written before it was sent") {
  if (!isolated::kCanFork) return;  // a data race on purpose, which ThreadSanitizer would find
  ascend::as_threads(
      2,
      [](Rank& rank) {
        Call call(rank);
        CHECK_EQ(call(), HCCL_SUCCESS);
        if (rank.rank == 0) {
          for (int i = 0; i < 100'000'000; ++i) {  // until the operation is over
            CHECK_EQ(aclrtMemcpy(call.from.data, 4, &i, 4, ACL_MEMCPY_HOST_TO_DEVICE), ACL_SUCCESS);
            aclrtStreamStatus status;
            if (aclrtStreamQuery(*rank.stream, &status) != ACL_SUCCESS || status == ACL_STREAM_STATUS_COMPLETE) break;
          }
          CHECK_EQ(rank.synchronize(), ACL_ERROR_RT_AICPU_EXCEPTION);
          CHECK(contains(aclGetRecentErrMsg(), "wrote to what it sends"));
        } else {
          rank.synchronize();
        }
        rank.meet();
      },
      {{"A2A_FAKE_DELAY_US", "300000"}});
}

TEST("faults on demand") {
  const auto fails = [](Rank& rank) {
    Call call(rank);
    call.works();
    CHECK_EQ(call(), HCCL_SUCCESS);
    if (rank.rank == 0) {
      CHECK_EQ(rank.synchronize(), ACL_ERROR_RT_AICPU_EXCEPTION);
      CHECK_EQ(async_error(rank), HCCL_E_INTERNAL);
    } else {
      CHECK_EQ(aclrtSynchronizeStreamWithTimeout(*rank.stream, 200), ACL_ERROR_RT_STREAM_SYNC_TIMEOUT);
    }
    rank.meet();
  };
  ascend::everywhere(2, fails, {{"A2A_FAKE_ASYNC_ERROR", "2@0"}});
  const auto stalls = [](Rank& rank) {
    Call call(rank);
    CHECK_EQ(call(), HCCL_SUCCESS);
    CHECK_EQ(aclrtSynchronizeStreamWithTimeout(*rank.stream, 200), ACL_ERROR_RT_STREAM_SYNC_TIMEOUT);
    CHECK_EQ(aclrtStreamAbort(*rank.stream), ACL_SUCCESS);
    CHECK_EQ(rank.synchronize(), ACL_ERROR_RT_STREAM_ABORT);
    rank.meet();
  };
  ascend::everywhere(2, stalls, {{"A2A_FAKE_STALL", "1"}});
  const auto refuses = [](Rank& rank) {
    Call call(rank);
    call.works();
    CHECK_EQ(call(), HCCL_E_INTERNAL);
    call.works();
  };
  ascend::everywhere(2, refuses, {{"A2A_FAKE_REFUSE", "2"}});
}

TEST("a rank that dies is an error of the others") {
  if (!isolated::kCanFork) return;
  const isolated::Shared<isolated::Board> board;
  const auto body = ascend::with_ranks(3, [](Rank& rank) {
    Call call(rank);
    call.works();
    if (rank.rank == 2) raise(SIGKILL);
    CHECK_EQ(call(), HCCL_SUCCESS);
    CHECK_EQ(rank.synchronize(), ACL_ERROR_RT_SUSPECT_REMOTE_ERROR);
    CHECK(contains(aclGetRecentErrMsg(), "rank 2 is dead"));
    CHECK_EQ(async_error(rank), HCCL_E_REMOTE);
    rank.board.meet(2);  // the first to leave would be an error of the other
  });
  std::vector<pid_t> ranks;
  for (int rank = 0; rank < 3; ++rank) ranks.push_back(isolated::start([&] { body(rank, *board.value); }));
  CHECK_EQ(isolated::wait(ranks[0]), 0);
  CHECK_EQ(isolated::wait(ranks[1]), 0);
  CHECK_EQ(isolated::wait(ranks[2]), SIGKILL);
}

TEST("a rank is dead even if its child lives; that child has no communicators") {
  if (!isolated::kCanFork) return;
  const isolated::Shared<isolated::Board> board;
  const auto body = ascend::with_ranks(2, [](Rank& rank) {
    Call call(rank);
    call.works();
    if (rank.rank == 1) {
      if (fork() == 0) {
        rank.board.identity[0] = static_cast<char>(HcclCommDestroy(rank.comm));
        sleep(3);
        _exit(0);
      }
      usleep(100000);
      raise(SIGKILL);
    }
    const auto before = std::chrono::steady_clock::now();
    CHECK_EQ(call(), HCCL_SUCCESS);
    CHECK_EQ(rank.synchronize(), ACL_ERROR_RT_SUSPECT_REMOTE_ERROR);
    CHECK(contains(aclGetRecentErrMsg(), "rank 1 is dead"));
    CHECK(std::chrono::steady_clock::now() - before < std::chrono::seconds(2));
  });
  std::vector<pid_t> ranks;
  for (int rank = 0; rank < 2; ++rank) ranks.push_back(isolated::start([&] { body(rank, *board.value); }));
  CHECK_EQ(isolated::wait(ranks[0]), 0);
  CHECK_EQ(isolated::wait(ranks[1]), SIGKILL);
  CHECK_EQ(board->identity[0], HCCL_E_PARA);
}

TEST("a rank that leaves is missed by those that still need it") {
  ascend::everywhere(2, [](Rank& rank) {
    Call call(rank);
    if (rank.rank == 0) {
      CHECK_EQ(HcclCommDestroy(rank.comm), HCCL_SUCCESS);
      rank.comm = nullptr;
    } else {
      CHECK_EQ(call(), HCCL_SUCCESS);
      CHECK_EQ(rank.synchronize(), ACL_ERROR_RT_SUSPECT_REMOTE_ERROR);
      CHECK(contains(aclGetRecentErrMsg(), "rank 0 has left"));
    }
  });
}

TEST("a process may end with an operation in flight") {
  if (!isolated::kCanFork) return;
  const pid_t pid = isolated::start(
      [] {
        isolated::Board board;
        Rank rank(0, 1, board);
        Call call(rank);
        CHECK_EQ(call(), HCCL_SUCCESS);
        exit(7);
      },
      {{"A2A_FAKE_STALL", "1"}}, 10);
  CHECK_EQ(WEXITSTATUS(isolated::wait(pid)), 7);
}
