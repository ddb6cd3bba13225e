// NCCL: versions, and the struct of options that grows with them.
#include <cstring>

#include "nvidia/nccl_state.h"

#ifndef A2A_FAKE_NCCL_VERSION
#define A2A_FAKE_NCCL_VERSION 23203
#endif

namespace fake {
namespace {

// Bytes of ncclConfig_t in each version.
size_t config_bytes(unsigned version) {
  const std::pair<unsigned, size_t> sizes[] = {{21700, 24}, {21800, 40}, {22700, 48}, {22800, 72},
                                               {22900, 80}, {23000, 88}, {23100, 96}, {23200, 112}};
  for (const auto& [before, bytes] : sizes) {
    if (version < before) return bytes;
  }
  return sizeof(ncclConfig_t);
}

ncclConfig_t defaults() {
  constexpr int kUnset = NCCL_CONFIG_UNDEF_INT;
  ncclConfig_t config;
  for (size_t at = offsetof(ncclConfig_t, blocking); at < sizeof config; at += sizeof(int)) {
    std::memcpy(reinterpret_cast<char*>(&config) + at, &kUnset, sizeof(int));
  }
  config.netName = config.commName = nullptr;
  config.size = sizeof config;
  config.magic = NCCL_API_MAGIC;
  config.version = static_cast<unsigned>(nccl_version());
  return config;
}

ncclResult_t invalid(const char* attribute, int value) {
  return nccl_refuse(ncclInvalidArgument,
                     std::string("Invalid config ") + attribute + " attribute value " + std::to_string(value));
}

}  // namespace

int nccl_version() { return static_cast<int>(control_number("A2A_FAKE_NCCL_VERSION", A2A_FAKE_NCCL_VERSION)); }

ncclResult_t nccl_config(const ncclConfig_t* config, bool& blocking) {
  const auto version = static_cast<unsigned>(nccl_version());
  ncclConfig_t own = defaults();
  if (config) {
    size_t size;
    std::memcpy(&size, config, sizeof size);
    std::memcpy(&own, config, std::min(size, config_bytes(version)));
    if (own.magic != NCCL_API_MAGIC) {
      return nccl_refuse(ncclInvalidArgument, "ncclConfig_t argument not initialized via NCCL_CONFIG_INITIALIZER");
    }
    // Fields that the program's version did not have say nothing, whatever they hold.
    const size_t known = std::min(config_bytes(own.version), config_bytes(version));
    const ncclConfig_t unset = defaults();
    std::memcpy(reinterpret_cast<char*>(&own) + known, reinterpret_cast<const char*>(&unset) + known,
                sizeof own - known);
    if (version < 21700 && own.blocking == NCCL_CONFIG_UNDEF_INT) return invalid("blocking", own.blocking);
  }
  const auto flag = [](int value) { return value == NCCL_CONFIG_UNDEF_INT || value == 0 || value == 1; };
  if (!flag(own.blocking)) return invalid("blocking", own.blocking);
  if (!flag(own.splitShare)) return invalid("splitShare", own.splitShare);
  const auto positive = [](int value) { return value == NCCL_CONFIG_UNDEF_INT || value > 0; };
  // An unset maximum is less than any minimum: both are set, or none.
  if (!positive(own.minCTAs) || !positive(own.maxCTAs) || own.minCTAs > own.maxCTAs) {
    return nccl_refuse(ncclInvalidArgument, "Invalid config min/max channels attribute value " +
                                                std::to_string(own.minCTAs) + "/" + std::to_string(own.maxCTAs));
  }
  blocking = control_number("NCCL_COMM_BLOCKING", own.blocking == 0 ? 0 : 1) != 0;  // the environment goes first
  return ncclSuccess;
}

}  // namespace fake
