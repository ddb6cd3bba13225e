// Copies of rows after they have arrived.
#pragma once

#include <memory>
#include <span>

#include "a2a/plan.h"
#include "core/after_work.h"

namespace a2a {

// Returns the operation `op` with the copies of its received rows within `recv` (Plan::copies).
std::shared_ptr<AfterWork> copying(std::shared_ptr<Work> work, Op op, const Plan& plan, std::span<void* const> recv);

}  // namespace a2a
