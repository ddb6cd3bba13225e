#include "a2a/experts.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <string>

#include "runtime/hash.h"

namespace a2a {
namespace {

[[noreturn]] void refuse(const std::string& text) { throw Error(Code::invalid_argument, text); }

template <class T>
std::vector<size_t> begins_of(std::span<const T> counts) {
  std::vector<size_t> begins(counts.size() + 1);
  for (size_t i = 0; i < counts.size(); ++i) begins[i + 1] = begins[i] + static_cast<size_t>(counts[i]);
  return begins;
}

}  // namespace

// ---- placement ------------------------------------------------------------------------------------------------------

ExpertPlacement::ExpertPlacement(int size, std::span<const std::vector<Rank>> ranks, const Options& options)
    : hosts_(options.hosts.begin(), options.hosts.end()), active_(options.active.begin(), options.active.end()) {
  on_rank_.resize(static_cast<size_t>(size));
  const auto fits = [&](size_t length) { return length == 0 || length == on_rank_.size(); };
  if (!fits(hosts_.size()) || !fits(active_.size())) {
    refuse(std::to_string(hosts_.size()) + " hosts and " + std::to_string(active_.size()) + " marks for " +
           std::to_string(size) + " ranks");
  }
  std::vector<size_t> has(on_rank_.size());  // the last expert for which the rank was listed, plus 1
  begin_.reserve(ranks.size() + 1);
  for (size_t e = 0; e < ranks.size(); ++e) {
    if (ranks[e].empty() && !options.may_lack) {
      refuse("expert_to_rank[" + std::to_string(e) + "] is empty: the expert has no rank");
    }
    for (const Rank rank : ranks[e]) {
      const std::string what = "expert_to_rank[" + std::to_string(e) + "] has rank " + std::to_string(rank);
      if (rank < 0 || rank >= size) refuse(what + ", but the group has size " + std::to_string(size));
      if (std::exchange(has[static_cast<size_t>(rank)], e + 1) == e + 1) refuse(what + " twice");
      const int32_t local = on_rank_[static_cast<size_t>(rank)]++;  // also where the rank takes no part
      if (active(rank)) homes_.push_back({rank, local});
    }
    begin_.push_back(homes_.size());
  }
}

ExpertPlacement ExpertPlacement::blocks(int size, int64_t experts) {
  if (experts < 0 || experts % size != 0) {
    refuse("num_experts is " + std::to_string(experts) + ", which " + std::to_string(size) +
           " ranks cannot share equally; say with expert_to_rank where each expert lives");
  }
  ExpertPlacement made;
  const int64_t each = experts / size;
  made.on_rank_.assign(static_cast<size_t>(size), static_cast<int32_t>(each));
  made.begin_.resize(static_cast<size_t>(experts) + 1);
  std::iota(made.begin_.begin(), made.begin_.end(), size_t{0});
  made.homes_.reserve(static_cast<size_t>(experts));
  for (int64_t e = 0; e < experts; ++e) {
    made.homes_.push_back({static_cast<Rank>(e / each), static_cast<int32_t>(e % each)});
  }
  return made;
}

uint64_t ExpertPlacement::hash() const {
  Hash hash;
  for (const size_t begin : begin_) hash.add(static_cast<uint64_t>(begin));
  for (const Home& home : homes_) hash.add(static_cast<uint64_t>(home.rank));
  for (const uint8_t active : active_) hash.add(static_cast<uint64_t>(active != 0));
  return hash.value();
}

ExpertPlacement::Turns ExpertPlacement::turns(Rank sender, int64_t expert) const {
  const auto all = homes(expert);
  Turns made{{all.begin(), all.end()}, static_cast<size_t>(sender)};
  if (hosts_.empty() || all.size() < 2) return made;
  const int here = hosts_[static_cast<size_t>(sender)];
  const auto elsewhere = [&](const Home& home) { return hosts_[static_cast<size_t>(home.rank)] != here; };
  if (std::ranges::all_of(all, elsewhere)) return made;
  std::erase_if(made.homes, elsewhere);
  made.next = static_cast<size_t>(std::count(hosts_.begin(), hosts_.begin() + sender, here));
  return made;
}

// ---- this rank's tokens ---------------------------------------------------------------------------------------------

Routing::Routing(std::shared_ptr<const ExpertPlacement> placement, Rank rank, const Choices& choices, RowOrder order,
                 int64_t align)
    : placement_(std::move(placement)),
      rank_(rank),
      tokens_(choices.tokens),
      top_k_(choices.top_k),
      order_(order),
      align_(align) {
  if (align < 1 || (order == RowOrder::rank && align != 1)) {
    refuse("align is " + std::to_string(align) + "; it is at least 1, and 1 in the order by rank");
  }
  if (top_k_ < 0 || top_k_ > kMostTopK) {
    refuse("topk_idx has " + std::to_string(top_k_) + " columns; at most " + std::to_string(kMostTopK));
  }
  if (tokens_ < 0 || choices.experts.size() != static_cast<size_t>(tokens_) * static_cast<size_t>(top_k_)) {
    refuse(std::to_string(choices.experts.size()) + " choices for " + std::to_string(tokens_) + " tokens");
  }
  constexpr int64_t kMostTokens = int64_t{1} << 31;
  if (tokens_ >= kMostTokens) refuse("topk_idx has " + std::to_string(tokens_) + " rows; fewer than 2^31 go at once");
  choose_homes(choices);
  list_sent();
}

void Routing::choose_homes(const Choices& choices) {
  const int64_t experts = placement_->experts();
  const auto top_k = static_cast<size_t>(top_k_);
  std::vector<int64_t> last(static_cast<size_t>(experts), -1);              // the last token that has chosen it
  std::vector<ExpertPlacement::Turns> turns(static_cast<size_t>(experts));  // made at the first use
  const bool active = placement_->active(rank_);
  homes_.resize(choices.experts.size());
  for (size_t i = 0; i < homes_.size(); ++i) {
    const int64_t expert = choices.experts[i], token = static_cast<int64_t>(i / top_k);
    if (expert == -1) {
      homes_[i] = {kNobody, -1};
      continue;
    }
    const auto what = [&] {
      return "topk_idx[" + std::to_string(token) + "][" + std::to_string(i % top_k) + "] is " + std::to_string(expert);
    };
    if (expert < -1 || expert >= experts) {
      refuse(what() + ", but there are " + std::to_string(experts) + " experts, and -1 for none");
    }
    const auto e = static_cast<size_t>(expert);
    if (last[e] == token) refuse(what() + ", which the token has already");
    last[e] = token;
    const auto homes = placement_->homes(expert);
    if (homes.empty() || !active) {
      homes_[i] = {kNobody, -1};
      dropped_.push_back(static_cast<int64_t>(i));
    } else if (homes.size() == 1) {
      homes_[i] = homes[0];
    } else {
      auto& turn = turns[e];
      if (turn.homes.empty()) turn = placement_->turns(rank_, expert);
      homes_[i] = turn.homes[turn.next++ % turn.homes.size()];
    }
  }
}

// Lists the tokens that go to each rank; a token is listed once for a rank.
void Routing::list_sent() {
  const auto ranks = static_cast<size_t>(placement_->size()), top_k = static_cast<size_t>(top_k_);
  std::vector<int64_t> last(ranks, -1);
  const auto visit = [&](auto&& to) {
    std::ranges::fill(last, -1);
    for (int64_t token = 0; token < tokens_; ++token) {
      for (size_t k = 0; k < top_k; ++k) {
        const Rank rank = homes_[static_cast<size_t>(token) * top_k + k].rank;
        if (rank == kNobody || last[static_cast<size_t>(rank)] == token) continue;
        last[static_cast<size_t>(rank)] = token;
        to(static_cast<size_t>(rank), token);
      }
    }
  };
  sent_counts_.assign(ranks, 0);
  visit([&](size_t rank, int64_t) { ++sent_counts_[rank]; });
  std::vector<size_t> next = begins_of<int64_t>(sent_counts_);
  sent_.resize(next.back());
  visit([&](size_t rank, int64_t token) { sent_[next[rank]++] = token; });
}

size_t Routing::told_bytes(int64_t count, bool weighted) const {
  const auto top_k = static_cast<size_t>(top_k_);
  return static_cast<size_t>(count) * (stride() * sizeof(int32_t) + (weighted ? top_k * sizeof(float) : 0));
}

void Routing::tell(Rank to, std::span<const float> weights, std::byte* message) const {
  const auto begins = begins_of<int64_t>(sent_counts_);
  const auto top_k = static_cast<size_t>(top_k_), rank = static_cast<size_t>(to);
  const std::span<const int64_t> tokens(sent_.data() + begins[rank], static_cast<size_t>(sent_counts_[rank]));
  std::byte* weight = message + tokens.size() * stride() * sizeof(int32_t);
  for (const int64_t token : tokens) {
    const size_t first = static_cast<size_t>(token) * top_k;
    int32_t row[1 + kMostTopK] = {static_cast<int32_t>(token)};
    float of_row[kMostTopK] = {};
    for (size_t k = 0; k < top_k; ++k) {
      const bool there = homes_[first + k].rank == to;
      row[1 + k] = there ? homes_[first + k].local : -1;
      if (there && !weights.empty()) of_row[k] = weights[first + k];
    }
    std::memcpy(message, row, stride() * sizeof(int32_t));
    message += stride() * sizeof(int32_t);
    if (weights.empty()) continue;
    std::memcpy(weight, of_row, top_k * sizeof(float));
    weight += top_k * sizeof(float);
  }
}

// ---- the rows that come ---------------------------------------------------------------------------------------------

void Routing::hear(std::span<const int64_t> counts, bool weighted, std::span<const std::byte> messages) {
  heard_counts_.assign(counts.begin(), counts.end());
  read(messages, weighted);
  if (order_ == RowOrder::expert) {
    place_by_expert();
  } else {
    place_by_rank();
  }
}

// Reads the messages of the peers. Checks all that they wrote before it is used.
void Routing::read(std::span<const std::byte> messages, bool weighted) {
  const auto top_k = static_cast<size_t>(top_k_);
  size_t total = 0, bytes = 0;
  for (const int64_t count : heard_counts_) {
    if (count < 0 || count > int64_t{1} << 31)
      throw Error(Code::backend, "a peer announces a number of tokens that cannot be");
    total += static_cast<size_t>(count);
    bytes += told_bytes(count, weighted);
  }
  if (bytes != messages.size()) throw Error(Code::backend, "what peers tell of their tokens has another length");
  heard_.resize(total * stride());
  heard_weights_.resize(weighted ? total * top_k : 0);
  const int32_t experts = placement_->experts_on(rank_);
  const std::byte* from = messages.data();
  size_t at = 0;
  for (size_t peer = 0; peer < heard_counts_.size(); ++peer) {
    const auto count = static_cast<size_t>(heard_counts_[peer]);
    const size_t ints = count * stride() * sizeof(int32_t), floats = weighted ? count * top_k * sizeof(float) : 0;
    if (count > 0) {
      std::memcpy(heard_.data() + at * stride(), from, ints);
      if (weighted) std::memcpy(heard_weights_.data() + at * top_k, from + ints, floats);
    }
    from += ints + floats;
    int32_t before = -1;
    for (const size_t end = at + count; at < end; ++at) {
      const std::span<const int32_t> row(heard_.data() + at * stride(), stride());
      const auto possible = [&](int32_t local) { return local >= -1 && local < experts; };
      const auto here = [](int32_t local) { return local >= 0; };
      if (row[0] <= before || !std::ranges::all_of(row.subspan(1), possible) ||
          std::ranges::none_of(row.subspan(1), here)) {
        throw Error(Code::backend, "rank " + std::to_string(peer) + " tells nonsense of its tokens");
      }
      before = row[0];
    }
  }
}

// Calls visit(arrival, place in top-k, local expert) for each row without padding, in the order in which tokens arrive.
template <class Visit>
void Routing::for_each_row(Visit&& visit) const {
  const auto arrivals = static_cast<int64_t>(heard_.size() / stride());
  for (int64_t arrival = 0; arrival < arrivals; ++arrival) {
    const int32_t* const locals = heard(arrival) + 1;
    for (int k = 0; k < top_k_; ++k) {
      if (locals[k] >= 0) visit(arrival, k, locals[k]);
    }
  }
}

void Routing::place_by_expert() {
  const auto experts = static_cast<size_t>(placement_->experts_on(rank_));
  counts_.assign(experts, 0);
  for_each_row([&](int64_t, int, int32_t local) { ++counts_[static_cast<size_t>(local)]; });
  begins_.assign(experts + 1, 0);
  for (size_t e = 0; e < experts; ++e) begins_[e + 1] = begins_[e] + (counts_[e] + align_ - 1) / align_ * align_;
  rows_ = begins_.back();

  std::vector<int64_t> next(begins_.begin(), begins_.end());
  places_.assign(heard_.size() / stride(), -1);
  back_counts_.assign(heard_counts_.size(), 0);
  back_.clear();
  copies_ = {.begins = std::vector<size_t>(heard_counts_.size() + 1), .copies = {}, .row_bytes = {}};
  const auto ends = begins_of<int64_t>(heard_counts_);
  size_t source = 0;
  for_each_row([&](int64_t arrival, int, int32_t local) {
    while (static_cast<size_t>(arrival) >= ends[source + 1]) copies_.begins[++source] = copies_.copies.size();
    const int64_t row = next[static_cast<size_t>(local)]++;
    int64_t& first = places_[static_cast<size_t>(arrival)];
    if (first < 0) {
      first = row;
    } else {
      copies_.copies.push_back({first, row});
    }
    back_.push_back(row);
    ++back_counts_[source];
  });
  while (source < heard_counts_.size()) copies_.begins[++source] = copies_.copies.size();
}

void Routing::place_by_rank() {
  counts_.assign(static_cast<size_t>(placement_->experts_on(rank_)), 0);
  for_each_row([&](int64_t, int, int32_t local) { ++counts_[static_cast<size_t>(local)]; });
  begins_.clear();
  rows_ = static_cast<int64_t>(heard_.size() / stride());
  places_.resize(static_cast<size_t>(rows_));
  std::iota(places_.begin(), places_.end(), int64_t{0});
  back_counts_ = heard_counts_;
  back_ = places_;
  copies_ = {};
}

void Routing::sources(int64_t* out) const {
  std::fill_n(out, 2 * rows_, int64_t{-1});
  size_t arrival = 0;
  for (size_t peer = 0; peer < heard_counts_.size(); ++peer) {
    for (int64_t i = 0; i < heard_counts_[peer]; ++i, ++arrival) {
      int64_t* const row = out + 2 * places_[arrival];
      row[0] = static_cast<int64_t>(peer);
      row[1] = heard(static_cast<int64_t>(arrival))[0];
    }
  }
  for (const auto& [from, to] : copies_.copies) std::copy_n(out + 2 * from, 2, out + 2 * to);
}

void Routing::local_experts(int64_t* out) const {
  if (order_ == RowOrder::rank) {
    for (int64_t row = 0; row < rows_; ++row) out = std::copy_n(heard(row) + 1, top_k_, out);
    return;
  }
  std::fill_n(out, rows_, int64_t{-1});
  for (size_t e = 0; e < counts_.size(); ++e) std::fill_n(out + begins_[e], counts_[e], static_cast<int64_t>(e));
}

void Routing::weights(float* out) const {
  const auto top_k = static_cast<size_t>(top_k_);
  if (order_ == RowOrder::rank) {
    std::ranges::copy(heard_weights_, out);
    return;
  }
  std::fill_n(out, rows_, 0.0f);
  auto row = back_.begin();
  for_each_row([&](int64_t arrival, int k, int32_t) {
    out[*row++] = heard_weights_[static_cast<size_t>(arrival) * top_k + static_cast<size_t>(k)];
  });
}

void Routing::padding(std::vector<std::pair<int64_t, int64_t>>& begin_and_count) const {
  begin_and_count.clear();
  for (size_t e = 0; e + 1 < begins_.size(); ++e) {
    const int64_t end = begins_[e] + counts_[e];
    if (end < begins_[e + 1]) begin_and_count.emplace_back(end, begins_[e + 1] - end);
  }
}

// ---- the plans ------------------------------------------------------------------------------------------------------

Plan Routing::dispatch(std::span<const size_t> row_bytes) const {
  std::shared_ptr<RowCopies> copies;
  if (!copies_.copies.empty()) {
    copies = std::make_shared<RowCopies>(copies_);
    copies->row_bytes.assign(row_bytes.begin(), row_bytes.end());
  }
  return Plan::rows(rank_, placement_->size(), row_bytes, {sent_counts_, sent_}, tokens_, {heard_counts_, places_},
                    rows_, std::move(copies));
}

Plan Routing::combine(size_t row_bytes) const {
  auto summands = std::make_shared<Summands>();
  const auto top_k = static_cast<size_t>(top_k_);
  summands->terms = top_k;
  summands->sources.reserve(homes_.size());
  for (const auto& home : homes_) summands->sources.push_back(home.rank);
  if (top_k == 0) summands->terms = 1, summands->sources.assign(static_cast<size_t>(tokens_), kNobody);
  if (order_ == RowOrder::rank) {
    for (size_t first = 0; first < homes_.size(); first += top_k) {
      const std::span<Rank> ranks(summands->sources.data() + first, top_k);
      std::ranges::sort(ranks);
      Rank last = kNobody;
      for (Rank& rank : ranks) rank = std::exchange(last, rank) == rank ? kNobody : rank;
    }
  }
  return Plan::weighted_sum(rank_, placement_->size(), row_bytes, {back_counts_, back_}, rows_, tokens_,
                            std::move(summands));
}

Plan Routing::give_back(size_t row_bytes) const {
  std::vector<int64_t> counts(static_cast<size_t>(placement_->size()));
  for (const auto& home : homes_) {
    if (home.rank != kNobody) ++counts[static_cast<size_t>(home.rank)];
  }
  auto next = begins_of<int64_t>(counts);
  std::vector<int64_t> places(next.back());
  for (size_t i = 0; i < homes_.size(); ++i) {
    if (homes_[i].rank != kNobody) places[next[static_cast<size_t>(homes_[i].rank)]++] = static_cast<int64_t>(i);
  }
  return Plan::rows(rank_, placement_->size(), {&row_bytes, 1}, {back_counts_, back_}, rows_, {counts, places},
                    static_cast<int64_t>(homes_.size()));
}

}  // namespace a2a
