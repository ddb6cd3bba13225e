// Views of the peers' tensors: their contents, and the time from which memory is used again.
#include "a2a/views.h"

#include <algorithm>
#include <array>
#include <latch>
#include <numeric>

#include "check.h"
#include "ranks.h"
#include "transport/shm/peers/process_memory.h"

namespace {

using namespace a2a;
using shm::ProcessMemory;

constexpr DType kInt32{0, 32, 1};

// Makes a tensor of shape (rows, 3) whose numbers encode its rank and the round.
std::shared_ptr<std::byte> tensor_of(int rank, int64_t rows, int round) {
  auto memory = Communicator::allocate_shared(static_cast<size_t>(rows) * 3 * sizeof(int32_t));
  auto* const numbers = reinterpret_cast<int32_t*>(memory.get());
  std::iota(numbers, numbers + rows * 3, 1'000'000 * rank + 1000 * round);
  return memory;
}

bool shows(const View& view, int rank, int64_t rows, int round) {
  if (view.shape != std::vector<int64_t>{rows, 3} || view.bytes != static_cast<size_t>(rows) * 12) return false;
  const auto* const numbers = reinterpret_cast<const int32_t*>(view.data);
  for (int64_t i = 0; i < rows * 3; ++i) {
    if (numbers[i] != 1'000'000 * rank + 1000 * round + i) return false;
  }
  return true;
}

int64_t rows_of(int rank, int round) { return (rank * 7 + round * 3) % 20; }

TEST("every rank views every tensor, of zero rows too") {
  for (const int n : {1, 2, 3, 5, 8}) {
    const check::Note note("ranks", static_cast<uint64_t>(n));
    ranks::everywhere(n, [](Communicator& comm) {
      for (int round = 0; round < 20; ++round) {
        const std::array<int64_t, 2> shape{rows_of(comm.rank(), round), 3};
        const auto tensor = tensor_of(comm.rank(), shape[0], round);
        const auto views = comm.allgather_views(tensor.get(), kInt32, shape);
        for (Rank r = 0; r < comm.size(); ++r) CHECK(shows(views->view(r), r, rows_of(r, round), round));
        CHECK(!views->released());
        views->release();
        views->release();
        CHECK(views->released());
        CHECK_THROWS(Code::invalid_argument, "released", views->view(0));
        CHECK(views->wait_released(Deadline::after_seconds(30)));
      }
      comm.close();
    });
  }
}

TEST("an owner's memory is used again when everybody has released it, and not before") {
  ranks::as_processes(3, [](Communicator& comm) {
    shm::Arena& arena = ProcessMemory::get().arena();
    const std::array<int64_t, 2> shape{2000, 3};
    comm.allgather_views(nullptr, kInt32, std::array<int64_t, 1>{0})->release();  // now the slots exist
    comm.barrier();
    Communicator::allocate_shared(1);
    const size_t before = arena.allocated();
    auto tensor = tensor_of(comm.rank(), shape[0], 1);
    const auto views = comm.allgather_views(tensor.get(), kInt32, shape);
    tensor.reset();
    auto other = tensor_of(9, shape[0], 9);  // it would take the place of the tensor
    comm.barrier();
    for (Rank r = 0; r < comm.size(); ++r) CHECK(shows(views->view(r), r, shape[0], 1));
    other.reset();
    comm.barrier();
    if (comm.rank() != 2) views->release();
    if (comm.rank() != 2) CHECK(!views->wait_released(Deadline::after_seconds(0.05)));
    CHECK(arena.allocated() > before);
    comm.barrier();
    views->release();
    CHECK(views->wait_released(Deadline::after_seconds(30)));
    Communicator::allocate_shared(1);
    CHECK_EQ(arena.allocated(), before);
    comm.close();
  });
}

TEST("ten thousand rounds leave nothing in the segment") {
  ranks::everywhere(2, [](Communicator& comm) {
    shm::Arena& arena = ProcessMemory::get().arena();
    const auto round = [&] {
      const std::array<int64_t, 2> shape{100, 3};
      const auto tensor = tensor_of(comm.rank(), shape[0], 0);
      comm.allgather_views(tensor.get(), kInt32, shape);
    };
    const auto usage = [&] {
      comm.barrier();
      Communicator::allocate_shared(1);
      comm.barrier();
      const size_t bytes = arena.allocated();
      comm.barrier();
      return bytes;
    };
    for (int i = 0; i < 10; ++i) round();
    const size_t before = usage();
    for (int i = 0; i < 5000; ++i) round();
    CHECK_EQ(usage(), before);
    comm.close();
  });
}

TEST("views outlive their communicator, their owner's tensor and its process") {
  ranks::as_processes(2, [](Communicator& comm) {
    const std::array<int64_t, 2> shape{5000, 3};
    auto tensor = tensor_of(comm.rank(), shape[0], 0);
    auto views = comm.allgather_views(tensor.get(), kInt32, shape);
    const auto end = comm.allgather_views(nullptr, kInt32, std::array<int64_t, 1>{0});
    const View theirs = views->view(1 - comm.rank());
    tensor.reset();
    comm.close();
    if (comm.rank() == 1) _exit(0);
    CHECK(shows(theirs, 1, shape[0], 0));
    CHECK(end->wait_released(Deadline::after_seconds(30)));  // the peer's process is gone
    const auto other = tensor_of(9, shape[0], 9);
    CHECK(shows(theirs, 1, shape[0], 0));
    CHECK(shows(views->view(0), 0, shape[0], 0));
  });
}

TEST("invalid tensors raise invalid_argument, and the peers a mismatch") {
  ranks::everywhere(3, [](Communicator& comm) {
    const auto tensor = tensor_of(comm.rank(), 10, 0);
    const std::array<int64_t, 2> shape{10, 3};
    std::array<int32_t, 30> own{};
    struct Bad {
      const void* data;
      std::vector<int64_t> shape;
      const char* why;
    };
    const Bad bad[] = {{own.data(), {10, 3}, "shared memory"},
                       {tensor.get(), {100, 3}, "shared memory"},
                       {tensor.get(), {-1, 3}, "-1"},
                       {tensor.get(), {1L << 40, 1L << 40}, "shape"},
                       {tensor.get(), std::vector<int64_t>(65, 1), "65"}};
    for (const Bad& b : bad) {
      if (comm.rank() == 1) {
        CHECK_THROWS(Code::invalid_argument, b.why, comm.allgather_views(b.data, kInt32, b.shape));
      } else {
        CHECK_THROWS(Code::mismatch, "rank 1 does not take part", comm.allgather_views(tensor.get(), kInt32, shape));
      }
    }
    const DType dtype{static_cast<uint8_t>(comm.rank() == 2 ? 2 : 0), 32, 1};
    CHECK_THROWS(Code::mismatch, "dtype", comm.allgather_views(tensor.get(), dtype, shape));
    if (comm.rank() == 0) {
      CHECK_THROWS(Code::mismatch, "allgather_views", comm.barrier());
    } else {
      CHECK_THROWS(Code::mismatch, "barrier", comm.allgather_views(tensor.get(), kInt32, shape));
    }
    const auto views = comm.allgather_views(tensor.get(), kInt32, shape);  // in step again
    for (Rank r = 0; r < 3; ++r) CHECK(shows(views->view(r), r, 10, 0));
    comm.close();
  });
}

TEST("a rank that aborts keeps its tensor for a peer that views it already") {
  std::latch shown(1), seen(1), gone(1), checked(1);
  ranks::as_threads(2, [&](Communicator& comm) {
    const std::array<int64_t, 2> shape{2000, 3};
    auto tensor = tensor_of(comm.rank(), shape[0], 1);
    if (comm.rank() == 0) {
      const auto views = comm.start_views(tensor.get(), kInt32, shape);
      shown.count_down();
      seen.wait();  // does not read the peer's line
      comm.abort("enough");
      CHECK_THROWS(Code::aborted, "enough", views->work()->wait());
      tensor.reset();
      views->release();
      const auto other = tensor_of(9, shape[0], 9);
      gone.count_down();
      checked.wait();
      CHECK(views->wait_released(Deadline::after_seconds(30)));
    } else {
      shown.wait();
      const auto views = comm.allgather_views(tensor.get(), kInt32, shape);
      seen.count_down();
      gone.wait();
      CHECK(shows(views->view(0), 0, shape[0], 1));
      views->release();
      checked.count_down();
    }
  });
}

}  // namespace
