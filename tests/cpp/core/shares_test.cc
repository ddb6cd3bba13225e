#include "core/stages/shares.h"

#include <algorithm>

#include "check.h"
#include "core/random_topology.h"

using namespace a2a;
using check::Random;
using check_plans::at;
using check_plans::random_topology;

TEST("the ranks of a host share all that the others have, evenly") {
  Random random(check::seed());
  for (int round = 0; round < 300; ++round) {
    const check::Note note("round", static_cast<uint64_t>(round));
    const Topology topology = random_topology(random);
    const size_t unit = random.in(size_t{1}, size_t{80});
    std::vector<size_t> parts;
    for (Rank rank = 0; rank < topology.size(); ++rank) {
      parts.push_back(random.chance(0.3) ? 0 : unit * random.in(size_t{0}, size_t{50}));
    }
    for (int host = 0; host < topology.hosts(); ++host) {
      std::vector<size_t> seen(parts.size()), carried(parts.size());
      size_t all = 0;
      for (const Piece& piece : shares(topology, host, parts, unit)) {
        CHECK(topology.host_of(piece.owner) != host && topology.host_of(piece.carrier) == host && piece.bytes > 0);
        CHECK_EQ(piece.offset, seen[at(piece.owner)]);
        seen[at(piece.owner)] += piece.bytes;
        carried[at(piece.carrier)] += piece.bytes;
        all += piece.bytes;
      }
      const size_t fair = all / topology.ranks_of(host).size() + unit;
      for (Rank rank = 0; rank < topology.size(); ++rank) {
        CHECK_EQ(seen[at(rank)], topology.host_of(rank) == host ? 0 : parts[at(rank)]);
        CHECK(carried[at(rank)] <= fair);
      }
    }
  }
}
