// Expert parallelism: derives, from the experts that the tokens of each rank choose, the rows that every rank sends and
// receives. Pure functions: the caller exchanges what ranks have to tell each other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "a2a/plan.h"
#include "a2a/types.h"

namespace a2a {

// The ranks on which each expert is. A rank numbers its experts from 0, in the order of their numbers in the group.
class A2A_API ExpertPlacement {
 public:
  struct Home {
    Rank rank = 0;
    int32_t local = 0;  // the expert's number on that rank
  };

  struct Options {
    std::span<const int> hosts;  // by rank: any number that it shares with the ranks of its host alone; empty: one host
    std::span<const uint8_t> active;  // by rank: whether it takes part; empty: all do
    bool may_lack = false;            // experts without a rank are allowed
  };

  // ranks[e]: the ranks that have expert e. If several that take part have it (replicas), each rank sends its tokens
  // for that expert to those of its own host, or to all if there are none, in turn. It begins with number (its place
  // among the ranks of its host, or its rank) % (number of these replicas). Tokens for an expert that no such rank has
  // are dropped, and so are all tokens of a rank that takes no part. Throws Error(invalid_argument) for an expert
  // without a rank, with a rank twice, or with one that is not in the group.
  ExpertPlacement(int size, std::span<const std::vector<Rank>> ranks, const Options& options);
  ExpertPlacement(int size, std::span<const std::vector<Rank>> ranks) : ExpertPlacement(size, ranks, Options()) {}
  // The same number of experts on each rank, in blocks. Throws Error(invalid_argument) if `size` does not divide
  // `experts`.
  static ExpertPlacement blocks(int size, int64_t experts);

  int size() const { return static_cast<int>(on_rank_.size()); }
  int64_t experts() const { return static_cast<int64_t>(begin_.size()) - 1; }
  int32_t experts_on(Rank rank) const { return on_rank_[static_cast<size_t>(rank)]; }
  // Returns the places of an expert on ranks that take part.
  std::span<const Home> homes(int64_t expert) const {
    const auto e = static_cast<size_t>(expert);
    return {homes_.data() + begin_[e], begin_[e + 1] - begin_[e]};
  }
  bool active(Rank rank) const { return active_.empty() || active_[static_cast<size_t>(rank)] != 0; }
  // The places to which a rank sends its tokens for an expert, and the number of the first that gets one.
  struct Turns {
    std::vector<Home> homes;
    size_t next = 0;
  };
  Turns turns(Rank sender, int64_t expert) const;
  // Equal for equal placements, and almost always different for different ones: for ranks to compare.
  uint64_t hash() const;

 private:
  ExpertPlacement() = default;

  std::vector<size_t> begin_{0};  // begin of each expert's homes in homes_
  std::vector<Home> homes_;
  std::vector<int32_t> on_rank_;
  std::vector<int> hosts_;       // empty: one host
  std::vector<uint8_t> active_;  // empty: all
};

// The order of the rows that a rank receives.
enum class RowOrder : uint8_t {
  expert,  // one row for each token and expert of this rank: by expert, then by source rank, token, and place in top-k
  rank,    // one row for each token: by source rank, then by token
};

// The routes of the tokens of one step to their experts and back, as one rank sees them. In either order a token is
// sent to a rank once.
//
// Use: construct it with the choices of this rank's tokens; tell() writes for every other rank which tokens go there;
// the caller exchanges these messages; hear() takes those of all ranks. After that the rows and the plans are known.
// Row numbers and token numbers count from 0.
class A2A_API Routing {
 public:
  // The choices of this rank's tokens: top_k experts each, -1 for none.
  struct Choices {
    std::span<const int64_t> experts;  // tokens * top_k
    int64_t tokens = 0;
    int top_k = 0;
  };
  static constexpr int kMostTopK = 64;

  // align: in RowOrder::expert the rows of each expert are padded to a multiple of it; otherwise it is 1. Throws
  // Error(invalid_argument), which names the token, for an expert that does not exist or that a token has twice.
  Routing(std::shared_ptr<const ExpertPlacement> placement, Rank rank, const Choices& choices, RowOrder order,
          int64_t align);

  // ---- this rank's tokens ----

  int64_t tokens() const { return tokens_; }
  int top_k() const { return top_k_; }
  // The number of tokens that go to each rank.
  std::span<const int64_t> sent() const { return sent_counts_; }
  // The choices that count as -1 because no rank that takes part has the expert: token * top_k + place, ascending.
  std::span<const int64_t> dropped() const { return dropped_; }
  // told_bytes() returns the size of the message to that rank, and tell() writes it. `weights` are tokens * top_k or
  // none; they are part of the message.
  size_t told_bytes(Rank to, bool weighted) const {
    return told_bytes(sent_counts_[static_cast<size_t>(to)], weighted);
  }
  size_t told_bytes(int64_t count, bool weighted) const;
  void tell(Rank to, std::span<const float> weights, std::byte* message) const;

  // ---- the rows that come ----

  // counts[p] tokens come from rank p; `messages` are the messages of all ranks to this one, in rank order. Throws
  // Error(backend) when a message is invalid.
  void hear(std::span<const int64_t> counts, bool weighted, std::span<const std::byte> messages);

  int64_t rows() const { return rows_; }  // padding included
  // For each of this rank's experts: the number of its rows, without padding; and the first of them (one entry more:
  // the end).
  std::span<const int64_t> counts() const { return counts_; }
  std::span<const int64_t> begins() const { return begins_; }
  // Writes for each row its source rank and its token there, -1 for padding.
  void sources(int64_t* out) const;
  // Writes, in RowOrder::expert, for each row its local expert, -1 for padding; in RowOrder::rank rows * top_k local
  // experts, -1 for experts that are not on this rank.
  void local_experts(int64_t* out) const;
  // Writes the weights in the same layout, 0 where there is no expert.
  void weights(float* out) const;
  // Returns the padding, the rows that no token fills.
  void padding(std::vector<std::pair<int64_t, int64_t>>& begin_and_count) const;

  // ---- the plans ----

  // Tokens to rows. Buffer i has rows of row_bytes[i] on both sides; the rows of all buffers go the same way. Padding
  // is not written.
  Plan dispatch(std::span<const size_t> row_bytes) const;
  // Rows back to tokens: the sum of each token's rows, in RowOrder::expert in the order of its top-k, in RowOrder::rank
  // in that of the ranks.
  Plan combine(size_t row_bytes) const;
  // The same without a sum, for the backward pass of weights: the output has a row for each token and place in top-k.
  // RowOrder::expert only.
  Plan give_back(size_t row_bytes) const;

 private:
  static constexpr Rank kNobody = -1;

  void choose_homes(const Choices& choices);
  void list_sent();
  void read(std::span<const std::byte> messages, bool weighted);
  void place_by_expert();
  void place_by_rank();
  const int32_t* heard(int64_t arrival) const { return heard_.data() + static_cast<size_t>(arrival) * stride(); }
  size_t stride() const { return 1 + static_cast<size_t>(top_k_); }
  template <class Visit>
  void for_each_row(Visit&& visit) const;

  std::shared_ptr<const ExpertPlacement> placement_;
  Rank rank_;
  int64_t tokens_;
  int top_k_;
  RowOrder order_;
  int64_t align_;

  std::vector<ExpertPlacement::Home> homes_;  // of each choice
  std::vector<int64_t> dropped_;
  std::vector<int64_t> sent_counts_, sent_;  // the tokens that go to each rank, by rank

  std::vector<int64_t> heard_counts_;        // the number of tokens from each rank
  std::vector<int32_t> heard_;               // for each of them, by rank: its number there, and its local experts
  std::vector<float> heard_weights_;         // their weights, if the messages have any
  std::vector<int64_t> places_;              // for each token that comes: its first row
  std::vector<int64_t> back_counts_, back_;  // the rows that go back to each rank, in the order in which they are sent
  RowCopies copies_;                         // for tokens that several experts of this rank want
  std::vector<int64_t> counts_, begins_;
  int64_t rows_ = 0;
};

}  // namespace a2a
