// Checks for overlapping buffers of folds. Not public.
#pragma once

#include "a2a/communicator.h"
#include "a2a/plan.h"

namespace a2a {

// Whether the output overlaps memory that this rank or a peer may still read while this rank folds. For tensors with
// gaps it may also return true if the output only lies between their elements.
bool overwrites_what_is_sent(const Plan& plan, const void* send, const void* recv, const Call& call);

}  // namespace a2a
