// Runs the plans of all ranks of a group in one process, stage by stage, with elements that remember how they came to
// be: a fold of a and b is the text "(a+b)".
#pragma once

#include <map>
#include <string>
#include <vector>

#include "a2a/plan.h"
#include "check.h"
#include "core/stages/topology.h"

namespace a2a::check_plans {

using Element = std::string;
using Elements = std::vector<Element>;

// One element has this many bytes in the plans.
constexpr size_t kElem = 4;

struct Member {
  Elements send, recv, scratch;
};

struct Traffic {
  size_t bytes_between_hosts = 0;
  std::vector<size_t> sent_by_host, received_by_host;  // to and from other hosts
  size_t messages_between_hosts = 0;
  size_t stages = 0;
};

inline Elements& space_of(Member& member, const Segment& s, bool sends) {
  if (s.space == Space::scratch) return member.scratch;
  return sends && s.space == Space::user ? member.send : member.recv;
}

// Returns the elements of the segments with one peer, one after the other.
inline Elements taken(Member& member, std::span<const Segment> segments, Rank peer) {
  Elements all;
  for (const Segment& s : segments) {
    if (s.peer != peer) continue;
    const Elements& from = space_of(member, s, true);
    const auto first = from.begin() + static_cast<ptrdiff_t>(s.offset / kElem);
    CHECK(s.offset + s.bytes <= from.size() * kElem);
    all.insert(all.end(), first, first + static_cast<ptrdiff_t>(s.bytes / kElem));
  }
  return all;
}

inline void put(Member& member, std::span<const Segment> segments, Rank peer, const Elements& elements) {
  size_t next = 0;
  for (const Segment& s : segments) {
    if (s.peer != peer) continue;
    Elements& to = space_of(member, s, false);
    CHECK(s.offset + s.bytes <= to.size() * kElem);
    for (size_t i = 0; i < s.bytes / kElem; ++i) to[s.offset / kElem + i] = elements[next++];
  }
}

// Every send has its sink: the k-th segments of a pair have the same bytes on both sides.
inline void check_pairs(const std::vector<Plan>& plans, size_t stage) {
  for (const Plan& from : plans) {
    for (const Plan& to : plans) {
      std::vector<size_t> sent, received;
      for (const Segment& s : from.stages()[stage].sends) {
        if (s.peer == to.rank()) sent.push_back(s.bytes);
      }
      for (const Segment& s : to.stages()[stage].recvs) {
        if (s.peer == from.rank()) received.push_back(s.bytes);
      }
      CHECK(sent == received);
    }
  }
}

inline Elements folded(const std::vector<Elements>& all) {
  Elements result = all[0];
  for (size_t i = 0; i < result.size() && all.size() > 1; ++i) {
    result[i] = "(" + result[i];
    for (size_t k = 1; k < all.size(); ++k) result[i] += "+" + all[k][i];
    result[i] += ")";
  }
  return result;
}

// Folds what a rank has received, by the parts of the stage.
inline void fold(Member& member, const Stage& stage, const std::vector<Elements>& from) {
  if (stage.recvs.empty()) return;
  size_t whole = 0;
  for (const Elements& elements : from) whole = std::max(whole, elements.size());
  std::vector<FoldPart> parts = stage.parts;
  if (parts.empty()) {
    parts.emplace_back();
    for (Rank rank = 0; rank < static_cast<Rank>(from.size()); ++rank) {
      if (!from[static_cast<size_t>(rank)].empty()) parts[0].from.push_back(rank);
    }
  }
  std::vector<Elements> of_parts;
  for (const FoldPart& part : parts) {
    std::vector<Elements> all;  // each as long as the output
    for (const Rank rank : part.from) {
      const Elements& piece = from[static_cast<size_t>(rank)];
      if (all.empty() || all.back().size() == whole) all.emplace_back();
      all.back().insert(all.back().end(), piece.begin(), piece.end());
    }
    for (const Elements& elements : all) CHECK_EQ(elements.size(), whole);
    of_parts.push_back(folded(all));
  }
  // A receiver that gets everything has one segment list for all senders: the output.
  Rank receiver_of_all = stage.recvs.front().peer;
  for (Rank rank = 0; rank < static_cast<Rank>(from.size()); ++rank) {
    if (from[static_cast<size_t>(rank)].size() == whole) receiver_of_all = rank;
  }
  put(member, stage.recvs, receiver_of_all, folded(of_parts));
}

// Runs all stages. Requires that all ranks have as many.
inline Traffic run(const std::vector<Plan>& plans, std::vector<Member>& members, const Topology& topology) {
  Traffic traffic;
  traffic.stages = plans[0].stages().size();
  traffic.sent_by_host.resize(static_cast<size_t>(topology.hosts()));
  traffic.received_by_host.resize(static_cast<size_t>(topology.hosts()));
  for (size_t r = 0; r < plans.size(); ++r) members[r].scratch.assign(plans[r].scratch_bytes() / kElem, "unwritten");
  for (size_t stage = 0; stage < traffic.stages; ++stage) {
    check_pairs(plans, stage);
    std::vector<std::vector<Elements>> sent(plans.size(), std::vector<Elements>(plans.size()));  // by receiver, sender
    for (const Plan& from : plans) {
      const Stage& s = from.stages()[stage];
      CHECK(std::ranges::is_sorted(s.sends, {}, &Segment::peer) && std::ranges::is_sorted(s.recvs, {}, &Segment::peer));
      CHECK(s.reach == plans[0].stages()[stage].reach && s.sink == plans[0].stages()[stage].sink);
      for (Rank to = 0; to < topology.size(); ++to) {
        Elements elements = taken(members[static_cast<size_t>(from.rank())], s.sends, to);
        const bool near = topology.share_host(from.rank(), to);
        CHECK(elements.empty() || s.reach != Reach::host || near);
        CHECK(elements.empty() || s.reach != Reach::network || !near || from.rank() == to);
        if (!near && !elements.empty()) {
          traffic.bytes_between_hosts += elements.size() * kElem;
          ++traffic.messages_between_hosts;
          traffic.sent_by_host[static_cast<size_t>(topology.host_of(from.rank()))] += elements.size() * kElem;
          traffic.received_by_host[static_cast<size_t>(topology.host_of(to))] += elements.size() * kElem;
        }
        sent[static_cast<size_t>(to)][static_cast<size_t>(from.rank())] = std::move(elements);
      }
    }
    for (const Plan& to : plans) {
      const Stage& s = to.stages()[stage];
      Member& member = members[static_cast<size_t>(to.rank())];
      const auto& from = sent[static_cast<size_t>(to.rank())];
      if (s.sink == Sink::fold) {
        fold(member, s, from);
        continue;
      }
      for (Rank rank = 0; rank < topology.size(); ++rank) put(member, s.recvs, rank, from[static_cast<size_t>(rank)]);
    }
  }
  return traffic;
}

}  // namespace a2a::check_plans
