// The format of messages between ranks of different hosts. All hosts have the same byte order: ranks compare the
// version of this library when they meet, and the network connects processes of one program.
#pragma once

#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "a2a/types.h"
#include "core/facts.h"
#include "core/schedule.h"

namespace a2a::hosts {

enum class MessageKind : uint16_t {
  text = 1,   // a bootstrap's string
  facts,      // entries of this rank for one other, in one stage of an operation
  bundle,     // entries of all ranks of a host for all ranks of another
  no_bundle,  // the answer to a bundle that no rank waits for: this host sends that one no entries
  verdict,    // of a compared operation: the disagreement that this rank has found, or nothing
  passed,     // this rank runs the operation on a device without comparing
  aborted,    // Reason, and its text
  left,       // `number`: the last operation this rank has started
  sent,       // SentHead, and the bytes or a refusal; `number` counts this rank's messages to that one
  answered,   // Reply, and the reason of a refusal; `number` is that of the message
};

// The beginning of each message.
struct Prefix {
  uint64_t channel = 0;
  MessageKind kind = MessageKind::text;
  uint16_t stage = 0;
  Rank source = 0;
  uint64_t number = 0;
};

// The stages between hosts of all operations, in order.
constexpr uint64_t kMostStages = 256;
constexpr uint64_t step_of(uint64_t number, uint64_t stage = 0) { return number * kMostStages + stage; }
constexpr uint64_t number_of(uint64_t step) { return step / kMostStages; }

// The reason why a rank gave up.
struct Reason {
  uint32_t code = 0;
  uint32_t died = 0;  // 1: it knows of a process that died
};

// The ways of a pair's bytes between hosts.
enum class Delivery : uint8_t {
  nothing,     // no bytes
  refused,     // the payload has the reason of the refusal
  eager,       // in the payload
  rendezvous,  // from memory to memory, run by run; `tag` pairs the ends
  packed,      // the same, with all runs packed into one
};

// The facts that one rank sends another about an operation.
struct SentFacts : Facts {
  Delivery delivery = Delivery::nothing;
  Delivery repeated =
      Delivery::nothing;  // for later operations that repeat this one (cached_matches.h); nothing: none may
  uint8_t gaps = 0;       // 1: this rank's memory has gaps, so both ends move it in pieces
  uint8_t repeats = 0;    // 1: repeats an earlier match, and the bytes are under way already
  uint64_t tag = 0;       // of this pair: for this operation, and later ones that repeat it

  bool moves_memory() const { return delivery == Delivery::rendezvous || delivery == Delivery::packed; }
};

// Whether the sender's bytes go from memory to memory in packed pieces (pieces.h). Repeated bytes do not: they were
// sent before the sender knew the receiver's facts.
inline bool goes_in_pieces(const SentFacts& sender, const SentFacts& receiver) {
  return sender.delivery == Delivery::rendezvous && sender.repeats == 0 && (sender.gaps != 0 || receiver.gaps != 0);
}

// Pack the bytes of all runs into one piece, and unpack it.
std::string packed(std::span<const Run> runs, size_t bytes);
void unpack(std::string_view piece, std::span<const Run> runs);

// The facts with their route and payload.
struct Entry {
  Rank source = 0, target = 0;
  SentFacts facts{};
  std::string_view payload;
};

// The most bytes of a refusal's text that are sent.
constexpr size_t kLongestRefusal = 512;

// Make a message with room for `bytes` more bytes, and a complete one.
std::string begin_message(const Prefix& prefix, size_t bytes);
std::string message(const Prefix& prefix, std::string_view rest = {});
std::optional<Prefix> prefix_of(std::string_view message);
inline std::string_view rest_of(std::string_view message) { return message.substr(sizeof(Prefix)); }

// Lists of entries.
constexpr size_t kEntryBytes = 3 * sizeof(uint32_t) + 4 + sizeof(SentFacts);
constexpr size_t room_for(size_t payload) { return kEntryBytes + (payload + 7) / 8 * 8; }
void append(std::string& text, const Entry& entry);
// Returns entries that point into the text, or nullopt when it is no list of entries.
std::optional<std::vector<Entry>> entries_of(std::string_view text);

// A list in memory begins with the number of bytes of its entries; the memory may be larger.
constexpr size_t kListBytes = sizeof(uint64_t);
// Returns the entries of such a list, limited to the memory.
std::string_view entries_at(std::string_view memory);

// Builds such a list as runs of memory. Long payloads are not copied: their memory must outlive the runs.
class EntryList {
 public:
  void clear();
  void append(const Entry& entry);
  size_t bytes() const { return kListBytes + bytes_; }
  void append_runs(Rank peer, std::vector<Run>& runs);

 private:
  struct Cut {
    size_t at = 0;  // in the text
    std::string_view payload;
  };
  std::string text_;
  std::vector<Cut> cuts_;
  uint64_t bytes_ = 0;
};

}  // namespace a2a::hosts
