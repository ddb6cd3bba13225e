// Copies of rows after they have arrived.
#pragma once

#include <memory>
#include <span>

#include "a2a/plan.h"
#include "core/after_work.h"

namespace a2a {

// The memory of the copies of received rows within `recv` (Plan::copies).
std::shared_ptr<const Footprint> copied_rows(const Plan& plan, std::span<void* const> recv);
// Returns the operation `op` with these copies.
std::shared_ptr<AfterWork> copying(std::shared_ptr<Work> work, Op op, const Plan& plan, std::span<void* const> recv,
                                   std::shared_ptr<const Footprint> memory);

}  // namespace a2a
