// The frames that ranks send each other over TCP. Without sockets: the tests and a fuzzer drive this directly. Not
// public.
//
// The handshake; R is the rank that connects to rank 0:
//
//   R -> 0  hello      magic, a nonce
//   0 -> R  challenge  magic, a nonce
//   R -> 0  proof      protocol, rank, size, pid, job, and a MAC of these and both nonces, with the secret as its key
//   0 -> R  a frame, whose MAC proves that rank 0 knows the secret, too: welcome, or refusal with the cause
//
// These four never change, so that ranks of different versions can identify each other. All later data are frames: at
// most 64 KiB of header, payload and MAC. The key of a frame's MAC is derived from the secret, the proof and both
// nonces, one key for each direction. The MAC covers the frame's number. So neither a frame nor a handshake can be
// replayed elsewhere.
//
// Integers are little-endian.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "a2a/types.h"
#include "bootstrap/sha256.h"

namespace a2a::wire {

// ---- handshake ----------------------------------------------------------------------------------------------------

inline constexpr uint32_t kProtocol = 1;  // of what frames contain
using Nonce = std::array<uint8_t, 32>;

inline constexpr size_t kGreetingBytes = 40;
std::string greeting(const Nonce& nonce);  // hello, and challenge
// Whether these bytes are a greeting, or the beginning of one.
bool may_be_greeting(std::string_view bytes);

struct Introduction {
  uint32_t protocol = kProtocol;
  Rank rank = 0;
  int size = 0;
  uint32_t pid = 0;
  std::string job;  // as label() gives it
};

inline constexpr size_t kLongestLabel = 64;
// Returns the name of a job; for a name that is too long, its beginning and a hash.
std::string label(const std::string& job);

inline constexpr size_t kProofBytes = 4 * sizeof(uint32_t) + kLongestLabel + sizeof(Digest);
// Returns the proof. `greetings` is hello and challenge, concatenated.
std::string make_proof(std::string_view secret, std::string_view greetings, const Introduction& who);
// Returns the introduction in a proof; nullopt when the proof is invalid.
std::optional<Introduction> check_proof(std::string_view secret, std::string_view greetings, std::string_view proof);

struct Keys {
  Digest to_rank_0, from_rank_0;
};
Keys session_keys(std::string_view secret, std::string_view greetings, std::string_view proof);

// ---- frames -------------------------------------------------------------------------------------------------------

inline constexpr size_t kLargestFrame = size_t{64} << 10;
inline constexpr size_t kFrameOverhead = 2 * sizeof(uint32_t) + sizeof(Digest);

enum class PieceKind : uint32_t {
  welcome = 1,  // the handshake is done
  refusal,      // an error; nothing follows
  part,         // of a message that goes on in the next frame
  last,         // part of a message
};

// The contents of a frame to send, to one rank or many. It refers to the payload. The payload is hashed once; the MACs,
// which differ, cover the hash.
struct Piece {
  PieceKind kind;
  std::string_view payload;
  Digest hash;
};

Piece piece(PieceKind kind, std::string_view payload);
// Cuts a message into parts, at least one.
std::vector<Piece> pieces(std::string_view message);

struct Frame {
  PieceKind kind;
  std::string payload;
};

class Sealer {
 public:
  explicit Sealer(const Digest& key) : key_(key) {}
  std::string seal(const Piece& piece);

 private:
  Digest key_;
  uint64_t number_ = 0;
};

// Turns received bytes into frames that are authentic and in order.
class Opener {
 public:
  explicit Opener(const Digest& key) : key_(key) {}
  // Returns how many bytes feed() takes now: never more than one frame.
  size_t room() const { return kLargestFrame - bytes_.size(); }
  void feed(std::string_view bytes) { bytes_ += bytes; }
  // Returns the next frame; nullopt when more bytes are needed, or after a forgery.
  std::optional<Frame> next();
  // The bytes behind the last frame that next() returned.
  const std::string& rest() const { return bytes_; }
  // Whether something came that is no authentic frame. No frame follows then.
  bool forged() const { return forged_; }

 private:
  Digest key_;
  uint64_t number_ = 0;
  std::string bytes_;
  bool forged_ = false;
};

// ---- contents of frames -------------------------------------------------------------------------------------------

std::string pack_refusal(const Error& error);
Error unpack_refusal(std::string_view payload);

std::string pack_strings(const std::vector<std::string>& strings);
// Returns the strings; nullopt unless there are exactly n.
std::optional<std::vector<std::string>> unpack_strings(std::string_view message, size_t n);

}  // namespace a2a::wire
