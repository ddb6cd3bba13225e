// What is left to do with rows when they have come.
#pragma once

#include <memory>
#include <span>

#include "a2a/plan.h"
#include "a2a/work.h"

namespace a2a {

// The same operation, of which the rows that come are also copied within `recv` (Plan::copies).
std::shared_ptr<Work> copying(std::shared_ptr<Work> work, const Plan& plan, std::span<void* const> recv);

}  // namespace a2a
