// Agreement of the surviving ranks on their set.
//
// Each rank publishes the set of ranks that it takes for alive. It removes ranks that are dead, and ranks that another
// living rank has removed. Sets only get smaller, so they become equal. A rank that sees its own set published by all
// members of the set commits to it: the proposal is final. A rank that sees a living rank commit to a set with itself
// in it adopts that set. That is safe, because it had published this very set before. Living ranks cannot commit to two
// different sets: each set needs every living rank to have published it, and a rank that has committed publishes no
// more. The new group's first operation finds a member that dies after the commitment.
#include <sched.h>

#include <array>
#include <optional>
#include <thread>

#include "runtime/faultpoint.h"
#include "transport/shm/protocol/protocol.h"
#include "transport/shm/shm_transport.h"

namespace a2a::shm {
namespace {

using namespace std::chrono_literals;

struct RankSet {
  std::array<uint64_t, kMaxRanks / 64> words{};

  bool has(Rank r) const { return (words[static_cast<size_t>(r) / 64] >> (r % 64) & 1) != 0; }
  void add(Rank r) { words[static_cast<size_t>(r) / 64] |= uint64_t{1} << (r % 64); }
  void remove(Rank r) { words[static_cast<size_t>(r) / 64] &= ~(uint64_t{1} << (r % 64)); }
  void keep_only(const RankSet& other) {
    for (size_t i = 0; i < words.size(); ++i) words[i] &= other.words[i];
  }
  bool operator==(const RankSet&) const = default;
};

struct Proposal {
  RankSet ranks;
  bool committed;
};

// Returns a peer's proposal, unless it has made none or is changing it.
std::optional<Proposal> read(const RankWords& words) {
  Proposal proposal;
  if (!read_proposal(words, proposal.ranks.words, &proposal.committed)) return std::nullopt;
  return proposal;
}

bool is_out(Peer& peer) { return left_of(peer.block.words()) != Left::no || peer.host->gone(); }

// Looks at all peers once. Removes ranks from `ranks` where it must. Returns whether all members agree on it.
bool agree_on(Membership& m, RankSet& ranks) {
  bool agreed = true;
  for (Rank r = 0; r < m.size(); ++r) {
    if (r == m.rank() || !ranks.has(r)) continue;
    if (is_out(m.peer(r))) {
      ranks.remove(r);
      agreed = false;
      continue;
    }
    const auto theirs = read(m.peer(r).block.words());
    if (theirs && theirs->committed && theirs->ranks.has(m.rank())) {
      ranks = theirs->ranks;
      return true;
    }
    agreed = agreed && theirs && theirs->ranks == ranks;
    if (theirs && theirs->ranks.has(m.rank())) ranks.keep_only(theirs->ranks);
  }
  return agreed;
}

std::string undecided(Membership& m, const RankSet& ranks) {
  std::string text;
  for (Rank r = 0; r < m.size(); ++r) {
    if (r == m.rank() || !ranks.has(r)) continue;
    const auto theirs = read(m.peer(r).block.words());
    if (!theirs || theirs->ranks != ranks) text += (text.empty() ? "" : "; ") + m.describe(r);
  }
  return text;
}

}  // namespace

std::unique_ptr<Transport> ShmTransport::shrink(std::vector<Rank>* members, Deadline deadline) {
  Membership& m = membership_;
  auto& words = m.block().words();
  if (words.committed.load(std::memory_order_relaxed) != 0) {
    throw Error(Code::aborted, "shrink: this communicator has been replaced by a smaller one already");
  }
  abort("it shrinks");  // ends what is in flight, here and at the peers
  // A rank that gives up at its deadline stays proposed, and a slower rank may still count it in. So the block stays,
  // too.
  if (successor_ == nullptr) successor_ = Membership::new_block(m.progress().memory(), size());
  words.successor.store(m.arena().offset(successor_.get()), std::memory_order_relaxed);
  RankSet ranks;
  if (const auto before = read(words)) {
    ranks = before->ranks;
  } else {
    for (Rank r = 0; r < size(); ++r) ranks.add(r);
  }
  for (;;) {
    propose(words, std::span<const uint64_t>(ranks.words));
    faultpoint("propose");
    const RankSet before = ranks;
    if (agree_on(m, ranks)) break;
    if (ranks != before) continue;
    if (deadline.passed()) {
      throw Error(Code::timeout, "shrink: timeout on rank " + std::to_string(m.rank()) + ", which still waits for " +
                                     undecided(m, ranks) + ": shrink again when it goes on or has ended");
    }
    std::this_thread::sleep_for(100us);
  }
  propose(words, std::span<const uint64_t>(ranks.words));
  faultpoint("commit");
  commit(words);
  faultpoint("committed");
  std::vector<uint64_t> blocks;
  for (Rank r = 0; r < size(); ++r) {
    if (!ranks.has(r)) continue;
    members->push_back(r);
    blocks.push_back(r == m.rank() ? 0 : m.peer(r).block.words().successor.load(std::memory_order_acquire));
  }
  Surroundings around = m.surroundings();
  around.ranks = static_cast<int>(members->size());
  return derive(*members, std::move(successor_), blocks, around, {});
}

}  // namespace a2a::shm
