#include "transport/shm/peers/membership.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <list>
#include <new>
#include <set>
#include <thread>

#include "core/facts.h"
#include "transport/shm/copy/calibration.h"
#include "transport/shm/policy/placement.h"
#include "transport/shm/protocol/protocol.h"
#include "transport/shm/protocol/texts.h"

namespace a2a::shm {
namespace {

uint64_t next_uid() {
  static std::atomic<uint64_t> count{1};
  return count.fetch_add(1);
}

// Blocks that were given up while a peer might still read them. A block is free for other use when every peer has left
// the group, too: it has closed or dropped its communicator, is gone, or has reused its own block.
class RetiredBlocks {
 public:
  struct Retired {
    ProcessMemory* memory;
    std::vector<std::byte*> in_segment, in_common;
    struct Reader {
      std::shared_ptr<LocalPeer> peer;
      Block block;
      uint64_t uid;
    };
    std::vector<Reader> readers;
  };

  void begin_use(uint64_t uid) {
    std::lock_guard lock(mutex_);
    in_use_.insert(uid);
  }

  void end_use(uint64_t uid) {
    std::lock_guard lock(mutex_);
    in_use_.erase(uid);
  }

  void add(Retired retired, uint64_t uid) {
    std::lock_guard lock(mutex_);
    in_use_.erase(uid);
    retired_.push_back(std::move(retired));
  }

  void sweep() {
    std::lock_guard lock(mutex_);
    retired_.remove_if([this](Retired& retired) {
      if (retired.memory->inherited()) return true;
      if (!std::ranges::all_of(retired.readers, [this](auto& reader) { return has_left(reader); })) return false;
      for (std::byte* data : retired.in_common) retired.memory->common().release(data);
      for (std::byte* data : retired.in_segment) retired.memory->arena().release(data);
      return true;
    });
  }

 private:
  bool has_left(Retired::Reader& reader) const {
    if (reader.peer->same_process) return !in_use_.contains(reader.uid);
    const auto& words = reader.block.words();
    return left_of(words) != Left::no || words.uid != reader.uid || reader.peer->gone();
  }

  std::mutex mutex_;
  std::list<Retired> retired_;
  std::set<uint64_t> in_use_;  // blocks of this process that are in use
};

RetiredBlocks& retired_blocks() {
  static auto* blocks = new RetiredBlocks;  // never destroyed: communicators may be dropped while the program exits
  return *blocks;
}

}  // namespace

Membership::NewBlock Membership::new_block(ProcessMemory& memory, int size) {
  retired_blocks().sweep();
  NewBlock block(memory.arena().allocate(std::max(Block::bytes(size), size_t{4096})));
  auto* words = new (block.get()) RankWords{};
  words->uid = memory.nonce() + next_uid();
  retired_blocks().begin_use(words->uid);
  return block;
}

void Membership::abandon(NewBlock block, Left how) noexcept {
  auto& words = *reinterpret_cast<RankWords*>(block.release());
  retired_blocks().end_use(words.uid);
  publish_left(words, how);
}

void Membership::GiveBack::operator()(std::byte* block) const noexcept {
  auto* words = reinterpret_cast<RankWords*>(block);
  retired_blocks().end_use(words->uid);
  // The block is never used again. The other ranks know its offset, may have connected without this rank, and may read
  // it for as long as they live: they would take the words of another communicator for those of this rank.
  publish_left(*words, Left::dropped);
}

Membership::Membership(Rank rank, NewBlock block, std::shared_ptr<ShmProgress> progress, Surroundings surroundings,
                       std::vector<std::shared_ptr<LocalPeer>> local_peers, std::span<const uint64_t> blocks,
                       std::vector<Rank> names)
    : rank_(rank),
      size_(static_cast<int>(local_peers.size())),
      block_(block.get(), size_),
      progress_(std::move(progress)),
      machine_(Machine::here(surroundings)),
      peers_(local_peers.size()),
      names_(std::move(names)) {
  const ChunkShape shape = ChunkShape::of(size());
  for (Rank r = 0; r < size(); ++r) {
    const auto i = static_cast<size_t>(r);
    if (r == rank_) continue;
    peers_[i].host = local_peers[i];
    sleepers_.push_back(local_peers[i]->sleeper());
    peers_[i].block = local_peers[i]->block(blocks[i], size());
    peers_[i].uid = peers_[i].block.words().uid;
    peers_[i].chunks = Chunks(shape, rank_ < r);
    threads_ |= local_peers[i]->same_process;
  }
  progress_->note(machine_.surroundings.oversubscribed(), threads_, size() > 1);
  block.release();
}

// Its memory is used again once no peer reads it any more.
Membership::~Membership() {
  ProcessMemory& memory = progress_->memory();
  if (memory.inherited()) return;
  leave(Left::dropped);
  const uint64_t uid = block_.words().uid;
  try {
    RetiredBlocks::Retired retired{&memory, {reinterpret_cast<std::byte*>(&block_.words())}, {}, {}};
    for (size_t slot = 0; slot < kSlots; ++slot) {
      if (for_all_[slot].data != nullptr) retired.in_segment.push_back(for_all_[slot].data);
      for (const Room& room : for_lists_[slot]) {
        if (room.data != nullptr) retired.in_segment.push_back(room.data);
      }
    }
    retired.in_segment.insert(retired.in_segment.end(), shared_.begin(), shared_.end());
    for (Rank r = 0; r < size(); ++r) {
      if (r == rank_) continue;
      Peer& p = peer(r);
      if (p.chunks.share() != nullptr) retired.in_common.push_back(p.chunks.share());
      retired.readers.push_back({p.host, p.block, p.uid});
    }
    retired_blocks().add(std::move(retired), uid);
  } catch (const std::bad_alloc&) {  // without a note of it the block is never used again
    retired_blocks().end_use(uid);
  }
  retired_blocks().sweep();
}

Rank Membership::rank_named(Rank name) const {
  if (names_.empty()) return name;
  return static_cast<Rank>(std::ranges::find(names_, name) - names_.begin());
}

size_t Membership::cma_pays_from() {
  for (Rank r = 0; r < rank_; ++r) {
    const uint64_t measured = peer(r).block.words().cma_pays_from.load(std::memory_order_relaxed);
    if (measured != 0) return static_cast<size_t>(measured);
  }
  const size_t measured = shm::cma_pays_from();
  block_.words().cma_pays_from.store(measured, std::memory_order_relaxed);
  return measured;
}

Chunks& Membership::chunks_to_fill(Rank rank) {
  Chunks& chunks = peer(rank).chunks;
  if (chunks.share() == nullptr) chunks.bring(progress_->memory().common().allocate(chunks.shape().share_bytes()));
  return chunks;
}

void Membership::enlarge(Room& room, size_t bytes, size_t aside) {
  if (room.bytes >= bytes) return;
  if (room.data != nullptr) arena().release(room.data);
  room = {};
  const size_t rounded = std::bit_ceil(bytes);
  room = {arena().allocate(aside + rounded), rounded};
}

std::byte* Membership::room_for_all(uint64_t n, size_t bytes) {
  constexpr size_t kSmallest = 4096;
  Room& room = for_all_[n % kSlots];
  try {
    enlarge(room, std::max(bytes, kSmallest), kAside);
  } catch (const Error&) {
    return nullptr;
  }
  return room.data + kAside;
}

std::byte* Membership::room_for_list(uint64_t n, size_t i, size_t bytes) {
  constexpr size_t kSmallest = 256;
  auto& rooms = for_lists_[n % kSlots];
  if (rooms.size() <= i) rooms.resize(i + 1);
  enlarge(rooms[i], std::max(bytes, kSmallest), 0);
  return rooms[i].data;
}

std::byte* Membership::allocate(size_t bytes) {
  shared_.reserve(shared_.size() + 1);
  return shared_.emplace_back(arena().allocate(bytes));
}

void Membership::release(std::byte* memory) noexcept {
  std::erase(shared_, memory);
  arena().release(memory);
}

void Membership::publish_finished(const Signature& signature) {
  auto& words = block_.words();
  words.started_op.store(static_cast<uint32_t>(signature.op), std::memory_order_relaxed);
  words.started.store(first_step(signature.number), std::memory_order_relaxed);
  publish_done(words, last_step(signature.number));
  wake_sleepers();
}

void Membership::spread() {
  // Moving makes sense in a group of all ranks of the host only: a part of them does not show how many ranks a CPU has.
  if (!machine_.spread || !surroundings().oversubscribed() || surroundings().ranks != size()) return;
  std::vector<const SeatWords*> seats;
  for (Rank r = 0; r < size(); ++r) seats.push_back(r == rank_ ? progress_->seat() : peer(r).host->seat);
  shm::spread(seats, static_cast<size_t>(rank_));
}

bool Membership::beside_peer() const {
  return std::ranges::any_of(peers_, [this](const Peer& p) {
    return p.host != nullptr && p.host->seat != nullptr && on_same_cpu(*progress_->seat(), *p.host->seat);
  });
}

void Membership::wake_sleeper(Rank rank) {
  before_waking<StdAtomics>();
  wake(peer(rank).host->sleeper());
}

void Membership::wake_sleepers() {
  before_waking<StdAtomics>();
  for (const Sleeper& sleeper : sleepers_) wake(sleeper);
}

void Membership::post_abort(Code code, std::string_view text) noexcept {
  auto& words = block_.words();
  if (words.aborted.load(std::memory_order_relaxed) != 0) return;
  write_text(words.abort_text, text);
  shm::post_abort(words, static_cast<uint32_t>(code));
  const Deadline deadline = Deadline::after_seconds(1);
  for (Rank r = 0; r < size(); ++r) {
    if (r == rank_) continue;
    wake_always(*peer(r).host);
    while (may_copy(r, deadline)) std::this_thread::yield();
  }
}

// Whether a peer may be in the middle of a copy from this rank's memory, or to it. The wait for its end is limited,
// because the peer may be stopped.
bool Membership::may_copy(Rank rank, Deadline deadline) {
  const uint32_t mark = static_cast<uint32_t>(rank_) + 1;
  LocalPeer& local_peer = *peer(rank).host;
  return is_copying(peer(rank).block.words(), mark) &&
         (local_peer.same_process || (!local_peer.gone() && !deadline.passed()));
}

void Membership::leave(Left how, std::string_view why) noexcept {
  if (left_) return;
  left_ = true;
  auto& words = block_.words();
  if (words.aborted.load(std::memory_order_relaxed) == 0) write_text(words.abort_text, why);
  publish_left(words, how);
  for (Rank r = 0; r < size(); ++r) {
    if (r != rank_) wake_always(*peer(r).host);
  }
}

void Membership::await_departure(Deadline deadline) {
  for (Rank r = 0; r < size(); ++r) {
    if (r == rank_) continue;
    const Peer& p = peer(r);
    const auto& words = p.block.words();
    while (left_of(words) == Left::no && words.uid == p.uid && !p.host->gone()) {
      if (deadline.passed()) return;
      std::this_thread::yield();
    }
  }
}

void Membership::throw_if_aborted(Rank rank) {
  const auto& words = peer(rank).block.words();
  const uint32_t code = abort_of(words);
  if (code == 0) return;
  const bool known = code >= static_cast<uint32_t>(Code::peer_lost) && code <= static_cast<uint32_t>(Code::backend);
  // The text of the first rank that gave up is passed on unchanged: it names the culprit, the operation and the rank
  // that noticed.
  throw Error(known ? static_cast<Code>(code) : Code::aborted, peer_text(words.abort_text));
}

void Membership::nonsense(Rank rank, const char* what) {
  throw_if_aborted(rank);  // a rank that gives up may leave its words inconsistent
  throw Error(Code::backend, "shared memory: rank " + std::to_string(name(rank)) + " wrote a line with a bad " + what);
}

std::string Membership::describe(Rank rank) {
  const auto& words = peer(rank).block.words();
  const uint64_t started = words.started.load(std::memory_order_relaxed);
  std::string text = "rank " + std::to_string(name(rank)) + " (" + peer(rank).host->state() + "): last operation ";
  text += name_of(words.started_op.load(std::memory_order_relaxed), number_of_step(started));
  const uint64_t done = words.done.load(std::memory_order_relaxed);
  if (started > done) text += ", not finished";
  return text;
}

}  // namespace a2a::shm
