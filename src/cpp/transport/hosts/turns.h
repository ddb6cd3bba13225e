// Operations in which the ranks of a host take turns with the network: see Course.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "transport/hosts/course.h"
#include "transport/hosts/shares.h"

namespace a2a::hosts {

class Turns {
 public:
  // Refers to all these. `parts` as for shares().
  Turns(const Batch& batch, Rank rank, const Places& places, std::span<const size_t> parts);

  // What all ranks have for one is folded there. Here: each rank folds what the ranks of this host have for itself, and
  // its share of what they have for ranks elsewhere. Between hosts: these shares go to those ranks.
  std::unique_ptr<Course> fold(Scratch& scratch) const;

  // What each rank has goes to all. Between hosts: it goes to those that carry it to this host, by shares. Here again:
  // each rank hands on its own part, and its share.
  std::unique_ptr<Course> hand_on() const;

 private:
  Batch terms(Half half) const;
  std::vector<Piece> owned() const;             // of this rank's part: who carries them elsewhere
  std::vector<Piece> carried(Rank mate) const;  // what that rank of this host carries

  const Batch& batch_;
  const Rank rank_;
  const Places& places_;
  const std::span<const size_t> parts_;
  const int home_;
  const std::vector<Rank>& mates_;
  uint32_t elems_;                          // see Signature
  std::vector<std::vector<Piece>> shares_;  // by host
};

// What a rank sends to all others alike.
std::span<const Run> sent_to_all(const Batch& batch, Rank rank, const Places& places);

}  // namespace a2a::hosts
