// Ascend's rank table: a JSON file that says which ranks a job has and where they are.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "a2a/types.h"

namespace a2a::atb {

// One rank of a table. Fields that the file may leave out are empty then.
struct RankPlace {
  std::string server_id;
  std::string host_ip;
  std::string device_id;  // physical
  std::string device_ip;
  std::string super_device_id;  // version 1.2
  std::string super_pod_id;     // version 1.2
};

struct RankTable {
  std::string version;           // "1.0" or "1.2"
  std::vector<RankPlace> ranks;  // index = rank
  int servers = 0;

  int size() const { return static_cast<int>(ranks.size()); }
  // Equal for two tables with the same contents, whatever their spelling; almost always different for other tables.
  A2A_API std::string identity() const;
};

// Reads a table of version 1.0 or 1.2. The JSON has to be strict: no comments, no trailing commas, no name twice in one
// object, valid UTF-8. Unknown keys are ignored. Throws Error(invalid_argument) that names the file, the JSON path and
// the value of the first mistake.
A2A_API RankTable read_rank_table(const std::string& file);
// The same for text that is already in memory; `name` stands for the file in messages.
A2A_API RankTable parse_rank_table(std::string_view text, const std::string& name);

}  // namespace a2a::atb
