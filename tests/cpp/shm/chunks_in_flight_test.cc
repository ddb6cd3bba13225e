// The chunks of a pair while several operations are in flight: an operation can always finish, whatever its ranks have
// staged for later ones. The ranks are states in one thread that use Chunks as shm/ways/staged.cc and
// shm/shm_transport.cc do; every step may come next.
#include <array>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "check.h"
#include "transport/shm/protocol/chunks.h"
#include "transport/shm/protocol/protocol.h"

namespace {

using namespace a2a::shm;
using Flow = ChunkFlow<StdAtomics>;

// How a rank takes what has come: from each peer as it comes, a piece of all peers at once, or in a fixed order of the
// peers.
enum class Takes : uint8_t { copies, folds, sums };

struct Operation {
  Takes takes = Takes::copies;
  std::vector<std::vector<int>> chunks;  // [from][to]: the number of chunks that the bytes fill
};

// One end of a pair.
struct End {
  Chunks chunks;
  Flow handed{}, returned{};
  uint64_t collected = 0;
  std::vector<int> out, in;  // by operation: chunks still to stage, to take
  std::vector<uint64_t> first;

  End() = default;
  End(const End& other) { *this = other; }
  End& operator=(const End& other) {
    chunks = other.chunks;
    copy(other.handed, handed);
    copy(other.returned, returned);
    collected = other.collected;
    out = other.out;
    in = other.in;
    first = other.first;
    return *this;
  }
  static void copy(const Flow& from, Flow& to) {
    to.count.store(from.count.load());
    std::copy(std::begin(from.chunk), std::end(from.chunk), std::begin(to.chunk));
  }
};

class World {
 public:
  struct Rank {
    std::vector<End> ends;  // by peer
    size_t posted = 0;      // operations
    size_t front = 0;       // the oldest unfinished one
    uint64_t done = 1;      // the step, as RankBlock::done: it has received all of that operation
    size_t turn = 0;        // of a sum: pieces taken of the front
  };

  World(const std::vector<Operation>& operations, unsigned share) : operations_(&operations), shape_{64, share} {
    const size_t size = operations[0].chunks.size();
    ranks_.resize(size);
    for (size_t r = 0; r < size; ++r) {
      ranks_[r].ends.resize(size);
      for (size_t p = 0; p < size; ++p) {
        End& end = ranks_[r].ends[p];
        end.chunks = Chunks(shape_, r < p);
        for (const Operation& operation : operations) {
          end.out.push_back(r == p ? 0 : operation.chunks[r][p]);
          end.in.push_back(r == p ? 0 : operation.chunks[p][r]);
        }
        end.first.resize(operations.size());
      }
    }
  }

  bool finished() const {
    return std::ranges::all_of(ranks_, [&](const Rank& rank) { return rank.front == operations_->size(); });
  }

  // The steps that rank r can take now: 0 posts, 1 says that it has received all, or finishes, 2 takes of all, 3 + p
  // stages for p, 3 + size + p takes from p.
  std::vector<int> steps(size_t r) {
    std::vector<int> able;
    const int size = static_cast<int>(ranks_.size());
    if (may_post(r)) able.push_back(0);
    const Rank& rank = ranks_[r];
    if (rank.front >= rank.posted) return able;
    if (may_finish(r)) able.push_back(1);
    const Takes takes = (*operations_)[rank.front].takes;
    if (takes == Takes::folds && may_fold(r)) able.push_back(2);
    for (int p = 0; p < size; ++p) {
      const auto peer = static_cast<size_t>(p);
      if (peer == r) continue;
      if (rank.ends[peer].out[rank.front] > 0 && has_chunk(r, peer)) able.push_back(3 + p);
      if (takes != Takes::folds && may_take(r, peer)) able.push_back(3 + size + p);
    }
    return able;
  }

  void take_step(size_t r, int step) {
    const int size = static_cast<int>(ranks_.size());
    Rank& rank = ranks_[r];
    if (step == 0) return post(r);
    if (step == 1) return finish(r);
    if (step >= 3 + size) return take(r, static_cast<size_t>(step - 3 - size));
    if (step >= 3) return stage(r, static_cast<size_t>(step - 3), rank.front);
    for (size_t p = 0; p < ranks_.size(); ++p) {
      if (p != r && rank.ends[p].in[rank.front] > 0) take(r, p);
    }
  }

  // Tells states apart, except for which chunk is which.
  std::string key() const {
    std::string text;
    const auto add = [&text](uint64_t value) {
      text += static_cast<char>(value), text += static_cast<char>(value >> 8);
    };
    for (const Rank& rank : ranks_) {
      add(rank.posted), add(rank.front), add(rank.done), add(rank.turn);
      for (const End& end : rank.ends) {
        add(end.chunks.handed()), add(end.chunks.taken()), add(end.returned.count), add(end.handed.count);
        add(end.collected), add(end.chunks.taken_since());
        for (const int left : end.out) add(static_cast<uint64_t>(left));
        for (const int left : end.in) add(static_cast<uint64_t>(left));
      }
    }
    return text;
  }

 private:
  End& end(size_t r, size_t peer) { return ranks_[r].ends[peer]; }

  bool may_post(size_t r) {
    Rank& rank = ranks_[r];
    if (rank.posted == operations_->size() || rank.posted >= rank.front + kSlots) return false;
    const uint64_t step = first_step(rank.posted + 1);
    for (size_t p = 0; p < ranks_.size(); ++p) {
      if (p == r) continue;
      if (step > kSlots && ranks_[p].done < step - kSlots) return false;
      // The chunks of a pair are one stream.
      if (rank.posted > rank.front && rank.ends[p].out[rank.posted - 1] > 0) return false;
    }
    return true;
  }

  void post(size_t r) {
    Rank& rank = ranks_[r];
    const size_t operation = rank.posted;
    for (size_t p = 0; p < ranks_.size(); ++p) {
      End& e = rank.ends[p];
      if (p == r || e.out[operation] == 0) continue;
      if (e.chunks.share() == nullptr) {
        e.chunks.bring(&memory_);
        end(p, r).chunks.find(&memory_);  // the line tells; nothing is taken before it was read
      }
      e.first[operation] = e.chunks.handed();
      if (has_chunk(r, p)) stage(r, p, operation);
    }
    ++rank.posted;
  }

  bool has_chunk(size_t r, size_t peer) {
    End& e = end(r, peer);
    if (e.chunks.none_free()) collect(e, end(peer, r));
    return !e.chunks.none_free();
  }

  void collect(End& e, const End& theirs) {
    CHECK(e.chunks.collect(theirs.returned));
    e.collected = theirs.returned.count;
  }

  void stage(size_t r, size_t peer, size_t operation) {
    End& e = end(r, peer);
    e.chunks.hand_over(e.handed);
    publish_count(e.handed, e.chunks.handed());
    if (--e.out[operation] == 0) share_out(r, peer);
  }

  // As staged.cc: a rank that still stages bytes of its oldest operation keeps its chunks.
  void share_out(size_t r, size_t peer) {
    End& e = end(r, peer);
    if (e.out[ranks_[r].front] > 0 || !e.chunks.taken_since()) return;
    CHECK(e.chunks.give_back_surplus(end(peer, r).returned, e.returned));
    e.collected = end(peer, r).returned.count;
  }

  bool may_take(size_t r, size_t peer) {
    const Rank& rank = ranks_[r];
    const size_t operation = rank.front;
    if (rank.ends[peer].in[operation] == 0 || ranks_[peer].posted <= operation) return false;
    if ((*operations_)[operation].takes == Takes::sums && next_of_sum(r) != peer) return false;
    return rank.ends[peer].chunks.taken() < end(peer, r).chunks.handed();
  }

  // The peer whose piece is next in the order, which differs between ranks and pieces.
  size_t next_of_sum(size_t r) {
    const Rank& rank = ranks_[r];
    for (size_t i = 0; i < ranks_.size(); ++i) {
      const size_t peer = (rank.turn * (r + 2) / 3 + i) % ranks_.size();
      if (peer != r && rank.ends[peer].in[rank.front] > 0) return peer;
    }
    return r;
  }

  bool may_fold(size_t r) {
    const Rank& rank = ranks_[r];
    bool any = false;
    for (size_t p = 0; p < ranks_.size(); ++p) {
      if (p == r || rank.ends[p].in[rank.front] == 0) continue;
      if (!may_take(r, p)) return false;
      any = true;
    }
    return any;
  }

  void take(size_t r, size_t peer) {
    End &e = end(r, peer), &theirs = end(peer, r);
    Rank& rank = ranks_[r];
    const uint8_t chunk = listed(theirs.handed, e.chunks.taken());
    CHECK(e.chunks.is_theirs(chunk));
    e.chunks.take(chunk, 64);
    --e.in[rank.front];
    ++rank.turn;
    if ((*operations_)[rank.front].takes == Takes::sums) {
      e.chunks.give_back_last(e.returned);
    } else {
      share_out(r, peer);
    }
  }

  bool has_received(const Rank& rank) const { return rank.done == last_step(rank.front + 1); }

  // Whether it has read every peer's line and all bytes, or has then staged everything as well.
  bool may_finish(size_t r) {
    const Rank& rank = ranks_[r];
    for (size_t p = 0; p < ranks_.size(); ++p) {
      if (p == r) continue;
      if (ranks_[p].posted <= rank.front || rank.ends[p].in[rank.front] > 0) return false;
      if (has_received(rank) && rank.ends[p].out[rank.front] > 0) return false;
    }
    return true;
  }

  void finish(size_t r) {
    Rank& rank = ranks_[r];
    if (!has_received(rank)) return void(rank.done = last_step(rank.front + 1));
    ++rank.front;
    rank.turn = 0;
  }

  inline static std::byte memory_{};
  const std::vector<Operation>* operations_;
  ChunkShape shape_;
  std::vector<Rank> ranks_;
};

// Looks at every order of steps. Returns whether all of them end.
bool all_orders_end(const std::vector<Operation>& operations, unsigned share, size_t* states) {
  std::set<std::string> seen;
  std::vector<World> open{World(operations, share)};
  while (!open.empty()) {
    World world = std::move(open.back());
    open.pop_back();
    if (!seen.insert(world.key()).second || world.finished()) continue;
    bool able = false;
    for (size_t r = 0; r < operations[0].chunks.size(); ++r) {
      for (const int step : world.steps(r)) {
        able = true;
        World next = world;
        next.take_step(r, step);
        open.push_back(std::move(next));
      }
    }
    if (!able) return false;
  }
  *states += seen.size();
  return true;
}

bool random_order_ends(const std::vector<Operation>& operations, unsigned share, check::Random& random) {
  World world(operations, share);
  const size_t size = operations[0].chunks.size();
  // Some ranks are much slower than others, for a while each.
  size_t slow = 0;
  while (!world.finished()) {
    if (random() % 16 == 0) slow = random() % (size + 1);
    std::vector<std::pair<size_t, int>> able, eager;
    for (size_t r = 0; r < size; ++r) {
      for (const int step : world.steps(r)) {
        able.emplace_back(r, step);
        if (r != slow) eager.emplace_back(r, step);
      }
    }
    if (able.empty()) return false;
    const auto& from = eager.empty() ? able : eager;
    const auto [r, step] = from[random() % from.size()];
    world.take_step(r, step);
  }
  return true;
}

Operation one_way(int chunks) { return {Takes::copies, {{0, chunks}, {0, 0}}}; }
Operation both(int there, int back, Takes takes = Takes::copies) { return {takes, {{0, there}, {back, 0}}}; }

std::vector<std::vector<Operation>> of_two_ranks() {
  return {
      {one_way(12), both(1, 1), both(1, 1)},
      {one_way(10), both(1, 1), both(1, 1), both(1, 1), both(1, 1)},
      {both(1, 1), both(9, 0), both(0, 1), both(1, 1), both(1, 0)},
      {both(6, 7), both(1, 1), both(1, 1), one_way(6)},
      {both(5, 5, Takes::folds), both(1, 1, Takes::folds), both(1, 1, Takes::folds), one_way(6)},
      {both(9, 1, Takes::sums), both(1, 1), both(1, 1, Takes::sums), both(0, 9)},
  };
}

TEST("two ranks with several operations in flight end in every order of steps") {
  size_t states = 0;
  for (const auto& operations : of_two_ranks()) CHECK(all_orders_end(operations, kLeastShare, &states));
  std::cout << "  " << states << " states" << std::endl;
  CHECK(states > 10000);
}

TEST("with a smaller share they wait for each other") {
  size_t states = 0;
  CHECK(!all_orders_end(of_two_ranks()[0], 2, &states));
}

TEST("groups of every size have the least share") {
  for (const int size : {1, 2, 3, 8, 64, 1024}) CHECK(ChunkShape::of(size).share >= kLeastShare);
}

TEST("random operations of two to four ranks end in random orders") {
  check::Random random;
  for (int i = 0; i < 1500; ++i) {
    const check::Note note("case", static_cast<uint64_t>(i));
    const size_t size = 2 + static_cast<size_t>(i % 3);
    std::vector<Operation> operations(3 + random() % 6);
    for (Operation& operation : operations) {
      operation.takes = static_cast<Takes>(random() % 3);
      operation.chunks.assign(size, std::vector<int>(size));
      const int most = random() % 3 == 0 ? 30 : 2;
      std::vector<int> of_rank(size);
      for (int& chunks : of_rank) chunks = static_cast<int>(random() % static_cast<unsigned>(most));
      for (size_t from = 0; from < size; ++from) {
        for (size_t to = 0; to < size; ++to) {
          // A fold gets as much of every rank.
          operation.chunks[from][to] =
              operation.takes == Takes::folds ? of_rank[to] : static_cast<int>(random() % static_cast<unsigned>(most));
        }
      }
    }
    if (!CHECK(random_order_ends(operations, ChunkShape::of(static_cast<int>(size)).share, random))) return;
  }
}

}  // namespace
