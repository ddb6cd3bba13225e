// A rank whose only peer writes whatever it likes into its segment. The peer is no process: what it shares is memory of
// this program between pages that nobody may touch, so that an access outside of it ends the program.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <vector>

#include "input.h"
#include "transport/shm/exchange.h"
#include "transport/shm/protocol/mailbox.h"
#include "transport/shm/protocol/protocol.h"

namespace fuzz {

using namespace a2a;
using namespace a2a::shm;

// Memory between two forbidden pages.
class Fenced {
 public:
  explicit Fenced(size_t bytes) : bytes_(bytes) {
    all_ = static_cast<std::byte*>(
        ::mmap(nullptr, bytes + 2 * kPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    if (all_ == MAP_FAILED || ::mprotect(begin(), bytes, PROT_READ | PROT_WRITE) != 0) throw std::bad_alloc();
  }
  ~Fenced() { ::munmap(all_, bytes_ + 2 * kPage); }
  Fenced(const Fenced&) = delete;
  Fenced& operator=(const Fenced&) = delete;
  std::byte* begin() const { return all_ + kPage; }
  size_t bytes() const { return bytes_; }

 private:
  static constexpr size_t kPage = 4096;
  std::byte* all_;
  size_t bytes_;
};

class HostilePeer {
 public:
  static constexpr Rank kMe = 0, kPeer = 1;
  static constexpr size_t kSegment = size_t{4} << 20;
  static constexpr size_t kSeat = 0, kBlock = 128, kList = 12288, kData = 20480;
  static_assert(kBlock + Block::bytes(2) <= kList);
  static constexpr size_t kControlled = kList + 64;  // from the beginning: what it changes
  static constexpr size_t kMailbox = 12544;          // of messages: another part that it changes
  static_assert(kControlled <= kMailbox && kMailbox % kCacheLine == 0 && kMailbox + kMailboxBytes <= kData);

  HostilePeer() : segment_(kSegment), common_(2 * kShape.share_bytes()), local_peer_(std::make_shared<LocalPeer>()) {
    local_peer_->pid = ::getpid();
    local_peer_->base = segment_.begin();
    local_peer_->bytes = local_peer_->open = kSegment;
    local_peer_->common = common_.begin();
    local_peer_->common_bytes = local_peer_->common_open = common_.bytes();
    local_peer_->seat = reinterpret_cast<const SeatWords*>(segment_.begin() + kSeat);
    local_peer_->bell = &bell_;
    start_again();
  }
  ~HostilePeer() { let_go(); }
  HostilePeer(const HostilePeer&) = delete;
  HostilePeer& operator=(const HostilePeer&) = delete;

  // As after a communicator was made.
  void start_again() {
    let_go();
    std::memset(segment_.begin(), 0, kMailbox + kMailboxBytes);
    new (segment_.begin() + kBlock) RankWords{};
    const uint64_t blocks[] = {0, kBlock};
    progress_ = ShmProgress::of_this_thread();
    membership_.emplace(kMe, Membership::new_block(progress_->memory(), 2), progress_, Surroundings{2, 2},
                        std::vector<std::shared_ptr<LocalPeer>>{nullptr, local_peer_}, blocks);
    chunks_ = Chunks(kShape, false);
    chunks_.bring(common_.begin() + kShape.share_bytes());
  }

  Membership& membership() { return *membership_; }
  const std::shared_ptr<ShmProgress>& progress() const { return progress_; }
  // Whether this rank may read the memory of "the peer" with process_vm_readv; that memory is this program's then.
  void allow_cma(bool allowed) { local_peer_->cma_from = local_peer_->cma_to = allowed; }
  std::byte* controlled() { return segment_.begin(); }
  std::byte* mailbox() { return segment_.begin() + kMailbox; }
  std::byte* data() { return segment_.begin() + kData; }
  Block block() { return Block(segment_.begin() + kBlock, 2); }

  // Writes the line of an operation as a peer would that means well.
  void publish_line(uint64_t number, Head head, Kind kind, size_t runs) {
    const uint64_t n = first_step(number);
    head.kind = static_cast<uint8_t>(kind);
    head.count = 1;
    take_chunks();
    if (kind == Kind::staged) {
      hand_chunks(head);
    } else if (kind != Kind::none && kind != Kind::inlined) {
      describe_runs(head, kind, runs);
    }
    publish_copied(block().pipe(kMe), n);
    Line& line = block().line(n, kMe);
    line.head = head;
    publish(line, n);
    publish_notice(block().words(), n, notice(number, head.op, head.memory));
    publish_done(block().words(), last_step(number));
  }

 private:
  static inline const ChunkShape kShape = ChunkShape::of(2);

  // Takes what this rank has handed over before, and gives back what is too much.
  void take_chunks() {
    const auto& mine = membership_->block().pipe(kPeer);
    const Chunks& other = membership_->peer(kPeer).chunks;
    if (other.share() != nullptr) chunks_.find(other.share());
    while (chunks_.taken() < other.handed()) chunks_.take(listed(mine.handed, chunks_.taken()), 0);
    chunks_.collect(mine.returned);
    chunks_.give_back_surplus(mine.returned, block().pipe(kMe).returned);
  }
  // As many as the bytes need.
  void hand_chunks(Head& head) {
    auto& theirs = block().pipe(kMe);
    head.where = kShape.share_bytes();
    head.first = chunks_.handed();
    head.count = 1 + chunks_.next();
    for (size_t left = (head.sent + kShape.bytes - 1) / kShape.bytes; left > 0 && !chunks_.none_free(); --left) {
      chunks_.hand_over(theirs.handed);
    }
    publish_count(theirs.handed, chunks_.handed());
  }
  void describe_runs(Head& head, Kind kind, size_t runs) {
    const uint64_t data = kind == Kind::shared ? kData : reinterpret_cast<uint64_t>(segment_.begin() + kData);
    head.count = static_cast<uint32_t>(runs);
    head.where = runs == 1 ? data : kList;
    auto* entry = reinterpret_cast<ListedRun*>(segment_.begin() + kList);
    for (size_t i = 0; i + 1 < runs; ++i) entry[i] = {data + i, 1};
    entry[runs - 1] = {data, head.sent - (runs - 1)};
  }
  // The memory of a group is used again only when every peer has left.
  void let_go() {
    if (membership_) publish_left(block().words(), Left::dropped);
    membership_.reset();
  }

  Fenced segment_, common_;
  Chunks chunks_;
  BellWord bell_{};
  std::shared_ptr<LocalPeer> local_peer_;
  std::shared_ptr<ShmProgress> progress_;
  std::optional<Membership> membership_;
};

// Memory of this rank, private or shared.
class Tensor {
 public:
  Tensor(Arena& arena, size_t bytes, bool shared)
      : arena_(arena), private_(shared ? 0 : bytes), shared_(shared ? arena.allocate(bytes) : nullptr), bytes_(bytes) {}
  ~Tensor() {
    if (shared_ != nullptr) arena_.release(shared_);
  }
  Tensor(const Tensor&) = delete;
  Tensor& operator=(const Tensor&) = delete;
  std::span<std::byte> bytes() const { return {shared_ != nullptr ? shared_ : private_.data(), bytes_}; }

 private:
  Arena& arena_;
  mutable std::vector<std::byte> private_;
  std::byte* shared_;
  size_t bytes_;
};

// One operation of a rank with such a peer: sizes, kind of line, and what the peer means to send.
struct Played {
  uint64_t number = 1;
  size_t sends = 0, recvs = 0;  // bytes to and from the peer
  size_t runs = 1;              // in the peer's line
  Kind kind = Kind::none;
  Way way = Way::exchange;
  bool refused = false;  // by this rank
  bool folds = false;    // what comes from the peer is folded with as many bytes of this rank's own
  bool shared = false;   // this rank has its tensors in shared memory
};

// Runs it for some steps; change() is called before each and may write into what the peer controls. An error is a fine
// end. Whatever the peer does, nothing beside the receive buffer is written. Returns whether it ended without an error.
template <class Change>
bool play(HostilePeer& hostile, const Played& operation, Change change) {
  Membership& m = hostile.membership();
  constexpr std::byte kUntouched{0xA5};
  constexpr size_t kMargin = 64;
  const Tensor sent(m.arena(), operation.sends, operation.shared);
  const Tensor received(m.arena(), operation.recvs + 2 * kMargin, operation.shared);
  const std::span<std::byte> send = sent.bytes(), recv = received.bytes();
  std::ranges::fill(recv, kUntouched);
  Batch batch;
  batch.signature = {Op::alltoallv, Memory::host, DType{1, 8, 1}, operation.number, 0};
  batch.way = operation.way;
  const std::vector<std::byte> own(operation.recvs, std::byte{7});
  if (operation.folds && operation.recvs > 0) {
    batch.signature.op = Op::reduce, batch.signature.fold = Fold::sum;
    batch.sends = {{HostilePeer::kMe, const_cast<std::byte*>(own.data()), own.size()}};
    batch.recvs = {{HostilePeer::kMe, recv.data() + kMargin, own.size()}};
  }
  if (operation.sends > 0 && !operation.folds) batch.sends = {{HostilePeer::kPeer, send.data(), operation.sends}};
  if (operation.recvs > 0) batch.recvs.push_back({HostilePeer::kPeer, recv.data() + kMargin, operation.recvs});
  Head head{};
  set_common(head, batch.signature);
  add_sizes(head, runs_with(batch.recvs, HostilePeer::kPeer), runs_with(batch.sends, HostilePeer::kPeer));
  hostile.publish_line(operation.number, head, operation.kind, operation.runs);
  if (operation.refused) {
    batch.refusal = "bad arguments";
    batch.sends.clear();
    batch.recvs.clear();
  }
  Exchange exchange(hostile.progress(), HostilePeer::kMe, 2);
  exchange.begin(std::move(batch));
  bool good = true;
  try {
    constexpr int kSteps = 24;
    for (int step = 0; step < kSteps && !exchange.finished(); ++step) {
      change();
      if (!exchange.posted() && !exchange.post(m)) continue;
      exchange.advance(m);
      m.throw_if_aborted(HostilePeer::kPeer);
      if (!exchange.finished()) exchange.look_for_pass(m, HostilePeer::kPeer);
    }
    if (!exchange.finished()) throw Error(Code::timeout, exchange.missing(m));
    exchange.wait_until(Deadline::never());  // throws what it failed with
  } catch (const Error& error) {
    good = false;
    exchange.fail(m, error);
    hostile.start_again();
  }
  const auto untouched = [](const std::byte& b) { return b == kUntouched; };
  require(std::ranges::all_of(recv.first(kMargin), untouched) && std::ranges::all_of(recv.last(kMargin), untouched),
          "something was written beside the receive buffer");
  return good;
}

}  // namespace fuzz
