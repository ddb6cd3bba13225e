// What a reduction needs around the operations of a transport. Not public.
#pragma once

#include "a2a/communicator.h"
#include "a2a/plan.h"

namespace a2a {

// Whether the output lies where something is that this rank or a peer still reads while this rank folds. Of tensors
// with gaps it may say so although only what lies between their elements is shared.
bool overwrites_what_is_sent(const Plan& plan, const void* send, const void* recv, const Call& call);

// Whether it is one exchange of the caller's own memory, for a transport that folds.
inline bool is_simple_reduction(const Plan& plan, const void* send, const void* recv, const Call& call) {
  return plan.next() == nullptr && !overwrites_what_is_sent(plan, send, recv, call);
}

}  // namespace a2a
