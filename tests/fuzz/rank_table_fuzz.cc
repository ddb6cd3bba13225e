// Any text as a rank table: a table that makes sense, or a refusal that names the file.
#include "a2a/atb/rank_table.h"
#include "input.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  const std::string_view text(reinterpret_cast<const char*>(data), bytes);
  try {
    const a2a::atb::RankTable table = a2a::atb::parse_rank_table(text, "table.json");
    fuzz::require(table.size() > 0 && table.servers > 0 && table.servers <= table.size(), "an empty table was taken");
    fuzz::require(!table.identity().empty(), "a table has no identity");
  } catch (const a2a::Error& error) {
    const std::string what = error.what();
    fuzz::require(error.code() == a2a::Code::invalid_argument && what.starts_with("table.json: "), "a strange refusal");
  }
  return 0;
}
