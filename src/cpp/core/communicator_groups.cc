// Groups made from a communicator: split, group and shrink.
#include <algorithm>
#include <cstring>
#include <utility>

#include "a2a/communicator.h"
#include "core/communicator_state.h"
#include "runtime/hash.h"
#include "runtime/object_bytes.h"

namespace a2a {
namespace {

// The bootstrap of a group that is made from another: the parent's control exchange, reduced to the members' strings.
// Ranks of the parent that are not members must call allgather as often as the members do.
class SubgroupBootstrap final : public Bootstrap {
 public:
  SubgroupBootstrap(Communicator& parent, std::vector<Rank> members, Op op)
      : parent_(parent), members_(std::move(members)), op_(op) {}

  std::vector<std::string> allgather(std::string_view mine, Deadline deadline) override {
    auto all = parent_.allgather_bytes(mine, op_, deadline);
    std::vector<std::string> ours;
    for (const Rank member : members_) ours.push_back(std::move(all[static_cast<size_t>(member)]));
    return ours;
  }

 private:
  Communicator& parent_;
  std::vector<Rank> members_;
  Op op_;
};

template <class T>
T from_bytes(const std::string& text) {
  T value{};
  if (text.size() != sizeof(T)) throw Error(Code::backend, "control exchange: unexpected length");
  std::memcpy(&value, text.data(), sizeof(T));
  return value;
}

}  // namespace

std::shared_ptr<Communicator> Communicator::split(int color, int key, std::optional<Deadline> deadline) {
  struct Choice {
    int color, key;
  };
  const Deadline until = state_->deadline(deadline);
  const auto all = allgather_bytes(object_bytes(Choice{color, key}), Op::split, until);
  std::vector<std::pair<int, Rank>> order;  // (key, rank) of this color
  for (Rank r = 0; r < size(); ++r) {
    const auto choice = from_bytes<Choice>(all[static_cast<size_t>(r)]);
    if (choice.color == color && color >= 0) order.emplace_back(choice.key, r);
  }
  std::ranges::sort(order);
  std::vector<Rank> members;
  for (const auto& [_, r] : order) members.push_back(r);
  return derive(std::move(members), Op::split, until);
}

std::shared_ptr<Communicator> Communicator::group(std::span<const Rank> ranks, std::optional<Deadline> deadline) {
  const Deadline until = state_->deadline(deadline);
  Call call;
  call.op = Op::group;
  call.deadline = until;
  std::vector<bool> seen(static_cast<size_t>(size()));
  for (const Rank r : ranks) {
    std::string reason;
    if (r < 0 || r >= size())
      reason = "ranks contains " + std::to_string(r) + ", the group has size " + std::to_string(size());
    else if (seen[static_cast<size_t>(r)])
      reason = "ranks contains " + std::to_string(r) + " twice";
    if (!reason.empty()) {
      reason = "group: rank " + std::to_string(rank()) + ": " + reason;
      refuse(call, reason);
      throw Error(Code::invalid_argument, reason);
    }
    seen[static_cast<size_t>(r)] = true;
  }
  const auto all = allgather_bytes({reinterpret_cast<const char*>(ranks.data()), ranks.size_bytes()}, Op::group, until);
  for (Rank r = 0; r < size(); ++r) {
    if (all[static_cast<size_t>(r)] != all[static_cast<size_t>(rank())]) {
      throw Error(Code::mismatch, "group: rank " + std::to_string(r) + " and rank " + std::to_string(rank()) +
                                      " give different lists of ranks");
    }
  }
  return derive(std::vector<Rank>(ranks.begin(), ranks.end()), Op::group, until);
}

// Collective over this communicator, also for ranks that are not members.
std::shared_ptr<Communicator> Communicator::derive(std::vector<Rank> members, Op op, Deadline deadline) {
  if (std::ranges::find(members, rank()) == members.end()) {
    allgather_bytes({}, op, deadline);  // takes part in the one control exchange of the members
    return nullptr;
  }
  const uint64_t which = last_number();
  SubgroupBootstrap bootstrap(*this, members, op);
  auto host = state_->open(op)->derive(members, bootstrap, deadline);
  return with_members(*state_, members, std::move(host), op, which);
}

std::shared_ptr<Communicator> Communicator::with_members(const State& parent, std::span<const Rank> members,
                                                         std::unique_ptr<Transport> host, Op op, uint64_t which) {
  const auto rank = static_cast<Rank>(std::ranges::find(members, parent.rank) - members.begin());
  const auto size = static_cast<int>(members.size());
  Options options = parent.options;
  options.timeout_seconds = parent.timeout_seconds;
  auto state = std::make_unique<State>(rank, size, std::move(options), std::move(host));
  Hash group;
  group.add(parent.group).add(to_string(op)).add(which);
  for (const Rank member : members) group.add(static_cast<uint64_t>(member));
  state->identify(group.value(), std::string(to_string(op)) + " #" + std::to_string(which) + " of " + parent.label);
  return std::shared_ptr<Communicator>(new Communicator(std::move(state)));
}

// The ranks may agree on a smaller group, and then one of them may die, or not come in time. Then that group is broken,
// and the ranks that are left go on by shrinking it.
std::shared_ptr<Communicator> Communicator::shrink(std::optional<Deadline> deadline) {
  const Deadline until = state_->deadline(deadline);
  state_->home.refuse_if_inherited();
  const auto host = state_->open(Op::shrink);
  std::shared_ptr<Communicator> smaller = state_->kept_smaller();
  if (smaller == nullptr) {
    std::vector<Rank> members;
    auto rest = host->shrink(&members, until);
    smaller = with_members(*state_, members, std::move(rest), Op::shrink, ++state_->shrinks);
    try {
      // An operation that begins too late would break the group for the ranks that have finished.
      if (until.passed()) throw Error(Code::timeout, "shrink: timed out when the ranks had agreed: shrink again");
      smaller->barrier(until);
      return smaller;
    } catch (const Error& error) {
      state_->keep_smaller(smaller);
      const bool mends =
          error.code() == Code::peer_lost || error.code() == Code::aborted || error.code() == Code::timeout;
      if (!mends || until.passed()) throw;
    }
  }
  auto rest = smaller->shrink(until);
  state_->keep_smaller(nullptr);
  return rest;
}

}  // namespace a2a
