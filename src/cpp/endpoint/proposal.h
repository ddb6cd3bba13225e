// The first message of an endpoint to each other one of its list. Not public.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "a2a/types.h"
#include "bootstrap/sha256.h"

namespace a2a::endpoint {

// How often an endpoint has failed in a generation. It may try it again.
struct Attempts {
  int64_t generation = 0;
  uint64_t failed = 0;
};

struct Proposal {
  int64_t generation = 0;
  int64_t former = -1;      // the last generation of the sender
  Digest former_list{};     // and its list
  Rank place = 0;           // of the sender in its list
  uint64_t connection = 0;  // the number of the connection of the network that it has with the receiver; 0: none
  Digest list{};
  std::string words;             // the list, for the texts of errors
  std::vector<Attempts> failed;  // Standing::failed

  uint64_t times_failed(int64_t which) const {
    const auto attempts = std::ranges::find(failed, which, &Attempts::generation);
    return attempts == failed.end() ? 0 : attempts->failed;
  }
};

std::string pack(const Proposal& proposal);
// Returns the proposal; nullopt when the text is none of this version.
std::optional<Proposal> unpack_proposal(const std::string& text);

}  // namespace a2a::endpoint
