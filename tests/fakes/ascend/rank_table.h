// Rank tables: the JSON files that tell HCCL which device is which rank.
#pragma once

#include <cstdint>
#include <string>

namespace fake {

// Reads and checks a table strictly. False, and why, when it is wrong or has no such rank. `name` is the same for all
// ranks that read this file, and another each time they do.
bool read_rank_table(const std::string& path, uint32_t rank, uint32_t& ranks, std::string& name, std::string& why);

}  // namespace fake
