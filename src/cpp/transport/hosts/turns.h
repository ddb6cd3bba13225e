// Operations in which the ranks of a host and the network take turns: see Course.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "transport/hosts/course.h"
#include "transport/hosts/shares.h"

namespace a2a::hosts {

class Turns {
 public:
  // Keeps references to all arguments. `parts` as for shares().
  Turns(const Batch& batch, Rank rank, const Places& places, std::span<const size_t> parts);

  // The course of a reduction. Here: each rank folds the parts that this host's ranks have for itself, and its share of
  // those for ranks of other hosts. Between hosts: the shares go to those ranks.
  std::unique_ptr<Course> fold(Scratch& scratch) const;

  // The course of an operation that sends each rank's part to all. Between hosts: the parts go to their carriers on
  // this host, by shares. Here again: each rank passes on its own part and its share.
  std::unique_ptr<Course> hand_on() const;

 private:
  Batch terms(Half half) const;
  std::vector<Piece> owned() const;             // of this rank's part, with the carriers on other hosts
  std::vector<Piece> carried(Rank mate) const;  // those that this rank of this host carries

  const Batch& batch_;
  const Rank rank_;
  const Places& places_;
  const std::span<const size_t> parts_;
  const int home_;
  const std::vector<Rank>& mates_;
  uint32_t elems_;                          // see Signature
  std::vector<std::vector<Piece>> shares_;  // by host
};

// Returns the part that a rank sends to all others.
std::span<const Run> sent_to_all(const Batch& batch, Rank rank, const Places& places);

}  // namespace a2a::hosts
