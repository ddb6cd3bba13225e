// Checks for overlapping buffers of reductions. Not public.
#pragma once

#include "a2a/communicator.h"
#include "a2a/plan.h"

namespace a2a {

// Whether the output overlaps memory that this rank or a peer may still read while this rank folds. For tensors with
// gaps it may also return true if the output only lies between their elements.
bool overwrites_what_is_sent(const Plan& plan, const void* send, const void* recv, const Call& call);

// Whether it is one exchange of the caller's own memory, for a transport that folds.
inline bool is_simple_reduction(const Plan& plan, const void* send, const void* recv, const Call& call) {
  return plan.next() == nullptr && !overwrites_what_is_sent(plan, send, recv, call);
}

}  // namespace a2a
