// What ranks say to each other over TCP, as bytes. No sockets: the tests and a fuzzer drive this directly. Not public.
//
// The handshake, R being the rank that connects to rank 0:
//
//   R -> 0  hello      magic, a nonce
//   0 -> R  challenge  magic, a nonce
//   R -> 0  proof      protocol, rank, size, pid, job, and a MAC of these and both nonces, with the secret as its key
//   0 -> R  a frame, whose MAC proves that rank 0 knows the secret, too: welcome, or refusal with the cause
//
// These four never change, so that ranks of different versions can tell each other. Everything after is frames: at most
// 64 KiB of header, payload and MAC. The key of a frame's MAC is made of the secret, the proof and both nonces, one for
// each direction, and the MAC covers the frame's number: neither a frame nor a handshake can be used again elsewhere.
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

// ---- handshake
// -------------------------------------------------------------------------------------------------------

inline constexpr uint32_t kProtocol = 1;  // of what frames contain
using Nonce = std::array<uint8_t, 32>;

inline constexpr size_t kGreetingBytes = 40;
std::string greeting(const Nonce& nonce);  // hello, and challenge
// Whether these bytes are a greeting or the beginning of one.
bool may_be_greeting(std::string_view bytes);

struct Introduction {
  uint32_t protocol = kProtocol;
  Rank rank = 0;
  int size = 0;
  uint32_t pid = 0;
  std::string job;  // as label() gives it
};

inline constexpr size_t kLongestLabel = 64;
// The name of a job, or what stands for a name that is too long: its beginning and a hash.
std::string label(const std::string& job);

inline constexpr size_t kProofBytes = 4 * sizeof(uint32_t) + kLongestLabel + sizeof(Digest);
// `greetings` is hello and challenge, one after the other.
std::string make_proof(std::string_view secret, std::string_view greetings, const Introduction& who);
// Who it is; none when the proof is not one.
std::optional<Introduction> check_proof(std::string_view secret, std::string_view greetings, std::string_view proof);

struct Keys {
  Digest to_rank_0, from_rank_0;
};
Keys session_keys(std::string_view secret, std::string_view greetings, std::string_view proof);

// ---- frames
// ----------------------------------------------------------------------------------------------------------

inline constexpr size_t kLargestFrame = size_t{64} << 10;
inline constexpr size_t kFrameOverhead = 2 * sizeof(uint32_t) + sizeof(Digest);

enum class PieceKind : uint32_t {
  welcome = 1,  // the handshake is done
  refusal,      // an error, after which nothing follows
  part,         // of a message that goes on in the next frame
  last,         // part of a message
};

// A frame that is to be sent, perhaps to many. The payload belongs to somebody else. Its hash is taken once; the MACs,
// which differ, cover that.
struct Piece {
  PieceKind kind;
  std::string_view payload;
  Digest hash;
};

Piece piece(PieceKind kind, std::string_view payload);
// A message of any length as parts; at least one.
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

// Takes bytes as they come and gives frames that are authentic and in order.
class Opener {
 public:
  explicit Opener(const Digest& key) : key_(key) {}
  // How many bytes it takes now: never more than a frame has.
  size_t room() const { return kLargestFrame - bytes_.size(); }
  void feed(std::string_view bytes) { bytes_ += bytes; }
  // None when more bytes are needed, or when these are forged.
  std::optional<Frame> next();
  // What has come and is no part of a frame that next() gave.
  const std::string& rest() const { return bytes_; }
  // Whether something came that is no authentic frame. Then there never is another one.
  bool forged() const { return forged_; }

 private:
  Digest key_;
  uint64_t number_ = 0;
  std::string bytes_;
  bool forged_ = false;
};

// ---- what frames contain
// ---------------------------------------------------------------------------------------------

std::string pack_refusal(const Error& error);
Error unpack_refusal(std::string_view payload);

std::string pack_strings(const std::vector<std::string>& strings);
// None unless these are exactly n strings.
std::optional<std::vector<std::string>> unpack_strings(std::string_view message, size_t n);

}  // namespace a2a::wire
