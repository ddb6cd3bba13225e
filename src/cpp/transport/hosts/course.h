// The steps of reductions, and of operations that send the same bytes to all ranks.
#pragma once

#include <memory>
#include <optional>

#include "core/schedule.h"
#include "transport/hosts/host_fold.h"
#include "transport/hosts/places.h"

namespace a2a::hosts {

// Usually the ranks of a host exchange while the hosts do. Where that saves bytes between hosts, they take *turns*. In
// a reduction, the ranks of a host first fold their parts into one, and only that goes to other hosts. Bytes that all
// ranks get come to each host once, and its ranks pass them on.
//
// An operation with turns goes on only when no two ranks disagree, on whatever host: a rank that missed the
// disagreement would wait for the others. So the ranks of a host always compare first. The facts of every pair contain
// all terms of the operation, even if the pair exchanges no bytes, so each rank notices a disagreement itself. The
// second half of an operation follows only if all ranks agreed in the first.
struct Course {
  std::optional<Batch> here;  // between the ranks of this host, by seat
  bool here_first = false;    // before `between`; otherwise at the same time
  Batch between;              // with ranks of other hosts
  std::optional<Batch> here_again;
  std::shared_ptr<std::byte[]> memory;  // for parts that are folded
  std::optional<HostFold> fold;
};

// Memory for courses. take() reuses the memory of the last course if that is over.
class Scratch {
 public:
  std::shared_ptr<std::byte[]> take(size_t bytes);

 private:
  std::shared_ptr<std::byte[]> latest_;
  size_t bytes_ = 0;
};

// The most bytes of an allreduce in one exchange. A larger one goes in parts, whose halves take turns.
size_t most_at_once(const Places& places);

// Returns nullptr for operations without such steps: they run as the batch says. Throws std::bad_alloc.
std::unique_ptr<Course> course_of(const Batch& batch, Rank rank, const Places& places, Scratch& scratch);

}  // namespace a2a::hosts
