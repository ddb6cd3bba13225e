#include "a2a/simulator.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "core/schedule.h"
#include "core/send_order.h"
#include "simulator/ports.h"

namespace a2a::simulator {
namespace {

void require(bool right, const char* what) {
  if (!right) throw Error(Code::invalid_argument, std::string("simulate: ") + what);
}

void check(const Cluster& cluster, std::span<const uint64_t> bytes) {
  const auto ranks = static_cast<size_t>(cluster.ranks);
  require(cluster.ranks >= 1 && cluster.ranks_per_host >= 1, "there is at least one rank, and one on each host");
  require(bytes.size() == ranks * ranks, "the matrix has one row and one column for each rank");
  require(std::isfinite(cluster.link) && cluster.link > 0 && std::isfinite(cluster.memory) && cluster.memory > 0,
          "rates are positive");
  for (const double time : {cluster.latency, cluster.message, cluster.start}) {
    require(std::isfinite(time) && time >= 0, "times are not negative");
  }
}

class Simulation {
 public:
  Simulation(const Cluster& cluster, std::span<const uint64_t> bytes, size_t kept)
      : cluster_(cluster), bytes_(bytes), kept_(kept), hosts_((cluster.ranks - 1) / cluster.ranks_per_host + 1) {
    outcome_.rank.resize(static_cast<size_t>(cluster.ranks));
    outcome_.out.resize(static_cast<size_t>(hosts_));
    outcome_.in.resize(static_cast<size_t>(hosts_));
  }

  Outcome run(Schedule schedule) {
    find_bound();
    schedule == Schedule::hierarchical ? between_hosts() : between_ranks(schedule);
    for (double& time : outcome_.rank) time += cluster_.start;
    outcome_.seconds = *std::ranges::max_element(outcome_.rank);
    return std::move(outcome_);
  }

 private:
  int host(int rank) const { return rank / cluster_.ranks_per_host; }
  uint64_t bytes(int from, int to) const {
    return bytes_[static_cast<size_t>(from) * static_cast<size_t>(cluster_.ranks) + static_cast<size_t>(to)];
  }
  // What a message occupies a port for, in bytes.
  double work(uint64_t sent) const { return static_cast<double>(sent) + cluster_.message * cluster_.link; }

  // Bytes within a host move while the hosts exchange.
  void find_bound() {
    for (int to = 0; to < cluster_.ranks; ++to) {
      double here = 0;
      for (int from = 0; from < cluster_.ranks; ++from) {
        const auto sent = static_cast<double>(bytes(from, to));
        if (host(from) == host(to)) {
          here += sent / cluster_.memory;
        } else {
          outcome_.out[static_cast<size_t>(host(from))] += sent / cluster_.link;
          outcome_.in[static_cast<size_t>(host(to))] += sent / cluster_.link;
        }
      }
      outcome_.rank[static_cast<size_t>(to)] = here;
      outcome_.bound = std::max(outcome_.bound, here);
    }
    for (const auto* const ports : {&outcome_.out, &outcome_.in}) {
      outcome_.bound = std::max(outcome_.bound, *std::ranges::max_element(*ports));
    }
  }

  void between_ranks(Schedule schedule) {
    std::vector<Source> sources(static_cast<size_t>(cluster_.ranks));
    std::vector<uint64_t> sent(static_cast<size_t>(cluster_.ranks));
    for (int from = 0; from < cluster_.ranks; ++from) {
      for (int to = 0; to < cluster_.ranks; ++to) {
        sent[static_cast<size_t>(to)] = host(from) == host(to) ? 0 : bytes(from, to);
      }
      Source& source = sources[static_cast<size_t>(from)];
      source.port = host(from);
      const auto add = [&](int to) {
        const uint64_t count = sent[static_cast<size_t>(to)];
        if (count > 0) source.sends.push_back({to, host(to), count, work(count)});
      };
      if (schedule == Schedule::longest) {
        for (const Rank to : send_order(from, sent)) add(to);
      } else {
        for (int step = 1; step < cluster_.ranks; ++step) add(send_peer(from, cluster_.ranks, step));
      }
    }
    exchange(sources, schedule == Schedule::rotation && cluster_.ports == Ports::single ? 1 : kSendWindow,
             [this](int, const Send& send, double end) {
               double& time = outcome_.rank[static_cast<size_t>(send.to)];
               time = std::max(time, end);
             });
  }

  void between_hosts() {
    std::vector<uint64_t> bundles(static_cast<size_t>(hosts_) * static_cast<size_t>(hosts_));
    const auto bundle = [&](int from, int to) -> uint64_t& {
      return bundles[static_cast<size_t>(from) * static_cast<size_t>(hosts_) + static_cast<size_t>(to)];
    };
    for (int from = 0; from < cluster_.ranks; ++from) {
      for (int to = 0; to < cluster_.ranks; ++to) {
        if (host(from) != host(to)) bundle(host(from), host(to)) += bytes(from, to);
      }
    }
    std::vector<Source> sources(static_cast<size_t>(hosts_));
    std::vector<double> handed_out(static_cast<size_t>(hosts_));
    double collected = 0;
    for (int from = 0; from < hosts_; ++from) {
      Source& source = sources[static_cast<size_t>(from)];
      source.port = from;
      double all = 0;
      const std::span sent(&bundle(from, 0), static_cast<size_t>(hosts_));
      for (const Rank to : send_order(from, sent)) {
        const uint64_t count = sent[static_cast<size_t>(to)];
        source.sends.push_back({to, to, count, work(count)});
        all += static_cast<double>(count);
      }
      // The ranks of a host share this work.
      collected = std::max(collected, all / cluster_.memory / cluster_.ranks_per_host);
    }
    exchange(sources, kSendWindow, [&](int, const Send& send, double end) {
      double& time = handed_out[static_cast<size_t>(send.to)];
      time = std::max(time, end);
    });
    for (int rank = 0; rank < cluster_.ranks; ++rank) {
      const auto place = static_cast<size_t>(host(rank));
      if (handed_out[place] == 0) continue;
      const double last = outcome_.in[place] * cluster_.link / cluster_.memory / cluster_.ranks_per_host;
      double& time = outcome_.rank[static_cast<size_t>(rank)];
      time = std::max(time, collected + handed_out[place] + last);
    }
    for (Transmission& message : outcome_.messages) message.begin += collected, message.end += collected;
  }

  // Returns for how long the busiest port has work.
  double longest(const std::vector<Source>& sources) const {
    std::vector<double> out(static_cast<size_t>(hosts_)), in(static_cast<size_t>(hosts_));
    for (const Source& source : sources) {
      for (const Send& send : source.sends) {
        out[static_cast<size_t>(source.port)] += send.work;
        in[static_cast<size_t>(send.port)] += send.work;
      }
    }
    return std::max(*std::ranges::max_element(out), *std::ranges::max_element(in)) / cluster_.link;
  }

  template <class Arrive>
  void exchange(std::vector<Source>& sources, int window, const Arrive& arrive) {
    const Ended ended = [&](int from, const Send& send, double begin, double end) {
      arrive(from, send, end + cluster_.latency);
      if (outcome_.messages.size() >= kept_) return;
      outcome_.messages.push_back({from, send.to, send.bytes, begin + cluster_.start, end + cluster_.start});
    };
    if (cluster_.ports == Ports::single) {
      run_single_ports(sources, hosts_, cluster_.link, window, ended);
    } else {
      run_shared_ports(sources, hosts_, cluster_.link, window, longest(sources), ended);
    }
  }

  const Cluster& cluster_;
  const std::span<const uint64_t> bytes_;
  const size_t kept_;
  const int hosts_;
  Outcome outcome_;
};

}  // namespace

Outcome simulate(const Cluster& cluster, Schedule schedule, std::span<const uint64_t> bytes, size_t kept) {
  check(cluster, bytes);
  return Simulation(cluster, bytes, kept).run(schedule);
}

}  // namespace a2a::simulator
