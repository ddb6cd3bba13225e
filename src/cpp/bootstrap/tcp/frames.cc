#include "bootstrap/tcp/frames.h"

#include <algorithm>
#include <cstring>

namespace a2a::wire {
namespace {

using namespace std::string_view_literals;

constexpr std::string_view kMagic = "a2a-tcp\1"sv;
static_assert(kGreetingBytes == kMagic.size() + sizeof(Nonce));

// The purpose of a MAC is part of its text, so that none can be used for another purpose.
constexpr std::string_view kProofOf = "a2a proof of a rank\0"sv;
constexpr std::string_view kKeyToRank0 = "a2a key to rank 0\0"sv;
constexpr std::string_view kKeyFromRank0 = "a2a key from rank 0\0"sv;

template <class Unsigned>
void put(std::string& text, Unsigned value) {
  for (size_t i = 0; i < sizeof(Unsigned); ++i) text += static_cast<char>(value >> (8 * i));
}

// Requires that the bytes are there.
template <class Unsigned>
Unsigned get(std::string_view text, size_t at) {
  Unsigned value = 0;
  for (size_t i = 0; i < sizeof(Unsigned); ++i) {
    value |= static_cast<Unsigned>(Unsigned{static_cast<uint8_t>(text[at + i])} << (8 * i));
  }
  return value;
}

Digest mac(std::string_view key, std::initializer_list<std::string_view> parts) {
  std::string text;
  for (const std::string_view part : parts) text += part;
  return hmac_sha256(key, text);
}

Digest frame_mac(const Digest& key, uint64_t number, std::string_view header, const Digest& hash) {
  std::string text;
  put(text, number);
  text += header;
  text += as_text(hash);
  return hmac_sha256(as_text(key), text);
}

constexpr size_t kHeaderBytes = 2 * sizeof(uint32_t);
constexpr size_t kMostPayload = kLargestFrame - kFrameOverhead;

}  // namespace

std::string greeting(const Nonce& nonce) { return std::string(kMagic) + std::string(as_text(nonce)); }

bool may_be_greeting(std::string_view bytes) {
  return bytes.size() <= kGreetingBytes && bytes.substr(0, kMagic.size()) == kMagic.substr(0, bytes.size());
}

std::string label(const std::string& job) {
  if (job.size() <= kLongestLabel) return job;
  constexpr char kDigits[] = "0123456789abcdef";
  const Digest hash = sha256(job);
  std::string text = job.substr(0, kLongestLabel - 33) + "-";
  for (size_t i = 0; i < 16; ++i) {
    text += kDigits[hash[i] >> 4];
    text += kDigits[hash[i] & 15];
  }
  return text;
}

std::string make_proof(std::string_view secret, std::string_view greetings, const Introduction& who) {
  std::string proof;
  put(proof, who.protocol);
  put(proof, static_cast<uint32_t>(who.rank));
  put(proof, static_cast<uint32_t>(who.size));
  put(proof, who.pid);
  proof += who.job;
  proof.resize(kProofBytes - sizeof(Digest));
  return proof += as_text(mac(secret, {kProofOf, greetings, proof}));
}

std::optional<Introduction> check_proof(std::string_view secret, std::string_view greetings, std::string_view proof) {
  if (proof.size() != kProofBytes) return std::nullopt;
  const std::string_view said = proof.substr(0, kProofBytes - sizeof(Digest));
  if (!same_mac(as_text(mac(secret, {kProofOf, greetings, said})), proof.substr(said.size()))) return std::nullopt;
  Introduction who;
  who.protocol = get<uint32_t>(proof, 0);
  who.rank = static_cast<Rank>(get<uint32_t>(proof, 4));
  who.size = static_cast<int>(get<uint32_t>(proof, 8));
  who.pid = get<uint32_t>(proof, 12);
  who.job = proof.substr(16, kLongestLabel);
  who.job.erase(who.job.find_last_not_of('\0') + 1);
  return who;
}

Keys session_keys(std::string_view secret, std::string_view greetings, std::string_view proof) {
  return {mac(secret, {kKeyToRank0, greetings, proof}), mac(secret, {kKeyFromRank0, greetings, proof})};
}

Piece piece(PieceKind kind, std::string_view payload) { return {kind, payload, sha256(payload)}; }

std::vector<Piece> pieces(std::string_view message) {
  std::vector<Piece> all;
  while (message.size() > kMostPayload) {
    all.push_back(piece(PieceKind::part, message.substr(0, kMostPayload)));
    message.remove_prefix(kMostPayload);
  }
  all.push_back(piece(PieceKind::last, message));
  return all;
}

std::string Sealer::seal(const Piece& piece) {
  std::string frame;
  frame.reserve(kFrameOverhead + piece.payload.size());
  put(frame, static_cast<uint32_t>(piece.payload.size()));
  put(frame, static_cast<uint32_t>(piece.kind));
  const Digest tag = frame_mac(key_, number_++, frame, piece.hash);
  frame += piece.payload;
  return frame += as_text(tag);
}

std::optional<Frame> Opener::next() {
  if (forged_ || bytes_.size() < kHeaderBytes) return std::nullopt;
  const std::string_view bytes = bytes_;
  const size_t length = get<uint32_t>(bytes, 0);
  if (length > kMostPayload) {
    forged_ = true;
    return std::nullopt;
  }
  if (bytes.size() < kFrameOverhead + length) return std::nullopt;
  const std::string_view payload = bytes.substr(kHeaderBytes, length);
  const Digest tag = frame_mac(key_, number_++, bytes.substr(0, kHeaderBytes), sha256(payload));
  const auto kind = static_cast<PieceKind>(get<uint32_t>(bytes, 4));
  forged_ = !same_mac(as_text(tag), bytes.substr(kHeaderBytes + length, sizeof(Digest))) || kind < PieceKind::welcome ||
            kind > PieceKind::last;
  if (forged_) return std::nullopt;
  Frame frame{kind, std::string(payload)};
  bytes_.erase(0, kFrameOverhead + length);
  return frame;
}

std::string pack_refusal(const Error& error) {
  constexpr size_t kLongestText = 2048;
  std::string payload;
  put(payload, static_cast<uint32_t>(error.code()));
  return payload += std::string_view(error.what()).substr(0, kLongestText);
}

Error unpack_refusal(std::string_view payload) {
  if (payload.size() < sizeof(uint32_t)) return {Code::backend, "refused without a reason"};
  const auto code = get<uint32_t>(payload, 0);
  const bool known =
      code >= static_cast<uint32_t>(Code::invalid_argument) && code <= static_cast<uint32_t>(Code::backend);
  return {known ? static_cast<Code>(code) : Code::backend, std::string(payload.substr(sizeof(uint32_t)))};
}

std::string pack_strings(const std::vector<std::string>& strings) {
  std::string message;
  for (const std::string& s : strings) {
    put(message, static_cast<uint64_t>(s.size()));
    message += s;
  }
  return message;
}

std::optional<std::vector<std::string>> unpack_strings(std::string_view message, size_t n) {
  std::vector<std::string> strings;
  while (strings.size() < n) {
    if (message.size() < sizeof(uint64_t)) return std::nullopt;
    const auto length = get<uint64_t>(message, 0);
    message.remove_prefix(sizeof(uint64_t));
    if (length > message.size()) return std::nullopt;
    strings.emplace_back(message.substr(0, length));
    message.remove_prefix(length);
  }
  if (!message.empty()) return std::nullopt;
  return strings;
}

}  // namespace a2a::wire
