// The networks of this process: their making, and their end with MPI or with the process.
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "a2a/bootstrap.h"
#include "a2a/work.h"
#include "transport/hosts/network_bootstrap.h"
#include "transport/mpi/mpi_network.h"

namespace a2a::mpi {
namespace {

using Clock = Deadline::Clock;

// The networks of this process, one for each group of processes. They are not keyed by communicator, because a handle
// may be reused for another one. All processes of a group make its network together, so all have it or none. Never
// destroyed: MPI may be used until the end of the process, and processes drop a network at different times.
struct Networks {
  std::mutex mutex;
  std::vector<std::shared_ptr<MpiNetwork>> all;
  pid_t owner = 0;
  bool names_removed = false;
};

Networks& networks() {
  static auto& one = *new Networks;
  return one;
}

// ---- the end ------------------------------------------------------------------------------------------------------

// How long this process waits at its end for processes that did not come to an operation in time: they are stuck if
// they do not reach the end either. The wait for other processes has no limit, as in MPI_Finalize: they may compute for
// hours.
constexpr auto kPatienceWithLate = std::chrono::minutes(1);
// How long it waits for processes that have not duplicated the communicator, which they should soon after
// MPI_Init_thread.
constexpr auto kPatienceWithDuplicate = std::chrono::seconds(5);

using All = std::vector<std::shared_ptr<MpiNetwork>>;

bool any_died(const All& all) { return std::ranges::any_of(all, &MpiNetwork::has_died); }

bool too_late(MpiNetwork& network, Clock::duration waited) {
  if (network.may_be_stuck()) return waited > kPatienceWithLate;
  return waited > kPatienceWithDuplicate && !network.connected();
}

// Winds up all networks. Returns whether nothing is under way between the processes of any network. All at the same
// time: their groups differ, and processes would wait for each other in turn.
bool wind_up(const All& all) {
  for (const auto& network : all) network->notify_users();
  const auto begin = Clock::now();
  auto pause = std::chrono::microseconds(1);
  constexpr auto kLongestPause = std::chrono::microseconds(1000);
  for (All left = all; !any_died(all); pause = std::min(2 * pause, kLongestPause)) {
    std::erase_if(left, [](const auto& network) { return network->wind_up(); });
    if (left.empty()) return true;
    const auto waited = Clock::now() - begin;
    if (std::ranges::any_of(left, [&](const auto& network) { return too_late(*network, waited); })) return false;
    std::this_thread::sleep_for(pause);
  }
  return false;
}

bool wind_up_here() noexcept {
  const All& all = networks().all;
  bool done = false;
  try {
    done = wind_up(all);
  } catch (const std::exception&) {  // MPI_Finalize reports it; there is no caller to tell
  }
  for (const auto& network : all) {
    if (any_died(all)) network->tell_of_death();
    network->give_up();
  }
  return done;
}

// Called at the beginning of MPI_Finalize, whoever calls that.
void end_all() {
  Networks& here = networks();
  if (here.owner != ::getpid()) return;  // a forked child
  const std::lock_guard lock(here.mutex);
  wind_up_here();
}

// Called at the end of the process. Without MPI_Finalize some launchers would not report the status of the other
// processes, and others would leave files behind.
void finalise(int status, void*) {
  Networks& here = networks();
  if (here.owner != ::getpid()) return;  // a forked child
  try {
    const auto first = std::ranges::find_if(here.all, [](const auto& network) { return network->library().ours(); });
    if (first == here.all.end()) return;
    if (wind_up_here()) {
      (*first)->library().finalise();
    } else if (!any_died(here.all)) {
      (*first)->library().abort(status != 0 ? status : EXIT_FAILURE);
    }  // else MPI_Finalize may wait for the dead one for ever; the launcher knows of it, and the survivors go on
  } catch (const Error&) {  // there is no caller to tell
  }
}

// ---- the beginning ------------------------------------------------------------------------------------------------

// Returns the network of the communicator's processes, which need not be connected yet.
std::shared_ptr<MpiNetwork> begin(std::optional<int> fortran_handle) {
  Networks& here = networks();
  const std::lock_guard lock(here.mutex);
  if (here.owner != 0 && here.owner != ::getpid()) {
    throw Error(Code::aborted, "MPI was initialised before fork(): it belongs to the parent process");
  }
  auto library = open_library(fortran_handle);
  for (const auto& network : here.all) {
    if (network->connects_processes_of(*library)) return network;
  }
  library->start_duplicate();
  if (here.owner == 0) {
    library->call_at_finalise(end_all);
    ::on_exit(finalise, nullptr);
  }
  here.owner = ::getpid();
  return here.all.emplace_back(std::make_shared<MpiNetwork>(std::move(library)));
}

void forget(const std::shared_ptr<MpiNetwork>& network) {
  Networks& here = networks();
  const std::lock_guard lock(here.mutex);
  std::erase(here.all, network);
}

// Unlinks the file that MPICH's ranks of a host share. MPI_Finalize would remove it, but not after a rank was killed.
// All ranks have opened it by now.
void remove_names(Library& library) {
  Networks& here = networks();
  const std::lock_guard lock(here.mutex);
  if (here.names_removed || !library.ours()) return;
  here.names_removed = true;
  std::ifstream mappings("/proc/self/maps");
  for (std::string line; std::getline(mappings, line);) {
    const auto name = line.find("/dev/shm/mpich_shm_");
    if (name != std::string::npos) ::unlink(line.c_str() + name);  // fails where another rank has done it
  }
}

// Waits until the network is connected. An abandoned wait changes nothing: the next call for these processes continues
// it. So late processes find the others' part done.
std::shared_ptr<MpiNetwork> connect(std::optional<int> fortran_handle, Deadline deadline) {
  auto network = begin(fortran_handle);
  try {
    while (!network->connected()) {
      SignalWatch::look();
      if (deadline.passed()) {
        throw Error(Code::timeout, "rank " + std::to_string(network->self()) + " of " +
                                       std::to_string(network->size()) + " timed out in MPI_Comm_idup, " +
                                       "to which not all have come; the next call for these processes goes on with it");
      }
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  } catch (const Error& error) {
    if (error.code() == Code::backend) forget(network);
    throw;
  }
  remove_names(network->library());
  return network;
}

}  // namespace
}  // namespace a2a::mpi

std::shared_ptr<a2a::Bootstrap> a2a::mpi_bootstrap(std::optional<int> fortran_handle, const std::string& name,
                                                   Deadline deadline) {
  const auto network = mpi::connect(fortran_handle, deadline);
  return std::make_shared<hosts::NetworkBootstrap>(network, network->next_meeting(name));
}
