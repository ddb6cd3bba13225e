#include "transport/hosts/turns.h"

#include <algorithm>
#include <ranges>
#include <utility>

#include "core/hash.h"
#include "transport/hosts/runs.h"

namespace a2a::hosts {
namespace {

constexpr size_t kLine = 64;  // of a cache: shares begin at its multiples, as far as elements allow

// Returns a hash of all ranks' parts, on which the ranks have to agree besides dtype and operation. It covers the root
// of an operation that has one.
uint32_t elems_of(std::span<const size_t> parts) {
  Hash hash;
  for (const size_t bytes : parts) hash.add(bytes);
  return static_cast<uint32_t>(hash.value() ^ hash.value() >> 32) | 1;
}

}  // namespace

std::span<const Run> sent_to_all(const Batch& batch, Rank rank, const Places& places) {
  const auto elsewhere = std::ranges::find_if(places.host, [&](int host) { return host != places.host_of(rank); });
  return runs_with(batch.sends, static_cast<Rank>(elsewhere - places.host.begin()));
}

Turns::Turns(const Batch& batch, Rank rank, const Places& places, std::span<const size_t> parts)
    : batch_(batch),
      rank_(rank),
      places_(places),
      parts_(parts),
      home_(places.host_of(rank)),
      mates_(places.ranks_of(home_)),
      elems_(batch.half == Half::whole ? elems_of(parts) : batch.signature.elems) {
  const size_t elem = batch.signature.fold == Fold::none ? 1 : batch.signature.dtype.bytes();
  for (int host = 0; host < places.hosts(); ++host) {
    shares_.push_back(shares(places, host, parts, (kLine + elem - 1) / elem * elem));
  }
}

Batch Turns::terms(Half half) const {
  Batch batch;
  static_cast<Terms&>(batch) = batch_;
  batch.strides = batch_.strides;
  batch.copy = batch_.copy;
  batch.signature.elems = elems_;
  batch.half = half;
  return batch;
}

std::vector<Piece> Turns::carried(Rank mate) const {
  std::vector<Piece> pieces;
  std::ranges::copy_if(shares_[static_cast<size_t>(home_)], std::back_inserter(pieces),
                       [&](const Piece& piece) { return piece.carrier == mate; });
  return pieces;
}

std::vector<Piece> Turns::owned() const {
  std::vector<Piece> pieces;
  for (int host = 0; host < places_.hosts(); ++host) {
    if (host == home_) continue;
    std::ranges::copy_if(shares_[static_cast<size_t>(host)], std::back_inserter(pieces),
                         [&](const Piece& piece) { return piece.owner == rank_; });
  }
  std::ranges::sort(pieces, {}, &Piece::carrier);
  return pieces;
}

std::unique_ptr<Course> Turns::fold(Scratch& scratch) const {
  auto course = std::make_unique<Course>();
  course->here_first = true;
  Batch& here = course->here.emplace(terms(batch_.half));
  Batch& between = course->between = terms(batch_.half);
  const bool alone = mates_.size() == 1;  // then its share is not copied out of the input
  const auto mine = carried(rank_);
  size_t share = 0;
  for (const Piece& piece : mine) share += alone ? 0 : piece.bytes;
  const size_t own = parts_[static_cast<size_t>(rank_)], elsewhere = static_cast<size_t>(places_.hosts()) - 1;
  course->memory = scratch.take(own + share + elsewhere * own);
  std::byte* const memory = course->memory.get();

  for (size_t i = 0; i < mates_.size(); ++i) {
    const auto seat = static_cast<Rank>(i);
    append_runs(here.sends, seat, runs_with(batch_.sends, mates_[i]));
    for (const Piece& piece : alone ? std::vector<Piece>() : carried(mates_[i])) {
      append_piece(here.sends, seat, runs_with(batch_.sends, piece.owner), piece.offset, piece.bytes);
    }
    if (own + share > 0) here.recvs.push_back({seat, memory, own + share});
  }

  std::byte* next = memory + own;
  for (const Piece& piece : mine) {
    if (alone) {
      append_piece(between.sends, piece.owner, runs_with(batch_.sends, piece.owner), piece.offset, piece.bytes);
    } else {
      between.sends.push_back({piece.owner, std::exchange(next, next + piece.bytes), piece.bytes});
    }
  }
  if (own == 0) return course;
  std::vector<HostFold::From> hosts;
  for (int host = 0; host < places_.hosts(); ++host) {
    std::byte* const part = host == home_ ? memory : std::exchange(next, next + own);
    hosts.push_back({places_.ranks_of(host).size(), {part}});
  }
  for (const Piece& piece : owned()) {
    std::byte* const part = hosts[static_cast<size_t>(places_.host_of(piece.carrier))].parts[0];
    between.recvs.push_back({piece.carrier, part + piece.offset, piece.bytes});
  }
  const auto output = runs_with(batch_.recvs, rank_);
  course->fold.emplace(batch_.signature, output, std::move(hosts));
  return course;
}

std::unique_ptr<Course> Turns::hand_on() const {
  auto course = std::make_unique<Course>();
  if (batch_.half == Half::whole) course->here = terms(Half::first);
  Batch& between = course->between = terms(batch_.half);
  const auto own = sent_to_all(batch_, rank_, places_);
  for (const Piece& piece : owned()) append_piece(between.sends, piece.carrier, own, piece.offset, piece.bytes);
  const auto append_received = [&](std::vector<Run>& to, Rank peer, const Piece& piece) {
    append_piece(to, peer, runs_with(batch_.recvs, piece.owner), piece.offset, piece.bytes);
  };
  for (const Piece& piece : carried(rank_)) append_received(between.recvs, piece.owner, piece);

  Batch& again = course->here_again.emplace(terms(Half::second));
  for (size_t i = 0; i < mates_.size(); ++i) {
    const auto seat = static_cast<Rank>(i);
    append_runs(again.sends, seat, runs_with(batch_.sends, mates_[i]));
    append_runs(again.recvs, seat, runs_with(batch_.recvs, mates_[i]));
    if (mates_[i] == rank_) continue;
    for (const Piece& piece : carried(rank_)) append_received(again.sends, seat, piece);
    for (const Piece& piece : carried(mates_[i])) append_received(again.recvs, seat, piece);
  }
  return course;
}

}  // namespace a2a::hosts
