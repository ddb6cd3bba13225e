#include "core/metrics.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <tuple>

#include "a2a/communicator.h"
#include "core/record_file.h"
#include "runtime/fork_guard.h"

namespace a2a {
namespace {

constexpr size_t kMostInFlight = 1024;
// A program may make any number of groups. Those beyond so many are not counted.
constexpr size_t kMostCommunicators = 64;

struct All {
  std::mutex mutex;
  std::map<std::tuple<std::string, Rank, int>, std::shared_ptr<Metrics>> metrics;
};
// Never destroyed: threads of the program may end after this library's objects. A forked child begins anew: another
// thread may have held the mutex.
All*& all_of_process() {
  static All* one = [] {
    call_in_child([] { all_of_process() = new All; });
    return new All;
  }();
  return one;
}
All& all() { return *all_of_process(); }

// The value of a label. Labels are texts of the library, so they hold no quote, backslash or end of line.
std::string labels(const std::string& communicator, Rank rank, const std::string& more) {
  return "{communicator=\"" + communicator + "\",rank=\"" + std::to_string(rank) + "\"," + more + "}";
}

std::string seconds(uint64_t nanoseconds) {
  std::array<char, 32> text;
  std::snprintf(text.data(), text.size(), "%.9f", static_cast<double>(nanoseconds) / 1e9);
  return text.data();
}

}  // namespace

std::shared_ptr<Metrics> Metrics::open(Rank rank, int size, std::string_view label) {
  const char* const wanted = std::getenv("A2A_METRICS");
  if (wanted == nullptr || *wanted == '\0') return nullptr;
  const std::lock_guard lock(all().mutex);
  const std::tuple key{std::string(label), rank, size};
  if (const auto found = all().metrics.find(key); found != all().metrics.end()) return found->second;
  if (all().metrics.size() >= kMostCommunicators) return nullptr;
  return all().metrics[key] = std::make_shared<Metrics>(rank, size, label);
}

void Metrics::begin(const Batch& batch) {
  const std::lock_guard lock(mutex_);
  Calls& calls = calls_[batch.signature.op];
  ++calls.started;
  if (!batch.refusal.empty()) return void(++calls.failed);
  for (const Run& run : batch.sends) peers_[static_cast<size_t>(run.peer)].sent += run.bytes;
  for (const Run& run : batch.recvs) peers_[static_cast<size_t>(run.peer)].received += run.bytes;
  if (in_flight_.size() >= kMostInFlight) in_flight_.erase(in_flight_.begin());
  in_flight_[batch.signature.number] = {batch.signature.op, wall_clock(), batch.asynchronous};
}

void Metrics::end(uint64_t number, bool failed) {
  const std::lock_guard lock(mutex_);
  const auto found = in_flight_.extract(number);
  if (found.empty()) return;
  Calls& calls = calls_[found.mapped().op];
  calls.failed += failed ? 1 : 0;
  const uint64_t now = wall_clock();
  if (!found.mapped().asynchronous && now > found.mapped().since) calls.nanoseconds += now - found.mapped().since;
}

void Metrics::add(const Message& message, Rank peer, uint64_t nanoseconds, bool failed) {
  const std::lock_guard lock(mutex_);
  Calls& calls = calls_[message.sends ? Op::send : Op::recv];
  ++calls.started;
  calls.failed += failed ? 1 : 0;
  calls.nanoseconds += nanoseconds;
  if (failed || peer < 0 || static_cast<size_t>(peer) >= peers_.size()) return;
  Peer& other = peers_[static_cast<size_t>(peer)];
  (message.sends ? other.sent : other.received) += message.bytes;
}

void Metrics::waited(std::span<const Rank> ranks, uint64_t nanoseconds) {
  const std::lock_guard lock(mutex_);
  for (const Rank rank : ranks) {
    if (rank >= 0 && static_cast<size_t>(rank) < peers_.size()) peers_[static_cast<size_t>(rank)].waited += nanoseconds;
  }
}

std::string metrics_text() {
  struct Family {
    const char *name, *help;
    std::string samples;
  };
  std::array<Family, 6> families{{
      {"a2a_operations_total", "Operations and messages that this rank has started.", ""},
      {"a2a_operation_failures_total", "Those that ended with an error.", ""},
      {"a2a_operation_seconds_total", "Time in calls that wait for their result.", ""},
      {"a2a_sent_bytes_total", "Bytes that this rank sends to a peer.", ""},
      {"a2a_received_bytes_total", "Bytes that this rank receives from a peer.", ""},
      {"a2a_wait_seconds_total", "Time for which this rank waited for a peer, seen every 10 ms.", ""},
  }};
  const std::lock_guard lock(all().mutex);
  for (const auto& [_, metrics] : all().metrics) {
    const std::lock_guard held(metrics->mutex_);
    const auto add = [&](size_t family, const std::string& more, const std::string& value) {
      families[family].samples +=
          families[family].name + labels(metrics->label_, metrics->rank_, more) + " " + value + "\n";
    };
    for (const auto& [op, calls] : metrics->calls_) {
      const std::string name = std::string("operation=\"") + to_string(op) + "\"";
      add(0, name, std::to_string(calls.started));
      add(1, name, std::to_string(calls.failed));
      add(2, name, seconds(calls.nanoseconds));
    }
    for (size_t rank = 0; rank < metrics->peers_.size(); ++rank) {
      const Metrics::Peer& peer = metrics->peers_[rank];
      const std::string name = "peer=\"" + std::to_string(rank) + "\"";
      if (peer.sent > 0) add(3, name, std::to_string(peer.sent));
      if (peer.received > 0) add(4, name, std::to_string(peer.received));
      if (peer.waited > 0) add(5, name, seconds(peer.waited));
    }
  }
  std::string text;
  for (const Family& family : families) {
    text += std::string("# HELP ") + family.name + " " + family.help + "\n# TYPE " + family.name + " counter\n" +
            family.samples;
  }
  return text;
}

}  // namespace a2a
