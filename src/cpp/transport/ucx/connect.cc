// Connects the processes of a bootstrap over UCX.
#include <algorithm>
#include <chrono>
#include <iterator>
#include <map>
#include <thread>
#include <utility>

#include "transport/ucx/ucx_network.h"

namespace a2a::ucx {
namespace {

// Doors as text: their number, then each with its length.
std::string packed(const std::vector<std::string>& doors) {
  std::string text(1, static_cast<char>(std::min<size_t>(doors.size(), 255)));
  for (size_t i = 0; i < doors.size() && i < 255; ++i) text += static_cast<char>(doors[i].size()) + doors[i];
  return text;
}

// Takes them off the beginning of the text.
void unpack(std::string& text, Doors* doors) {
  size_t at = 1;
  const auto length = [&](size_t i) { return static_cast<size_t>(static_cast<unsigned char>(text.at(i))); };
  for (size_t left = length(0); left > 0; --left) {
    doors->insert(text.substr(at + 1, length(at)));
    at += 1 + length(at);
  }
  text.erase(0, at);
}

// What a rank tells the others: '=', the doors and the address of its worker; or why it has none.
std::string own_address(Rank rank, size_t processes, std::unique_ptr<TagWorker>* worker) {
  try {
    const Doors before = listening();
    *worker = std::make_unique<TagWorker>(processes);
    std::vector<std::string> doors;
    std::ranges::set_difference(listening(), before, std::back_inserter(doors));
    return "=" + packed(doors) + (*worker)->address();
  } catch (const Error& error) {
    return "rank " + std::to_string(rank) + ": " + error.what() + settings();
  }
}

// What a rank tells the others then: why it cannot reach somebody, if so, and a line with its settings.
std::string try_to_join(UcxNetwork& network, const std::vector<std::string>& addresses, const Digest& key) {
  std::string failure;
  try {
    network.join(addresses, key);
  } catch (const Error& error) {
    failure = error.what();
  }
  return failure + "\n" + settings();
}

// Returns the first of these failures and all different settings, "" if there is no failure.
std::string first_failure(const std::vector<std::string>& told) {
  std::string failure;
  std::map<std::string, size_t> settings;  // and the first rank that has them
  for (size_t rank = 0; rank < told.size(); ++rank) {
    const size_t end = told[rank].rfind('\n');
    if (failure.empty()) failure = told[rank].substr(0, end);
    if (end + 1 < told[rank].size()) settings.emplace(told[rank].substr(end + 1), rank);
  }
  if (failure.empty()) return failure;
  for (const auto& [text, rank] : settings) failure += text + " on rank " + std::to_string(rank);
  return failure;
}

std::string list(const std::vector<Process>& ranks) {
  std::string text;
  for (const Process rank : ranks) text += (text.empty() ? "" : ", ") + std::to_string(rank);
  return text;
}

}  // namespace

std::shared_ptr<UcxNetwork> connect(Bootstrap& bootstrap, Rank rank, const Digest& key,
                                    const std::function<void()>& meanwhile, Deadline deadline, std::string* why) {
  std::unique_ptr<TagWorker> worker;
  std::vector<std::string> told = bootstrap.allgather(own_address(rank, 16, &worker), deadline);
  Sha256 all;
  for (const std::string& text : told) {
    all.add(text);
    if (!text.starts_with("=") && why->empty()) *why = text;
  }
  if (!why->empty()) return nullptr;
  Doors doors;
  for (std::string& text : told) unpack(text.erase(0, 1), &doors);
  const auto network = std::make_shared<UcxNetwork>(rank, std::move(worker));
  const Digest own_key = hmac_sha256(as_text(key), "a2a ucx " + std::string(as_text(all.digest())));
  *why = first_failure(bootstrap.allgather(try_to_join(*network, told, own_key), deadline));
  if (!why->empty()) return nullptr;
  while (!network->joined()) {
    if (deadline.passed()) {
      throw Error(Code::timeout, "rank " + std::to_string(rank) + " timed out waiting for rank " +
                                     list(network->missing()) + " over " + network->name());
    }
    meanwhile();
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
  network->keep_from_children(std::move(doors));
  return network;
}

}  // namespace a2a::ucx
