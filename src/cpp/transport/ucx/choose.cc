#include "transport/ucx/choose.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "a2a/libraries.h"
#include "runtime/environment.h"
#include "transport/ucx/ucx_network.h"

namespace a2a::ucx {
namespace {

// A device better than TCP has a port that is active: InfiniBand, RoCE, EFA. Returns its name, "" if there is none.
std::string active_device() {
  std::error_code error;
  for (const auto& device : std::filesystem::directory_iterator("/sys/class/infiniband", error)) {
    for (const auto& port : std::filesystem::directory_iterator(device.path() / "ports", error)) {
      std::string state;
      std::ifstream file(port.path() / "state");
      std::getline(file, state);
      if (state.ends_with("ACTIVE")) return device.path().filename();
    }
  }
  return "";
}

enum Network : size_t { kAuto, kTcp, kUcx, kMpi };

Network wanted() {
  return static_cast<Network>(word_variable("A2A_NETWORK", {"auto", "tcp", "ucx", "mpi"}).value_or(kAuto));
}

// A rank's choice, as it tells it to the others. "tcp?" and "ucx?" follow those who insist.
std::string own_choice() {
  switch (wanted()) {
    case kTcp:
      return "tcp";
    case kUcx:
      return "ucx";
    case kMpi:
      throw Error(Code::unsupported,
                  "A2A_NETWORK=mpi, but these ranks have met over TCP; start them with mpiexec, or pass an "
                  "mpi_bootstrap()");
    default:
      return active_device().empty() ? "tcp?" : "ucx?";
  }
}

std::string in_words(const std::vector<std::string>& choices) {
  std::string text;
  for (size_t rank = 0; rank < choices.size(); ++rank) {
    text += (rank == 0 ? "" : ", ") + choices[rank].substr(0, 3) + " on rank " + std::to_string(rank);
  }
  return text;
}

}  // namespace

std::shared_ptr<hosts::Network> connect_if_chosen(Bootstrap& bootstrap, Rank rank, const Digest& key,
                                                  const std::function<void()>& meanwhile, Deadline deadline) {
  std::string mine;
  try {
    mine = own_choice();
  } catch (const Error& error) {
    mine = std::string("!rank ") + std::to_string(rank) + ": " + error.what();
  }
  const auto choices = bootstrap.allgather(mine, deadline);
  const auto refusal = std::ranges::find_if(choices, [](const std::string& one) { return one.starts_with("!"); });
  if (refusal != choices.end()) throw Error(Code::unsupported, refusal->substr(1));
  const auto chosen = [&](std::string_view choice) { return std::ranges::count(choices, choice) != 0; };
  if (chosen("ucx") && chosen("tcp")) {
    throw Error(Code::mismatch, "A2A_NETWORK differs between the ranks: " + in_words(choices));
  }
  if (!chosen("ucx") && (chosen("tcp") || chosen("tcp?"))) return nullptr;
  std::string why;
  auto network = connect(bootstrap, rank, key, meanwhile, deadline, &why);
  if (network == nullptr && chosen("ucx")) throw Error(Code::unsupported, "A2A_NETWORK=ucx: " + why);
  return network;
}

}  // namespace a2a::ucx

std::string a2a::network_choice() {
  using namespace ucx;
  switch (wanted()) {
    case kTcp:
      return "TCP: A2A_NETWORK=tcp";
    case kUcx:
      return "UCX: A2A_NETWORK=ucx";
    case kMpi:
      return "MPI: A2A_NETWORK=mpi";
    default: {
      const std::string device = active_device();
      if (device.empty()) return "TCP, or MPI under mpiexec: no InfiniBand, RoCE or EFA port is active";
      return "UCX, or MPI under mpiexec: " + device + " is active";
    }
  }
}
