// What the members of a meeting read from a connection, and the error with which they end it. Not public.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "bootstrap/tcp/tcp_socket.h"

namespace a2a::endpoint {

// Writes an error if the socket takes it now.
inline void refuse(Channel& channel, const Error& error) {
  if (!channel.open() || !channel.write() || !channel.idle()) return;
  channel.put(wire::piece(wire::PieceKind::refusal, wire::pack_refusal(error)));
  channel.write();
}

// Reads the next frame. Throws the error that the other end gives.
inline std::optional<wire::Frame> read(Channel& channel, bool* gave_up = nullptr) {
  auto frame = channel.read();
  if (!frame || frame->kind != wire::PieceKind::refusal) return frame;
  if (gave_up != nullptr) *gave_up = true;
  throw wire::unpack_refusal(frame->payload);
}

// Whether nothing comes on it any more.
inline bool over(const Channel& channel) { return channel.gone() || channel.forged(); }
inline bool readable(const Channel& channel) { return channel.open() && !over(channel); }

// Reads what has come, and comes in this time. Throws the error that the other end gives.
inline void hear_out(Channel& channel, Deadline until) {
  while (readable(channel)) {
    if (read(channel)) continue;
    if (until.passed()) return;
    await(channel.fd(), POLLIN, until);
  }
}

// Adds a frame to a message. Returns the message once it is complete.
inline std::optional<std::string> add(std::string& received, const wire::Frame& frame) {
  received += frame.payload;
  if (frame.kind != wire::PieceKind::last) return std::nullopt;
  return std::exchange(received, {});
}

}  // namespace a2a::endpoint
