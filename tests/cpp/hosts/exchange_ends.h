// Both ends of exchanges between ranks that are each on a host of their own, without their transports.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "one_rank.h"
#include "transport/hosts/remote_exchange.h"

namespace hosts_test {

// The ranks of a group, whose exchanges follow one another.
class Ends {
 public:
  explicit Ends(int size = 2)
      : map_(std::make_shared<HostMap>(apart(size))), hub_(std::make_shared<Hub>(size)), ends_(map_->host.size()) {
    for (int r = 0; r < size; ++r) ends_[static_cast<size_t>(r)].start(hub_, r);
  }

  struct End {
    Batch batch;
    bool repeats = true;  // cached matches
    std::shared_ptr<LoopbackNetwork> network;
    std::vector<CachedMatches> matches;
    std::optional<RemoteExchange> exchange;
    size_t told = 0;  // facts sent in this exchange

    void start(const std::shared_ptr<Hub>& hub, int rank) {
      network = std::make_shared<LoopbackNetwork>(hub, rank);
      matches.resize(hub->inboxes.size());
    }
    const std::vector<std::string>& disagreements() const { return exchange->disagreements(); }
  };
  End& operator[](int rank) { return ends_[static_cast<size_t>(rank)]; }

  // Rank `from` sends the bytes to rank `to`, which receives so many of them.
  void move(int from, std::span<std::byte> data, int to, std::span<std::byte> into) {
    (*this)[from].batch.sends.push_back({to, data.data(), data.size()});
    (*this)[to].batch.recvs.push_back({from, into.data(), into.size()});
  }

  // Begins the next exchange; the facts are under way.
  void begin() {
    for (int r = 0; r < map_->size(); ++r) {
      End& rank = (*this)[r];
      rank.batch.signature.number = number_;
      rank.exchange.emplace(rank.batch, r, map_, *rank.network);
      rank.told = 0;
      post(rank.exchange->begin(rank.repeats ? &rank.matches : nullptr, {}));
    }
    ++number_;
  }
  void post(const std::vector<Entry>& entries) {
    for (const Entry& entry : entries) {
      ++(*this)[entry.source].told;
      under_way_.emplace_back(entry, entry.payload);
    }
  }
  // The facts arrive.
  void deliver() {
    while (!under_way_.empty()) {
      auto [entry, payload] = std::move(under_way_.front());
      under_way_.pop_front();
      entry.payload = payload;
      if (const auto answer = (*this)[entry.target].exchange->handle(entry)) post({*answer});
    }
  }
  // Delivers all, and moves bytes until nobody has more to do. Returns whether all ranks have finished.
  bool finish() {
    bool finished = false;
    for (int step = 0; step < 100 && !finished; ++step) {
      deliver();
      finished = true;
      for (End& rank : ends_) {
        rank.network->advance();
        rank.exchange->advance();
        finished &= rank.exchange->finished();
      }
    }
    for (End& rank : ends_) {
      if (finished) rank.exchange->note_matches(rank.matches);
    }
    return finished;
  }
  bool run() { return begin(), finish(); }

 private:
  const std::shared_ptr<const HostMap> map_;
  const std::shared_ptr<Hub> hub_;
  uint64_t number_ = 1;
  std::deque<std::pair<Entry, std::string>> under_way_;
  std::vector<End> ends_;  // by rank
};

using Bytes = std::vector<std::byte>;
inline Bytes bytes_from(size_t count, uint8_t first = 1) {
  Bytes bytes(count);
  for (size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::byte>(first + i % 97);
  return bytes;
}

}  // namespace hosts_test
