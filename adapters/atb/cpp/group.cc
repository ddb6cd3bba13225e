#include "group.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <tuple>
#include <type_traits>

#include "a2a/libraries.h"
#include "failure.h"
#include "json.h"

namespace a2a::atb {
namespace {

using infer::AllToAllVParam;
using infer::AllToAllVV2Param;

constexpr size_t kLongestDomain = 128;

constexpr const char* kBackends[] = {"hccl", "shm", "nccl", "mpi", "auto"};

// ATB's "domain:megabytes" (both decimal) names the domain and the size of its buffers on the device.
struct Domain {
  std::string name;
  std::optional<std::string> megabytes;
};

Domain split_domain(const std::string& text) {
  const size_t colon = text.find(':');
  const auto digits = [](const std::string& part) {
    return !part.empty() && std::ranges::all_of(part, [](char c) { return c >= '0' && c <= '9'; });
  };
  if (colon == std::string::npos) return {text, {}};
  const std::string name = text.substr(0, colon), size = text.substr(colon + 1);
  if (!digits(name) || !digits(size)) return {text, {}};
  return {name, size};
}

// Returns RANK_ID, the variable in which Ascend's launchers give a process its place in the rank table.
std::optional<int> rank_from_environment() {
  const char* const text = std::getenv("RANK_ID");
  if (text == nullptr) return std::nullopt;
  const std::string value = text;
  int rank = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), rank);
  if (error != std::errc() || end != value.data() + value.size()) {
    refuse(ERROR_INVALID_PARAM, "RANK_ID=", value, " in the environment is not an integer");
  }
  return rank;
}

void check_ranges(const Group& group) {
  if (group.size <= 0) refuse(ERROR_INVALID_PARAM, "rankSize [", group.size, "] is invalid, it should be at least 1");
  if (group.rank < 0 || group.rank >= group.size) {
    refuse(ERROR_INVALID_PARAM, "rank [", group.rank, "] should be >= 0 and smaller than rankSize [", group.size, "]");
  }
  if (group.root < 0 || group.root >= group.size) {
    refuse(ERROR_INVALID_PARAM, "rankRoot [", group.root, "] should be >= 0 and smaller than rankSize [", group.size,
           "]");
  }
}

void check_mode_and_domain(const Group& group) {
  if (group.mode != infer::COMM_MULTI_PROCESS && group.mode != infer::COMM_MULTI_THREAD) {
    refuse(ERROR_INVALID_PARAM, "commMode: ", static_cast<int>(group.mode),
           " is invalid, only support COMM_MULTI_PROCESS (0) and COMM_MULTI_THREAD (1)");
  }
  if (group.domain.size() > kLongestDomain) {
    refuse(ERROR_INVALID_PARAM, "len(commDomain) is illegal: ", group.domain.size(),
           " bytes, should be less than or equal to ", kLongestDomain);
  }
}

// Reads the table and takes rank and size from it if the program has not set them.
void read_table(Group& group) {
  group.table = read_rank_table(group.table_file);
  group.table_file = std::filesystem::canonical(group.table_file).string();
  if (group.size == 0) {
    group.size = group.table.size();
    const bool left_out = group.rank == 0 || group.rank == -1;  // the defaults of the two structs
    if (left_out) group.rank = rank_from_environment().value_or(0);
  } else if (group.rank == -1) {
    group.rank = rank_from_environment().value_or(-1);
  }
}

// Returns the job's name from the environment variables of launchers. Each is the same on all ranks of a job, and so is
// their combination.
std::string job_from_environment() {
  if (const char* const job = std::getenv("A2A_JOB")) return job;
  std::string names;
  for (const char* const name :
       {"TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT", "PADDLE_MASTER",
        "PMIX_NAMESPACE", "I_MPI_HYDRA_UUID", "SLURM_JOB_ID", "SLURM_STEP_ID"}) {
    if (const char* const value = std::getenv(name)) names += std::string(value) + "/";
  }
  return names;
}

// Returns the kind of memory of an address, as far as the vendors' libraries of this process know it.
Memory memory_of(const void* data) {
  for (const Memory memory : {Memory::npu, Memory::cuda}) {
    try {
      if (device_of(memory, data)) return memory;
    } catch (const Error&) {
      // Without its library there is no such memory.
    }
  }
  return Memory::host;
}

[[noreturn]] void unsupported(const std::string& text) { throw StatusError(ERROR_COMM_EMPTY, Code::unsupported, text); }

// Returns the memory if this process can serve it. Otherwise throws.
Memory served(Memory memory, const std::string& backend) {
  try {
    library_for(memory);
  } catch (const Error& error) {
    unsupported("backend " + backend + ": " + error.what());
  }
  return memory;
}

// Throws if there is no MPI.
void require_mpi(const Group& group) {
  try {
    mpi_library();
  } catch (const Error& error) {
    unsupported("backend " + group.backend + ": " + error.what());
  }
}

// The communicators of this process. Like ATB's they are never destroyed: a rank may still use one when another rank
// has destroyed its operations.
struct Entry {
  std::mutex meeting;  // held while this rank waits for the others, so that it joins them once
  std::shared_ptr<Communicator> communicator;
};

using Key = std::tuple<int, int, infer::CommMode, std::string>;

std::shared_ptr<Entry> entry_of(const Group& group) {
  static auto& mutex = *new std::mutex;
  static auto& entries = *new std::map<Key, std::shared_ptr<Entry>>;
  const std::lock_guard lock(mutex);
  auto& entry = entries[Key{group.rank, group.size, group.mode, group.meeting()}];
  if (entry == nullptr) entry = std::make_shared<Entry>();
  return entry;
}

// Whether a communicator may be used. One that only a peer has broken counts as usable: it has to raise that error here
// before the ranks meet again.
bool usable(const std::shared_ptr<Communicator>& communicator) {
  return communicator != nullptr && !communicator->closed() && !communicator->failed();
}

}  // namespace

template <class Param>
Group Group::of(const Param& param) {
  constexpr bool v2 = std::is_same_v<Param, AllToAllVV2Param>;
  const auto reserved = std::ranges::find_if(param.rsv, [](uint8_t byte) { return byte != 0; });
  if (reserved != std::end(param.rsv)) {
    refuse(ERROR_INVALID_PARAM, "param rsv has a non-zero value, please check the compilation version: rsv[",
           reserved - std::begin(param.rsv), "] is ", static_cast<int>(*reserved));
  }
  if (std::ranges::find(kBackends, param.backend) == std::end(kBackends)) {
    refuse(ERROR_INVALID_PARAM, "backend is ", in_quotes(param.backend), ", must be hccl, shm, nccl, mpi or auto");
  }
  Group group;
  group.rank = param.rank, group.size = param.rankSize, group.root = param.rankRoot;
  group.backend = param.backend, group.hccl = param.hcclComm, group.mode = param.commMode;
  group.table_file = param.rankTableFile, group.domain = param.commDomain;
  if (v2 && group.rank == -1 && group.size > 1 && group.table_file.empty()) {
    refuse(ERROR_INVALID_PARAM, "AllToAllVV2Operation multi-card, rank must be specified: rank [-1], rankSize [",
           group.size, "]");
  }
  check_mode_and_domain(group);
  if (!group.table_file.empty()) {
    read_table(group);
  } else if (group.hccl == nullptr) {
    check_ranges(group);
  }
  return group;
}

template Group Group::of(const AllToAllVParam&);
template Group Group::of(const AllToAllVV2Param&);

void Group::check_further() const {
  check_ranges(*this);
  if (table.size() > 0 && table.size() != size) {
    refuse(ERROR_INVALID_PARAM, "rankSize [", size, "], but the rank table ", table_file, " has ", table.size(),
           " ranks");
  }
  if (hccl != nullptr && backend != "hccl" && backend != "auto") {
    refuse(ERROR_INVALID_PARAM, "hcclComm is set, but backend is ", backend, ", must be hccl or auto");
  }
  if (const auto megabytes = split_domain(domain).megabytes) {
    constexpr unsigned kLeast = 200;
    unsigned value = 0;
    const auto error = std::from_chars(megabytes->data(), megabytes->data() + megabytes->size(), value).ec;
    if (error != std::errc() || value < kLeast) {
      refuse(ERROR_INVALID_PARAM, "commDomain is ", domain, ": its size of ", *megabytes, " MB must be between ",
             kLeast, " and ", std::numeric_limits<unsigned>::max());
    }
  }
}

// Size and rank are not part of it: ranks that disagree about them have to meet to notice that. The domain, which may
// be any text, is last, so that it cannot be confused with the rest.
std::string Group::meeting() const {
  const std::string table_name = table.size() > 0 ? "table-" + table.identity() : "";
  const std::string threads = mode == infer::COMM_MULTI_THREAD ? "threads-" + std::to_string(::getpid()) : "";
  const std::string place = between_hosts() ? "mpi" : threads;
  return "atb/" + job_from_environment() + "/" + table_name + "/" + place + "/" + split_domain(domain).name;
}

Memory choose_memory(const Group& group, const void* data) {
  if (group.table.servers > 1 && group.backend == "shm") {
    unsupported("backend shm: the rank table " + group.table_file + " places the ranks on " +
                std::to_string(group.table.servers) + " servers, and they meet in the shared memory of one");
  }
  if (group.between_hosts()) require_mpi(group);
  if (group.backend == "nccl") return served(Memory::cuda, group.backend);
  if (group.backend == "hccl" || group.hccl != nullptr) return served(Memory::npu, group.backend);
  return group.backend == "auto" && data != nullptr ? memory_of(data) : Memory::host;
}

int connect(const Group& group, Communicator& communicator, Memory memory, const void* data, double timeout_seconds) {
  if (memory == Memory::host) return 0;
  const auto device = device_of(memory, data);
  if (!device) {
    throw Error(Code::invalid_argument, "backend " + group.backend + ": inTensor[0] is not in " + to_string(memory) +
                                            " memory; backend \"shm\" exchanges host memory");
  }
  if (group.hccl != nullptr) communicator.adopt(memory, group.hccl);
  if (group.hccl == nullptr && !group.table_file.empty()) communicator.use_rank_table(group.table_file);
  communicator.connect(memory, *device, Deadline::after_seconds(timeout_seconds));
  return *device;
}

std::shared_ptr<Communicator> known_communicator(const Group& group) {
  const auto entry = entry_of(group);
  const std::lock_guard lock(entry->meeting);
  return usable(entry->communicator) ? entry->communicator : nullptr;
}

std::shared_ptr<Communicator> communicator_of(const Group& group, double timeout_seconds) {
  const auto entry = entry_of(group);
  const std::lock_guard lock(entry->meeting);
  if (!usable(entry->communicator)) {
    const auto deadline = Deadline::after_seconds(timeout_seconds);
    const auto bootstrap = group.between_hosts() ? mpi_bootstrap({}, group.meeting(), deadline)
                                                 : unix_bootstrap(group.rank, group.size, group.meeting(), deadline);
    entry->communicator = Communicator::create(group.rank, group.size, *bootstrap, {timeout_seconds});
  }
  return entry->communicator;
}

void set_communicator(const Group& group, std::shared_ptr<Communicator> communicator) {
  if (communicator == nullptr || communicator->rank() != group.rank || communicator->size() != group.size) {
    refuse(ERROR_INVALID_PARAM, "the communicator is not that of rank ", group.rank, " of ", group.size);
  }
  const auto entry = entry_of(group);
  const std::lock_guard lock(entry->meeting);
  entry->communicator = std::move(communicator);
}

}  // namespace a2a::atb
