// Transfers of memory between this process and another one, in both directions. They know no sockets: the connection
// asks what to send next, and where to put what arrives.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>

namespace a2a::tcp {

// A run in flight. The connection shares it with the Transfer that the transport holds.
struct Flight {
  std::byte* data = nullptr;
  size_t left = 0;
  bool abandoned = false;  // its memory must not be accessed any more

  bool done() const { return left == 0 || abandoned; }
};
using FlightPtr = std::shared_ptr<Flight>;

// The runs that this process sends, by tag. They are sent only against credit: the receiver announces its receives. So
// no bytes arrive without a receive, and a run that is not received holds up no other.
class OutgoingRuns {
 public:
  void add(uint32_t tag, FlightPtr flight) {
    tags_[tag].flights.push_back(std::move(flight));
    note(tag);
  }

  // Adds the credit of a receive. Returns false when the peer announces too much.
  bool announce(uint32_t tag, uint64_t bytes, size_t most_tags) {
    Tag& there = tags_[tag];
    if (bytes > UINT64_MAX - there.room || tags_.size() > most_tags) return false;
    there.room += bytes;
    note(tag);
    return true;
  }

  // Removes the credit of withdrawn receives. Returns false when a run is to be sent with this tag.
  bool withdraw(uint32_t tag) {
    const auto found = tags_.find(tag);
    if (found == tags_.end()) return true;
    if (!std::ranges::all_of(found->second.flights, [](const FlightPtr& flight) { return flight->done(); }))
      return false;
    found->second.room = 0;  // next() erases the tag
    note(tag);
    return true;
  }

  struct Part {
    uint32_t tag = 0;
    FlightPtr flight;
    size_t bytes = 0;  // from flight->data on
  };
  // Whether next() may return a part.
  bool have_turns() const { return !turns_.empty(); }
  // Returns the next part to send, of at most `most` bytes; the tags take turns. The caller sends it, and advances the
  // flight.
  std::optional<Part> next(size_t most) {
    while (!turns_.empty()) {
      const uint32_t tag = turns_.front();
      turns_.pop_front();
      Tag& there = tags_[tag];
      there.has_turn = false;
      while (!there.flights.empty() && there.flights.front()->done()) there.flights.pop_front();
      if (there.flights.empty() || there.room == 0) {
        if (there.flights.empty() && there.room == 0) tags_.erase(tag);
        continue;
      }
      const FlightPtr& flight = there.flights.front();
      Part part{tag, flight, static_cast<size_t>(std::min<uint64_t>({most, flight->left, there.room}))};
      there.room -= part.bytes;
      if (part.bytes == flight->left) there.flights.pop_front();
      note(tag);
      return part;
    }
    return std::nullopt;
  }

 private:
  struct Tag {
    uint64_t room = 0;  // credit: bytes that the peer can receive
    std::deque<FlightPtr> flights;
    bool has_turn = false;
  };

  void note(uint32_t tag) {
    Tag& there = tags_[tag];
    if (there.has_turn) return;
    there.has_turn = true;
    turns_.push_back(tag);
  }

  std::map<uint32_t, Tag> tags_;
  std::deque<uint32_t> turns_;
};

// The runs that this process receives, by tag. Abandoned ones still arrive, and are discarded.
class IncomingRuns {
 public:
  void add(uint32_t tag, FlightPtr flight) { tags_[tag].push_back(std::move(flight)); }

  // Returns the run that the next bytes with this tag belong to, or nullptr when no receive waits for so many.
  FlightPtr next(uint32_t tag, uint64_t bytes) const {
    const auto found = tags_.find(tag);
    if (found == tags_.end() || bytes > found->second.front()->left || bytes == 0) return nullptr;
    return found->second.front();
  }

  // Removes the receives with this tag. Requires that nothing will arrive for them.
  void withdraw(uint32_t tag) { tags_.erase(tag); }

  // Removes the run if it is complete. Call after it was advanced.
  void note(uint32_t tag) {
    const auto found = tags_.find(tag);
    if (found == tags_.end() || found->second.front()->left > 0)
      return;  // no run is left if it was withdrawn meanwhile
    found->second.pop_front();
    if (found->second.empty()) tags_.erase(found);
  }

 private:
  std::map<uint32_t, std::deque<FlightPtr>> tags_;
};

}  // namespace a2a::tcp
