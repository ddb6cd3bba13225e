// Memory with gaps: against loops over single elements.
#include "a2a/strides.h"

#include <cstring>
#include <functional>

#include "a2a/communicator.h"
#include "core/packed_copy.h"
#include "core/schedule.h"
#include "core/strided/strides.h"
#include "core/strided_tensor.h"
#include "ranks.h"

namespace {

using namespace a2a;
using namespace strided_test;

// ---- Strides --------------------------------------------------------------------------------------------------------

Strides strides_of(std::vector<int64_t> shape, std::vector<int64_t> strides, size_t elem_bytes = 4) {
  return Strides(TensorLayout{shape, strides, elem_bytes});
}

TEST("dimensions that lie behind each other are one, and those of one entry none") {
  CHECK(strides_of({}, {}).contiguous());
  CHECK(strides_of({2, 3, 4}, {48, 16, 4}).contiguous());
  CHECK_EQ(strides_of({2, 3, 4}, {48, 16, 4}).piece(), 96);
  CHECK(strides_of({1, 3, 1}, {-7, 4, 1000}).contiguous());
  const Strides rows = strides_of({5, 3, 4}, {100, 16, 4});
  CHECK_EQ(rows.dims(), 1);
  CHECK_EQ(rows.piece(), 48);
  CHECK_EQ(rows.dim(0).count, 5);
  CHECK_EQ(rows.dim(0).stride, 100);
  const Strides every_other = strides_of({2, 3, 4}, {96, 32, 8});
  CHECK_EQ(every_other.dims(), 1);
  CHECK_EQ(every_other.dim(0).count, 24);
  const Strides turned = strides_of({3, 4}, {4, 12});
  CHECK_EQ(turned.dims(), 2);
  CHECK_EQ(turned.piece(), 4);
  CHECK_EQ(turned.begin(), 0);
  CHECK_EQ(turned.end(), 48);
  const Strides back = strides_of({3, 4}, {-16, -4});
  CHECK_EQ(back.dims(), 1);
  CHECK_EQ(back.begin(), -44);
  CHECK_EQ(back.end(), 4);
  CHECK_EQ(back.bytes(), 48);
}

TEST("more dimensions than there is room for are refused, unless few remain") {
  std::vector<int64_t> shape(9, 2), strides(9);
  for (size_t i = 9; i-- > 0;) strides[i] = i == 8 ? 12 : 3 * strides[i + 1];
  CHECK_THROWS(Code::invalid_argument, "more than 8 dimensions", Strides(TensorLayout{shape, strides, 4}));
  shape[4] = 1;
  CHECK_EQ(Strides(TensorLayout{shape, strides, 4}).dims(), 8);
  const std::vector<int64_t> many(32, 2);
  std::vector<int64_t> packed(32);
  for (size_t i = 32; i-- > 0;) packed[i] = i == 31 ? 1 : 2 * packed[i + 1];
  CHECK(Strides(TensorLayout{many, packed, 1}).contiguous());
}

TEST("strides from another process are checked") {
  using Dim = Strides::Dim;
  const auto made = Strides::of(4, std::vector<Dim>{{3, -40, 0}, {2, 8, 0}});
  if (!CHECK(made.has_value())) return;
  CHECK_EQ(made->bytes(), 24);
  CHECK_EQ(made->begin(), -80);
  CHECK_EQ(made->end(), 12);
  CHECK_EQ(made->offset(4), 8);
  CHECK(!Strides::of(0, {}));
  CHECK(!Strides::of(SIZE_MAX, {}));
  CHECK(!Strides::of(1, std::vector<Dim>(9, {2, 8, 0})));
  CHECK(!Strides::of(1, std::vector<Dim>{{0, 1, 0}}));
  CHECK(!Strides::of(1, std::vector<Dim>{{3, PTRDIFF_MAX, 0}}));
  CHECK(!Strides::of(1, std::vector<Dim>{{2, PTRDIFF_MIN, 0}, {2, -1, 0}}));
  CHECK(!Strides::of(1, std::vector<Dim>{{SIZE_MAX, 0, 0}, {2, 0, 0}}));
  const auto ones = Strides::of(4, std::vector<Dim>{{1, PTRDIFF_MIN, 0}, {3, 8, 0}, {1, PTRDIFF_MAX, 0}});
  CHECK(ones.has_value() && ones->dims() == 1 && ones->offset(4) == 8 && ones->end() == 20);
}

TEST("where a byte of the block lies") {
  Random random(check::seed());
  for (int round = 0; round < 300; ++round) {
    const Note note("round", static_cast<uint64_t>(round));
    const size_t elem = random.in(size_t{1}, size_t{9});
    const Tensor tensor = random_tensor(random, random.in(size_t{0}, size_t{5}), 4, elem);
    const Strides strides(tensor.layout());
    CHECK_EQ(strides.bytes(), tensor.bytes());
    const auto places = tensor.places();
    size_t least = SIZE_MAX, last = 0;
    for (size_t byte = 0; byte < tensor.bytes(); ++byte) {
      const size_t place = places[byte / elem] + byte % elem;
      least = std::min(least, place), last = std::max(last, place);
      if (!CHECK_EQ(static_cast<ptrdiff_t>(tensor.first) + strides.offset(byte), place)) return;
      for (size_t k = 0; k < std::min(strides.together(byte), tensor.bytes() - byte); ++k) {
        CHECK_EQ(places[(byte + k) / elem] + (byte + k) % elem, place + k);
      }
    }
    CHECK_EQ(static_cast<ptrdiff_t>(tensor.first) + strides.begin(), least);
    CHECK_EQ(static_cast<ptrdiff_t>(tensor.first) + strides.end(), last + 1);
  }
}

// ---- gather and scatter ---------------------------------------------------------------------------------------------

// Copies `count` bytes from `begin` on, both ways. Returns whether the results are right.
bool copies(Tensor& tensor, const Strides& strides, const Bytes& packed, const std::vector<size_t>& places,
            size_t begin, size_t count) {
  Bytes out(count + 2, kGap);
  gather(tensor.data(), strides, begin, count, out.data() + 1);
  bool good = CHECK(std::equal(out.begin() + 1, out.end() - 1, packed.begin() + static_cast<ptrdiff_t>(begin)));
  good &= CHECK(out.front() == kGap && out.back() == kGap);
  const Bytes before = tensor.memory;
  std::ranges::fill(tensor.memory, kGap);
  Bytes expected = tensor.memory;
  for (size_t i = begin; i < begin + count; ++i) {
    expected[places[i / tensor.elem_bytes] + i % tensor.elem_bytes] = packed[i];
  }
  scatter(tensor.data(), strides, begin, count, packed.data() + begin);
  good &= CHECK(tensor.memory == expected);
  tensor.memory = before;
  return good;
}

TEST("gather and scatter of every range of a small block") {
  Random random(check::seed());
  for (const size_t elem : {1, 2, 4, 8, 16, 3, 24}) {
    for (int round = 0; round < 12; ++round) {
      const Note note("elem", elem), again("round", static_cast<uint64_t>(round));
      Tensor tensor = random_tensor(random, random.in(size_t{1}, size_t{4}), elem > 8 ? 2 : 3, elem);
      const Strides strides(tensor.layout());
      const Bytes packed = tensor.packed();
      const auto places = tensor.places();
      for (size_t begin = 0; begin < packed.size(); ++begin) {
        for (size_t count = 0; count <= packed.size() - begin; ++count) {
          if (!copies(tensor, strides, packed, places, begin, count)) return;
        }
      }
    }
  }
}

TEST("transposed tiles, cut anywhere") {
  Random random(check::seed());
  for (const size_t elem : {1, 2, 4, 8, 16, 3, 24}) {
    for (const auto& [outer, rows, cols] : {std::array{1, 130, 70}, std::array{2, 65, 129}, std::array{3, 9, 200},
                                            std::array{1, 64, 64}, std::array{2, 7, 5}, std::array{1, 1000, 2}}) {
      for (const int64_t step : {1, -1, 3}) {
        const Note note("elem", elem), how("rows", static_cast<uint64_t>(rows));
        // A stack of matrices whose rows are adjacent in memory, element by element.
        Tensor tensor = make_tensor({outer, rows, cols}, {0, 2, 1}, {1, 1, step}, elem, 1);
        tensor.fill(random);
        const Strides strides(tensor.layout());
        const Bytes packed = tensor.packed();
        const auto places = tensor.places();
        if (!copies(tensor, strides, packed, places, 0, packed.size())) return;
        for (int round = 0; round < 6; ++round) {
          const size_t begin = random.in(size_t{0}, packed.size());
          if (!copies(tensor, strides, packed, places, begin, random.in(size_t{0}, packed.size() - begin))) return;
        }
      }
    }
  }
}

TEST("blocks of many dimensions, cut anywhere") {
  Random random(check::seed());
  for (int round = 0; round < 600; ++round) {
    const Note note("round", static_cast<uint64_t>(round));
    const size_t sizes[] = {1, 2, 4, 8, 16, 3, 24};
    Tensor tensor = random_tensor(random, random.in(size_t{1}, size_t{6}), 6, sizes[random.in(0, 6)]);
    const Strides strides(tensor.layout());
    const Bytes packed = tensor.packed();
    const size_t begin = random.in(size_t{0}, packed.size());
    if (!copies(tensor, strides, packed, tensor.places(), begin, random.in(size_t{0}, packed.size() - begin))) return;
  }
}

// ---- are_apart ------------------------------------------------------------------------------------------------------

bool share(const Tensor& tensor) {
  std::vector<bool> used(tensor.memory.size());
  for (const size_t place : tensor.places()) {
    for (size_t i = place; i < place + tensor.elem_bytes; ++i) {
      if (used[i]) return true;
      used[i] = true;
    }
  }
  return false;
}

TEST("parts of a tensor in any order are apart") {
  Random random(check::seed());
  for (int round = 0; round < 500; ++round) {
    const Tensor tensor = random_tensor(random, random.in(size_t{0}, size_t{5}), 4, random.in(size_t{1}, size_t{5}));
    CHECK(are_apart(tensor.layout()));
    CHECK(!share(tensor));
  }
}

TEST("elements that share memory are not apart") {
  Random random(check::seed());
  int apart = 0;
  for (int round = 0; round < 3000; ++round) {
    const size_t dims = random.in(size_t{1}, size_t{3});
    Tensor tensor{std::vector<int64_t>(dims), std::vector<int64_t>(dims), random.in(size_t{1}, size_t{3}), Bytes(400)};
    tensor.first = 200;
    for (size_t i = 0; i < dims; ++i) {
      tensor.shape[i] = random.in(0, 4);
      tensor.strides[i] = random.in(-12, 12);
    }
    if (!are_apart(tensor.layout())) continue;
    ++apart;
    CHECK(!share(tensor));
  }
  CHECK(apart > 300);
  const std::vector<int64_t> shape = {3, 4}, none = {0, 4}, line = {4, 1}, spread = {0, 4}, one = {-4, 999};
  CHECK(!are_apart({shape, spread, 4}));
  CHECK(are_apart({none, spread, 4}));
  CHECK(are_apart({line, one, 4}));
}

// ---- runs -----------------------------------------------------------------------------------------------------------

TEST("a segment of a tensor with gaps is a stretch of its elements in C order") {
  Random random(check::seed());
  for (int round = 0; round < 300; ++round) {
    const Note note("round", static_cast<uint64_t>(round));
    Tensor one = random_tensor(random, random.in(size_t{1}, size_t{4}), 4, 4), two = one;
    two.fill(random);
    const Bytes packed[] = {one.packed(), two.packed()};
    std::byte* const base[] = {one.data(), two.data()};
    const TensorLayout layouts[] = {one.layout(), two.layout()};
    std::vector<Segment> segments;
    for (Rank peer = 0; peer < 5; ++peer) {
      const size_t begin = random.in(size_t{0}, one.bytes() - 1);
      segments.push_back({peer, random.in(0, 1), begin, random.in(size_t{1}, one.bytes() - begin)});
    }
    Batch batch;
    set_runs(batch, {segments, base, layouts}, {});
    if (!CHECK_EQ(batch.sends.size(), segments.size())) return;
    for (size_t i = 0; i < segments.size(); ++i) {
      const Segment& s = segments[i];
      const Run& run = batch.sends[i];
      const Bytes expected = part_of(packed[at(s.buffer)], s.offset, s.bytes);
      CHECK_EQ(run.peer, s.peer);
      CHECK(bytes_of(run) == expected);
      CHECK_EQ(run.strides == nullptr, Strides(one.layout()).contiguous());
      const size_t begin = random.in(size_t{0}, s.bytes), count = random.in(size_t{0}, s.bytes - begin);
      const Run part = run.part(begin, count);
      CHECK_EQ(part.bytes, count);
      CHECK(bytes_of(part) == part_of(expected, begin, count));
      if (count > 0) {
        CHECK_EQ(part.place(0), run.place(begin));
        CHECK(part.together(0) <= count && part.together(0) > 0);
        const auto memory = run.memory();
        CHECK(memory.data() <= part.place(0) && part.place(0) < memory.data() + memory.size());
      }
    }
  }
}

// Returns the elements of a slice of `axis`, in C order.
Bytes block_of(const Tensor& tensor, int axis, int64_t begin, int64_t count) {
  Tensor block = tensor;
  block.shape[at(axis)] = count;
  block.first = at(static_cast<int64_t>(tensor.first) + begin * tensor.strides[at(axis)]);
  return count == 0 ? Bytes() : block.packed();
}

TEST("a segment along an axis is a block") {
  Random random(check::seed());
  for (int round = 0; round < 300; ++round) {
    const Note note("round", static_cast<uint64_t>(round));
    const size_t dims = random.in(size_t{1}, size_t{4});
    Tensor tensor = random_tensor(random, dims, 5, random.in(size_t{1}, size_t{8}));
    const int axis = random.in(0, static_cast<int>(dims) - 1);
    const int64_t entries = tensor.shape[at(axis)];
    const size_t row = tensor.bytes() / at(entries);
    std::vector<Segment> segments;
    std::vector<Bytes> expected;
    for (Rank peer = 0; peer < 3; ++peer) {
      const int64_t begin = random.in(int64_t{0}, entries - 1), count = random.in(int64_t{1}, entries - begin);
      segments.push_back({peer, 0, at(begin) * row, at(count) * row});
      expected.push_back(block_of(tensor, axis, begin, count));
    }
    std::byte* const base[] = {tensor.data()};
    const TensorLayout layouts[] = {tensor.layout(axis, true)};
    Batch batch;
    set_runs(batch, {}, {segments, base, layouts});
    if (!CHECK_EQ(batch.recvs.size(), segments.size())) return;
    for (size_t i = 0; i < segments.size(); ++i) {
      CHECK(bytes_of(batch.recvs[i]) == expected[i]);
      CHECK(batch.recvs[i].shape != 0);
    }
    if (row > 1) {
      segments.back().bytes = row - 1;
      CHECK_THROWS(Code::invalid_argument, "does not divide", set_runs(batch, {}, {segments, base, layouts}));
    }
  }
}

// Returns the shape hash of the first `rows` entries of an axis.
uint32_t shape_of_block(const std::vector<int64_t>& shape, int axis, size_t rows, bool compares = true) {
  std::vector<int64_t> strides(shape.size());
  size_t below = 4;
  for (size_t i = shape.size(); i-- > 0; below *= at(shape[i])) strides[i] = static_cast<int64_t>(below);
  Bytes memory(below);
  std::byte* const base[] = {memory.data()};
  const TensorLayout layouts[] = {{shape, strides, 4, axis, compares}};
  const Segment segments[] = {{0, 0, 0, below / at(shape[at(axis)]) * rows}};
  Batch batch;
  set_runs(batch, {segments, base, layouts}, {});
  CHECK_EQ(batch.sends[0].part(4, 4).shape, 0);
  send_copy(batch);
  return batch.sends[0].shape;
}

TEST("blocks of one shape have one hash, and others another") {
  CHECK_EQ(shape_of_block({4, 6}, 0, 2), shape_of_block({2, 9}, 1, 6));
  CHECK(shape_of_block({4, 6}, 0, 3) != shape_of_block({3, 9}, 1, 8));
  CHECK(shape_of_block({2, 8}, 0, 2) != shape_of_block({8, 2}, 0, 8));
  CHECK(shape_of_block({4, 4, 1}, 0, 4) != shape_of_block({4, 1, 4}, 0, 4));
  CHECK(shape_of_block({4}, 0, 1) != 0);
  CHECK_EQ(shape_of_block({2, 3}, 0, 1, false), 0);
}

TEST("a rank's own part is read before it is written") {
  Random random(check::seed());
  for (int round = 0; round < 300; ++round) {
    const Note note("round", static_cast<uint64_t>(round));
    // The same matrix, read along its columns and written along its rows.
    const int64_t side = random.in(2, 9);
    Tensor tensor = make_tensor({side, side}, {1, 0}, {1, random.chance(0.5) ? 1 : -1}, 4);
    tensor.fill(random);
    const Bytes packed = tensor.packed();
    std::byte* const from[] = {tensor.data()};
    std::byte* const to[] = {tensor.memory.data()};
    const TensorLayout layouts[] = {tensor.layout()};
    const size_t cut = random.in(size_t{1}, packed.size() - 1);
    const Segment segments[] = {{0, 0, 0, cut}, {0, 0, cut, packed.size() - cut}};
    Batch batch;
    set_runs(batch, {segments, from, layouts}, {segments, to, {}});
    copy_self(batch.sends, batch.recvs, 0);
    CHECK(tensor.memory == packed);
  }
}

// ---- a program ------------------------------------------------------------------------------------------------------

constexpr DType kFloat32{2, 32, 1};

// Each rank has some rows of a matrix and gets some columns of it. Both tensors are in Fortran order, inside of larger
// ones.
void redistribute(Communicator& comm, int64_t part) {
  const int n = comm.size(), rank = comm.rank();
  const int64_t all = n * part;
  const auto value = [](int64_t row, int64_t col) { return static_cast<float>(row * 10'000 + col); };
  std::vector<float> send(at((part + 1) * all)), recv(at((all + 2) * part), -1);
  const std::vector<int64_t> send_shape = {part, all}, send_strides = {4, 4 * (part + 1)};
  const std::vector<int64_t> recv_shape = {all, part}, recv_strides = {4, 4 * (all + 2)};
  for (int64_t row = 0; row < part; ++row) {
    for (int64_t col = 0; col < all; ++col) send[at(row + col * (part + 1))] = value(rank * part + row, col);
  }
  const std::vector<int64_t> counts(at(n), part);
  const size_t row_bytes = at(part) * sizeof(float);
  const Plan plan = Plan::alltoallv(rank, n, row_bytes, {counts}, at(all), {counts}, at(all));
  const TensorLayout sent[] = {{send_shape, send_strides, sizeof(float), 1, true}};
  const TensorLayout received[] = {{recv_shape, recv_strides, sizeof(float), 0, true}};
  Call call;
  call.dtype = kFloat32;
  call.send_layouts = sent;
  call.recv_layouts = received;
  for (int round = 0; round < 3; ++round) {
    std::ranges::fill(recv, -1.0f);
    const void* const from[] = {send.data()};
    void* const to[] = {recv.data()};
    comm.start(plan, from, to, call)->wait();
    size_t wrong = 0;
    for (int64_t col = 0; col < part; ++col) {
      const float* const column = recv.data() + col * (all + 2);
      for (int64_t row = 0; row < all; ++row) wrong += column[row] != value(row, rank * part + col);
      wrong += column[all] != -1 || column[all + 1] != -1;
    }
    CHECK_EQ(wrong, 0);
  }
}

TEST("a program exchanges blocks of tensors with gaps") {
  for (const int n : {1, 2, 3}) {
    for (const int64_t part : {1, 5, 100, 300}) {
      ranks::everywhere(n, [part](Communicator& comm) { redistribute(comm, part); });
    }
  }
}

TEST("blocks of different shapes disagree") {
  ranks::as_threads(2, [](Communicator& comm) {
    std::vector<float> send(48), recv(48);
    const std::vector<int64_t> shape = {4, 12}, strides = {48, 4}, other = {8, 6}, other_strides = {24, 4};
    const std::vector<int64_t> two = {2, 2}, three = {3, 3};
    const bool odd = comm.rank() == 1;
    const Plan plan =
        odd ? Plan::alltoallv(1, 2, 32, {three}, 6, {three}, 6) : Plan::alltoallv(0, 2, 48, {two}, 4, {two}, 4);
    const TensorLayout layouts[] = {odd ? TensorLayout{other, other_strides, 4, 1, true}
                                        : TensorLayout{shape, strides, 4, 0, true}};
    Call call;
    call.dtype = kFloat32;
    call.send_layouts = call.recv_layouts = layouts;
    const void* const from[] = {send.data()};
    void* const to[] = {recv.data()};
    CHECK_THROWS(Code::mismatch, "blocks of different shapes", comm.start(plan, from, to, call)->wait());
    comm.barrier();
  });
}

}  // namespace
