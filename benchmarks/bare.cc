// Exchanges that do nothing but what they have to: every byte of another rank is copied twice, through memory that both
// share, and a word says that it is there; or, between tensors in shared memory, once, by its sender, and a word says
// that it may be and one that it was. Nothing is compared, nobody sleeps, and who is waited for in vain is never
// noticed. To be timed in place of a library, for orientation.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "barrier.h"

namespace {

struct Copy {
  int64_t from, to, bytes;
};

void by_library(char* to, const char* from, size_t bytes) { std::memcpy(to, from, bytes); }

// What overwrites lines that another CPU's cache has as well, without waiting for each. The library does so, too, but
// stores past the caches from some size on.
void over_lines_of_others(char* to, const char* from, size_t bytes) {
#if defined(__x86_64__)
  constexpr size_t kLeast = 1024;
  if (bytes >= kLeast) {
    asm volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(bytes) : : "memory");
    return;
  }
#endif
  std::memcpy(to, from, bytes);
}

// The copies of one step, as a range of a list.
struct Steps {
  const Copy* copies;
  const int64_t* starts;  // one more than there are steps

  template <class How>
  void run(int64_t step, const char* from, char* to, How how) const {
    for (int64_t i = starts[step]; i < starts[step + 1]; ++i) {
      how(to + copies[i].to, from + copies[i].from, static_cast<size_t>(copies[i].bytes));
    }
  }
};

// Starts with the round in which it was put; its bytes follow, in the same line if they fit.
struct Piece {
  std::atomic<uint64_t> round;
  char* bytes() { return reinterpret_cast<char*>(this); }
};

struct Member {
  int rank, size;
  bool yield;
  size_t piece_bytes;
  char* pieces;  // two for each two ranks, and for each rank
  uint64_t round = 0;

  // Where `sender` puts a piece for `receiver`: where the receiver's last one was, whose lines its CPU has already.
  // What it has for all lies at its pair with itself.
  Piece& piece(int sender, int receiver) const {
    const auto low = static_cast<size_t>(sender < receiver ? sender : receiver);
    const auto high = static_cast<size_t>(sender < receiver ? receiver : sender);
    const size_t turn = (round + (sender < receiver)) % 2;
    return *reinterpret_cast<Piece*>(pieces + ((low * static_cast<size_t>(size) + high) * 2 + turn) * piece_bytes);
  }
};

}  // namespace

// Joins the group in `path`, which the first rank makes. Returns null if that cannot be mapped.
extern "C" void* bare_join(const char* path, int rank, int size, size_t piece_bytes) {
  const size_t bytes = static_cast<size_t>(size) * static_cast<size_t>(size) * 2 * piece_bytes;
  const int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0) return nullptr;
  void* memory = MAP_FAILED;
  if (ftruncate(fd, static_cast<off_t>(bytes)) == 0) {
    memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  }
  close(fd);
  if (memory == MAP_FAILED) return nullptr;
  return new Member{rank, size, bench::more_ranks_than_cpus(size), piece_bytes, static_cast<char*>(memory)};
}

// One exchange, in rounds of a piece for each peer. Step k of a round is about the peer that stands k ranks further on,
// for what is put, and k ranks back, for what is taken; what step 0 puts goes to `recv`.
struct Exchange {
  void* member;
  int64_t rounds;
  int64_t alike;  // all peers get the same, which is put once, in step 1
  Steps puts, takes;
  const char* send;
  char* recv;
};

extern "C" void bare_exchange(const Exchange* exchange) {
  const Exchange& e = *exchange;
  auto* m = static_cast<Member*>(e.member);
  for (int64_t round = 0; round < e.rounds; ++round) {
    ++m->round;
    const int64_t first = round * m->size;
    for (int step = 1; step < m->size && (step == 1 || !e.alike); ++step) {
      Piece& piece = m->piece(m->rank, e.alike ? m->rank : (m->rank + step) % m->size);
      e.puts.run(first + step, e.send, piece.bytes(), by_library);
      piece.round.store(m->round, std::memory_order_release);
    }
    e.puts.run(first, e.send, e.recv, by_library);
    for (int step = 1; step < m->size; ++step) {
      const int peer = (m->rank - step + m->size) % m->size;
      Piece& piece = m->piece(peer, e.alike ? peer : m->rank);
      while (piece.round.load(std::memory_order_acquire) < m->round) bench::pause_once(m->yield);
      e.takes.run(first + step, piece.bytes(), e.recv, by_library);
    }
  }
}

// The start of a rank's shared memory; tensors follow. Both words are of the round that its owner is in.
struct Area {
  alignas(128) std::atomic<uint64_t> ready;  // others may write there
  alignas(128) std::atomic<uint64_t> done;   // its owner has written all it had for others
};

struct Placing {
  Area* const* areas;  // by rank
  int64_t rank, size, yield;
  uint64_t* round;
  Steps puts;  // from `send` into the area of the rank that stands so many ranks further on
  const char* send;
};

extern "C" void bare_place(const Placing* placing) {
  const Placing& p = *placing;
  const uint64_t round = ++*p.round;
  const auto wait = [&](const std::atomic<uint64_t>& word) {
    while (word.load(std::memory_order_acquire) < round) bench::pause_once(p.yield != 0);
  };
  p.areas[p.rank]->ready.store(round, std::memory_order_release);
  for (int64_t step = 0; step < p.size; ++step) {
    Area* const area = p.areas[(p.rank + step) % p.size];
    if (step > 0) wait(area->ready);
    p.puts.run(step, p.send, reinterpret_cast<char*>(area), over_lines_of_others);
  }
  p.areas[p.rank]->done.store(round, std::memory_order_release);
  for (int64_t step = 1; step < p.size; ++step) wait(p.areas[(p.rank + step) % p.size]->done);
}
