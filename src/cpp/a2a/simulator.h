// A model of an exchange between many ranks. It computes when each message begins and ends, and moves no bytes.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "a2a/types.h"

namespace a2a::simulator {

// The ports of a host, one out and one in.
enum class Ports : uint8_t {
  single,  // carry one message at a time
  shared,  // divide their bandwidth evenly among the messages that they carry
};

// All hosts have equally many ranks; the last one may have fewer. Times are in seconds, rates in bytes per second.
struct Cluster {
  int ranks = 1;
  int ranks_per_host = 1;
  double link = 1;     // the rate of each port
  double memory = 1;   // the rate at which a rank receives from ranks of its host, while the hosts exchange
  double latency = 0;  // from the end of a message at the sender to its end at the receiver
  double message = 0;  // what each message costs, beside its bytes, at both ports
  double start = 0;    // what each exchange costs once: ranks compare what they are about to do
  Ports ports = Ports::shared;
};

enum class Schedule : uint8_t {
  rotation,      // rank r sends to r + 1, r + 2, ...
  longest,       // send_order(), as the transports between hosts
  hierarchical,  // hosts send each other one message, which one rank collects and another one hands out
};

// One message between hosts: between ranks, or between hosts if the schedule is hierarchical.
struct Transmission {
  int from = 0, to = 0;
  uint64_t bytes = 0;
  double begin = 0, end = 0;
};

struct Outcome {
  double seconds = 0;           // until the last rank has all its bytes
  double bound = 0;             // no schedule is faster: the bytes of the busiest port, or of the busiest memory
  std::vector<double> rank;     // by rank: when it has all its bytes
  std::vector<double> out, in;  // by host: for how long the port has to carry bytes
  std::vector<Transmission> messages;
};

// bytes[i * ranks + j] go from rank i to rank j. Keeps at most `kept` messages of the outcome, the first ones to end.
// Throws Error(invalid_argument) for a cluster without ranks, or with a rate or time that makes no sense.
A2A_API Outcome simulate(const Cluster& cluster, Schedule schedule, std::span<const uint64_t> bytes, size_t kept);

}  // namespace a2a::simulator
