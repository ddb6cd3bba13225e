// What ranks of different hosts tell each other, as bytes. All hosts have one byte order: ranks compare the version of
// this library when they meet, and the network is one of processes of one program.
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

enum class MessageKind : uint32_t {
  text = 1,    // a bootstrap's string
  facts,       // entries of this rank for one other
  more_facts,  // the same for the second half of an operation
  bundle,      // entries of all ranks of a host for all ranks of another
  silence,     // the answer to a bundle that nobody waits for: this host tells that one nothing
  verdict,     // of an operation that is compared: the disagreement this rank has found, or nothing
  passed,      // this rank runs the operation on a device, uncompared
  aborted,     // Reason, and words
  left,        // `number`: the last operation this rank has started
  sent,        // SentHead, and the bytes or why there are none; `number` counts those of this rank for that one
  answered,    // Reply, and the reason of a refusal; `number` as in what is answered
};

// What each message begins with.
struct Prefix {
  uint64_t channel = 0;
  MessageKind kind = MessageKind::text;
  Rank source = 0;
  uint64_t number = 0;
};

// Why a rank gave up.
struct Reason {
  uint32_t code = 0;
  uint32_t died = 0;  // 1: it knows of a process that is dead
};

// How the bytes of a pair travel.
enum class Carriage : uint8_t {
  nothing,  // there are none
  refused,  // the payload says why this rank does not take part
  entry,    // they are the payload
  memory,   // from memory to memory, run by run; `where` is the tag
  packed,   // the same with all runs in one piece
};

// What one rank tells another about an operation.
struct Told : Facts {
  Carriage carriage = Carriage::nothing;
  Carriage repeated = Carriage::nothing;  // when an operation repeats this one (agreements.h); nothing: none can
  uint8_t gaps = 0;                       // 1: in this rank's part of the memory, so both ends move it in pieces
  uint8_t repeats = 0;                    // 1: this one repeats an earlier one, and the bytes are on their way already
  uint64_t tag = 0;                       // of this pair: in this operation, and in later ones that repeat it

  bool moves_memory() const { return carriage == Carriage::memory || carriage == Carriage::packed; }
};

// Whether the bytes of the sender go from memory to memory in pieces that are packed (pieces.h). What it repeats does
// not: it has sent that before it knew what the receiver has.
inline bool goes_in_pieces(const Told& sender, const Told& receiver) {
  return sender.carriage == Carriage::memory && sender.repeats == 0 && (sender.gaps != 0 || receiver.gaps != 0);
}

// The bytes of all runs in one piece, and back.
std::string packed(std::span<const Run> runs, size_t bytes);
void unpack(std::string_view piece, std::span<const Run> runs);

// The same on its way.
struct Entry {
  Rank source = 0, target = 0;
  Told told{};
  std::string_view payload;
};

// The most of a refusal that is told.
constexpr size_t kLongestRefusal = 512;

// A message with room for so many bytes more, and a whole one.
std::string begin_message(const Prefix& prefix, size_t bytes);
std::string message(const Prefix& prefix, std::string_view rest = {});
std::optional<Prefix> prefix_of(std::string_view message);
inline std::string_view rest_of(std::string_view message) { return message.substr(sizeof(Prefix)); }

// Entries one after the other.
constexpr size_t kEntryBytes = 3 * sizeof(uint32_t) + 4 + sizeof(Told);
constexpr size_t room_for(size_t payload) { return kEntryBytes + (payload + 7) / 8 * 8; }
void append(std::string& text, const Entry& entry);
// They point into the text. Nothing when it is no list of entries.
std::optional<std::vector<Entry>> entries_of(std::string_view text);

// What a list in memory that may be larger begins with: how many bytes of entries follow.
constexpr size_t kListBytes = sizeof(uint64_t);
// The entries of such a list. No more than there is memory.
std::string_view entries_at(std::string_view memory);

// Such a list, as runs of memory. Long payloads stay where they are: that memory must last as long as the runs.
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
