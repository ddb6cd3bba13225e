// The typed helpers for reductions, rooted operations and messages.
#include <complex>
#include <numeric>
#include <span>
#include <vector>

#include "check.h"
#include "ranks.h"

namespace {

using a2a::Code;
using a2a::Communicator;
using a2a::Fold;
using a2a::Rank;

template <class T>
std::vector<T> input(Rank rank, size_t elems) {
  std::vector<T> values(elems);
  for (size_t i = 0; i < elems; ++i)
    values[i] = static_cast<T>(static_cast<int>((i + 3 * static_cast<size_t>(rank)) % 5));
  return values;
}

template <class T>
std::vector<T> sum(int size, size_t elems) {
  std::vector<T> total = input<T>(0, elems);
  for (Rank rank = 1; rank < size; ++rank) {
    const auto next = input<T>(rank, elems);
    for (size_t i = 0; i < elems; ++i) total[i] = static_cast<T>(total[i] + next[i]);
  }
  return total;
}

template <class T>
void check_sums(Communicator& comm, size_t part) {
  const auto size = static_cast<size_t>(comm.size()), own = static_cast<size_t>(comm.rank()) * part;
  const auto send = input<T>(comm.rank(), part * size), expected = sum<T>(comm.size(), part * size);
  std::vector<T> all(send.size()), mine(part);
  a2a::allreduce<T>(comm, send, all);
  CHECK(all == expected);
  all = send;
  a2a::allreduce<T>(comm, all, all);
  CHECK(all == expected);
  a2a::reduce_scatter<T>(comm, send, mine);
  CHECK(std::equal(mine.begin(), mine.end(), expected.begin() + static_cast<std::ptrdiff_t>(own)));
  const Rank root = comm.size() - 1;
  std::vector<T> at_root(comm.rank() == root ? send.size() : 0);
  a2a::reduce<T>(comm, send, at_root, root);
  CHECK(comm.rank() != root || at_root == expected);
}

TEST("sums of every type") {
  ranks::as_threads(3, [](Communicator& comm) {
    for (const size_t part : {0, 1, 100, 30'000}) {
      check_sums<int8_t>(comm, part);
      check_sums<uint16_t>(comm, part);
      check_sums<int32_t>(comm, part);
      check_sums<uint64_t>(comm, part);
      check_sums<float>(comm, part);
      check_sums<double>(comm, part);
      check_sums<std::complex<float>>(comm, part);
    }
    comm.close();
  });
}

TEST("rooted operations and parts of any size") {
  ranks::as_threads(3, [](Communicator& comm) {
    const auto size = static_cast<size_t>(comm.size());
    const Rank root = 1;
    std::vector<double> data = input<double>(comm.rank(), 500), mine(500);
    std::vector<double> all(comm.rank() == root ? 500 * size : 0);
    a2a::gather<double>(comm, data, all, root);
    a2a::scatter<double>(comm, all, mine, root);
    CHECK(mine == data);
    a2a::broadcast<double>(comm, data, root);
    CHECK(data == input<double>(root, 500));
    const std::vector<int64_t> counts{2, 0, 5};
    const auto send = input<int>(comm.rank(), 7), total = sum<int>(3, 7);
    std::vector<int> part(static_cast<size_t>(counts[static_cast<size_t>(comm.rank())])), joined(7);
    a2a::reduce_scatter<int>(comm, send, part, counts, Fold::sum);
    a2a::allgatherv<int>(comm, part, joined, counts);
    CHECK(joined == total);
    comm.close();
  });
}

TEST("messages") {
  ranks::as_threads(2, [](Communicator& comm) {
    for (const size_t elems : {0, 5, 20'000, 400'000}) {
      std::vector<int> got(elems);
      if (comm.rank() == 0) {
        a2a::send<int>(comm, input<int>(0, elems), 1, 9);
        CHECK_EQ(a2a::recv<int>(comm, got), 1);
        CHECK(got == input<int>(1, elems));
      } else {
        CHECK_EQ(a2a::recv<int>(comm, got, 0, 9), 0);
        CHECK(got == input<int>(0, elems));
        a2a::send<int>(comm, input<int>(1, elems), 0);
      }
    }
    comm.close();
  });
}

TEST("invalid calls raise invalid_argument, and the peers a mismatch") {
  ranks::as_threads(2, [](Communicator& comm) {
    std::vector<double> data(8), few(4), none;
    const bool odd = comm.rank() == 0;
    const auto refused = [&](auto&& bad, auto&& good) {
      if (odd) {
        CHECK_THROWS(Code::invalid_argument, "", bad());
      } else {
        CHECK_THROWS(Code::mismatch, "rank 0", good());
      }
    };
    const auto right = [&] { a2a::allreduce<double>(comm, data, data); };
    refused([&] { a2a::allreduce<double>(comm, data, few); }, right);
    refused([&] { a2a::allreduce<double>(comm, data, data, Fold::bxor); }, right);
    refused([&] { a2a::reduce_scatter<double>(comm, data, data); }, right);
    refused([&] { a2a::reduce<double>(comm, data, none, 0); }, right);
    refused([&] { a2a::broadcast<double>(comm, data, 2); }, right);
    CHECK_THROWS(Code::invalid_argument, "peer", a2a::send<double>(comm, data, 2));
    right();
    comm.close();
  });
}

std::vector<int32_t> counted(int64_t first, int64_t last) {
  std::vector<int32_t> values(static_cast<size_t>(last - first));
  std::iota(values.begin(), values.end(), static_cast<int32_t>(first));
  return values;
}

TEST("a tensor goes from one sharding to another") {
  ranks::everywhere(3, [](Communicator& comm) {
    using a2a::Placement;
    using a2a::Sharding;
    const Sharding rows = Sharding::mesh({2}, {0, 1}, {Placement::shard(0)});
    const Sharding all = Sharding::mesh({2}, {2, 1}, {Placement::replicate()});
    const std::vector<int64_t> shape{5, 3};
    const auto send = comm.rank() == 2 ? std::vector<int32_t>() : comm.rank() == 0 ? counted(0, 9) : counted(9, 15);
    std::vector<int32_t> recv(comm.rank() == 0 ? 0 : 15);
    a2a::reshard<int32_t>(comm, send, recv, shape, rows, all);
    CHECK(recv == counted(0, static_cast<int64_t>(recv.size())));

    const Sharding terms = Sharding::mesh({3}, {0, 1, 2}, {Placement::partial()});
    const std::vector<int32_t> term(15, comm.rank() + 1);
    a2a::reshard<int32_t>(comm, term, recv, shape, terms, all);
    CHECK(recv == std::vector<int32_t>(recv.size(), 6));
    if (comm.rank() == 1) {
      CHECK_THROWS(Code::invalid_argument, "send has 4 elements",
                   a2a::reshard<int32_t>(comm, std::span(term).first(4), recv, shape, terms, all));
    } else {
      CHECK_THROWS(Code::mismatch, "rank 1", a2a::reshard<int32_t>(comm, term, recv, shape, terms, all));
    }
  });
}

TEST("tensors with gaps, and layouts that do not fit") {
  ranks::everywhere(2, [](Communicator& comm) {
    using a2a::Placement;
    using a2a::Sharding;
    const std::vector<a2a::Resharding> tensors{{{4, 2},
                                                Sharding::mesh({1}, {0}, {Placement::replicate()}),
                                                Sharding::mesh({1}, {1}, {Placement::replicate()}),
                                                {0, 32, 1}}};
    const a2a::Reshard plan = comm.plan_reshard(tensors);
    const auto send = counted(0, 8);
    std::vector<int32_t> recv(16);
    const void* from = comm.rank() == 0 ? send.data() : nullptr;
    void* to = comm.rank() == 1 ? recv.data() : nullptr;
    const std::vector<int64_t> shape{4, 2}, strides{16, 8}, wrong{2, 4};
    a2a::Call call;
    const a2a::TensorLayout layout{shape, strides, 4};
    call.recv_layouts = {&layout, 1};
    comm.start(plan, 0, {&from, 1}, {&to, 1}, call)->wait();
    for (size_t i = 0; comm.rank() == 1 && i < 8; ++i) CHECK_EQ(recv[2 * i], send[i]);
    const a2a::TensorLayout other{wrong, strides, 4};
    if (comm.rank() == 1) {
      call.recv_layouts = {&other, 1};
      CHECK_THROWS(Code::invalid_argument, "recv_layouts[0] is not that of the rank's part",
                   comm.start(plan, 0, {&from, 1}, {&to, 1}, call));
    } else {
      CHECK_THROWS(Code::mismatch, "rank 1", comm.start(plan, 0, {&from, 1}, {&to, 1}, call)->wait());
    }
    CHECK_THROWS(Code::invalid_argument, "has 1 operations, and part is 1",
                 comm.start(plan, 1, {&from, 1}, {&to, 1}, {}));
    const void* nothing = nullptr;
    if (comm.rank() == 0) {
      CHECK_THROWS(Code::invalid_argument, "send[0] is missing", comm.start(plan, 0, {&nothing, 1}, {&to, 1}, {}));
    } else {
      CHECK_THROWS(Code::mismatch, "rank 0", comm.start(plan, 0, {&from, 1}, {&to, 1}, {})->wait());
    }
  });
}

}  // namespace
