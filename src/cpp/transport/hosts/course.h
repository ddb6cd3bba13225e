// How an operation goes that is not just each rank's bytes to each other: a reduction, and what sends the same to all.
#pragma once

#include <memory>
#include <optional>

#include "core/schedule.h"
#include "transport/hosts/host_fold.h"
#include "transport/hosts/places.h"

namespace a2a::hosts {

// As a rule the ranks of a host exchange while hosts do. Where that saves bytes between hosts, they take *turns*: of a
// reduction the ranks of a host make one part first, and only that goes on; what all ranks get comes to each host once,
// and is handed on there.
//
// What takes turns goes on only when no two ranks disagree, wherever they are: a rank that does not notice would wait
// for the others. So the ranks of a host compare at the beginning in either case, and all terms of the operation are in
// the facts of every pair, whether it exchanges bytes or not: then each rank notices by itself. The second half of an
// operation follows a first one in which all have agreed.
struct Course {
  std::optional<Batch> here;  // the ranks of this host, by their places on it
  bool here_first = false;    // otherwise at once with the next
  Batch between;              // and ranks of other hosts
  std::optional<Batch> here_again;
  std::shared_ptr<std::byte[]> memory;  // where parts arrive that are folded
  std::optional<HostFold> fold;
};

// Memory for courses: that of one that is over serves the next.
class Scratch {
 public:
  std::shared_ptr<std::byte[]> take(size_t bytes);

 private:
  std::shared_ptr<std::byte[]> latest_;
  size_t bytes_ = 0;
};

// The most bytes of an allreduce that goes in one exchange and not in parts, whose halves take turns.
size_t most_at_once(const Places& places);

// Nothing for operations that need none: the batch says it all. Throws std::bad_alloc.
std::unique_ptr<Course> course_of(const Batch& batch, Rank rank, const Places& places, Scratch& scratch);

}  // namespace a2a::hosts
